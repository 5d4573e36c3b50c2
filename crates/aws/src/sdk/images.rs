//! Finds images: by alias through SSM parameters, by the selectors of a class, and by the ids of running instances' images.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use aws_sdk_ec2::types::{ArchitectureValues, Filter, Image};
use jiff::Timestamp;
use mullion_api::{
    ami::{AmiFamily, Os, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
    karpenter::AmiSelectorTerm,
};
use mullion_cloud::{
    CloudError,
    catalogue::Arch,
    image::{ImageVariant, LATEST, NodeImage},
};

use super::{Dated, Inner, errors::Failed, filters::filter, filters::of_tags, forget_older, lock};
use crate::{
    image_names::{family_of, parameters},
    limits::Kind,
};

/// The time for which the value of a parameter is used. AWS publishes images every one or two weeks.
const PARAMETERS_FOR: Duration = Duration::from_secs(3600);
/// The time for which the result of selectors is used (AWS provider: `DefaultTTL`).
const CHOSEN_FOR: Duration = Duration::from_secs(60);
/// The number of ids per call (EC2: a filter has up to 200 values).
const MOST_IDS: usize = 200;

/// The known images.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// Values of SSM parameters; `None` if the parameter does not exist.
    parameters: BTreeMap<String, Dated<Option<String>>>,
    /// Images by id; the properties of an image never change.
    known: BTreeMap<String, NodeImage>,
    /// The images that selectors have selected, by selectors, family and version.
    chosen: BTreeMap<String, Dated<Vec<NodeImage>>>,
}

/// An image that a class may use, with the properties that decide whether it is chosen.
struct CandidateImage {
    image: NodeImage,
    created: Option<Timestamp>,
    deprecated: bool,
}

impl Inner {
    pub(super) async fn images(
        &self,
        terms: &[AmiSelectorTerm],
        family: AmiFamily,
        version: KubernetesVersion,
    ) -> Result<Vec<NodeImage>, CloudError> {
        let key = format!("{family} {version} {terms:?}");
        {
            let mut images = lock(&self.images);
            forget_older(&mut images.chosen, CHOSEN_FOR);
            if let Some(known) = images.chosen.get(&key) {
                return Ok(known.value.clone());
            }
        }
        let chosen = self.select(terms, family, version).await?;
        let dated = Dated::now(chosen.clone());
        lock(&self.images).chosen.insert(key, dated);
        Ok(chosen)
    }

    async fn select(
        &self,
        terms: &[AmiSelectorTerm],
        family: AmiFamily,
        version: KubernetesVersion,
    ) -> Result<Vec<NodeImage>, CloudError> {
        let alias = terms.iter().find_map(|term| term.alias.as_deref());
        if let Some((_, release)) = alias.and_then(|alias| alias.split_once('@')) {
            return self.images_of_release(family, version, release).await;
        }
        let mut ids: BTreeSet<String> = BTreeSet::new();
        let mut found = Vec::new();
        for term in terms {
            if let Some(id) = &term.id {
                ids.insert(id.clone());
            } else if let Some(parameter) = &term.ssm_parameter {
                ids.extend(self.parameter(parameter).await?);
            } else {
                let mut filters = of_tags(&term.tags);
                filters.extend(term.name.iter().map(|name| filter("name", [name])));
                let owners = match (&term.owner, &term.name) {
                    (Some(owner), _) => vec![owner.clone()],
                    // A name alone would also select images that strangers have published with it.
                    (None, Some(_)) => vec!["self".to_owned(), "amazon".to_owned()],
                    (None, None) => Vec::new(),
                };
                found.extend(self.describe_images(filters, owners).await?);
            }
        }
        if !ids.is_empty() {
            let by_id = vec![filter("image-id", ids)];
            found.extend(self.describe_images(by_id, Vec::new()).await?);
        }
        let found = found
            .iter()
            .filter_map(|image| self.read(image, family, version, ImageVariant::Any))
            .collect();
        Ok(self.choose(found))
    }

    pub(super) async fn newest_image(
        &self,
        family: AmiFamily,
        version: KubernetesVersion,
        arch: Arch,
    ) -> Result<NodeImage, CloudError> {
        let images = self.images_of_release(family, version, LATEST).await?;
        let fits = |image: &NodeImage| {
            let plain = matches!(image.variant, ImageVariant::Any | ImageVariant::Standard);
            image.arch == arch && plain
        };
        images.into_iter().find(fits).ok_or_else(|| {
            CloudError::Invalid(format!(
                "AWS publishes no {} image of {family} for Kubernetes {version}",
                arch.as_str()
            ))
        })
    }

    /// Returns the images of a family's release, one for each architecture and variant.
    async fn images_of_release(
        &self,
        family: AmiFamily,
        version: KubernetesVersion,
        release: &str,
    ) -> Result<Vec<NodeImage>, CloudError> {
        let mut variants: BTreeMap<String, Vec<ImageVariant>> = BTreeMap::new();
        for parameter in parameters(family, version, release) {
            if let Some(id) = self.parameter(&parameter.name).await? {
                variants.entry(id).or_default().push(parameter.variant);
            }
        }
        if variants.is_empty() {
            return Ok(Vec::new());
        }
        let ids = vec![filter("image-id", variants.keys().cloned())];
        let images = self.describe_images(ids, Vec::new()).await?;
        let mut found = Vec::new();
        for image in &images {
            let Some(variants) = image.image_id().and_then(|id| variants.get(id)) else {
                continue;
            };
            let of_variant = |variant: &ImageVariant| self.read(image, family, version, *variant);
            found.extend(variants.iter().filter_map(of_variant));
        }
        Ok(self.choose(found))
    }

