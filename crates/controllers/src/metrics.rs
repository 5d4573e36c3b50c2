//! The objects of `metrics.k8s.io/v1beta1`, which k8s-openapi lacks: resource usage of nodes and pods.
//!
//! The simulated kubelets write them ([`crate::kubelet::usage`]), the autoscaler reads them ([`crate::autoscaler`]).

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
};
use kube::{
    Client,
    api::ListParams,
    core::{Duration, Request},
};
use serde::{Deserialize, Serialize};

/// The API group.
pub const GROUP: &str = "metrics.k8s.io";
/// The API version.
pub const VERSION: &str = "v1beta1";

/// Amounts by resource name, `cpu` and `memory`.
pub type Amounts = BTreeMap<String, Quantity>;

/// The resource usage of a pod's containers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodMetrics {
    /// Name, namespace and labels of the pod.
    pub metadata: ObjectMeta,
    /// The end of the window.
    pub timestamp: Time,
    /// The time over which usage was measured.
    pub window: Duration,
    /// One entry per running container.
    pub containers: Vec<ContainerMetrics>,
}

/// The resource usage of one container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerMetrics {
    /// The container's name.
    pub name: String,
    /// The amounts that it uses.
    pub usage: Amounts,
}

/// The resource usage of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeMetrics {
    /// Name and labels of the node.
    pub metadata: ObjectMeta,
    /// The end of the window.
    pub timestamp: Time,
    /// The time over which usage was measured.
    pub window: Duration,
    /// The amounts that it uses.
    pub usage: Amounts,
}

#[derive(Deserialize)]
struct PodMetricsList {
    items: Vec<PodMetrics>,
}

/// Returns the metrics of the pods in a namespace that a label selector matches.
pub async fn of_pods(
    client: &Client,
    namespace: &str,
    selector: &str,
) -> kube::Result<Vec<PodMetrics>> {
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/pods");
    let request = Request::new(path)
        .list(&ListParams::default().labels(selector))
        .map_err(kube::Error::BuildRequest)?;
    let list: PodMetricsList = client.request(request).await?;
    Ok(list.items)
}

impl PodMetrics {
    /// Creates the metrics of `pod` without containers, which the caller adds.
    pub fn of(pod: &Pod, timestamp: Time, window: Duration) -> Self {
        Self {
            metadata: ObjectMeta {
                name: pod.metadata.name.clone(),
                namespace: pod.metadata.namespace.clone(),
                labels: pod.metadata.labels.clone(),
                creation_timestamp: Some(timestamp.clone()),
                ..ObjectMeta::default()
            },
            timestamp,
            window,
            containers: Vec::new(),
        }
    }
}
