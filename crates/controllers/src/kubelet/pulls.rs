//! The images on one simulated node, and the pulls that bring them there.
//!
//! A Windows node pulls one image at a time, which is the kubelet's default. A Linux node pulls all images at once,
//! because nodeadm on EKS's AMIs sets `serializeImagePulls: false` and no `maxParallelImagePulls`; simulated pulls
//! do not slow each other down there. A pod whose image another pod is already pulling waits for that pull and then
//! finds the image present. An image without a manifest for the node fails with containerd's error message. A
//! Windows AMI contains the base layers of its own build and revision; an image on another base is downloaded and
//! extracted completely.

use std::{collections::HashMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ContainerImage;
use mullion_engine::{
    images::{Host, ImageRef, ImageTable, Sizes, System},
    windows::{Build, Builds},
};
use rustc_hash::FxBuildHasher;

use super::{
    ids,
    images::{self, Contents},
    pace::{Delays, Pace},
};

/// The kubelet reports at most this many images (`nodeStatusMaxImages`).
const MAX_REPORTED: usize = 50;

/// The sources of facts about images.
#[derive(Clone, Debug, Default)]
pub struct ImageSources {
    /// Platforms and sizes guessed from image names, and which Windows build runs on which.
    pub table: Arc<ImageTable>,
    /// Facts from registries, which take precedence over the table.
    pub contents: Option<Arc<dyn Contents>>,
}

/// The images of one node.
#[derive(Clone, Debug)]
pub struct NodeImages {
    knowledge: ImageSources,
    system: System,
    architecture: String,
    windows_build: Option<Build>,
    /// The revision in the version of the Windows AMI, the number after the build.
    windows_revision: Option<u32>,
    pace: Pace,
    delays: Delays,
    known: HashMap<String, StoredImage, FxBuildHasher>,
    /// When the last queued pull ends.
    puller_free_at: Timestamp,
}

#[derive(Clone, Debug)]
struct StoredImage {
    digest: String,
    bytes: u64,
    available_at: Timestamp,
}

/// A pull and its result, known from the start because it is simulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// When the pull ends.
    pub done_at: Timestamp,
    /// How long the pull itself takes, without the time in the queue.
    pub work: SignedDuration,
    /// The image's size in bytes, or the runtime's error.
    pub result: Result<u64, PullError>,
}

/// The reason why an image cannot be pulled, with containerd's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The image of this name is not for the node.
    #[error(
        "rpc error: code = NotFound desc = failed to pull and unpack image \"{0}\": no match for platform in manifest: not found"
    )]
    NoMatch(String),
    /// No registry has an image of this name.
    #[error(
        "rpc error: code = NotFound desc = failed to pull and unpack image \"{0}\": failed to resolve reference \"{0}\": {0}: not found"
    )]
    NotFound(String),
}

impl NodeImages {
    /// Creates an empty image store for a node that runs `system` on `architecture` (and, for Windows, `windows_build`).
    pub fn new(
        knowledge: ImageSources,
        system: System,
        architecture: &str,
        windows_build: Option<Build>,
        pace: Pace,
        delays: Delays,
    ) -> Self {
        Self {
            knowledge,
            system,
            architecture: architecture.to_owned(),
            windows_build,
            windows_revision: None,
            pace,
            delays,
            known: HashMap::default(),
            puller_free_at: Timestamp::MIN,
        }
    }

    /// Sets the kernel version of a Windows node (`10.0.20348.1607`), which names the revision of its base layers.
    pub fn on_kernel(mut self, version: &str) -> Self {
        self.windows_revision = revision(version);
        self
    }

    /// Returns whether `image` is on the node.
    pub fn has(&self, image: &ImageRef, now: Timestamp) -> bool {
        self.known
            .get(&image.full_name())
            .is_some_and(|stored| stored.available_at <= now)
    }

