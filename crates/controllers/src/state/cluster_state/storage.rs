//! Storage objects in the cluster state, and decisions about claims and volumes that the watch has not shown yet.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment},
};
use mullion_engine::{
    NodeId, PodClassId, VolumeChoices,
    model::{ClaimRef, PersistentVolumeClaimSpec, PersistentVolumeSpec},
};
use rustc_hash::FxHashMap;

use super::{ClusterState, name};
use crate::state::volumes::spec_of;

/// Unbound claims and volumes, and the decisions about them.
#[derive(Debug, Default)]
pub(super) struct VolumeDecisions {
    /// Claims without a volume as last seen, by namespace and name.
    unbound_claims: FxHashMap<(String, String), PersistentVolumeClaimSpec>,
    /// Volumes without a claim as last seen, by name.
    free_volumes: FxHashMap<String, PersistentVolumeSpec>,
    /// The selected node of claims whose volumes will be provisioned, until the watch shows it.
    selected_nodes: FxHashMap<(String, String), String>,
    /// The claims that volumes will be bound to, until the watch shows it.
    promised_volumes: FxHashMap<String, ClaimRef>,
}

impl ClusterState {
    /// Adds or updates a claim. An earlier decision about it stays in effect until the claim shows it.
    pub fn set_claim(&mut self, claim: &PersistentVolumeClaim) {
        let Some(mut spec) = spec_of::<_, PersistentVolumeClaimSpec>(claim) else {
            return;
        };
        let key = (spec.namespace.clone(), spec.name.clone());
        if spec.volume.is_empty() {
            self.volumes
                .unbound_claims
                .insert(key.clone(), spec.clone());
        } else {
            self.volumes.unbound_claims.remove(&key);
        }
        // From here on the claim itself shows the decision, or a later one.
        if !spec.volume.is_empty() || spec.selected_node.is_some() {
            self.volumes.selected_nodes.remove(&key);
        }
        if let Some(node) = self.volumes.selected_nodes.get(&key) {
            spec.selected_node = Some(node.clone());
        }
        self.cluster.set_claim(&spec);
    }

    /// Removes a claim.
    pub fn remove_claim(&mut self, claim: &PersistentVolumeClaim) {
        let (namespace, name) = name(claim);
        let key = (namespace.to_owned(), name.to_owned());
        self.volumes.unbound_claims.remove(&key);
        self.volumes.selected_nodes.remove(&key);
        self.cluster.remove_claim(namespace, name);
    }

    /// Adds or updates a volume. An earlier decision about it stays in effect until the volume shows it.
    pub fn set_volume(&mut self, volume: &PersistentVolume) {
        let Some(mut spec) = spec_of::<_, PersistentVolumeSpec>(volume) else {
            return;
        };
        if spec.claim.is_some() {
            self.volumes.free_volumes.remove(&spec.name);
            self.volumes.promised_volumes.remove(&spec.name);
        } else {
            self.volumes
                .free_volumes
                .insert(spec.name.clone(), spec.clone());
        }
        if let Some(claim) = self.volumes.promised_volumes.get(&spec.name) {
            spec.claim = Some(claim.clone());
        }
        self.cluster.set_volume(&spec);
    }

    /// Removes a volume.
    pub fn remove_volume(&mut self, volume: &PersistentVolume) {
        let name = name(volume).1;
        self.volumes.free_volumes.remove(name);
        self.volumes.promised_volumes.remove(name);
        self.cluster.remove_volume(name);
    }

    /// Adds or updates a StorageClass.
    pub fn set_storage_class(&mut self, class: &StorageClass) {
        if let Some(spec) = spec_of(class) {
            self.cluster.set_storage_class(&spec);
        }
    }

    /// Removes a StorageClass.
    pub fn remove_storage_class(&mut self, class: &StorageClass) {
        self.cluster.remove_storage_class(name(class).1);
    }

    /// Adds or updates a CSINode.
    pub fn set_csi_node(&mut self, node: &CSINode) {
        if let Some(spec) = spec_of(node) {
            self.cluster.set_csi_node(&spec);
        }
    }

    /// Removes a CSINode.
    pub fn remove_csi_node(&mut self, node: &CSINode) {
        self.cluster.remove_csi_node(name(node).1);
    }

    /// Adds or updates a CSIDriver.
    pub fn set_csi_driver(&mut self, driver: &CSIDriver) {
        if let Some(spec) = spec_of(driver) {
            self.cluster.set_csi_driver(&spec);
        }
    }

    /// Removes a CSIDriver.
    pub fn remove_csi_driver(&mut self, driver: &CSIDriver) {
        self.cluster.remove_csi_driver(name(driver).1);
    }

    /// Adds or updates a CSIStorageCapacity.
    pub fn set_storage_capacity(&mut self, capacity: &CSIStorageCapacity) {
        if let Some(spec) = spec_of(capacity) {
            self.cluster.set_storage_capacity(&spec);
        }
    }

    /// Removes a CSIStorageCapacity.
    pub fn remove_storage_capacity(&mut self, capacity: &CSIStorageCapacity) {
        let (namespace, name) = name(capacity);
        self.cluster.remove_storage_capacity(namespace, name);
    }

    /// Adds or updates a VolumeAttachment.
    pub fn set_volume_attachment(&mut self, attachment: &VolumeAttachment) {
        if let Some(spec) = spec_of(attachment) {
            self.cluster.set_volume_attachment(&spec);
        }
    }

    /// Removes a VolumeAttachment.
    pub fn remove_volume_attachment(&mut self, attachment: &VolumeAttachment) {
        self.cluster.remove_volume_attachment(name(attachment).1);
    }

