//! [`Runs`]: the systems, architectures and Windows builds that something runs on, as a set that can be intersected.
//!
//! Invariant: no platform of a set covers another one in it, so equal sets are equal values and have equal texts. A Windows host runs
//! every image between the oldest and the newest build that it supports ([`Builds`]). So the oldest and the newest build of several
//! images describe the hosts that can run all of them, and hosts are listed only when asked for.

use std::{collections::BTreeSet, fmt, str::FromStr};

use thiserror::Error;

use crate::windows::{Build, Builds};

/// An operating system of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum System {
    /// Linux.
    Linux,
    /// Windows.
    Windows,
}

impl System {
    /// Both systems, Linux first.
    pub const ALL: [System; 2] = [System::Linux, System::Windows];

    /// Returns the value of the label `kubernetes.io/os`.
    pub fn as_str(self) -> &'static str {
        match self {
            System::Linux => "linux",
            System::Windows => "windows",
        }
    }

    /// Returns the system with this label value, or `None` if nodes cannot have it.
    pub fn of_label(value: &str) -> Option<System> {
        System::ALL
            .into_iter()
            .find(|system| system.as_str() == value)
    }

    /// Returns the other system.
    pub fn other(self) -> System {
        match self {
            System::Linux => System::Windows,
            System::Windows => System::Linux,
        }
    }
}

/// Formats the system's name as it appears in sentences.
impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            System::Linux => "Linux",
            System::Windows => "Windows",
        })
    }
}

/// The oldest and the newest of the builds of Windows images that one host has to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildSpan {
    /// The oldest build.
    pub oldest: Build,
    /// The newest build.
    pub newest: Build,
}

impl BuildSpan {
    /// Returns the span of a single image's build.
    pub fn of(build: Build) -> Self {
        BuildSpan {
            oldest: build,
            newest: build,
        }
    }

    fn runs_on(self, host: Build, builds: &Builds) -> bool {
        builds.check(self.oldest, host).is_ok() && builds.check(self.newest, host).is_ok()
    }
}

/// An operating system with an architecture and builds that something runs on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Platform {
    /// The operating system.
    pub system: System,
    /// The architecture as in the label `kubernetes.io/arch`; `None` means every architecture.
    pub architecture: Option<String>,
    /// The image builds that a Windows host must be able to run; `None` means that every host will do. Always `None` for Linux.
    pub builds: Option<BuildSpan>,
}

impl Platform {
    /// Returns the platform of a system with every architecture and every build.
    pub fn any(system: System) -> Self {
        Platform {
            system,
            architecture: None,
            builds: None,
        }
    }

    fn covers(&self, other: &Platform) -> bool {
        self.system == other.system
            && (self.architecture.is_none() || self.architecture == other.architecture)
            && (self.builds.is_none() || self.builds == other.builds)
    }

    fn intersection(&self, other: &Platform, builds: &Builds) -> Option<Platform> {
        if self.system != other.system {
            return None;
        }
        let architecture = match (&self.architecture, &other.architecture) {
            (Some(one), Some(another)) if one != another => return None,
            (one, another) => one.clone().or_else(|| another.clone()),
        };
        let span = match (self.builds, other.builds) {
            (Some(one), Some(another)) => {
                let both = BuildSpan {
                    oldest: one.oldest.min(another.oldest),
                    newest: one.newest.max(another.newest),
                };
                // If any host runs both builds, a host of the newer build does, so it is enough to check that one.
                Some(both)
                    .filter(|both| both.runs_on(both.newest, builds))?
                    .into()
            }
            (one, another) => one.or(another),
        };
        Some(Platform {
            system: self.system,
            architecture,
            builds: span,
        })
    }
}

/// The properties of a node that decide what runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host<'a> {
    /// The operating system.
    pub system: System,
    /// The architecture; `None` if unknown, which excludes nothing.
    pub architecture: Option<&'a str>,
    /// The Windows build; `None` if unknown, which excludes nothing.
    pub build: Option<Build>,
}

/// Architectures and host builds of one system; every combination of the two is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The architectures; `None` means every architecture.
    pub architectures: Option<Vec<String>>,
    /// The builds of Windows hosts, oldest first; `None` means every build.
    pub hosts: Option<Vec<Build>>,
}

/// The set of platforms that something runs on. An empty set runs nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Runs {
    platforms: BTreeSet<Platform>,
}

impl Runs {
    /// Returns every architecture and build of one system.
    pub fn on(system: System) -> Self {
        Runs::from_iter([Platform::any(system)])
    }

    /// Returns every platform.
    pub fn anywhere() -> Self {
        System::ALL.into_iter().map(Platform::any).collect()
    }

