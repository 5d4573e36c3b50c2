//! The address that a pod to come will ask for on a Windows node.
//!
//! A webhook of the VPC resource controller adds the request to pods when they are created, so templates of DaemonSets and
//! capacity buffers do not have it.

use k8s_openapi::{api::core::v1::PodSpec, apimachinery::pkg::api::resource::Quantity};
use mullion_api::labels;
use mullion_cloud::WindowsAddresses;

/// Adds the request for an address to a pod's first container if the pod is for Windows, not on its host's network, and pods
/// get addresses.
pub(crate) fn ask(spec: &mut PodSpec, addresses: WindowsAddresses) {
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