    /// Chooses volumes on `node` for the unbound claims of a pod in `namespace`, and assumes the choice (kube-scheduler:
    /// VolumeBinding's Reserve).
    pub fn reserve_volumes(
        &mut self,
        class: PodClassId,
        node: NodeId,
        namespace: &str,
    ) -> VolumeChoices {
        let choices = self.cluster.volume_choices(class, node);
        let node = self.cluster.node_name(node).to_owned();
        for claim in &choices.provisioned {
            let key = (namespace.to_owned(), claim.clone());
            let Some(spec) = self.volumes.unbound_claims.get(&key) else {
                continue;
            };
            // A claim with a selected node is being provisioned already, for the node that an earlier attempt
            // chose.
            if spec.selected_node.is_none() {
                let mut decided = spec.clone();
                decided.selected_node = Some(node.clone());
                self.cluster.set_claim(&decided);
                self.volumes.selected_nodes.insert(key, node.clone());
            }
        }
        for (claim, volume) in &choices.matched {
            let key = (namespace.to_owned(), claim.clone());
            let uid = self
                .volumes
                .unbound_claims
                .get(&key)
                .map(|spec| spec.uid.clone());
            if let Some(spec) = self.volumes.free_volumes.get(volume) {
                let claim = ClaimRef {
                    namespace: namespace.to_owned(),
                    name: claim.clone(),
                    uid: uid.unwrap_or_default(),
                };
                let mut decided = spec.clone();
                decided.claim = Some(claim.clone());
                self.cluster.set_volume(&decided);
                self.volumes.promised_volumes.insert(volume.clone(), claim);
            }
        }
        choices
    }

    /// Undoes [`ClusterState::reserve_volumes`], except for what the watch has shown already.
    pub fn release_volumes(&mut self, namespace: &str, choices: &VolumeChoices) {
        for claim in &choices.provisioned {
            let key = (namespace.to_owned(), claim.clone());
            if self.volumes.selected_nodes.remove(&key).is_some()
                // A decision that the watch has shown was dropped from here, and stays.
                && let Some(spec) = self.volumes.unbound_claims.get(&key)
            {
                self.cluster.set_claim(spec);
            }
        }
        for (_, volume) in &choices.matched {
            if self.volumes.promised_volumes.remove(volume).is_some()
                && let Some(spec) = self.volumes.free_volumes.get(volume)
            {
                self.cluster.set_volume(spec);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mullion_engine::{Decision, model::PodSpec};
    use serde_json::{Value, json};

    use super::*;
    use crate::state::{
        cluster_state::tests::{pod, state_with_node},
        convert,
    };

    fn storage_state() -> ClusterState {
        let mut state = state_with_node("4");
        let class = json!({ "metadata": { "name": "fast" }, "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer" });
        state.set_storage_class(&serde_json::from_value(class).expect("a class"));
        state
    }

    fn claim(name: &str, annotations: Value) -> PersistentVolumeClaim {
        let claim = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": name, "annotations": annotations },
            "spec": { "storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
        });
        serde_json::from_value(claim).expect("a claim")
    }

    fn mounting(claim: &str) -> PodSpec {
        let mut pod = pod("p", None, json!({}));
        let volume = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }]);
        if let Some(spec) = &mut pod.spec {
            spec.volumes = serde_json::from_value(volume).expect("volumes");
        }
        convert::pod(&pod)
    }

    fn reserve(state: &mut ClusterState, spec: &PodSpec) -> VolumeChoices {
        let class = state
            .cluster_mut()
            .pod_class(&spec.template)
            .expect("a class");
        match state.cluster_mut().schedule(class, 0) {
            Decision::Node(node) => state.reserve_volumes(class, node, "ns"),
            Decision::Unschedulable(refusal) => panic!("refused: {refusal:?}"),
        }
    }

    #[test]
    fn a_claim_that_is_to_be_provisioned_is_so_for_one_node_until_that_is_taken_back() {
        let mut state = storage_state();
        let n2 = json!({ "metadata": { "name": "n2" }, "status": { "allocatable": { "cpu": "4", "pods": "10" } } });
        state.set_node(&serde_json::from_value(n2).expect("a node"));
        let fresh = claim("data", json!({}));
        state.set_claim(&fresh);
        let choices = reserve(&mut state, &mounting("data"));
        assert_eq!(choices.provisioned, ["data"]);
        // An older version of the claim does not undo it: other pods with the claim have only one node left.
        state.set_claim(&fresh);
        let open = |state: &mut ClusterState| {
            let spec = mounting("data");
            let cluster = state.cluster_mut();
            let class = cluster.pod_class(&spec.template).expect("a class");
            let answer = cluster.answer(class);
            answer
                .nodes
                .iter()
                .filter(|node| matches!(node.outcome, mullion_engine::Outcome::Fits { .. }))
                .count()
        };
        assert_eq!(open(&mut state), 1);
        state.release_volumes("ns", &choices);
        assert_eq!(open(&mut state), 2);
    }

    #[test]
    fn a_volume_that_was_promised_is_not_promised_twice() {
        let mut state = storage_state();
        let volume = json!({
            "metadata": { "name": "pv1" },
            "spec": { "storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } },
            "status": { "phase": "Available" },
        });
        state.set_volume(&serde_json::from_value(volume).expect("a volume"));
        state.set_claim(&claim("one", json!({})));
        state.set_claim(&claim("two", json!({})));
        let first = reserve(&mut state, &mounting("one"));
        assert_eq!(first.matched, [("one".to_owned(), "pv1".to_owned())]);
        let second = reserve(&mut state, &mounting("two"));
        assert_eq!(
            (second.matched.len(), second.provisioned.len()),
            (0, 1),
            "pv1 is taken"
        );
        state.release_volumes("ns", &first);
        state.release_volumes("ns", &second);
        assert_eq!(reserve(&mut state, &mounting("two")).matched.len(), 1);
    }
}
