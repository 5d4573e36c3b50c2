//! One order of the provisioner: the NodeClaim of a planned node.

use std::time::Duration;

use kube::{ResourceExt, api::PostParams};
use mullion_api::{karpenter::NodeClaim, labels};
use mullion_engine::provision::PlannedNode;
use serde_json::json;
use tokio::time::timeout;

use super::{
    KarpenterContext, claim,
    decision_log::{Reconciliation, abbreviated},
    metrics::Metric,
};
use crate::overlays;

/// The reason in the metrics for claims that are not created to replace disrupted nodes.
pub(crate) const PROVISIONED: &str = "provisioned";
/// The maximum number of instance types named in a log line.
const SHOWN: usize = 5;

/// Creates the claim of a planned node and waits until the informer shows it; `None` if the pool was deleted meanwhile.
/// `reason` is for the metrics.
pub(crate) async fn order(
    karpenter: &KarpenterContext,
    planned: &PlannedNode,
    reason: &str,
    pass: &Reconciliation,
) -> Result<Option<NodeClaim>, kube::Error> {
    let Some(pool) = karpenter.pools.get("", &planned.pool) else {
        // The pool was deleted while the plan was made; the next plan does not use it.
        return Ok(None);
    };
    let mut wanted = claim::of(planned, &pool);
    overlays::annotate(karpenter, &pool, planned, &mut wanted).await;
    let created = karpenter
        .claim_api()
        .create(&PostParams::default(), &wanted)
        .await?;
    let relaxed = if planned.min_values_relaxed {
        "true"
    } else {
        "false"
    };
    let labels = [
        ("reason", reason),
        ("nodepool", planned.pool.as_str()),
        ("min_values_relaxed", relaxed),
    ];
    karpenter.metrics.count(Metric::Created, &labels);
    let name = created.name_any();
    let types = created
        .spec
        .requirements
        .iter()
        .find(|requirement| requirement.key == labels::INSTANCE_TYPE);
    let types: Vec<_> = types.into_iter().flat_map(|types| &types.values).collect();
    pass.clone()
        .with_ref("NodePool", &planned.pool)
        .with_ref("NodeClaim", &name)
        .with("requests", json!(created.spec.resources.requests))
        .with("instance-types", abbreviated(&types, SHOWN))
        .info("created nodeclaim");
    wait_until_seen(karpenter, &name).await;
    Ok(Some(created))
}

/// Waits until the informer shows a new claim: a plan that does not know of it would order the node again.
async fn wait_until_seen(karpenter: &KarpenterContext, name: &str) {
    const PATIENCE: Duration = Duration::from_secs(5);
    let seen = async {
        while karpenter.claims.get("", name).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // A claim that is deleted at once may never be seen, so the wait ends after a timeout.
    let _ = timeout(PATIENCE, seen).await;
}
