//! Records when a node was last used: the time a pod was bound to it, left it or ended on it.
//!
//! Invariant: `status.lastPodEventTime` of a claim never goes back, and is written at most every five seconds; daemons
//! and static pods do not count, for they come with the node.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::Error;
use crate::{
    Change, Queue, api_error, pods,
    provisioner::{KarpenterContext, pending::comes_with_its_node},
};

/// Events closer together than this count as one.
const DEDUPLICATION: SignedDuration = SignedDuration::from_secs(5);

pub(super) fn start(karpenter: &KarpenterContext) {
    let queue: Queue<String> = Queue::new("nodeclaim.podevents");
    let nodes = queue.clone();
    karpenter.base.informers.pods.on_change(move |change| {
        let node = pods::node_name(change.object());
        if !node.is_empty() && concerns_its_node(change) {
            nodes.add(node.to_owned());
        }
    });
    let (events, again) = (karpenter.clone(), queue.clone());
    queue.run(&karpenter.base, 2, move |node| {
        let (karpenter, again) = (events.clone(), again.clone());
        async move {
            if let Some(wait) = note(&karpenter, &node).await? {
                again.add_after(node, wait);
            }
            Ok::<_, Error>(())
        }
    });
}

/// Returns whether a pod came to its node, began to leave, ended or left.
fn concerns_its_node(change: &Change<'_, Pod>) -> bool {
    if comes_with_its_node(change.object()) {
        return false;
    }
    match change {
        Change::Added(_) | Change::Deleted(_) => true,
        Change::Updated { old, new } => {
            pods::node_name(old) != pods::node_name(new)
                || pods::is_finished(old) != pods::is_finished(new)
                || pods::is_deleting(old) != pods::is_deleting(new)
        }
    }
}

/// Writes the time of the last pod event. Returns how long to wait if the previous time is too recent to be replaced.
async fn note(
    karpenter: &KarpenterContext,
    node: &str,
) -> Result<Option<std::time::Duration>, Error> {
    let Some(node) = karpenter.base.informers.nodes.get("", node) else {
        return Ok(None);
    };
    let Some(claim) = karpenter.claim_of(&node) else {
        return Ok(None);
    };
    let now = karpenter.base.now();
    let last = claim
        .status
        .as_ref()
        .and_then(|status| status.last_pod_event_time.as_ref());
    if let Some(last) = last {
        let since = now.0.duration_since(last.0);
        // The event is not dropped but written later, or the last one of a burst would be lost.
        if since < DEDUPLICATION {
            return Ok(Some((DEDUPLICATION - since).unsigned_abs()));
        }
    }
    let patch = Patch::Merge(json!({ "status": { "lastPodEventTime": now } }));
    let patched = karpenter
        .claim_api()
        .patch_status(&claim.name_any(), &PatchParams::default(), &patch)
        .await;
    api_error::ignore_not_found(patched)?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn pod(phase: &str, daemon: bool) -> Arc<Pod> {
        let owners = if daemon {
            json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true }])
        } else {
            json!([])
        };
        let pod = json!({
            "metadata": { "name": "p", "ownerReferences": owners },
            "spec": { "containers": [], "nodeName": "n" },
            "status": { "phase": phase }
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn coming_ending_and_leaving_count_and_daemons_do_not() {
        let (running, done) = (pod("Running", false), pod("Succeeded", false));
        assert!(concerns_its_node(&Change::Added(&running)));
        assert!(concerns_its_node(&Change::Deleted(&running)));
        assert!(concerns_its_node(&Change::Updated {
            old: &running,
            new: &done
        }));
        assert!(!concerns_its_node(&Change::Updated {
            old: &running,
            new: &running
        }));
        assert!(!concerns_its_node(&Change::Added(&pod("Running", true))));
    }
}
