//! Hypothetical nodes and pods, which planning adds to the model between a checkpoint and its rollback.
//!
//! They are added by the same primitives as real ones, so filters and views treat them alike.

use super::undo::Undo;
use super::{Cluster, NodeFixed, NodeId, PodId};
use crate::class::{Features, NodeClass, NodeClassId, NodeTaint, PodClassId};
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::resources::Amounts;

impl Cluster {
    /// Adds a hypothetical node. Its labels (without a hostname) and taints are already compiled.
    pub(crate) fn add_virtual(
        &mut self,
        name: &str,
        labels: &LabelSet,
        taints: &[NodeTaint],
        allocatable: Amounts,
    ) -> NodeId {
        let id = self
            .free_nodes
            .last()
            .copied()
            .unwrap_or(NodeId(self.nodes.len() as u32));
        let name = self.names.intern(name);
        let fixed = self.virtual_fixed(id, name, labels, taints, allocatable);
        self.put_node_in(fixed);
        id
    }

    /// Changes the labels and allocatable amounts of a hypothetical node.
    pub(crate) fn reshape_virtual(&mut self, id: NodeId, labels: &LabelSet, allocatable: Amounts) {
        let (name, taints) = (self.at(id).fixed.name, self.at(id).fixed.taints.clone());
        let fixed = self.virtual_fixed(id, name, labels, &taints, allocatable);
        self.replace_fixed(fixed);
    }

    fn virtual_fixed(
        &mut self,
        id: NodeId,
        name: Symbol,
        labels: &LabelSet,
        taints: &[NodeTaint],
        allocatable: Amounts,
    ) -> NodeFixed {
        let class = NodeClass {
            labels: labels.clone(),
            taints: taints.into(),
            unschedulable: false,
            // What its kubelet will declare is not known, and a refusal would keep the pod waiting for no reason.
            features: Features::ALL,
        };
        let (class, _) = self.node_classes.insert_full(class);
        NodeFixed {
            id,
            name,
            class: NodeClassId(class as u32),
            // A name of its own as hostname, because each new node is a domain of its own for rules about hosts.
            labels: labels.with(Symbol::HOSTNAME, name),
            taints: taints.into(),
            unschedulable: false,
            allocatable,
            images: Vec::new(),
        }
    }

    /// Lets pods onto a node again until the open checkpoint is rolled back: clears `spec.unschedulable` and removes
    /// the taint that goes with it.
    pub(crate) fn uncordon(&mut self, id: NodeId) {
        let mut fixed = self.at(id).fixed.clone();
        let taints = fixed.taints.iter().copied();
        // The node lifecycle controller would take the taint away too.
        fixed.taints = taints
            .filter(|taint| taint.key != Symbol::UNSCHEDULABLE)
            .collect();
        fixed.unschedulable = false;
        let class = NodeClass {
            labels: fixed.labels.without(Symbol::HOSTNAME),
            taints: fixed.taints.clone(),
            unschedulable: false,
            features: self.node_classes[fixed.class.index()].features,
        };
        let (class, _) = self.node_classes.insert_full(class);
        fixed.class = NodeClassId(class as u32);
        self.replace_fixed(fixed);
    }

    /// Sets the allocatable amount of an extended resource of a node until the open checkpoint is rolled back.
    pub(crate) fn offer(&mut self, id: NodeId, resource: &str, amount: i64) {
        let resource = self.names.intern(resource);
        let mut fixed = self.at(id).fixed.clone();
        fixed.allocatable.set_scalar(resource, amount);
        self.replace_fixed(fixed);
    }

    /// Cordons a node until the open checkpoint is rolled back.
    pub(crate) fn cordon(&mut self, id: NodeId) {
        let mut fixed = self.at(id).fixed.clone();
        fixed.unschedulable = true;
        let class = NodeClass {
            unschedulable: true,
            ..self.node_classes[fixed.class.index()].clone()
        };
        let (class, _) = self.node_classes.insert_full(class);
        fixed.class = NodeClassId(class as u32);
        self.replace_fixed(fixed);
    }

    /// Moves a pod to a node, or removes it for `None`, until the open checkpoint is rolled back.
    pub(crate) fn rehome(&mut self, id: PodId, to: Option<NodeId>) {
        let mut pod = self.pod(id).clone();
        // Out and in again by the primitives, so that views and loads follow and a rollback undoes both.
        self.take_pod_out(id);
        if let Some(to) = to {
            pod.node_name = self.at(to).fixed.name;
            self.put_pod_in(pod);
        }
    }

    /// Counts a pod of a class on a node, without a pod object, until the open checkpoint is rolled back.
    pub(crate) fn load_logged(&mut self, class: PodClassId, at: NodeId) {
        self.load(class, at, false);
        self.log(Undo::Unload(class, at));
    }
}
