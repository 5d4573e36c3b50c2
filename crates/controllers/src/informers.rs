//! The informers that controllers share, with their indexes.
//!
//! A field is started by its first reader (see [`Informer::synced`]). An informer for a kind that only one
//! controller reads belongs to that controller, not here.

mod lean_pod;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::Job,
    coordination::v1::Lease,
    core::v1::{
        Container, ContainerStatus, Endpoints, Namespace, Node, PersistentVolume,
        PersistentVolumeClaim, Pod, ReplicationController, Service, ServiceAccount,
    },
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment},
};
use kube::{Api, Client, Resource, runtime::watcher};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Informer, informer::IndexFn, resource_claims::pod_claims};
use lean_pod::LeanPod;

/// The index of pods by `spec.nodeName`; pods without a node are under the empty string.
pub const BY_NODE: &str = "node";
/// The index by the UID of the controlling owner; objects without one are under [`orphans_of`] their namespace.
pub const BY_CONTROLLER: &str = "controller";

/// The index of EndpointSlices by the `namespace/name` of their Service.
pub const BY_SERVICE: &str = "service";

/// The index of pods by the `namespace/name` of the ResourceClaims that they use, as far as known.
pub const BY_RESOURCE_CLAIM: &str = "resource-claim";

/// The index of pods by the `namespace/name` of the ResourceClaimTemplates from which their claims are created.
pub const BY_RESOURCE_CLAIM_TEMPLATE: &str = "resource-claim-template";

/// The index of nodes by `spec.providerID`, and of NodeClaims by `status.providerID`.
pub const BY_PROVIDER_ID: &str = "provider-id";

/// Returns the value under which [`BY_CONTROLLER`] has the objects of `namespace` without a controller.
pub fn orphans_of(namespace: &str) -> String {
    format!("orphans/{namespace}")
}

/// The shared informers of a process.
#[derive(Clone, Debug)]
pub struct Informers {
    /// Pods, by node ([`BY_NODE`]), controller ([`BY_CONTROLLER`]) and what they claim ([`BY_RESOURCE_CLAIM`],
    /// [`BY_RESOURCE_CLAIM_TEMPLATE`]).
    pub pods: Informer<Pod>,
    /// Nodes, by provider id ([`BY_PROVIDER_ID`]).
    pub nodes: Informer<Node>,
    /// Leases. Every node renews one every ten seconds, so no controller may watch them a second time.
    pub leases: Informer<Lease>,
    /// Namespaces.
    pub namespaces: Informer<Namespace>,
    /// Deployments.
    pub deployments: Informer<Deployment>,
    /// ReplicaSets, by controller ([`BY_CONTROLLER`]).
    pub replica_sets: Informer<ReplicaSet>,
    /// DaemonSets.
    pub daemon_sets: Informer<DaemonSet>,
    /// StatefulSets.
    pub stateful_sets: Informer<StatefulSet>,
    /// ReplicationControllers.
    pub replication_controllers: Informer<ReplicationController>,
    /// Jobs, by controller ([`BY_CONTROLLER`]).
    pub jobs: Informer<Job>,
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
    /// PersistentVolumeClaims.
    pub claims: Informer<PersistentVolumeClaim>,
    /// PersistentVolumes.
    pub volumes: Informer<PersistentVolume>,
    /// StorageClasses.
    pub storage_classes: Informer<StorageClass>,
    /// CSINodes.
    pub csi_nodes: Informer<CSINode>,
    /// CSIDrivers.
    pub csi_drivers: Informer<CSIDriver>,
    /// CSIStorageCapacities.
    pub storage_capacities: Informer<CSIStorageCapacity>,
    /// VolumeAttachments.
    pub volume_attachments: Informer<VolumeAttachment>,
    /// ResourceClaims, by controller ([`BY_CONTROLLER`]).
    pub resource_claims: Informer<ResourceClaim>,
    /// DeviceClasses.
    pub device_classes: Informer<DeviceClass>,
    /// ResourceSlices.
    pub resource_slices: Informer<ResourceSlice>,
}

impl Informers {
    /// Creates informers over all namespaces that `client` reaches, without starting them.
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
            pods: Informer::with_config(
                Api::<LeanPod>::all(client.clone()),
                watcher::Config::default(),
                trim_pod,
                &[
                    (BY_NODE, pod_node as IndexFn<Pod>),
                    (BY_CONTROLLER, controller_uid),
                    (BY_RESOURCE_CLAIM, pod_claims::file_by_claim),
                    (BY_RESOURCE_CLAIM_TEMPLATE, pod_claims::file_by_template),
                ],
                tasks.clone(),
                shutdown.clone(),
            ),
            nodes: Informer::new(
                Api::all(client.clone()),
                &[(BY_PROVIDER_ID, node_provider_id as IndexFn<Node>)],
                tasks.clone(),
                shutdown.clone(),
            ),
            leases: plain(client, tasks, shutdown),
            namespaces: plain(client, tasks, shutdown),
            deployments: plain(client, tasks, shutdown),
            replica_sets: Informer::new(
                Api::all(client.clone()),
                &[(BY_CONTROLLER, controller_uid as IndexFn<ReplicaSet>)],
                tasks.clone(),
                shutdown.clone(),
            ),
            daemon_sets: plain(client, tasks, shutdown),
            stateful_sets: plain(client, tasks, shutdown),
            replication_controllers: plain(client, tasks, shutdown),
            jobs: Informer::new(
                Api::all(client.clone()),
                &[(BY_CONTROLLER, controller_uid as IndexFn<Job>)],
                tasks.clone(),
                shutdown.clone(),
            ),
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
            claims: plain(client, tasks, shutdown),
            volumes: plain(client, tasks, shutdown),
            storage_classes: plain(client, tasks, shutdown),
            csi_nodes: plain(client, tasks, shutdown),
            csi_drivers: plain(client, tasks, shutdown),
            storage_capacities: plain(client, tasks, shutdown),
            volume_attachments: plain(client, tasks, shutdown),
            resource_claims: Informer::new(
                Api::all(client.clone()),
                &[(BY_CONTROLLER, controller_uid as IndexFn<ResourceClaim>)],
                tasks.clone(),
                shutdown.clone(),
            ),
            device_classes: plain(client, tasks, shutdown),
            resource_slices: plain(client, tasks, shutdown),
        }
    }
}

