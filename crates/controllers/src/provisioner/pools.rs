//! What the log says of pools that cannot buy: those that are not ready, those whose requirements leave no machine.
//!
//! Invariant: told in every pass in which pods wait, as Karpenter does, so that the end of the log always says why
//! nothing is bought.

use std::sync::Arc;

use kube::ResourceExt;
use mullion_api::karpenter::{NodePool, node_pool_condition};
use mullion_engine::provision::NodeTemplate;

use super::decision_log::Pass;

/// Tells of the pools that are not ready. Returns whether any is left to buy from.
pub(super) fn tell_unready(pools: &[Arc<NodePool>], pass: &Pass) -> bool {
    let mut pools: Vec<_> = pools.iter().filter(|pool| !is_static(pool)).collect();
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

/// Pools whose requirements admit nothing that can be had now, by name.
pub(super) fn without_machines(templates: &[NodeTemplate]) -> impl Iterator<Item = &str> {
    templates
        .iter()
        .filter(|template| {
            let mut offerings = template.instance_types.iter().flat_map(|m| &m.offerings);
            !offerings.any(|offering| offering.available)
        })
        .map(|template| template.pool.as_str())
}

/// Whether the pool has a fixed number of nodes, whatever pods wait.
fn is_static(pool: &NodePool) -> bool {
    pool.spec.replicas.is_some()
}
