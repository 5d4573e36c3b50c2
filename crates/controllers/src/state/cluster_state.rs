//! Keeps the engine's cluster up to date from watch events.
//!
//! A plain struct: it receives objects as the API server shows them, and applies deltas to the one [`Cluster`]. It also
//! knows "assumed" pods: pods that the scheduler has decided and whose binding is not confirmed yet. They count as bound
//! until the watch confirms them, and an older version from the watch does not undo that.
//!
//! Invariant: after any sequence of events the cluster equals one that is built from the latest objects and assumptions.

mod devices;
mod promises;
mod storage;

use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Namespace, Node, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::Resource;
use mullion_engine::{
    Cluster, ModelError, Options, Profile,
    model::{PodSpec, WorkloadSpec},
};
use rustc_hash::FxHashMap;

pub use self::promises::{PlaceChange, PlannedPlace, Promise};
use self::{devices::DeviceDecisions, promises::Promises, storage::VolumeDecisions};
use super::convert;

/// The engine's cluster and the pods assumed in it.
#[derive(Debug)]
pub struct ClusterState {
    cluster: Cluster,
    /// The node of each assumed pod, by the pod's key.
    assumed: FxHashMap<String, String>,
    promises: Promises,
    volumes: VolumeDecisions,
    devices: DeviceDecisions,
}

impl ClusterState {
    /// Creates an empty cluster state with the default profile.
    pub fn new(options: Options) -> Self {
        Self::with_profiles(options, &[])
    }

    /// Creates an empty cluster state with these profiles; with the default one if there are none.
    pub fn with_profiles(options: Options, profiles: &[Profile]) -> Self {
        Self {
            cluster: Cluster::with_profiles(options, profiles),
            assumed: FxHashMap::default(),
            promises: Promises::default(),
            volumes: VolumeDecisions::default(),
            devices: DeviceDecisions::default(),
        }
    }

    /// Returns the cluster for questions that do not change it.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the cluster for questions that change it temporarily.
    pub fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Adds or updates a node.
    pub fn set_node(&mut self, node: &Node) {
        report(self.cluster.set_node(&convert::node(node)));
    }

    /// Removes a node; its pods stay until they are removed.
    pub fn remove_node(&mut self, node: &Node) {
        report(
            self.cluster
                .remove_node(node.metadata.name.as_deref().unwrap_or_default()),
        );
    }

    /// Adds or updates a pod.
    pub fn set_pod(&mut self, pod: &Pod) {
        let key = convert::key(pod);
        if convert::node_name(pod).is_none() {
            // An assumed pod whose binding the watch has not shown yet stays on its node.
            if !self.assumed.contains_key(&key) {
                self.hold_room(pod, &key);
            }
            return;
        }
        // The watch shows the binding, so it no longer depends on an assumption that a failed request could
        // undo.
        let spec = convert::pod(pod);
        self.assumed.remove(&key);
        self.promises.forget(&key);
        report(self.cluster.set_pod(&spec));
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, pod: &Pod) {
        let key = convert::key(pod);
        self.assumed.remove(&key);
        self.promises.forget(&key);
        // A deleted pod must not keep the room that preemption or a promise held for it.
        self.cluster.denominate(&key);
        // A pending or finished pod is not in the cluster; that is no error.
        let _ = self.cluster.remove_pod(&key);
    }

    /// Adds a namespace or updates its labels.
    pub fn set_namespace(&mut self, namespace: &Namespace) {
        self.cluster.set_namespace(&convert::namespace(namespace));
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, namespace: &Namespace) {
        self.cluster.remove_namespace(name(namespace).1);
    }

    /// Adds or updates a Service.
    pub fn set_service(&mut self, service: &Service) {
        self.cluster.set_service(&convert::service(service));
    }

    /// Removes a Service.
    pub fn remove_service(&mut self, service: &Service) {
        let (namespace, name) = name(service);
        self.cluster.remove_service(namespace, name);
    }

    /// Adds or updates a ReplicaSet.
    pub fn set_replica_set(&mut self, set: &ReplicaSet) {
        self.cluster.set_workload(&convert::replica_set(set));
    }

    /// Removes a ReplicaSet.
    pub fn remove_replica_set(&mut self, set: &ReplicaSet) {
        let (namespace, name) = name(set);
        self.cluster.remove_workload("ReplicaSet", namespace, name);
    }

    /// Adds or updates a StatefulSet or ReplicationController.
    pub fn set_workload(&mut self, workload: &WorkloadSpec) {
        self.cluster.set_workload(workload);
    }

    /// Removes a StatefulSet or ReplicationController.
    pub fn remove_workload(&mut self, workload: &WorkloadSpec) {
        let WorkloadSpec {
            kind,
            namespace,
            name,
            ..
        } = workload;
        self.cluster.remove_workload(kind, namespace, name);
    }

    /// Adds or updates a PodDisruptionBudget.
    pub fn set_pdb(&mut self, pdb: &PodDisruptionBudget) {
        self.cluster.set_pdb(&convert::pdb(pdb));
    }

    /// Removes a PodDisruptionBudget.
    pub fn remove_pdb(&mut self, pdb: &PodDisruptionBudget) {
        let (namespace, name) = name(pdb);
        self.cluster.remove_pdb(namespace, name);
    }

    /// Assumes a pending pod on `node`: it counts as bound from now on.
    ///
    /// # Errors
    /// Returns an error if the pod is bound already.
    pub fn assume(&mut self, pod: &PodSpec, node: &str) -> Result<(), ModelError> {
        self.cluster.bind(pod, node)?;
        self.assumed.insert(pod.key(), node.to_owned());
        Ok(())
    }

    /// Drops an assumption after its binding failed. A pod that the watch has shown as bound stays.
    pub fn forget(&mut self, key: &str) {
        if self.assumed.remove(key).is_some() {
            report(self.cluster.remove_pod(key));
            // The pod is pending again, and its place in the plan is still meant for it.
            self.hold_promised(key);
        }
    }

    /// Returns whether a pod is assumed and not confirmed yet.
    pub fn is_assumed(&self, key: &str) -> bool {
        self.assumed.contains_key(key)
    }

    /// Holds room for a pod on its nominated node while it waits, and releases it otherwise.
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
            _ => self.release_room(key),
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

/// Logs an object that the model rejects; it is left out of placement.
fn report<T>(result: Result<T, ModelError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "object left out of the cluster model");
    }
}

#[cfg(test)]
pub(in crate::state) mod tests {
    use mullion_engine::Decision;
    use serde_json::{Value, json};

    use super::*;

    pub(super) fn state_with_node(cpu: &str) -> ClusterState {
        let mut state = ClusterState::new(Options::default());
        let node = json!({ "metadata": { "name": "n1" }, "status": { "allocatable": { "cpu": cpu, "pods": "10" } } });
        state.set_node(&serde_json::from_value(node).expect("a node"));
        state
    }

    pub(super) fn pod(name: &str, node: Option<&str>, extra: Value) -> Pod {
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

    #[test]
    fn room_made_by_preemption_is_held_against_pods_of_the_same_priority() {
        let mut state = state_with_node("1");
        state.set_pod(&pod("a", None, json!({ "nominatedNodeName": "n1" })));
        assert!(!fits(&mut state));
        state.set_pod(&pod("a", None, json!({})));
        assert!(fits(&mut state));
    }
}
