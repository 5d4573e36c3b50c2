//! Looks up the ConfigMaps, Secrets and claims that pods need.
//!
//! Nothing is watched: an object is read when a pod needs it, so a cluster whose pods refer to none pays nothing.
//! Each question is answered in a separate task, and a semaphore limits how many of them read at once.
//!
//! Invariant: every question is answered once, unless the process stops; a failed read is repeated.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope,
    api::{
        core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret},
        resource::v1::ResourceClaim,
        storage::v1::{CSIDriver, VolumeAttachment},
    },
};
use kube::{Api, Client, Error, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::inputs::Input;
use crate::{
    Context,
    kubelet::{
        config::{ClaimProblem, FoundObjects, Object, ObjectContents},
        pod::{ObjectLookup, devices},
    },
    pods,
    volumes::{
        attach::{attachment_name, is_attached, must_attach},
        matching,
    },
};

/// The number of questions that are looked up at once.
const READERS: usize = 16;
/// The pause before a failed read is repeated.
const RETRY: Duration = Duration::from_millis(500);

pub(super) struct ObjectReader {
    client: Client,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    inputs: mpsc::UnboundedSender<Input>,
    readers: Arc<Semaphore>,
}

impl ObjectReader {
    pub(super) fn new(context: &Context, inputs: mpsc::UnboundedSender<Input>) -> Self {
        Self {
            client: context.client.clone(),
            tasks: context.tasks.clone(),
            shutdown: context.shutdown.clone(),
            inputs,
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// Looks up the objects that `pod` needs, and sends the answer to the driver.
    pub(super) fn look_up_for(&self, pod: &Arc<Pod>, question: ObjectLookup) {
        let (pod, client, inputs) = (Arc::clone(pod), self.client.clone(), self.inputs.clone());
        let (readers, shutdown) = (Arc::clone(&self.readers), self.shutdown.clone());
        let answer = async move {
            // The semaphore is never closed, so this cannot fail.
            let _permit = readers.acquire().await;
            let found = look_up(&client, &pod, question.objects).await;
            let purpose = question.purpose;
            // The channel is closed only when the process stops.
            let _ = inputs.send(Input::Answer {
                pod,
                purpose,
                found,
            });
        };
        self.tasks.spawn(async move {
            shutdown.run_until_cancelled(answer).await;
        });
    }
}

async fn look_up(client: &Client, pod: &Pod, objects: BTreeSet<Object>) -> FoundObjects {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut found = FoundObjects::new();
    for object in objects {
        let keys = match &object {
            Object::ConfigMap(name) => {
                let map = read::<ConfigMap>(client, namespace, name).await;
                map.map(|map| ObjectContents {
                    values: keys(map.data),
                    binary: keys(map.binary_data),
                    ..ObjectContents::default()
                })
            }
            Object::Secret(name) => {
                let secret = read::<Secret>(client, namespace, name).await;
                secret.map(|secret| ObjectContents {
                    values: keys(secret.data),
                    ..ObjectContents::default()
                })
            }
            Object::Claim(name) => {
                let claim = read::<PersistentVolumeClaim>(client, namespace, name).await;
                match claim {
                    None => None,
                    Some(claim) => Some(ObjectContents {
                        problem: claim_trouble(client, pod, &claim).await,
                        ..ObjectContents::default()
                    }),
                }
            }
            Object::ResourceClaim(name) => {
                let claim = read::<ResourceClaim>(client, namespace, name).await;
                claim.map(|claim| ObjectContents {
                    // A claim is judged where it is read, so the state machine of the pod sees only the
                    // verdict.
                    problem: devices::trouble(pod, &claim).map(ClaimProblem::NotPrepared),
                    ..ObjectContents::default()
                })
            }
        };
        if let Some(keys) = keys {
            found.insert(object, keys);
        }
    }
    found
}

/// Returns why a claim's volume cannot be mounted on the pod's node, or `None` if it can.
async fn claim_trouble(
    client: &Client,
    pod: &Pod,
    claim: &PersistentVolumeClaim,
) -> Option<ClaimProblem> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Some(ClaimProblem::BeingDeleted);
    }
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let volume = matching::volume_name(claim).filter(|_| phase == Some("Bound"));
    let Some(volume) = volume else {
        return Some(ClaimProblem::NotBound);
    };
    let Some(volume) = read_any::<PersistentVolume>(client, volume).await else {
        return Some(ClaimProblem::NotBound);
    };
    // Only CSI volumes have to be attached.
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    let driver = read_any::<CSIDriver>(client, &csi.driver).await;
    if !must_attach(driver.as_ref()) {
        return None;
    }
    let node = pods::node_name(pod);
    let name = attachment_name(&csi.volume_handle, &csi.driver, node);
    let attachment = read_any::<VolumeAttachment>(client, &name).await;
    let attached = attachment.is_some_and(|attachment| is_attached(&attachment));
    (!attached).then_some(ClaimProblem::NotAttached)
}

async fn read_any<K>(client: &Client, name: &str) -> Option<K>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    until_answered(&Api::all(client.clone()), name).await
}

fn keys<V>(data: Option<BTreeMap<String, V>>) -> BTreeSet<String> {
    data.unwrap_or_default().into_keys().collect()
}

async fn read<K>(client: &Client, namespace: &str, name: &str) -> Option<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    // Validation accepts a reference without a name, but no object has an empty name.
    if name.is_empty() {
        return None;
    }
    until_answered(&Api::namespaced(client.clone(), namespace), name).await
}

async fn until_answered<K>(api: &Api<K>, name: &str) -> Option<K>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    loop {
        match api.get_opt(name).await {
            Ok(object) => return object,
            // A refused read counts as a missing object: the kubelet reports it and asks again with its own
            // back-off.
            Err(Error::Api(status)) if status.code < 500 && status.code != 429 => {
                tracing::debug!(%status, name, "kubelet read refused");
                return None;
            }
            Err(error) => {
                tracing::debug!(%error, name, "kubelet read failed, repeating it");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
