//! Tells the user which objects of the input nothing is taken from.

use serde_json::Value;

use super::{
    kinds,
    manifest::Document,
    pod_owner::PodOwner,
    refused::Refusals,
    state::{self, State},
    world,
};
use crate::{failure::Failure, out, plan::refusals::some_of};

/// Refuses the objects of misspelt kinds, where nothing else is asked about.
pub(super) fn refuse_misspelt(others: &[Document], refusals: &mut Refusals) {
    for Document { place, object } in others {
        let kind = object["kind"].as_str().unwrap_or_default();
        if let Some(meant) = kinds::meant(kind) {
            refusals.refuse(place, Failure::input(kinds::unknown(kind, meant)));
        }
    }
}

/// Prints which of these objects, which create no pods, nothing is taken from. `templates` says whether PodTemplates count.
pub(super) fn note_documents(others: &[Document], namespace: Option<&str>, templates: bool) {
    let mut places = Vec::new();
    for Document { place, object } in others {
        let kind = object["kind"].as_str().unwrap_or_default();
        match kinds::meant(kind) {
            Some(meant) => out::note(&format!(
                "{place}: nothing is taken from it: {}",
                kinds::unknown(kind, meant)
            )),
            None if counts(kind, object, namespace, templates) => {}
            None => places.push(place.to_string()),
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
        kind => kinds::kinds().any(|own| own == kind),
    }
}

/// Prints which objects of the file that a state was read from nothing is taken from.
pub(super) fn note(state: &State, file: &str) {
    let owns = |owner: &PodOwner| state.pods.iter().any(|pod| owner.owns(pod));
    let mut others = Vec::new();
    for (kind, names) in state.unused.kinds() {
        match kinds::meant(kind) {
            Some(meant) => out::note(&format!(
                "{file}: nothing is taken from {}: {}",
                some_of(names),
                kinds::unknown(kind, meant)
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
    let unseen = state.unused.unseen().iter().filter(|own| !owns(own));
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
