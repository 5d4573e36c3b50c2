//! The deltas: nodes and pods coming, changing and going.
//!
//! Four primitives do all of it (put and take, for nodes and pods), each the inverse of another; the public methods
//! check their input, then use them. A pod may arrive before its node and may outlive it.

use super::pod::{PodKey, PodLifecycle};
use super::undo::Undo;
use super::{Cluster, ImageHolders, Node, NodeFixed, NodeId, Pod, PodId};
use crate::class::{NodeClass, NodeClassId, PodClassId};
use crate::error::ModelError;
use crate::labels::LabelSet;
use crate::model::{NodeSpec, PodSpec};
use crate::resources::Amounts;
use crate::topology::PodPresence;

impl Cluster {
    /// Adds a node; pods that were bound to its name before are on it at once.
    ///
    /// # Errors
    /// A node of that name is there, has no name, or offers a negative amount.
    pub fn add_node(&mut self, spec: &NodeSpec) -> Result<NodeId, ModelError> {
        if self.node(&spec.name).is_some() {
            return Err(ModelError::DuplicateNode(spec.name.clone()));
        }
        let id = self
            .free_nodes
            .last()
            .copied()
            .unwrap_or(NodeId(self.nodes.len() as u32));
        let fixed = self.compile_node(id, spec)?;
        self.put_node_in(fixed);
        Ok(id)
    }

    /// Changes what is known about a node; its pods stay.
    ///
    /// # Errors
    /// No node of that name is there, or it offers a negative amount.
    pub fn update_node(&mut self, spec: &NodeSpec) -> Result<NodeId, ModelError> {
        let id = self
            .node(&spec.name)
            .ok_or_else(|| ModelError::UnknownNode(spec.name.clone()))?;
        let fixed = self.compile_node(id, spec)?;
        if self.at(id).fixed != fixed {
            self.replace_fixed(fixed);
        }
        Ok(id)
    }

    /// Adds a node or changes what is known about it.
    ///
    /// # Errors
    /// It has no name or offers a negative amount.
    pub fn set_node(&mut self, spec: &NodeSpec) -> Result<NodeId, ModelError> {
        if self.node(&spec.name).is_some() {
            self.update_node(spec)
        } else {
            self.add_node(spec)
        }
    }

    /// Removes a node. Its pods stay known and come back with it.
    ///
    /// # Errors
    /// No node of that name is there.
    pub fn remove_node(&mut self, name: &str) -> Result<(), ModelError> {
        let id = self
            .node(name)
            .ok_or_else(|| ModelError::UnknownNode(name.to_owned()))?;
        self.take_node_out(id);
        Ok(())
    }

    /// Adds a pod that is bound (`node_name` is set). A finished pod occupies nothing and is not added.
    ///
    /// # Errors
    /// The pod is there, has no name, is not bound, or asks for a negative amount.
    pub fn add_pod(&mut self, spec: &PodSpec) -> Result<(), ModelError> {
        let node = spec
            .node_name
            .as_deref()
            .ok_or_else(|| ModelError::NotBound(spec.key()))?;
        self.bind(spec, node)
    }

    /// [`Cluster::add_pod`] for a caller that needs the pod no more, which spares copying its template.
    ///
    /// # Errors
    /// Those of [`Cluster::add_pod`].
    pub fn take_pod(&mut self, spec: PodSpec) -> Result<(), ModelError> {
        let Some(node) = &spec.node_name else {
            return Err(ModelError::NotBound(spec.key()));
        };
        if spec.name.is_empty() && spec.uid.is_empty() {
            return Err(ModelError::NoName);
        }
        let (pod_key, lifecycle) = (PodKey::of(&spec), PodLifecycle::of(&spec));
        let class = self.class_of(spec.template)?;
        self.bind_class(pod_key, lifecycle, class, node)
    }

    /// Adds a pod as bound to a node, whatever its `node_name` says: what a scheduler does with its decision.
    ///
    /// # Errors
    /// The pod is there, has no name, or asks for a negative amount.
    pub fn bind(&mut self, spec: &PodSpec, node: &str) -> Result<(), ModelError> {
        if spec.name.is_empty() && spec.uid.is_empty() {
            return Err(ModelError::NoName);
        }
        let class = self.pod_class(&spec.template)?;
        self.bind_class(PodKey::of(spec), PodLifecycle::of(spec), class, node)
    }

    /// [`Cluster::bind`] for a caller that knows the class and the node already: the shortest way to carry out a
    /// decision. The pod has just been made; an empty `uid` leaves it its name as key.
    ///
    /// # Errors
    /// The pod is there, has no name, or the node is gone.
    pub fn place(
        &mut self,
        class: PodClassId,
        uid: &str,
        name: &str,
        node: NodeId,
    ) -> Result<(), ModelError> {
        if name.is_empty() && uid.is_empty() {
            return Err(ModelError::NoName);
        }
        let pod_key = PodKey::new(uid, self.names.text(self.class(class).namespace), name);
        // Both are far away in memory in large clusters; asked for one after the other they come together.
        let there = self.nodes.get(node.index()).and_then(Option::as_ref);
        let known = self.pods.find(pod_key.key());
        let Some(there) = there else {
            return Err(ModelError::UnknownNode(String::new()));
        };
        if known.is_some() {
            return Err(ModelError::DuplicatePod(pod_key.key().to_owned()));
        }
        let node_name = there.fixed.name;
        self.denominate(pod_key.key());
        self.put_pod_on(Some(node), Pod::new(pod_key, class, node_name));
        Ok(())
    }

