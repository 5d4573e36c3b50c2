//! Which of the simulated images the terms of an EC2NodeClass select.
//!
//! Makers of images publish SSM parameters with their ids. Tags and further parameters are what the account has given them
//! itself ([`SimulatedEc2::name_images`]).

use std::collections::BTreeMap;

use mullion_api::{ami::AmiFamily, eksctl::KubernetesVersion, karpenter::AmiSelectorTerm};

use super::{SimulatedEc2, State};
use crate::{
    SelectedImages,
    image::{ImageVariant, NodeImage, architectures},
};

/// The names that the account has given images.
#[derive(Default)]
pub(super) struct ImageNames {
    /// Tags by image id.
    tags: BTreeMap<String, BTreeMap<String, String>>,
    /// Image ids by the name of the SSM parameter that holds them.
    parameters: BTreeMap<String, String>,
}

/// The value of an SSM parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The image id.
    pub value: String,
    /// How often the parameter has changed before.
    pub changes: u32,
}

impl SimulatedEc2 {
    /// Replaces the account's tags of images, by image id, and its own SSM parameters with ids of images.
    pub fn name_images(
        &self,
        tags: &BTreeMap<String, BTreeMap<String, String>>,
        parameters: &BTreeMap<String, String>,
    ) {
        self.state().images = ImageNames {
            tags: tags.clone(),
            parameters: parameters.clone(),
        };
    }

    /// Returns the tags that the account has given an image.
    pub fn image_tags(&self, id: &str) -> BTreeMap<String, String> {
        let state = self.state();
        state.images.tags.get(id).cloned().unwrap_or_default()
    }

    /// Returns what an SSM parameter holds, one of the account's own or a public one; `None` if there is no such parameter.
    pub fn parameter(&self, name: &str) -> Option<Parameter> {
        if let Some(id) = self.state().images.parameters.get(name) {
            return Some(Parameter {
                value: id.clone(),
                changes: 0,
            });
        }
        let images = self.all_images();
        let state = self.state();
        let held = images.into_iter().find(|image| state.holds(name, image))?;
        Some(Parameter {
            value: held.id,
            changes: held.release,
        })
    }

    /// Returns the images of a family that the terms select; the newest ones if the terms select none, so that manifests that
    /// name images of a real account can be used as they are.
    pub(super) fn select_images(
        &self,
        terms: &[AmiSelectorTerm],
        family: AmiFamily,
        version: KubernetesVersion,
    ) -> SelectedImages {
        let state = self.state();
        let releases: Vec<u32> = state.releases.all(family).collect();
        // As in Karpenter, only an alias says which hardware an image is for; what other terms select is for any.
        let variant = |image: &NodeImage| {
            let mut selecting = terms.iter().filter(|term| state.selects(term, image));
            let term = selecting.next()?;
            Some(match term.alias {
                Some(_) => image.variant,
                None => ImageVariant::Any,
            })
        };
        let selected = newest_of_each(&releases, family, version, &variant);
        let is_fallback = selected.is_empty();
        let images = if is_fallback {
            newest_of_each(&releases, family, version, &|image| Some(image.variant))
        } else {
            selected
        };
        SelectedImages {
            images,
            is_fallback,
        }
    }
}

/// Returns the newest image of each architecture and variant. `variant` is what an image counts as; `None` if it is not
/// selected. `releases` begins with the newest.
fn newest_of_each(
    releases: &[u32],
    family: AmiFamily,
    version: KubernetesVersion,
    variant: &dyn Fn(&NodeImage) -> Option<ImageVariant>,
) -> Vec<NodeImage> {
    let mut newest: Vec<NodeImage> = Vec::new();
    for arch in architectures(family.os()) {
        let releases = releases.iter();
        let all = releases.flat_map(|own| NodeImage::all_released(family, version, *arch, *own));
        for mut image in all {
            let Some(variant) = variant(&image) else {
                continue;
            };
            image.variant = variant;
            let is_same = |own: &NodeImage| own.arch == *arch && own.variant == variant;
            // The releases begin with the newest, so the first image of its kind stays.
            if !newest.iter().any(is_same) {
                newest.push(image);
            }
        }
    }
    newest
}

impl State {
    fn selects(&self, term: &AmiSelectorTerm, image: &NodeImage) -> bool {
        match &term.ssm_parameter {
            Some(name) => self.holds(name, image),
            None => {
                let none = BTreeMap::new();
                let tags = self.images.tags.get(&image.id).unwrap_or(&none);
                image.is_selected_by(term, tags)
            }
        }
    }

    /// Returns whether an SSM parameter holds the id of this image.
    fn holds(&self, name: &str, image: &NodeImage) -> bool {
        match self.images.parameters.get(name) {
            Some(id) => *id == image.id,
            None => {
                let is_newest = image.release == self.releases.newest(image.family);
                image.parameters(is_newest).iter().any(|own| own == name)
            }
        }
    }
}
