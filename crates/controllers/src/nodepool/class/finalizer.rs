//! The finalizer of EC2NodeClasses: a class that is deleted stays until no NodeClaim uses it.
//!
//! This is the AWS provider's `nodeclass.finalize`. Pools of such a class are not ready, so no new claims use it.

use std::time::Duration;

use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::{karpenter::EC2NodeClass, labels};
use serde_json::json;

use crate::{
    api_error,
    provisioner::{BY_CLASS, KarpenterContext, decision_log::abbreviated},
};

/// How often the event repeats that names the claims which hold a class back.
const REPEAT: Duration = Duration::from_secs(600);
/// The maximum number of claims that the event names.
const NAMED: usize = 5;

/// Adds the finalizer to a class that does not have it.
pub(super) async fn add(karpenter: &KarpenterContext, class: &EC2NodeClass) -> kube::Result<()> {
    if is_held(class) {
        return Ok(());
    }
    let mut finalizers = class.finalizers().to_vec();
    finalizers.push(labels::EC2NODECLASS_FINALIZER.to_owned());
    write(karpenter, class, finalizers).await
}

/// Removes the finalizer of a deleted class that no claim uses. Otherwise returns when to try again.
pub(super) async fn remove(
    karpenter: &KarpenterContext,
    class: &EC2NodeClass,
) -> kube::Result<Option<Duration>> {
    if !is_held(class) || !karpenter.claims.synced().await {
        return Ok(None);
    }
    let claims = karpenter.claims.by_index(BY_CLASS, &class.name_any());
    if claims.is_empty() {
        let mut finalizers = class.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != labels::EC2NODECLASS_FINALIZER);
        write(karpenter, class, finalizers).await?;
        return Ok(None);
    }
    let mut names: Vec<_> = claims.iter().map(|claim| claim.name_any()).collect();
    names.sort_unstable();
    let names = abbreviated(&names, NAMED);
    karpenter.recorder.normal(
        class,
        "WaitingOnNodeClaimTermination",
        format!("Waiting on NodeClaim termination for {names}"),
    );
    Ok(Some(REPEAT))
}

fn is_held(class: &EC2NodeClass) -> bool {
    let mut finalizers = class.finalizers().iter();
    finalizers.any(|finalizer| finalizer == labels::EC2NODECLASS_FINALIZER)
}

async fn write(
    karpenter: &KarpenterContext,
    class: &EC2NodeClass,
    finalizers: Vec<String>,
) -> kube::Result<()> {
    let patch = json!({ "metadata": {
        "resourceVersion": class.resource_version(), "finalizers": finalizers
    }});
    let patched = karpenter
        .class_api()
        .patch(
            &class.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await;
    match patched {
        // The newer version of the class wakes its queue.
        Err(error) if api_error::is_conflict(&error) => Ok(()),
        other => api_error::ignore_not_found(other).map(drop),
    }
}
