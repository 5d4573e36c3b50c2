//! What is known about container images without a registry: their platform, their Windows build and their size.
//!
//! An image is judged by its name alone, from a table that a user can put rows in front of. What no row knows runs
//! anywhere, because refusing an unknown image would be a guess; the Windows build is read from the usual tags.
//! Which tags stand for which build, and which build runs where, is the engine's table.

use std::borrow::Cow;

use mullion_engine::windows::{Build, Builds};
use thiserror::Error;

/// The operating system an image is published for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// Nothing is known: it is taken to run wherever it is sent.
    Unknown,
    /// Linux only.
    Linux,
    /// Windows only, for the given build (`None`: the tag names none, every build is taken to be published).
    Windows(Option<Build>),
    /// An index with Linux and every Windows build that Kubernetes supports.
    Any,
}

/// One row of the table: images of a repository, or of everything below it.
#[derive(Clone, Debug)]
pub struct ImageRow {
    /// Repository with registry, such as `docker.io/library/nginx`; also matches what is below it.
    pub repository: Cow<'static, str>,
    /// The platform, when the tag says nothing else.
    pub platform: Platform,
    /// Compressed size.
    pub bytes: u64,
    /// How much of it is in the base image that Windows AMIs keep on disk.
    pub base_bytes: u64,
}

/// The table of known images.
#[derive(Clone, Debug, Default)]
pub struct ImageTable {
    own: Vec<ImageRow>,
    builds: Builds,
}

/// What the table says about one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// Where it runs.
    pub platform: Platform,
    /// Compressed size of what the node reports, in bytes.
    pub bytes: u64,
    /// Compressed size of what a node must download, in bytes.
    pub download_bytes: u64,
}

/// An image name that no runtime would accept.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidImage {
    /// The repository has capital letters.
    #[error(
        "couldn't parse image name {name:?}: invalid reference format: repository name ({repository}) must be lowercase"
    )]
    Uppercase {
        /// The name as given.
        name: String,
        /// The repository within it.
        repository: String,
    },
    /// Anything else.
    #[error("couldn't parse image name {name:?}: invalid reference format")]
    Format {
        /// The name as given.
        name: String,
    },
}

/// A parsed image reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRef {
    /// Registry and path: `docker.io/library/nginx`.
    pub repository: String,
    /// The tag; `latest` if the name has neither tag nor digest.
    pub tag: Option<String>,
    /// The digest with its algorithm.
    pub digest: Option<String>,
}

