//! The engine's cluster, kept up to date from watch events.
//!
//! A plain struct: objects as the API server shows them go in, deltas of the one [`Cluster`] come out. It knows one thing
//! the API server does not: pods that a scheduler has decided on and whose binding is on its way ("assumed" pods). Until
//! the watch confirms them they count as bound, and an older picture of them does not undo that.
//!
//! Invariant: after any sequence of events the cluster equals one built afresh from the latest objects and assumptions.

use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service},
    policy::v1::PodDisruptionBudget,
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment},
};
use kube::Resource;
use mullion_engine::{
    Cluster, ModelError, NodeId, Options, PodClassId, Profile, VolumeChoices,
    model::{ClaimRef, PersistentVolumeClaimSpec, PersistentVolumeSpec, PodSpec, WorkloadSpec},
};
use rustc_hash::FxHashMap;

use super::{convert, volumes::spec_of};

/// The engine's cluster and the pods assumed in it.
#[derive(Debug)]
pub struct ClusterState {
    cluster: Cluster,
    /// Node name by key of an assumed pod.
    assumed: FxHashMap<String, String>,
    /// Claims by namespace and name as last seen, if they have no volume.
    unbound_claims: FxHashMap<(String, String), PersistentVolumeClaimSpec>,
    /// Volumes by name as last seen, if they are nobody's.
    free_volumes: FxHashMap<String, PersistentVolumeSpec>,
    /// The node that volumes of claims will be provisioned for, until the watch shows it.
    selected_nodes: FxHashMap<(String, String), String>,
    /// The claims that volumes will be bound to, until the watch shows it.
    promised_volumes: FxHashMap<String, ClaimRef>,
}

impl ClusterState {
    /// An empty cluster.
    pub fn new(options: Options) -> Self {
        Self::with_profiles(options, &[])
    }

    /// An empty cluster whose pods are decided by these profiles; by the default one if there are none.
    pub fn with_profiles(options: Options, profiles: &[Profile]) -> Self {
        Self {
            cluster: Cluster::with_profiles(options, profiles),
            assumed: FxHashMap::default(),
            unbound_claims: FxHashMap::default(),
            free_volumes: FxHashMap::default(),
            selected_nodes: FxHashMap::default(),
            promised_volumes: FxHashMap::default(),
        }
    }

    /// The cluster, for questions.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The cluster, for questions that need scratch space (they leave it as it was).
    pub fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// A node appeared or changed.
    pub fn set_node(&mut self, node: &Node) {
        report(self.cluster.set_node(&convert::node(node)));
    }

    /// A node is gone; its pods stay known until they are removed.
    pub fn remove_node(&mut self, node: &Node) {
        report(
            self.cluster
                .remove_node(node.metadata.name.as_deref().unwrap_or_default()),
        );
    }

    /// A pod appeared or changed.
    pub fn set_pod(&mut self, pod: &Pod) {
        let key = convert::key(pod);
        if convert::node_name(pod).is_none() {
            // An assumed pod whose binding the watch has not shown yet stays where it was put.
            if !self.assumed.contains_key(&key) {
                self.hold_room(pod, &key);
            }
            return;
        }
        let spec = convert::pod(pod);
        self.assumed.remove(&key);
        report(self.cluster.set_pod(&spec));
    }

    /// A pod is gone.
    pub fn remove_pod(&mut self, pod: &Pod) {
        let key = convert::key(pod);
        self.assumed.remove(&key);
        self.cluster.denominate(&key);
        // A pod that was pending, or has finished, is not in the cluster.
        let _ = self.cluster.remove_pod(&key);
    }

    /// A namespace appeared or changed its labels.
    pub fn set_namespace(&mut self, namespace: &Namespace) {
        self.cluster.set_namespace(&convert::namespace(namespace));
    }

    /// A namespace is gone.
    pub fn remove_namespace(&mut self, namespace: &Namespace) {
        self.cluster.remove_namespace(name(namespace).1);
    }

    /// A service appeared or changed.
    pub fn set_service(&mut self, service: &Service) {
        self.cluster.set_service(&convert::service(service));
    }

