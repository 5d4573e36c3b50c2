//! The informers that controllers share, with the indexes they look things up by.
//!
//! A field is started by its first reader (see [`Informer::synced`]). Kinds that only one controller reads belong to
//! that controller, not here.

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet},
    core::v1::{Endpoints, Namespace, Node, Pod, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use kube::{Api, Client, Resource};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Informer, informer::IndexFn};

/// Index of pods by `spec.nodeName`; pods without a node are filed under the empty string.
pub const BY_NODE: &str = "node";
/// Index by the uid of the controlling owner; objects without one are filed under [`orphans_of`] their namespace.
pub const BY_CONTROLLER: &str = "controller";

/// Index of EndpointSlices by the `namespace/name` of their Service.
pub const BY_SERVICE: &str = "service";

/// Where [`BY_CONTROLLER`] files the objects of `namespace` that nothing controls.
pub fn orphans_of(namespace: &str) -> String {
    format!("orphans/{namespace}")
}

/// The shared informers of a process.
#[derive(Clone, Debug)]
pub struct Informers {
    /// Pods, by node ([`BY_NODE`]) and controller ([`BY_CONTROLLER`]).
    pub pods: Informer<Pod>,
    /// Nodes.
    pub nodes: Informer<Node>,
    /// Namespaces.
    pub namespaces: Informer<Namespace>,
    /// Deployments.
    pub deployments: Informer<Deployment>,
    /// ReplicaSets, by controller ([`BY_CONTROLLER`]).
    pub replica_sets: Informer<ReplicaSet>,
    /// DaemonSets.
    pub daemon_sets: Informer<DaemonSet>,
    /// Services.
    pub services: Informer<Service>,
    /// Endpoints.
    pub endpoints: Informer<Endpoints>,
    /// EndpointSlices, by Service ([`BY_SERVICE`]).
    pub endpoint_slices: Informer<EndpointSlice>,
    /// Service accounts.
    pub service_accounts: Informer<ServiceAccount>,
    /// PodDisruptionBudgets.
    pub pod_disruption_budgets: Informer<PodDisruptionBudget>,
}

impl Informers {
    /// Informers over all namespaces that `client` reaches, none of them started.
    pub fn new(client: &Client, tasks: &TaskTracker, shutdown: &CancellationToken) -> Self {
        fn plain<K>(
            client: &Client,
            tasks: &TaskTracker,
            shutdown: &CancellationToken,
        ) -> Informer<K>
        where
            K: Resource<DynamicType = ()>
                + Clone
                + serde::de::DeserializeOwned
                + std::fmt::Debug
                + Send
                + Sync
                + 'static,
        {
            Informer::new(
                Api::all(client.clone()),
                &[],
                tasks.clone(),
                shutdown.clone(),
            )
        }
        Self {
            pods: Informer::new(
                Api::all(client.clone()),
                &[
                    (BY_NODE, pod_node as IndexFn<Pod>),
                    (BY_CONTROLLER, controller_uid),
                ],
                tasks.clone(),
                shutdown.clone(),
            ),
            nodes: plain(client, tasks, shutdown),
            namespaces: plain(client, tasks, shutdown),
            deployments: plain(client, tasks, shutdown),
            replica_sets: Informer::new(
                Api::all(client.clone()),
                &[(BY_CONTROLLER, controller_uid as IndexFn<ReplicaSet>)],
                tasks.clone(),
                shutdown.clone(),
            ),
            daemon_sets: plain(client, tasks, shutdown),
            services: plain(client, tasks, shutdown),
            endpoints: plain(client, tasks, shutdown),
            endpoint_slices: Informer::new(
                Api::all(client.clone()),
                &[(BY_SERVICE, slice_service as IndexFn<EndpointSlice>)],
                tasks.clone(),
                shutdown.clone(),
            ),
            service_accounts: plain(client, tasks, shutdown),
            pod_disruption_budgets: plain(client, tasks, shutdown),
        }
    }
}

fn pod_node(pod: &Pod, file_under: &mut dyn FnMut(&str)) {
    file_under(
        pod.spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_deref())
            .unwrap_or_default(),
    );
}

fn slice_service(slice: &EndpointSlice, file_under: &mut dyn FnMut(&str)) {
    let labels = slice.metadata.labels.as_ref();
    if let Some(service) = labels.and_then(|labels| labels.get("kubernetes.io/service-name")) {
        let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
        file_under(&format!("{namespace}/{service}"));
    }
}

/// Files an object under its controller's uid, or among its namespace's orphans.
pub fn controller_uid<K: Resource>(object: &K, file_under: &mut dyn FnMut(&str)) {
    let meta = object.meta();
    let mut owners = meta.owner_references.iter().flatten();
    match owners.find(|owner| owner.controller == Some(true)) {
        Some(owner) => file_under(&owner.uid),
        None => file_under(&orphans_of(meta.namespace.as_deref().unwrap_or_default())),
    }
}
