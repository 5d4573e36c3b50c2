//! The table of known repositories and tag patterns, which guesses an image's platforms from its name.
//!
//! A user can add rows in front of it (`--images FILE`). A name that no row and no tag pattern matches gives no guess,
//! because a wrong guess would send pods to nodes that cannot run them. Numbers that are ordinary versions elsewhere
//! (`1809`, `2004`) mean Windows builds only in repositories that publish Windows images.

use std::borrow::Cow;

use super::{
    ImageRef, Runs, System,
    known::{
        DEFAULT_LINUX_BYTES, DEFAULT_WINDOWS_BYTES, KNOWN, LINUX_TAG_PARTS, MIRRORS,
        WINDOWS_TAG_PARTS, WINDOWS_YEARS,
    },
};
use crate::windows::{Build, Builds};

/// The kinds of images in a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// Linux images only.
    Linux,
    /// Windows images only, of the given build (`None`: of the build in the tag, else of every build).
    Windows(Option<Build>),
    /// Images with a manifest for Linux and one for every Windows build that Kubernetes supports.
    Both,
}

/// One row of the table: the images of a repository and of everything below it.
#[derive(Clone, Debug)]
pub struct ImageRow {
    /// Repository with registry, such as `docker.io/library/nginx`; also matches what is below it.
    pub repository: Cow<'static, str>,
    /// The kinds of images in it, if the tag does not say more.
    pub published: Published,
    /// The compressed size of an image in bytes.
    pub bytes: u64,
    /// The part of the size, in bytes, that belongs to the base image which Windows AMIs have on disk already.
    pub base_bytes: u64,
}

impl ImageRow {
    fn covers(&self, repository: &str) -> bool {
        let below = repository.strip_prefix(&*self.repository);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// The table of known images.
#[derive(Clone, Debug, Default)]
pub struct ImageTable {
    own: Vec<ImageRow>,
    builds: Builds,
}

/// The platforms that an image's name suggests. The image's registry is more reliable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guess {
    /// The platforms that the image probably runs on.
    pub runs: Runs,
    /// The evidence: `the tag ltsc2022` or `the repository docker.io/library/nginx`.
    pub because: String,
}

/// The size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Compressed size in bytes, as the node reports it.
    pub bytes: u64,
    /// Compressed size in bytes of the part that a node downloads.
    pub download_bytes: u64,
}

/// What a tag tells about the operating system.
enum Named {
    Linux,
    Windows(Option<Build>),
}

impl ImageTable {
    /// Creates the built-in table with `own` rows in front of it; `builds` decides which Windows build runs on which.
    pub fn extended(own: Vec<ImageRow>, builds: Builds) -> Self {
        Self { own, builds }
    }

    /// Returns the Windows builds.
    pub fn builds(&self) -> &Builds {
        &self.builds
    }

    /// Returns what the image's name suggests that it runs on; `None` if the name suggests nothing.
    pub fn guess(&self, image: &ImageRef) -> Option<Guess> {
        let row = self.row(&image.repository);
        let by_tag = |runs| Guess {
            runs,
            because: format!("the tag {}", image.tag.as_deref().unwrap_or_default()),
        };
        let published = row.map(|row| row.published);
        // A user's row, or one of Windows images, takes precedence over the name of a Linux distribution in a tag.
        match (self.named(image, published), published) {
            (Some(Named::Windows(build)), Some(Published::Windows(fixed))) => {
                return Some(by_tag(Runs::windows(fixed.or(build))));
            }
            (Some(Named::Windows(build)), _) => return Some(by_tag(Runs::windows(build))),
            (Some(Named::Linux), None | Some(Published::Both)) => {
                return Some(by_tag(Runs::on(System::Linux)));
            }
            _ => {}
        }
        let row = row?;
        Some(Guess {
            runs: match row.published {
                Published::Linux => Runs::on(System::Linux),
                Published::Windows(build) => Runs::windows(build),
                Published::Both => Runs::anywhere(),
            },
            because: format!("the repository {}", row.repository),
        })
    }

    /// Returns the size of the image for a node with this system.
    pub fn sizes(&self, image: &ImageRef, system: System) -> Sizes {
        let default_bytes = match system {
            System::Windows => DEFAULT_WINDOWS_BYTES,
            System::Linux => DEFAULT_LINUX_BYTES,
        };
        let row = self.row(&image.repository);
        let (bytes, base_bytes) = row.map_or((default_bytes, 0), |row| (row.bytes, row.base_bytes));
        let download_bytes = match system {
            System::Windows => bytes.saturating_sub(base_bytes),
            System::Linux => bytes,
        };
        Sizes {
            bytes,
            download_bytes,
        }
    }

    fn row(&self, repository: &str) -> Option<&ImageRow> {
        let find = |repository: &str| {
            // The user's rows first: they correct the built-in ones.
            let mut rows = self.own.iter().chain(&KNOWN);
            rows.find(|row| row.covers(repository))
        };
        let mirrored = || {
            let original = |(mirror, original): &(&str, &str)| {
                let rest = repository.strip_prefix(mirror)?;
                Some(format!("{original}{rest}"))
            };
            MIRRORS.iter().find_map(original)
        };
        // A mirror's own row, if there is one, says more than that of what it mirrors.
        find(repository).or_else(|| find(&mirrored()?))
    }

