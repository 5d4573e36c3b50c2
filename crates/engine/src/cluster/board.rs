//! The score board: every node's score by its own load, kept in order and corrected where load changed.
//!
//! A node's total is a part that its load decides plus a part that it shares with its group: nodes with equal static
//! scores, in the same places, with as many matching pods of their own. So the best of each group is the best of all,
//! and placing a pod costs what changed since the last one plus the number of groups, not the number of nodes. Every
//! node counts; the answer is that of scoring all of them. Pods that are spread have a board per class, all others
//! share one per shape; affinity between pods is not for boards. Invariant: after [`Board::refresh`] each slot holds
//! what [`crate::score`] would say now.

use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::{Cluster, NodeId, Question};
use crate::class::{PodClass, PodClassId};
use crate::filter::pod_topology_spread::is_too_uneven;
use crate::intern::Symbol;
use crate::schedule::tie;
use crate::score::{self, pod_topology_spread};
use crate::selector::NamedNodes;
use crate::topology::View;

/// The group of a node that does not fit.
const NONE: u32 = u32::MAX;

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
    by_key: FxHashMap<GroupKey, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    group: u32,
    score: i32,
}

/// What nodes of a group have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct GroupKey {
    soft_taints: i64,
    preferred: i64,
    /// Per spread rule, hard before soft: the place.
    places: Box<[Place]>,
}

/// A place of a spread rule; of hosts only how many matching pods are on the node, so that hosts can share a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Value(Option<Symbol>),
    Host { labelled: bool, pods: i64 },
}

#[derive(Clone, Debug)]
struct Group {
    key: GroupKey,
    /// Nodes of the group with room for the pod.
    roomy: usize,
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
    /// The best node, or none that fits, for a pod that has no business with other pods but being spread. `None` if it
    /// has: then all nodes have to be asked.
    pub(crate) fn best_by_board(&mut self, class: PodClassId, seed: u64) -> Option<Option<NodeId>> {
        self.prepare(class);
        let view = self.views[class.index()].as_deref()?;
        if !self.nominated.is_empty() || !stands_alone(self.class(class), view) {
            return None;
        }
        let own = view.counts_nodes();
        if self.journal.touched.len() > 4 * self.nodes.len() + 64 {
            self.journal.restart();
        }
        let mut board = self.board(class, own).take().unwrap_or_default();
        let question = self.question(class);
        board.refresh(&question, seed);
        let best = board.best(&question);
        *self.board(class, own) = Some(board);
        Some(best)
    }

    fn board(&mut self, class: PodClassId, own: bool) -> &mut Option<Box<Board>> {
        if own {
            return &mut self.spread_boards[class.index()];
        }
        let shape = self.class(class).shape_id;
        &mut self.boards[shape.index()]
    }
}

