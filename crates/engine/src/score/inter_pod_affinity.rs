//! kube-scheduler: InterPodAffinity's score, weight 2. It sums the preferences of the pod and those of
//! existing pods.

use super::MAX_SCORE;
use crate::cluster::{NodeId, Question};

pub(crate) fn column(question: &Question<'_>, feasible: &[NodeId]) -> Vec<i64> {
    let sums: Vec<i64> = feasible
        .iter()
        .map(|id| {
            let labels = &question.cluster.at(*id).fixed.labels;
            labels
                .iter()
                .map(|(key, value)| question.view.score.sum(key, value))
                .sum()
        })
        .collect();
    normalize(sums)
}

/// Scales sums to 0..=100, the lowest to 0 and the highest to 100, in floating point as kube-scheduler does,
/// so that rounding is the same.
pub(crate) fn normalize(sums: Vec<i64>) -> Vec<i64> {
    let min = sums.iter().copied().min().unwrap_or(0);
    let max = sums.iter().copied().max().unwrap_or(0);
    let spread = max - min;
    let normalized = sums.iter().map(|sum| match spread {
        0 => 0,
        _ => (MAX_SCORE as f64 * ((sum - min) as f64 / spread as f64)) as i64,
    });
    normalized.collect()
}
