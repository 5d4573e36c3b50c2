//! Room held on nodes for pods that preempted others there.
//!
//! Such a pod is not on the node yet, but pods of lower or equal importance must not take its place.

use super::undo::Undo;
use super::{Cluster, NodeId};
use crate::class::PodClassId;
use crate::error::ModelError;
use crate::intern::Symbol;
use crate::model::PodSpec;

impl Cluster {
    /// Holds room on a node for a pod that preempted others there, until it is bound or [`Cluster::denominate`]d.
    ///
    /// # Errors
    /// The pod asks for a negative amount.
    pub fn nominate(&mut self, spec: &PodSpec, node: &str) -> Result<(), ModelError> {
        let class = self.pod_class(&spec.template)?;
        let key = spec.key();
        self.denominate(&key);
        let node = self.names.intern(node);
        let mut pods = self.nominated.get(&node).cloned().unwrap_or_default();
        pods.push((key.into(), class));
        self.change_nominated(node, pods);
        Ok(())
    }

    /// Gives up the room held for a pod.
    pub fn denominate(&mut self, key: &str) {
        let held = self
            .nominated
            .iter()
            .find(|(_, pods)| pods.iter().any(|(pod, _)| &**pod == key));
        if let Some((&node, pods)) = held {
            let pods = pods
                .iter()
                .filter(|(pod, _)| &**pod != key)
                .cloned()
                .collect();
            self.change_nominated(node, pods);
        }
    }

    /// Nodes with the classes of the pods room is held for, of at least a priority and other than one pod.
    pub(crate) fn held_room(&self, priority: i32, key: &str) -> Vec<(NodeId, Vec<PodClassId>)> {
        let mut held = Vec::new();
        for (name, pods) in &self.nominated {
            let Some(&node) = self.node_by_name.get(name) else {
                continue;
            };
            let counts = |pod: &&(Box<str>, PodClassId)| {
                self.class(pod.1).priority >= priority && &*pod.0 != key
            };
            let classes: Vec<_> = pods.iter().filter(counts).map(|pod| pod.1).collect();
            if !classes.is_empty() {
                held.push((node, classes));
            }
        }
        held
    }

    /// The node on which room is held for a pod.
    pub(crate) fn nominated_node(&self, key: &str) -> Option<NodeId> {
        let held = self
            .nominated
            .iter()
            .find(|(_, pods)| pods.iter().any(|(pod, _)| &**pod == key))?;
        self.node_by_name.get(held.0).copied()
    }

    pub(super) fn change_nominated(&mut self, node: Symbol, pods: Vec<(Box<str>, PodClassId)>) {
        let before = if pods.is_empty() {
            self.nominated.remove(&node)
        } else {
            self.nominated.insert(node, pods)
        };
        self.log(Undo::Nominated(node, before.unwrap_or_default()));
    }
}
