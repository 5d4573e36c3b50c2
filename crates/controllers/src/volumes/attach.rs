//! Attaches CSI volumes to the nodes of their pods, and detaches them after the last pod is gone, by creating and
//! deleting VolumeAttachments (kube-controller-manager: attachdetach-controller).
//!
//! Invariant: a volume for a single node is never attached to a second node before it is detached from the first.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, Pod},
        storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use sha2::{Digest, Sha256};

use super::{ephemeral::claims_of, matching};
use crate::{Change, Context, Key, Queue, Recorder, api_error, pods};

const WORKERS: usize = 4;
/// How often a volume that is still attached elsewhere is synced again.
const RETRY: Duration = Duration::from_secs(1);

/// Returns the name of the VolumeAttachment for a volume (by its CSI handle) and a node.
pub(crate) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let digest = Sha256::digest([handle, driver, node].concat());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
}

/// Returns whether volumes of a driver must be attached before they are mounted; `true` unless the driver says
/// otherwise.
pub(crate) fn must_attach(driver: Option<&k8s_openapi::api::storage::v1::CSIDriver>) -> bool {
    driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
}

/// Returns whether the driver has reported the volume as attached.
pub(crate) fn is_attached(attachment: &VolumeAttachment) -> bool {
    let status = attachment.status.as_ref();
    status.is_some_and(|status| status.attached) && attachment.metadata.deletion_timestamp.is_none()
}

/// Starts the controller.
pub(super) fn start(context: &Context) {
    let queue: Queue<Key> = Queue::new("attachdetach");
    let informers = &context.informers;
    let recorder = context.recorder("attachdetach-controller");
    informers.pods.on_change({
        let (queue, claims) = (queue.clone(), informers.claims.clone());
        move |change| {
            let pod = change.object();
            let settled = |pod: &Pod| (pods::node_name(pod).to_owned(), pods::is_finished(pod));
            // Only where a pod runs and whether it has finished matter to attachments; most updates change
            // neither.
            let same = change
                .previous()
                .is_some_and(|old| settled(old) == settled(pod));
            if same || pods::node_name(pod).is_empty() {
                return;
            }
            for claim in claims_of(pod) {
                let claim = claims.get(
                    pod.metadata.namespace.as_deref().unwrap_or_default(),
                    &claim,
                );
                if let Some(volume) = claim
                    .as_ref()
                    .and_then(|claim| matching::volume_name(claim))
                {
                    queue.add(Key::new("", volume));
                }
            }
        }
    });
    informers.volumes.on_change({
        let queue = queue.clone();
        move |change| {
            let volume = change.object();
            if volume.spec.as_ref().is_some_and(|spec| spec.csi.is_some()) {
                queue.add(Key::of(&**volume));
            }
        }
    });
    informers.claims.on_change({
        let queue = queue.clone();
        move |change| {
            if let Some(volume) = matching::volume_name(change.object()) {
                queue.add(Key::new("", volume));
            }
        }
    });
    let attacher = Arc::new(Attacher {
        context: context.clone(),
        queue: queue.clone(),
        recorder,
    });
    informers.volume_attachments.on_change({
        let (queue, attacher) = (queue.clone(), Arc::clone(&attacher));
        move |change| {
            let attachment = change.object();
            if let Some(volume) = &attachment.spec.source.persistent_volume_name {
                queue.add(Key::new("", volume));
                if let Change::Updated { old, new } = change
                    && !is_attached(old)
                    && is_attached(new)
                {
                    attacher.record_attached(volume, &new.spec.node_name);
                }
            }
        }
    });
    context.tasks.spawn(async move {
        let context = attacher.context.clone();
        let informers = &context.informers;
        if informers.pods.synced().await
            && informers.claims.synced().await
            && informers.volumes.synced().await
            && informers.csi_drivers.synced().await
            && informers.volume_attachments.synced().await
        {
            queue.run(&context, WORKERS, move |key| {
                let attacher = Arc::clone(&attacher);
                async move { attacher.sync(&key).await }
            });
        }
    });
}

struct Attacher {
    context: Context,
    queue: Queue<Key>,
    recorder: Recorder,
}

