//! The built-in plugins in upstream's order. Embedding programs add theirs after them.

use std::sync::Arc;

use super::{
    Plugin, claim_resize::ClaimResize, default_storage_class::DefaultStorageClass,
    default_tolerations::DefaultTolerations, namespace_lifecycle::NamespaceLifecycle,
    pod_security::PodSecurity, pod_topology::PodTopologyLabels, priority::Priority,
    runtime_class::RuntimeClass, service_account::ServiceAccount,
    storage_protection::StorageProtection, taint_nodes::TaintNodesByCondition,
};

/// The plugins of every server, in the order they run.
pub fn builtins() -> Vec<Arc<dyn Plugin>> {
    vec![
        Arc::new(NamespaceLifecycle),
        Arc::new(ServiceAccount),
        Arc::new(TaintNodesByCondition),
        Arc::new(PodSecurity),
        Arc::new(Priority),
        Arc::new(DefaultTolerations),
        Arc::new(DefaultStorageClass),
        Arc::new(StorageProtection),
        Arc::new(ClaimResize),
        Arc::new(RuntimeClass),
        Arc::new(PodTopologyLabels),
    ]
}

#[cfg(test)]
mod tests {
    use super::builtins;

    #[test]
    fn the_order_is_kube_apiserver_s() {
        let names: Vec<&str> = builtins().iter().map(|plugin| plugin.name()).collect();
        let expected = [
            "NamespaceLifecycle",
            "ServiceAccount",
            "TaintNodesByCondition",
            "PodSecurity",
            "Priority",
            "DefaultTolerationSeconds",
            "DefaultStorageClass",
            "StorageObjectInUseProtection",
            "PersistentVolumeClaimResize",
            "RuntimeClass",
            "PodTopologyLabels",
        ];
        assert_eq!(names, expected);
    }
}
