//! What a pod to come will ask for beside what its template says.
//!
//! The API server defaults the requests of pods and not those of templates, and a webhook of the VPC resource controller adds the request for an
//! address to Windows pods when they are created. So templates of DaemonSets and capacity buffers have neither.

use k8s_openapi::{api::core::v1::PodSpec, apimachinery::pkg::api::resource::Quantity};
use mullion_api::labels;
use mullion_cloud::WindowsAddresses;

/// Makes the spec of a template that of its pods: with the requests that limits stand for, and the request for an address.
pub(crate) fn complete(spec: &mut PodSpec, addresses: WindowsAddresses) {
    request_limits(spec);
    ask_for_address(spec, addresses);
}

/// Adds a request for each limit of a container that has none (kube-apiserver: `SetDefaults_Pod`; karpenter: `PodForDaemonSet`).
pub(crate) fn request_limits(spec: &mut PodSpec) {
    let init = spec.init_containers.iter_mut().flatten();
    let containers = spec.containers.iter_mut().chain(init);
    for resources in containers.filter_map(|container| container.resources.as_mut()) {
        for (name, limit) in resources.limits.iter().flatten() {
            let requests = resources.requests.get_or_insert_default();
            let request = requests.entry(name.clone());
            request.or_insert_with(|| limit.clone());
        }
    }
}

/// Adds the request for an address to a pod's first container if the pod is for Windows, not on its host's network, and pods
/// get addresses.
fn ask_for_address(spec: &mut PodSpec, addresses: WindowsAddresses) {
    let needs_address = is_for_windows(spec) && addresses != WindowsAddresses::Off;
    let Some(first) = spec.containers.first_mut().filter(|_| needs_address) else {
        return;
    };
    let resources = first.resources.get_or_insert_default();
    let requests = resources.requests.get_or_insert_default();
    requests.insert(labels::PRIVATE_IPV4.to_owned(), Quantity("1".to_owned()));
}

fn is_for_windows(spec: &PodSpec) -> bool {
    let mut selector = spec.node_selector.iter().flatten();
    let selected = selector.find(|(key, _)| labels::normalized(key) == labels::OS);
    let selected = selected.map(|(_, value)| value.as_str());
    let named = spec.os.as_ref().map(|os| os.name.as_str());
    let is_windows = [selected, named].contains(&Some(labels::OS_WINDOWS));
    is_windows && spec.host_network != Some(true)
}
