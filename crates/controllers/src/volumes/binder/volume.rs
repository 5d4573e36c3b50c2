//! Syncs a volume: determines whether it is free and which claim holds it, and reclaims it when its claim is gone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Resource, ResourceExt, api::PostParams};

use super::{Binder, Work, is_released, key_of, phase, reclaim_policy};
use crate::{
    EventType, Key, api_error,
    volumes::matching::{self, BOUND_BY_CONTROLLER},
};

impl Binder {
    pub(super) async fn sync_volume(&self, key: &Key) -> kube::Result<()> {
        let Some(volume) = self.context.informers.volumes.get_key(key) else {
            return Ok(());
        };
        let Some(reference) = matching::claim_ref(&volume) else {
            return self
                .write_volume_phase((*volume).clone(), "Available")
                .await
                .map(drop);
        };
        // A user reserved the volume for a claim by name. It stays available until that claim is bound to it.
        let Some(uid) = matching::claim_uid(&volume) else {
            return self
                .write_volume_phase((*volume).clone(), "Available")
                .await
                .map(drop);
        };
        let found = self.context.informers.claims.get_key(&key_of(reference));
        let claim = match found {
            Some(claim) if claim.metadata.uid.as_deref() == Some(uid) => Some(claim),
            // The informer may not have a claim yet that was just created.
            None if !is_released(&volume) => self.live_claim(reference, uid).await?.map(Arc::new),
            _ => None,
        };
        let Some(claim) = claim else {
            return self.release(&volume).await;
        };
        match matching::volume_name(&claim) {
            None if matching::modes_differ(&claim, &volume) => {
                self.record_mode_mismatch(&volume, &claim);
                Ok(())
            }
            None => {
                self.queue.add(Work::Claim(Key::of(&*claim)));
                Ok(())
            }
            Some(name) if name == volume.name_any() => self
                .write_volume_phase((*volume).clone(), "Bound")
                .await
                .map(drop),
            Some(_) => {
                // The claim was bound to another volume. A volume provisioned for it is of no use to others
                // and is deleted.
                let made = volume.annotations().contains_key(matching::PROVISIONED_BY);
                if made && reclaim_policy(&volume) == "Delete" {
                    self.release(&volume).await
                } else {
                    self.unbind(&volume).await
                }
            }
        }
    }

    async fn live_claim(
        &self,
        reference: &ObjectReference,
        uid: &str,
    ) -> kube::Result<Option<PersistentVolumeClaim>> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(
            self.context.client.clone(),
            reference.namespace.as_deref().unwrap_or_default(),
        );
        let live = api
            .get_opt(reference.name.as_deref().unwrap_or_default())
            .await?;
        Ok(live.filter(|claim| claim.metadata.uid.as_deref() == Some(uid)))
    }

    fn record_mode_mismatch(&self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) {
        let (volume_name, claim_name) = (volume.name_any(), claim.name_any());
        self.recorder.warning(
            volume,
            "VolumeMismatch",
            format!("Cannot bind PersistentVolume to requested PersistentVolumeClaim {claim_name:?} due to incompatible volumeMode."),
        );
        self.recorder.warning(
            claim,
            "VolumeMismatch",
            format!("Cannot bind PersistentVolume {volume_name:?} to requested PersistentVolumeClaim due to incompatible volumeMode."),
        );
    }

    /// Releases a volume whose claim is gone, and applies its reclaim policy.
    async fn release(&self, volume: &PersistentVolume) -> kube::Result<()> {
        let mut released = volume.clone();
        if !is_released(volume) {
            released = self.write_volume_phase(released, "Released").await?;
        }
        match reclaim_policy(volume) {
            "Retain" => Ok(()),
            "Recycle" => {
                let recyclable = volume.spec.as_ref();
                let recyclable =
                    recyclable.is_some_and(|spec| spec.nfs.is_some() || spec.host_path.is_some());
                if recyclable {
                    self.recorder
                        .normal(volume, "VolumeRecycled", "Volume recycled");
                    // Nothing is scrubbed: simulated volumes hold no data.
                    return self.unbind(&released).await;
                }
                let message = "No recycler plugin found for the volume!";
                self.fail(released, "VolumeFailedRecycle", message).await
            }
            "Delete" => self.delete(released).await,
            _ => {
                let message = "Volume has unrecognized PersistentVolumeReclaimPolicy";
                self.fail(released, "VolumeUnknownReclaimPolicy", message)
                    .await
            }
        }
    }

    async fn delete(&self, volume: PersistentVolume) -> kube::Result<()> {
        let driver = volume.annotations().get(matching::PROVISIONED_BY);
        let spec = volume.spec.as_ref();
        let is_csi = spec.is_some_and(|spec| spec.csi.is_some());
        // The driver that provisioned the volume also deletes it.
        if is_csi || driver.is_some_and(|driver| !driver.starts_with("kubernetes.io/")) {
            return Ok(());
        }
        if spec.is_some_and(|spec| spec.host_path.is_some()) {
            let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
            let deleted = api.delete(&volume.name_any(), &Default::default()).await;
            return api_error::ignore_not_found(deleted).map(drop);
        }
        let message = format!(
            "error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched",
            volume.name_any()
        );
        self.fail(volume, "VolumeFailedDelete", &message).await
    }

    async fn fail(
        &self,
        volume: PersistentVolume,
        reason: &str,
        message: &str,
    ) -> kube::Result<()> {
        // Recorded once, like a lost claim.
        if phase(&volume) == "Failed" {
            return Ok(());
        }
        let mut failed = volume;
        let status = failed.status.get_or_insert_default();
        status.phase = Some("Failed".to_owned());
        status.message = Some(message.to_owned());
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        let written = api
            .replace_status(&failed.name_any(), &PostParams::default(), &failed)
            .await?;
        let object = written.object_ref(&());
        self.recorder
            .record(object, EventType::Warning, reason, message.to_owned());
        Ok(())
    }

    /// Undoes a binding: a volume that the controller bound becomes free, one that a user reserved by name stays
    /// reserved.
    async fn unbind(&self, volume: &PersistentVolume) -> kube::Result<()> {
        let mut free = volume.clone();
        let by_controller = free.annotations_mut().remove(BOUND_BY_CONTROLLER).is_some();
        if let Some(spec) = &mut free.spec {
            if by_controller {
                spec.claim_ref = None
            } else {
                if let Some(reference) = &mut spec.claim_ref {
                    reference.uid = None;
                }
            }
        }
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        let written = api
            .replace(&volume.name_any(), &PostParams::default(), &free)
            .await?;
        self.write_volume_phase(written, "Available")
            .await
            .map(drop)
    }
}
