//! Values of the downward API: fields of a pod, resources of a container (kubelet: `podFieldSelectorRuntimeValue`,
//! `containerResourceRuntimeValue` and `defaultPodLimitsForDownwardAPI`).

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Node, Pod, ResourceFieldSelector},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use mullion_engine::model::Quantity;

/// Resources for which a container without a limit gets the node's allocatable amount.
const LIMITED_BY_NODE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Returns the value of a field that an environment may take; `None` for a path that validation refuses.
pub(super) fn of_pod(pod: &Pod, path: &str) -> Option<String> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let listed = |addresses: Vec<&str>| addresses.join(",");
    let value = match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone(),
        "metadata.uid" => meta.uid.clone(),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|spec| spec.service_account_name.clone()),
        "status.hostIP" => status.and_then(|status| status.host_ip.clone()),
        "status.podIP" => status.and_then(|status| status.pod_ip.clone()),
        "status.hostIPs" => status.map(|status| {
            let all = status.host_ips.iter().flatten();
            listed(all.map(|address| address.ip.as_str()).collect())
        }),
        "status.podIPs" => status.map(|status| {
            let all = status.pod_ips.iter().flatten();
            listed(all.map(|address| address.ip.as_str()).collect())
        }),
        _ => {
            let (map, key) = path.strip_suffix("']")?.split_once("['")?;
            let map = match map {
                "metadata.labels" => &meta.labels,
                "metadata.annotations" => &meta.annotations,
                _ => return None,
            };
            map.as_ref().and_then(|map| map.get(key).cloned())
        }
    };
    Some(value.unwrap_or_default())
}

/// Returns a container's request or limit of a resource in units of the divisor, rounded up.
pub(super) fn of_resources(
    pod: &Pod,
    own: &Container,
    selector: &ResourceFieldSelector,
    node: Option<&Node>,
) -> Option<String> {
    let container = match selector.container_name.as_deref() {
        None | Some("") => own,
        Some(name) => {
            let spec = pod.spec.as_ref()?;
            let inits = spec.init_containers.iter().flatten();
            let mut all = spec.containers.iter().chain(inits);
            all.find(|container| container.name == name)?
        }
    };
    let resources = container.resources.as_ref();
    let (kind, name) = selector.resource.split_once('.')?;
    let amount = match kind {
        "requests" => amount(
            resources.and_then(|resources| resources.requests.as_ref()),
            name,
        ),
        "limits" => {
            let limits = resources.and_then(|resources| resources.limits.as_ref());
            amount(limits, name)
                // The kubelet treats a limit of zero as no limit.
                .filter(|limit| !limit.is_zero())
                .or_else(|| {
                    let status = node?.status.as_ref()?;
                    let limited = LIMITED_BY_NODE.contains(&name);
                    limited.then(|| amount(status.allocatable.as_ref(), name))?
                })
        }
        _ => return None,
    };
    let divisor = selector.divisor.as_ref();
    let divisor: Option<Quantity> = divisor.and_then(|divisor| divisor.0.parse().ok());
    let divisor = divisor.filter(|divisor| !divisor.is_zero());
    let divisor = divisor.unwrap_or(Quantity::from_units(1));
    Some(in_units_of(amount.unwrap_or_default(), divisor, name == "cpu").to_string())
}

fn amount(list: Option<&BTreeMap<String, ApiQuantity>>, name: &str) -> Option<Quantity> {
    list?.get(name)?.0.parse().ok()
}

/// Divides and rounds up; CPU is counted in millicores.
fn in_units_of(amount: Quantity, divisor: Quantity, is_cpu: bool) -> i64 {
    let counted = |quantity: Quantity| {
        if is_cpu {
            quantity.milli_value()
        } else {
            quantity.value()
        }
    };
    let (amount, divisor) = (counted(amount), counted(divisor).max(1));
    amount / divisor + i64::from(amount % divisor > 0)
}