/// Drops the fields of a pod that no controller reads, and the spare capacity that decoding left in its lists. With
/// one container and five conditions that is half of the pod's memory. It is safe because pods are never written
/// back whole, only patched.
fn trim_pod(pod: &mut Pod) {
    if let Some(owners) = &mut pod.metadata.owner_references {
        owners.shrink_to_fit();
    }
    if let Some(spec) = &mut pod.spec {
        if let Some(volumes) = &mut spec.volumes {
            // The volume with the API access token, which every pod has, matters to no controller.
            volumes.retain(|volume| {
                volume.projected.is_none() || !volume.name.starts_with("kube-api-access-")
            });
            volumes.shrink_to_fit();
        }
        if let Some(tolerations) = &mut spec.tolerations {
            tolerations.shrink_to_fit();
        }
        spec.containers.shrink_to_fit();
        for container in &mut spec.containers {
            if let Some(mounts) = &mut container.volume_mounts {
                mounts.shrink_to_fit();
            }
        }
    }
    if let Some(status) = &mut pod.status {
        if let Some(conditions) = &mut status.conditions {
            conditions.shrink_to_fit();
        }
        let all = [
            &mut status.container_statuses,
            &mut status.init_container_statuses,
        ];
        for statuses in all.into_iter().flatten() {
            statuses.shrink_to_fit();
            for status in statuses {
                let containers = pod.spec.iter().flat_map(|spec| {
                    let others = spec.init_containers.iter().flatten();
                    spec.containers.iter().chain(others)
                });
                let named = |container: &&Container| container.name == status.name;
                let container = containers.into_iter().find(named);
                trim_container_status(status, container);
            }
        }
    }
}

/// Drops the fields of a container status that repeat the container's spec. Resources that differ during a resize
/// stay.
fn trim_container_status(status: &mut ContainerStatus, container: Option<&Container>) {
    let wanted = container.and_then(|container| container.resources.as_ref());
    let wanted = wanted.and_then(|wanted| wanted.requests.as_ref());
    let held = status.resources.as_ref();
    let has_all = held.is_none_or(|held| held.requests.as_ref() == wanted);
    let promised_all = [None, wanted].contains(&status.allocated_resources.as_ref());
    if has_all && promised_all {
        status.allocated_resources = None;
        status.resources = None;
    }
    status.allocated_resources_status = None;
    status.volume_mounts = None;
}

fn pod_node(pod: &Pod, file_under: &mut dyn FnMut(&str)) {
    file_under(
        pod.spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_deref())
            .unwrap_or_default(),
    );
}

fn node_provider_id(node: &Node, file_under: &mut dyn FnMut(&str)) {
    let spec = node.spec.as_ref();
    if let Some(id) = spec.and_then(|spec| spec.provider_id.as_deref()) {
        file_under(id);
    }
}

fn slice_service(slice: &EndpointSlice, file_under: &mut dyn FnMut(&str)) {
    let labels = slice.metadata.labels.as_ref();
    if let Some(service) = labels.and_then(|labels| labels.get("kubernetes.io/service-name")) {
        let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
        file_under(&format!("{namespace}/{service}"));
    }
}

/// Indexes an object by its controller's UID, or among the orphans of its namespace.
pub fn controller_uid<K: Resource>(object: &K, file_under: &mut dyn FnMut(&str)) {
    let meta = object.meta();
    let mut owners = meta.owner_references.iter().flatten();
    match owners.find(|owner| owner.controller == Some(true)) {
        Some(owner) => file_under(&owner.uid),
        None => file_under(&orphans_of(meta.namespace.as_deref().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kept_pod_has_no_volume_for_its_access_to_the_api_no_repetitions_and_no_spare_room() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "a" },
            "spec": {
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }],
                "volumes": [{ "name": "kube-api-access-x7k2p", "projected": {} }, { "name": "data", "persistentVolumeClaim": { "claimName": "d" } }],
            },
            "status": { "containerStatuses": [{
                "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 2,
                "allocatedResources": { "cpu": "1" }, "resources": { "requests": { "cpu": "1" } },
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }] },
        }))
        .expect("a pod");
        trim_pod(&mut pod);
        let volumes = pod
            .spec
            .and_then(|spec| spec.volumes)
            .expect("a volume is left");
        assert_eq!((volumes.len(), volumes.capacity()), (1, 1));
        assert_eq!(volumes[0].name, "data");
        let statuses = pod.status.and_then(|status| status.container_statuses);
        let statuses = statuses.expect("a status is left");
        assert_eq!(statuses.capacity(), 1);
        let expected = ContainerStatus {
            name: "c".into(),
            image: "i".into(),
            ready: true,
            restart_count: 2,
            ..ContainerStatus::default()
        };
        assert_eq!(statuses[0], expected);
    }

    #[test]
    fn what_a_container_holds_beside_what_it_asks_for_is_kept() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "a" },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
            "status": { "containerStatuses": [{
                "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": { "cpu": "1" }, "resources": { "requests": { "cpu": "2" } },
            }] },
        }))
        .expect("a pod");
        let before = pod.clone();
        trim_pod(&mut pod);
        assert_eq!(pod, before);
    }
}
