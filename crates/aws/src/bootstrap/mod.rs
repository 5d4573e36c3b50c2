//! User data: the script or settings with which a new machine joins the cluster, in the form of its image family.
//!
//! [`user_data`] returns text, which EC2 takes in base64. The user's own user data comes first, or is merged if the form allows that (AWS
//! provider: `pkg/providers/amifamily/bootstrap`). The same input gives the same bytes, because launch templates are found by their hash.

mod bottlerocket;
mod kubelet_args;
mod mime;
mod nodeadm;
mod script;
mod windows;
mod yaml;

use std::collections::BTreeMap;

use mullion_api::{
    ami::AmiFamily,
    eksctl::Taint,
    karpenter::{EC2NodeClassSpec, KubeletConfiguration},
    labels,
};

/// The facts about a cluster that machines need to join it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// The name of the cluster.
    pub name: String,
    /// The URL of the API server.
    pub endpoint: String,
    /// The certificate authority of the API server, PEM in base64.
    pub ca_bundle: Option<String>,
    /// The address of the DNS service.
    pub dns: Option<String>,
    /// The CIDR block of the Services' addresses.
    pub service_cidr: Option<String>,
}

/// The input of a machine's user data.
#[derive(Clone, Debug)]
pub struct Bootstrap<'a> {
    /// The cluster that the machine joins.
    pub cluster: &'a ClusterFacts,
    /// The class of the machine.
    pub class: &'a EC2NodeClassSpec,
    /// The number of pods that the machine may run.
    pub max_pods: u64,
    /// Labels of the node.
    pub labels: &'a BTreeMap<String, String>,
    /// Taints of the node.
    pub taints: &'a [Taint],
    /// Name of the image.
    pub image_name: &'a str,
}

/// The reason why there is no user data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// The class's own user data cannot be parsed.
    #[error("spec.userData of the EC2NodeClass cannot be merged: {0}")]
    UserData(String),
    /// The service CIDR is unknown.
    #[error(
        "the addresses of the cluster's services are not known, which AL2023 nodes have to be told: eks:DescribeCluster has to be allowed"
    )]
    NoServiceCidr,
}

/// Writes the user data of a machine.
///
/// # Errors
/// The class's own user data cannot be merged, or a fact about the cluster is missing.
pub fn user_data(family: AmiFamily, bootstrap: &Bootstrap<'_>) -> Result<String, BootstrapError> {
    let input = Input::new(family, bootstrap);
    match family {
        AmiFamily::AmazonLinux2023 => nodeadm::write(&input),
        AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips => {
            bottlerocket::write(&input, bootstrap.image_name)
        }
        AmiFamily::Windows(..) => Ok(windows::write(&input)),
        AmiFamily::Custom => Ok(input.user_data.to_owned()),
        AmiFamily::AmazonLinux2
        | AmiFamily::Ubuntu2004
        | AmiFamily::UbuntuPro2004
        | AmiFamily::Ubuntu2204
        | AmiFamily::UbuntuPro2204
        | AmiFamily::Ubuntu2404
        | AmiFamily::UbuntuPro2404
        | AmiFamily::Ubuntu2604
        | AmiFamily::UbuntuPro2604 => script::write(&input),
    }
}

/// The common input of all forms: labels that a kubelet may set, and kubelet settings including the number of pods and the DNS service.
struct Input<'a> {
    cluster: &'a ClusterFacts,
    kubelet: KubeletConfiguration,
    labels: BTreeMap<&'a str, &'a str>,
    taints: &'a [Taint],
    user_data: &'a str,
    raid0: bool,
    alias: Option<&'a str>,
}

impl<'a> Input<'a> {
    fn new(family: AmiFamily, bootstrap: &Bootstrap<'a>) -> Self {
        let Bootstrap { cluster, class, .. } = *bootstrap;
        let mut kubelet = class.kubelet.clone().unwrap_or_default();
        if kubelet.max_pods.is_none() {
            kubelet.max_pods = i32::try_from(bootstrap.max_pods).ok();
        }
        if kubelet.cluster_dns.is_empty() {
            kubelet.cluster_dns.extend(cluster.dns.clone());
        }
        let own = bootstrap.labels.iter().map(|(k, v)| (&**k, &**v));
        // A kubelet with a forbidden label would be refused as a whole. The controller sets those labels when
        // the node registers.
        let mut labels: BTreeMap<_, _> = own.filter(|(key, _)| may_set(key)).collect();
        // The registration of the node must not be overwritten from the claim: its startup taints may be gone by then.
        if family != AmiFamily::Custom {
            labels.insert(labels::DO_NOT_SYNC_TAINTS, "true");
        }
        Self {
            cluster,
            kubelet,
            labels,
            taints: bootstrap.taints,
            user_data: class.user_data.as_deref().unwrap_or_default(),
            raid0: class.instance_store_policy.as_deref() == Some("RAID0"),
            alias: class
                .ami_selector_terms
                .iter()
                .find_map(|term| term.alias.as_deref()),
        }
    }
}

/// Returns whether a kubelet may set a label of its node (kube-apiserver: NodeRestriction).
fn may_set(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let is_within = |of: &str| {
        let before = domain.strip_suffix(of);
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    !["node-restriction.kubernetes.io", "kubernetes.io", "k8s.io"]
        .into_iter()
        .any(is_within)
}

#[cfg(test)]
mod tests;
