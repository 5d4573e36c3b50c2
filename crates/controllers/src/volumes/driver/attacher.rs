//! Attaches and detaches volumes as VolumeAttachments request, each after the simulated time (external-attacher
//! with its driver).
//!
//! This attacher serves all drivers, not only EBS, because a simulated cluster has no other attacher.

use std::time::Duration;

use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentStatus};
use kube::{Api, ResourceExt, api::PostParams};
use mullion_cloud::Speed;

use crate::{Context, Key, Queue, api_error};

/// The simulated time to attach or detach a volume.
const WORK: Duration = Duration::from_millis(1500);
/// The most attachments and detachments in progress at once.
const WORKERS: usize = 100;

pub(super) fn start(context: &Context, speed: Speed) {
    let queue: Queue<Key> = Queue::new("csi-attacher");
    context.informers.volume_attachments.on_change({
        let queue = queue.clone();
        move |change| {
            if !change.is_deleted() && wants_work(change.object()) {
                queue.add(Key::of(&**change.object()));
            }
        }
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if context.informers.volume_attachments.synced().await {
            let workers = context.clone();
            queue.run(&workers, WORKERS, move |key| {
                let context = context.clone();
                async move { sync(&context, &key, speed).await }
            });
        }
    });
}

fn finalizer(attachment: &VolumeAttachment) -> String {
    format!(
        "external-attacher/{}",
        attachment.spec.attacher.replace('.', "-")
    )
}

fn is_held(attachment: &VolumeAttachment) -> bool {
    let own = finalizer(attachment);
    attachment.finalizers().contains(&own)
}

fn wants_work(attachment: &VolumeAttachment) -> bool {
    let attached = attachment
        .status
        .as_ref()
        .is_some_and(|status| status.attached);
    match attachment.metadata.deletion_timestamp {
        Some(_) => is_held(attachment),
        None => !attached,
    }
}

async fn sync(context: &Context, key: &Key, speed: Speed) -> kube::Result<()> {
    let latest = || {
        let found = context.informers.volume_attachments.get_key(key);
        found.filter(|attachment| wants_work(attachment))
    };
    let api: Api<VolumeAttachment> = Api::all(context.client.clone());
    let Some(attachment) = latest() else {
        return Ok(());
    };
    if attachment.metadata.deletion_timestamp.is_none() && !is_held(&attachment) {
        // The finalizer is set before the work begins, so that a half-attached volume cannot disappear from the
        // API.
        let mut held = VolumeAttachment::clone(&attachment);
        let own = finalizer(&held);
        held.finalizers_mut().push(own);
        let written = api.replace(key.name(), &PostParams::default(), &held).await;
        return api_error::ignore_not_found(written).map(drop);
    }
    tokio::time::sleep(speed.scale(WORK)).await;
    // The attachment may have been deleted, or its deletion requested, during the work.
    let Some(attachment) = latest() else {
        return Ok(());
    };
    let mut changed = VolumeAttachment::clone(&attachment);
    if attachment.metadata.deletion_timestamp.is_some() {
        let own = finalizer(&attachment);
        changed.finalizers_mut().retain(|name| *name != own);
        let written = api
            .replace(key.name(), &PostParams::default(), &changed)
            .await;
        return api_error::ignore_not_found(written).map(drop);
    }
    changed.status = Some(VolumeAttachmentStatus {
        attached: true,
        ..VolumeAttachmentStatus::default()
    });
    let written = api
        .replace_status(key.name(), &PostParams::default(), &changed)
        .await;
    api_error::ignore_not_found(written).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finalizer_is_named_after_the_driver() {
        let mut attachment = VolumeAttachment::default();
        attachment.spec.attacher = "ebs.csi.aws.com".into();
        assert_eq!(finalizer(&attachment), "external-attacher/ebs-csi-aws-com");
    }

    #[test]
    fn what_is_attached_is_left_alone_until_it_is_to_go() {
        let mut attachment = VolumeAttachment::default();
        assert!(wants_work(&attachment), "nothing is attached yet");
        attachment.status.get_or_insert_default().attached = true;
        assert!(!wants_work(&attachment));
        attachment.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        );
        assert!(!wants_work(&attachment), "held by others only");
        let own = finalizer(&attachment);
        attachment.finalizers_mut().push(own);
        assert!(wants_work(&attachment));
    }
}
