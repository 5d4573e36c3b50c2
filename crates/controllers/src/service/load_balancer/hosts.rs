//! The nodes that load balancers send traffic to.
//!
//! A node counts from its creation until its deletion begins, whether it is ready or not (the stable node set of
//! cloud-controller-manager): health checks, not membership, keep traffic from nodes that do not answer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::Change;

const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The taint that the cluster autoscaler sets on a node that it is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Node names with the provider IDs of their machines.
pub(super) type Hosts = Arc<BTreeMap<String, Option<String>>>;

/// The current set of hosts.
#[derive(Debug, Default)]
pub(super) struct HostSet(Mutex<Hosts>);

impl HostSet {
    pub(super) fn get(&self) -> Hosts {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Updates the set after a node changed. Returns whether the set is different now.
    pub(super) fn observe(&self, change: &Change<'_, Node>) -> bool {
        let node = change.object();
        let machine = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        let wanted = (!change.is_deleted() && is_host(node)).then_some(machine);
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = node.name_any();
        // Heartbeats change nodes all the time; only a different set concerns the load balancers.
        if hosts.get(&name) == wanted.as_ref() {
            return false;
        }
        let hosts = Arc::make_mut(&mut hosts);
        match wanted {
            Some(machine) => drop(hosts.insert(name, machine)),
            None => drop(hosts.remove(&name)),
        }
        true
    }
}

fn is_host(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let is_doomed = |key: &str| key == TO_BE_DELETED;
    node.metadata.deletion_timestamp.is_none()
        && !node.labels().contains_key(EXCLUDED)
        && !taints
            .into_iter()
            .flatten()
            .any(|taint| is_doomed(&taint.key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_a_host_from_its_creation_to_its_deletion_unless_it_is_excluded() {
        let hosts = HostSet::default();
        let node = |value| Arc::new(serde_json::from_value::<Node>(value).expect("a node"));
        let plain = node(json!({"metadata": {"name": "n"}}));
        assert!(hosts.observe(&Change::Added(&plain)));
        assert!(!hosts.observe(&Change::Added(&plain)));
        assert!(hosts.get().contains_key("n"));
        let excluded = node(json!({"metadata": {"name": "n", "labels": {EXCLUDED: ""}}}));
        assert!(hosts.observe(&Change::Updated {
            old: &plain,
            new: &excluded
        }));
        let doomed = node(
            json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": TO_BE_DELETED, "effect": "NoSchedule"}]}}),
        );
        assert!(!hosts.observe(&Change::Updated {
            old: &excluded,
            new: &doomed
        }));
        assert!(hosts.observe(&Change::Updated {
            old: &doomed,
            new: &plain
        }));
        assert!(hosts.observe(&Change::Deleted(&plain)));
        assert!(hosts.get().is_empty());
    }
}