impl ImageRef {
    /// Reads a name as Docker does: `nginx` is `docker.io/library/nginx:latest`.
    ///
    /// # Errors
    /// If the name is no valid reference.
    pub fn parse(name: &str) -> Result<Self, InvalidImage> {
        let format = || InvalidImage::Format {
            name: name.to_owned(),
        };
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (name, None),
        };
        // A colon before the last slash belongs to the registry's port.
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        let registry = path
            .split_once('/')
            .filter(|(head, _)| head.contains(['.', ':']) || *head == "localhost");
        let (registry, repository) = match registry {
            Some((registry, repository)) => (registry, Cow::Borrowed(repository)),
            None if path.contains('/') => ("docker.io", Cow::Borrowed(path)),
            None => ("docker.io", Cow::Owned(format!("library/{path}"))),
        };
        if repository.chars().any(|c| c.is_ascii_uppercase()) {
            return Err(InvalidImage::Uppercase {
                name: name.to_owned(),
                repository: repository.into_owned(),
            });
        }
        let component = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.ends_with(|c: char| c.is_ascii_alphanumeric())
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        if !repository.split('/').all(component) {
            return Err(format());
        }
        let tag_is_valid = |tag: &str| {
            (1..=128).contains(&tag.len())
                && !tag.starts_with(['.', '-'])
                && tag
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let digest_is_valid = |digest: &str| {
            digest
                .split_once(':')
                .is_some_and(|(_, hex)| hex.len() >= 32)
        };
        if !tag.is_none_or(tag_is_valid) || !digest.is_none_or(digest_is_valid) {
            return Err(format());
        }
        let tag = tag.or(digest.is_none().then_some("latest"));
        Ok(Self {
            repository: format!("{registry}/{repository}"),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    /// The name with registry and tag, as containerd prints it.
    pub fn full_name(&self) -> String {
        let tag = self
            .tag
            .as_ref()
            .map(|tag| format!(":{tag}"))
            .unwrap_or_default();
        let digest = self
            .digest
            .as_ref()
            .map(|digest| format!("@{digest}"))
            .unwrap_or_default();
        format!("{}{tag}{digest}", self.repository)
    }

    /// Repository and digest; an image known by tag gets a digest derived from its name.
    pub fn repo_digest(&self) -> String {
        match &self.digest {
            Some(digest) => format!("{}@{digest}", self.repository),
            None => format!(
                "{}@sha256:{}",
                self.repository,
                super::ids::hex64(&[&self.full_name()])
            ),
        }
    }
}

impl ImageTable {
    /// The built-in table with `own` rows in front of it, and the Windows builds to judge by.
    pub fn extended(own: Vec<ImageRow>, builds: Builds) -> Self {
        Self { own, builds }
    }

    /// The Windows builds it judges by.
    pub fn builds(&self) -> &Builds {
        &self.builds
    }

    /// What is known about `image`, to be pulled by a node of operating system `os`.
    pub fn facts(&self, image: &ImageRef, os: &str) -> ImageFacts {
        let tag = image.tag.as_deref().unwrap_or_default();
        let row = self
            .own
            .iter()
            .chain(&KNOWN)
            .find(|row| row.covers(&image.repository));
        let build = self.builds.of_image(&image.full_name());
        let named_windows =
            build.is_some() || tag.contains("windowsservercore") || tag.contains("nanoserver");
        let platform = match row.map_or(Platform::Unknown, |row| row.platform) {
            Platform::Windows(fixed) => Platform::Windows(fixed.or(build)),
            _ if named_windows => Platform::Windows(build),
            platform => platform,
        };
        let default_bytes = if os == "windows" {
            DEFAULT_WINDOWS_BYTES
        } else {
            DEFAULT_LINUX_BYTES
        };
        let (bytes, base_bytes) = row.map_or((default_bytes, 0), |row| (row.bytes, row.base_bytes));
        let download_bytes = if os == "windows" {
            bytes.saturating_sub(base_bytes)
        } else {
            bytes
        };
        ImageFacts {
            platform,
            bytes,
            download_bytes,
        }
    }
}

impl ImageRow {
    fn covers(&self, repository: &str) -> bool {
        let below = repository.strip_prefix(&*self.repository);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

const MB: u64 = 1_000_000;
const DEFAULT_LINUX_BYTES: u64 = 90 * MB;
const DEFAULT_WINDOWS_BYTES: u64 = 2_000 * MB;
const NANO: u64 = 120 * MB;
const CORE: u64 = 1_750 * MB;

const fn row(
    repository: &'static str,
    platform: Platform,
    bytes: u64,
    base_bytes: u64,
) -> ImageRow {
    ImageRow {
        repository: Cow::Borrowed(repository),
        platform,
        bytes,
        base_bytes,
    }
}

/// Sizes are those of the registries' amd64 images, rounded; the first row that covers a repository counts.
static KNOWN: [ImageRow; 38] = [
    row(
        "mcr.microsoft.com/windows/nanoserver",
        Platform::Windows(None),
        NANO,
        NANO,
    ),
    row(
        "mcr.microsoft.com/windows/servercore/iis",
        Platform::Windows(None),
        1_930 * MB,
        CORE,
    ),
    row(
        "mcr.microsoft.com/windows/servercore/insider",
        Platform::Windows(None),
        CORE,
        0,
    ),
    row(
        "mcr.microsoft.com/windows/servercore",
        Platform::Windows(None),
        CORE,
        CORE,
    ),
    row(
        "mcr.microsoft.com/windows/server",
        Platform::Windows(None),
        3_100 * MB,
        0,
    ),
    row(
        "mcr.microsoft.com/windows",
        Platform::Windows(None),
        4_500 * MB,
        0,
    ),
    row(
        "mcr.microsoft.com/dotnet/framework/aspnet",
        Platform::Windows(None),
        2_450 * MB,
        CORE,
    ),
    row(
        "mcr.microsoft.com/dotnet/framework/samples",
        Platform::Windows(None),
        2_500 * MB,
        CORE,
    ),
    row(
        "mcr.microsoft.com/dotnet/framework",
        Platform::Windows(None),
        2_300 * MB,
        CORE,
    ),
    row("mcr.microsoft.com/dotnet/sdk", Platform::Any, 250 * MB, 0),
    row("mcr.microsoft.com/dotnet", Platform::Any, 95 * MB, 0),
    row(
        "mcr.microsoft.com/mssql/server",
        Platform::Linux,
        560 * MB,
        0,
    ),
    row(
        "mcr.microsoft.com/oss/kubernetes",
        Platform::Any,
        40 * MB,
        0,
    ),
    row("registry.k8s.io/pause", Platform::Any, MB, 0),
    row("registry.k8s.io/e2e-test-images", Platform::Any, 55 * MB, 0),
    row("registry.k8s.io", Platform::Linux, 40 * MB, 0),
    row("public.ecr.aws/eks-distro", Platform::Linux, 40 * MB, 0),
    row("docker.io/library/busybox", Platform::Linux, 2_200_000, 0),
    row("docker.io/library/alpine", Platform::Linux, 3_800_000, 0),
    row("docker.io/library/nginx", Platform::Linux, 72 * MB, 0),
    row("docker.io/library/httpd", Platform::Linux, 59 * MB, 0),
    row("docker.io/library/redis", Platform::Linux, 45 * MB, 0),
    row("docker.io/library/memcached", Platform::Linux, 32 * MB, 0),
    row("docker.io/library/postgres", Platform::Linux, 155 * MB, 0),
    row("docker.io/library/mysql", Platform::Linux, 240 * MB, 0),
    row("docker.io/library/mariadb", Platform::Linux, 105 * MB, 0),
    row("docker.io/library/rabbitmq", Platform::Linux, 100 * MB, 0),
    row("docker.io/library/wordpress", Platform::Linux, 250 * MB, 0),
    row("docker.io/library/ubuntu", Platform::Linux, 30 * MB, 0),
    row("docker.io/library/debian", Platform::Linux, 49 * MB, 0),
    row("docker.io/library/node", Platform::Linux, 390 * MB, 0),
    row("docker.io/library/traefik", Platform::Any, 48 * MB, 0),
    row("docker.io/library/golang", Platform::Any, 300 * MB, 0),
    row("docker.io/library/mongo", Platform::Any, 290 * MB, 0),
    row("docker.io/library/python", Platform::Any, 360 * MB, 0),
    row(
        "docker.io/library/eclipse-temurin",
        Platform::Any,
        190 * MB,
        0,
    ),
    row(
        "quay.io/prometheus/node-exporter",
        Platform::Linux,
        12 * MB,
        0,
    ),
    row("docker.io/prom/node-exporter", Platform::Linux, 12 * MB, 0),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str) -> ImageRef {
        ImageRef::parse(name).expect("the name is valid")
    }

    #[test]
    fn names_are_completed_as_docker_completes_them() {
        let cases = [
            ("nginx", "docker.io/library/nginx:latest"),
            ("bitnami/redis:7", "docker.io/bitnami/redis:7"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            (
                "mcr.microsoft.com/windows/servercore:ltsc2019",
                "mcr.microsoft.com/windows/servercore:ltsc2019",
            ),
        ];
        for (name, full) in cases {
            assert_eq!(parsed(name).full_name(), full);
        }
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(
            parsed(&format!("nginx@{digest}")).repo_digest(),
            format!("docker.io/library/nginx@{digest}")
        );
    }

    #[test]
    fn names_that_no_runtime_accepts_are_refused() {
        assert_eq!(
            ImageRef::parse("Nginx").unwrap_err().to_string(),
            r#"couldn't parse image name "Nginx": invalid reference format: repository name (library/Nginx) must be lowercase"#
        );
        for name in ["", "nginx:", "a//b", "nginx:ta g", "nginx@sha256:12", "-x"] {
            let error = ImageRef::parse(name).unwrap_err();
            assert_eq!(
                error,
                InvalidImage::Format {
                    name: name.to_owned()
                },
                "{name:?}"
            );
        }
    }

    #[test]
    fn the_platform_and_build_are_read_from_repository_and_tag() {
        let cases = [
            (
                "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022",
                Platform::Windows(Some(Build::SERVER_2022)),
            ),
            (
                "mcr.microsoft.com/windows/servercore:ltsc2019",
                Platform::Windows(Some(Build::SERVER_2019)),
            ),
            (
                "mcr.microsoft.com/windows/nanoserver:10.0.26100.1742",
                Platform::Windows(Some(Build::SERVER_2025)),
            ),
            (
                "mcr.microsoft.com/windows/nanoserver:1809-amd64",
                Platform::Windows(Some(Build::SERVER_2019)),
            ),
            ("mcr.microsoft.com/windows/server", Platform::Windows(None)),
            ("mcr.microsoft.com/dotnet/aspnet:8.0", Platform::Any),
            (
                "mcr.microsoft.com/dotnet/aspnet:8.0-nanoserver-ltsc2022",
                Platform::Windows(Some(Build::SERVER_2022)),
            ),
            ("golang:1.24-windowsservercore", Platform::Windows(None)),
            ("nginx:1.27", Platform::Linux),
            ("registry.example.com/shop/report:v2", Platform::Unknown),
        ];
        let table = ImageTable::default();
        for (name, platform) in cases {
            assert_eq!(
                table.facts(&parsed(name), "linux").platform,
                platform,
                "{name}"
            );
        }
    }

    #[test]
    fn a_row_of_the_user_comes_before_the_built_in_ones() {
        let row = ImageRow {
            repository: "registry.example.com/shop".into(),
            platform: Platform::Windows(Some(Build::SERVER_2022)),
            bytes: 5,
            base_bytes: 2,
        };
        let facts = ImageTable::extended(vec![row], Builds::default())
            .facts(&parsed("registry.example.com/shop/report:v2"), "windows");
        assert_eq!(
            facts,
            ImageFacts {
                platform: Platform::Windows(Some(Build::SERVER_2022)),
                bytes: 5,
                download_bytes: 3
            }
        );
        let neighbour = parsed("registry.example.com/shopping:v2");
        assert_eq!(
            ImageTable::default().facts(&neighbour, "windows").platform,
            Platform::Unknown
        );
    }

    #[test]
    fn an_image_on_a_base_that_the_windows_ami_holds_downloads_only_the_rest() {
        let iis = parsed("mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2019");
        let facts = ImageTable::default().facts(&iis, "windows");
        assert!(facts.download_bytes < facts.bytes / 5, "{facts:?}");
    }
}
