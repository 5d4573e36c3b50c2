//! What a crash or a stranger left behind: instances without a claim, claims without an instance.
//!
//! Invariant: an instance is young or has a claim; nothing is ended that this cluster did not buy (its instances carry
//! its name in the tag `eks:eks-cluster-name`, and the tags of a pool and a class).

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mullion_api::karpenter::{NodeClaim, node_claim_condition as condition};
use mullion_cloud::{Instance, InstanceState};

use super::{Error, pass};
use crate::{informers::BY_PROVIDER_ID, provisioner::KarpenterContext};

/// How often is tidied up.
const PERIOD: Duration = Duration::from_secs(120);
/// How often that is done at first: what a process that was killed left behind is found by the next one, which may not live long either
/// (AWS provider: 20 passes).
const FIRST_PERIOD: Duration = Duration::from_secs(10);
const FIRST_PASSES: u32 = 20;
/// An instance younger than this may have a claim that is not written down yet, and may not be listed yet.
const YOUNG: SignedDuration = SignedDuration::from_secs(30);

pub(super) fn start(karpenter: &KarpenterContext) {
    let garbage = karpenter.clone();
    let tidy = async move {
        if !garbage.claims.synced().await || !garbage.base.informers.nodes.synced().await {
            return;
        }
        let mut passes = 0;
        loop {
            match collect(&garbage).await {
                Ok(()) => passes += 1,
                Err(error) => tracing::debug!(%error, "garbage collection failed, will retry"),
            }
            let period = if passes <= FIRST_PASSES {
                FIRST_PERIOD
            } else {
                PERIOD
            };
            tokio::time::sleep(period).await;
        }
    };
    let shutdown = karpenter.base.shutdown.clone();
    karpenter.base.tasks.spawn(async move {
        shutdown.run_until_cancelled(tidy).await;
    });
}

async fn collect(karpenter: &KarpenterContext) -> Result<(), Error> {
    // Claims before instances: an instance that is bought while the cloud lists its instances is not in that list.
    let claims = karpenter.claims.list();
    let instances = karpenter.cloud.list(karpenter.instance_tags()).await?;
    end_unclaimed(karpenter, &instances).await?;
    let now = karpenter.base.clock.now();
    let ids = instances.iter().map(|own| own.provider_id.as_str());
    let ids: HashSet<&str> = ids.collect();
    for claim in claims {
        // The cloud's list is eventually consistent, so a young claim may be missing from it for a while.
        let counts = is_launched(&claim, now) && claim.metadata.deletion_timestamp.is_none();
        let is_there = claim.provider_id().is_some_and(|id| ids.contains(id));
        let lives = || {
            karpenter
                .node_of(&claim)
                .is_some_and(|node| is_ready(&node))
        };
        // A ready node proves that the instance runs, even if its tags were changed and the list leaves it
        // out.
        if counts && !is_there && !lives() {
            karpenter.delete_claim(&claim.name_any()).await?;
            karpenter.count_disrupted(&claim, None, "garbage_collected");
            pass(karpenter, "nodeclaim.garbagecollection", &claim)
                .info("garbage collecting nodeclaim with no cloudprovider representation");
        }
    }
    Ok(())
}

/// Ends the instances that have no claim now, which is later than they were listed.
async fn end_unclaimed(
    karpenter: &KarpenterContext,
    instances: &[Arc<Instance>],
) -> Result<(), Error> {
    let now = karpenter.base.clock.now();
    for instance in instances {
        let young = now.duration_since(instance.launched_at) < YOUNG;
        let claims = karpenter
            .claims
            .count_by_index(BY_PROVIDER_ID, &instance.provider_id);
        if claims == 0 && !young && instance.state < InstanceState::ShuttingDown {
            let place = (&*instance.zone, &*instance.zone_id);
            karpenter.terminate(instance.id.clone(), place).await?;
            karpenter
                .log
                .reconciliation("nodeclaim.garbagecollection")
                .with("provider-id", instance.provider_id.as_str())
                .info("garbage collected cloudprovider instance");
        }
    }
    Ok(())
}

/// Returns whether the claim's instance was launched long enough ago that the cloud lists it. Upstream checks
/// registered claims only; a claim whose instance ends before it registers then waits fifteen minutes for its timeout.
fn is_launched(claim: &NodeClaim, now: Timestamp) -> bool {
    let launched = claim.condition(condition::LAUNCHED);
    launched.is_some_and(|own| {
        own.status == "True" && now.duration_since(own.last_transition_time.0) >= YOUNG
    })
}

/// Returns whether a kubelet runs there, whatever the cloud says.
fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().filter_map(|own| own.conditions.as_ref());
    let mut conditions = conditions.flatten();
    conditions.any(|own| own.type_ == condition::READY && own.status == "True")
}
