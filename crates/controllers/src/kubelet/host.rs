//! One simulated node: its pods, its images, its addresses.
//!
//! A plain struct: it receives changes of its pods and returns [`Step`]s. It has no clock and does no I/O; [`super::driver`]
//! does both.
//!
//! Invariant: an accepted pod holds its resources until it has ended, and its address until its sandbox is removed.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use mullion_engine::{
    images::{ImageRef, System},
    model::Quantity,
    windows::Builds,
};
use rustc_hash::FxBuildHasher;

use super::{
    addresses::Addresses,
    admit::{self, Occupant, Occupied},
    config::FoundObjects,
    node::NodeFacts,
    pace::{Delays, Pace},
    pod::{LookupPurpose, Parts, PodSim, Step},
    pulls::{ImageSources, NodeImages},
};

/// One simulated node.
#[derive(Debug)]
pub struct Host {
    facts: NodeFacts,
    node: Option<Arc<Node>>,
    images: NodeImages,
    addresses: Addresses,
    pace: Pace,
    delays: Delays,
    pods: HashMap<Arc<str>, PodSim, FxBuildHasher>,
    occupied: Occupied,
    /// Whether the pods of a Windows node use more memory than is allocatable.
    is_paging: bool,
    /// The uids of pods that wait for a resize.
    waiting: Vec<Arc<str>>,
    /// See [`Host::take_resized`].
    resized: Vec<Arc<str>>,
}

impl Host {
    /// Creates a node that has booted and has no pods.
    pub fn new(
        facts: NodeFacts,
        addresses: Addresses,
        knowledge: ImageSources,
        pace: Pace,
        now: Timestamp,
    ) -> Self {
        let (system, delays) = if facts.is_windows() {
            (System::Windows, Delays::WINDOWS)
        } else {
            (System::Linux, Delays::LINUX)
        };
        let delays = delays.pulling_at(facts.pull_speed);
        let preloaded = preloaded(&facts, knowledge.table.builds());
        let build = facts.windows_build;
        let mut images = NodeImages::new(knowledge, system, &facts.arch, build, pace, delays)
            .on_kernel(&facts.kernel_version);
        for image in preloaded {
            // Windows AMIs contain the base images, which is why pods on them start without the longest part
            // of the pull.
            images.adopt(&image, now);
        }
        Self {
            facts,
            node: None,
            images,
            addresses,
            pace,
            delays,
            pods: HashMap::default(),
            occupied: Occupied::default(),
            is_paging: false,
            waiting: Vec::new(),
            resized: Vec::new(),
        }
    }

    /// Returns the facts about the node.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// Returns the images of the node.
    pub fn images(&self) -> &NodeImages {
        &self.images
    }

    /// Sums the memory that pods use, and returns whether it exceeds the allocatable memory, so that the node pages. Only
    /// Windows nodes page.
    pub fn look_at_memory(&mut self) -> bool {
        if self.facts.is_windows() {
            let there = self.facts.allocatable.get("memory");
            let there = there.and_then(|text| text.parse().ok());
            let there = there.map_or(i64::MAX, |amount: Quantity| amount.value());
            let running = self.pods.values().filter(|sim| sim.holds_resources());
            let used = running
                .map(PodSim::memory_used)
                .fold(0, i64::saturating_add);
            self.is_paging = used > there;
        }
        self.is_paging
    }

    /// Stores the Node object, whose labels, taints and allocatable resources matter for admission, and decides waiting
    /// resizes again.
    pub fn observe_node(&mut self, node: Arc<Node>, now: Timestamp) {
        self.node = Some(node);
        self.decide_resizes(now);
    }

    /// Processes a pod that was bound to this node or has changed.
    pub fn observe_pod(&mut self, pod: Arc<Pod>, now: Timestamp) -> Step {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let known = self.pods.get(uid).map(|sim| Arc::clone(sim.uid()));
        let uid = match known {
            Some(uid) => {
                self.refresh_pod(pod, now);
                uid
            }
            None => {
                let sim = self.take(pod, now);
                let uid = Arc::clone(sim.uid());
                self.pods.insert(Arc::clone(&uid), sim);
                self.decide_resizes(now);
                uid
            }
        };
        self.step(&uid, now)
    }

    /// Stores a newer version of a pod, which releases the older one. Returns `true` if the pod needs a step although its
    /// spec has not changed.
    pub fn refresh_pod(&mut self, pod: Arc<Pod>, now: Timestamp) -> bool {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let Some(sim) = self.pods.get_mut(uid) else {
            return false;
        };
        // The resources of a running pod may have been resized in place.
        let resized =
            // Only a new generation can change resources; comparing specs at every update would cost more.
            sim.holds_resources() && sim.pod().metadata.generation != pod.metadata.generation;
        let had = resized.then(|| occupant(sim.granted()));
        let step = sim.observe(pod);
        if let Some(had) = had {
            self.occupied.remove(&had);
            self.occupied.add(&occupant(sim.granted()));
            if sim.wants_resize() {
                let uid = Arc::clone(sim.uid());
                self.waiting.retain(|waiting| *waiting != uid);
                self.waiting.push(uid);
            }
            self.decide_resizes(now);
        }
        step
    }

