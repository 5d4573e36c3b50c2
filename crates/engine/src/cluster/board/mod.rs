//! Boards cache every node's verdict on a class of pods and update it after changes, so that the cost of a decision depends
//! on what changed and on the number of kinds of nodes, not on the number of nodes.
//!
//! There are three layers. An [`Index`] per pod shape and set of topology keys has groups of nodes that differ, for all
//! classes of the shape, only in load and host name, ordered by load score. [`Hosts`] per view of other pods has the few hosts
//! with pods of the classes that share the view, or pods with affinity terms about them. A [`Choice`] combines both for one
//! question. Every node is considered: the result equals scoring all nodes, which [`crate::schedule`] does where boards do not
//! apply, and with which the tests compare.
//!
//! Invariant: a filter about a single node may read only the node and the pod's shape; otherwise the boards miss changes of
//! its verdict. Filters that read more belong into the [`crate::topology`] view or into [`Cluster::is_for_boards`].

mod cache;
mod choice;
mod evictions;
mod hosts;
mod index;
mod journal;
mod nominated;
mod order;
mod set;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod variety;

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::shared_views::ViewId;
use super::{Cluster, NodeId};
use crate::class::{PodClass, PodClassId, ShapeId};
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::preempt::{Preemption, is_planned};
use crate::reason::{Refusal, Tally};
use crate::schedule::Unschedulable;
use crate::selector::NamedNodes;
use cache::BoardCache;
use choice::Choice;
use evictions::Evictions;
use hosts::Hosts;
use index::Index;
use nominated::NominatedRefusals;

pub(super) use journal::Journal;
pub(super) use order::Order;

/// No index.
const NONE: u32 = u32::MAX;
/// Slots that all indexes together may have before those least used are dropped.
const MAX_SLOTS: usize = 16 << 20;

/// The decision of the boards about a pod.
pub(crate) enum BoardDecision {
    /// The best node.
    Node {
        /// Which it is.
        node: NodeId,
        /// No node's score depends on which others there are: without this one the next best is the best.
        apart: bool,
    },
    /// None takes it.
    Refused(Vec<Tally>),
}

/// The boards of a cluster, with the journals of changes that they have to read.
#[derive(Clone, Debug, Default)]
pub(super) struct Boards {
    pub(super) order: Order,
    /// Nodes whose pods changed.
    pub(super) loads: Journal,
    /// Nodes that came, went, or are told differently.
    pub(super) nodes: Journal,
    indexes: Vec<Option<Box<Index>>>,
    index_of: FxHashMap<(ShapeId, Box<[Symbol]>), u32>,
    /// By class: the index that serves it.
    index_of_class: Vec<u32>,
    /// By view: the classes that have it see the same hosts.
    hosts: Vec<Option<Box<Hosts>>>,
    /// A node with each hostname label.
    host: FxHashMap<Symbol, NodeId>,
    /// Hostname labels that several nodes have, with all of them.
    twins: FxHashMap<Symbol, Vec<NodeId>>,
    questions: u64,
    evictions: BoardCache<Evictions>,
    nominated: BoardCache<NominatedRefusals>,
    /// Grows with every change of a disruption budget.
    pub(super) budgets: u64,
}

/// Adds a node to those that are held, which are in order.
pub(crate) fn hold(held: &mut Vec<(NodeId, Refusal)>, node: NodeId, refusal: Refusal) {
    let at = held.partition_point(|(known, _)| *known < node);
    held.insert(at, (node, refusal));
}

impl Cluster {
    /// Whether boards know all that decides where a pod of this class goes, but for its volumes. They know neither kubelets nor devices.
    fn is_for_boards(&self, class: &PodClass) -> bool {
        class.shape.named_nodes == NamedNodes::All
            && class.features.is_empty()
            && !self.is_about_devices(class)
    }

    /// The same about what evictions would cost.
    fn is_for_evictions(&self, class: &PodClass) -> bool {
        let rules = self.rules(class.shape.profile);
        self.is_for_boards(class) && class.volumes.is_empty() && rules.filters_all()
    }

    /// The best node for a pod, or how all refuse it. None if boards cannot say: then all nodes have to be asked.
    /// `held` are nodes that refuse because of room held there for others, in order.
    pub(crate) fn ask_boards(
        &mut self,
        class: PodClassId,
        seed: u64,
        held: &[(NodeId, Refusal)],
    ) -> Option<BoardDecision> {
        self.prepare(class);
        let own = self.class(class);
        if !self.is_for_boards(own) || self.node_count() == 0 {
            return None;
        }
        self.settle_boards();
        // Far away in memory, and nothing that follows waits for it until the end.
        let start = self.boards.order.start(seed);
        let number = self.index_number(class);
        let view_id = self.views.id(class)?;
        let view = self.views.get_mut(view_id)?;
        let by_host = view.by_host();
        let changed_hosts = view.take_changed_hosts();
        let mut hosts = by_host.then(|| self.boards.take_hosts(view_id));
        let mut index = self.boards.indexes[number as usize].take()?;
        let decision = self.ask_parts(
            class,
            start,
            held,
            &mut index,
            hosts.as_deref_mut(),
            changed_hosts.as_deref(),
        );
        self.boards.indexes[number as usize] = Some(index);
        if hosts.is_some() {
            self.boards.hosts[view_id.index()] = hosts;
        }
        decision
    }

