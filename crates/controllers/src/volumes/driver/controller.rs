//! Creates, resizes and deletes volumes: external-provisioner and external-resizer with the EBS driver.
//!
//! A volume's name and handle are derived from its claim's UID, so a repeated attempt creates no second volume.
//! Errors are recorded as events on the claim or volume, and retried with external-provisioner's back-off.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use mullion_cloud::Speed;
use serde_json::{Value, json};

use super::{
    DRIVER, PROVISIONER_FINALIZER,
    topology::{self, TopologyError},
    volume::{UnsupportedVolume, capacity_for, check, volume},
};
use crate::{
    Context, Key, Queue, Recorder, api_error,
    queue::Backoff,
    volumes::matching::{self, MIGRATED_TO, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER},
};

/// The simulated time to create a volume.
const WORK: Duration = Duration::from_millis(2000);
/// The most volumes created at once (external-provisioner: `--worker-threads`).
const WORKERS: usize = 100;
const BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(300),
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Claim(Key),
    Volume(Key),
}

pub(super) fn start(context: &Context, speed: Speed) {
    let queue: Queue<Work> = Queue::with_backoff("csi-provisioner", BACKOFF);
    let informers = &context.informers;
    informers.claims.on_change({
        let queue = queue.clone();
        move |change| {
            let claim = change.object();
            if !change.is_deleted() && (is_ours(claim) || is_too_small(claim)) {
                queue.add(Work::Claim(Key::of(&**claim)));
            }
        }
    });
    informers.volumes.on_change({
        let queue = queue.clone();
        move |change| {
            if !change.is_deleted() && is_to_be_deleted(change.object()) {
                queue.add(Work::Volume(Key::of(&**change.object())));
            }
        }
    });
    let driver = Arc::new(Driver {
        context: context.clone(),
        recorder: context.recorder(DRIVER),
        resizer: context.recorder("external-resizer ebs.csi.aws.com"),
        speed,
    });
    context.tasks.spawn(async move {
        let context = driver.context.clone();
        let informers = &context.informers;
        if informers.claims.synced().await
            && informers.volumes.synced().await
            && informers.storage_classes.synced().await
            && informers.nodes.synced().await
            && informers.volume_attachments.synced().await
        {
            queue.run(&context, WORKERS, move |work| {
                let driver = Arc::clone(&driver);
                async move {
                    match work {
                        Work::Claim(key) => driver.sync_claim(&key).await,
                        Work::Volume(key) => driver.sync_volume(&key).await,
                    }
                }
            });
        }
    });
}

