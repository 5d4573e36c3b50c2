//! Determines what images run on: their operating systems and Windows builds, their size, and whether that is a guess.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use mullion_engine::{
    images::{ImageRef, ImageTable, Platform, System},
    windows::{Build, Builds},
};
use mullion_images::{Content, ImageLookup, Keyring, Program, Registries, Settings, SystemDial};

/// A platform of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImagePlatform {
    pub(super) system: System,
    /// The architecture; `None` if any will do.
    pub(super) architecture: Option<String>,
    /// The Windows build that the image was made for; `None` if any will do.
    pub(super) build: Option<Build>,
}

/// The facts about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) runs: Vec<ImagePlatform>,
    /// Whether the facts are guessed from the image's name and do not come from a registry.
    pub(super) guess: bool,
    /// The compressed size, if it is known.
    pub(super) bytes: Option<u64>,
    /// Whether a Windows entry of the image's index has no os.version.
    pub(super) unversioned: bool,
    /// The program that the image starts on Windows, if its registry says so.
    pub(super) program: Option<Program>,
}

impl Fact {
    /// Returns whether the image is for this operating system only.
    pub(super) fn only_of(&self, system: System) -> bool {
        !self.runs.is_empty() && self.runs.iter().all(|runs| runs.system == system)
    }

    /// Returns whether the image is for this operating system.
    pub(super) fn has(&self, system: System) -> bool {
        self.runs.iter().any(|runs| runs.system == system)
    }

    /// Returns the Windows builds that the image was made for; `None` if one of its platforms is for any build.
    pub(super) fn builds(&self) -> Option<Vec<Build>> {
        let windows = self
            .runs
            .iter()
            .filter(|runs| runs.system == System::Windows);
        windows
            .map(|runs| runs.build)
            .collect::<Option<Vec<_>>>()
            .filter(|builds| !builds.is_empty())
    }

    /// Returns whether a Windows host of this build can run the image.
    pub(super) fn runs_on(&self, host: Build, builds: &Builds) -> bool {
        self.builds()
            .is_none_or(|own| own.iter().any(|build| builds.check(*build, host).is_ok()))
    }
}

/// A source of facts about images.
pub(super) trait Images {
    /// Returns the facts about an image, if the source has any.
    fn fact(&self, image: &str) -> Option<Fact>;
}

/// A source without any facts, for `--images off`.
pub(super) struct Off;

impl Images for Off {
    fn fact(&self, _image: &str) -> Option<Fact> {
        None
    }
}

/// The built-in table of common names and tags; its facts are guesses.
#[derive(Default)]
pub(super) struct Table(ImageTable);

impl Images for Table {
    fn fact(&self, image: &str) -> Option<Fact> {
        let reference = ImageRef::parse(image).ok()?;
        let guess = self.0.guess(&reference)?;
        let sizes = self.0.sizes(&reference, System::Windows);
        let of_windows = guess.runs.has(System::Windows);
        Some(Fact {
            runs: guess.runs.platforms().map(runs).collect(),
            guess: true,
            bytes: of_windows.then_some(sizes.bytes),
            unversioned: false,
            program: None,
        })
    }
}

fn runs(platform: &Platform) -> ImagePlatform {
    ImagePlatform {
        system: platform.system,
        architecture: platform.architecture.clone(),
        build: platform.builds.map(|span| span.newest),
    }
}

/// The answers of registries, and the table for images whose registry did not answer.
pub(super) struct RegistryAnswers {
    facts: BTreeMap<String, Fact>,
    table: Table,
}

impl RegistryAnswers {
    /// Asks the registries of these images, for at most ten seconds.
    pub(super) async fn of(images: impl IntoIterator<Item = String>) -> Self {
        const PATIENCE: Duration = Duration::from_secs(10);
        const AT_ONCE: usize = 16;
        let settings = Settings {
            all: true,
            ..Settings::default()
        };
        let registries = Registries::new(settings, Arc::new(SystemDial::default()));
        let keyring = Keyring::default();
        let references: Vec<_> = images
            .into_iter()
            .filter_map(|image| Some((ImageRef::parse(&image).ok()?, image)))
            .collect();
        let fetched = stream::iter(&references).for_each_concurrent(AT_ONCE, |(reference, _)| {
            registries.fetch_programs(reference, &keyring)
        });
        // For images whose registry has not answered by then, the table is used.
        let _ = tokio::time::timeout(PATIENCE, fetched).await;
        let said = |(reference, image): (ImageRef, String)| match registries
            .cached(&reference, &keyring)
        {
            ImageLookup::Content(content) => Some((image, of_content(&content)?)),
            _ => None,
        };
        RegistryAnswers {
            facts: references.into_iter().filter_map(said).collect(),
            table: Table::default(),
        }
    }
}

impl Images for RegistryAnswers {
    fn fact(&self, image: &str) -> Option<Fact> {
        let known = self.facts.get(image).cloned();
        // A guess is better than nothing, and the findings say that it is one.
        known.or_else(|| self.table.fact(image))
    }
}

fn of_content(content: &Content) -> Option<Fact> {
    let variants = content.variants.as_ref().ok()?;
    let is_windows = |platform: &Platform| platform.system == System::Windows;
    let windows = variants.iter().filter(|own| is_windows(&own.platform));
    Some(Fact {
        runs: content.runs()?.platforms().map(runs).collect(),
        guess: false,
        // Which build the node has is unknown, so the largest is reported.
        bytes: windows.clone().filter_map(|own| own.bytes).max(),
        unversioned: windows.clone().any(|own| own.os_version.is_empty()),
        program: windows.clone().find_map(|own| own.program.clone()),
    })
}

/// Returns the repository of an image with its registry, without tag and digest.
pub(super) fn repository(image: &str) -> Option<String> {
    ImageRef::parse(image).ok().map(|image| image.repository)
}

/// Returns whether an image's name has a tag.
pub(super) fn has_tag(image: &str) -> bool {
    let name = image.split('@').next().unwrap_or_default();
    name.rsplit('/')
        .next()
        .is_some_and(|name| name.contains(':'))
}

/// Returns whether an image's name has no digest, and no tag or the tag `latest`.
pub(super) fn is_latest(image: &str) -> bool {
    ImageRef::parse(image)
        .is_ok_and(|image| image.digest.is_none() && image.tag.as_deref() == Some("latest"))
}
