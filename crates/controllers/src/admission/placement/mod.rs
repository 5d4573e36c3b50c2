//! Placement from images: a pod that does not say where it runs is sent where its images run.
//!
//! The rule intersects what the images of all containers run on ([`images`]) with what the pod's own fields allow ([`hosts`]). A pod that
//! no node can run is refused where registries said so, and warned about where names of images suggest it. What is left is written into the
//! pod's own fields ([`additions`]), which the scheduler, the provisioner and the address controller read; nobody else has to know images.
//!
//! Invariants: the pod's own choice is never changed; whoever knows nothing adds nothing; asked again about its own result, the rule adds
//! nothing.

mod additions;
mod hosts;
mod images;
mod sentences;
pub mod taints;

use std::sync::Arc;

use mullion_api::labels::{self, IMAGE_GATE};
use mullion_engine::images::{ImageRef, ImageTable, Runs, System};
use rustc_hash::FxHashSet;
use serde_json::{Value, json};

pub use self::images::{Container, Fact, Source, containers, pull_secrets};
use self::{additions::Additions, hosts::Allowed};
use super::{ClusterReader, Rule, Verdict, Write, system};

/// A taint of nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value; may be empty.
    pub value: String,
    /// As `NoSchedule`.
    pub effect: String,
}

/// What the rule knows beyond the cluster's objects. Nothing here waits.
pub trait Facts: Send + Sync {
    /// Returns for each image of a pod what its registry has said it runs on, if it has been asked with the pod's pull secrets, which
    /// `secrets` looks up. Whoever knows no registry leaves this as it is.
    fn in_registries(
        &self,
        images: &[Option<ImageRef>],
        secrets: &dyn Fn() -> Vec<Arc<Value>>,
    ) -> Vec<Option<Runs>> {
        let _ = secrets;
        vec![None; images.len()]
    }

    /// Returns whether one of these images may become known: its registry may be asked and has not refused for good.
    fn may_be_learnt(&self, images: &[ImageRef], secrets: &dyn Fn() -> Vec<Arc<Value>>) -> bool {
        let _ = (images, secrets);
        false
    }

    /// Returns what [`taints::common`] says, as of a moment ago: to look at all nodes for every pod would cost too much.
    fn windows_taints(&self, cluster: &dyn ClusterReader) -> Vec<Taint>;
}

/// Knows no registry, and the taint that Windows nodes have by custom.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFacts;

impl Facts for NoFacts {
    fn windows_taints(&self, _: &dyn ClusterReader) -> Vec<Taint> {
        vec![usual_taint()]
    }
}

/// Returns the taint that Windows nodes have by custom: `os=windows:NoSchedule`.
pub fn usual_taint() -> Taint {
    Taint {
        key: "os".to_owned(),
        value: labels::OS_WINDOWS.to_owned(),
        effect: "NoSchedule".to_owned(),
    }
}

/// Sends pods where their images run.
#[derive(Clone)]
pub struct PlaceByImage {
    /// What names of images suggest, and which Windows build runs where.
    pub table: Arc<ImageTable>,
    /// What registries and nodes say.
    pub facts: Arc<dyn Facts>,
    /// Whether a pod of unknown images gets the scheduling gate `mullion.dev/image`, which [`crate::image_gate`] removes.
    pub gates_unknown: bool,
}

/// The result of placing a new pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Changes, warnings, or the refusal.
    pub verdict: Verdict,
    /// The system that the pod goes to; `None` if it is not known.
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
                if self.gates_unknown && system.is_none() && verdict.refusal.is_none() {
                    self.gate(write, cluster, &mut verdict);
                }
                verdict
            }
            Some(old) if images_differ(old, write.pod) && is_wanted(write, cluster) => {
                self.judge(write, cluster)
            }
            _ => Verdict::default(),
        }
    }
}

/// A placement that leads to no system.
impl From<Verdict> for Placement {
    fn from(verdict: Verdict) -> Self {
        Placement {
            verdict,
            system: None,
        }
    }
}

/// What all containers together run on.
struct Common {
    /// By all that is known.
    runs: Runs,
    /// By what is certain alone.
    certain: Runs,
    /// Whether something is known of every container.
    is_complete: bool,
}

impl PlaceByImage {
    /// Places the template of a DaemonSet, whose controller chooses nodes by it, as a pod of it would be placed. `write` is the template as a
    /// pod. A template is never refused, its pods are: what stands against it becomes a warning.
    pub fn place_template(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        let is_to_be_placed = write.old.is_none_or(|old| is_placed_anew(old, write.pod));
        let write = Write {
            old: None,
            ..*write
        };
        if !is_to_be_placed || !is_wanted(&write, cluster) {
            return Verdict::default();
        }
        let mut verdict = self.place(&write, cluster).verdict;
        if let Some(refusal) = verdict.refusal.take() {
            verdict.changes.clear();
            verdict.warnings.push(refusal.text);
        }
        verdict
    }

    /// Adds to a new pod what its images need, or refuses it.
    pub fn place(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Placement {
        let containers = self.containers(write, cluster);
        let (mut verdict, found) = self.weigh(write, cluster, &containers);
        let Some((runs, allowed, is_complete)) = found else {
            return verdict.into();
        };
        let systems = allowed.systems_that_run(&runs, self.table.builds());
        let system = match systems[..] {
            [system] => system,
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

    /// Adds the scheduling gate to a pod whose unknown images may become known, unless the pod itself says where it runs.
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

    /// Refuses a change of images that leaves the pod no node.
    fn judge(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        let containers = self.containers(write, cluster);
        self.weigh(write, cluster, &containers).0
    }

    /// Holds what the images run on against what the pod allows. Without a refusal, and if anything is known, returns also what to place
    /// the pod by, where the pod allows itself to run, and whether something is known of every container.
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
        let allowed = Allowed::by(&write.pod["spec"], containers, builds, cluster);
        let fits = |runs: &Runs| !allowed.systems_that_run(runs, builds).is_empty();
        if allowed.is_empty() || fits(&common.runs) {
            return (verdict, Some((common.runs, allowed, common.is_complete)));
        }
        let sentence = |certain| sentences::conflict(containers, &allowed, builds, certain);
        if !fits(&common.certain) {
            return (Verdict::forbidden(sentence(true)), None);
        }
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

/// Returns the images of a pod spec that can be asked for, each once.
pub fn images_of(spec: &Value) -> Vec<ImageRef> {
    let mut seen = FxHashSet::default();
    images::of(spec)
        .filter_map(|(container, _)| ImageRef::parse(container["image"].as_str()?).ok())
        .filter(|image| seen.insert(image.clone()))
        .collect()
}

/// Returns whether placement from images is on for a pod: the label of the pod decides, then the one of its namespace; kube-system is out.
pub fn is_wanted(write: &Write<'_>, cluster: &dyn ClusterReader) -> bool {
    let metadata = &write.pod["metadata"];
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
        .unwrap_or(write.namespace != "kube-system")
}

/// Whether a changed template is placed anew: what is learnt of images meanwhile must not start a rollout when something else is written.
fn is_placed_anew(old: &Value, template: &Value) -> bool {
    let was_placed = old["metadata"]["annotations"][labels::PLACED_BY_IMAGE].is_string();
    was_placed || images_of(&old["spec"]) != images_of(&template["spec"])
}

/// Returns where pods run whose images run on both systems: what the namespace's label says, else Linux.
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