    /// Returns the newest image of each architecture and variant, preferring images that are not deprecated, and stores them as known.
    fn choose(&self, mut found: Vec<CandidateImage>) -> Vec<NodeImage> {
        found.sort_by(|a, b| {
            let deprecated = a.deprecated.cmp(&b.deprecated);
            deprecated
                .then_with(|| b.created.cmp(&a.created))
                .then_with(|| b.image.name.cmp(&a.image.name))
        });
        let mut chosen: Vec<NodeImage> = Vec::new();
        for CandidateImage { image, .. } in found {
            let same = |own: &NodeImage| own.arch == image.arch && own.variant == image.variant;
            if !chosen.iter().any(same) {
                chosen.push(image);
            }
        }
        let mut images = lock(&self.images);
        for image in &chosen {
            images.known.insert(image.id.clone(), image.clone());
        }
        chosen
    }

    fn read(
        &self,
        image: &Image,
        family: AmiFamily,
        version: KubernetesVersion,
        variant: ImageVariant,
    ) -> Option<CandidateImage> {
        let time = |text: Option<&str>| text.and_then(|text| text.parse::<Timestamp>().ok());
        let deprecated = time(image.deprecation_time());
        Some(CandidateImage {
            image: NodeImage {
                family,
                version,
                arch: arch_of(image.architecture()?)?,
                release: 0,
                id: image.image_id()?.to_owned(),
                name: image.name().unwrap_or_default().to_owned(),
                variant,
            },
            created: time(image.creation_date()),
            deprecated: deprecated.is_some_and(|at| at <= Timestamp::now()),
        })
    }

    async fn describe_images(
        &self,
        filters: Vec<Filter>,
        owners: Vec<String>,
    ) -> Result<Vec<Image>, Failed> {
        self.may(Kind::Describe).await;
        let mut pages = self
            .ec2
            .describe_images()
            .set_filters(Some(filters))
            .filters(filter("state", ["available"]))
            .set_owners((!owners.is_empty()).then_some(owners))
            // A class may name a deprecated image; among others it is only the last choice.
            .include_deprecated(true)
            .max_results(1000)
            .into_paginator()
            .send();
        let mut found = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(Failed::of)?;
            found.extend(page.images.unwrap_or_default());
        }
        Ok(found)
    }

    /// Returns the value of a parameter, if it exists.
    async fn parameter(&self, name: &str) -> Result<Option<String>, CloudError> {
        {
            let mut images = lock(&self.images);
            forget_older(&mut images.parameters, PARAMETERS_FOR);
            if let Some(known) = images.parameters.get(name) {
                return Ok(known.value.clone());
            }
        }
        self.may(Kind::Other).await;
        let call = self.ssm.get_parameter().name(name).send();
        let value = match call.await.map_err(Failed::of) {
            Ok(answer) => answer.parameter.and_then(|own| own.value),
            Err(failed) if failed.is_not_found() => None,
            Err(failed) => return Err(failed.into()),
        };
        // A parameter of the user's own may hold anything.
        let value = value.filter(|value| value.starts_with("ami-"));
        let dated = Dated::now(value.clone());
        // A missing parameter is cached too: classes are reconciled often, and AWS does not publish every
        // combination.
        lock(&self.images).parameters.insert(name.to_owned(), dated);
        Ok(value)
    }

    /// Looks up unknown images. Deleted ones stay unknown.
    pub(super) async fn learn_images(&self, ids: BTreeSet<String>) -> Result<(), Failed> {
        let unknown: Vec<String> = {
            let images = lock(&self.images);
            let unknown = ids.into_iter();
            unknown
                .filter(|id| !images.known.contains_key(id))
                .collect()
        };
        for some in unknown.chunks(MOST_IDS) {
            let by_id = vec![filter("image-id", some.to_vec())];
            let found = self.describe_images(by_id, Vec::new()).await?;
            for image in &found {
                let name = image.name().unwrap_or_default();
                let is_windows = image.platform().is_some();
                let os = if is_windows { Os::Windows } else { Os::Linux };
                let (family, version) = family_of(name).unwrap_or_else(|| unnamed(os));
                if let Some(found) = self.read(image, family, version, ImageVariant::Any) {
                    let image = found.image;
                    lock(&self.images).known.insert(image.id.clone(), image);
                }
            }
        }
        Ok(())
    }

    pub(super) fn known_image(&self, id: &str) -> Option<NodeImage> {
        lock(&self.images).known.get(id).cloned()
    }

    /// Returns a known image, or else a custom image with this operating system.
    pub(super) fn image(&self, id: &str, os: Os, arch: Arch) -> NodeImage {
        self.known_image(id).unwrap_or_else(|| {
            let (family, version) = unnamed(os);
            NodeImage {
                id: id.to_owned(),
                name: String::new(),
                ..NodeImage::new(family, version, arch)
            }
        })
    }
}

/// Returns the family and version that are assumed for an unknown image.
fn unnamed(os: Os) -> (AmiFamily, KubernetesVersion) {
    let family = match os {
        Os::Linux => AmiFamily::Custom,
        Os::Windows => AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core),
    };
    (family, KubernetesVersion::NEWEST)
}

fn arch_of(architecture: &ArchitectureValues) -> Option<Arch> {
    match architecture {
        ArchitectureValues::X8664 => Some(Arch::Amd64),
        ArchitectureValues::Arm64 => Some(Arch::Arm64),
        _ => None,
    }
}
