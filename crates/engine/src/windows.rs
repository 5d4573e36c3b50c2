//! Windows builds, the image tags that stand for them, and the rules for which image build runs on which host build.
//!
//! The rules are those of process isolation, because Kubernetes supports no other. They are data ([`Builds`]) that a user can extend, since
//! they change with every Windows release. Hosts before the first release with a stable ABI need images of their own build. Later hosts run
//! images from the long-term release before their own up to their own build (containerd's matcher in `containerd/platforms`).

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A Windows build such as `10.0.20348`; a revision after it is accepted and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Build {
    /// The major version, 10.
    pub major: u32,
    /// The minor version, 0.
    pub minor: u32,
    /// The build number, such as 20348.
    pub number: u32,
}

/// The error for a text that is not a Windows build.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a Windows build: expected for example 10.0.20348")]
pub struct BuildError(String);

impl Build {
    /// Windows Server 2019 (also 1809).
    pub const SERVER_2019: Build = Build::windows_10(17_763);
    /// Windows Server 2022.
    pub const SERVER_2022: Build = Build::windows_10(20_348);
    /// Windows Server 2025.
    pub const SERVER_2025: Build = Build::windows_10(26_100);

    /// Returns a build of Windows 10.0.
    pub const fn windows_10(number: u32) -> Self {
        Build {
            major: 10,
            minor: 0,
            number,
        }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.number)
    }
}

impl FromStr for Build {
    type Err = BuildError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('.').map(str::parse::<u32>);
        match (
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
        ) {
            (Some(Ok(major)), Some(Ok(minor)), Some(Ok(number)), None | Some(Ok(_)), None) => {
                Ok(Build {
                    major,
                    minor,
                    number,
                })
            }
            _ => Err(BuildError(text.to_owned())),
        }
    }
}

/// A Windows Server release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The release's build.
    pub build: Build,
    /// The release's name, for example `Windows Server 2022`.
    pub name: String,
    /// Parts of image tags that stand for the release, in lower case.
    pub tags: Vec<String>,
}

/// Why an image does not run on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("an image of build {image} does not run on a host of build {host}")]
pub struct BuildMismatch {
    /// The image's build.
    pub image: Build,
    /// The host's build.
    pub host: Build,
}

/// The table of releases, with the long-term ones that have a stable ABI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Builds {
    releases: Vec<Release>,
    stable: Vec<Build>,
}

/// The releases: name, build and the tag parts that stand for it.
const RELEASES: [(&str, u32, &[&str]); 9] = [
    ("Windows Server 2016", 14_393, &["ltsc2016", "1607"]),
    ("Windows Server, version 1803", 17_134, &["1803"]),
    ("Windows Server 2019", 17_763, &["ltsc2019", "1809"]),
    ("Windows Server, version 1903", 18_362, &["1903"]),
    ("Windows Server, version 1909", 18_363, &["1909"]),
    ("Windows Server, version 2004", 19_041, &["2004"]),
    ("Windows Server, version 20H2", 19_042, &["20h2"]),
    ("Windows Server 2022", 20_348, &["ltsc2022"]),
    ("Windows Server 2025", 26_100, &["ltsc2025"]),
];

/// The oldest build with containers (Windows Server 2016).
const OLDEST: u32 = 14_393;

impl Default for Builds {
    fn default() -> Self {
        let release = |&(name, number, tags): &(&str, u32, &[&str])| Release {
            build: Build::windows_10(number),
            name: name.to_owned(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        };
        Builds {
            releases: RELEASES.iter().map(release).collect(),
            stable: vec![Build::SERVER_2022, Build::SERVER_2025],
        }
    }
}

impl Builds {
    /// Adds a release, or replaces the one with the same build.
    pub fn add(&mut self, release: Release) {
        self.releases.retain(|known| known.build != release.build);
        self.releases.push(release);
        self.releases.sort_by_key(|release| release.build);
    }

    /// Marks a build as a long-term release with a stable ABI. Hosts from this build on no longer run images older than the previous
    /// long-term release.
    pub fn add_stable(&mut self, build: Build) {
        self.stable.push(build);
        self.stable.sort_unstable();
        self.stable.dedup();
    }

    /// Returns all releases, oldest first.
    pub fn releases(&self) -> &[Release] {
        &self.releases
    }

    /// Returns the release of a build.
    pub fn release(&self, build: Build) -> Option<&Release> {
        self.releases.iter().find(|release| release.build == build)
    }

    /// Returns the build that the tag of an image reference names: `...:windowsservercore-ltsc2022`, `...:1809`, `...:10.0.20348.2700`.
    /// `None` if the tag names none.
    pub fn of_image(&self, image: &str) -> Option<Build> {
        let tag = image
            .split('@')
            .next()?
            .rsplit('/')
            .next()?
            .split_once(':')?
            .1
            .to_ascii_lowercase();
        let parts = || tag.split(['-', '_']);
        // The version of an application may look like a build: `10.0.3` is a version of .NET.
        let is_known = |build: &Build| build.major == 10 && build.number >= OLDEST;
        let exact = parts().find_map(|part| part.parse::<Build>().ok().filter(is_known));
        // The longest matching tag part wins, so that a shorter name which a user adds does not hide `ltsc2019`.
        let named = || {
            let hits = self.releases.iter().flat_map(|release| {
                let hits = release
                    .tags
                    .iter()
                    .filter(|known| parts().any(|part| part == *known));
                hits.map(move |known| (Reverse(known.len()), release.build))
            });
            hits.min().map(|(_, build)| build)
        };
        exact.or_else(named)
    }

