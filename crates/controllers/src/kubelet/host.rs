//! One simulated node: its pods, its images, its addresses.
//!
//! A plain struct that is told what the API server says of its pods and answers with [`Step`]s. It never looks at a
//! clock and never talks to anybody; [`super::driver`] does.
//!
//! Invariant: a pod that was taken holds its resources until it is over, and its address until its sandbox is gone.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use mullion_engine::windows::Builds;
use rustc_hash::FxBuildHasher;

use super::{
    addresses::Addresses,
    admit::{self, Occupant},
    images::{ImageRef, ImageTable},
    node::NodeFacts,
    pace::{Delays, Pace},
    pod::{Parts, PodSim, Step},
    pulls::NodeImages,
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
    pods: HashMap<String, Resident, FxBuildHasher>,
}

#[derive(Clone, Debug)]
struct Resident {
    sim: PodSim,
    occupant: Occupant,
}

impl Host {
    /// A node that has booted and runs nothing yet.
    pub fn new(
        facts: NodeFacts,
        addresses: Addresses,
        table: Arc<ImageTable>,
        pace: Pace,
        now: Timestamp,
    ) -> Self {
        let delays = if facts.is_windows() {
            Delays::WINDOWS
        } else {
            Delays::LINUX
        };
        let preloaded = preloaded(&facts, table.builds());
        let mut images = NodeImages::new(table, &facts.os, facts.windows_build, pace, delays);
        for image in preloaded {
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
        }
    }

    /// What the node knows about itself.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// The images it holds.
    pub fn images(&self) -> &NodeImages {
        &self.images
    }

    /// The node's object at the API server, whose labels, taints and allocatable resources count at admission.
    pub fn observe_node(&mut self, node: Arc<Node>) {
        self.node = Some(node);
    }

    /// A pod bound to this node appeared or changed.
    pub fn observe_pod(&mut self, pod: Arc<Pod>, now: Timestamp) -> Step {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if let Some(resident) = self.pods.get_mut(&uid) {
            resident.sim.observe(pod);
        } else {
            let resident = self.take(pod, now);
            self.pods.insert(uid.clone(), resident);
        }
        self.step(&uid, now)
    }

    /// A newer picture of a pod in which nothing changed that its kubelet acts on: keeping it lets the older one go.
    /// `true` if the pod should be stepped all the same.
    pub fn refresh_pod(&mut self, pod: Arc<Pod>) -> bool {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let resident = self.pods.get_mut(uid);
        resident.is_some_and(|resident| resident.sim.observe(pod))
    }

    /// A pod's object is gone.
    pub fn forget_pod(&mut self, uid: &str, now: Timestamp) {
        if let Some(mut resident) = self.pods.remove(uid) {
            let (mut parts, _) = self.parts();
            resident.sim.forget(&mut parts, now);
        }
    }

    /// Does what is due for one pod; nothing if it is not here any more.
    pub fn step(&mut self, uid: &str, now: Timestamp) -> Step {
        let (mut parts, pods) = self.parts();
        pods.get_mut(uid)
            .map(|resident| resident.sim.step(&mut parts, now))
            .unwrap_or_default()
    }

    /// The newest version of a pod that is here.
    pub fn pod(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.pods.get(uid).map(|resident| resident.sim.pod())
    }

    /// Number of pods here, ended ones included.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    fn take(&mut self, pod: Arc<Pod>, now: Timestamp) -> Resident {
        let occupant = pod.spec.as_ref().map(Occupant::of).unwrap_or_default();
        let known_already = pod
            .status
            .as_ref()
            .is_some_and(|status| status.start_time.is_some());
        let others = self
            .pods
            .values()
            .filter(|resident| resident.sim.holds_resources())
            .map(|resident| &resident.occupant);
        let verdict = match &self.node {
            // A kubelet that restarts takes back what it ran; before it knows its node it cannot judge.
            Some(node) if !known_already => {
                admit::admit(&pod, &occupant, node, &self.facts.os, others)
            }
            _ => Ok(()),
        };
        let sim = match verdict {
            Ok(()) => PodSim::accepted(pod, &mut self.parts().0, now),
            Err(rejection) => PodSim::rejected(pod, rejection.reason, rejection.message, now),
        };
        Resident { sim, occupant }
    }

    fn parts(&mut self) -> (Parts<'_>, &mut HashMap<String, Resident, FxBuildHasher>) {
        let parts = Parts {
            facts: &self.facts,
            images: &mut self.images,
            addresses: &mut self.addresses,
            pace: self.pace,
            delays: self.delays,
        };
        (parts, &mut self.pods)
    }
}

/// Images that the AMI brings: on Windows the base images of its build.
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
