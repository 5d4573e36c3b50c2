//! The built-in plugins in upstream's order. Embedding programs add theirs after them.

use std::sync::Arc;

use super::{
    Plugin,
    certificates::{CertificateApproval, CertificateSigning, CertificateSubjectRestriction},
    claim_resize::ClaimResize,
    default_ingress_class::DefaultIngressClass,
    default_storage_class::DefaultStorageClass,
    default_tolerations::DefaultTolerations,
    limit_ranger::LimitRanger,
    namespace_lifecycle::NamespaceLifecycle,
    node_features::NodeFeatures,
    pod_resize::PodResize,
    pod_security::PodSecurity,
    pod_topology::PodTopologyLabels,
    priority::Priority,
    quota::ResourceQuota,
    runtime_class::RuntimeClass,
    service_account::ServiceAccount,
    storage_protection::StorageProtection,
    taint_nodes::TaintNodesByCondition,
};

/// The plugins of every server, in the order they run.
pub fn builtins() -> Vec<Arc<dyn Plugin>> {
    vec![
        Arc::new(NamespaceLifecycle),
        Arc::new(LimitRanger),
        Arc::new(ServiceAccount),
        Arc::new(TaintNodesByCondition),
        Arc::new(PodSecurity),
        Arc::new(Priority),
        Arc::new(DefaultTolerations),
        Arc::new(DefaultStorageClass),
        Arc::new(StorageProtection),
        Arc::new(ClaimResize),
        Arc::new(RuntimeClass),
        Arc::new(CertificateApproval),
        Arc::new(CertificateSigning),
        Arc::new(CertificateSubjectRestriction),
        Arc::new(DefaultIngressClass),
        Arc::new(PodTopologyLabels),
        Arc::new(NodeFeatures),
        Arc::new(PodResize),
        Arc::new(ResourceQuota),
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
            "LimitRanger",
            "ServiceAccount",
            "TaintNodesByCondition",
            "PodSecurity",
            "Priority",
            "DefaultTolerationSeconds",
            "DefaultStorageClass",
            "StorageObjectInUseProtection",
            "PersistentVolumeClaimResize",
            "RuntimeClass",
            "CertificateApproval",
            "CertificateSigning",
            "CertificateSubjectRestriction",
            "DefaultIngressClass",
            "PodTopologyLabels",
            "NodeDeclaredFeatureValidator",
            "PodResizeValidator",
            "ResourceQuota",
        ];
        assert_eq!(names, expected);
    }
}