    /// Checks whether an image build runs on a host build under process isolation.
    ///
    /// # Errors
    /// [`BuildMismatch`] if it does not.
    pub fn check(&self, image: Build, host: Build) -> Result<(), BuildMismatch> {
        let same_line = (image.major, image.minor) == (host.major, host.minor);
        // The host's own long-term release and the previous one, if there is one.
        let mut own_and_older = self.stable.iter().rev().filter(|stable| **stable <= host);
        let own = own_and_older.next();
        let oldest = own_and_older.next().or(own);
        let runs = same_line
            && match oldest {
                Some(oldest) => *oldest <= image && image <= host,
                None => image == host,
            };
        if runs {
            Ok(())
        } else {
            Err(BuildMismatch { image, host })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_before_2022_run_their_own_build_only() {
        let builds = Builds::default();
        assert!(builds.check(Build::SERVER_2019, Build::SERVER_2019).is_ok());
        assert!(
            builds
                .check(Build::SERVER_2022, Build::SERVER_2019)
                .is_err()
        );
        assert!(
            builds
                .check(Build::windows_10(19_041), Build::windows_10(19_042))
                .is_err()
        );
    }

    #[test]
    fn hosts_from_2022_on_run_images_from_2022_up_to_their_own() {
        let builds = Builds::default();
        assert!(builds.check(Build::SERVER_2022, Build::SERVER_2025).is_ok());
        assert!(builds.check(Build::SERVER_2025, Build::SERVER_2025).is_ok());
        assert!(
            builds
                .check(Build::SERVER_2025, Build::SERVER_2022)
                .is_err()
        );
        assert!(
            builds
                .check(Build::SERVER_2019, Build::SERVER_2022)
                .is_err()
        );
    }

    #[test]
    fn hosts_past_a_long_term_release_run_images_of_the_one_before_it() {
        let mut builds = Builds::default();
        // Adding the same build twice must change nothing.
        builds.add_stable(Build::SERVER_2025);
        let between = Build::windows_10(26_200);
        assert!(builds.check(Build::SERVER_2022, between).is_ok());
        assert!(builds.check(Build::SERVER_2025, between).is_ok());
        assert!(builds.check(between, between).is_ok());
        assert!(builds.check(Build::SERVER_2019, between).is_err());
        assert!(builds.check(Build::SERVER_2022, Build::SERVER_2022).is_ok());
    }

    #[test]
    fn a_new_long_term_release_cuts_off_images_two_releases_back() {
        let mut builds = Builds::default();
        let next = Build::windows_10(29_500);
        builds.add_stable(next);
        assert!(builds.check(Build::SERVER_2025, next).is_ok());
        assert!(builds.check(Build::SERVER_2022, next).is_err());
        assert!(builds.check(Build::SERVER_2022, Build::SERVER_2025).is_ok());
    }

    #[test]
    fn usual_tags_name_their_build() {
        let builds = Builds::default();
        let of = |image| builds.of_image(image).map(|build| build.number);
        assert_eq!(
            of("mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022"),
            Some(20_348)
        );
        assert_eq!(
            of("mcr.microsoft.com/windows/servercore:1809"),
            Some(17_763)
        );
        assert_eq!(
            of("mcr.microsoft.com/windows/nanoserver:20H2"),
            Some(19_042)
        );
        assert_eq!(of("host:5000/a:10.0.20348.2700@sha256:00"), Some(20_348));
        assert_eq!(
            of("mcr.microsoft.com/windows/servercore:ltsc2025-amd64"),
            Some(26_100)
        );
        assert_eq!(of("nginx:1.25"), None);
        assert_eq!(of("mcr.microsoft.com/dotnet/sdk:10.0.100"), None);
        assert_eq!(of("host:5000/nginx"), None);
    }

    #[test]
    fn a_user_can_teach_new_tags() {
        let mut builds = Builds::default();
        let build = Build::windows_10(26_200);
        builds.add(Release {
            build,
            name: "Windows 11 25H2".into(),
            tags: vec!["25h2".into()],
        });
        assert_eq!(builds.of_image("app:1.0-25h2"), Some(build));
        assert_eq!(
            builds.release(build).map(|release| release.name.as_str()),
            Some("Windows 11 25H2")
        );
    }

    #[test]
    fn builds_read_with_or_without_a_revision() {
        assert_eq!("10.0.20348".parse(), Ok(Build::SERVER_2022));
        assert_eq!("10.0.20348.1".parse(), Ok(Build::SERVER_2022));
        assert!("10.0".parse::<Build>().is_err());
        assert_eq!(Build::SERVER_2019.to_string(), "10.0.17763");
    }
}
