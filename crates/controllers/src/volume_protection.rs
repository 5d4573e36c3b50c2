//! Claims and volumes outlive their users: each carries a finalizer from admission, taken away here once nothing uses it
//! (kube-controller-manager: pvc-protection and pv-protection).
//!
//! A claim is used by a pod that has a node and has not finished; a volume by the claim it is bound to.

use std::fmt::Debug;

use k8s_openapi::{
    Metadata,
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Resource, ResourceExt, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use crate::{Context, Informer, Key, Queue, api_error, pods};

const WORKERS: usize = 2;
const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";

/// Starts both controllers.
pub fn start(context: &Context) {
    start_claims(context);
    start_volumes(context);
}

fn start_claims(context: &Context) {
    let queue = Queue::new("pvc-protection");
    let claims: Informer<PersistentVolumeClaim> = informer(context);
    claims.on_change({
        let queue = queue.clone();
        move |change| {
            let claim = change.object();
            if !change.is_deleted() && is_held(&**claim, CLAIM) {
                queue.add(Key::of(&**claim));
            }
        }
    });
    context.informers.pods.on_change({
        let (queue, claims) = (queue.clone(), claims.clone());
        move |change| {
            let pod = change.object();
            if change.is_deleted() || !uses(pod) {
                let namespace = pod.namespace().unwrap_or_default();
                let held = claims_of(pod).filter_map(|name| claims.get(&namespace, &name));
                held.filter(|claim| is_held(&**claim, CLAIM))
                    .for_each(|claim| queue.add(Key::of(&*claim)));
            }
        }
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if context.informers.pods.synced().await && claims.synced().await {
            let workers = context.clone();
            queue.run(&workers, WORKERS, move |key| {
                let (context, claims) = (context.clone(), claims.clone());
                async move { release_claim(&context, &claims, &key).await }
            });
        }
    });
}

async fn release_claim(
    context: &Context,
    claims: &Informer<PersistentVolumeClaim>,
    key: &Key,
) -> kube::Result<()> {
    let Some(claim) = claims.get_key(key).filter(|claim| is_held(&**claim, CLAIM)) else {
        return Ok(());
    };
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let pods = context.informers.pods.in_namespace(&namespace);
    if pods
        .iter()
        .any(|pod| uses(pod) && claims_of(pod).any(|used| used == name))
    {
        return Ok(());
    }
    release(
        &Api::namespaced(context.client.clone(), &namespace),
        &*claim,
        CLAIM,
    )
    .await
}

fn start_volumes(context: &Context) {
    let queue = Queue::new("pv-protection");
    let volumes: Informer<PersistentVolume> = informer(context);
    volumes.on_change({
        let queue = queue.clone();
        move |change| {
            let volume = change.object();
            if !change.is_deleted() && is_held(&**volume, VOLUME) {
                queue.add(Key::of(&**volume));
            }
        }
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if volumes.synced().await {
            let workers = context.clone();
            queue.run(&workers, WORKERS, move |key| {
                let (context, volumes) = (context.clone(), volumes.clone());
                async move {
                    let held = volumes
                        .get_key(&key)
                        .filter(|volume| is_held(&**volume, VOLUME));
                    match held.filter(|volume| !is_bound(volume)) {
                        Some(volume) => {
                            release(&Api::all(context.client.clone()), &*volume, VOLUME).await
                        }
                        None => Ok(()),
                    }
                }
            });
        }
    });
}

fn informer<K>(context: &Context) -> Informer<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    Informer::new(
        Api::all(context.client.clone()),
        &[],
        context.tasks.clone(),
        context.shutdown.clone(),
    )
}

/// Marked for deletion and kept by our finalizer.
fn is_held<K: Resource>(object: &K, finalizer: &str) -> bool {
    let meta = object.meta();
    let finalizers = meta.finalizers.iter().flatten();
    meta.deletion_timestamp.is_some() && finalizers.into_iter().any(|name| name == finalizer)
}

/// Whether a pod keeps the claims it names.
fn uses(pod: &Pod) -> bool {
    !pods::node_name(pod).is_empty() && !pods::is_finished(pod)
}

/// The names of the claims a pod mounts, those made for its ephemeral volumes included.
fn claims_of(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(
        |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
            (None, None) => None,
        },
    )
}

fn is_bound(volume: &PersistentVolume) -> bool {
    let phase = volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Bound")
}

/// Takes the finalizer away from this version of the object.
async fn release<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<()>
where
    K: Metadata<Ty = ObjectMeta> + Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let mut free = object.clone();
    Resource::meta_mut(&mut free)
        .finalizers
        .iter_mut()
        .for_each(|finalizers| finalizers.retain(|name| name != finalizer));
    let replaced = api
        .replace(&object.name_any(), &PostParams::default(), &free)
        .await;
    api_error::ignore_not_found(replaced).map(drop)
}
