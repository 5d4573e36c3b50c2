//! The deltas of the model: adding, changing and removing nodes and pods.
//!
//! All deltas are built from four primitives (put in and take out, for nodes and for pods), each of which another
//! one undoes. The public methods check their input and then call the primitives. A pod may be added before its
//! node and may outlive it.

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
    /// Adds a node. Pods that were bound to its name before are counted on it at once.
    ///
    /// # Errors
    /// A node of that name exists already, the name is empty, or an allocatable amount is negative.
    pub fn add_node(&mut self, spec: &NodeSpec) -> Result<NodeId, ModelError> {
        if self.node(&spec.name).is_some() {
            return Err(ModelError::DuplicateNode(spec.name.clone()));
        }
        let id = self
            // Numbers are used again, or every table by node would grow with each node that ever came.
            .free_nodes
            .last()
            .copied()
            .unwrap_or(NodeId(self.nodes.len() as u32));
        let fixed = self.compile_node(id, spec)?;
        self.put_node_in(fixed);
        Ok(id)
    }

    /// Changes the properties of a node; its pods stay.
    ///
    /// # Errors
    /// There is no node of that name, or an allocatable amount is negative.
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

    /// Adds a node or changes its properties.
    ///
    /// # Errors
    /// The name is empty or an allocatable amount is negative.
    pub fn set_node(&mut self, spec: &NodeSpec) -> Result<NodeId, ModelError> {
        if self.node(&spec.name).is_some() {
            self.update_node(spec)
        } else {
            self.add_node(spec)
        }
    }

    /// Removes a node. Its pods stay in the model and count again if a node of that name is added.
    ///
    /// # Errors
    /// There is no node of that name.
    pub fn remove_node(&mut self, name: &str) -> Result<(), ModelError> {
        let id = self
            .node(name)
            .ok_or_else(|| ModelError::UnknownNode(name.to_owned()))?;
        self.take_node_out(id);
        Ok(())
    }

    /// Adds a bound pod (`node_name` is set). A finished pod uses nothing and is not added.
    ///
    /// # Errors
    /// The pod exists already, has no name, is not bound, or requests a negative amount.
    pub fn add_pod(&mut self, spec: &PodSpec) -> Result<(), ModelError> {
        let node = spec
            .node_name
            .as_deref()
            .ok_or_else(|| ModelError::NotBound(spec.key()))?;
        self.bind(spec, node)
    }

    /// Adds a bound pod like [`Cluster::add_pod`], without copying its template.
    ///
    /// # Errors
    /// As for [`Cluster::add_pod`].
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

    /// Adds a pod as bound to `node`, whatever its `node_name` says, as a scheduler does with its decision.
    ///
    /// # Errors
    /// The pod exists already, has no name, or requests a negative amount.
    pub fn bind(&mut self, spec: &PodSpec, node: &str) -> Result<(), ModelError> {
        if spec.name.is_empty() && spec.uid.is_empty() {
            return Err(ModelError::NoName);
        }
        let class = self.pod_class(&spec.template)?;
        self.bind_class(PodKey::of(spec), PodLifecycle::of(spec), class, node)
    }

    /// Adds a new pod to a node when its class and the node's id are known, which is the cheapest way to carry out
    /// a decision. With an empty `uid` the pod's key is its name.
    ///
    /// # Errors
    /// The pod exists already, has no name, or the node does not exist.
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
        // In large clusters both lookups miss the CPU cache. Nothing is between them, so the memory accesses
        // overlap.
        let there = self.nodes.get(node.index()).and_then(Option::as_ref);
        let known = self.pods.find(pod_key.key());
        let Some(there) = there else {
            return Err(ModelError::UnknownNode(String::new()));
        };
        if known.is_some() {
            return Err(ModelError::DuplicatePod(pod_key.key().to_owned()));
        }
        let node_name = there.fixed.name;
        // A placed pod counts itself, so room must not be held for it as well.
        self.denominate(pod_key.key());
        self.put_pod_on(Some(node), Pod::new(pod_key, class, node_name));
        Ok(())
    }

    /// Adds a pod like [`Cluster::bind`] when its class is already known.
    ///
    /// # Errors
    /// The pod exists already.
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
        // After the check for duplicates: a pod that is known must be removed first, whatever its phase is.
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

    /// Adds a bound pod or changes it; a finished pod is removed.
    ///
    /// # Errors
    /// The pod has no name, is not bound, or requests a negative amount.
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
            // Most updates change nothing that the model reads, and removing and adding a pod touches views and
            // boards.
            if same {
                return Ok(());
            }
            self.take_pod_out(id);
        }
        self.bind_class(PodKey::of(spec), lifecycle, class, &node)
    }

    /// Reserves memory for pods that will be added soon, for example those in a queue.
    pub fn expect_pods(&mut self, more: usize) {
        self.pods.reserve(more);
    }

    /// Removes a pod by its key.
    ///
    /// # Errors
    /// There is no pod with that key.
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
        // A node that does not report allocatable yet offers its capacity, as the API server's defaults have it.
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
                // Node images keep their names as reported: kube-scheduler adds a missing tag only to the names in
                // pods.
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
        // Nodes usually take the number that became free last.
        if self.free_nodes.last() == Some(&id) {
            self.free_nodes.pop();
        } else {
            // Not only the last one: a rollback puts nodes back under the numbers that they had.
            self.free_nodes.retain(|free| *free != id);
        }
        self.nodes[id.index()] = Some(Node::new(fixed));
        // Last, because pods are counted through the views that the node has just joined.
        for pod in self.orphans.remove(&name).unwrap_or_default() {
            self.settle(pod, id);
        }
    }

    pub(crate) fn take_node_out(&mut self, id: NodeId) {
        let pods = self.at(id).pods.to_vec();
        // First, because views count pods by labels of a node that has to be there still.
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

    /// Replaces the properties of an existing node.
    pub(super) fn replace_fixed(&mut self, fixed: NodeFixed) {
        let id = fixed.id;
        self.boards.nodes.touch(id);
        let moved = self.at(id).fixed.differs_in_place(&fixed);
        let before = self.at(id).fixed.clone();
        if moved {
            // The order matters: counts are removed under the old labels here and added under the new ones below.
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

    /// Adds a pod like [`Cluster::put_pod_in`] when its node has already been looked up.
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

    /// Adds a pod to its node's list and load.
    fn settle(&mut self, id: PodId, at: NodeId) {
        let (class, terminating) = (self.pod(id).class, self.pod(id).terminating);
        self.load(class, at, terminating);
        if let Some(node) = &mut self.nodes[at.index()] {
            node.pods.push(id);
        }
    }

    /// Removes a pod from its node's list and load.
    fn unsettle(&mut self, id: PodId, at: NodeId) {
        let (class, terminating) = (self.pod(id).class, self.pod(id).terminating);
        self.unload(class, at, terminating);
        if let Some(node) = &mut self.nodes[at.index()]
            && let Some(index) = node.pods.iter().position(|pod| *pod == id)
        {
            // The order of a node's pods carries no meaning; whoever needs one sorts.
            node.pods.swap_remove(index);
        }
    }

    /// Counts a pod of a class on a node and in the views that it affects.
    pub(crate) fn load(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        self.boards.loads.touch(at);
        self.take_in(class, at, terminating);
        self.views_count(class, at, 1, PodPresence::of(terminating));
    }

    /// Removes what [`Cluster::load`] counted.
    pub(crate) fn unload(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        self.boards.loads.touch(at);
        // In the reverse order of `load`.
        self.views_count(class, at, -1, PodPresence::of(terminating));
        self.release_room(class, at, terminating);
    }

    /// Adds a pod of this class to a node's load and to the use of its claims.
    pub(super) fn take_in(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        if let Some(node) = &mut self.nodes[at.index()] {
            let own = &self.classes[class.index()];
            node.take(class, own, terminating);
            self.storage.hold(node.volumes);
            self.storage.count(own, 1);
        }
    }

    /// Takes a pod of this class off a node's load and off the use of its claims.
    pub(super) fn release_room(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
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
                // The size stays the one that the first node reported, as in kube-scheduler's cache.
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
