//! The built-in plugins in upstream's order. Embedding programs add theirs after them.

use std::{str::FromStr, sync::Arc};

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

/// Returns the plugins of every server in the order in which they run.
pub fn builtins() -> Vec<Arc<dyn Plugin>> {
    vec![
        // First, so that nothing is computed for an object whose namespace does not exist or is being deleted.
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
        // Before the quota, which counts the overhead that the class adds.
        Arc::new(RuntimeClass),
        Arc::new(CertificateApproval),
        Arc::new(CertificateSigning),
        Arc::new(CertificateSubjectRestriction),
        Arc::new(DefaultIngressClass),
        Arc::new(PodTopologyLabels),
        Arc::new(NodeFeatures),
        Arc::new(PodResize),
        // Last (kube-apiserver: AllOrderedPlugins), so that only writes that nothing else refuses are charged.
        Arc::new(ResourceQuota),
    ]
}

/// Built-in plugins that do not run (kube-apiserver: `--disable-admission-plugins`). From their names, with commas between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisabledPlugins(Vec<&'static str>);

impl DisabledPlugins {
    /// Returns the plugins that are not disabled.
    pub(crate) fn without(&self, mut plugins: Vec<Arc<dyn Plugin>>) -> Vec<Arc<dyn Plugin>> {
        plugins.retain(|plugin| !self.0.contains(&plugin.name()));
        plugins
    }
}

/// A name that no built-in plugin has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no admission plugin that can be left out; those are {}", known.join(", "))]
pub struct UnknownPlugin {
    /// The name.
    pub name: String,
    /// The names of the known plugins.
    pub known: Vec<&'static str>,
}

impl FromStr for DisabledPlugins {
    type Err = UnknownPlugin;

    fn from_str(names: &str) -> Result<Self, UnknownPlugin> {
        let known: Vec<&str> = builtins().iter().map(|plugin| plugin.name()).collect();
        let names = names.split(',').filter(|name| !name.is_empty());
        let found = names.map(|name| {
            let found = known.iter().find(|known| **known == name);
            found.copied().ok_or_else(|| UnknownPlugin {
                name: name.to_owned(),
                known: known.clone(),
            })
        });
        Ok(DisabledPlugins(found.collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::{DisabledPlugins, builtins};

    #[test]
    fn plugins_are_left_out_by_name_and_an_unknown_name_is_told_the_known_ones() {
        let disabled: DisabledPlugins = "ServiceAccount,Priority".parse().unwrap();
        let left = disabled.without(builtins());
        assert_eq!(left.len(), builtins().len() - 2);
        assert!(
            left.iter()
                .all(|plugin| !["ServiceAccount", "Priority"].contains(&plugin.name()))
        );
        assert_eq!("".parse(), Ok(DisabledPlugins::default()));
        let error = "ServiceAccount,serviceaccount".parse::<DisabledPlugins>();
        let error = error.unwrap_err().to_string();
        let begins = "\"serviceaccount\" is no admission plugin that can be left out; those are NamespaceLifecycle, LimitRanger, ";
        assert!(
            error.starts_with(begins) && error.ends_with(", ResourceQuota"),
            "{error}"
        );
    }

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
