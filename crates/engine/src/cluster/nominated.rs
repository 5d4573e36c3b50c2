//! Nominated pods: room that is held on nodes for pods that preempted others there.
//!
//! A nominated pod is not on the node yet, but pods of lower or equal priority must leave it room.

use super::undo::Undo;
use super::{Cluster, NodeId};
use crate::class::PodClassId;
use crate::error::ModelError;
use crate::intern::Symbol;
use crate::model::PodSpec;

impl Cluster {
    /// Holds room on a node for a nominated pod until the pod is bound or [`Cluster::denominate`]d. No room is held for a finished pod,
    /// whatever its status says, nor for a pod whose scheduler name has no profile: kube-scheduler does not see either of them.
    ///
    /// # Errors
    /// The pod requests a negative amount.
    pub fn nominate(&mut self, spec: &PodSpec, node: &str) -> Result<(), ModelError> {
        let key = spec.key();
        // A pod holds room on one node only.
        self.denominate(&key);
        if spec.finished || !self.knows_scheduler(&spec.template.scheduler_name) {
            return Ok(());
        }
        let class = self.pod_class(&spec.template)?;
        let node = self.names.intern(node);
        let mut pods = self.nominated.get(&node).cloned().unwrap_or_default();
        pods.push((key.into(), class));
        self.change_nominated(node, pods);
        Ok(())
    }

    /// Gives up the room held for a pod.
    pub fn denominate(&mut self, key: &str) {
        if let Some(&node) = self.nominated_at.get(key) {
            let mut pods = self.nominated.get(&node).cloned().unwrap_or_default();
            pods.retain(|(pod, _)| &**pod != key);
            self.change_nominated(node, pods);
        }
    }

    /// Returns the classes of the pods nominated to a node that have at least this priority, without the pod `key`.
    pub(crate) fn held_on(&self, node: NodeId, priority: i32, key: &str) -> Vec<PodClassId> {
        let held = || {
            let name = &self.nodes.get(node.index())?.as_ref()?.fixed.name;
            self.nominated.get(name)
        };
        held().map_or_else(Vec::new, |pods| self.rivals(pods, priority, key))
    }

    fn rivals(&self, held: &[(Box<str>, PodClassId)], priority: i32, key: &str) -> Vec<PodClassId> {
        let rivals = held
            .iter()
            .filter(|(pod, class)| self.class(*class).priority >= priority && **pod != *key);
        rivals.map(|(_, class)| *class).collect()
    }

    /// Returns the existing nodes that pods are nominated to.
    pub(crate) fn nominated_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let nodes = self.nominated.keys();
        nodes.filter_map(|name| self.node_by_name.get(name).copied())
    }

    /// Returns the nodes with nominated pods of at least this priority, without the pod `key`, and the classes of these pods.
    pub(crate) fn held_room(&self, priority: i32, key: &str) -> Vec<(NodeId, Vec<PodClassId>)> {
        let mut held = Vec::new();
        for (name, pods) in &self.nominated {
            let Some(&node) = self.node_by_name.get(name) else {
                continue;
            };
            let classes = self.rivals(pods, priority, key);
            if !classes.is_empty() {
                held.push((node, classes));
            }
        }
        held
    }

    /// Returns whether room is held on any node.
    pub(crate) fn holds_room(&self) -> bool {
        !self.nominated.is_empty()
    }

    /// Returns the keys of the pods for which room is held on a node.
    pub fn nominated_on(&self, node: NodeId) -> impl Iterator<Item = &str> + '_ {
        let name = self.nodes.get(node.index());
        let name = name.and_then(|node| Some(&node.as_ref()?.fixed.name));
        let pods = name.and_then(|name| self.nominated.get(name));
        pods.into_iter().flatten().map(|(key, _)| &**key)
    }

    /// Returns whether a pod is nominated, even to a node that does not exist.
    pub fn is_nominated(&self, key: &str) -> bool {
        self.nominated_at.contains_key(key)
    }

    /// Returns the existing node that a pod is nominated to.
    pub fn nominated_node(&self, key: &str) -> Option<NodeId> {
        self.node_by_name.get(self.nominated_at.get(key)?).copied()
    }

    pub(super) fn change_nominated(&mut self, node: Symbol, pods: Vec<(Box<str>, PodClassId)>) {
        if let Some(id) = self.node_by_name.get(&node) {
            // For boards, held room is load: what the node has left for others changed.
            self.boards.loads.touch(*id);
        }
        // New pods are counted before old ones are released, so that a class in both lists never looks unused.
        for (key, class) in &pods {
            self.nominated_at.insert(key.clone(), node);
            self.use_class(*class);
        }
        let before = if pods.is_empty() {
            self.nominated.remove(&node)
        } else {
            self.nominated.insert(node, pods)
        };
        for (key, class) in before.iter().flatten() {
            let stays = self.nominated.get(&node);
            if !stays.is_some_and(|pods| pods.iter().any(|(kept, _)| kept == key)) {
                self.nominated_at.remove(key);
            }
            self.release_class(*class);
        }
        self.log(Undo::Nominated(node, before.unwrap_or_default()));
    }
}
