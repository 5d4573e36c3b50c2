//! Which of the simulated images the terms of an EC2NodeClass select.
//!
//! Makers of images publish SSM parameters with their ids. Tags and further parameters are what the account has given them
//! itself ([`SimulatedEc2::name_images`]).

use std::collections::BTreeMap;

use mullion_api::{ami::AmiFamily, eksctl::KubernetesVersion, karpenter::AmiSelectorTerm};

use super::{SimulatedEc2, State};
use crate::{
    SelectedImages,
    image::{NodeImage, architectures},
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
        let newest_that = |fits: &dyn Fn(&NodeImage) -> bool| -> Vec<NodeImage> {
            let arches = architectures(family.os()).iter();
            let of = arches.filter_map(|arch| {
                let mut all = releases
                    .iter()
                    .map(|release| NodeImage::released(family, version, *arch, *release));
                all.find(fits)
            });
            of.collect()
        };
        let selected = newest_that(&|image| terms.iter().any(|term| state.selects(term, image)));
        match selected.is_empty() {
            true => SelectedImages {
                images: newest_that(&|_| true),
                is_fallback: true,
            },
            false => SelectedImages {
                images: selected,
                is_fallback: false,
            },
        }
    }
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
