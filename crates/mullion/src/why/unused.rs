//! Says which objects of the input nothing is taken from: those of kinds that do not decide where pods go, or that nobody knows, and workloads
//! of a list of objects that no controller has made pods of.

use std::collections::BTreeMap;

use mullion_engine::remedy::distance;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{manifest::Document, state, template::PodOwner, world};
use crate::{out, plan::refusals::some_of};

/// The kinds of workloads and pods, and what else counts only in a list of objects.
const OTHERS: [&str; 9] = [
    "Pod",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
    "ReplicationController",
    "NodeClaim",
];

/// Returns the kind that a name was probably meant to be; `None` if it is the name of a kind that counts, or like none of them.
pub(super) fn meant(kind: &str) -> Option<&'static str> {
    let known = || world::kinds().chain(OTHERS);
    if known().any(|own| own == kind) {
        return None;
    }
    let wanted = kind.to_lowercase();
    // Short names differ by two letters without being meant: Role and Node.
    let most = if kind.len() < 12 { 1 } else { 2 };
    let near = known().map(|own| (distance(&wanted, &own.to_lowercase()), own));
    let nearest = near.min_by_key(|(letters, _)| *letters);
    nearest
        .filter(|(letters, _)| *letters <= most)
        .map(|(_, own)| own)
}

/// Says that a kind is not known, and which one was probably meant.
pub(super) fn unknown(kind: &str, meant: &str) -> String {
    format!("there is no kind {kind}, the nearest is {meant}")
}

/// Prints which of these objects, which create no pods, nothing is taken from. `templates` says whether PodTemplates count.
pub(super) fn note_documents(others: &[Document], namespace: Option<&str>, templates: bool) {
    let mut places = Vec::new();
    for Document { place, object } in others {
        let kind = object["kind"].as_str().unwrap_or_default();
        match meant(kind) {
            Some(meant) => out::note(&format!(
                "{place}: nothing is taken from it: {}",
                unknown(kind, meant)
            )),
            None if counts(kind, object, namespace, templates) => {}
            None => places.push(place.clone()),
        }
    }
    if !places.is_empty() {
        let what = match places.len() {
            1 => "an object of its kind does",
            _ => "objects of these kinds do",
        };
        out::note(&format!(
            "nothing is taken from {}: {what} not decide where pods go",
            some_of(&places)
        ));
    }
}

fn counts(kind: &str, object: &Value, namespace: Option<&str>, templates: bool) -> bool {
    match kind {
        "ConfigMap" => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            state::is_read(world::home_of(object, namespace), name)
        }
        "PodTemplate" => templates,
        kind => world::kinds().any(|own| own == kind),
    }
}

/// The objects of a list of objects that nothing is taken from.
#[derive(Default)]
pub(super) struct Unused {
    /// The objects of kinds that do not count, as in `Secret shop/key`, by kind.
    kinds: BTreeMap<String, Vec<String>>,
    /// Workloads that no controller has seen.
    unseen: Vec<PodOwner>,
}

/// What is read of an object that nothing is taken from.
#[derive(Deserialize)]
struct Stub {
    #[serde(default)]
    metadata: Value,
}

impl Unused {
    /// Reads the remaining fields of an object of a kind that does not count.
    pub(super) fn add<'de, D: Deserializer<'de>>(
        &mut self,
        kind: &str,
        rest: D,
    ) -> Result<(), D::Error> {
        let (home, name) = named(rest)?;
        let named = if home.is_empty() {
            format!("{kind} {name}")
        } else {
            format!("{kind} {home}/{name}")
        };
        self.kinds.entry(kind.to_owned()).or_default().push(named);
        Ok(())
    }

    /// Reads the remaining fields of a workload of which only the pods count.
    pub(super) fn add_workload<'de, D: Deserializer<'de>>(
        &mut self,
        kind: &str,
        rest: D,
    ) -> Result<(), D::Error> {
        let (namespace, name) = named(rest)?;
        self.add_owner(kind, &namespace, &name);
        Ok(())
    }

    /// Adds a workload, which [`Unused::forget_workloads`] removes again if a controller has seen it.
    pub(super) fn add_owner(&mut self, kind: &str, namespace: &str, name: &str) {
        self.unseen.push(PodOwner {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        });
    }

    /// Returns how many workloads there are.
    pub(super) fn workloads(&self) -> usize {
        self.unseen.len()
    }

    /// Removes the workloads that were added last: all but the first `there`.
    pub(super) fn forget_workloads(&mut self, there: usize) {
        self.unseen.truncate(there);
    }

    /// Prints which objects of a file nothing is taken from. `owns` says whether a workload has pods.
    pub(super) fn note(&self, file: &str, owns: impl Fn(&PodOwner) -> bool) {
        let mut others = Vec::new();
        for (kind, names) in &self.kinds {
            match meant(kind) {
                Some(meant) => out::note(&format!(
                    "{file}: nothing is taken from {}: {}",
                    some_of(names),
                    unknown(kind, meant)
                )),
                None => others.push(match names.as_slice() {
                    [only] => only.clone(),
                    several => format!("{kind} ({})", several.len()),
                }),
            }
        }
        if !others.is_empty() {
            out::note(&format!(
                "{file}: nothing is taken from {}: such objects do not decide where pods go",
                some_of(&others)
            ));
        }
        let unseen = self.unseen.iter().filter(|own| !owns(own));
        let unseen: Vec<String> = unseen
            .map(|own| format!("{} {}/{}", own.kind, own.namespace, own.name))
            .collect();
        if !unseen.is_empty() {
            let (have, them) = match unseen.len() {
                1 => ("has", "it"),
                _ => ("have", "them"),
            };
            out::note(&format!(
                "{file}: {} {have} no pods here, because no controller has seen {them}: -f takes manifests, --state what a cluster has",
                some_of(&unseen)
            ));
        }
    }
}

/// Returns the namespace and the name of an object.
fn named<'de, D: Deserializer<'de>>(rest: D) -> Result<(String, String), D::Error> {
    let Stub { metadata } = Stub::deserialize(rest)?;
    let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
    Ok((text("namespace"), text("name")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_kind_means_the_nearest_and_another_kind_none() {
        for (kind, expected) in [
            ("Deploymnet", Some("Deployment")),
            ("deployment", Some("Deployment")),
            ("Nod", Some("Node")),
            ("Pods", Some("Pod")),
            ("Nodepool", Some("NodePool")),
            ("PersistantVolumClaim", Some("PersistentVolumeClaim")),
            ("Node", None),
            ("Role", None),
            ("NodeClass", None),
            ("Ingress", None),
            ("Secret", None),
        ] {
            assert_eq!(meant(kind), expected, "{kind}");
        }
    }
}
