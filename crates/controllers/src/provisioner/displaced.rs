//! Reports pods that do not fit the node that was bought for them, because the node has less than was planned.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use mullion_api::{karpenter::NodeClaim, labels};
use mullion_engine::model::{Quantity, ResourceMap};
use rustc_hash::FxHashMap;

use super::{
    KarpenterContext,
    demand::{Answer, PodsByKey},
    discovered::{self, Shortfall},
    in_flight::prospect,
    overhead,
    pending::is_daemon,
};
use crate::{buffers, pods};

/// Records an event on pods whose place differs from that in the plan before, if the reason is that their node has too
/// little for all pods that were planned for it. `places` are the places of the plan before, by pod.
pub(super) fn record_events(
    karpenter: &KarpenterContext,
    places: &FxHashMap<String, String>,
    answer: &Answer,
    pods: &PodsByKey,
) {
    let mut by_place: BTreeMap<&str, BTreeMap<&str, &Arc<Pod>>> = BTreeMap::new();
    for (key, place) in places {
        if let Some(pod) = pods.get(key) {
            by_place.entry(place).or_default().insert(key, pod);
        }
    }
    let kept: BTreeSet<(&str, &str)> = answer
        .plan
        .existing
        .iter()
        .map(|(key, node)| (key.as_str(), node.as_str()))
        .collect();
    for (place, planned) in by_place {
        let Some(claim) = karpenter.claim_at(place) else {
            continue;
        };
        let Some(node) = karpenter.node_of(&claim) else {
            continue;
        };
        // A plan names the claim until the node registers, and the node afterwards.
        let names = [claim.name_any(), node.name_any()];
        let stays = |key: &str| {
            names
                .iter()
                .any(|name| kept.contains(&(key, name.as_str())))
        };
        let moved: Vec<_> = planned
            .iter()
            .filter(|(key, pod)| !stays(key) && buffers::buffer_of(pod).is_none())
            .map(|(_, pod)| *pod)
            .collect();
        if moved.is_empty() {
            continue;
        }
        let asked = asked_of(karpenter, &claim, &node, planned.values().copied());
        let mut short = discovered::missing(&node, &claim);
        // A node may have less than computed and still hold its pods; only a resource that ran out
        // is the reason.
        short.retain(|short| {
            asked
                .get(&short.resource)
                .is_some_and(|asked| *asked > short.shown)
        });
        if short.is_empty() {
            continue;
        }
        let message = message(&claim, &node, &short);
        for pod in moved {
            karpenter
                .recorder
                .warning(&**pod, "PlannedNodeTooSmall", message.clone());
        }
    }
}

/// Returns the sum of the requests of DaemonSets, of the pods on a node, and of the pods planned for it.
fn asked_of<'a>(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    node: &Node,
    planned: impl Iterator<Item = &'a Arc<Pod>>,
) -> ResourceMap {
    let daemons = karpenter.base.informers.daemon_sets.list();
    let sets = daemons.iter().map(|set| &**set);
    let mut asked = overhead::of(sets, &prospect(claim), karpenter.windows_addresses());
    let there = karpenter.pods_on(&node.name_any());
    let there = there
        .into_iter()
        .filter(|pod| pods::is_active(pod) && !is_daemon(pod));
    for spec in planned
        .cloned()
        .chain(there)
        .filter_map(|pod| pod.spec.clone())
    {
        let slot = (labels::PODS.to_owned(), Quantity::from_units(1));
        for (name, amount) in overhead::requests(&spec).into_iter().chain([slot]) {
            let sum = asked.entry(name).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    asked
}

fn message(claim: &NodeClaim, node: &Node, short: &[Shortfall]) -> String {
    let short: Vec<String> = short.iter().map(Shortfall::to_string).collect();
    format!(
        "Node {} of nodeclaim/{} has less for pods than was planned: {}. Not all pods that were planned for it fit, and this one needs another place; {} \
         is planned with what nodes of it have from now on",
        node.name_any(),
        claim.name_any(),
        short.join(", "),
        claim.label(labels::INSTANCE_TYPE).unwrap_or_default(),
    )
}