    /// Returns the pods whose resize was granted or refused since the last call; each needs a step.
    pub fn take_resized(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.resized)
    }

    /// Grants waiting resizes as far as there is room, pods of higher priority first. The kubelet retries when a pod was
    /// resized, has ended or was removed, and every few minutes. Nothing is decided before the Node object is known.
    fn decide_resizes(&mut self, now: Timestamp) {
        let Some(node) = self.node.as_ref().filter(|_| !self.waiting.is_empty()) else {
            return;
        };
        let mut waiting = std::mem::take(&mut self.waiting);
        let priority = |uid: &Arc<str>| {
            let spec = self.pods.get(uid).and_then(|sim| sim.pod().spec.as_ref());
            Reverse(spec.and_then(|spec| spec.priority).unwrap_or_default())
        };
        // The sort is stable: among equal priorities the resize that has waited longest comes first.
        waiting.sort_by_key(priority);
        for uid in waiting {
            let sim = self.pods.get_mut(&uid);
            let Some(sim) = sim.filter(|sim| sim.wants_resize() && sim.holds_resources()) else {
                continue;
            };
            self.occupied.remove(&occupant(sim.granted()));
            // The pod's present resources were removed above: the resized pod replaces them, so they must not count
            // against it.
            let verdict = admit::resize(&occupant(sim.pod()), &self.occupied, node);
            if sim.decide_resize(verdict, now) {
                self.resized.push(Arc::clone(&uid));
            }
            self.occupied.add(&occupant(sim.granted()));
            if sim.wants_resize() {
                self.waiting.push(uid);
            }
        }
    }

    /// Drops a pod whose object was deleted.
    pub fn forget_pod(&mut self, uid: &str, now: Timestamp) {
        if let Some(mut sim) = self.pods.remove(uid) {
            if sim.holds_resources() {
                self.occupied.remove(&occupant(sim.granted()));
            }
            sim.forget(&mut self.parts().0, now);
            self.decide_resizes(now);
        }
    }

    /// Passes the answer of a lookup to a pod, which uses it in its next step.
    pub fn answer(&mut self, uid: &str, purpose: LookupPurpose, found: FoundObjects) {
        if let Some(sim) = self.pods.get_mut(uid) {
            sim.answer(purpose, found);
        }
    }

    /// Steps one pod; does nothing if the pod is not on the node any more.
    pub fn step(&mut self, uid: &str, now: Timestamp) -> Step {
        let (mut parts, pods) = self.parts();
        let Some(sim) = pods.get_mut(uid) else {
            return Step::default();
        };
        let held = sim.holds_resources();
        let step = sim.step(&mut parts, now);
        // Room that a step has freed is offered to waiting resizes at once, as the kubelet does when a pod
        // ends.
        if held && !sim.holds_resources() {
            let gone = occupant(sim.granted());
            self.occupied.remove(&gone);
            self.decide_resizes(now);
        }
        step
    }

    /// Returns the state machine of a pod.
    pub fn sim(&self, uid: &str) -> Option<&PodSim> {
        self.pods.get(uid)
    }

    /// Returns the newest version of a pod.
    pub fn pod(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.pods.get(uid).map(PodSim::pod)
    }

    /// Returns the number of pods, including ended ones.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    fn take(&mut self, pod: Arc<Pod>, now: Timestamp) -> PodSim {
        let needs = occupant(&pod);
        let known_already = pod
            .status
            .as_ref()
            .is_some_and(|status| status.start_time.is_some());
        let verdict = match &self.node {
            // A restarted kubelet keeps the pods that it ran before; a kubelet that does not know its node yet cannot check
            // a pod.
            Some(node) if !known_already => {
                admit::admit(&pod, &needs, node, &self.facts.os, &self.occupied)
            }
            _ => Ok(()),
        };
        let sim = match verdict {
            Ok(()) => PodSim::accepted(pod, &mut self.parts().0, now),
            Err(rejection) => PodSim::rejected(pod, rejection, now),
        };
        if sim.holds_resources() {
            self.occupied.add(&occupant(sim.granted()));
        }
        if sim.wants_resize() {
            self.waiting.push(Arc::clone(sim.uid()));
        }
        sim
    }

    fn parts(&mut self) -> (Parts<'_>, &mut HashMap<Arc<str>, PodSim, FxBuildHasher>) {
        let parts = Parts {
            facts: &self.facts,
            images: &mut self.images,
            addresses: &mut self.addresses,
            pace: self.pace,
            delays: if self.is_paging {
                self.delays.while_paging()
            } else {
                self.delays
            },
        };
        (parts, &mut self.pods)
    }
}

fn occupant(pod: &Pod) -> Occupant {
    pod.spec.as_ref().map(Occupant::of).unwrap_or_default()
}

/// Returns the images that are part of the AMI: on Windows the base images of its build.
fn preloaded(facts: &NodeFacts, builds: &Builds) -> Vec<ImageRef> {
    let release = facts.windows_build.and_then(|build| builds.release(build));
    let Some(tag) = release.and_then(|release| release.tags.first()) else {
        return Vec::new();
    };
    let bases = ["nanoserver", "servercore"];
    bases
        .iter()
        .filter_map(|base| ImageRef::parse(&format!("mcr.microsoft.com/windows/{base}:{tag}")).ok())
        .collect()
}