    /// Records that `image` is on the node, which a running container proves after a restart of the simulation.
    pub fn adopt(&mut self, image: &ImageRef, now: Timestamp) {
        let bytes = self.found(image).map_or(0, |found| found.sizes.bytes);
        self.store(image, bytes, now);
    }

    /// Starts a pull of `image`, or queues it after the others.
    pub fn pull(&mut self, image: &ImageRef, now: Timestamp) -> Pull {
        let found = self.found(image);
        let known = self.known.get(&image.full_name());
        let available_at = known.map(|stored| stored.available_at);
        let work = match &found {
            Some(found) if available_at.is_none() => self.delays.pull(if self.has_base_of(found) {
                found.sizes.download_bytes
            } else {
                found.sizes.bytes
            }),
            _ => self.delays.pull_check,
        };
        let (mut done_at, mut work) = self.queue(work, now);
        // The container runtime merges a pull into one of the same image that is already under way.
        if let Some(available_at) = available_at.filter(|available_at| *available_at > done_at) {
            (done_at, work) = (available_at, available_at.duration_since(now));
        }
        let Some(Image { sizes, .. }) = found else {
            return Pull {
                done_at,
                work,
                result: Err(PullError::NoMatch(image.full_name())),
            };
        };
        if available_at.is_none() {
            self.store(image, sizes.bytes, done_at);
        }
        Pull {
            done_at,
            work,
            result: Ok(sizes.bytes),
        }
    }

    /// Starts or queues a pull of `image` that ends with the error that no registry has it.
    pub fn pull_in_vain(&mut self, image: &ImageRef, now: Timestamp) -> Pull {
        let (done_at, work) = self.queue(self.delays.pull_check, now);
        Pull {
            done_at,
            work,
            result: Err(PullError::NotFound(image.full_name())),
        }
    }

    /// Returns when `work` that is queued now ends, and how long it takes at this pace. On Windows it starts after all
    /// earlier work.
    fn queue(&mut self, work: SignedDuration, now: Timestamp) -> (Timestamp, SignedDuration) {
        let work = self.pace.of(work);
        let start = match self.system {
            System::Windows => now.max(self.puller_free_at),
            System::Linux => now,
        };
        let done_at = start.saturating_add(work).unwrap_or(Timestamp::MAX);
        // On Linux nothing waits for this time, and pulls there may end in another order than they began.
        self.puller_free_at = self.puller_free_at.max(done_at);
        (done_at, work)
    }

    /// Returns whether Windows refuses to start a container of `image` on this node: the image could be pulled because its registry names no
    /// `os.version`, but its name names builds that the node does not run.
    pub fn is_of_another_build(&self, image: &ImageRef) -> bool {
        let ImageSources { table, contents } = &self.knowledge;
        let host = self.as_host();
        let variants = contents.as_ref().and_then(|known| known.variants(image));
        let chosen = variants
            .as_deref()
            .and_then(|variants| images::choose(variants, host, table.builds()));
        let names_no_build = chosen.is_some_and(|chosen| chosen.platform.builds.is_none());
        if self.system != System::Windows || !names_no_build {
            return false;
        }
        let windows = table
            .guess(image)
            .map(|guess| guess.runs.only(System::Windows));
        windows.is_some_and(|runs| !runs.is_empty() && !runs.runs_on(host, table.builds()))
    }

    /// Returns the number of images on the node. It grows whenever a pull ends, so a reader can compare it to see whether
    /// its report is stale.
    pub fn count(&self, now: Timestamp) -> usize {
        let here = |stored: &&StoredImage| stored.available_at <= now;
        self.known.values().filter(here).count()
    }

    /// Returns the node's `status.images`: the largest first, at most 50.
    pub fn report(&self, now: Timestamp) -> Vec<ContainerImage> {
        let mut here: Vec<_> = self
            .known
            .iter()
            .filter(|(_, stored)| stored.available_at <= now)
            .collect();
        here.sort_by(|(a_name, a), (b_name, b)| {
            b.bytes.cmp(&a.bytes).then_with(|| a_name.cmp(b_name))
        });
        // Cut after sorting by size: the scheduler scores image locality by bytes, so the largest images
        // matter most.
        here.truncate(MAX_REPORTED);
        let report = |(name, stored): (&String, &StoredImage)| ContainerImage {
            names: Some(vec![stored.digest.clone(), name.clone()]),
            size_bytes: i64::try_from(stored.bytes).ok(),
        };
        here.into_iter().map(report).collect()
    }

