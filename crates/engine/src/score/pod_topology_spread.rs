//! kube-scheduler: PodTopologySpread's score, weight 2. Fewer matching pods in the node's domains score higher.
//!
//! A constraint has the weight `ln(domains + 2)`, so that many small domains count as much as few large ones. Nodes that
//! lack a key of the pod's own constraints score 0; with the default constraints a missing key adds nothing. The
//! arithmetic works on rows of equal nodes, so it is the same for one node per row ([`fn@column`]) and for one group per
//! row (the boards).

use rustc_hash::FxHashSet;

use super::MAX_SCORE;
use crate::cluster::{Node, NodeId, Question};
use crate::intern::Symbol;
use crate::topology::{SpreadCounts, View};

/// The feasible nodes in rows that the soft constraints cannot tell apart.
#[derive(Default)]
pub(crate) struct Rows {
    /// One cell per row and constraint: the value of the constraint's key, and the number of matching pods in that
    /// domain.
    cells: Vec<(Option<Symbol>, i64)>,
    /// The number of nodes in each row.
    nodes: Vec<usize>,
}

impl Rows {
    /// Creates an empty set of rows with memory for `rows` rows of `cells` cells.
    pub(crate) fn with_capacity(rows: usize, cells: usize) -> Self {
        Rows {
            cells: Vec::with_capacity(rows * cells),
            nodes: Vec::with_capacity(rows),
        }
    }

    /// Adds a row for this many nodes, with one cell per soft constraint in order.
    pub(crate) fn push(
        &mut self,
        nodes: usize,
        cells: impl Iterator<Item = (Option<Symbol>, i64)>,
    ) {
        self.cells.extend(cells);
        self.nodes.push(nodes);
    }

    /// Returns the normalized score of each row.
    pub(crate) fn scores(&self, view: &View) -> Vec<i64> {
        let soft = &view.soft;
        let row = |index: usize| &self.cells[index * soft.len()..(index + 1) * soft.len()];
        let ignored = |index: usize| {
            view.soft_declared && row(index).iter().any(|(value, _)| value.is_none())
        };
        let scored: Vec<usize> = (0..self.nodes.len())
            .filter(|index| !ignored(*index))
            .collect();
        let weight = |(constraint, counts): (usize, &SpreadCounts)| {
            // Each host is a domain of its own, so nodes are counted and not values of their labels.
            let size = match counts.rule.key {
                Symbol::HOSTNAME => scored.iter().map(|index| self.nodes[*index]).sum(),
                _ => scored
                    .iter()
                    // A node without the key counts as one with an empty value.
                    .map(|index| row(*index)[constraint].0.unwrap_or(Symbol::EMPTY))
                    .collect::<FxHashSet<_>>()
                    .len(),
            };
            // kube-scheduler's `topologyNormalizingWeight`, in floating point for equal rounding.
            (size as f64 + 2.0).ln()
        };
        let weights: Vec<f64> = soft.iter().enumerate().map(weight).collect();
        let mut raw = vec![None; self.nodes.len()];
        for index in scored {
            raw[index] = Some(raw_score(soft, row(index), &weights));
        }
        let known = || raw.iter().flatten().copied();
        let min = known().min().unwrap_or(0);
        let max = known().max().unwrap_or(0).max(0);
        let normalized = raw.iter().map(|score| match score {
            None => 0,
            Some(_) if max == 0 => MAX_SCORE,
            // Turned around: the most pods give the lowest score.
            Some(score) => MAX_SCORE * (max + min - score) / max,
        });
        normalized.collect()
    }
}

fn raw_score(soft: &[SpreadCounts], row: &[(Option<Symbol>, i64)], weights: &[f64]) -> i64 {
    let mut score = 0.0;
    for ((counts, (value, count)), weight) in soft.iter().zip(row).zip(weights) {
        if value.is_some() {
            // The constant per constraint makes a larger `maxSkew` tolerate more, as in kube-scheduler's
            // `scoreForCount`.
            score += *count as f64 * weight + (counts.rule.max_skew - 1) as f64;
        }
    }
    score.round() as i64
}

/// Returns the cell of a node for a soft constraint. Pods per host are counted by the node itself, whatever its hostname
/// label says.
pub(crate) fn cell(counts: &SpreadCounts, node: &Node) -> (Option<Symbol>, i64) {
    let value = node.fixed.labels.value(counts.rule.key);
    let place = if counts.rule.key == Symbol::HOSTNAME {
        Some(node.fixed.name)
    } else {
        value
    };
    (value, place.map_or(0, |place| counts.pods_at(place)))
}

pub(crate) fn column(question: &Question<'_>, feasible: &[NodeId]) -> Vec<i64> {
    let mut rows = Rows::default();
    for id in feasible {
        let node = question.cluster.at(*id);
        rows.push(
            1,
            question.view.soft.iter().map(|counts| cell(counts, node)),
        );
    }
    rows.scores(question.view)
}