    /// Makes the order of nodes and the journals ready for every node there is.
    fn settle_boards(&mut self) {
        let Boards {
            order,
            loads,
            nodes,
            ..
        } = &mut self.boards;
        order.settle(&self.nodes, &self.names);
        loads.expect(self.nodes.len());
        nodes.expect(self.nodes.len());
    }

    /// The answer to [`Cluster::preempt`] for a pod that is refused everywhere, if other pods matter to it by the room
    /// they take only.
    pub(crate) fn preempt_by_board(
        &mut self,
        class: PodClassId,
        key: &str,
        seed: u64,
    ) -> Option<Preemption> {
        self.prepare(class);
        let own = self.class(class);
        if !self.is_for_evictions(own)
            || !is_planned(&own.shape)
            || !self.view(class).is_filtered_by_room_only(own)
        {
            return None;
        }
        let id = (own.shape_id, own.priority);
        self.settle_boards();
        let mut board = self.boards.evictions.take(id);
        let question = self.question(class);
        let boards = &question.cluster.boards;
        let journals = (&boards.loads, &boards.nodes);
        let left = board.refresh(&question, &boards.order, journals, boards.budgets);
        for node in left {
            let verdict = self.try_eviction(class, "", node);
            board.set(node, verdict, &self.boards.order);
        }
        // What is held for the pod itself does not stand in its way.
        if let Some(node) = self.nominated_node(key) {
            let verdict = self.try_eviction(class, key, node);
            board.set_for_question(node, verdict, &self.boards.order);
        }
        let order = &self.boards.order;
        let best = board.best(order.start(seed), order);
        let preemption = match best {
            None => Preemption::NotHelpful(Unschedulable::in_order(self, board.refusals())),
            Some(node) => Preemption::Evict {
                chosen: self.eviction_on(class, key, node)?,
            },
        };
        self.boards.evictions.keep(id, board);
        Some(preemption)
    }

    /// What boards do not know about nodes where room is held for others of at least the pod's priority: which refuse
    /// because of it, and would say something else without; in order.
    pub(crate) fn held_otherwise(
        &mut self,
        class: PodClassId,
        key: &str,
    ) -> Arc<Vec<(NodeId, Refusal)>> {
        if !self.holds_room() {
            return Arc::default();
        }
        if !self.question(class).is_about_room_only() {
            let mut held = self.filter_with_nominated(class, key);
            held.sort_unstable_by_key(|(node, _)| *node);
            return Arc::new(held);
        }
        self.settle_boards();
        let own = self.class(class);
        let id = (own.shape_id, own.priority);
        let mut board = self.boards.nominated.take(id);
        let question = self.prepared(class);
        board.refresh(&question, &self.boards.loads, &self.boards.nodes);
        // What is held for the pod itself does not stand in its way.
        let promised = self.nominated_node(key);
        let mut held = board.but(promised);
        if let Some(node) = promised
            && let Some(refusal) = question.held_otherwise(node, key)
        {
            hold(Arc::make_mut(&mut held), node, refusal);
        }
        self.boards.nominated.keep(id, board);
        held
    }

    fn ask_parts(
        &mut self,
        class: PodClassId,
        start: u32,
        held: &[(NodeId, Refusal)],
        index: &mut Index,
        mut hosts: Option<&mut Hosts>,
        changed_hosts: Option<&[(NodeId, Option<Symbol>)]>,
    ) -> Option<BoardDecision> {
        let question = self.prepared(class);
        let Boards {
            order,
            loads,
            nodes,
            ..
        } = &question.cluster.boards;
        index.refresh(&question, order, loads, nodes);
        if let Some(hosts) = &mut hosts {
            hosts.refresh(&question, changed_hosts, order, nodes);
        }
        if !index.is_useful() || hosts.as_ref().is_some_and(|hosts| !hosts.is_useful()) {
            return None;
        }
        index.hold(held, &question, order);
        let choice = Choice {
            question,
            index,
            hosts: hosts.as_deref(),
            order,
            start,
        };
        Some(match choice.best() {
            Some(node) => BoardDecision::Node {
                node,
                apart: choice.scores_apart(),
            },
            None => BoardDecision::Refused(choice.refusals()),
        })
    }

