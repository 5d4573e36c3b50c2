//! CapacityBuffers: room that is kept free, so that pods to come find a place at once.
//!
//! One queue resolves what a chunk of each buffer is ([`origin`]) and how many there are ([`size`]), keeps the chunks as
//! pods that are never created ([`chunk`]), and writes the result into the buffer's status. The provisioner plans chunks as it
//! plans pending pods. Nodes that hold chunks are not empty, and consolidation moves chunks as it moves pods.
//!
//! Invariant: only plans know of chunks. No event is about one, the scheduler does not see them, and their room goes to
//! the first pod that asks for it. While the feature gate `CapacityBuffer` is off there are none, and the status of
//! each buffer says so.

mod chunk;
mod origin;
mod size;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::core::v1::{Pod, PodTemplate, PodTemplateSpec};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::capacity_buffer::{CapacityBuffer, CapacityBufferStatus, condition};
use mullion_cloud::WindowsAddresses;
use serde_json::json;

pub(crate) use chunk::buffer_of;
use origin::Origin;
pub use origin::{Templates, Unresolved};
pub(crate) use status::ChunkPlacement;

use crate::{Queue, api_error, provisioner::KarpenterContext};

/// Namespace and name of a buffer.
type Key = (String, String);

/// The chunks of all buffers, and where the last plan has them. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    chunks: BTreeMap<Key, Vec<Arc<Pod>>>,
    /// Nodes and claims that hold chunks; none before the first plan.
    hosts: Option<BTreeSet<String>>,
}

impl Buffers {
    /// Returns the chunks of all buffers.
    pub(crate) fn chunks(&self) -> Vec<Arc<Pod>> {
        self.state().chunks.values().flatten().cloned().collect()
    }

    /// Remembers the nodes and claims that a plan has chunks on.
    pub(crate) fn host_on(&self, hosts: BTreeSet<String>) {
        self.state().hosts = Some(hosts);
    }

    /// Remembers that a claim that was ordered holds chunks.
    pub(crate) fn host_on_claim(&self, claim: String) {
        self.state().hosts.get_or_insert_default().insert(claim);
    }

    /// Returns whether a node, given by its own and its claim's name, holds chunks; `None` before the first plan.
    pub(crate) fn hold(&self, node: &str, claim: &str) -> Option<bool> {
        let state = self.state();
        let hosts = state.hosts.as_ref()?;
        Some(hosts.contains(node) || hosts.contains(claim))
    }

