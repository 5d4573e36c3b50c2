//! The scorers of the default profile: one file each, `raw` (or a column) in upstream's integer arithmetic.
//!
//! Invariant: every feasible node is scored, in columns; [`columns`] gives them normalized to 0..=100 and weighted.
//! A plugin that upstream skips for a pod has no column.

pub(crate) mod balanced_allocation;
pub(crate) mod image_locality;
pub(crate) mod inter_pod_affinity;
pub(crate) mod least_allocated;
pub(crate) mod node_affinity;
pub(crate) mod pod_topology_spread;
pub(crate) mod taint_toleration;

use crate::class::Shape;
use crate::cluster::{Cluster, Node, NodeId, Question};
use crate::reason::Plugin;

/// The best a node can get from one plugin before weights.
pub(crate) const MAX_SCORE: i64 = 100;

/// The weight of PodTopologySpread.
pub(crate) const SPREAD_WEIGHT: i64 = 2;

/// One plugin's weighted scores for the feasible nodes, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) plugin: Plugin,
    pub(crate) scores: Vec<i64>,
}

/// All columns for the feasible nodes.
pub(crate) fn columns(question: &Question<'_>, feasible: &[NodeId]) -> Vec<Column> {
    let raw =
        |score: &dyn Fn(NodeId) -> i64| feasible.iter().map(|id| score(*id)).collect::<Vec<_>>();
    let cluster = question.cluster;
    let pod = &question.class.shape;
    let mut columns = Vec::with_capacity(8);
    let mut column = |plugin, weight: i64, mut scores: Vec<i64>| {
        scores.iter_mut().for_each(|score| *score *= weight);
        columns.push(Column { plugin, scores });
    };

    let taints = raw(&|id| question.verdict(id).soft_taints);
    column(Plugin::TaintToleration, 3, normalize(taints, true));
    if pod.has_preferred_nodes {
        let preferred = raw(&|id| question.verdict(id).preferred);
        column(Plugin::NodeAffinity, 2, normalize(preferred, false));
    }
    column(
        Plugin::NodeResourcesFit,
        1,
        raw(&|id| least_allocated::raw(pod, cluster.at(id))),
    );
    if !question.view.soft.is_empty() {
        column(
            Plugin::PodTopologySpread,
            SPREAD_WEIGHT,
            pod_topology_spread::column(question, feasible),
        );
    }
    if !question.view.score.is_empty() {
        column(
            Plugin::InterPodAffinity,
            2,
            inter_pod_affinity::column(question, feasible),
        );
    }
    // Nothing claims devices through this engine yet, and a pod without claims scores 0 on every node.
    column(Plugin::DynamicResources, 2, vec![0; feasible.len()]);
    if balanced_allocation::applies(pod) {
        let balanced = raw(&|id| balanced_allocation::raw(pod, cluster.at(id)));
        column(Plugin::NodeResourcesBalancedAllocation, 1, balanced);
    }
    column(
        Plugin::ImageLocality,
        1,
        raw(&|id| image_locality::raw(pod, cluster, cluster.at(id))),
    );
    columns
}

/// The part of a node's total that its own load decides, whatever other nodes are feasible.
pub(crate) fn of_load(pod: &Shape, cluster: &Cluster, node: &Node) -> i64 {
    let balanced = if balanced_allocation::applies(pod) {
        balanced_allocation::raw(pod, node)
    } else {
        0
    };
    least_allocated::raw(pod, node) + balanced + image_locality::raw(pod, cluster, node)
}

/// The part of a node's total that its static verdict decides, given the largest raw scores of all feasible nodes.
pub(crate) fn of_verdict(pod: &Shape, soft_taints: i64, preferred: i64, most: (i64, i64)) -> i64 {
    let taints = 3 * scale(soft_taints, most.0, true);
    if pod.has_preferred_nodes {
        taints + 2 * scale(preferred, most.1, false)
    } else {
        taints
    }
}

/// kube-scheduler: `DefaultNormalizeScore`.
fn normalize(mut scores: Vec<i64>, reverse: bool) -> Vec<i64> {
    let max = scores.iter().copied().max().unwrap_or(0).max(0);
    scores
        .iter_mut()
        .for_each(|score| *score = scale(*score, max, reverse));
    scores
}

fn scale(score: i64, max: i64, reverse: bool) -> i64 {
    let scaled = if max == 0 { 0 } else { MAX_SCORE * score / max };
    if reverse { MAX_SCORE - scaled } else { scaled }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalizing_scales_to_the_best_and_can_turn_around() {
        assert_eq!(normalize(vec![0, 1, 2], true), [100, 50, 0]);
        assert_eq!(normalize(vec![0, 0], true), [100, 100]);
        assert_eq!(normalize(vec![0, 0], false), [0, 0]);
        assert_eq!(normalize(vec![3, 1, 0], false), [100, 33, 0]);
    }
}
