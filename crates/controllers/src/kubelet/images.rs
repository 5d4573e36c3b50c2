//! The image variants in registries, and which of them a simulated node's container runtime pulls.

use std::fmt::Debug;

use mullion_engine::{
    images::{Host, ImageRef, Platform, Runs},
    windows::Builds,
};

/// One image of an index, or a single image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The platform for which the image was built.
    pub platform: Platform,
    /// Its `os.version` as written; empty if there is none.
    pub os_version: String,
    /// The sum of its layers in bytes, if known.
    pub bytes: Option<u64>,
}

/// The known contents of registries.
pub trait Contents: Debug + Send + Sync {
    /// Returns the variants of an image, or `None` if its registry has not been read.
    fn variants(&self, image: &ImageRef) -> Option<Vec<Variant>>;
}

/// Returns the variant that a host pulls: of the matching ones, that with the largest `os.version` as text, as
/// containerd sorts them, and of equal ones the first.
pub fn choose<'a>(variants: &'a [Variant], host: Host<'_>, builds: &Builds) -> Option<&'a Variant> {
    let matches = |variant: &&Variant| {
        let runs = Runs::from_iter([variant.platform.clone()]);
        runs.runs_on(host, builds)
    };
    // `max_by` returns the last of equal elements, so the reversed order makes it the first one listed.
    let matching = variants.iter().rev().filter(matches);
    matching.max_by(|one, another| one.os_version.cmp(&another.os_version))
}

#[cfg(test)]
mod tests {
    use mullion_engine::{images::System, windows::Build};

    use super::*;

    fn variant(platform: &str, os_version: &str) -> Variant {
        Variant {
            platform: platform.parse().expect("a platform"),
            os_version: os_version.to_owned(),
            bytes: None,
        }
    }

    #[test]
    fn of_several_matching_images_the_one_with_the_largest_version_is_taken() {
        let all = [
            variant("linux/amd64", ""),
            variant("windows/amd64", ""),
            variant("windows/amd64:10.0.20348", "10.0.20348.9"),
            variant("windows/amd64:10.0.20348", "10.0.20348.2700"),
            variant("windows/amd64:10.0.26100", "10.0.26100.1"),
        ];
        let taken = |build| {
            let host = Host {
                system: System::Windows,
                architecture: Some("amd64"),
                build: Some(build),
            };
            choose(&all, host, &Builds::default()).map(|one| one.os_version.as_str())
        };
        assert_eq!(taken(Build::SERVER_2019), Some(""));
        // As text, 9 comes after 2700.
        assert_eq!(taken(Build::SERVER_2022), Some("10.0.20348.9"));
        assert_eq!(taken(Build::SERVER_2025), Some("10.0.26100.1"));
        let arm = Host {
            system: System::Linux,
            architecture: Some("arm64"),
            build: None,
        };
        assert_eq!(choose(&all, arm, &Builds::default()), None);
    }
}
