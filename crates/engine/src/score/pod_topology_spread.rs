//! kube-scheduler: PodTopologySpread's score, weight 2: fewer matching pods in the node's places are better.
//!
//! A constraint weighs `ln(places + 2)` so that many small places count as much as few large ones. Nodes that lack a
//! key of the pod's own constraints score 0; with the defaults a missing key adds nothing.

use super::MAX_SCORE;
use crate::cluster::{NodeId, Question};
use crate::intern::Symbol;
use crate::topology::SpreadCounts;

pub(crate) fn column(question: &Question<'_>, feasible: &[NodeId]) -> Vec<i64> {
    let soft = &question.view.soft;
    let labels = |id: NodeId| &question.cluster.at(id).fixed.labels;
    let ignored = |id: NodeId| {
        question.view.soft_declared
            && soft
                .iter()
                .any(|counts| labels(id).value(counts.rule.key).is_none())
    };
    let weights: Vec<f64> = soft
        .iter()
        .map(|counts| {
            let nodes = feasible.iter().copied().filter(|id| !ignored(*id));
            let size = match counts.rule.key {
                Symbol::HOSTNAME => nodes.count(),
                key => {
                    let mut values: Vec<_> = nodes.map(|id| labels(id).value(key)).collect();
                    values.sort_unstable();
                    values.dedup();
                    values.len()
                }
            };
            (size as f64 + 2.0).ln()
        })
        .collect();
    let raw: Vec<Option<i64>> = feasible
        .iter()
        .map(|&id| (!ignored(id)).then(|| raw(question, id, soft, &weights)))
        .collect();
    let scored = || raw.iter().flatten().copied();
    let min = scored().min().unwrap_or(0);
    let max = scored().max().unwrap_or(0).max(0);
    let normalized = raw.iter().map(|score| match score {
        None => 0,
        Some(_) if max == 0 => MAX_SCORE,
        Some(score) => MAX_SCORE * (max + min - score) / max,
    });
    normalized.collect()
}

fn raw(question: &Question<'_>, id: NodeId, soft: &[SpreadCounts], weights: &[f64]) -> i64 {
    let node = question.cluster.at(id);
    let mut score = 0.0;
    for (counts, weight) in soft.iter().zip(weights) {
        let Some(value) = node.fixed.labels.value(counts.rule.key) else {
            continue;
        };
        let place = if counts.rule.key == Symbol::HOSTNAME {
            node.fixed.name
        } else {
            value
        };
        score += counts.pods_at(place) as f64 * weight + (counts.rule.max_skew - 1) as f64;
    }
    score.round() as i64
}
