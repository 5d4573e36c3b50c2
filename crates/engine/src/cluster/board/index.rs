//! All nodes as one pod shape sees them, regardless of other pods' affinity: which have room, the score of their load, and
//! why the others refuse.
//!
//! Nodes are grouped by equal static scores and equal values of the topology keys that matter, and within a group into
//! buckets of equal load score. A class of pods then looks at groups instead of nodes. Invariant: after [`Index::refresh`]
//! every slot has what [`crate::score`] and the filters about the node's own room would give now, except for held nodes,
//! which have what [`Index::hold`] set last.

use rustc_hash::FxHashMap;

use super::journal::Journal;
use super::order::Order;
use super::set::NodeSet;
use crate::cluster::{NodeId, Question};
use crate::intern::Symbol;
use crate::reason::{Reason, Refusal, Tally};
use crate::score;

/// Marks a node that static filters refuse or that does not exist.
const NO_GROUP: u32 = u32::MAX;
/// Marks a node that has room or does not exist.
const NO_REFUSAL: u32 = u32::MAX;
/// Marks a slot that was never filled.
const NOWHERE: u32 = u32::MAX;
/// With more groups than this, looking at groups costs as much as looking at nodes.
const MAX_GROUPS: usize = 4096;

/// The slots and groups of all nodes for one shape and one set of topology keys.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// The topology keys by which nodes are grouped, sorted; never the hostname.
    pub(super) keys: Box<[Symbol]>,
    /// When it was last used, so that the least recently used index can be dropped.
    pub(super) used_at: u64,
    version: u64,
    read_loads: u64,
    read_nodes: u64,
    images: Vec<(i64, u32)>,
    slots: Vec<Slot>,
    pub(super) groups: Vec<Group>,
    group_of: FxHashMap<GroupKey, u32>,
    /// The number of nodes with each refusal.
    pub(super) tallies: Vec<Tally>,
    /// Nodes that count as refused because room is held there for nominated pods, in order. Consecutive questions hold
    /// nearly the same ones, so they stay until a question needs others.
    held: Vec<(NodeId, Refusal)>,
    /// Whether a load score did not fit into a slot, because amounts are unreasonably large.
    overflown: bool,
}

/// The place of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) group: u32,
    refusal: u32,
    pub(super) score: i32,
    /// The position in the tie order; stored here so that a node needs one memory access.
    position: u32,
}

const ABSENT: Slot = Slot {
    group: NO_GROUP,
    refusal: NO_REFUSAL,
    score: 0,
    position: NOWHERE,
};

impl Slot {
    pub(super) fn has_room(self) -> bool {
        self.group != NO_GROUP && self.refusal == NO_REFUSAL
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct GroupKey {
    soft_taints: i64,
    preferred: i64,
    values: Box<[Option<Symbol>]>,
}

/// Nodes that differ only in load for all classes of the shape, except for what is counted per host.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) soft_taints: i64,
    pub(super) preferred: i64,
    /// The values of the topology keys.
    pub(super) values: Box<[Option<Symbol>]>,
    /// The nodes with room.
    pub(super) with_room: NodeSet,
    /// The nodes with room by load score, the best last; no bucket is empty.
    pub(super) buckets: Vec<Bucket>,
}

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub(super) score: i32,
    pub(super) nodes: NodeSet,
}

impl Index {
    pub(super) fn new(keys: Box<[Symbol]>) -> Self {
        Index {
            keys,
            used_at: 0,
            version: u64::MAX,
            read_loads: 0,
            read_nodes: 0,
            images: Vec::new(),
            slots: Vec::new(),
            groups: Vec::new(),
            group_of: FxHashMap::default(),
            tallies: Vec::new(),
            held: Vec::new(),
            overflown: false,
        }
    }

    /// Returns whether the index is exact and faster than looking at every node.
    pub(super) fn is_useful(&self) -> bool {
        !self.overflown && self.groups.len() <= MAX_GROUPS
    }

    pub(super) fn slot(&self, node: NodeId) -> Slot {
        self.slots[node.index()]
    }