    /// A service is gone.
    pub fn remove_service(&mut self, service: &Service) {
        let (namespace, name) = name(service);
        self.cluster.remove_service(namespace, name);
    }

    /// A ReplicaSet appeared or changed.
    pub fn set_replica_set(&mut self, set: &ReplicaSet) {
        self.cluster.set_workload(&convert::replica_set(set));
    }

    /// A ReplicaSet is gone.
    pub fn remove_replica_set(&mut self, set: &ReplicaSet) {
        let (namespace, name) = name(set);
        self.cluster.remove_workload("ReplicaSet", namespace, name);
    }

    /// A StatefulSet or ReplicationController appeared or changed.
    pub fn set_workload(&mut self, workload: &WorkloadSpec) {
        self.cluster.set_workload(workload);
    }

    /// A StatefulSet or ReplicationController is gone.
    pub fn remove_workload(&mut self, workload: &WorkloadSpec) {
        let WorkloadSpec {
            kind,
            namespace,
            name,
            ..
        } = workload;
        self.cluster.remove_workload(kind, namespace, name);
    }

    /// A disruption budget appeared or changed.
    pub fn set_pdb(&mut self, pdb: &PodDisruptionBudget) {
        self.cluster.set_pdb(&convert::pdb(pdb));
    }

    /// A disruption budget is gone.
    pub fn remove_pdb(&mut self, pdb: &PodDisruptionBudget) {
        let (namespace, name) = name(pdb);
        self.cluster.remove_pdb(namespace, name);
    }

    /// A claim appeared or changed. What was decided about it counts until the claim itself says so.
    pub fn set_claim(&mut self, claim: &PersistentVolumeClaim) {
        let Some(mut spec) = spec_of::<_, PersistentVolumeClaimSpec>(claim) else {
            return;
        };
        let key = (spec.namespace.clone(), spec.name.clone());
        if spec.volume.is_empty() {
            self.unbound_claims.insert(key.clone(), spec.clone());
        } else {
            self.unbound_claims.remove(&key);
        }
        if !spec.volume.is_empty() || spec.selected_node.is_some() {
            self.selected_nodes.remove(&key);
        }
        if let Some(node) = self.selected_nodes.get(&key) {
            spec.selected_node = Some(node.clone());
        }
        self.cluster.set_claim(&spec);
    }

    /// A claim is gone.
    pub fn remove_claim(&mut self, claim: &PersistentVolumeClaim) {
        let (namespace, name) = name(claim);
        let key = (namespace.to_owned(), name.to_owned());
        self.unbound_claims.remove(&key);
        self.selected_nodes.remove(&key);
        self.cluster.remove_claim(namespace, name);
    }

    /// A volume appeared or changed. What was decided about it counts until the volume itself says so.
    pub fn set_volume(&mut self, volume: &PersistentVolume) {
        let Some(mut spec) = spec_of::<_, PersistentVolumeSpec>(volume) else {
            return;
        };
        if spec.claim.is_some() {
            self.free_volumes.remove(&spec.name);
            self.promised_volumes.remove(&spec.name);
        } else {
            self.free_volumes.insert(spec.name.clone(), spec.clone());
        }
        if let Some(claim) = self.promised_volumes.get(&spec.name) {
            spec.claim = Some(claim.clone());
        }
        self.cluster.set_volume(&spec);
    }

    /// A volume is gone.
    pub fn remove_volume(&mut self, volume: &PersistentVolume) {
        let name = name(volume).1;
        self.free_volumes.remove(name);
        self.promised_volumes.remove(name);
        self.cluster.remove_volume(name);
    }

    /// A StorageClass appeared or changed.
    pub fn set_storage_class(&mut self, class: &StorageClass) {
        if let Some(spec) = spec_of(class) {
            self.cluster.set_storage_class(&spec);
        }
    }

    /// A StorageClass is gone.
    pub fn remove_storage_class(&mut self, class: &StorageClass) {
        self.cluster.remove_storage_class(name(class).1);
    }

    /// A CSINode appeared or changed.
    pub fn set_csi_node(&mut self, node: &CSINode) {
        if let Some(spec) = spec_of(node) {
            self.cluster.set_csi_node(&spec);
        }
    }

