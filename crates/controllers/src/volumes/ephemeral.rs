//! Creates the claims of pods' ephemeral volumes; the pod owns them, so they are deleted with it
//! (kube-controller-manager: ephemeral-volume-controller).

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod, Volume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, ResourceExt, api::PostParams};

use crate::{Context, Key, Queue, Recorder, api_error, ownership, pods};

const WORKERS: usize = 2;

/// Starts the controller.
pub(super) fn start(context: &Context) {
    let queue = Queue::new("ephemeral-volume");
    let informers = &context.informers;
    informers.pods.on_change({
        let queue = queue.clone();
        move |change| {
            let pod = change.object();
            // A pod's volumes never change, so only its creation matters.
            let is_new = change.previous().is_none() && !change.is_deleted();
            if is_new && !pods::is_deleting(pod) && volumes_of(pod).next().is_some() {
                queue.add(Key::of(&**pod));
            }
        }
    });
    informers.claims.on_change({
        let (queue, pods) = (queue.clone(), informers.pods.clone());
        move |change| {
            let claim = change.object();
            if change.is_deleted()
                && let Some(owner) = ownership::controller_of(&**claim)
                && owner.kind == "Pod"
            {
                let namespace = claim.namespace().unwrap_or_default();
                if let Some(pod) = pods.get(&namespace, &owner.name) {
                    queue.add(Key::of(&*pod));
                }
            }
        }
    });
    let recorder = context.recorder("ephemeral_volume");
    let controller = Arc::new((context.clone(), recorder));
    context.tasks.spawn(async move {
        let context = controller.0.clone();
        if context.informers.pods.synced().await && context.informers.claims.synced().await {
            queue.run(&context, WORKERS, move |key| {
                let controller = Arc::clone(&controller);
                async move { sync(&controller.0, &controller.1, &key).await }
            });
        }
    });
}

async fn sync(context: &Context, recorder: &Recorder, key: &Key) -> kube::Result<()> {
    let Some(pod) = context.informers.pods.get_key(key) else {
        return Ok(());
    };
    if pods::is_finished(&pod) || pods::is_deleting(&pod) {
        return Ok(());
    }
    for volume in volumes_of(&pod) {
        let name = format!("{}-{}", pod.name_any(), volume.name);
        if let Some(claim) = context.informers.claims.get(key.namespace(), &name) {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            // Such a claim is left alone; the scheduler refuses the pod until it is gone.
            if !ownership::is_controlled_by(&*claim, uid) {
                tracing::debug!(claim = name, pod = %key, "a claim of that name is not the pod's");
            }
            continue;
        }
        let template = volume.ephemeral.as_ref();
        let template = template.and_then(|source| source.volume_claim_template.as_ref());
        let Some(template) = template else { continue };
        let from = template.metadata.clone().unwrap_or_default();
        let claim = PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: pod.namespace(),
                labels: from.labels,
                annotations: from.annotations,
                owner_references: Some(vec![ownership::controller_reference(&*pod)]),
                ..ObjectMeta::default()
            },
            spec: Some(template.spec.clone()),
            status: None,
        };
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(context.client.clone(), key.namespace());
        match api.create(&PostParams::default(), &claim).await {
            Ok(_) => {}
            Err(error) if api_error::is_already_exists(&error) => {}
            Err(error) => {
                let message = format!(
                    "create PVC {}: {}",
                    claim.name_any(),
                    api_error::message(&error)
                );
                recorder.warning(&*pod, "EphemeralVolumeCreationFailed", message);
                return Err(error);
            }
        }
    }
    Ok(())
}

fn volumes_of(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.volumes.iter().flatten())
        .filter(|volume| volume.ephemeral.is_some())
}

/// Iterates the names of the claims that a pod mounts, including those of its ephemeral volumes.
pub(super) fn claims_of(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let spec = pod.spec.iter();
    let volumes = spec.flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(
        |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
            (None, None) => None,
        },
    )
}
