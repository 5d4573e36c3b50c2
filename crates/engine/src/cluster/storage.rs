//! Deltas and questions about storage objects: claims, volumes, storage classes and what CSI drivers publish.

use super::undo::Undo;
use super::{Cluster, NodeId};
use crate::class::{PodClassId, Volume};
use crate::filter::volume_binding;
use crate::model::{
    CsiDriverSpec, CsiNodeSpec, CsiStorageCapacitySpec, PersistentVolumeClaimSpec,
    PersistentVolumeSpec, StorageClassSpec, VolumeAttachmentSpec,
};
use crate::storage::{self, Attachment, Capacity, Change, Claim, Class, CsiNode, Plan};

/// How the unbound claims of a pod get their volumes; claims are given by name, in the pod's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeChoices {
    /// The claims that get an existing volume: claim name and volume name.
    pub matched: Vec<(String, String)>,
    /// The names of the claims whose volume must be provisioned for the node.
    pub provisioned: Vec<String>,
}

impl VolumeChoices {
    /// Returns whether no claim needs a volume.
    pub fn is_empty(&self) -> bool {
        self.matched.is_empty() && self.provisioned.is_empty()
    }
}

impl Cluster {
    /// Adds or changes a PersistentVolumeClaim.
    pub fn set_claim(&mut self, spec: &PersistentVolumeClaimSpec) {
        let key = (
            self.names.intern(&spec.namespace),
            self.names.intern(&spec.name),
        );
        let claim = Claim::compile(spec, &mut self.names);
        self.change_storage(Change::Claim(key, Some(Box::new(claim))));
    }

    /// Removes a PersistentVolumeClaim.
    pub fn remove_claim(&mut self, namespace: &str, name: &str) {
        if let (Some(namespace), Some(name)) = (self.names.find(namespace), self.names.find(name)) {
            self.change_storage(Change::Claim((namespace, name), None));
        }
    }

    /// Adds or changes a PersistentVolume.
    pub fn set_volume(&mut self, spec: &PersistentVolumeSpec) {
        let name = self.names.intern(&spec.name);
        let volume = storage::Volume::compile(spec, &mut self.names);
        self.change_storage(Change::Volume(name, Some(Box::new(volume))));
    }

    /// Removes a PersistentVolume.
    pub fn remove_volume(&mut self, name: &str) {
        if let Some(name) = self.names.find(name) {
            self.change_storage(Change::Volume(name, None));
        }
    }

    /// Adds or changes a StorageClass.
    pub fn set_storage_class(&mut self, spec: &StorageClassSpec) {
        let name = self.names.intern(&spec.name);
        let class = Class::compile(spec, &mut self.names);
        self.change_storage(Change::Class(name, Some(Box::new(class))));
    }

    /// Removes a StorageClass.
    pub fn remove_storage_class(&mut self, name: &str) {
        if let Some(name) = self.names.find(name) {
            self.change_storage(Change::Class(name, None));
        }
    }

    /// Adds or changes a CSINode.
    pub fn set_csi_node(&mut self, spec: &CsiNodeSpec) {
        let name = self.names.intern(&spec.name);
        let node = CsiNode::compile(spec, &mut self.names);
        self.change_storage(Change::Node(name, Some(Box::new(node))));
    }

    /// Removes a CSINode.
    pub fn remove_csi_node(&mut self, name: &str) {
        if let Some(name) = self.names.find(name) {
            self.change_storage(Change::Node(name, None));
        }
    }

    /// Adds or changes a CSIDriver.
    pub fn set_csi_driver(&mut self, spec: &CsiDriverSpec) {
        let name = self.names.intern(&spec.name);
        self.change_storage(Change::Driver(name, Some(spec.storage_capacity)));
    }

    /// Removes a CSIDriver.
    pub fn remove_csi_driver(&mut self, name: &str) {
        if let Some(name) = self.names.find(name) {
            self.change_storage(Change::Driver(name, None));
        }
    }

    /// Adds or changes a CSIStorageCapacity.
    pub fn set_storage_capacity(&mut self, spec: &CsiStorageCapacitySpec) {
        let key = (
            self.names.intern(&spec.namespace),
            self.names.intern(&spec.name),
        );
        let capacity = Capacity::compile(spec, &mut self.names);
        self.change_storage(Change::Capacity(key, Some(Box::new(capacity))));
    }

    /// Removes a CSIStorageCapacity.
    pub fn remove_storage_capacity(&mut self, namespace: &str, name: &str) {
        if let (Some(namespace), Some(name)) = (self.names.find(namespace), self.names.find(name)) {
            self.change_storage(Change::Capacity((namespace, name), None));
        }
    }

    /// Adds or changes a VolumeAttachment.
    pub fn set_volume_attachment(&mut self, spec: &VolumeAttachmentSpec) {
        let name = self.names.intern(&spec.name);
        let attachment = Attachment::compile(spec, &mut self.names);
        self.change_storage(Change::Attachment(name, Some(attachment)));
    }

    /// Removes a VolumeAttachment.
    pub fn remove_volume_attachment(&mut self, name: &str) {
        if let Some(name) = self.names.find(name) {
            self.change_storage(Change::Attachment(name, None));
        }
    }

    /// Returns whether the node labels by which boards group nodes are enough to decide which nodes a class's volumes allow.
    pub(crate) fn volumes_go_by_labels(&self, id: PodClassId) -> bool {
        let own = &self.class(id).volumes;
        let claims = own
            .iter()
            .all(|volume| matches!(volume, Volume::Claim { .. }));
        let plan = self.volume_plans.get(&id).map(|(_, plan)| plan);
        claims
            // Attach limits depend on what is on each node, which groups of boards do not know.
            && self.storage.is_far_from_limits(own.len())
            && plan.is_some_and(|plan| {
                plan.keys.is_some() && plan.exclusive.is_empty() && plan.uncounted.is_none()
            })
    }

    /// Returns how the unbound claims of a class's pod get their volumes when it goes to the node that the engine chose
    /// (kube-scheduler: VolumeBinding's Reserve). The result is empty if all claims are bound.
    pub fn volume_choices(&mut self, id: PodClassId, node: NodeId) -> VolumeChoices {
        let mut choices = VolumeChoices::default();
        if self.classes[id.index()].volumes.is_empty() {
            return choices;
        }
        self.plan_volumes(id);
        let site = self.site(node);
        let plan = &self.volume_plans[&id].1;
        let text = |symbol| self.names.text(symbol).to_owned();
        if let Some(choice) = volume_binding::choose(plan, site) {
            let matched = choice.matched.into_iter();
            choices.matched = matched
                .map(|(claim, volume)| (text(claim.claim), text(volume)))
                .collect();
            let provisioned = choice.provisioned.into_iter();
            choices.provisioned = provisioned.map(|claim| text(claim.claim)).collect();
        }
        choices
    }

    pub(super) fn change_storage(&mut self, change: Change) {
        if let Some(inverse) = self.storage.exchange(change) {
            self.log(Undo::Storage(inverse));
        }
    }

    /// Computes the volume plan of a class unless the cached plan is current.
    pub(super) fn plan_volumes(&mut self, id: PodClassId) {
        let version = self.storage.version();
        let holds = |(made, _): &(u64, Plan)| *made == version;
        if !self.volume_plans.get(&id).is_some_and(holds) {
            let plan = Plan::of(&self.classes[id.index()], &self.storage, &self.names);
            self.volume_plans.insert(id, (version, plan));
        }
    }
}
