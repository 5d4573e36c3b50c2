//! The scorers: one file per plugin. `raw` computes the score of a node, or of all nodes, with kube-scheduler's integer arithmetic.
//!
//! Invariant: every feasible node is scored. [`columns`] returns the scores of each plugin, normalized to 0..=100 and weighted. A plugin that
//! kube-scheduler skips for a pod has no column.

pub(crate) mod balanced_allocation;
pub(crate) mod dynamic_resources;
pub(crate) mod image_locality;
pub(crate) mod inter_pod_affinity;
pub(crate) mod least_allocated;
pub(crate) mod node_affinity;
pub(crate) mod node_resources_fit;
pub(crate) mod pod_topology_spread;
pub(crate) mod pull_time;
pub(crate) mod resource_allocation;
pub(crate) mod taint_toleration;

use crate::cluster::{Node, NodeId, Question};
use crate::reason::Plugin;
use resource_allocation::Stock;

/// The highest score of a plugin before weights.
pub(crate) const MAX_SCORE: i64 = 100;

/// The weighted scores of one plugin for the feasible nodes, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) plugin: Plugin,
    pub(crate) scores: Vec<i64>,
}

/// Returns the columns of all plugins for the feasible nodes.
pub(crate) fn columns(question: &Question<'_>, feasible: &[NodeId]) -> Vec<Column> {
    let raw =
        |score: &dyn Fn(NodeId) -> i64| feasible.iter().map(|id| score(*id)).collect::<Vec<_>>();
    let (cluster, rules) = (question.cluster, question.rules);
    let pod = &question.class.shape;
    let mut columns = Vec::with_capacity(8);
    // Weights are applied here, after normalization, and plugins of weight 0 are not asked at all.
    let mut column = |plugin, scores: &dyn Fn() -> Vec<i64>| {
        let weight = rules.weight(plugin);
        if weight != 0 {
            let mut scores = scores();
            scores
                .iter_mut()
                .for_each(|score| *score = score.saturating_mul(weight));
            columns.push(Column { plugin, scores });
        }
    };

    column(Plugin::TaintToleration, &|| {
        normalize(raw(&|id| question.verdict(id).soft_taints), true)
    });
    if pod.has_preferred_nodes {
        column(Plugin::NodeAffinity, &|| {
            normalize(raw(&|id| question.verdict(id).preferred), false)
        });
    }
    column(Plugin::NodeResourcesFit, &|| {
        raw(&|id| {
            let stock = Stock::of(question, id);
            node_resources_fit::raw(pod, cluster.at(id), &rules.fit, stock)
        })
    });
    if !question.view.soft.is_empty() {
        column(Plugin::PodTopologySpread, &|| {
            pod_topology_spread::column(question, feasible)
        });
    }
    if !question.view.score.is_empty() {
        column(Plugin::InterPodAffinity, &|| {
            inter_pod_affinity::column(question, feasible)
        });
    }
    // This plugin does not skip: without alternatives it scores every node 0.
    column(Plugin::DynamicResources, &|| {
        if dynamic_resources::applies(question) {
            normalize(raw(&|id| dynamic_resources::raw(question, id)), false)
        } else {
            vec![0; feasible.len()]
        }
    });
    if balanced_allocation::applies(pod, rules) {
        column(Plugin::NodeResourcesBalancedAllocation, &|| {
            raw(&|id| {
                let stock = Stock::of(question, id);
                balanced_allocation::raw(pod, cluster.at(id), rules, stock)
            })
        });
    }
    column(Plugin::ImageLocality, &|| {
        raw(&|id| image_locality::raw(pod, cluster, cluster.at(id)))
    });
    column(Plugin::PullTime, &|| {
        raw(&|id| pull_time::raw(pod, cluster, cluster.at(id)))
    });
    columns
}

/// Returns the part of a node's total score that depends only on the node's own load, for a pod that has nothing to do with devices.
pub(crate) fn of_load(question: &Question<'_>, node: &Node) -> i64 {
    let (pod, rules) = (&question.class.shape, question.rules);
    let weighed = |plugin, score: &dyn Fn() -> i64| match rules.weight(plugin) {
        0 => 0,
        weight => weight.saturating_mul(score()),
    };
    // These four are not normalized over the feasible nodes, so each node's part can be kept and corrected alone.
    let fit = weighed(Plugin::NodeResourcesFit, &|| {
        node_resources_fit::raw(pod, node, &rules.fit, None)
    });
    let balanced = weighed(Plugin::NodeResourcesBalancedAllocation, &|| {
        if balanced_allocation::applies(pod, rules) {
            balanced_allocation::raw(pod, node, rules, None)
        } else {
            0
        }
    });
    let images = weighed(Plugin::ImageLocality, &|| {
        image_locality::raw(pod, question.cluster, node)
    });
    let pull = weighed(Plugin::PullTime, &|| {
        pull_time::raw(pod, question.cluster, node)
    });
    fit.saturating_add(balanced)
        .saturating_add(images)
        .saturating_add(pull)
}

/// Returns the part of a node's total score that depends on its static verdict; `most` has the largest raw scores of all feasible nodes.
pub(crate) fn of_verdict(
    question: &Question<'_>,
    soft_taints: i64,
    preferred: i64,
    most: (i64, i64),
) -> i64 {
    let rules = question.rules;
    // Normalized by the largest raw scores, which the boards know without asking every node.
    let taints = rules.weight(Plugin::TaintToleration) * scale(soft_taints, most.0, true);
    if question.class.shape.has_preferred_nodes {
        taints + rules.weight(Plugin::NodeAffinity) * scale(preferred, most.1, false)
    } else {
        taints
    }
}

/// Scales scores to 0..=100 by the largest one (kube-scheduler: `DefaultNormalizeScore`).
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
