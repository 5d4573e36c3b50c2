//! Placement from images: a pod that does not choose its nodes is sent where its images run.
//!
//! The rule intersects the platforms on which the images of all containers run ([`images`]) with the hosts that the
//! pod's own fields allow ([`hosts`]). If the intersection is empty, the pod is refused if that follows from
//! registries, and gets a warning if it is only guessed from image names. Otherwise the result is written into the
//! pod's own fields ([`additions`]), which the scheduler, the provisioner and the address controller read; no other
//! component has to know about images.
//!
//! Invariants: the pod's own choice is never changed; unknown images add nothing; and a call on the rule's own
//! result adds nothing.

mod additions;
mod hosts;
mod images;
mod messages;
pub mod taints;

use std::sync::Arc;

use mullion_api::labels::{self, IMAGE_GATE};
use mullion_engine::images::{ImageRef, ImageTable, Runs, System};
use rustc_hash::FxHashSet;
use serde_json::{Value, json};

use self::images::unread_annotation;
pub use self::images::{Container, ImageFact, Source, containers, pull_secrets};
use self::{additions::Additions, hosts::Allowed};
use super::{ClusterReader, Rule, Verdict, Write, system};

/// A taint of nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// The taint's key.
    pub key: String,
    /// The taint's value; may be empty.
    pub value: String,
    /// The taint's effect, such as `NoSchedule`.
    pub effect: String,
}

/// The facts of the rule that are not objects in the cluster. No method blocks.
pub trait Facts: Send + Sync {
    /// Returns for each image of a pod the platforms from its registry, if the registry was asked with the pod's
    /// pull secrets, which `secrets` looks up. The default implementation knows no registry.
    fn in_registries(
        &self,
        images: &[Option<ImageRef>],
        secrets: &dyn Fn() -> Vec<Arc<Value>>,
    ) -> Vec<Option<Runs>> {
        let _ = secrets;
        vec![None; images.len()]
    }

    /// Returns whether one of these images may become known: its registry can be asked and has not finally refused.
    fn may_be_learnt(&self, images: &[ImageRef], secrets: &dyn Fn() -> Vec<Arc<Value>>) -> bool {
        let _ = (images, secrets);
        false
    }

    /// Returns a recent result of [`taints::common`], because visiting all nodes for every pod would be too
    /// expensive.
    fn windows_taints(&self, cluster: &dyn ClusterReader) -> Vec<Taint>;
}

/// Facts without registries, with the taint that Windows nodes have by convention.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFacts;

impl Facts for NoFacts {
    fn windows_taints(&self, _: &dyn ClusterReader) -> Vec<Taint> {
        vec![usual_taint()]
    }
}

/// Returns the taint that Windows nodes have by convention: `os=windows:NoSchedule`.
pub fn usual_taint() -> Taint {
    Taint {
        key: "os".to_owned(),
        value: labels::OS_WINDOWS.to_owned(),
        effect: "NoSchedule".to_owned(),
    }
}

/// The rule that sends pods where their images run.
#[derive(Clone)]
pub struct PlaceByImage {
    /// The guesses from image names, and which Windows build runs on which.
    pub table: Arc<ImageTable>,
    /// The facts from registries and nodes.
    pub facts: Arc<dyn Facts>,
    /// Whether a pod with unknown images gets the scheduling gate `mullion.dev/image`, which [`crate::image_gate`]
    /// removes.
    pub gates_unknown: bool,
}

/// The result of placing a new pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// The changes and warnings, or the refusal.
    pub verdict: Verdict,
    /// The operating system to which the pod is sent; `None` if unknown.
    pub system: Option<System>,
}

impl Rule for PlaceByImage {
    fn name(&self) -> &'static str {
        "PlaceByImage"
    }

    fn mutate(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        match write.old {
            None if is_wanted(write, cluster) => {
                let Placement {
                    mut verdict,
                    system,
                } = self.place(write, cluster);
                verdict.warnings.extend(unread_annotation(write.pod));
                if self.gates_unknown && system.is_none() && verdict.refusal.is_none() {
                    self.gate(write, cluster, &mut verdict);
                }
                verdict
            }
            // The images of a pod may be updated, its node affinity may not: such an update is only refused
            // or let pass.
            Some(old) if images_differ(old, write.pod) && is_wanted(write, cluster) => {
                self.judge(write, cluster)
            }
            _ => Verdict::default(),
        }
    }
}