    /// [`Cluster::bind`] for a caller that knows the class already.
    ///
    /// # Errors
    /// The pod is there.
    fn bind_class(
        &mut self,
        pod_key: PodKey,
        lifecycle: PodLifecycle,
        class: PodClassId,
        node: &str,
    ) -> Result<(), ModelError> {
        if self.pods.find(pod_key.key()).is_some() {
            return Err(ModelError::DuplicatePod(pod_key.key().to_owned()));
        }
        if lifecycle.finished {
            return Ok(());
        }
        self.denominate(pod_key.key());
        let mut pod = Pod::new(pod_key, class, self.names.intern(node));
        pod.terminating = lifecycle.terminating;
        pod.preempted = lifecycle.preempted;
        pod.start_time = lifecycle.start_time;
        self.put_pod_in(pod);
        Ok(())
    }

    /// Adds a bound pod or changes what is known about it; a finished one is removed.
    ///
    /// # Errors
    /// It has no name, is not bound, or asks for a negative amount.
    pub fn set_pod(&mut self, spec: &PodSpec) -> Result<(), ModelError> {
        let node = spec
            .node_name
            .clone()
            .ok_or_else(|| ModelError::NotBound(spec.key()))?;
        let class = self.pod_class(&spec.template)?;
        let lifecycle = PodLifecycle::of(spec);
        if let Some(id) = self.pods.find(&spec.key()) {
            let known = self.pod(id);
            let same = known.class == class
                && self.names.text(known.node_name) == node
                && known.terminating == lifecycle.terminating
                && known.preempted == lifecycle.preempted
                && known.start_time == lifecycle.start_time
                && !lifecycle.finished;
            if same {
                return Ok(());
            }
            self.take_pod_out(id);
        }
        self.bind_class(PodKey::of(spec), lifecycle, class, &node)
    }

    /// Makes room for pods that are known to come, such as those of a queue; it saves making room as they come.
    pub fn expect_pods(&mut self, more: usize) {
        self.pods.reserve(more);
    }

    /// Removes a pod by its key.
    ///
    /// # Errors
    /// No pod of that key is there.
    pub fn remove_pod(&mut self, key: &str) -> Result<(), ModelError> {
        let id = self
            .pods
            .find(key)
            .ok_or_else(|| ModelError::UnknownPod(key.to_owned()))?;
        self.take_pod_out(id);
        Ok(())
    }

    fn compile_node(&mut self, id: NodeId, spec: &NodeSpec) -> Result<NodeFixed, ModelError> {
        if spec.name.is_empty() {
            return Err(ModelError::NoName);
        }
        let offered = if spec.allocatable.is_empty() {
            &spec.capacity
        } else {
            &spec.allocatable
        };
        let allocatable = Amounts::read(offered, &spec.name, &mut self.names)?;
        let labels = LabelSet::intern(&spec.labels, &mut self.names);
        let class = NodeClass::of(spec, &labels, &mut self.names);
        let (taints, unschedulable) = (class.taints.clone(), class.unschedulable);
        let (class, _) = self.node_classes.insert_full(class);
        let mut images = Vec::new();
        for image in &spec.images {
            for name in &image.names {
                // As they are written: only what pods ask for gets a tag.
                images.push((self.names.intern(name), image.size_bytes.max(0)));
            }
        }
        images.sort_by_key(|image| image.0);
        images.dedup_by_key(|image| image.0);
        let name = self.names.intern(&spec.name);
        let class = NodeClassId(class as u32);
        Ok(NodeFixed {
            id,
            name,
            class,
            labels,
            taints,
            unschedulable,
            allocatable,
            images,
        })
    }

    pub(super) fn put_node_in(&mut self, fixed: NodeFixed) {
        let id = fixed.id;
        let name = fixed.name;
        self.log(Undo::TakeNodeOut(id));
        self.boards.order.arrive(id, name);
        self.boards.nodes.touch(id);
        self.boards.name_host(id, &fixed.labels);
        self.hold_images(&fixed, true);
        self.views_join(&fixed);
        self.node_by_name.insert(name, id);
        if id.index() == self.nodes.len() {
            self.nodes.push(None);
        }
        self.free_nodes.retain(|free| *free != id);
        self.nodes[id.index()] = Some(Node::new(fixed));
        for pod in self.orphans.remove(&name).unwrap_or_default() {
            self.settle(pod, id);
        }
    }

