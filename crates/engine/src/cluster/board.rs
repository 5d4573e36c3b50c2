//! The score board of a pod shape: every node's score by its own load, kept in order and corrected where load changed.
//!
//! It answers for pods whose place does not depend on other pods: then a node's total is a part that its load decides
//! plus a part that its group (equal static scores) decides, so the best of each group is the best of all and placing
//! a pod costs what changed since the last one, not the number of nodes. Every node counts; the answer is the same as
//! scoring all of them. Invariant: after [`Board::refresh`] each slot holds what [`crate::score`] would say now.

use std::collections::BinaryHeap;

use super::{Cluster, NodeId, Question};
use crate::class::{PodClass, PodClassId};
use crate::schedule::tie;
use crate::score;
use crate::selector::NamedNodes;
use crate::topology::View;

/// The group of a node that does not fit.
const NONE: u16 = u16::MAX;

/// With more preferred terms than this there could be more groups than are worth keeping.
const MAX_PREFERRED: usize = 8;

/// Which nodes' load changed, in order. Starts over when the nodes themselves change or it gets long.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    epoch: u64,
    touched: Vec<NodeId>,
}

impl Journal {
    pub(super) fn touch(&mut self, node: NodeId) {
        self.touched.push(node);
    }

    pub(super) fn restart(&mut self) {
        self.epoch += 1;
        self.touched.clear();
    }
}

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub(super) struct Board {
    epoch: u64,
    seed: u64,
    /// How much of the journal has been read.
    read: usize,
    slots: Vec<Slot>,
    groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    group: u16,
    score: i32,
}

/// Nodes with equal static scores.
#[derive(Clone, Debug)]
struct Group {
    soft_taints: i64,
    preferred: i64,
    feasible: usize,
    /// Entries whose slot says otherwise by now are dropped when they come up.
    heap: BinaryHeap<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    score: i32,
    rank: u64,
    node: NodeId,
}

impl Cluster {
    /// The best node, or none that fits, for a pod whose place does not depend on other pods. `None` if it does: then
    /// all nodes have to be asked.
    pub(crate) fn best_by_board(&mut self, class: PodClassId, seed: u64) -> Option<Option<NodeId>> {
        self.prepare(class);
        let index = self.class(class).shape_id.index();
        let view = self.views[class.index()].as_deref()?;
        if !self.nominated.is_empty() || !stands_alone(self.class(class), view) {
            return None;
        }
        if self.journal.touched.len() > 4 * self.nodes.len() + 64 {
            self.journal.restart();
        }
        let mut board = self.boards[index].take().unwrap_or_default();
        board.refresh(&self.question(class), seed);
        let best = board.best(self.class(class));
        self.boards[index] = Some(board);
        Some(best)
    }
}

/// Whether no other pod matters to where a pod of this class goes.
fn stands_alone(class: &PodClass, view: &View) -> bool {
    class.shape.named_nodes == NamedNodes::All
        && class.shape.preferred_nodes.len() <= MAX_PREFERRED
        && class.affinity.is_empty()
        && class.anti_affinity.is_empty()
        && !view.counts_nodes()
        && view.existing_anti.is_empty()
        && view.score.is_empty()
}

impl Board {
    fn refresh(&mut self, question: &Question<'_>, seed: u64) {
        let journal = &question.cluster.journal;
        let current = !self.slots.is_empty() && self.epoch == journal.epoch && self.seed == seed;
        if current {
            for &node in &journal.touched[self.read..] {
                self.rate(node, question);
            }
        } else {
            let nodes = question.cluster.nodes.len();
            *self = Board {
                epoch: journal.epoch,
                seed,
                ..Board::default()
            };
            self.slots = vec![
                Slot {
                    group: NONE,
                    score: 0
                };
                nodes
            ];
            question
                .cluster
                .nodes()
                .for_each(|node| self.rate(node, question));
        }
        self.read = journal.touched.len();
    }

    /// Works a node's slot out anew.
    fn rate(&mut self, node: NodeId, question: &Question<'_>) {
        let before = self.slots[node.index()];
        let after = self.slot(node, question);
        if after == before {
            return;
        }
        self.slots[node.index()] = after;
        if before.group != NONE {
            self.groups[usize::from(before.group)].feasible -= 1;
        }
        if after.group == NONE {
            return;
        }
        let rank = tie(self.seed, question.cluster.node_name(node));
        let group = &mut self.groups[usize::from(after.group)];
        group.feasible += 1;
        group.heap.push(Entry {
            score: after.score,
            rank,
            node,
        });
        if group.heap.len() > 2 * self.slots.len() + 64 {
            self.tidy(after.group);
        }
    }

    fn slot(&mut self, node: NodeId, question: &Question<'_>) -> Slot {
        if !question.passes_static(node) || question.check_load(node).is_some() {
            return Slot {
                group: NONE,
                score: 0,
            };
        }
        let verdict = question.verdict(node);
        let known = |group: &Group| {
            (group.soft_taints, group.preferred) == (verdict.soft_taints, verdict.preferred)
        };
        let group = self.groups.iter().position(known).unwrap_or_else(|| {
            let (soft_taints, preferred) = (verdict.soft_taints, verdict.preferred);
            self.groups.push(Group {
                soft_taints,
                preferred,
                feasible: 0,
                heap: BinaryHeap::new(),
            });
            self.groups.len() - 1
        });
        let score = score::of_load(
            &question.class.shape,
            question.cluster,
            question.cluster.at(node),
        );
        Slot {
            group: group as u16,
            score: score.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32,
        }
    }

    /// Drops entries that no longer hold, and doubles of those that do.
    fn tidy(&mut self, group: u16) {
        let slots = &self.slots;
        let heap = &mut self.groups[usize::from(group)].heap;
        let mut entries = std::mem::take(heap).into_vec();
        entries.retain(|entry| {
            slots[entry.node.index()]
                == Slot {
                    group,
                    score: entry.score,
                }
        });
        entries.sort_unstable();
        entries.dedup();
        *heap = BinaryHeap::from(entries);
    }

    fn best(&mut self, class: &PodClass) -> Option<NodeId> {
        let feasible = || self.groups.iter().filter(|group| group.feasible > 0);
        let soft_taints = feasible().map(|group| group.soft_taints).max()?.max(0);
        let preferred = feasible().map(|group| group.preferred).max()?.max(0);
        let mut best: Option<(i64, u64, NodeId)> = None;
        for (index, group) in self
            .groups
            .iter_mut()
            .enumerate()
            .filter(|(_, group)| group.feasible > 0)
        {
            let holds = |entry: &Entry| {
                let slot = self.slots[entry.node.index()];
                usize::from(slot.group) == index && slot.score == entry.score
            };
            while group.heap.peek().is_some_and(|entry| !holds(entry)) {
                group.heap.pop();
            }
            let Some(top) = group.heap.peek() else {
                continue;
            };
            let of_group = score::of_verdict(
                &class.shape,
                group.soft_taints,
                group.preferred,
                (soft_taints, preferred),
            );
            best = best.max(Some((of_group + i64::from(top.score), top.rank, top.node)));
        }
        best.map(|(_, _, node)| node)
    }
}