/// Converts a verdict without a system.
impl From<Verdict> for Placement {
    fn from(verdict: Verdict) -> Self {
        Placement {
            verdict,
            system: None,
        }
    }
}

/// The platforms on which all containers together run.
struct Common {
    /// The platforms by all facts.
    runs: Runs,
    /// The platforms by certain facts only.
    certain: Runs,
    /// Whether there is a fact about every container.
    is_complete: bool,
}

impl PlaceByImage {
    /// Places the template of a DaemonSet as a pod of it would be placed, because the DaemonSet controller chooses
    /// nodes by the template. `write` contains the template as a pod. A template is never refused, only its pods
    /// are, so a refusal becomes a warning.
    pub fn place_template(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        let is_to_be_placed = write
            .old
            .is_none_or(|old| needs_new_placement(old, write.pod));
        let write = Write {
            old: None,
            ..*write
        };
        if !is_to_be_placed || !is_wanted(&write, cluster) {
            return Verdict::default();
        }
        let mut verdict = self.place(&write, cluster).verdict;
        verdict.warnings.extend(unread_annotation(write.pod));
        if let Some(refusal) = verdict.refusal.take() {
            // Fields written for a pod that would be refused would steer the DaemonSet by a choice that no
            // pod can have.
            verdict.changes.clear();
            verdict.warnings.push(refusal.text);
        }
        verdict
    }