    pub(crate) fn take_node_out(&mut self, id: NodeId) {
        let pods = self.at(id).pods.to_vec();
        for pod in &pods {
            self.unsettle(*pod, id);
        }
        let Some(node) = self.nodes[id.index()].take() else {
            return;
        };
        if !pods.is_empty() {
            self.orphans.insert(node.fixed.name, pods);
        }
        self.boards.nodes.touch(id);
        self.boards.unname_host(id, &node.fixed.labels);
        self.node_by_name.remove(&node.fixed.name);
        self.free_nodes.push(id);
        self.views_leave(&node.fixed);
        self.hold_images(&node.fixed, false);
        self.log(Undo::PutNodeIn(Box::new(node.fixed)));
    }

    /// Exchanges what was told about a node that is there.
    pub(super) fn replace_fixed(&mut self, fixed: NodeFixed) {
        let id = fixed.id;
        self.boards.nodes.touch(id);
        let moved = self.at(id).fixed.differs_in_place(&fixed);
        let before = self.at(id).fixed.clone();
        if moved {
            self.views_clear(id);
            self.views_leave(&before);
            self.boards.unname_host(id, &before.labels);
            self.boards.name_host(id, &fixed.labels);
        }
        self.hold_images(&before, false);
        self.hold_images(&fixed, true);
        if moved {
            self.views_join(&fixed);
        }
        if let Some(node) = &mut self.nodes[id.index()] {
            node.fixed = fixed;
        }
        if moved {
            self.views_fill(id);
        }
        self.log(Undo::RestoreNode(Box::new(before)));
    }

    pub(super) fn put_pod_in(&mut self, pod: Pod) -> PodId {
        let node = self.node_by_name.get(&pod.node_name).copied();
        self.put_pod_on(node, pod)
    }

    /// [`Cluster::put_pod_in`] for a caller that has found the node.
    fn put_pod_on(&mut self, node: Option<NodeId>, pod: Pod) -> PodId {
        let node_name = pod.node_name;
        self.use_class(pod.class);
        let id = self.pods.put(pod);
        match node {
            Some(node) => self.settle(id, node),
            None => self.orphans.entry(node_name).or_default().push(id),
        }
        self.log(Undo::TakePodOut(id));
        id
    }

    pub(super) fn take_pod_out(&mut self, id: PodId) {
        let node_name = self.pod(id).node_name;
        match self.node_by_name.get(&node_name) {
            Some(&node) => self.unsettle(id, node),
            None => {
                if let Some(waiting) = self.orphans.get_mut(&node_name) {
                    waiting.retain(|pod| *pod != id);
                    if waiting.is_empty() {
                        self.orphans.remove(&node_name);
                    }
                }
            }
        }
        if let Some(pod) = self.pods.take(id) {
            self.release_class(pod.class);
            self.log(Undo::PutPodIn(Box::new(pod)));
        }
    }

    /// Puts a known pod's load on a node.
    fn settle(&mut self, id: PodId, at: NodeId) {
        let (class, terminating) = (self.pod(id).class, self.pod(id).terminating);
        self.load(class, at, terminating);
        if let Some(node) = &mut self.nodes[at.index()] {
            node.pods.push(id);
        }
    }

    /// Takes a known pod's load off a node.
    fn unsettle(&mut self, id: PodId, at: NodeId) {
        let (class, terminating) = (self.pod(id).class, self.pod(id).terminating);
        self.unload(class, at, terminating);
        if let Some(node) = &mut self.nodes[at.index()]
            && let Some(index) = node.pods.iter().position(|pod| *pod == id)
        {
            node.pods.swap_remove(index);
        }
    }

    /// Counts a pod of a class on a node, and in the views it matters to.
    pub(crate) fn load(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        self.boards.loads.touch(at);
        self.take_in(class, at, terminating);
        self.views_count(class, at, 1, PodPresence::of(terminating));
    }

    /// The inverse of [`Cluster::load`].
    pub(crate) fn unload(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        self.boards.loads.touch(at);
        self.views_count(class, at, -1, PodPresence::of(terminating));
        self.let_go(class, at, terminating);
    }

    pub(super) fn take_in(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        if let Some(node) = &mut self.nodes[at.index()] {
            let own = &self.classes[class.index()];
            node.take(class, own, terminating);
            self.storage.hold(node.volumes);
            self.storage.count(own, 1);
        }
    }

    pub(super) fn let_go(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        if let Some(node) = &mut self.nodes[at.index()] {
            let own = &self.classes[class.index()];
            node.release(class, own, terminating);
            self.storage.count(own, -1);
        }
    }

    fn hold_images(&mut self, fixed: &NodeFixed, holds: bool) {
        for &(name, size_bytes) in &fixed.images {
            if holds {
                let holders = self.images.entry(name).or_insert(ImageHolders {
                    size_bytes,
                    nodes: 0,
                });
                holders.nodes += 1;
            } else if let Some(holders) = self.images.get_mut(&name) {
                holders.nodes -= 1;
                if holders.nodes == 0 {
                    self.images.remove(&name);
                }
            }
        }
    }
}