    /// Returns the platforms of a Windows image of this build; `None` means an image of every build.
    pub fn windows(build: Option<Build>) -> Self {
        Runs::from_iter([Platform {
            builds: build.map(BuildSpan::of),
            ..Platform::any(System::Windows)
        }])
    }

    /// Adds a platform, unless another one covers it already.
    pub fn add(&mut self, platform: Platform) {
        if self.platforms.iter().any(|known| known.covers(&platform)) {
            return;
        }
        // Platforms that the new one covers go, so that equal sets are equal values.
        self.platforms.retain(|known| !platform.covers(known));
        self.platforms.insert(platform);
    }

    /// Returns whether the set has no platform.
    pub fn is_empty(&self) -> bool {
        self.platforms.is_empty()
    }

    /// Returns the platforms, Linux first.
    pub fn platforms(&self) -> impl Iterator<Item = &Platform> {
        self.platforms.iter()
    }

    /// Returns whether the set has a platform of this system.
    pub fn has(&self, system: System) -> bool {
        self.of(system).next().is_some()
    }

    /// Returns the systems of the set.
    pub fn systems(&self) -> Vec<System> {
        System::ALL
            .into_iter()
            .filter(|system| self.has(*system))
            .collect()
    }

    /// Returns the platforms of one system.
    pub fn only(&self, system: System) -> Runs {
        self.of(system).cloned().collect()
    }

    /// Returns the set with every Windows build allowed: HostProcess containers run on hosts of any build.
    pub fn on_any_build(&self) -> Runs {
        let unbound = |platform: &Platform| Platform {
            builds: None,
            ..platform.clone()
        };
        self.platforms.iter().map(unbound).collect()
    }

    /// Returns the platforms that both sets have in common. Pairs of builds that no host can run together are left out.
    pub fn intersection(&self, other: &Runs, builds: &Builds) -> Runs {
        let pairs = self
            .platforms
            .iter()
            .flat_map(|one| other.platforms.iter().map(move |another| (one, another)));
        pairs
            .filter_map(|(one, another)| one.intersection(another, builds))
            .collect()
    }

    /// Returns whether a host has one of the platforms.
    pub fn runs_on(&self, host: Host<'_>, builds: &Builds) -> bool {
        self.of(host.system).any(|platform| {
            let architecture = platform.architecture.as_deref();
            let fits = |(ours, theirs)| ours == theirs;
            // An unknown property of the host excludes nothing: better an image that may not run than a node refused
            // in error.
            architecture.zip(host.architecture).is_none_or(fits)
                && platform
                    .builds
                    .zip(host.build)
                    .is_none_or(|(span, host)| span.runs_on(host, builds))
        })
    }

    /// Returns the newest build of the Windows images in the set. A host of the same build shares layers with that image.
    pub fn newest_build(&self) -> Option<Build> {
        let spans = self.platforms.iter().filter_map(|platform| platform.builds);
        spans.map(|span| span.newest).max()
    }

    /// Returns the architectures and host builds of one system. If there are several shapes, a node must satisfy one of them entirely.
    ///
    /// The host builds are those of the releases in the table and the images' own builds; other host builds are not listed.
    pub fn shapes(&self, system: System, builds: &Builds) -> Vec<Shape> {
        let mut shapes: Vec<Shape> = Vec::new();
        let architectures: BTreeSet<_> = self.of(system).map(|p| p.architecture.clone()).collect();
        for architecture in architectures {
            let of = || self.of(system).filter(|p| p.architecture == architecture);
            // If one platform has no bound, hosts of any build will do for the architecture.
            let bound = of().all(|platform| platform.builds.is_some());
            let hosts = bound.then(|| {
                let known = builds.releases().iter().map(|release| release.build);
                let own = of().filter_map(|p| p.builds).map(|span| span.newest);
                let runs = |host: &Build| {
                    of().any(|p| p.builds.is_some_and(|span| span.runs_on(*host, builds)))
                };
                let hosts: BTreeSet<Build> = known.chain(own).filter(runs).collect();
                hosts.into_iter().collect::<Vec<_>>()
            });
            // Architectures with the same hosts become one shape, because a node selector can then list them
            // together.
            match shapes.iter_mut().find(|shape| shape.hosts == hosts) {
                Some(shape) => match (&mut shape.architectures, architecture) {
                    (Some(known), Some(one)) => known.push(one),
                    (known, _) => *known = None,
                },
                None => shapes.push(Shape {
                    architectures: architecture.map(|one| vec![one]),
                    hosts,
                }),
            }
        }
        shapes
    }

