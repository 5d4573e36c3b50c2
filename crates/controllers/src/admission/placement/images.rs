//! The facts about the images of a pod's containers, and their sources.
//!
//! The sources in order of precedence are the pod's annotation `mullion.dev/runs-on`, the image's registry, and the
//! table of usual names and tags. The first two are certain; the table is a guess.

use std::sync::Arc;

use mullion_api::labels;
use mullion_engine::images::{ImageRef, ImageTable, Runs};
use serde_json::Value;

use super::{Facts, items};
use crate::admission::ClusterReader;

/// The source of a fact about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The pod's annotation.
    Annotation,
    /// The image's registry.
    Registry,
    /// The table of usual names and tags; the text names the entry.
    Table(String),
}

impl Source {
    /// Returns whether the source is certain enough to refuse a pod.
    pub fn is_certain(&self) -> bool {
        !matches!(self, Source::Table(_))
    }

    /// Returns the source's name in the annotation `mullion.dev/placed-by-image`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Source::Annotation => "annotation",
            Source::Registry => "registry",
            Source::Table(_) => "table",
        }
    }
}

/// The platforms on which an image runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFact {
    /// The platforms.
    pub runs: Runs,
    /// The source of the fact.
    pub source: Source,
}

/// A container and the fact about its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container<'a> {
    /// The container's name.
    pub name: &'a str,
    /// The image as written in the pod.
    pub image: &'a str,
    /// The platforms on which the image runs; `None` if unknown.
    pub fact: Option<ImageFact>,
}

impl Container<'_> {
    /// Returns whether the fact about the image is known and certain.
    pub fn is_certain(&self) -> bool {
        self.fact
            .as_ref()
            .is_some_and(|fact| fact.source.is_certain())
    }
}

/// Returns all containers of a pod with the facts about their images.
pub fn containers<'a>(
    pod: &'a Value,
    namespace: &str,
    table: &ImageTable,
    facts: &dyn Facts,
    cluster: &dyn ClusterReader,
) -> Vec<Container<'a>> {
    let spec = &pod["spec"];
    let annotation = pod["metadata"]["annotations"][labels::RUNS_ON].as_str();
    let annotated: Option<Runs> = annotation.and_then(|text| text.parse().ok());
    let text = |container: &'a Value, field: &str| container[field].as_str().unwrap_or_default();
    // The annotation decides for all containers, so the registries need not be asked. An image that cannot be
    // parsed keeps its place in the list, because the answers are matched to the containers by position.
    let images: Vec<Option<ImageRef>> = match annotated {
        Some(_) => Vec::new(),
        None => of(spec)
            .map(|(container, _)| ImageRef::parse(text(container, "image")).ok())
            .collect(),
    };
    let secrets = || pull_secrets(spec, namespace, cluster);
    let mut in_registries = facts.in_registries(&images, &secrets).into_iter();
    let mut images = images.iter();
    let mut fact = || {
        if let Some(runs) = &annotated {
            return Some(ImageFact {
                runs: runs.clone(),
                source: Source::Annotation,
            });
        }
        let (image, runs) = (images.next()?, in_registries.next()?);
        if let Some(runs) = runs {
            return Some(ImageFact {
                runs,
                source: Source::Registry,
            });
        }
        let guess = table.guess(image.as_ref()?)?;
        Some(ImageFact {
            runs: guess.runs,
            source: Source::Table(guess.because),
        })
    };
    let container = |(container, is_host_process): (&'a Value, bool)| {
        let mut fact = fact();
        // A HostProcess container uses the host's system, so the build of its image does not matter.
        if let Some(fact) = fact.as_mut().filter(|_| is_host_process) {
            fact.runs = fact.runs.on_any_build();
        }
        Container {
            name: text(container, "name"),
            image: text(container, "image"),
            fact,
        }
    };
    of(spec).map(container).collect()
}

/// Returns the warning about an annotation `mullion.dev/runs-on` that names no platforms, and so decides nothing.
pub(super) fn unread_annotation(pod: &Value) -> Option<String> {
    let text = pod["metadata"]["annotations"][labels::RUNS_ON].as_str()?;
    let error = text.parse::<Runs>().err()?;
    Some(format!(
        "the annotation {} decides nothing: {error}",
        labels::RUNS_ON
    ))
}

/// Iterates all containers of a pod spec, with whether each is a HostProcess container.
pub(super) fn of(spec: &Value) -> impl Iterator<Item = (&Value, bool)> {
    let host_process =
        |owner: &Value| owner["securityContext"]["windowsOptions"]["hostProcess"].as_bool();
    let of_pod = host_process(spec);
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let containers = lists.into_iter().flat_map(|list| items(&spec[list]));
    containers.map(move |container| {
        let is_host_process = host_process(container).or(of_pod).unwrap_or(false);
        (container, is_host_process)
    })
}

/// Returns the pull secrets that a pod will have: its own, or else those of its service account, which
/// kube-apiserver's ServiceAccount plugin writes into the pod.
pub fn pull_secrets(spec: &Value, namespace: &str, cluster: &dyn ClusterReader) -> Vec<Arc<Value>> {
    let own = items(&spec["imagePullSecrets"]);
    let account = spec["serviceAccountName"].as_str().unwrap_or("default");
    let account = if own.is_empty() {
        cluster.find("", "serviceaccounts", Some(namespace), account)
    } else {
        None
    };
    let of_account = account
        .as_ref()
        .map(|account| items(&account["imagePullSecrets"]));
    let names = own.iter().chain(of_account.into_iter().flatten());
    names
        .filter_map(|secret| secret["name"].as_str())
        .filter_map(|name| cluster.find("", "secrets", Some(namespace), name))
        .collect()
}