    /// Updates the slots after changes.
    pub(super) fn refresh(
        &mut self,
        question: &Question<'_>,
        order: &Order,
        loads: &Journal,
        nodes: &Journal,
    ) {
        let images = question.cluster.image_facts(&question.class.shape);
        // A change of the facts about images changes the load scores of all nodes at once.
        let current = self.version == order.version() && self.images == images;
        match (loads.since(self.read_loads), nodes.since(self.read_nodes)) {
            (Some(loads), Some(nodes)) if current => {
                nodes
                    .iter()
                    .for_each(|node| self.place(*node, question, order));
                // Slots are far apart in memory. Touching all of them first lets the memory accesses overlap.
                let there = loads
                    .iter()
                    .filter(|node| self.slots[node.index()].group != NO_GROUP);
                std::hint::black_box(there.count());
                loads
                    .iter()
                    .for_each(|node| self.rate(*node, question, order));
            }
            _ => {
                let keys = std::mem::take(&mut self.keys);
                *self = Index {
                    version: order.version(),
                    images,
                    used_at: self.used_at,
                    ..Index::new(keys)
                };
                self.slots = vec![ABSENT; question.cluster.nodes.len()];
                question
                    .cluster
                    .nodes()
                    .for_each(|node| self.place(node, question, order));
            }
        }
        self.read_loads = loads.end();
        self.read_nodes = nodes.end();
    }

    /// Sets exactly these nodes, which are in order, to refused because of room held there.
    pub(super) fn hold(
        &mut self,
        wanted: &[(NodeId, Refusal)],
        question: &Question<'_>,
        order: &Order,
    ) {
        let mut freed = Vec::new();
        let mut taken = Vec::new();
        let mut held = self.held.iter().peekable();
        // Both lists are sorted, so one pass finds the nodes to free and those to hold.
        for one in wanted {
            while let Some((before, _)) = held.next_if(|(node, _)| *node < one.0) {
                freed.push(*before);
            }
            // A node that is held with another refusal now is taken again.
            if held.next_if(|(node, _)| *node == one.0) != Some(one) {
                taken.push(one);
            }
        }
        freed.extend(held.map(|(node, _)| *node));
        // Freed first: rating a node also removes it from the held ones.
        for node in freed {
            self.rate(node, question, order);
        }
        for (node, refusal) in taken {
            self.refuse(*node, refusal, order);
            self.release(*node);
            let at = self.held.partition_point(|(held, _)| held < node);
            self.held.insert(at, (*node, refusal.clone()));
        }
    }

    /// Removes a node from the held ones, because its slot is computed anew.
    fn release(&mut self, node: NodeId) {
        if let Ok(at) = self.held.binary_search_by_key(&node, |(node, _)| *node) {
            self.held.remove(at);
        }
    }

    fn refuse(&mut self, node: NodeId, refusal: &Refusal, order: &Order) {
        let group = self.slots[node.index()].group;
        if group != NO_GROUP {
            let refusal = self.tally(refusal);
            self.change(
                node,
                Slot {
                    group,
                    refusal,
                    ..ABSENT
                },
                order,
            );
        }
    }

    /// Computes a node's slot anew after any change of the node.
    fn place(&mut self, node: NodeId, question: &Question<'_>, order: &Order) {
        self.release(node);
        if self.slots.len() <= node.index() {
            self.slots.resize(node.index() + 1, ABSENT);
        }
        let there = question
            .cluster
            .nodes
            .get(node.index())
            .is_some_and(Option::is_some);
        if !there {
            self.change(node, ABSENT, order);
            return;
        }
        let verdict = question.verdict(node);
        // A node that a static filter refuses joins no group; only its refusal counts.
        if let Some((plugin, reason)) = verdict.refusal {
            let refusal = self.tally(&Refusal::new(plugin, reason));
            self.change(node, Slot { refusal, ..ABSENT }, order);
            return;
        }
        let labels = &question.cluster.at(node).fixed.labels;
        // Nodes of a group are alike in all that static scores and topology rules read.
        let key = GroupKey {
            soft_taints: verdict.soft_taints,
            preferred: verdict.preferred,
            values: self.keys.iter().map(|key| labels.value(*key)).collect(),
        };
        let group = match self.group_of.get(&key) {
            Some(group) => *group,
            None => {
                let group = self.groups.len() as u32;
                self.groups.push(Group {
                    soft_taints: key.soft_taints,
                    preferred: key.preferred,
                    values: key.values.clone(),
                    with_room: NodeSet::default(),
                    buckets: Vec::new(),
                });
                self.group_of.insert(key, group);
                group
            }
        };
        let after = self.scored_slot(node, group, question);
        self.change(node, after, order);
    }