    fn named(&self, image: &ImageRef, published: Option<Published>) -> Option<Named> {
        let tag = image.tag.as_deref()?.to_ascii_lowercase();
        let has = |wanted: &str| tag.split(['-', '_']).any(|part| part == wanted);
        let build = self.builds.of_image(&image.full_name());
        let has_year = |&(year, release): &(&str, &'static str)| has(year).then_some(release);
        // A year is an ordinary version elsewhere, so it is only asked once the tag says Windows otherwise.
        let by_year = || {
            let release = WINDOWS_YEARS.iter().find_map(has_year)?;
            self.builds.of_image(&format!("x:{release}"))
        };
        let is_windows = WINDOWS_TAG_PARTS.iter().any(|part| has(part))
            || tag
                .split(['-', '_'])
                .any(|part| part.starts_with("ltsc") && build.is_some());
        // Numbers like 1809 are builds only where Windows images are published.
        let publishes_windows = matches!(published, Some(Published::Windows(_) | Published::Both));
        if is_windows || (publishes_windows && build.is_some()) {
            return Some(Named::Windows(build.or_else(by_year)));
        }
        let is_linux = tag
            .split(['-', '_'])
            .any(|part| LINUX_TAG_PARTS.iter().any(|known| part.starts_with(known)));
        is_linux.then_some(Named::Linux)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str) -> ImageRef {
        ImageRef::parse(name).expect("the name is valid")
    }

    fn guessed(name: &str) -> String {
        let guess = ImageTable::default().guess(&parsed(name));
        guess.map_or("?".to_owned(), |guess| guess.runs.to_string())
    }

    #[test]
    fn system_and_build_are_guessed_from_repository_and_tag() {
        let cases = [
            (
                "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022",
                "windows:10.0.20348",
            ),
            (
                "mcr.microsoft.com/windows/servercore:ltsc2019",
                "windows:10.0.17763",
            ),
            (
                "mcr.microsoft.com/windows/nanoserver:10.0.26100.1742",
                "windows:10.0.26100",
            ),
            (
                "mcr.microsoft.com/windows/nanoserver:1809-amd64",
                "windows:10.0.17763",
            ),
            (
                "mcr.microsoft.com/windows/nanoserver:20H2",
                "windows:10.0.19042",
            ),
            ("mcr.microsoft.com/windows/server", "windows"),
            ("mcr.microsoft.com/dotnet/aspnet:8.0", "linux,windows"),
            ("mcr.microsoft.com/dotnet/aspnet:8.0-alpine", "linux"),
            ("mcr.microsoft.com/dotnet/aspnet:10.0.1", "linux,windows"),
            (
                "mcr.microsoft.com/dotnet/aspnet:8.0-nanoserver-ltsc2022",
                "windows:10.0.20348",
            ),
            (
                "mcr.microsoft.com/dotnet/framework/samples:aspnetapp",
                "windows",
            ),
            ("registry.k8s.io/pause:3.10", "linux,windows"),
            ("registry.k8s.io/coredns/coredns:v1.12.0", "linux"),
            ("golang:1.24-windowsservercore", "windows"),
            ("nginx:1.27", "linux"),
            ("docker.io/nginx", "linux"),
            ("public.ecr.aws/docker/library/nginx:1.27", "linux"),
            ("quay.io/prometheus/node-exporter:v1.9.0", "linux"),
            (
                "ghcr.io/prometheus-community/windows-exporter:0.31.0",
                "windows",
            ),
            ("fluent/fluent-bit:windows-2022-4.0", "windows:10.0.20348"),
            (
                "shop/report:2.0-windowsservercore-1809",
                "windows:10.0.17763",
            ),
            ("shop/report:ltsc2025", "windows:10.0.26100"),
            ("shop/report:3-alpine3.20", "linux"),
        ];
        for (name, expected) in cases {
            assert_eq!(guessed(name), expected, "{name}");
        }
    }

    #[test]
    fn an_ordinary_version_is_no_windows_build() {
        for tag in [
            "v2",
            "1809",
            "2004",
            "10.0.3",
            "10.0.100",
            "windowsill",
            "2022",
        ] {
            assert_eq!(
                guessed(&format!("registry.example.com/shop:{tag}")),
                "?",
                "{tag}"
            );
        }
    }

    #[test]
    fn a_guess_says_what_it_comes_from() {
        let because = |name| {
            let guess = ImageTable::default().guess(&parsed(name));
            guess.expect("the name is known").because
        };
        assert_eq!(because("nginx"), "the repository docker.io/library/nginx");
        assert_eq!(because("a/b:ltsc2022"), "the tag ltsc2022");
    }

    #[test]
    fn own_rows_come_first_and_cover_what_is_below_them() {
        let row = ImageRow {
            repository: "registry.example.com/shop".into(),
            published: Published::Windows(Some(Build::SERVER_2022)),
            bytes: 5,
            base_bytes: 2,
        };
        let table = ImageTable::extended(vec![row], Builds::default());
        let image = parsed("registry.example.com/shop/report:v2");
        let guess = table.guess(&image).expect("a row covers it");
        assert_eq!(guess.runs.to_string(), "windows:10.0.20348");
        let sizes = Sizes {
            bytes: 5,
            download_bytes: 3,
        };
        assert_eq!(table.sizes(&image, System::Windows), sizes);
        let neighbour = parsed("registry.example.com/shopping:v2");
        assert_eq!(table.guess(&neighbour), None);
    }

    #[test]
    fn an_image_on_a_base_that_the_windows_ami_holds_downloads_only_the_rest() {
        let iis = parsed("mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2019");
        let sizes = ImageTable::default().sizes(&iis, System::Windows);
        assert!(sizes.download_bytes < sizes.bytes / 5, "{sizes:?}");
    }
}