impl Attacher {
    async fn sync(&self, key: &Key) -> kube::Result<()> {
        let informers = &self.context.informers;
        let attachments: BTreeMap<String, Arc<VolumeAttachment>> = informers
            .volume_attachments
            .list()
            .into_iter()
            .filter(|own| own.spec.source.persistent_volume_name.as_deref() == Some(key.name()))
            .map(|own| (own.spec.node_name.clone(), own))
            .collect();
        let volume = informers.volumes.get_key(key);
        let users = volume.as_deref().map(|volume| self.users(volume));
        let users = users.unwrap_or_default();
        // Detaching comes first, so that a volume for one node can move to another.
        for (node, attachment) in &attachments {
            let going = attachment.metadata.deletion_timestamp.is_some();
            if !users.contains_key(node) && !going {
                self.detach(attachment).await?;
            }
        }
        let Some(volume) = volume else { return Ok(()) };
        let Some(csi) = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) else {
            return Ok(());
        };
        let driver = informers.csi_drivers.get("", &csi.driver);
        if !must_attach(driver.as_deref()) {
            return Ok(());
        }
        for (node, pods) in &users {
            if attachments.contains_key(node) {
                continue;
            }
            // An attachment counts until its object is gone: the driver removes its finalizer only after it
            // has detached.
            let elsewhere = attachments.keys().find(|other| *other != node);
            if is_for_one_node(&volume) && elsewhere.is_some() {
                self.record_in_use(&volume, pods, &users, node);
                self.queue.add_after(key.clone(), RETRY);
                continue;
            }
            self.attach(&volume, &csi.driver, &csi.volume_handle, node)
                .await?;
            // The informer does not show the new attachment yet, so the loop would attach the volume to a
            // second node.
            if is_for_one_node(&volume) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the pods that use a volume, by node.
    fn users(&self, volume: &PersistentVolume) -> BTreeMap<String, Vec<Arc<Pod>>> {
        let mut users: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        let Some(reference) = matching::claim_ref(volume) else {
            return users;
        };
        let name = reference.name.as_deref().unwrap_or_default();
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let claim = self.context.informers.claims.get(namespace, name);
        let bound = claim.is_some_and(|claim| {
            matching::volume_name(&claim) == volume.metadata.name.as_deref()
                // Both sides must name each other; a claim of the same name created later is another claim.
                && matching::claim_uid(volume) == claim.metadata.uid.as_deref()
        });
        if !bound {
            return users;
        }
        for pod in self.context.informers.pods.in_namespace(namespace) {
            let node = pods::node_name(&pod);
            if !node.is_empty()
                && !pods::is_finished(&pod)
                && claims_of(&pod).any(|own| own == name)
            {
                users.entry(node.to_owned()).or_default().push(pod);
            }
        }
        users
    }

    async fn attach(
        &self,
        volume: &PersistentVolume,
        driver: &str,
        handle: &str,
        node: &str,
    ) -> kube::Result<()> {
        let attachment = VolumeAttachment {
            metadata: ObjectMeta {
                name: Some(attachment_name(handle, driver, node)),
                ..ObjectMeta::default()
            },
            spec: VolumeAttachmentSpec {
                attacher: driver.to_owned(),
                node_name: node.to_owned(),
                source: VolumeAttachmentSource {
                    persistent_volume_name: volume.metadata.name.clone(),
                    ..VolumeAttachmentSource::default()
                },
            },
            status: None,
        };
        let api: Api<VolumeAttachment> = Api::all(self.context.client.clone());
        match api.create(&PostParams::default(), &attachment).await {
            Err(error) if api_error::is_already_exists(&error) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    async fn detach(&self, attachment: &VolumeAttachment) -> kube::Result<()> {
        let api: Api<VolumeAttachment> = Api::all(self.context.client.clone());
        let deleted = api
            .delete(&attachment.name_any(), &DeleteParams::default())
            .await;
        api_error::ignore_not_found(deleted).map(drop)
    }

    fn record_attached(&self, volume: &str, node: &str) {
        let Some(volume) = self.context.informers.volumes.get("", volume) else {
            return;
        };
        let message = format!(
            "AttachVolume.Attach succeeded for volume {:?} ",
            volume.name_any()
        );
        for pod in self.users(&volume).remove(node).unwrap_or_default() {
            self.recorder
                .normal(&*pod, "SuccessfulAttachVolume", message.clone());
        }
    }

    fn record_in_use(
        &self,
        volume: &PersistentVolume,
        waiting: &[Arc<Pod>],
        users: &BTreeMap<String, Vec<Arc<Pod>>>,
        node: &str,
    ) {
        let others = users.iter().filter(|(other, _)| *other != node);
        let others: BTreeSet<String> = others
            .flat_map(|(_, pods)| pods.iter().map(|pod| pod.name_any()))
            .collect();
        let why = if others.is_empty() {
            "Volume is already exclusively attached to one node and can't be attached to another"
                .to_owned()
        } else {
            let names: Vec<_> = others.into_iter().collect();
            format!("Volume is already used by pod(s) {}", names.join(", "))
        };
        let message = format!(
            "Multi-Attach error for volume {:?} {why}",
            volume.name_any()
        );
        for pod in waiting {
            self.recorder
                .warning(&**pod, "FailedAttachVolume", message.clone());
        }
    }
}

/// Returns whether a volume can be attached to only one node at a time.
fn is_for_one_node(volume: &PersistentVolume) -> bool {
    let modes = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.access_modes.as_ref());
    let mut modes = modes.into_iter().flatten();
    !modes.any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attachment_is_named_by_volume_driver_and_node() {
        let name = attachment_name("vol-1", "ebs.csi.aws.com", "n1");
        assert_eq!(name.len(), 4 + 64);
        assert_eq!(name, attachment_name("vol-1", "ebs.csi.aws.com", "n1"));
        assert_ne!(name, attachment_name("vol-1", "ebs.csi.aws.com", "n2"));
    }
}