    /// Replaces the chunks of a buffer. Returns whether they differ from those before.
    fn set(&self, key: Key, chunks: Vec<Arc<Pod>>) -> bool {
        let mut state = self.state();
        let before = if chunks.is_empty() {
            state.chunks.remove(&key)
        } else {
            state.chunks.insert(key.clone(), chunks)
        };
        before.as_ref() != state.chunks.get(&key)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the chunks of a buffer as the provisioner plans them, whatever the feature gate.
///
/// # Errors
/// Why it is not known what a chunk is, as the buffer's condition `ReadyForProvisioning` says it.
pub fn chunks(
    buffer: &CapacityBuffer,
    templates: &impl Templates,
    addresses: WindowsAddresses,
) -> Result<Vec<Arc<Pod>>, Unresolved> {
    let origin = Origin::of(buffer, templates)?;
    Ok(origin.chunks(buffer, addresses))
}

/// Returns whether the status of a buffer says that the gate was closed.
pub fn is_shut_out(buffer: &CapacityBuffer) -> bool {
    let conditions = buffer.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.filter(|own| own.type_ == condition::READY_FOR_PROVISIONING);
    ready.any(|own| own.reason == status::GATE_CLOSED)
}

/// Starts the controller.
pub(crate) fn start(karpenter: &KarpenterContext) {
    let queue: Queue<Key> = Queue::new("capacitybuffer");
    let buffers = queue.clone();
    karpenter
        .buffers
        .on_change(move |change| buffers.add(key(change.object())));
    if karpenter.options.gates.capacity_buffer {
        watch_origins(karpenter, &queue);
    }
    let own = karpenter.clone();
    queue.run(&karpenter.base, 1, move |key: Key| {
        let karpenter = own.clone();
        async move { reconcile(&karpenter, key).await }
    });
}

/// Reconciles a buffer again when the object that its chunks are made from changes.
fn watch_origins(karpenter: &KarpenterContext, queue: &Queue<Key>) {
    let again = |kind: &'static str| {
        let (buffers, queue) = (karpenter.buffers.clone(), queue.clone());
        move |namespace: Option<String>, name: String| {
            for buffer in buffers.list() {
                let spec = &buffer.spec;
                let template = spec.pod_template_ref.as_ref();
                let scalable = spec.scalable_ref.as_ref();
                let is_its = match kind {
                    "PodTemplate" => template.is_some_and(|own| own.name == name),
                    _ => scalable.is_some_and(|own| own.kind == kind && own.name == name),
                };
                if is_its && buffer.metadata.namespace == namespace {
                    queue.add(key(&buffer));
                }
            }
        }
    };
    let informers = &karpenter.base.informers;
    let requeue = again("PodTemplate");
    karpenter.pod_templates.on_change(move |change| {
        let own = change.object();
        requeue(own.namespace(), own.name_any());
    });
    let requeue = again("Deployment");
    informers.deployments.on_change(move |change| {
        let own = change.object();
        requeue(own.namespace(), own.name_any());
    });
    let requeue = again("StatefulSet");
    informers.stateful_sets.on_change(move |change| {
        let own = change.object();
        requeue(own.namespace(), own.name_any());
    });
    let requeue = again("ReplicaSet");
    informers.replica_sets.on_change(move |change| {
        let own = change.object();
        requeue(own.namespace(), own.name_any());
    });
    // Whether Windows pods ask for addresses decides what their chunks ask for.
    let (buffers, queue) = (karpenter.buffers.clone(), queue.clone());
    karpenter.vpc_cni.on_change(move |_| {
        for buffer in buffers.list() {
            queue.add(key(&buffer));
        }
    });
}

fn key(buffer: &CapacityBuffer) -> Key {
    (buffer.namespace().unwrap_or_default(), buffer.name_any())
}

async fn reconcile(karpenter: &KarpenterContext, key: Key) -> kube::Result<()> {
    let is_open = karpenter.options.gates.capacity_buffer;
    let informers = &karpenter.base.informers;
    let are_synced = karpenter.buffers.synced().await
        && (!is_open
            || karpenter.pod_templates.synced().await
                && karpenter.vpc_cni.synced().await
                && informers.deployments.synced().await
                && informers.stateful_sets.synced().await
                && informers.replica_sets.synced().await);
    if !are_synced {
        return Ok(());
    }
    let buffer = karpenter.buffers.get(&key.0, &key.1);
    let origin = buffer.as_ref().map(|own| {
        if is_open {
            Some(Origin::of(own, karpenter))
        } else {
            None
        }
    });
    let now = karpenter.base.clock.now();
    let (chunks, status) = match (&buffer, origin) {
        (Some(buffer), Some(origin)) => {
            let status = status::resolved(buffer, origin.as_ref(), now);
            let chunks = match &origin {
                Some(Ok(origin)) => origin.chunks(buffer, karpenter.windows_addresses()),
                _ => Vec::new(),
            };
            (chunks, Some(status))
        }
        _ => (Vec::new(), None),
    };
    // The first plan says which nodes hold chunks, and be it that none do.
    let is_planned = karpenter.chunks.state().hosts.is_some();
    // The chunks are replaced before the status is written: the plan that this wakes must see them.
    if karpenter.chunks.set(key.clone(), chunks) || (is_open && !is_planned) {
        karpenter
            .batcher
            .trigger(format!("capacitybuffer {}/{}", key.0, key.1));
    }
    match (buffer, status) {
        (Some(buffer), Some(status)) => write(karpenter, &buffer, status).await,
        _ => Ok(()),
    }
}

impl Templates for KarpenterContext {
    fn pod_template(&self, namespace: &str, name: &str) -> Option<Arc<PodTemplate>> {
        self.pod_templates.get(namespace, name)
    }

    fn workload(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<(PodTemplateSpec, Option<i32>)> {
        let informers = &self.base.informers;
        match kind {
            "Deployment" => {
                let found = informers.deployments.get(namespace, name)?;
                let spec = found.spec.clone().unwrap_or_default();
                Some((spec.template, spec.replicas))
            }
            "StatefulSet" => {
                let found = informers.stateful_sets.get(namespace, name)?;
                let spec = found.spec.clone().unwrap_or_default();
                Some((spec.template, spec.replicas))
            }
            "ReplicaSet" => {
                let found = informers.replica_sets.get(namespace, name)?;
                let spec = found.spec.clone().unwrap_or_default();
                Some((spec.template.unwrap_or_default(), spec.replicas))
            }
            _ => None,
        }
    }
}

/// Writes into the status of each buffer where a plan places its chunks.
pub(crate) async fn write_placements(
    karpenter: &KarpenterContext,
    placed: &BTreeMap<Key, ChunkPlacement>,
) {
    if !karpenter.options.gates.capacity_buffer {
        return;
    }
    let now = karpenter.base.clock.now();
    for buffer in karpenter.buffers.list() {
        let status = status::after_plan(&buffer, placed.get(&key(&buffer)), now);
        if let Err(error) = write(karpenter, &buffer, status).await {
            tracing::debug!(buffer = buffer.name_any(), %error, "the status of a buffer is not written");
        }
    }
}

async fn write(
    karpenter: &KarpenterContext,
    buffer: &CapacityBuffer,
    status: CapacityBufferStatus,
) -> kube::Result<()> {
    if buffer.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let (namespace, name) = key(buffer);
    let api: Api<CapacityBuffer> = Api::namespaced(karpenter.base.client.clone(), &namespace);
    let mut wanted = json!(status);
    // A merge keeps what it does not name.
    for field in ["podTemplateRef", "podTemplateGeneration", "replicas"] {
        if wanted[field].is_null() {
            wanted[field] = serde_json::Value::Null;
        }
    }
    let patch = json!({
        "metadata": { "resourceVersion": buffer.metadata.resource_version },
        "status": wanted,
    });
    let patched = api
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        // It has changed meanwhile; that change is in the queue.
        Err(error) if api_error::is_conflict(&error) || api_error::is_not_found(&error) => Ok(()),
        other => other.map(drop),
    }
}