    /// Computes a node's slot anew after a change of its load.
    fn rate(&mut self, node: NodeId, question: &Question<'_>, order: &Order) {
        self.release(node);
        let group = self.slots[node.index()].group;
        if group != NO_GROUP {
            let after = self.scored_slot(node, group, question);
            self.change(node, after, order);
        }
    }

    /// Returns the slot of a node in a group: its score, or the refusal if the node lacks room.
    fn scored_slot(&mut self, node: NodeId, group: u32, question: &Question<'_>) -> Slot {
        if let Some(refusal) = question.check_room(node) {
            return Slot {
                group,
                refusal: self.tally(&refusal),
                ..ABSENT
            };
        }
        let cluster = question.cluster;
        let score = score::of_load(question, cluster.at(node));
        let score = i32::try_from(score).unwrap_or_else(|_| {
            self.overflown = true;
            0
        });
        Slot {
            group,
            score,
            ..ABSENT
        }
    }

    /// Returns the index of a refusal among the tallies.
    fn tally(&mut self, refusal: &Refusal) -> u32 {
        // Compared without building the general form of the refusal, because this runs for each node that is full.
        let same = |tally: &Tally| {
            tally.refusal.plugin == refusal.plugin
                && tally
                    .refusal
                    .reasons()
                    .eq(refusal.reasons().map(Reason::in_general))
        };
        let index = self.tallies.iter().position(same).unwrap_or_else(|| {
            self.tallies.push(Tally {
                refusal: refusal.in_general(),
                nodes: 0,
            });
            self.tallies.len() - 1
        });
        index as u32
    }

    fn change(&mut self, node: NodeId, mut after: Slot, order: &Order) {
        let slot = &mut self.slots[node.index()];
        after.position = slot.position;
        if *slot == after {
            return;
        }
        if after.position == NOWHERE {
            after.position = order.position(node);
        }
        let position = after.position;
        let before = std::mem::replace(slot, after);
        // A change of load moves the node between buckets but leaves the group's set untouched, which is the common case.
        let stays = before.has_room() && after.has_room() && before.group == after.group;
        if before.has_room() {
            let group = &mut self.groups[before.group as usize];
            if !stays {
                group.with_room.remove(position);
            }
            group.lower(before.score, position);
        } else if let Some(tally) = self.tallies.get_mut(before.refusal as usize) {
            tally.nodes -= 1;
        }
        if after.has_room() {
            let group = &mut self.groups[after.group as usize];
            if !stays {
                group.with_room.insert(position, order.len());
            }
            group.raise(after.score, position, order.len());
        } else if let Some(tally) = self.tallies.get_mut(after.refusal as usize) {
            tally.nodes += 1;
        }
    }
}

impl Group {
    fn raise(&mut self, score: i32, position: u32, width: usize) {
        let index = match self
            .buckets
            .binary_search_by_key(&score, |bucket| bucket.score)
        {
            Ok(index) => index,
            Err(index) => {
                self.buckets.insert(
                    index,
                    Bucket {
                        score,
                        nodes: NodeSet::default(),
                    },
                );
                index
            }
        };
        self.buckets[index].nodes.insert(position, width);
    }

    fn lower(&mut self, score: i32, position: u32) {
        if let Ok(index) = self
            .buckets
            .binary_search_by_key(&score, |bucket| bucket.score)
        {
            self.buckets[index].nodes.remove(position);
            if self.buckets[index].nodes.is_empty() {
                self.buckets.remove(index);
            }
        }
    }
}
