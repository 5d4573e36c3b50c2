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

/// How many pods of a class nodes hold that are there, by zone, where there are some.
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

/// A node that is there, with room.
pub(super) struct FreeNode {
    pub(super) node: NodeId,
    pub(super) room: Load,
    pub(super) zone: Option<Symbol>,
    /// Classes that it admits, and that no pod on it keeps away.
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
        // Karpenter: where something was promised twice nothing more goes.
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

/// Whether a node admits a pod of a class, and no pod there counts against it.
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
    let mut by_host = view
        .hard
        .iter()
        .filter(|counts| counts.rule.key == Symbol::HOSTNAME);
    by_host.all(|counts| host.is_none_or(|host| counts.pods_at(host) == 0))
}