    fn as_host(&self) -> Host<'_> {
        Host {
            system: self.system,
            architecture: Some(&self.architecture),
            build: self.windows_build,
        }
    }

    fn store(&mut self, image: &ImageRef, bytes: u64, available_at: Timestamp) {
        self.known.insert(
            image.full_name(),
            StoredImage {
                digest: ids::repo_digest(image),
                bytes,
                available_at,
            },
        );
    }

    /// Returns whether the base layers of an image are on the node. An image without a revision is assumed to have the
    /// newest revision of its build, which is the AMI's.
    fn has_base_of(&self, image: &Image) -> bool {
        let (Some(own), Some(host)) = (image.build, self.windows_build) else {
            return true;
        };
        own == host
            && image
                .revision
                .is_none_or(|own| Some(own) == self.windows_revision)
    }

    /// Returns the image that the node would run; `None` if it has no variant for the node. An unknown image is assumed to
    /// run anywhere.
    fn found(&self, image: &ImageRef) -> Option<Image> {
        let ImageSources { table, contents } = &self.knowledge;
        let host = self.as_host();
        let usual = table.sizes(image, self.system);
        let by_name = Image::named(&image.full_name(), usual, table.builds());
        let variants = contents.as_ref().and_then(|known| known.variants(image));
        let Some(variants) = variants else {
            let guess = table.guess(image);
            let runs = guess.is_none_or(|guess| guess.runs.runs_on(host, table.builds()));
            return runs.then_some(by_name);
        };
        let chosen = images::choose(&variants, host, table.builds())?;
        // The registry's size includes the base layers, which a Windows node with the same base need not
        // download.
        let shared = usual.bytes - usual.download_bytes;
        let sizes = chosen.bytes.map_or(usual, |bytes| Sizes {
            bytes,
            download_bytes: bytes.saturating_sub(shared),
        });
        // The registry's `os.version` takes precedence over the name.
        Some(match chosen.os_version.parse() {
            Ok(build) => Image {
                sizes,
                build: Some(build),
                revision: revision(&chosen.os_version),
            },
            Err(_) => Image { sizes, ..by_name },
        })
    }
}

/// The variant of an image that a node would pull.
struct Image {
    sizes: Sizes,
    /// The Windows build it is made for, if known.
    build: Option<Build>,
    /// The revision after the build in its version, if known.
    revision: Option<u32>,
}

impl Image {
    /// Returns the facts that the image's name contains.
    fn named(name: &str, sizes: Sizes, builds: &Builds) -> Self {
        let parts = name.rsplit([':', '-', '_']);
        let mut versions = parts.filter(|part| part.parse::<Build>().is_ok());
        Image {
            sizes,
            build: builds.of_image(name),
            revision: versions.find_map(revision),
        }
    }
}

