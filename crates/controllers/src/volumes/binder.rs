//! The PersistentVolume controller: binds claims to volumes, both ways, and reclaims volumes whose claim is gone
//! (kube-controller-manager: persistentvolume-binder-controller).
//!
//! A claim is bound in four writes: the volume's `claimRef`, its phase, the claim's `volumeName`, its phase. Whichever
//! was the last, the next sync goes on from there. Volumes of drivers are made and deleted by the driver
//! ([`super::driver`]); here their claims are told which one.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{Api, Resource, ResourceExt, api::PostParams};

use super::matching::{self, BIND_COMPLETED, BOUND_BY_CONTROLLER};
use crate::{Context, EventType, Key, Queue, Recorder, api_error, pods};

/// Claims and volumes that wait for something are looked at again this often.
const RESYNC: Duration = Duration::from_secs(15);

/// What is synced.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Claim(Key),
    Volume(Key),
}

/// Starts the controller.
pub(super) fn start(context: &Context) {
    let queue = Queue::new("persistentvolume");
    let informers = &context.informers;
    informers.claims.on_change({
        let (queue, volumes) = (queue.clone(), informers.volumes.clone());
        move |change| {
            let claim = change.object();
            if !change.is_deleted() {
                return queue.add(Work::Claim(Key::of(&**claim)));
            }
            // Its volume is to be reclaimed.
            if let Some(volume) = matching::volume_name(claim) {
                queue.add(Work::Volume(Key::new("", volume)));
            }
            for volume in volumes.list() {
                if matching::is_bound_to(&volume, claim) {
                    queue.add(Work::Volume(Key::of(&*volume)));
                }
            }
        }
    });
    informers.volumes.on_change({
        let (queue, claims) = (queue.clone(), informers.claims.clone());
        move |change| {
            let volume = change.object();
            if change.is_deleted() {
                if let Some(claim) = matching::claim_ref(volume) {
                    queue.add(Work::Claim(key_of(claim)));
                }
                return;
            }
            queue.add(Work::Volume(Key::of(&**volume)));
            // A volume that has become free may be what a claim waits for.
            let freed = matching::claim_ref(volume).is_none() && phase(volume) == "Available";
            let before = change.previous().map(|old| phase(old) == "Available");
            if freed && before != Some(true) {
                for claim in claims.list() {
                    if matching::volume_name(&claim).is_none_or(|name| name == volume.name_any()) {
                        queue.add(Work::Claim(Key::of(&*claim)));
                    }
                }
            }
        }
    });
    informers.storage_classes.on_change({
        let (queue, claims) = (queue.clone(), informers.claims.clone());
        move |_| {
            for claim in claims.list() {
                if matching::volume_name(&claim).is_none() {
                    queue.add(Work::Claim(Key::of(&*claim)));
                }
            }
        }
    });
    let binder = Arc::new(Binder {
        context: context.clone(),
        queue: queue.clone(),
        recorder: context.recorder("persistentvolume-controller"),
    });
    context.tasks.spawn(async move {
        let context = binder.context.clone();
        let informers = &context.informers;
        if informers.claims.synced().await
            && informers.volumes.synced().await
            && informers.storage_classes.synced().await
            && informers.pods.synced().await
        {
            // One worker: matching looks at all volumes, and two at once would choose the same one.
            queue.run(&context, 1, move |work| {
                let binder = Arc::clone(&binder);
                async move {
                    match work {
                        Work::Claim(key) => binder.sync_claim(&key).await,
                        Work::Volume(key) => binder.sync_volume(&key).await,
                    }
                }
            });
        }
    });
}

struct Binder {
    context: Context,
    queue: Queue<Work>,
    recorder: Recorder,
}

impl Binder {
    async fn sync_claim(&self, key: &Key) -> kube::Result<()> {
        let Some(claim) = self.context.informers.claims.get_key(key) else {
            return Ok(());
        };
        if matching::is_bind_completed(&claim) {
            self.sync_bound_claim(&claim).await
        } else {
            self.sync_unbound_claim(key, &claim).await
        }
    }

    async fn sync_unbound_claim(
        &self,
        key: &Key,
        claim: &PersistentVolumeClaim,
    ) -> kube::Result<()> {
        match matching::volume_name(claim) {
            None => self.find_volume(key, claim).await,
            Some(name) => self.take_named_volume(key, claim, name).await,
        }
    }

