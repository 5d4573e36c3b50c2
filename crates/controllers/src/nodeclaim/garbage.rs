//! What a crash or a stranger left behind: instances without a claim, claims without an instance.
//!
//! Invariant: an instance is young or has a claim; nothing is ended that this cluster did not buy (its instances carry
//! the tag `karpenter.sh/nodepool`).

use std::{collections::BTreeMap, time::Duration};

use jiff::SignedDuration;
use kube::ResourceExt;
use mullion_api::{karpenter::node_claim_condition as condition, labels};
use mullion_cloud::InstanceState;

use super::{Error, pass};
use crate::provisioner::{BY_PROVIDER_ID, KarpenterContext};

/// How often is tidied up.
const PERIOD: Duration = Duration::from_secs(120);
/// An instance younger than this may have a claim that is not written down yet.
const YOUNG: SignedDuration = SignedDuration::from_secs(30);

pub(super) fn start(karpenter: &KarpenterContext) {
    let garbage = karpenter.clone();
    let tidy = async move {
        if !garbage.claims.synced().await {
            return;
        }
        loop {
            tokio::time::sleep(PERIOD).await;
            if let Err(error) = collect(&garbage).await {
                tracing::debug!(%error, "garbage collection failed, will retry");
            }
        }
    };
    let shutdown = karpenter.base.shutdown.clone();
    karpenter.base.tasks.spawn(async move {
        shutdown.run_until_cancelled(tidy).await;
    });
}

async fn collect(karpenter: &KarpenterContext) -> Result<(), Error> {
    let ours = BTreeMap::from([(labels::NODEPOOL.to_owned(), "*".to_owned())]);
    let instances = karpenter.cloud.list(ours).await?;
    let now = karpenter.base.clock.now();
    for instance in &instances {
        let young = now.duration_since(instance.launched_at) < YOUNG;
        let claims = karpenter
            .claims
            .count_by_index(BY_PROVIDER_ID, &instance.provider_id);
        if claims == 0 && !young && instance.state < InstanceState::ShuttingDown {
            karpenter.cloud.terminate(instance.id.clone()).await?;
            karpenter
                .log
                .pass("nodeclaim.garbagecollection")
                .with("provider-id", instance.provider_id.as_str())
                .info("garbage collected cloudprovider instance");
        }
    }
    for claim in karpenter.claims.list() {
        let launched = claim.is(condition::LAUNCHED) && claim.metadata.deletion_timestamp.is_none();
        let there = instances
            .iter()
            .any(|instance| Some(instance.provider_id.as_str()) == claim.provider_id());
        if launched && !there {
            karpenter.delete_claim(&claim.name_any()).await?;
            karpenter.count_disrupted(&claim, None, "garbage_collected");
            pass(karpenter, "nodeclaim.garbagecollection", &claim)
                .info("garbage collecting nodeclaim with no cloudprovider representation");
        }
    }
    Ok(())
}