/// Returns the revision of a Windows version: `1607` of `10.0.20348.1607`.
fn revision(version: &str) -> Option<u32> {
    version.splitn(4, '.').nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(os: &str, build: Option<Build>, pace: Pace) -> NodeImages {
        let system = System::of_label(os).expect("a system that nodes have");
        let delays = match system {
            System::Windows => Delays::WINDOWS,
            System::Linux => Delays::LINUX,
        };
        NodeImages::new(
            ImageSources::default(),
            system,
            "amd64",
            build,
            pace,
            delays,
        )
    }

    fn image(name: &str) -> ImageRef {
        ImageRef::parse(name).expect("the name is valid")
    }

    #[test]
    fn an_image_runs_where_its_platform_and_build_allow() {
        let core = |tag: &str| format!("mcr.microsoft.com/windows/servercore:{tag}");
        let cases = [
            ("linux", None, "nginx".to_owned(), true),
            ("linux", None, core("ltsc2022"), false),
            (
                "windows",
                Some(Build::SERVER_2019),
                "nginx".to_owned(),
                false,
            ),
            ("windows", Some(Build::SERVER_2019), core("ltsc2019"), true),
            ("windows", Some(Build::SERVER_2019), core("ltsc2022"), false),
            ("windows", Some(Build::SERVER_2022), core("ltsc2019"), false),
            ("windows", Some(Build::SERVER_2022), core("ltsc2022"), true),
            ("windows", Some(Build::SERVER_2025), core("ltsc2022"), true),
            ("windows", Some(Build::SERVER_2022), core("ltsc2025"), false),
            (
                "windows",
                Some(Build::SERVER_2022),
                "registry.example.com/app:1".to_owned(),
                true,
            ),
        ];
        for (os, build, name, runs) in cases {
            let pull = node(os, build, Pace::INSTANT).pull(&image(&name), Timestamp::UNIX_EPOCH);
            assert_eq!(pull.result.is_ok(), runs, "{name} on {os} {build:?}");
        }
    }

    /// A registry with one image: for Linux on arm64, and for Windows Server 2022.
    #[derive(Debug)]
    struct OneImage;

    impl Contents for OneImage {
        fn variants(&self, _: &ImageRef) -> Option<Vec<images::Variant>> {
            let variant = |platform: &str, bytes| images::Variant {
                platform: platform.parse().expect("a platform"),
                os_version: String::new(),
                bytes: Some(bytes),
            };
            Some(vec![
                variant("linux/arm64", 5),
                variant("windows/amd64:10.0.20348", 7),
            ])
        }
    }

    #[test]
    fn what_a_registry_says_counts_more_than_the_name() {
        let pull = |system, architecture: &str, build| {
            let knowledge = ImageSources {
                contents: Some(Arc::new(OneImage)),
                ..ImageSources::default()
            };
            let (pace, delays) = (Pace::INSTANT, Delays::LINUX);
            let mut node = NodeImages::new(knowledge, system, architecture, build, pace, delays);
            node.pull(&image("nginx"), Timestamp::UNIX_EPOCH)
                .result
                .ok()
        };
        assert_eq!(pull(System::Linux, "amd64", None), None);
        assert_eq!(pull(System::Linux, "arm64", None), Some(5));
        let windows = |build| pull(System::Windows, "amd64", Some(build));
        assert_eq!(windows(Build::SERVER_2019), None);
        assert_eq!(windows(Build::SERVER_2022), Some(7));
    }

    #[test]
    fn a_missing_platform_is_reported_in_containerds_words() {
        let pull = node("windows", Some(Build::SERVER_2019), Pace::REAL)
            .pull(&image("nginx"), Timestamp::UNIX_EPOCH);
        assert_eq!(
            pull.result.unwrap_err().to_string(),
            "rpc error: code = NotFound desc = failed to pull and unpack image \"docker.io/library/nginx:latest\": \
             no match for platform in manifest: not found"
        );
    }

    #[test]
    fn pulls_of_a_windows_node_follow_each_other_and_a_second_pull_of_an_image_is_short() {
        let mut node = node("windows", Some(Build::SERVER_2022), Pace::REAL);
        let start = Timestamp::UNIX_EPOCH;
        let (one, another) = (image("r.example.com/one"), image("r.example.com/another"));
        let first = node.pull(&one, start);
        let other = node.pull(&another, start);
        let again = node.pull(&one, start);
        assert_eq!(first.done_at, start + first.work);
        assert_eq!(other.done_at, first.done_at + other.work);
        assert_eq!(again.done_at, other.done_at + again.work);
        assert_eq!(again.work, Delays::WINDOWS.pull_check);
        assert!(!node.has(&one, start));
        let here = [start, first.done_at, other.done_at, again.done_at].map(|at| node.count(at));
        assert_eq!(here, [0, 1, 2, 2]);
        assert!(node.has(&one, first.done_at));
    }

    #[test]
    fn pulls_of_a_linux_node_go_on_at_once_and_two_of_one_image_end_together() {
        let mut node = node("linux", None, Pace::REAL);
        let start = Timestamp::UNIX_EPOCH;
        let first = node.pull(&image("nginx"), start);
        let other = node.pull(&image("redis"), start);
        assert_eq!(first.done_at, start + first.work);
        assert_eq!(other.done_at, start + other.work);
        let half = start + first.work / 2;
        let again = node.pull(&image("nginx"), half);
        assert_eq!(again.done_at, first.done_at);
        assert_eq!(again.done_at, half + again.work);
        assert_eq!(node.count(half), 0);
        assert!(node.has(&image("nginx"), first.done_at));
        let later = node.pull(&image("nginx"), first.done_at);
        assert_eq!(later.work, Delays::LINUX.pull_check);
    }

    #[test]
    fn base_layers_are_there_only_for_images_of_the_amis_own_build_and_revision() {
        let took = |host: Build, tag: &str| {
            let node = node("windows", Some(host), Pace::REAL).on_kernel("10.0.20348.1607");
            let name = format!("mcr.microsoft.com/windows/servercore/iis:{tag}");
            let pull = { node }.pull(&image(&name), Timestamp::UNIX_EPOCH);
            assert!(pull.result.is_ok(), "{name}");
            pull.work
        };
        let cached = took(Build::SERVER_2022, "windowsservercore-ltsc2022");
        assert_eq!(took(Build::SERVER_2022, "10.0.20348.1607"), cached);
        assert!(took(Build::SERVER_2022, "10.0.20348.2700") > cached * 4);
        assert!(took(Build::SERVER_2025, "windowsservercore-ltsc2022") > cached * 4);
    }

    /// A registry whose images are built for a version of Windows that their tags do not show.
    #[derive(Debug)]
    struct OfVersion(&'static str);

    impl Contents for OfVersion {
        fn variants(&self, _: &ImageRef) -> Option<Vec<images::Variant>> {
            Some(vec![images::Variant {
                platform: "windows/amd64:10.0.20348".parse().expect("a platform"),
                os_version: self.0.to_owned(),
                bytes: Some(2_500_000_000),
            }])
        }
    }

    #[test]
    fn of_an_image_whose_registry_names_its_version_the_base_layers_are_there_only_if_the_ami_has_them()
     {
        let took = |version: &'static str| {
            let knowledge = ImageSources {
                contents: Some(Arc::new(OfVersion(version))),
                ..ImageSources::default()
            };
            let build = Some(Build::SERVER_2022);
            let (pace, delays) = (Pace::REAL, Delays::WINDOWS);
            let node = NodeImages::new(knowledge, System::Windows, "amd64", build, pace, delays);
            let name = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022";
            let pull = node
                .on_kernel("10.0.20348.1607")
                .pull(&image(name), Timestamp::UNIX_EPOCH);
            assert_eq!(pull.result, Ok(2_500_000_000));
            pull.work
        };
        assert!(took("10.0.20348.2700") > took("10.0.20348.1607") * 2);
        assert_eq!(took("10.0.20348.2700"), Delays::WINDOWS.pull(2_500_000_000));
    }

    #[test]
    fn the_report_names_digest_and_tag_of_the_largest_images_first() {
        let mut node = node("linux", None, Pace::INSTANT);
        let now = Timestamp::UNIX_EPOCH;
        for name in ["busybox", "nginx:1.27"] {
            node.pull(&image(name), now);
        }
        let names: Vec<_> = node
            .report(now)
            .into_iter()
            .map(|image| image.names.unwrap_or_default()[1].clone())
            .collect();
        assert_eq!(
            names,
            [
                "docker.io/library/nginx:1.27",
                "docker.io/library/busybox:latest"
            ]
        );
    }
}
