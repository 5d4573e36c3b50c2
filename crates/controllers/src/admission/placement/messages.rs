//! The messages about containers that do not run together, or not where the pod is allowed to run.

use mullion_api::labels;
use mullion_engine::windows::Builds;

use super::{Container, Source, hosts::Allowed};

/// Returns the message about a pod that no allowed host can run, naming each container and what it needs. With
/// `certain`, only certain facts count; otherwise guesses count too, and the message says so.
pub(super) fn conflict(
    containers: &[Container<'_>],
    allowed: &Allowed,
    builds: &Builds,
    certain: bool,
) -> String {
    let counts = |one: &&Container<'_>| match &one.fact {
        Some(fact) => !certain || fact.source.is_certain(),
        None => false,
    };
    let fits = |one: &&Container<'_>| {
        let runs = one.fact.as_ref().map(|fact| &fact.runs);
        runs.is_some_and(|runs| !allowed.systems_that_run(runs, builds).is_empty())
    };
    let counting: Vec<_> = containers.iter().filter(counts).collect();
    let misfits: Vec<_> = counting.iter().copied().filter(|one| !fits(one)).collect();
    // If each container alone would run somewhere, all of them together are the conflict.
    let named = if misfits.is_empty() {
        counting
    } else {
        misfits
    };
    let needs: Vec<_> = named.into_iter().map(need).collect();
    let needs = needs.join(", ");
    let subject = if allowed.is_everything() {
        "no node can run all containers of this pod".to_owned()
    } else {
        format!(
            "this pod asks for {}, which cannot run all of its containers",
            allowed.description()
        )
    };
    let off = format!(
        "the label {}: \"false\" turns this check off",
        labels::PLACE_BY_IMAGE
    );
    if certain {
        format!("{subject}: {needs} ({off})")
    } else {
        format!("judging by the names of its images, {subject}: {needs} ({off})")
    }
}

fn need(container: &Container<'_>) -> String {
    let (runs, because) = match &container.fact {
        Some(fact) => match &fact.source {
            Source::Table(because) => (fact.runs.in_words(), format!(", by {because}")),
            Source::Annotation => (
                fact.runs.in_words(),
                format!(", by the annotation {}", labels::RUNS_ON),
            ),
            Source::Registry => (fact.runs.in_words(), String::new()),
        },
        None => return String::new(),
    };
    let Container { name, image, .. } = container;
    format!("container {name:?} ({image}{because}) needs {runs}")
}
