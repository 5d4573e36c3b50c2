//! The four writes that bind a claim and a volume.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Resource, ResourceExt, api::PostParams};

use super::{Binder, claim_phase, phase};
use crate::volumes::matching::{self, BIND_COMPLETED, BOUND_BY_CONTROLLER};

impl Binder {
    /// Binds a volume and a claim to each other, skipping the writes that are already done.
    pub(super) async fn bind(
        &self,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
    ) -> kube::Result<()> {
        // The volume comes first: its version guards against two claims taking it, while a claim's version
        // guards only itself.
        let volume = self.bind_volume(volume, claim).await?;
        let volume = self.write_volume_phase(volume, "Bound").await?;
        let claim = self.bind_claim(claim, &volume).await?;
        self.write_claim_status(claim, "Bound", Some(&volume))
            .await
            .map(drop)
    }

    async fn bind_volume(
        &self,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
    ) -> kube::Result<PersistentVolume> {
        let was_for_it = matching::is_bound_to(volume, claim);
        if was_for_it && matching::claim_uid(volume).is_some() {
            return Ok(volume.clone());
        }
        let mut bound = volume.clone();
        if !was_for_it {
            let annotations = bound.annotations_mut();
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
        }
        bound.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
            // kube-controller-manager stores the version too, although nothing reads it.
            resource_version: claim.resource_version(),
            ..claim.object_ref(&())
        });
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        api.replace(&volume.name_any(), &PostParams::default(), &bound)
            .await
    }

    async fn bind_claim(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> kube::Result<PersistentVolumeClaim> {
        let name = volume.name_any();
        let named = matching::volume_name(claim) == Some(&name);
        if named && matching::is_bind_completed(claim) {
            return Ok(claim.clone());
        }
        let mut bound = claim.clone();
        bound.spec.get_or_insert_default().volume_name = Some(name);
        let annotations = bound.annotations_mut();
        if !named {
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
        }
        annotations.insert(BIND_COMPLETED.to_owned(), "yes".to_owned());
        self.claims(claim)
            .replace(&claim.name_any(), &PostParams::default(), &bound)
            .await
    }

    pub(super) async fn write_volume_phase(
        &self,
        volume: PersistentVolume,
        phase_now: &str,
    ) -> kube::Result<PersistentVolume> {
        if phase(&volume) == phase_now {
            return Ok(volume);
        }
        let mut changed = volume;
        let status = changed.status.get_or_insert_default();
        status.phase = Some(phase_now.to_owned());
        status.message = None;
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        api.replace_status(&changed.name_any(), &PostParams::default(), &changed)
            .await
    }

    /// Sets the phase of a claim; a bound claim also gets the capacity and access modes of its volume.
    pub(super) async fn write_claim_status(
        &self,
        claim: PersistentVolumeClaim,
        phase_now: &str,
        volume: Option<&PersistentVolume>,
    ) -> kube::Result<PersistentVolumeClaim> {
        let mut changed = claim;
        let was = claim_phase(&changed).to_owned();
        let before = changed.status.clone();
        let status = changed.status.get_or_insert_default();
        status.phase = Some(phase_now.to_owned());
        match volume.and_then(|volume| volume.spec.as_ref()) {
            None => {
                status.access_modes = None;
                status.capacity = None;
            }
            Some(spec) => {
                status.access_modes = spec.access_modes.clone();
                // After binding, external-resizer owns these fields.
                if was != "Bound" {
                    status.capacity = spec.capacity.clone();
                    status.current_volume_attributes_class_name =
                        spec.volume_attributes_class_name.clone();
                }
            }
        }
        if changed.status == before {
            return Ok(changed);
        }
        self.claims(&changed)
            .replace_status(&changed.name_any(), &PostParams::default(), &changed)
            .await
    }
}
