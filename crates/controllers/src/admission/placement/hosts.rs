//! Computes where a pod's own fields allow it to run, by operating system, architecture and Windows build.
//!
//! Every possible kind of host is checked against node selector, required node affinity and `spec.os.name`.
//! Requirements on other labels may hold on any host, so they exclude none.

use std::collections::BTreeSet;

use mullion_api::labels::{ARCH, BETA_ARCH, BETA_OS, OS, WINDOWS_BUILD};
use mullion_engine::{
    images::{Host, Runs, System},
    windows::{Build, Builds},
};
use serde_json::Value;

use super::{Container, items};
use crate::admission::{ClusterReader, system};

/// Architectures of nodes that are always considered, in addition to those that images or the pod name.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

/// A kind of host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    system: System,
    architecture: String,
    build: Option<Build>,
}

impl Kind {
    fn host(&self) -> Host<'_> {
        Host {
            system: self.system,
            architecture: Some(&self.architecture),
            build: self.build,
        }
    }

    /// Returns the value of a label that distinguishes kinds of hosts: `Some(None)` if this kind does not have it,
    /// `None` for any other label.
    fn label(&self, key: &str) -> Option<Option<String>> {
        match key {
            OS | BETA_OS => Some(Some(self.system.as_str().to_owned())),
            ARCH | BETA_ARCH => Some(Some(self.architecture.clone())),
            WINDOWS_BUILD => Some(self.build.map(|build| build.to_string())),
            _ => None,
        }
    }
}

/// The kinds of hosts that a pod's fields allow.
#[derive(Clone, Debug)]
pub(super) struct Allowed {
    all: Vec<Kind>,
    allowed: Vec<Kind>,
}