    /// A claim that does not care which volume it gets.
    async fn find_volume(&self, key: &Key, claim: &PersistentVolumeClaim) -> kube::Result<()> {
        let class = self.class_of(claim);
        let delays = matching::waits_for_consumer(class.as_deref());
        let volumes = self.context.informers.volumes.list();
        let found = matching::best_match(claim, volumes.iter().map(|volume| &**volume), delays);
        if let Some(volume) = found {
            return self.bind(volume, claim).await;
        }
        if self.gave_default_class(claim).await? {
            return Ok(());
        }
        self.queue.add_after(Work::Claim(key.clone()), RESYNC);
        let named = matching::claim_class(claim).is_some_and(|class| !class.is_empty());
        if delays && !claim.annotations().contains_key(matching::SELECTED_NODE) {
            self.tell_what_it_waits_for(claim);
        } else if named {
            return self.ask_for_provisioning(claim, class.as_deref()).await;
        } else {
            self.recorder.normal(
                claim,
                "FailedBinding",
                "no persistent volumes available for this claim and no storage class is set",
            );
        }
        self.write_claim_status(claim.clone(), "Pending", None)
            .await
            .map(drop)
    }

    /// A claim whose maker wants this very volume.
    async fn take_named_volume(
        &self,
        key: &Key,
        claim: &PersistentVolumeClaim,
        name: &str,
    ) -> kube::Result<()> {
        if let Some(volume) = self.context.informers.volumes.get("", name) {
            if matching::claim_ref(&volume).is_none() {
                match matching::mismatch(&volume, claim) {
                    None => return self.bind(&volume, claim).await,
                    Some(why) => self.recorder.warning(
                        claim,
                        "VolumeMismatch",
                        format!("Cannot bind to requested volume {name:?}: {why}"),
                    ),
                }
            } else if matching::is_bound_to(&volume, claim) {
                return self.bind(&volume, claim).await;
            } else if !claim.annotations().contains_key(BOUND_BY_CONTROLLER) {
                self.recorder.warning(
                    claim,
                    "FailedBinding",
                    format!("volume {name:?} already bound to a different claim."),
                );
            } else {
                tracing::warn!(claim = %key, volume = name, "volume is bound to another claim");
            }
        }
        self.queue.add_after(Work::Claim(key.clone()), RESYNC);
        self.write_claim_status(claim.clone(), "Pending", None)
            .await
            .map(drop)
    }

    async fn sync_bound_claim(&self, claim: &PersistentVolumeClaim) -> kube::Result<()> {
        let Some(name) = matching::volume_name(claim) else {
            let message =
                "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            return self.lose(claim, "ClaimLost", message).await;
        };
        let Some(volume) = self.context.informers.volumes.get("", name) else {
            let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return self.lose(claim, "ClaimLost", message).await;
        };
        let own = matching::claim_uid(&volume) == claim.metadata.uid.as_deref();
        if matching::claim_ref(&volume).is_none() || own {
            return self.bind(&volume, claim).await;
        }
        let message = "Two claims are bound to the same volume, this one is bound incorrectly";
        self.lose(claim, "ClaimMisbound", message).await
    }

    async fn lose(
        &self,
        claim: &PersistentVolumeClaim,
        reason: &str,
        message: &str,
    ) -> kube::Result<()> {
        if claim_phase(claim) == "Lost" {
            return Ok(());
        }
        let lost = self.write_claim_status(claim.clone(), "Lost", None).await?;
        self.recorder.warning(&lost, reason, message);
        Ok(())
    }

    /// Says what a claim that waits for a pod waits for.
    fn tell_what_it_waits_for(&self, claim: &PersistentVolumeClaim) {
        let namespace = claim.namespace().unwrap_or_default();
        let name = claim.name_any();
        let pending = self
            .context
            .informers
            .pods
            .by_index(crate::informers::BY_NODE, "");
        let mut waiting: Vec<String> = pending
            .iter()
            .filter(|pod| pod.metadata.namespace.as_deref() == Some(&namespace))
            .filter(|pod| !pods::is_finished(pod))
            .filter(|pod| super::ephemeral::claims_of(pod).any(|claim| claim == name))
            .map(|pod| pod.name_any())
            .collect();
        waiting.sort();
        let (reason, message) = match waiting.as_slice() {
            [] => (
                "WaitForFirstConsumer",
                "waiting for first consumer to be created before binding".to_owned(),
            ),
            [one] => (
                "WaitForPodScheduled",
                format!("waiting for pod {one} to be scheduled"),
            ),
            several => (
                "WaitForPodScheduled",
                format!("waiting for pods {} to be scheduled", several.join(",")),
            ),
        };
        self.recorder.normal(claim, reason, message);
    }

    /// Gives a claim without a class the default one, where there is one by now.
    async fn gave_default_class(&self, claim: &PersistentVolumeClaim) -> kube::Result<bool> {
        if matching::claim_class(claim).is_some() {
            return Ok(false);
        }
        let classes = self.context.informers.storage_classes.list();
        let Some(class) = matching::default_class(classes.iter().map(|class| &**class)) else {
            return Ok(false);
        };
        let mut changed = claim.clone();
        changed.spec.get_or_insert_default().storage_class_name = Some(class.name_any());
        let api: Api<PersistentVolumeClaim> = self.claims(claim);
        api.replace(&claim.name_any(), &PostParams::default(), &changed)
            .await?;
        Ok(true)
    }

