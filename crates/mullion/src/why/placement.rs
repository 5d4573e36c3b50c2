//! Decides whether pods of manifests are placed by their images if no cluster admits them, and places them.
//!
//! A cluster places pods by their images when it admits them, so existing pods need nothing. A file of objects does not say whether its
//! cluster does so: a flag, a table of the user's images, or the annotation on a pod placed earlier tells.

use std::{
    cell::Cell,
    sync::{Arc, OnceLock},
};

use clap::ValueEnum;
use mullion_controllers::admission::{
    Access, ClusterReader, Permission, Refusal, ServiceAccount, Write,
    placement::{Facts, PlaceByImage, Taint, is_wanted, taints},
};
use mullion_engine::images::{ImageTable, System};
use serde_json::{Value, json};

use super::state::State;
use crate::{failure::Failure, out};

/// Whether pods are placed by their images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// They are
    On,
    /// They are not
    Off,
}

/// Places pods of manifests by their images, or not, and records whether the choice affects the answer.
pub(crate) struct Placement {
    flag: Option<Switch>,
    has_table: bool,
    rule: PlaceByImage,
    placed: Cell<bool>,
    left: Cell<bool>,
    said: Cell<bool>,
}

impl Placement {
    /// Creates the rule. `flag` is the value of the flag, and `has_table` is whether the user has given a table of images.
    pub(crate) fn new(flag: Option<Switch>, has_table: bool, table: Arc<ImageTable>) -> Self {
        Placement {
            flag,
            has_table,
            rule: PlaceByImage {
                table,
                facts: Arc::new(NameBasedFacts::default()),
                gates_unknown: false,
            },
            placed: Cell::new(false),
            left: Cell::new(false),
            said: Cell::new(false),
        }
    }

    /// Returns the reason why pods are placed by their images; `None` if they are not.
    fn reason(&self, state: &State) -> Option<&'static str> {
        match self.flag {
            Some(Switch::On) => Some("--place-by-image on"),
            Some(Switch::Off) => None,
            None if self.has_table => Some("--images is given"),
            None if state.pod_facts.is_placed_by_image() => Some("pods of the state were"),
            None => None,
        }
    }

    /// Places a new pod as a cluster with this state would. Returns what admission warns of: also where pods are not known to be placed, unless
    /// the user says that they are not, because images may not run where the pod asks to go.
    ///
    /// # Errors
    /// No node can run all of the pod's images, or none of those that the pod may run on.
    pub(super) fn place(&self, state: &State, pod: &mut Value) -> Result<Vec<String>, Failure> {
        let namespace = pod["metadata"]["namespace"].as_str();
        let write = Write {
            user: "mullion-why",
            namespace: namespace.unwrap_or("default"),
            pod,
            old: None,
        };
        let cluster = Objects(state);
        if !is_wanted(&write, &cluster) {
            return Ok(Vec::new());
        }
        let placement = self.rule.place(&write, &cluster);
        let verdict = placement.verdict;
        if self.reason(state).is_none() {
            // A Linux pod without a node selector usually gets where it should, so only Windows images and warnings matter.
            let matters = placement.system == Some(System::Windows) || !verdict.warnings.is_empty();
            self.left.set(self.left.get() || matters);
            return Ok(match self.flag {
                Some(_) => Vec::new(),
                None => verdict.warnings,
            });
        }
        if let Some(Refusal { text, .. }) = verdict.refusal {
            return Err(Failure::input(text));
        }
        self.placed
            .set(self.placed.get() || !verdict.changes.is_empty());
        for change in verdict.changes {
            change.apply(pod);
        }
        Ok(verdict.warnings)
    }

    /// Prints once whether pods were placed by their images, if the other choice could have changed the answer.
    pub(super) fn say(&self, state: &State) {
        let note = match self.reason(state) {
            Some(reason) if self.placed.get() => format!(
                "pods of the manifest are placed by their images ({reason}); --place-by-image off asks without it"
            ),
            None if self.left.get() && self.flag.is_none() => {
                "pods of the manifest are not placed by their images: nothing in the state says that its cluster does so; --place-by-image on places them".to_owned()
            }
            _ => return,
        };
        if !self.said.replace(true) {
            out::note(&note);
        }
    }
}

/// Facts about images that are taken from names only; no registry is asked.
#[derive(Default)]
struct NameBasedFacts {
    /// The taints of Windows nodes; they are the same for all pods of a question.
    taints: OnceLock<Vec<Taint>>,
}

impl Facts for NameBasedFacts {
    fn windows_taints(&self, cluster: &dyn ClusterReader) -> Vec<Taint> {
        self.taints.get_or_init(|| taints::common(cluster)).clone()
    }
}

/// Gives placement access to the objects of a state.
struct Objects<'a>(&'a State);

impl ClusterReader for Objects<'_> {
    fn find(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>> {
        let all = self.list(group, plural, namespace).into_iter();
        let mut found = all.filter(|object| object["metadata"]["name"] == name);
        found.next()
    }

    fn list(&self, group: &str, plural: &str, _: Option<&str>) -> Vec<Arc<Value>> {
        let kind = match (group, plural) {
            ("", "nodes") => return self.nodes(),
            ("", "namespaces") => "Namespace",
            ("karpenter.sh", "nodepools") => "NodePool",
            ("karpenter.k8s.aws", "ec2nodeclasses") => "EC2NodeClass",
            ("node.k8s.io", "runtimeclasses") => "RuntimeClass",
            _ => return Vec::new(),
        };
        // Objects that are kept unabridged can be read as plain JSON, so this cannot fail.
        let objects = self.0.kept::<Value>(kind).unwrap_or_default();
        objects.into_iter().map(Arc::new).collect()
    }

    fn may(&self, _: &ServiceAccount<'_>, _: &Access<'_>) -> Permission {
        Permission::default()
    }
}

impl Objects<'_> {
    fn nodes(&self) -> Vec<Arc<Value>> {
        let nodes = self.0.nodes().map(|node| {
            let taints = node.taints.iter().map(
                |taint| json!({"key": taint.key, "value": taint.value, "effect": taint.effect}),
            );
            json!({
                "metadata": {"name": node.name, "labels": node.labels},
                "spec": {"taints": taints.collect::<Vec<_>>()},
            })
        });
        nodes.map(Arc::new).collect()
    }
}
