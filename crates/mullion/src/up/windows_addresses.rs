//! Every Windows pod asks for one address: what the VPC resource controller's mutating webhook does at admission.
//!
//! Only while the ConfigMap kube-system/amazon-vpc-cni switches Windows IP management on, as on EKS. Beyond upstream, `spec.os.name` tells a Windows
//! pod as well as its node selector does; a RuntimeClass has put its node selector into the pod before this plugin runs.

use mullion_api::labels;
use mullion_apiserver::{
    admission::{Ctx, Plugin, Request, What},
    status::Status,
};
use serde_json::{Value, json};

/// The plugin; it stands after the API server's own.
pub(super) struct WindowsAddresses;

impl Plugin for WindowsAddresses {
    fn name(&self) -> &'static str {
        "WindowsAddresses"
    }

    fn handles(&self, what: &What<'_>) -> bool {
        what.creates("", "pods")
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let spec = &mut request.object["spec"];
        if is_windows(spec) && spec["hostNetwork"] != true && is_enabled(ctx) {
            ask_for_address(spec);
        }
        Ok(())
    }
}

fn is_windows(spec: &Value) -> bool {
    let selector = &spec["nodeSelector"];
    [
        &selector[labels::OS],
        &selector["beta.kubernetes.io/os"],
        &spec["os"]["name"],
    ]
    .into_iter()
    .any(|os| os == labels::OS_WINDOWS)
}

/// The words Go's ParseBool takes for true.
fn is_enabled(ctx: &Ctx<'_>) -> bool {
    let config = ctx
        .lookup
        .find("", "configmaps", Some("kube-system"), "amazon-vpc-cni");
    let value = config
        .as_ref()
        .and_then(|config| config["data"]["enable-windows-ipam"].as_str());
    value.is_some_and(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
}

/// One address, whatever was asked for, in the first container: the resource is counted for the pod as a whole.
fn ask_for_address(spec: &mut Value) {
    let Some(container) = spec["containers"].get_mut(0) else {
        return;
    };
    for list in ["requests", "limits"] {
        let resources = &mut container["resources"];
        if !resources.is_object() {
            *resources = json!({});
        }
        if !resources[list].is_object() {
            resources[list] = json!({});
        }
        resources[list][labels::PRIVATE_IPV4] = "1".into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_windows_by_selector_or_by_its_own_word() {
        assert!(is_windows(
            &json!({"nodeSelector": {"kubernetes.io/os": "windows"}})
        ));
        assert!(is_windows(&json!({"os": {"name": "windows"}})));
        assert!(!is_windows(
            &json!({"nodeSelector": {"kubernetes.io/os": "linux"}})
        ));
        assert!(!is_windows(&json!({})));
    }

    #[test]
    fn the_first_container_asks_for_one_address_and_keeps_what_it_asked_for() {
        let mut spec = json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "100m"}}}, {"name": "b"}]});
        ask_for_address(&mut spec);
        assert_eq!(
            spec["containers"][0]["resources"],
            json!({"requests": {"cpu": "100m", "vpc.amazonaws.com/PrivateIPv4Address": "1"}, "limits": {"vpc.amazonaws.com/PrivateIPv4Address": "1"}})
        );
        assert_eq!(spec["containers"][1], json!({"name": "b"}));
    }
}
