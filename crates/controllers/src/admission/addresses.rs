//! Requests the address of a Windows pod, and decides who may write the address into the pod.
//!
//! Source: amazon-vpc-resource-controller-k8s ("VRC"), webhooks/core. As in VRC, nothing happens unless the
//! ConfigMap `kube-system/amazon-vpc-cni` enables Windows addresses, and a Deployment of the controller's legacy
//! version disables them. VRC recognizes a Windows pod only by its node selector; here every way to request Windows
//! counts ([`super::system`]).

use std::collections::BTreeMap;

use mullion_api::labels::{OS_WINDOWS, PRIVATE_IPV4};
use mullion_engine::ip::Settings;
use serde_json::Value;

use super::{ClusterReader, Rule, Verdict, Write, system};

/// The users that VRC runs as.
const CONTROLLERS: [&str; 3] = [
    "system:serviceaccount:kube-system:vpc-resource-controller",
    "system:serviceaccount:kube-system:eks-vpc-resource-controller",
    "eks:vpc-resource-controller",
];

/// Requests one address for every pod that will run on Windows, and prevents other users from choosing the address.
pub struct WindowsAddresses {
    /// The users that address controllers run as, in addition to VRC's.
    pub controllers: Vec<String>,
}

impl Rule for WindowsAddresses {
    fn name(&self) -> &'static str {
        "WindowsAddresses"
    }

    fn mutate(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        match write.old {
            None => requests(&write.pod["spec"], cluster),
            // Requests of a stored pod cannot be changed.
            Some(_) => Verdict::default(),
        }
    }

    fn validate(&self, write: &Write<'_>, cluster: &dyn ClusterReader) -> Verdict {
        let address = annotation(write.pod);
        let why = match write.old {
            None if address.is_some() => {
                format!("pod cannot be created with {PRIVATE_IPV4} annotation")
            }
            Some(old)
                // An empty annotation counts as none, as in VRC.
                if address.unwrap_or_default() != annotation(old).unwrap_or_default()
                    && !self.is_controller(write.user) =>
            {
                "annotation is not set by vpc-resource-controller".to_owned()
            }
            _ => return Verdict::default(),
        };
        // Looked up last, because most writes need no ConfigMap.
        if is_switched_on(cluster) {
            Verdict::forbidden(why)
        } else {
            Verdict::default()
        }
    }
}

impl WindowsAddresses {
    fn is_controller(&self, user: &str) -> bool {
        self.controllers.iter().any(|own| own == user) || CONTROLLERS.contains(&user)
    }
}

/// Returns whether a new pod with this spec would get a request for an address that the spec does not have.
pub fn lacks_request(spec: &Value, cluster: &dyn ClusterReader) -> bool {
    !requests(spec, cluster).changes.is_empty()
}

fn requests(spec: &Value, cluster: &dyn ClusterReader) -> Verdict {
    let mut verdict = Verdict::default();
    if spec["hostNetwork"] != true
        && !system::is_host_process(spec)
        && system::is_required(spec, OS_WINDOWS, cluster)
        && is_switched_on(cluster)
    {
        request_address(&spec["containers"][0], &mut verdict);
    }
    verdict
}

fn annotation(pod: &Value) -> Option<&str> {
    pod["metadata"]["annotations"][PRIVATE_IPV4].as_str()
}

/// Sets request and limit of the first container to one address, whatever they were: the whole pod gets one
/// address.
fn request_address(first: &Value, verdict: &mut Verdict) {
    for list in ["requests", "limits"] {
        if first["resources"][list][PRIVATE_IPV4] != "1" {
            let path = ["spec", "containers", "0", "resources", list, PRIVATE_IPV4];
            verdict.set(&path, "1");
        }
    }
}

/// Returns whether Windows pods get addresses (VRC: `IsWindowsIPAMEnabled`).
fn is_switched_on(cluster: &dyn ClusterReader) -> bool {
    let namespace = Some("kube-system");
    let legacy = cluster.find("apps", "deployments", namespace, "vpc-resource-controller");
    if legacy.is_some() {
        return false;
    }
    let config = cluster.find("", "configmaps", namespace, "amazon-vpc-cni");
    config.is_some_and(|config| {
        let data = config["data"].as_object().into_iter().flatten();
        let data = data.map(|(key, value)| {
            let value = value.as_str().unwrap_or_default();
            (key.clone(), value.to_owned())
        });
        Settings::read(&BTreeMap::from_iter(data)).0.windows_ipam
    })
}
