//! What a pool can buy, as the engine sees it: its labels, taints and requirements, the machines of
//! its class, and what its limits leave.
//!
//! These are pure functions of objects, so that every command that asks what a pool would buy gets
//! the provisioner's answer.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use mullion_api::{
    karpenter::{NodeClaim, NodePool, node_pool_condition},
    labels,
};
use mullion_engine::{
    model::{NodeSpec, ResourceMap, StringMap},
    provision::{InstanceType, NodeTemplate},
};

use super::{
    market::{Market, amounts},
    overhead,
    requirements::{decided_labels, to_engine},
};
use crate::{nodepool, state::convert};

/// Returns whether a pool buys for pods: it is ready, is not being deleted, and has no fixed number
/// of nodes.
pub fn may_buy(pool: &NodePool) -> bool {
    pool.is(node_pool_condition::READY)
        && pool.metadata.deletion_timestamp.is_none()
        && pool.spec.replicas.is_none()
}

/// Returns what each node of a pool costs besides its machine, in micro-dollars per hour: its root
/// volume, and what the pool's annotation `mullion.dev/node-price` adds.
pub fn node_price(pool: &NodePool, market: &Market) -> u64 {
    let added = nodepool::terms::node_price(pool).ok().flatten();
    market.volume_price() + added.map_or(0, |price| price.0)
}

/// Returns the template by which the engine buys for a pool. `claims` are the pool's own; they
/// count against its limits.
pub fn of<'a>(
    pool: &NodePool,
    market: &Market,
    claims: impl Iterator<Item = &'a NodeClaim>,
    daemons: impl Iterator<Item = &'a DaemonSet>,
) -> NodeTemplate {
    let spec = &pool.spec.template.spec;
    let mut labels = pool.spec.template.metadata.labels.clone();
    labels.extend([spec.node_class_ref.label()]);
    let addresses = market.windows_addresses();
    NodeTemplate {
        daemons: daemons
            .filter_map(|set| overhead::pod_of(set, addresses))
            .collect(),
        limits_remaining: limits_remaining(pool, claims, market),
        node_price_micro_usd: node_price(pool, market),
        ..with_types(pool, labels, market.machines(&spec.requirements))
    }
}

/// Returns the template of a pool that can buy these types, without limits. `labels` are those that
/// its nodes have besides their types'.
pub fn with_types(
    pool: &NodePool,
    labels: StringMap,
    instance_types: Vec<Arc<InstanceType>>,
) -> NodeTemplate {
    let spec = &pool.spec.template.spec;
    NodeTemplate {
        pool: pool.metadata.name.clone().unwrap_or_default(),
        weight: pool.weight(),
        labels,
        taints: spec.taints.iter().filter_map(convert::taint).collect(),
        startup_taints: spec
            .startup_taints
            .iter()
            .filter_map(convert::taint)
            .collect(),
        requirements: spec.requirements.iter().map(to_engine).collect(),
        preference_price: nodepool::terms::preference_price(pool).ok().flatten(),
        instance_types,
        ..NodeTemplate::default()
    }
}

/// Returns the pool's limits minus the capacity that its claims have or, before they are launched,
/// will have.
fn limits_remaining<'a>(
    pool: &NodePool,
    claims: impl Iterator<Item = &'a NodeClaim>,
    market: &Market,
) -> ResourceMap {
    let Some(limits) = &pool.spec.limits else {
        return ResourceMap::new();
    };
    let mut remaining = amounts(limits);
    for claim in claims {
        let status = claim.status.as_ref();
        let used = match status.map(|status| amounts(&status.capacity)) {
            // A claim counts from its order on; waiting for its launch would let one batch exceed
            // the limit.
            Some(capacity) if !capacity.is_empty() => capacity,
            _ => likely_capacity(claim, market),
        };
        nodepool::take(&mut remaining, &used);
    }
    remaining
}

/// Returns the capacity that an unlaunched claim will most likely have.
fn likely_capacity(claim: &NodeClaim, market: &Market) -> ResourceMap {
    expected_node(claim, market).map_or_else(ResourceMap::new, |node| node.capacity)
}

/// Returns the node that an unlaunched claim will most likely become: the cheapest machine that was
/// planned for it.
pub fn expected_node(claim: &NodeClaim, market: &Market) -> Option<NodeSpec> {
    let requests = amounts(&claim.spec.resources.requests);
    let market = market.clone().for_requests(&requests);
    let options = market.launch_options(&claim.spec.requirements, &requests);
    let first = options.into_iter().next()?;
    let machines = market.machines(&claim.spec.requirements);
    let machine = machines
        .into_iter()
        .find(|m| m.name == first.instance_type)?;
    let mut own = machine.labels.clone();
    // Each source overrides those before it: requirements narrow what the type says, and the
    // claim's own labels are copied to the node.
    own.extend(decided_labels(&claim.spec.requirements));
    own.extend(claim.metadata.labels.clone().unwrap_or_default());
    let mut offerings = machine.offerings.iter();
    let offering = offerings.find(|own| {
        own.zone == first.zone
            && own.capacity_type == first.capacity_type.as_str()
            && own.reservation.as_ref().map(|own| &own.id) == first.reservation.as_ref()
    });
    own.extend(offering.into_iter().flat_map(|own| own.labels.clone()));
    own.insert(labels::ZONE.to_owned(), first.zone);
    own.insert(
        labels::CAPACITY_TYPE.to_owned(),
        first.capacity_type.as_str().to_owned(),
    );
    own.insert(labels::INSTANCE_TYPE.to_owned(), first.instance_type);
    Some(NodeSpec {
        labels: own,
        taints: claim
            .spec
            .taints
            .iter()
            .filter_map(convert::taint)
            .collect(),
        capacity: machine.capacity.clone(),
        allocatable: machine.allocatable.clone(),
        ..NodeSpec::named(claim.metadata.name.clone().unwrap_or_default())
    })
}
