//! Can this node go? Is it empty, and would its pods find another place?
//!
//! What-ifs run on the cluster itself between checkpoint and rollback, so asking costs what the node's pods cost.
//! Which pods do not count (DaemonSets) is decided here; budgets and grace are the shell's. Which nodes should go so that less is paid, and what to
//! buy in their place, is said by `consolidate`.

mod answer;
mod consolidate;
mod question;
mod relocate;
mod worth;

pub use answer::{Move, Moves, Stays};
pub use question::{Balance, Candidate, Consolidation, PoolTerms};
pub use worth::BALANCED_K;

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId, PodId};
use crate::error::ModelError;
use crate::schedule::{Decision, Unschedulable};

/// What happens to a node's pods if it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Nothing but DaemonSet pods and pods on their way out are there.
    Empty,
    /// All pods find another place: pod key and node name.
    Movable(Vec<(String, String)>),
    /// These pods would find none.
    Stuck(Vec<(String, Unschedulable)>),
}

impl Cluster {
    /// Whether only DaemonSet pods and pods on their way out are on a node.
    ///
    /// # Errors
    /// No node of that name is there.
    pub fn is_empty(&self, node: &str) -> Result<bool, ModelError> {
        let id = self
            .node(node)
            .ok_or_else(|| ModelError::UnknownNode(node.to_owned()))?;
        Ok(self.movable_pods(id).is_empty())
    }

    /// What would happen to the pods of a node if it went. The cluster is as before when this returns.
    ///
    /// # Errors
    /// No node of that name is there.
    pub fn without_node(&mut self, node: &str, seed: u64) -> Result<Removal, ModelError> {
        let id = self
            .node(node)
            .ok_or_else(|| ModelError::UnknownNode(node.to_owned()))?;
        let pods = self.movable_pods(id);
        if pods.is_empty() {
            return Ok(Removal::Empty);
        }
        let checkpoint = self.checkpoint();
        self.take_node_out(id);
        let mut moved = Vec::new();
        let mut stuck = Vec::new();
        for (key, class) in pods {
            match self.schedule_key(class, &key, seed) {
                Decision::Node(to) => {
                    self.load_logged(class, to);
                    moved.push((key, self.node_name(to).to_owned()));
                }
                Decision::Unschedulable(why) => stuck.push((key, why)),
            }
        }
        self.rollback(checkpoint);
        Ok(if stuck.is_empty() {
            Removal::Movable(moved)
        } else {
            Removal::Stuck(stuck)
        })
    }

    /// Takes nodes out, with their pods; gives the pods that need another place.
    fn take_out(&mut self, nodes: impl Iterator<Item = NodeId>) -> Vec<(String, PodClassId)> {
        let mut taken = Vec::new();
        for id in nodes {
            let pods = self.movable(id);
            self.take_node_out(id);
            for pod in pods {
                taken.push((self.pod(pod).key().to_owned(), self.pod(pod).class));
                self.rehome(pod, None);
            }
        }
        taken
    }

    /// Pods that need another place, the largest first.
    fn movable_pods(&self, id: NodeId) -> Vec<(String, PodClassId)> {
        let pods = self.movable(id).into_iter().map(|pod| self.pod(pod));
        pods.map(|pod| (pod.key().to_owned(), pod.class)).collect()
    }

    /// As [`Cluster::movable_pods`]: which pods they are.
    fn movable(&self, id: NodeId) -> Vec<PodId> {
        let comes_with_its_node = |class| {
            let owner = self.template(class).owner.as_ref();
            owner.is_some_and(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"))
        };
        let pods = self.at(id).pods.iter().copied();
        let mut pods: Vec<PodId> = pods
            .filter(|pod| {
                let pod = self.pod(*pod);
                !pod.terminating && !comes_with_its_node(pod.class)
            })
            .collect();
        pods.sort_by_cached_key(|pod| {
            let pod = self.pod(*pod);
            let requests = &self.class(pod.class).shape.requests.real;
            (
                std::cmp::Reverse((requests.cpu_milli, requests.memory_bytes)),
                pod.key().to_owned(),
            )
        });
        pods
    }
}
