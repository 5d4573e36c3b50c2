//! Removal of nodes: is a node empty, and would its pods find another place?
//!
//! Questions run on the cluster itself between a checkpoint and its rollback, so their cost depends on the node's pods. This module decides which
//! pods do not count (DaemonSets); disruption budgets and grace periods are the caller's. `consolidate` finds the nodes to remove to lower the
//! price, and what to buy instead.

mod answer;
mod balance;
mod consolidate;
mod question;
mod relocate;
mod worth;

pub use answer::{Move, Moves, StayReason};
pub use balance::{BALANCED_K, Balance, Score};
pub use question::{Candidate, Consolidation, PoolTerms};

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId, PodId};
use crate::error::ModelError;
use crate::schedule::{Decision, Unschedulable};

/// What happens to a node's pods if the node is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The node has only DaemonSet pods and terminating pods.
    Empty,
    /// Every pod has another place: pod key and node name.
    Movable(Vec<(String, String)>),
    /// These pods have no other place.
    Stuck(Vec<(String, Unschedulable)>),
}

impl Cluster {
    /// Returns whether a node has only DaemonSet pods and terminating pods.
    ///
    /// # Errors
    /// There is no node of that name.
    pub fn is_empty(&self, node: &str) -> Result<bool, ModelError> {
        let id = self
            .node(node)
            .ok_or_else(|| ModelError::UnknownNode(node.to_owned()))?;
        Ok(self.movable_pods(id).is_empty())
    }

    /// Returns what would happen to the pods of a node if it were removed. The cluster is unchanged when this returns.
    ///
    /// # Errors
    /// There is no node of that name.
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
                // The pod counts on its new node for the pods after it; two must not be promised the same room.
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

    /// Removes nodes with their pods; returns the pods that need another place.
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

    /// Returns the key and class of the pods that need another place, the largest first.
    fn movable_pods(&self, id: NodeId) -> Vec<(String, PodClassId)> {
        let pods = self.movable(id).into_iter().map(|pod| self.pod(pod));
        pods.map(|pod| (pod.key().to_owned(), pod.class)).collect()
    }

    /// Returns the ids of the pods that need another place, the largest first.
    fn movable(&self, id: NodeId) -> Vec<PodId> {
        // Pods of DaemonSets and mirror pods of static ones (owner `Node`) go with the node and are not moved.
        let comes_with_its_node = |class| {
            let owner = self.template(class).owner.as_ref();
            owner.is_some_and(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"))
        };
        let pods = self.at(id).pods.iter().copied();
        let mut pods: Vec<PodId> = pods
            .filter(|pod| {
                let pod = self.pod(*pod);
                // A terminating pod leaves anyway, and whatever replaces it is a pod of its own.
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