    /// Formats the set for a sentence: `Linux (amd64, arm64) or Windows (amd64) of build 10.0.17763`.
    pub fn in_words(&self) -> String {
        let systems = self.systems().into_iter().map(|system| {
            let architectures: BTreeSet<_> = self
                .of(system)
                .filter_map(|platform| platform.architecture.as_deref())
                .collect();
            let builds: BTreeSet<_> = self.of(system).filter_map(|p| p.builds).collect();
            let mut text = match system {
                System::Linux => "Linux".to_owned(),
                System::Windows => "Windows".to_owned(),
            };
            // A platform without architecture means all of them, so listing some would mislead.
            if self.of(system).all(|p| p.architecture.is_some()) {
                let list: Vec<_> = architectures.into_iter().collect();
                text += &format!(" ({})", list.join(", "));
            }
            if self.of(system).all(|p| p.builds.is_some()) {
                let list: Vec<_> = builds.iter().map(ToString::to_string).collect();
                text += &format!(" of build {}", list.join(" or "));
            }
            text
        });
        let systems: Vec<_> = systems.collect();
        if systems.is_empty() {
            "nothing".to_owned()
        } else {
            systems.join(" or ")
        }
    }

    fn of(&self, system: System) -> impl Iterator<Item = &Platform> {
        self.platforms
            .iter()
            .filter(move |platform| platform.system == system)
    }
}

impl FromIterator<Platform> for Runs {
    fn from_iter<I: IntoIterator<Item = Platform>>(platforms: I) -> Self {
        let mut runs = Runs::default();
        for platform in platforms {
            runs.add(platform);
        }
        runs
    }
}

impl fmt::Display for BuildSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.oldest)?;
        if self.oldest == self.newest {
            Ok(())
        } else {
            write!(f, "-{}", self.newest)
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.system.as_str())?;
        if let Some(architecture) = &self.architecture {
            write!(f, "/{architecture}")?;
        }
        match self.builds {
            Some(span) => write!(f, ":{span}"),
            None => Ok(()),
        }
    }
}

/// Formats the platforms with commas between them: `linux/amd64,windows/amd64:10.0.20348`. [`Runs`] can be parsed from this text.
impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, platform) in self.platforms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{platform}")?;
        }
        Ok(())
    }
}

/// The error for a text that is not a platform.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not a platform: expected linux, windows, linux/arm64 or windows/amd64:10.0.20348, with commas between several"
)]
pub struct PlatformError(String);

impl FromStr for Platform {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let wrong = || PlatformError(text.to_owned());
        let (rest, builds) = match text.split_once(':') {
            Some((rest, builds)) => (rest, Some(builds)),
            None => (text, None),
        };
        let (system, architecture) = match rest.split_once('/') {
            Some((system, architecture)) => (system, Some(architecture)),
            None => (rest, None),
        };
        let system = System::of_label(system).ok_or_else(wrong)?;
        let is_word = |word: &str| {
            !word.is_empty()
                && word
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        };
        if !architecture.is_none_or(is_word) || (builds.is_some() && system == System::Linux) {
            return Err(wrong());
        }
        let span = |text: &str| {
            let (oldest, newest) = text.split_once('-').unwrap_or((text, text));
            let span = BuildSpan {
                oldest: oldest.parse().ok()?,
                newest: newest.parse().ok()?,
            };
            Some(span).filter(|span| span.oldest <= span.newest)
        };
        Ok(Platform {
            system,
            architecture: architecture.map(str::to_owned),
            builds: builds
                .map(|text| span(text).ok_or_else(wrong))
                .transpose()?,
        })
    }
}

