//! Room on nodes that are there.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use super::forms::Forms;
use super::{dimensions_of, how_many};
use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId};
use crate::filter;
use crate::intern::Symbol;
use crate::provision::pack::Load;

/// Returns how many pods of a class the existing nodes have room for, by zone; only zones with room.
pub(super) fn free_by_zone(
    class: PodClassId,
    form: &Forms,
    request: &Load,
    nodes: &[FreeNode],
) -> BTreeMap<Symbol, i64> {
    let own = form
        .rules
        .iter()
        .filter(|(_, members, _)| members.contains(&class));
    // A rule about company that counts the class itself bounds how many of its pods one node takes, whatever its
    // room.
    let most = own.map(|rule| i64::from(rule.2)).min().unwrap_or(i64::MAX);
    let mut free = BTreeMap::new();
    for node in nodes {
        let Some(zone) = node.zone.filter(|_| node.open.contains(&class)) else {
            continue;
        };
        let count = how_many(request, &node.room).min(most);
        if count > 0 {
            *free.entry(zone).or_default() += count;
        }
    }
    free
}

/// An existing node with room.
pub(super) struct FreeNode {
    pub(super) node: NodeId,
    pub(super) room: Load,
    pub(super) zone: Option<Symbol>,
    /// The classes that its filters admit and that no pod on it keeps away.
    pub(super) open: FxHashSet<PodClassId>,
}

pub(super) fn free_nodes(
    nodes: &[NodeId],
    forms: &[(PodClassId, u32, Forms)],
    cluster: &mut Cluster,
    dimensions: &[Symbol],
) -> Vec<FreeNode> {
    let mut found = Vec::new();
    for node in nodes.iter().copied() {
        let mut free = cluster.at(node).fixed.allocatable.clone();
        free.subtract(&cluster.at(node).used);
        // As in Karpenter, nothing more is placed on a node whose room is promised twice.
        if free.is_overdrawn() {
            continue;
        }
        let classes = forms.iter().map(|form| form.0);
        let open: FxHashSet<PodClassId> = classes
            .filter(|class| is_open(*class, node, cluster))
            .collect();
        if !open.is_empty() {
            found.push(FreeNode {
                node,
                room: dimensions_of(&free, dimensions),
                zone: cluster.at(node).fixed.labels.value(Symbol::ZONE),
                open,
            });
        }
    }
    found
}

/// Returns whether a node admits a pod of a class, as far as pods that are there now decide it.
fn is_open(class: PodClassId, node: NodeId, cluster: &mut Cluster) -> bool {
    let question = cluster.question(class);
    let there = question.cluster.at(node);
    // Spreading is not asked: where others of the class go meanwhile is what is planned.
    let refused = filter::node_ports::check(&question.class.shape, &there.ports)
        .or_else(|| filter::inter_pod_affinity::check(question.class, question.view, there));
    if !question.passes_static(node) || refused.is_some() {
        return false;
    }
    let view = cluster.view(class);
    let host = cluster.at(node).fixed.labels.value(Symbol::HOSTNAME);
    // The numeric rule allows `max_skew` pods of its own on a host, which is true only of hosts without any so far.
    let mut by_host = view
        .hard
        .iter()
        .filter(|counts| counts.rule.key == Symbol::HOSTNAME);
    by_host.all(|counts| host.is_none_or(|host| counts.pods_at(host) == 0))
}
