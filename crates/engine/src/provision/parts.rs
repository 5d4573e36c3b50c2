//! The places that a planned node can still be in: its options by zone, or by other labels that pods are spread over.

use std::hash::BuildHasher;

use fixedbitset::FixedBitSet;
use rustc_hash::FxBuildHasher;

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId};
use crate::intern::Symbol;

use super::catalog::Catalog;
use super::claim::Topology;

/// Splits options by their values of the given labels; the part with the shown option comes first, the others by price.
pub(super) fn split(
    catalog: &mut Catalog,
    options: FixedBitSet,
    keys: &[Symbol],
    shown: usize,
) -> Vec<FixedBitSet> {
    if keys.is_empty() {
        return vec![options];
    }
    let mut parts: Vec<(bool, FixedBitSet)> = Vec::new();
    for place in catalog.divided_by(keys) {
        if !place.is_disjoint(&options) {
            let mut part = options.clone();
            part.intersect_with(place);
            parts.push((place.contains(shown), part));
        }
    }
    // Options are numbered by price.
    parts.sort_by_key(|(is_shown, part)| (!is_shown, part.minimum()));
    parts.into_iter().map(|part| part.1).collect()
}

/// Puts places in the arbitrary order that a variant of the plan has for pods of this size.
pub(super) fn shuffle(
    places: &mut [FixedBitSet],
    class: PodClassId,
    topology: &Topology,
    catalog: &Catalog,
    cluster: &Cluster,
) {
    let requests = &cluster.class(class).shape.requests.real;
    // By size and not by class: a class's number depends on what the cluster saw before, and the same question must
    // get the same plan.
    let size = (requests.cpu_milli, requests.memory_bytes);
    places.sort_by_cached_key(|place| {
        let option = place.minimum().unwrap_or_default();
        let labels = &catalog.options[option].labels;
        let values = topology.keys.iter().filter_map(|key| labels.value(*key));
        let names: Vec<&str> = values.map(|value| cluster.text(value)).collect();
        FxBuildHasher.hash_one((topology.variant, size, names))
    });
}

/// Puts places in a zone before the others.
pub(super) fn prefer(zone: Symbol, places: &mut [FixedBitSet], catalog: &Catalog) {
    places.sort_by_key(|place| {
        let option = place.minimum().unwrap_or_default();
        catalog.options[option].labels.value(Symbol::ZONE) != Some(zone)
    });
}

/// Returns how many of the pods that the pod is spread against are in the node's domains.
pub(super) fn crowd(class: PodClassId, node: NodeId, cluster: &mut Cluster) -> i64 {
    let question = cluster.question(class);
    let fixed = &question.cluster.at(node).fixed;
    // Soft constraints count too, because a new node is where its pods prefer it to be.
    let rules = question.view.hard.iter().chain(&question.view.soft);
    rules
        .filter(|counts| counts.rule.key != Symbol::HOSTNAME)
        .filter_map(|counts| Some(counts.pods_at(fixed.labels.value(counts.rule.key)?)))
        .sum()
}