    /// Tells the driver of the claim's class to make a volume.
    async fn ask_for_provisioning(
        &self,
        claim: &PersistentVolumeClaim,
        class: Option<&StorageClass>,
    ) -> kube::Result<()> {
        let Some(class) = class else {
            let name = matching::claim_class(claim).unwrap_or_default();
            let message = format!("storageclass.storage.k8s.io {name:?} not found");
            self.recorder.warning(claim, "ProvisioningFailed", message);
            return Ok(());
        };
        let plugin = class.provisioner.as_str();
        let driver = matching::migrated_to(plugin);
        if driver.is_none() && plugin.starts_with("kubernetes.io/") {
            let message = format!("no volume plugin matched name: {plugin}");
            self.recorder.warning(claim, "ProvisioningFailed", message);
            return Ok(());
        }
        let provisioner = driver.unwrap_or(plugin);
        let mut changed = claim.clone();
        let annotations = changed.annotations_mut();
        for key in [
            matching::BETA_STORAGE_PROVISIONER,
            matching::STORAGE_PROVISIONER,
        ] {
            annotations.insert(key.to_owned(), provisioner.to_owned());
        }
        let mut told = claim.clone();
        if changed.metadata.annotations != claim.metadata.annotations {
            let api: Api<PersistentVolumeClaim> = self.claims(claim);
            told = api
                .replace(&claim.name_any(), &PostParams::default(), &changed)
                .await?;
        }
        self.recorder.normal(
            &told,
            "ExternalProvisioning",
            format!(
                "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
                 system administrator. If volume creation is delayed, please verify that the provisioner is running and \
                 correctly registered."
            ),
        );
        Ok(())
    }

    async fn sync_volume(&self, key: &Key) -> kube::Result<()> {
        let Some(volume) = self.context.informers.volumes.get_key(key) else {
            return Ok(());
        };
        let Some(reference) = matching::claim_ref(&volume) else {
            return self
                .write_volume_phase((*volume).clone(), "Available")
                .await
                .map(drop);
        };
        let Some(uid) = matching::claim_uid(&volume) else {
            return self
                .write_volume_phase((*volume).clone(), "Available")
                .await
                .map(drop);
        };
        let found = self.context.informers.claims.get_key(&key_of(reference));
        let claim = match found {
            Some(claim) if claim.metadata.uid.as_deref() == Some(uid) => Some(claim),
            // The informer may not have a claim that was made a moment ago.
            None if !is_let_go(&volume) => self.live_claim(reference, uid).await?.map(Arc::new),
            _ => None,
        };
        let Some(claim) = claim else {
            return self.release(&volume).await;
        };
        match matching::volume_name(&claim) {
            None if matching::modes_differ(&claim, &volume) => {
                self.tell_modes_differ(&volume, &claim);
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

    fn tell_modes_differ(&self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) {
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

    /// A volume whose claim is gone.
    async fn release(&self, volume: &PersistentVolume) -> kube::Result<()> {
        let mut released = volume.clone();
        if !is_let_go(volume) {
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
        // Whoever made it deletes it.
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

    /// Takes a binding back: the volume is free again, or set aside by name as its maker had it.
    async fn unbind(&self, volume: &PersistentVolume) -> kube::Result<()> {
        let mut free = volume.clone();
        let by_controller = free.annotations_mut().remove(BOUND_BY_CONTROLLER).is_some();
        if let Some(spec) = &mut free.spec {
            match by_controller {
                true => spec.claim_ref = None,
                false => {
                    if let Some(reference) = &mut spec.claim_ref {
                        reference.uid = None;
                    }
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

    /// Binds both ways, writing only what is not written yet.
    async fn bind(
        &self,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
    ) -> kube::Result<()> {
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

    async fn write_volume_phase(
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

    /// Sets a claim's phase, with what it got once it is bound.
    async fn write_claim_status(
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
                // Later changes are the resizer's.
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

    fn class_of(&self, claim: &PersistentVolumeClaim) -> Option<Arc<StorageClass>> {
        let name = matching::claim_class(claim).filter(|name| !name.is_empty())?;
        self.context.informers.storage_classes.get("", name)
    }

    fn claims(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(
            self.context.client.clone(),
            &claim.namespace().unwrap_or_default(),
        )
    }
}

fn key_of(reference: &ObjectReference) -> Key {
    Key::new(
        reference.namespace.as_deref().unwrap_or_default(),
        reference.name.as_deref().unwrap_or_default(),
    )
}

fn phase(volume: &PersistentVolume) -> &str {
    let status = volume.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    let status = claim.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

fn is_let_go(volume: &PersistentVolume) -> bool {
    matches!(phase(volume), "Released" | "Failed")
}

fn reclaim_policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref())
        .unwrap_or("Retain")
}
