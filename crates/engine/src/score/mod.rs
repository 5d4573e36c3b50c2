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

use crate::cluster::{NodeId, Question};
use crate::reason::Plugin;

/// The best a node can get from one plugin before weights.
pub(crate) const MAX_SCORE: i64 = 100;

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
    let pod = question.class;
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
            2,
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

/// kube-scheduler: `DefaultNormalizeScore`.
fn normalize(mut scores: Vec<i64>, reverse: bool) -> Vec<i64> {
    let max = scores.iter().copied().max().unwrap_or(0).max(0);
    for score in &mut scores {
        let scaled = if max == 0 {
            0
        } else {
            MAX_SCORE * *score / max
        };
        *score = if reverse { MAX_SCORE - scaled } else { scaled };
    }
    scores
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