    /// A CSINode is gone.
    pub fn remove_csi_node(&mut self, node: &CSINode) {
        self.cluster.remove_csi_node(name(node).1);
    }

    /// A CSIDriver appeared or changed.
    pub fn set_csi_driver(&mut self, driver: &CSIDriver) {
        if let Some(spec) = spec_of(driver) {
            self.cluster.set_csi_driver(&spec);
        }
    }

    /// A CSIDriver is gone.
    pub fn remove_csi_driver(&mut self, driver: &CSIDriver) {
        self.cluster.remove_csi_driver(name(driver).1);
    }

    /// A CSIStorageCapacity appeared or changed.
    pub fn set_storage_capacity(&mut self, capacity: &CSIStorageCapacity) {
        if let Some(spec) = spec_of(capacity) {
            self.cluster.set_storage_capacity(&spec);
        }
    }

    /// A CSIStorageCapacity is gone.
    pub fn remove_storage_capacity(&mut self, capacity: &CSIStorageCapacity) {
        let (namespace, name) = name(capacity);
        self.cluster.remove_storage_capacity(namespace, name);
    }

    /// A VolumeAttachment appeared or changed.
    pub fn set_volume_attachment(&mut self, attachment: &VolumeAttachment) {
        if let Some(spec) = spec_of(attachment) {
            self.cluster.set_volume_attachment(&spec);
        }
    }

    /// A VolumeAttachment is gone.
    pub fn remove_volume_attachment(&mut self, attachment: &VolumeAttachment) {
        self.cluster.remove_volume_attachment(name(attachment).1);
    }

    /// Decides how the claims that a pod of `namespace` waits for get their volumes on `node`, and counts it as done
    /// (kube-scheduler: VolumeBinding's Reserve).
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
            let Some(spec) = self.unbound_claims.get(&key) else {
                continue;
            };
            if spec.selected_node.is_none() {
                let mut decided = spec.clone();
                decided.selected_node = Some(node.clone());
                self.cluster.set_claim(&decided);
                self.selected_nodes.insert(key, node.clone());
            }
        }
        for (claim, volume) in &choices.matched {
            let key = (namespace.to_owned(), claim.clone());
            let uid = self.unbound_claims.get(&key).map(|spec| spec.uid.clone());
            if let Some(spec) = self.free_volumes.get(volume) {
                let claim = ClaimRef {
                    namespace: namespace.to_owned(),
                    name: claim.clone(),
                    uid: uid.unwrap_or_default(),
                };
                let mut decided = spec.clone();
                decided.claim = Some(claim.clone());
                self.cluster.set_volume(&decided);
                self.promised_volumes.insert(volume.clone(), claim);
            }
        }
        choices
    }

    /// Takes back what [`ClusterState::reserve_volumes`] counted as done, as far as the watch has not shown it.
    pub fn release_volumes(&mut self, namespace: &str, choices: &VolumeChoices) {
        for claim in &choices.provisioned {
            let key = (namespace.to_owned(), claim.clone());
            if self.selected_nodes.remove(&key).is_some()
                && let Some(spec) = self.unbound_claims.get(&key)
            {
                self.cluster.set_claim(spec);
            }
        }
        for (_, volume) in &choices.matched {
            if self.promised_volumes.remove(volume).is_some()
                && let Some(spec) = self.free_volumes.get(volume)
            {
                self.cluster.set_volume(spec);
            }
        }
    }

    /// Counts a pending pod as bound to `node` from now on.
    ///
    /// # Errors
    /// The pod is bound already.
    pub fn assume(&mut self, pod: &PodSpec, node: &str) -> Result<(), ModelError> {
        self.cluster.bind(pod, node)?;
        self.assumed.insert(pod.key(), node.to_owned());
        Ok(())
    }

    /// Takes an assumption back, because the binding failed. A pod that the watch has shown as bound stays.
    pub fn forget(&mut self, key: &str) {
        if self.assumed.remove(key).is_some() {
            report(self.cluster.remove_pod(key));
        }
    }

    /// Whether a pod is assumed and not confirmed yet.
    pub fn is_assumed(&self, key: &str) -> bool {
        self.assumed.contains_key(key)
    }

    /// Keeps the room that preemption made for a pending pod.
    fn hold_room(&mut self, pod: &Pod, key: &str) {
        let nominated = pod
            .status
            .as_ref()
            .and_then(|status| status.nominated_node_name.as_deref());
        let waits = !convert::is_finished(pod) && pod.metadata.deletion_timestamp.is_none();
        match nominated {
            Some(node) if waits && !node.is_empty() => {
                report(self.cluster.nominate(&convert::pod(pod), node))
            }
            _ => self.cluster.denominate(key),
        }
    }
}

