//! Protects claims, volumes and VolumeAttributesClasses from deletion while they are in use. Admission adds a
//! finalizer to each; these controllers remove it once the object is deleted and unused, and add it again if
//! another client removed it (kube-controller-manager: pvc-protection, pv-protection and vac-protection).
//!
//! A claim is in use by a pod that has a node, even one that has finished; a volume by the claim to which it is
//! bound; a VolumeAttributesClass by the claims and volumes that name it.

use std::fmt::Debug;

use k8s_openapi::{
    Metadata,
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::VolumeAttributesClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Resource, ResourceExt, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use crate::{Context, Informer, Key, Queue, api_error, pods};

const WORKERS: usize = 2;
const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";
const CLASS: &str = "kubernetes.io/vac-protection";

/// Starts the three controllers.
pub fn start(context: &Context) {
    start_claims(context);
    start_volumes(context);
    start_classes(context);
}

fn start_claims(context: &Context) {
    let queue = Queue::new("pvc-protection");
    let claims = context.informers.claims.clone();
    claims.on_change({
        let queue = queue.clone();
        move |change| {
            let claim = change.object();
            if !change.is_deleted() && (is_held(&**claim, CLAIM) || is_bare(&**claim, CLAIM)) {
                queue.add(Key::of(&**claim));
            }
        }
    });
    context.informers.pods.on_change({
        let (queue, claims) = (queue.clone(), claims.clone());
        move |change| {
            let pod = change.object();
            // Only such a change can end a use; a running pod keeps its claims.
            if change.is_deleted() || pods::is_finished(pod) || pods::node_name(pod).is_empty() {
                let namespace = pod.namespace().unwrap_or_default();
                let held = all_claims_of(pod).filter_map(|name| claims.get(&namespace, &name));
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
                async move { sync_claim(&context, &claims, &key).await }
            });
        }
    });
}

async fn sync_claim(
    context: &Context,
    claims: &Informer<PersistentVolumeClaim>,
    key: &Key,
) -> kube::Result<()> {
    let Some(claim) = claims.get_key(key) else {
        return Ok(());
    };
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let api = Api::namespaced(context.client.clone(), &namespace);
    // Objects from before the admission plugin, or whose finalizer somebody removed, get it back.
    if is_bare(&*claim, CLAIM) {
        return hold(&api, &*claim, CLAIM).await;
    }
    let pods = context.informers.pods.in_namespace(&namespace);
    let is_used = || pods.iter().any(|pod| used_by(pod).any(|used| used == name));
    if !is_held(&*claim, CLAIM) || is_used() {
        return Ok(());
    }
    release(&api, &*claim, CLAIM).await
}

fn start_volumes(context: &Context) {
    let queue = Queue::new("pv-protection");
    let volumes = context.informers.volumes.clone();
    volumes.on_change({
        let queue = queue.clone();
        move |change| {
            let volume = change.object();
            if !change.is_deleted() && (is_held(&**volume, VOLUME) || is_bare(&**volume, VOLUME)) {
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
                async move { sync_volume(&context, &volumes, &key).await }
            });
        }
    });
}

async fn sync_volume(
    context: &Context,
    volumes: &Informer<PersistentVolume>,
    key: &Key,
) -> kube::Result<()> {
    let Some(volume) = volumes.get_key(key) else {
        return Ok(());
    };
    let api = Api::all(context.client.clone());
    if is_bare(&*volume, VOLUME) {
        hold(&api, &*volume, VOLUME).await
    } else if is_held(&*volume, VOLUME) && !is_bound(&volume) {
        release(&api, &*volume, VOLUME).await
    } else {
        Ok(())
    }
}

fn start_classes(context: &Context) {
    let queue = Queue::new("vac-protection");
    let classes: Informer<VolumeAttributesClass> = Informer::new(
        Api::all(context.client.clone()),
        &[],
        context.tasks.clone(),
        context.shutdown.clone(),
    );
    // A class is looked at only when it is being deleted or lacks its finalizer; every other change needs
    // nothing.
    classes.on_change({
        let queue = queue.clone();
        move |change| {
            let class = change.object();
            if !change.is_deleted() && (is_held(&**class, CLASS) || is_bare(&**class, CLASS)) {
                queue.add(Key::of(&**class));
            }
        }
    });
    // The last user of a class may be gone after this change.
    let recheck = {
        let (queue, classes) = (queue.clone(), classes.clone());
        move || {
            let held = classes.list().into_iter();
            held.filter(|class| is_held(&**class, CLASS))
                .for_each(|class| queue.add(Key::of(&*class)));
        }
    };
    context.informers.claims.on_change({
        let recheck = recheck.clone();
        move |change| {
            let before = change.previous().map(|old| classes_of(old));
            if change.is_deleted() || before.is_some_and(|old| old != classes_of(change.object())) {
                recheck();
            }
        }
    });
    context.informers.volumes.on_change(move |change| {
        let before = change.previous().map(|old| class_of(old));
        if change.is_deleted() || before.is_some_and(|old| old != class_of(change.object())) {
            recheck();
        }
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        let informers = &context.informers;
        if informers.claims.synced().await
            && informers.volumes.synced().await
            && classes.synced().await
        {
            let workers = context.clone();
            queue.run(&workers, WORKERS, move |key| {
                let (context, classes) = (context.clone(), classes.clone());
                async move { sync_class(&context, &classes, &key).await }
            });
        }
    });
}