impl FromStr for Runs {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, PlatformError> {
        text.split(',').map(|one| one.trim().parse()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runs(text: &str) -> Runs {
        text.parse().expect("the text names platforms")
    }

    fn both(one: &str, another: &str) -> String {
        let (one, another) = (runs(one), runs(another));
        one.intersection(&another, &Builds::default()).to_string()
    }

    #[test]
    fn what_two_run_on_is_the_system_architecture_and_builds_they_share() {
        assert_eq!(both("linux,windows", "windows"), "windows");
        assert_eq!(
            both("linux/amd64,linux/arm64", "linux/arm64"),
            "linux/arm64"
        );
        assert_eq!(both("linux", "windows:10.0.20348"), "");
        assert_eq!(
            both("windows/amd64", "windows:10.0.20348"),
            "windows/amd64:10.0.20348"
        );
        assert_eq!(
            both("windows:10.0.20348", "windows:10.0.26100"),
            "windows:10.0.20348-10.0.26100"
        );
        assert_eq!(both("windows:10.0.17763", "windows:10.0.20348"), "");
    }

    #[test]
    fn a_host_must_run_the_oldest_and_the_newest_image() {
        let builds = Builds::default();
        let runs = runs("windows:10.0.20348-10.0.26100");
        let on = |build| {
            let host = Host {
                system: System::Windows,
                architecture: Some("amd64"),
                build: Some(build),
            };
            runs.runs_on(host, &builds)
        };
        assert!(!on(Build::SERVER_2019) && !on(Build::SERVER_2022) && on(Build::SERVER_2025));
    }

    #[test]
    fn shapes_name_the_hosts_of_every_architecture() {
        let builds = Builds::default();
        let runs =
            runs("linux/amd64,linux/arm64,windows/amd64:10.0.17763,windows/amd64:10.0.20348");
        let linux = runs.shapes(System::Linux, &builds);
        let shape = |architectures: &[&str], hosts: Option<&[Build]>| Shape {
            architectures: Some(architectures.iter().map(|a| (*a).to_owned()).collect()),
            hosts: hosts.map(<[Build]>::to_vec),
        };
        assert_eq!(linux, [shape(&["amd64", "arm64"], None)]);
        let hosts = [Build::SERVER_2019, Build::SERVER_2022, Build::SERVER_2025];
        let windows = runs.shapes(System::Windows, &builds);
        assert_eq!(windows, [shape(&["amd64"], Some(&hosts))]);
        let unbound = Runs::on(System::Windows).shapes(System::Windows, &builds);
        assert_eq!(
            unbound,
            [Shape {
                architectures: None,
                hosts: None
            }]
        );
    }

    #[test]
    fn a_wider_platform_swallows_a_narrower_one() {
        assert_eq!(runs("windows:10.0.20348,windows").to_string(), "windows");
        assert_eq!(runs("linux,linux/amd64"), Runs::on(System::Linux));
    }

    #[test]
    fn platforms_read_well_in_a_sentence() {
        let text = "linux/amd64,linux/arm64,windows/amd64:10.0.17763,windows/amd64:10.0.20348";
        assert_eq!(
            runs(text).in_words(),
            "Linux (amd64, arm64) or Windows (amd64) of build 10.0.17763 or 10.0.20348"
        );
        assert_eq!(runs("windows").in_words(), "Windows");
        assert_eq!(Runs::default().in_words(), "nothing");
    }

    #[test]
    fn texts_that_name_no_platform_are_refused() {
        for text in [
            "",
            "bsd",
            "linux/",
            "linux:10.0.20348",
            "windows:2022",
            "linux,,windows",
        ] {
            assert!(text.parse::<Runs>().is_err(), "{text:?}");
        }
    }

    fn any_runs() -> impl Strategy<Value = Runs> {
        let architecture = prop::option::of(prop::sample::select(vec!["amd64", "arm64"]));
        let build = prop::option::of(prop::sample::select(vec![
            14_393, 17_763, 20_348, 25_398, 26_100,
        ]));
        let platform =
            (any::<bool>(), architecture, build).prop_map(|(windows, architecture, build)| {
                let system = if windows {
                    System::Windows
                } else {
                    System::Linux
                };
                Platform {
                    system,
                    architecture: architecture.map(str::to_owned),
                    builds: build
                        .filter(|_| windows)
                        .map(|number| BuildSpan::of(Build::windows_10(number))),
                }
            });
        prop::collection::vec(platform, 0..5).prop_map(Runs::from_iter)
    }

    proptest! {
        #[test]
        fn an_intersection_runs_exactly_where_all_run(all in prop::collection::vec(any_runs(), 1..4)) {
            let builds = Builds::default();
            let common = all.iter().skip(1).fold(all[0].clone(), |common, one| common.intersection(one, &builds));
            let mut somewhere = false;
            for system in System::ALL {
                for architecture in ["amd64", "arm64"] {
                    for number in [14_393, 17_763, 20_348, 25_398, 26_100, 26_200] {
                        let build = (system == System::Windows).then(|| Build::windows_10(number));
                        let host = Host { system, architecture: Some(architecture), build };
                        let expected = all.iter().all(|one| one.runs_on(host, &builds));
                        prop_assert_eq!(common.runs_on(host, &builds), expected, "{} on {:?}", common, host);
                        somewhere |= expected;
                    }
                }
            }
            prop_assert_eq!(common.is_empty(), !somewhere);
            let text = common.to_string();
            if somewhere {
                prop_assert_eq!(text.parse::<Runs>(), Ok(common));
            }
        }
    }
}
