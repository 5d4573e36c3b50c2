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
    /// Holds room on a node for a pod that preempted others there, until it is bound or [`Cluster::denominate`]d. A pod that has
    /// finished holds none, whatever its status still says: kube-scheduler does not see it any more. Neither does it see pods of a scheduler
    /// name that no profile has.
    ///
    /// # Errors
    /// The pod asks for a negative amount.
    pub fn nominate(&mut self, spec: &PodSpec, node: &str) -> Result<(), ModelError> {
        let key = spec.key();
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

    /// The classes of the pods room is held for on a node, of at least a priority and other than one pod.
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

    /// Nodes on which room is held.
    pub(crate) fn nominated_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let nodes = self.nominated.keys();
        nodes.filter_map(|name| self.node_by_name.get(name).copied())
    }

    /// Nodes with the classes of the pods room is held for, of at least a priority and other than one pod.
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

    /// Whether room is held anywhere.
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

    /// Whether room is held for a pod, on a node that is there or not.
    pub fn is_nominated(&self, key: &str) -> bool {
        self.nominated_at.contains_key(key)
    }

    /// The node on which room is held for a pod.
    pub fn nominated_node(&self, key: &str) -> Option<NodeId> {
        self.node_by_name.get(self.nominated_at.get(key)?).copied()
    }

    pub(super) fn change_nominated(&mut self, node: Symbol, pods: Vec<(Box<str>, PodClassId)>) {
        if let Some(id) = self.node_by_name.get(&node) {
            self.boards.loads.touch(*id);
        }
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