    /// The number of the index that serves a class, which is there when this returns.
    fn index_number(&mut self, class: PodClassId) -> u32 {
        let view = self.views.id(class).and_then(|view| self.views.get(view));
        let of_view = view.map_or(&[][..], |view| view.keys());
        // If labels decide which nodes reach a pod's volumes, groups of nodes decide it too.
        let plan = match self.class(class).volumes.is_empty() {
            true => None,
            false => self.volume_plans.get(&class),
        };
        let of_volumes = plan.and_then(|(_, plan)| plan.keys.as_deref());
        let keys = match of_volumes {
            None | Some([]) => Cow::Borrowed(of_view),
            Some(more) => {
                let mut keys = [of_view, more].concat();
                keys.sort_unstable();
                keys.dedup();
                Cow::Owned(keys)
            }
        };
        let boards = &mut self.boards;
        boards.questions += 1;
        if boards.index_of_class.len() <= class.index() {
            boards.index_of_class.resize(class.index() + 1, NONE);
        }
        let known = boards.index_of_class[class.index()];
        if let Some(Some(index)) = boards.indexes.get_mut(known as usize)
            && index.keys[..] == keys[..]
        {
            index.used_at = boards.questions;
            return known;
        }
        let key = (self.classes[class.index()].shape_id, Box::from(&keys[..]));
        let number = match boards.index_of.get(&key) {
            Some(number) => *number,
            None => boards.open(key, self.nodes.len()),
        };
        boards.index_of_class[class.index()] = number;
        number
    }

    /// The nodes with a hostname label, but for one.
    fn hosts_named(&self, hostname: Symbol, but: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let boards = &self.boards;
        let twins = boards.twins.get(&hostname).map_or(&[][..], |twins| twins);
        let alone = if twins.is_empty() {
            boards.host.get(&hostname)
        } else {
            None
        };
        twins
            .iter()
            .chain(alone)
            .copied()
            .filter(move |node| *node != but)
    }
}

impl Boards {
    /// Drops what is kept for a class that is collected.
    pub(super) fn forget_class(&mut self, class: PodClassId) {
        if let Some(index) = self.index_of_class.get_mut(class.index()) {
            *index = NONE;
        }
    }

    /// Drops what is kept for a shape that no class has any more.
    pub(super) fn forget_shape(&mut self, shape: ShapeId) {
        let indexes = &mut self.indexes;
        self.index_of.retain(|(own, _), number| {
            if *own == shape {
                indexes[*number as usize] = None;
            }
            *own != shape
        });
        self.evictions.forget(shape);
        self.nominated.forget(shape);
    }

    /// What is kept per host for the classes that have a view, to be put back under its number.
    fn take_hosts(&mut self, view: ViewId) -> Box<Hosts> {
        if self.hosts.len() <= view.index() {
            self.hosts.resize(view.index() + 1, None);
        }
        self.hosts[view.index()].take().unwrap_or_default()
    }

    /// Drops what is kept per host for a view that is gone.
    pub(super) fn drop_hosts(&mut self, view: ViewId) {
        if let Some(hosts) = self.hosts.get_mut(view.index()) {
            *hosts = None;
        }
    }

    /// Drops what is kept per host for all views.
    pub(super) fn drop_all_hosts(&mut self) {
        self.hosts.clear();
    }

    fn open(&mut self, key: (ShapeId, Box<[Symbol]>), nodes: usize) -> u32 {
        let most = (MAX_SLOTS / nodes.max(1)).max(16);
        let mut index = Box::new(Index::new(key.1.clone()));
        index.used_at = self.questions;
        let number = if self.index_of.len() >= most {
            let used = self.indexes.iter().enumerate();
            let kept = used.filter_map(|(number, index)| Some((number, index.as_ref()?.used_at)));
            let least_used = kept.min_by_key(|(_, used_at)| *used_at);
            least_used.map(|(number, _)| number)
        } else {
            self.indexes.iter().position(Option::is_none)
        };
        let number = number.unwrap_or_else(|| {
            self.indexes.push(None);
            self.indexes.len() - 1
        });
        self.index_of.retain(|_, kept| *kept != number as u32);
        for index in &mut self.index_of_class {
            if *index == number as u32 {
                *index = NONE;
            }
        }
        self.indexes[number] = Some(index);
        self.index_of.insert(key, number as u32);
        number as u32
    }

    /// A node is there, or its labels are others.
    pub(super) fn name_host(&mut self, node: NodeId, labels: &LabelSet) {
        let Some(hostname) = labels.value(Symbol::HOSTNAME) else {
            return;
        };
        match self.host.get(&hostname) {
            None => drop(self.host.insert(hostname, node)),
            Some(first) => {
                let twins = self.twins.entry(hostname).or_insert_with(|| vec![*first]);
                twins.push(node);
            }
        }
    }

    /// The inverse of [`Boards::name_host`].
    pub(super) fn unname_host(&mut self, node: NodeId, labels: &LabelSet) {
        let Some(hostname) = labels.value(Symbol::HOSTNAME) else {
            return;
        };
        let Some(twins) = self.twins.get_mut(&hostname) else {
            self.host.remove(&hostname);
            return;
        };
        twins.retain(|twin| *twin != node);
        if let [last] = twins[..] {
            self.host.insert(hostname, last);
            self.twins.remove(&hostname);
        }
    }
}
