//! Logs the pools that cannot buy: those that are not ready, and those whose requirements exclude every instance
//! type.
//!
//! Invariant: like Karpenter, this logs in every pass in which pods wait, so the end of the log always explains why
//! nothing is bought.

use std::sync::Arc;

use kube::ResourceExt;
use mullion_api::karpenter::{NodePool, node_pool_condition};
use mullion_engine::provision::NodeTemplate;

use super::decision_log::Reconciliation;

/// Logs the pools that are not ready. Returns whether another pool can buy.
pub(super) fn log_unready(pools: &[Arc<NodePool>], pass: &Reconciliation) -> bool {
    let mut pools: Vec<_> = pools.iter().filter(|pool| !is_static(pool)).collect();
    // The informer lists in no order; sorted names keep the log the same from pass to pass.
    pools.sort_by_key(|pool| pool.name_any());
    let mut any = false;
    for pool in pools {
        if pool.is(node_pool_condition::READY) {
            any |= pool.metadata.deletion_timestamp.is_none();
        } else {
            pass.clone()
                .with_ref("NodePool", &pool.name_any())
                .problem("ignoring nodepool, not ready");
        }
    }
    if !any {
        pass.info("no nodepools found");
    }
    any
}

/// Returns the names of pools whose requirements admit no offering that is available now.
pub(super) fn without_machines(templates: &[NodeTemplate]) -> impl Iterator<Item = &str> {
    templates
        .iter()
        .filter(|template| {
            let mut offerings = template.instance_types.iter().flat_map(|m| &m.offerings);
            !offerings.any(|offering| offering.available)
        })
        .map(|template| template.pool.as_str())
}

/// Returns whether the pool is static, that is, keeps a fixed number of nodes.
fn is_static(pool: &NodePool) -> bool {
    pool.spec.replicas.is_some()
}