/// The reasons for which an operation is retried.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The node that the scheduler has selected is gone.
    #[error("error generating accessibility requirements: node {0:?} not found")]
    NoNode(String),
    /// A volume that is to be deleted is attached to a node.
    #[error("persistentvolume {volume} is still attached to node {node}")]
    Attached { volume: String, node: String },
    #[error(transparent)]
    Volume(#[from] UnsupportedVolume),
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

struct Driver {
    context: Context,
    recorder: Recorder,
    resizer: Recorder,
    speed: Speed,
}

impl Driver {
    async fn sync_claim(&self, key: &Key) -> Result<(), Failure> {
        let Some(claim) = self.context.informers.claims.get_key(key) else {
            return Ok(());
        };
        if matching::volume_name(&claim).is_some() {
            return self.resize(&claim).await;
        }
        let class = matching::claim_class(&claim).unwrap_or_default();
        let Some(class) = self.context.informers.storage_classes.get("", class) else {
            return Ok(());
        };
        let selected = claim.annotations().get(SELECTED_NODE);
        if !is_ours(&claim)
            || claim.metadata.deletion_timestamp.is_some()
            || (matching::waits_for_consumer(Some(&class)) && selected.is_none())
        {
            return Ok(());
        }
        let name = format!("pvc-{}", claim.uid().unwrap_or_default());
        if self.context.informers.volumes.get("", &name).is_some() {
            return Ok(());
        }
        self.recorder.normal(
            &*claim,
            "Provisioning",
            format!("External provisioner is provisioning volume for claim \"{key}\""),
        );
        let outcome = self.provision(&claim, &class, &name).await;
        // API errors are only retried; they say nothing about the volume.
        if let Err(error) = &outcome
            && !matches!(error, Failure::Api(_))
        {
            let message = format!(
                "failed to provision volume with StorageClass {:?}: {error}",
                class.name_any()
            );
            self.recorder
                .warning(&*claim, "ProvisioningFailed", message);
            // Without the selected node the scheduler may choose another one.
            if selected.is_some() {
                self.give_node_back(&claim).await?;
                return Ok(());
            }
        }
        outcome
    }

    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        name: &str,
    ) -> Result<(), Failure> {
        let nodes = self.context.informers.nodes.list();
        let selected = match claim.annotations().get(SELECTED_NODE) {
            None => None,
            Some(node) => {
                let found = self.context.informers.nodes.get("", node);
                Some(found.ok_or_else(|| Failure::NoNode(node.clone()))?)
            }
        };
        check(claim, class)?;
        let zone = topology::zone(class, &claim.name_any(), selected.as_deref(), &nodes)?;
        tokio::time::sleep(self.speed.scale(WORK)).await;
        let volume = volume(claim, class, name, &zone);
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        match api.create(&PostParams::default(), &volume).await {
            // An earlier attempt created the volume, and the informer does not show it yet.
            Err(error) if api_error::is_already_exists(&error) => {}
            outcome => drop(outcome?),
        }
        self.recorder.normal(
            claim,
            "ProvisioningSucceeded",
            format!("Successfully provisioned volume {name}"),
        );
        Ok(())
    }

    async fn give_node_back(&self, claim: &PersistentVolumeClaim) -> kube::Result<()> {
        // The UID makes the API server refuse the patch if a new claim has taken the name.
        let patch = json!({ "metadata": { "uid": claim.uid(), "annotations": { SELECTED_NODE: Value::Null } } });
        let patched = self
            .claims(claim)
            .patch(
                &claim.name_any(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await;
        api_error::ignore_not_found(patched).map(drop)
    }

    /// Grows a bound claim and its volume to the requested size. A volume never shrinks.
    async fn resize(&self, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
        let Some(name) = matching::volume_name(claim).filter(|_| is_too_small(claim)) else {
            return Ok(());
        };
        let Some(volume) = self.context.informers.volumes.get("", name) else {
            return Ok(());
        };
        let driver = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        if driver.is_none_or(|csi| csi.driver != DRIVER) {
            return Ok(());
        }
        let wanted = capacity_for(claim);
        // The volume grows before the claim: after an interruption the claim is still too small, and the resize is
        // repeated.
        if matching::capacity(&volume) < matching::quantity(Some(&wanted)) {
            self.resizer.normal(
                claim,
                "Resizing",
                format!("External resizer is resizing volume {name}"),
            );
            tokio::time::sleep(self.speed.scale(WORK)).await;
            let patch = json!({ "spec": { "capacity": { "storage": wanted } } });
            let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
            let patched = api
                .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .await;
            if api_error::ignore_not_found(patched)?.is_none() {
                return Ok(());
            }
        }
        let patch = json!({ "status": { "capacity": { "storage": wanted } } });
        let patched = self
            .claims(claim)
            .patch_status(
                &claim.name_any(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await;
        if api_error::ignore_not_found(patched)?.is_some() {
            self.resizer
                .normal(claim, "VolumeResizeSuccessful", "Resize volume succeeded");
        }
        Ok(())
    }

    /// Deletes the storage behind a volume that is no longer needed, and then the volume.
    async fn sync_volume(&self, key: &Key) -> Result<(), Failure> {
        let latest = || {
            let found = self.context.informers.volumes.get_key(key);
            found.filter(|volume| is_to_be_deleted(volume))
        };
        let Some(volume) = latest() else {
            return Ok(());
        };
        let attachments = self.context.informers.volume_attachments.list();
        let attached = attachments
            .iter()
            .find(|one| one.spec.source.persistent_volume_name.as_deref() == Some(key.name()));
        // EBS refuses to delete a volume that is in use; external-provisioner reports and retries this.
        if let Some(attachment) = attached {
            let error = Failure::Attached {
                volume: key.name().to_owned(),
                node: attachment.spec.node_name.clone(),
            };
            self.recorder
                .warning(&*volume, "VolumeFailedDelete", error.to_string());
            return Err(error);
        }
        tokio::time::sleep(self.speed.scale(WORK)).await;
        let Some(volume) = latest() else {
            return Ok(());
        };
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        let deleted = api.delete(key.name(), &DeleteParams::default()).await;
        // With its finalizer the volume only becomes terminating; removing the finalizer then deletes it.
        api_error::ignore_not_found(deleted)?;
        let kept: Vec<_> = volume
            .finalizers()
            .iter()
            .filter(|name| *name != PROVISIONER_FINALIZER)
            .cloned()
            .collect();
        let patch = json!({ "metadata": { "uid": volume.uid(), "finalizers": kept } });
        let patched = api
            .patch(key.name(), &PatchParams::default(), &Patch::Merge(patch))
            .await;
        api_error::ignore_not_found(patched)?;
        Ok(())
    }

    fn claims(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(
            self.context.client.clone(),
            &claim.namespace().unwrap_or_default(),
        )
    }
}

/// Returns whether this driver has to provision the claim's volume.
fn is_ours(claim: &PersistentVolumeClaim) -> bool {
    let annotations = claim.annotations();
    let asked = [STORAGE_PROVISIONER, MIGRATED_TO];
    asked
        .iter()
        .any(|key| annotations.get(*key).is_some_and(|driver| driver == DRIVER))
        && matching::volume_name(claim).is_none()
}

/// Returns whether a bound claim requests more storage than it has.
fn is_too_small(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let capacity = status.and_then(|status| status.capacity.as_ref());
    capacity.is_some_and(|capacity| {
        matching::quantity(capacity.get("storage")) < matching::requested(claim)
    })
}

fn is_to_be_deleted(volume: &PersistentVolume) -> bool {
    let Some(spec) = &volume.spec else {
        return false;
    };
    let status = volume.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let ours = volume.annotations().get(PROVISIONED_BY).map(String::as_str) == Some(DRIVER);
    let held = volume
        .finalizers()
        .iter()
        .any(|name| name == PROVISIONER_FINALIZER);
    let going = volume.metadata.deletion_timestamp.is_some();
    // With the policy Retain the driver leaves the storage alone.
    let deletes = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    ours && deletes
        && match phase {
            Some("Released") => held || !going,
            Some("Available" | "Failed") => going && held,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_released_volumes_that_are_to_be_deleted_are() {
        let mut made: PersistentVolume = serde_json::from_value(json!({
            "metadata": { "name": "pvc-0a1b", "annotations": { PROVISIONED_BY: DRIVER }, "finalizers": [PROVISIONER_FINALIZER] },
            "spec": { "persistentVolumeReclaimPolicy": "Delete" },
        }))
        .expect("a volume");
        let mut phase = |phase: &str| {
            made.status.get_or_insert_default().phase = Some(phase.to_owned());
            is_to_be_deleted(&made)
        };
        assert!(phase("Released") && !phase("Bound") && !phase("Available"));
        let spec = made.spec.get_or_insert_default();
        spec.persistent_volume_reclaim_policy = Some("Retain".to_owned());
        made.status.get_or_insert_default().phase = Some("Released".to_owned());
        assert!(!is_to_be_deleted(&made));
    }
}
