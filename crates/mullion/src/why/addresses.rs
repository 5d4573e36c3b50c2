//! Tells whether a Windows pod gets an address, and if not, which setting prevents it.

use std::sync::Arc;

use mullion_api::labels;
use mullion_controllers::admission::{
    Access, ClusterReader, Permission, Rule, ServiceAccount, Write, addresses::WindowsAddresses,
};
use mullion_engine::{Cluster, model::PodSpec};
use serde_json::Value;

use super::{pools::Pools, state::State};

/// Adds the request for an address to a pod that will run on Windows, as the address controller's webhook does while Windows IP management
/// is on.
pub(super) fn request(pod: &mut Value, state: &State) {
    let rule = WindowsAddresses {
        controllers: vec![String::new()],
    };
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let write = Write {
        user: "",
        namespace,
        pod,
        old: None,
    };
    let verdict = rule.mutate(&write, &Objects(state));
    for change in verdict.changes {
        change.apply(pod);
    }
}

/// Gives admission rules access to the objects of a state.
struct Objects<'a>(&'a State);

impl ClusterReader for Objects<'_> {
    fn find(
        &self,
        _group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>> {
        let kind = match plural {
            "configmaps" => "ConfigMap",
            "runtimeclasses" => "RuntimeClass",
            _ => return None,
        };
        let object = self
            .0
            .kept_object(kind, namespace.unwrap_or_default(), name)?;
        Some(Arc::new(object.clone()))
    }

    fn list(&self, _group: &str, _plural: &str, _namespace: Option<&str>) -> Vec<Arc<Value>> {
        Vec::new()
    }

    fn may(&self, _account: &ServiceAccount<'_>, _access: &Access<'_>) -> Permission {
        Permission::default()
    }
}

/// Returns why a Windows pod without an address gets none, as far as the ConfigMap and the pod's resource requests show; `None` if it needs
/// none or nothing prevents it.
pub(super) fn missing(pod: &PodSpec, cluster: &Cluster, pools: &Pools) -> Option<String> {
    let settings = pools.address_settings?;
    let title = (pod.template.namespace.clone(), pod.name.clone());
    let needs_none = pod.template.host_network || pools.addressed.contains(&title);
    if needs_none || !is_windows(pod, cluster) {
        return None;
    }
    let containers = pod.template.containers.iter();
    let mut requests = containers.map(|container| &container.resources.requests);
    let asks = requests.any(|own| own.contains_key(labels::PRIVATE_IPV4));
    match (settings.windows_ipam, asks) {
        (false, _) => Some(
            "the ConfigMap kube-system/amazon-vpc-cni does not say enable-windows-ipam: \"true\". Set it and create the pod anew"
                .to_owned(),
        ),
        (true, false) => Some(format!(
            "it requests no {}. Pods that are created while the ConfigMap kube-system/amazon-vpc-cni says enable-windows-ipam: \"true\" \
             do: create it anew",
            labels::PRIVATE_IPV4
        )),
        (true, true) => None,
    }
}

/// Returns whether the pod runs on Windows: by its node, or else by its node selector or `spec.os.name`.
fn is_windows(pod: &PodSpec, cluster: &Cluster) -> bool {
    let node = pod.node_name.as_deref().and_then(|node| cluster.node(node));
    let by_node = node.and_then(|node| cluster.os_of(node));
    let by_selector = pod.template.node_selector.get(labels::OS);
    let own = by_selector.or(pod.template.os.as_ref());
    by_node.or(own.map(String::as_str)) == Some(labels::OS_WINDOWS)
}
