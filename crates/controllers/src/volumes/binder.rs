//! The PersistentVolume controller: binds claims and volumes to each other, and reclaims volumes whose claim is
//! gone (kube-controller-manager: persistentvolume-binder-controller).
//!
//! A binding takes four writes: the volume's `claimRef`, its phase, the claim's `volumeName`, its phase. After an
//! interruption the next sync continues with the first write that is missing. CSI drivers create and delete volumes
//! ([`super::driver`]); this controller annotates the claims for which a driver should create one.

mod volume;
mod write;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{Api, ResourceExt, api::PostParams};

use super::matching::{self, BOUND_BY_CONTROLLER};
use crate::{Context, Key, Queue, Recorder, pods};

/// The interval at which waiting claims and volumes are synced again.
const RESYNC: Duration = Duration::from_secs(15);

/// An item of the work queue.
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
            // The volume of a deleted claim has to be reclaimed.
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
            // A claim may be waiting for a volume that has become available.
            // Only the transition counts, because this wakes every unbound claim.
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
            // One worker only: matching considers all volumes, so two workers could choose the same one.
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

    /// Binds a claim that names no volume to the best match, or has a volume provisioned.
    async fn find_volume(&self, key: &Key, claim: &PersistentVolumeClaim) -> kube::Result<()> {
        let class = self.class_of(claim);
        let delays = matching::waits_for_consumer(class.as_deref());
        let volumes = self.context.informers.volumes.list();
        let found = matching::best_match(claim, volumes.iter().map(|volume| &**volume), delays);
        if let Some(volume) = found {
            return self.bind(volume, claim).await;
        }
        // The write wakes the claim again, now with a class.
        if self.gave_default_class(claim).await? {
            return Ok(());
        }
        // kube-controller-manager syncs waiting claims periodically too; changes of nodes or pods do not wake
        // them.
        self.queue.add_after(Work::Claim(key.clone()), RESYNC);
        let named = matching::claim_class(claim).is_some_and(|class| !class.is_empty());
        if delays && !claim.annotations().contains_key(matching::SELECTED_NODE) {
            self.record_wait(claim);
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

    /// Binds a claim to the volume that it names.
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
                // This should not happen: the controller chose the volume, yet another claim has it.
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
            return self.mark_lost(claim, "ClaimLost", message).await;
        };
        let Some(volume) = self.context.informers.volumes.get("", name) else {
            let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return self.mark_lost(claim, "ClaimLost", message).await;
        };
        // A volume without a reference lost only its side of the binding, which is written again.
        let own = matching::claim_uid(&volume) == claim.metadata.uid.as_deref();
        if matching::claim_ref(&volume).is_none() || own {
            return self.bind(&volume, claim).await;
        }
        let message = "Two claims are bound to the same volume, this one is bound incorrectly";
        self.mark_lost(claim, "ClaimMisbound", message).await
    }

    async fn mark_lost(
        &self,
        claim: &PersistentVolumeClaim,
        reason: &str,
        message: &str,
    ) -> kube::Result<()> {
        // The event is recorded once, not at every sync.
        if claim_phase(claim) == "Lost" {
            return Ok(());
        }
        let lost = self.write_claim_status(claim.clone(), "Lost", None).await?;
        self.recorder.warning(&lost, reason, message);
        Ok(())
    }

    /// Records an event that names what a claim with WaitForFirstConsumer is waiting for.
    fn record_wait(&self, claim: &PersistentVolumeClaim) {
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

    /// Sets the default class of a claim without a class. Returns `false` if it has one or there is no default.
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

    /// Asks the driver of the claim's class to provision a volume, by an annotation on the claim.
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
        // In-tree plugins without a CSI driver, for example `no-provisioner`, create nothing.
        if driver.is_none() && plugin.starts_with("kubernetes.io/") {
            let message = format!("no volume plugin matched name: {plugin}");
            self.recorder.warning(claim, "ProvisioningFailed", message);
            return Ok(());
        }
        let provisioner = driver.unwrap_or(plugin);
        let mut changed = claim.clone();
        let annotations = changed.annotations_mut();
        // Older provisioners read only the beta annotation.
        for key in [
            matching::BETA_STORAGE_PROVISIONER,
            matching::STORAGE_PROVISIONER,
        ] {
            annotations.insert(key.to_owned(), provisioner.to_owned());
        }
        let mut assigned = claim.clone();
        // Resyncs come here repeatedly, and the annotations are usually there already.
        if changed.metadata.annotations != claim.metadata.annotations {
            let api: Api<PersistentVolumeClaim> = self.claims(claim);
            assigned = api
                .replace(&claim.name_any(), &PostParams::default(), &changed)
                .await?;
        }
        self.recorder.normal(
            &assigned,
            "ExternalProvisioning",
            format!(
                "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
                 system administrator. If volume creation is delayed, please verify that the provisioner is running and \
                 correctly registered."
            ),
        );
        Ok(())
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

fn is_released(volume: &PersistentVolume) -> bool {
    matches!(phase(volume), "Released" | "Failed")
}

fn reclaim_policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref())
        .unwrap_or("Retain")
}