async fn sync_class(
    context: &Context,
    classes: &Informer<VolumeAttributesClass>,
    key: &Key,
) -> kube::Result<()> {
    let Some(class) = classes.get_key(key) else {
        return Ok(());
    };
    let api = Api::all(context.client.clone());
    if is_bare(&*class, CLASS) {
        return hold(&api, &*class, CLASS).await;
    }
    let name = class.name_any();
    let (claims, volumes) = (
        context.informers.claims.list(),
        context.informers.volumes.list(),
    );
    let is_used = || {
        let mut claims = claims.iter();
        let mut volumes = volumes.iter();
        claims.any(|claim| classes_of(claim).contains(&Some(name.as_str())))
            || volumes.any(|volume| class_of(volume) == Some(name.as_str()))
    };
    if !is_held(&*class, CLASS) || is_used() {
        return Ok(());
    }
    release(&api, &*class, CLASS).await
}

/// Returns the VolumeAttributesClasses that a claim requests, has, and is about to get.
fn classes_of(claim: &PersistentVolumeClaim) -> [Option<&str>; 3] {
    let status = claim.status.as_ref();
    let spec = claim.spec.as_ref();
    let target = status.and_then(|status| status.modify_volume_status.as_ref());
    [
        spec.and_then(|spec| spec.volume_attributes_class_name.as_deref()),
        status.and_then(|status| status.current_volume_attributes_class_name.as_deref()),
        target.and_then(|target| target.target_volume_attributes_class_name.as_deref()),
    ]
}

fn class_of(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.volume_attributes_class_name.as_deref())
}

/// Returns whether the object is marked for deletion and has this finalizer.
fn is_held<K: Resource>(object: &K, finalizer: &str) -> bool {
    let meta = object.meta();
    let finalizers = meta.finalizers.iter().flatten();
    meta.deletion_timestamp.is_some() && finalizers.into_iter().any(|name| name == finalizer)
}

/// Returns whether the object is not marked for deletion and does not have this finalizer.
fn is_bare<K: Resource>(object: &K, finalizer: &str) -> bool {
    let meta = object.meta();
    let mut finalizers = meta.finalizers.iter().flatten();
    meta.deletion_timestamp.is_none() && !finalizers.any(|name| name == finalizer)
}

/// Iterates the names of the claims whose deletion the pod prevents.
///
/// A pod that exists only because of its finalizers no longer uses the claims created for it: it may be waiting for
/// their deletion.
fn used_by(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let has_node = !pods::node_name(pod).is_empty();
    // The kubelet sets the grace period to 0 once the pod's containers have stopped.
    let is_shut_down =
        pods::is_deleting(pod) && pod.metadata.deletion_grace_period_seconds == Some(0);
    claims_of(pod)
        .filter(move |(_, is_own)| has_node && !(*is_own && is_shut_down))
        .map(|(name, _)| name)
}

fn all_claims_of(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    claims_of(pod).map(|(name, _)| name)
}

/// Iterates the names of the claims that a pod mounts, with whether they were created for the pod's ephemeral
/// volumes.
fn claims_of(pod: &Pod) -> impl Iterator<Item = (String, bool)> + '_ {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(
        |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some((claim.claim_name.clone(), false)),
            (None, Some(_)) => Some((format!("{}-{}", pod.name_any(), volume.name), true)),
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

/// Removes the finalizer from this version of the object.
async fn release<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<()>
where
    K: Metadata<Ty = ObjectMeta> + Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let mut free = object.clone();
    // The whole object is replaced with its resource version, so a change that this decision has not seen
    // makes the write fail, and the queue decides again.
    Resource::meta_mut(&mut free)
        .finalizers
        .iter_mut()
        .for_each(|finalizers| finalizers.retain(|name| name != finalizer));
    replace(api, &free).await
}

/// Adds the finalizer to this version of the object.
async fn hold<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<()>
where
    K: Metadata<Ty = ObjectMeta> + Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let mut held = object.clone();
    let meta = Resource::meta_mut(&mut held);
    meta.finalizers
        .get_or_insert_default()
        .push(finalizer.to_owned());
    replace(api, &held).await
}

async fn replace<K>(api: &Api<K>, object: &K) -> kube::Result<()>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let replaced = api
        .replace(&object.name_any(), &PostParams::default(), object)
        .await;
    api_error::ignore_not_found(replaced).map(drop)
}