/// Whether spreading is all that other pods matter to where a pod of this class goes.
fn stands_alone(class: &PodClass, view: &View) -> bool {
    class.shape.named_nodes == NamedNodes::All
        && class.shape.preferred_nodes.len() <= MAX_PREFERRED
        && class.affinity.is_empty()
        && class.anti_affinity.is_empty()
        && view.existing_anti.is_empty()
        && view.score.is_empty()
        // Nodes may share a hostname label, and then one's load changes the other's count.
        && view.hard.iter().all(|counts| counts.rule.key != Symbol::HOSTNAME)
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
            self.groups[before.group as usize].roomy -= 1;
        }
        if after.group == NONE {
            return;
        }
        let rank = tie(self.seed, question.cluster.node_name(node));
        let group = &mut self.groups[after.group as usize];
        group.roomy += 1;
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
        if !question.passes_static(node) || question.check_room(node).is_some() {
            return Slot {
                group: NONE,
                score: 0,
            };
        }
        let key = GroupKey::of(node, question);
        let group = match self.by_key.get(&key) {
            Some(group) => *group,
            None => {
                let group = self.groups.len() as u32;
                self.groups.push(Group {
                    key: key.clone(),
                    roomy: 0,
                    heap: BinaryHeap::new(),
                });
                self.by_key.insert(key, group);
                group
            }
        };
        let score = score::of_load(
            &question.class.shape,
            question.cluster,
            question.cluster.at(node),
        );
        Slot {
            group,
            score: score.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32,
        }
    }

    /// Drops entries that no longer hold, and doubles of those that do.
    fn tidy(&mut self, group: u32) {
        let slots = &self.slots;
        let heap = &mut self.groups[group as usize].heap;
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

    fn best(&mut self, question: &Question<'_>) -> Option<NodeId> {
        let view = question.view;
        let feasible: Vec<usize> = (0..self.groups.len())
            .filter(|index| self.groups[*index].roomy > 0 && self.groups[*index].key.is_even(view))
            .collect();
        let keys = || feasible.iter().map(|index| &self.groups[*index].key);
        let most_taints = keys().map(|key| key.soft_taints).max()?.max(0);
        let most_preferred = keys().map(|key| key.preferred).max()?.max(0);
        let spread = if view.soft.is_empty() {
            Vec::new()
        } else {
            self.spread_scores(&feasible, view)
        };
        let mut best: Option<(i64, u64, NodeId)> = None;
        for (row, index) in feasible.into_iter().enumerate() {
            let Some(top) = self.top(index) else { continue };
            let key = &self.groups[index].key;
            let most = (most_taints, most_preferred);
            let shared =
                score::of_verdict(&question.class.shape, key.soft_taints, key.preferred, most)
                    + spread
                        .get(row)
                        .map_or(0, |score| score::SPREAD_WEIGHT * score);
            best = best.max(Some((shared + i64::from(top.score), top.rank, top.node)));
        }
        best.map(|(_, _, node)| node)
    }

    fn spread_scores(&self, feasible: &[usize], view: &View) -> Vec<i64> {
        let mut rows = pod_topology_spread::Rows::default();
        for index in feasible {
            let group = &self.groups[*index];
            let soft = view.soft.iter().zip(&group.key.places[view.hard.len()..]);
            let cells = soft.map(|(counts, place)| match *place {
                Place::Value(value) => (value, value.map_or(0, |value| counts.pods_at(value))),
                Place::Host { labelled, pods } => (labelled.then_some(Symbol::HOSTNAME), pods),
            });
            rows.push(group.roomy, cells);
        }
        rows.scores(view)
    }

    /// The best entry of a group that still holds.
    fn top(&mut self, index: usize) -> Option<Entry> {
        let heap = &mut self.groups[index].heap;
        loop {
            let entry = *heap.peek()?;
            if self.slots[entry.node.index()]
                == (Slot {
                    group: index as u32,
                    score: entry.score,
                })
            {
                return Some(entry);
            }
            heap.pop();
        }
    }
}

impl GroupKey {
    fn of(node: NodeId, question: &Question<'_>) -> Self {
        let verdict = question.verdict(node);
        let view = question.view;
        let node = question.cluster.at(node);
        let places = view.hard.iter().chain(&view.soft).map(|counts| {
            let (value, pods) = pod_topology_spread::cell(counts, node);
            match counts.rule.key {
                Symbol::HOSTNAME => Place::Host {
                    labelled: value.is_some(),
                    pods,
                },
                _ => Place::Value(value),
            }
        });
        GroupKey {
            soft_taints: verdict.soft_taints,
            preferred: verdict.preferred,
            places: places.collect(),
        }
    }

    /// Whether all hard spread rules let another pod in.
    fn is_even(&self, view: &View) -> bool {
        view.hard
            .iter()
            .zip(&self.places)
            .all(|(counts, place)| match *place {
                Place::Value(Some(value)) => !is_too_uneven(counts, value),
                Place::Value(None) | Place::Host { .. } => false,
            })
    }
}