impl Allowed {
    /// Computes the kinds of hosts that a pod's spec allows.
    pub(super) fn of_spec(
        spec: &Value,
        containers: &[Container<'_>],
        builds: &Builds,
        cluster: &dyn ClusterReader,
    ) -> Self {
        let all = kinds(spec, containers, builds);
        let required = System::ALL
            .into_iter()
            .filter(|system| system::is_required(spec, system.as_str(), cluster))
            .collect::<Vec<_>>();
        let is_allowed = |kind: &&Kind| {
            required.iter().all(|system| *system == kind.system)
                && selects(&spec["nodeSelector"], kind)
                && affinity_allows(spec, kind)
        };
        let allowed = all.iter().filter(is_allowed).cloned().collect();
        Allowed { all, allowed }
    }

    /// Returns whether no host can run the pod, whatever its images are.
    pub(super) fn is_empty(&self) -> bool {
        self.allowed.is_empty()
    }

    /// Returns whether the pod's fields exclude no kind of host.
    pub(super) fn is_everything(&self) -> bool {
        self.all.len() == self.allowed.len()
    }

    /// Returns the systems with a host that the pod allows and that runs `runs`.
    pub(super) fn systems_that_run(&self, runs: &Runs, builds: &Builds) -> Vec<System> {
        let runs = |kind: &&Kind| runs.runs_on(kind.host(), builds);
        let systems: BTreeSet<_> = self
            .allowed
            .iter()
            .filter(runs)
            .map(|kind| kind.system)
            .collect();
        systems.into_iter().collect()
    }

    /// Returns whether the pod itself restricts the architectures of an operating system.
    pub(super) fn chooses_architecture(&self, system: System) -> bool {
        let of = |kinds: &[Kind]| -> BTreeSet<String> {
            let of = kinds.iter().filter(|kind| kind.system == system);
            of.map(|kind| kind.architecture.clone()).collect()
        };
        of(&self.all) != of(&self.allowed)
    }

    /// Returns whether the pod itself restricts the Windows builds.
    pub(super) fn chooses_build(&self) -> bool {
        let of = |kinds: &[Kind]| -> BTreeSet<Build> {
            kinds.iter().filter_map(|kind| kind.build).collect()
        };
        of(&self.all) != of(&self.allowed)
    }

    /// Returns the allowed hosts as text: `Windows nodes of build 10.0.17763`.
    pub(super) fn description(&self) -> String {
        let systems: BTreeSet<_> = self.allowed.iter().map(|kind| kind.system).collect();
        let words = systems.into_iter().map(|system| {
            let of = || {
                self.allowed
                    .iter()
                    .filter(move |kind| kind.system == system)
            };
            let mut text = match system {
                System::Linux => "Linux nodes".to_owned(),
                System::Windows => "Windows nodes".to_owned(),
            };
            if self.chooses_architecture(system) {
                let names: BTreeSet<_> = of().map(|kind| kind.architecture.as_str()).collect();
                text += &format!(" ({})", Vec::from_iter(names).join(", "));
            }
            if system == System::Windows && self.chooses_build() {
                let builds: BTreeSet<_> = of().filter_map(|kind| kind.build).collect();
                let builds: Vec<_> = builds.iter().map(ToString::to_string).collect();
                text += &format!(" of build {}", builds.join(" or "));
            }
            text
        });
        words.collect::<Vec<_>>().join(" or ")
    }
}

/// Returns every kind of host: the known architectures and builds, and those that images or the pod name.
fn kinds(spec: &Value, containers: &[Container<'_>], builds: &Builds) -> Vec<Kind> {
    // An exclusion can be seen only among kinds that are considered: with one architecture alone, a pod that
    // chooses it would seem to choose nothing.
    let mut architectures: BTreeSet<String> = ARCHITECTURES.map(str::to_owned).into();
    let mut hosts: BTreeSet<Build> = builds.releases().iter().map(|r| r.build).collect();
    let facts = containers.iter().filter_map(|one| one.fact.as_ref());
    for platform in facts.flat_map(|fact| fact.runs.platforms()) {
        architectures.extend(platform.architecture.clone());
        hosts.extend(platform.builds.map(|span| span.newest));
    }
    for (key, value) in named(spec) {
        match key {
            ARCH | BETA_ARCH => drop(architectures.insert(value.to_owned())),
            WINDOWS_BUILD => hosts.extend(value.parse::<Build>().ok()),
            _ => {}
        }
    }
    let mut kinds = Vec::with_capacity(architectures.len() * (1 + hosts.len()));
    for architecture in architectures {
        let kind = |system, build| Kind {
            system,
            architecture: architecture.clone(),
            build,
        };
        kinds.push(kind(System::Linux, None));
        kinds.extend(
            hosts
                .iter()
                .map(|build| kind(System::Windows, Some(*build))),
        );
    }
    kinds
}

/// Iterates the labels and values that the spec names in its node selector and required node affinity.
fn named(spec: &Value) -> impl Iterator<Item = (&str, &str)> {
    let selector = spec["nodeSelector"].as_object().into_iter().flatten();
    let selected = selector.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
    let expressions = terms(spec)
        .iter()
        .flat_map(|term| items(&term["matchExpressions"]));
    let required = expressions.flat_map(|expression| {
        let key = expression["key"].as_str().unwrap_or_default();
        let values = items(&expression["values"])
            .iter()
            .filter_map(Value::as_str);
        values.map(move |value| (key, value))
    });
    selected.chain(required)
}

/// Returns the terms of the spec's required node affinity.
pub(super) fn terms(spec: &Value) -> &[Value] {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    items(&spec["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"])
}

fn selects(selector: &Value, kind: &Kind) -> bool {
    let mut entries = selector.as_object().into_iter().flatten();
    entries.all(|(key, wanted)| match kind.label(key) {
        // A label that this kind of host never has, such as the Windows build on Linux, excludes it.
        Some(value) => value.as_deref() == wanted.as_str(),
        None => true,
    })
}

fn affinity_allows(spec: &Value, kind: &Kind) -> bool {
    let terms = terms(spec);
    let allows = |term: &Value| {
        let expressions = items(&term["matchExpressions"]);
        // A term without requirements matches no node.
        !is_blank(term) && expressions.iter().all(|one| may_hold(one, kind))
    };
    terms.is_empty() || terms.iter().any(allows)
}

/// Returns whether a term has no requirements, and so matches no node.
pub(super) fn is_blank(term: &Value) -> bool {
    items(&term["matchExpressions"]).is_empty() && items(&term["matchFields"]).is_empty()
}

fn may_hold(expression: &Value, kind: &Kind) -> bool {
    let Some(label) = kind.label(expression["key"].as_str().unwrap_or_default()) else {
        return true;
    };
    let is_listed = |label: &String| {
        items(&expression["values"])
            .iter()
            .any(|value| value == label)
    };
    match expression["operator"].as_str().unwrap_or_default() {
        "In" => label.as_ref().is_some_and(is_listed),
        "NotIn" => !label.as_ref().is_some_and(is_listed),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        _ => true,
    }
}