fn name<K: Resource>(object: &K) -> (&str, &str) {
    let meta = object.meta();
    (
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}

/// An object that the model cannot take in is left out of placement and said so.
fn report<T>(result: Result<T, ModelError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "object left out of the cluster model");
    }
}

#[cfg(test)]
mod tests {
    use mullion_engine::Decision;
    use serde_json::{Value, json};

    use super::*;

    fn state_with_node(cpu: &str) -> ClusterState {
        let mut state = ClusterState::new(Options::default());
        let node = json!({ "metadata": { "name": "n1" }, "status": { "allocatable": { "cpu": cpu, "pods": "10" } } });
        state.set_node(&serde_json::from_value(node).expect("a node"));
        state
    }

    fn pod(name: &str, node: Option<&str>, extra: Value) -> Pod {
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": name },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }], "nodeName": node },
            "status": extra,
        });
        if pod["spec"]["nodeName"].is_null() {
            pod["spec"]
                .as_object_mut()
                .expect("an object")
                .remove("nodeName");
        }
        serde_json::from_value(pod).expect("a pod")
    }

    fn fits(state: &mut ClusterState) -> bool {
        let question = convert::pod(&pod("question", None, json!({})));
        matches!(
            state.cluster_mut().schedule_pod(&question, 0),
            Ok(Decision::Node(_))
        )
    }

    #[test]
    fn bound_pods_take_room_and_finished_or_deleted_ones_give_it_back() {
        let mut state = state_with_node("1");
        assert!(fits(&mut state));
        state.set_pod(&pod("a", Some("n1"), json!({ "phase": "Running" })));
        assert!(!fits(&mut state));
        state.set_pod(&pod("a", Some("n1"), json!({ "phase": "Succeeded" })));
        assert!(fits(&mut state));
        state.set_pod(&pod("b", Some("n1"), json!({})));
        assert!(!fits(&mut state));
        state.remove_pod(&pod("b", Some("n1"), json!({})));
        assert!(fits(&mut state));
    }

    #[test]
    fn an_assumed_pod_takes_room_at_once_and_an_older_picture_of_it_does_not_free_it() {
        let mut state = state_with_node("1");
        let pending = pod("a", None, json!({}));
        state
            .assume(&convert::pod(&pending), "n1")
            .expect("it is not bound yet");
        assert!(!fits(&mut state));
        state.set_pod(&pending);
        assert!(!fits(&mut state), "the watch is behind the decision");
        assert!(state.is_assumed("a"));
        state.set_pod(&pod("a", Some("n1"), json!({})));
        assert!(!state.is_assumed("a"));
        state.forget("a");
        assert!(!fits(&mut state), "a confirmed binding cannot be forgotten");
    }

    #[test]
    fn a_failed_binding_gives_the_room_back() {
        let mut state = state_with_node("1");
        state
            .assume(&convert::pod(&pod("a", None, json!({}))), "n1")
            .expect("it is not bound yet");
        state.forget("a");
        assert!(fits(&mut state));
    }

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
        // An older picture does not undo it: only one node is left for others of the claim.
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

    #[test]
    fn room_made_by_preemption_is_held_against_pods_of_the_same_priority() {
        let mut state = state_with_node("1");
        state.set_pod(&pod("a", None, json!({ "nominatedNodeName": "n1" })));
        assert!(!fits(&mut state));
        state.set_pod(&pod("a", None, json!({})));
        assert!(fits(&mut state));
    }
}