    /// Adds the fields to a new pod that its images require, or refuses the pod.
    pub fn place(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Placement {
        let containers = self.containers(write, cluster);
        let (mut verdict, found) = self.weigh(write, cluster, &containers);
        let Some((runs, allowed, is_complete)) = found else {
            return verdict.into();
        };
        let systems = allowed.systems_that_run(&runs, self.table.builds());
        let system = match systems[..] {
            [system] => system,
            // An unknown image might decide between the two systems, so the default applies only if every image is
            // known.
            [_, _] if is_complete => default_system(write.namespace, cluster),
            _ => return verdict.into(),
        };
        let taints = match system {
            System::Windows => self.facts.windows_taints(cluster),
            System::Linux => Vec::new(),
        };
        let additions = Additions {
            pod: write.pod,
            containers: &containers,
            runs: &runs,
            allowed: &allowed,
            system,
            taints,
            builds: self.table.builds(),
        };
        additions.write(&mut verdict);
        Placement {
            verdict,
            system: Some(system),
        }
    }

    /// Adds the scheduling gate to a pod whose unknown images may become known, unless the pod itself chooses its
    /// system.
    fn gate(&self, write: &Write<'_>, cluster: &dyn ClusterReader, verdict: &mut Verdict) {
        let spec = &write.pod["spec"];
        let gates = items(&spec["schedulingGates"]);
        let has_node = spec["nodeName"]
            .as_str()
            .is_some_and(|name| !name.is_empty());
        let mut systems = System::ALL.into_iter();
        if has_node
            || gates.iter().any(|gate| gate["name"] == IMAGE_GATE)
            || systems.any(|system| system::is_required(spec, system.as_str(), cluster))
        {
            return;
        }
        let containers = self.containers(write, cluster);
        let unknown = containers.iter().filter(|one| one.fact.is_none());
        let unknown: Vec<_> = unknown
            .filter_map(|one| ImageRef::parse(one.image).ok())
            .collect();
        let secrets = || pull_secrets(spec, write.namespace, cluster);
        if self.facts.may_be_learnt(&unknown, &secrets) {
            let mut gates = gates.to_vec();
            gates.push(json!({"name": IMAGE_GATE}));
            verdict.set(&["spec", "schedulingGates"], gates);
        }
    }

    /// Refuses a change of images that leaves no node for the pod.
    fn judge(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        let containers = self.containers(write, cluster);
        self.weigh(write, cluster, &containers).0
    }

    /// Compares the platforms of the images with the hosts that the pod allows. Without a refusal, and if any image
    /// is known, it also returns the platforms by which to place the pod, the allowed hosts, and whether every
    /// image is known.
    fn weigh(
        &self,
        write: &Write<'_>,
        cluster: &dyn ClusterReader,
        containers: &[Container<'_>],
    ) -> (Verdict, Option<(Runs, Allowed, bool)>) {
        let mut verdict = Verdict::default();
        if containers.iter().all(|container| container.fact.is_none()) {
            return (verdict, None);
        }
        let builds = self.table.builds();
        let common = self.common(containers);
        let allowed = Allowed::of_spec(&write.pod["spec"], containers, builds, cluster);
        let fits = |runs: &Runs| !allowed.systems_that_run(runs, builds).is_empty();
        // A pod that excludes every host by its own fields is not in conflict with its images, and is left to
        // the scheduler.
        if allowed.is_empty() || fits(&common.runs) {
            return (verdict, Some((common.runs, allowed, common.is_complete)));
        }
        let sentence = |certain| messages::conflict(containers, &allowed, builds, certain);
        if !fits(&common.certain) {
            return (Verdict::forbidden(sentence(true)), None);
        }
        // Only a guess about the images conflicts. A guess may be wrong, so it never refuses a pod.
        verdict.warnings.push(sentence(false));
        let is_known = containers.iter().any(Container::is_certain);
        (
            verdict,
            is_known.then_some((common.certain, allowed, false)),
        )
    }

    fn common(&self, containers: &[Container<'_>]) -> Common {
        let builds = self.table.builds();
        let facts = |certain: bool| {
            let facts = containers.iter().filter_map(|one| one.fact.as_ref());
            let facts = facts.filter(move |fact| !certain || fact.source.is_certain());
            facts.fold(Runs::anywhere(), |common, fact| {
                common.intersection(&fact.runs, builds)
            })
        };
        Common {
            runs: facts(false),
            certain: facts(true),
            is_complete: containers.iter().all(|one| one.fact.is_some()),
        }
    }

    fn containers<'a>(&self, write: &Write<'a>, cluster: &dyn ClusterReader) -> Vec<Container<'a>> {
        images::containers(
            write.pod,
            write.namespace,
            &self.table,
            &*self.facts,
            cluster,
        )
    }
}

/// Returns the valid images of a pod spec, each once.
pub fn images_of(spec: &Value) -> Vec<ImageRef> {
    let mut seen = FxHashSet::default();
    images::of(spec)
        .filter_map(|(container, _)| ImageRef::parse(container["image"].as_str()?).ok())
        .filter(|image| seen.insert(image.clone()))
        .collect()
}

/// Returns whether placement from images is enabled for a pod: by the pod's label, or else the label of its
/// namespace. It is disabled in kube-system.
pub fn is_wanted(write: &Write<'_>, cluster: &dyn ClusterReader) -> bool {
    let metadata = &write.pod["metadata"];
    // A mirror pod only shows what a kubelet already runs from a file, so nothing can be decided about it.
    if metadata["annotations"]["kubernetes.io/config.mirror"].is_string() {
        return false;
    }
    let label = |object: &Value| match object["metadata"]["labels"][labels::PLACE_BY_IMAGE].as_str()
    {
        Some("false") => Some(false),
        Some("true") => Some(true),
        _ => None,
    };
    let of_namespace = || {
        let namespace = cluster.find("", "namespaces", None, write.namespace)?;
        label(&namespace)
    };
    label(write.pod)
        .or_else(of_namespace)
        // A wrong guess about a system pod could stop the cluster, so there the label has to ask for it.
        .unwrap_or(write.namespace != "kube-system")
}

/// Returns whether a changed template is placed again. Facts that were learned about images meanwhile must not
/// cause a rollout when another field changes.
fn needs_new_placement(old: &Value, template: &Value) -> bool {
    let was_placed = old["metadata"]["annotations"][labels::PLACED_BY_IMAGE].is_string();
    was_placed || images_of(&old["spec"]) != images_of(&template["spec"])
}

/// Returns the operating system of pods whose images run on both: that of the namespace's label, or else Linux.
fn default_system(namespace: &str, cluster: &dyn ClusterReader) -> System {
    let namespace = cluster.find("", "namespaces", None, namespace);
    let label = namespace
        .as_ref()
        .and_then(|namespace| namespace["metadata"]["labels"][labels::DEFAULT_OS].as_str());
    label.and_then(System::of_label).unwrap_or(System::Linux)
}

/// Returns whether two versions of a pod have different images.
fn images_differ(old: &Value, new: &Value) -> bool {
    let images = |pod: &Value| -> Vec<(String, String)> {
        let all = images::of(&pod["spec"]);
        all.map(|(container, _)| {
            let text = |field: &str| container[field].as_str().unwrap_or_default().to_owned();
            (text("name"), text("image"))
        })
        .collect()
    };
    images(old) != images(new)
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}
