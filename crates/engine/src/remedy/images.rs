//! The operating systems and the Windows builds on which the images of a pod run: as recorded, or else as the names of the images suggest.

use super::Facts;
use crate::images::{Host, ImageRef, System};
use crate::model::PodTemplate;
use crate::windows::Build;

/// Where the images of a pod run.
pub(super) struct ImageNeeds<'a> {
    facts: Facts<'a>,
    /// The Windows builds that the names of the images suggest.
    builds: Vec<Build>,
    /// The operating systems on which all images run. An image about which nothing is known rules out none.
    systems: Vec<System>,
}

impl<'a> ImageNeeds<'a> {
    pub(super) fn of(pod: &PodTemplate, facts: Facts<'a>) -> Self {
        let mut needs = ImageNeeds {
            facts,
            builds: Vec::new(),
            systems: System::ALL.to_vec(),
        };
        if let Some(runs) = facts.recorded {
            needs.systems = runs.systems();
            return needs;
        }
        for container in pod.containers.iter().chain(&pod.init_containers) {
            let parsed = ImageRef::parse(&container.image).ok();
            let guess = parsed.and_then(|image| facts.images.guess(&image));
            let (build, systems) = match guess {
                Some(guess) => {
                    let build = guess.runs.only(System::Windows).newest_build();
                    (build, guess.runs.systems())
                }
                None => match facts.images.builds().of_image(&container.image) {
                    Some(build) => (Some(build), vec![System::Windows]),
                    None => continue,
                },
            };
            needs.builds.extend(build);
            needs.systems.retain(|system| systems.contains(system));
        }
        needs
    }

    /// Returns whether all images run on nodes with this value of the operating system's label.
    pub(super) fn run_on(&self, os: &str) -> bool {
        System::of_label(os).is_none_or(|system| self.systems.contains(&system))
    }

    /// Returns whether all images start on Windows hosts of this build, or run on Linux only.
    pub(super) fn run_on_build(&self, host: Build) -> bool {
        let table = self.facts.images.builds();
        match self.facts.recorded {
            Some(runs) if runs.has(System::Windows) => {
                let host = Host {
                    system: System::Windows,
                    architecture: None,
                    build: Some(host),
                };
                runs.runs_on(host, table)
            }
            Some(_) => true,
            None => self
                .builds
                .iter()
                .all(|image| table.check(*image, host).is_ok()),
        }
    }

    /// Returns the newest Windows build of the images, if they need one.
    pub(super) fn newest(&self) -> Option<Build> {
        match self.facts.recorded {
            Some(runs) => runs.newest_build(),
            None => self.builds.iter().max().copied(),
        }
    }
}
