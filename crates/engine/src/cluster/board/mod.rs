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

/// The index number of a class that has no index.
const NONE: u32 = u32::MAX;
/// The maximum number of slots of all indexes together; beyond it the least recently used indexes are dropped.
const MAX_SLOTS: usize = 16 << 20;

/// The result of asking the boards where a pod goes.
pub(crate) enum BoardDecision {
    /// A node accepts the pod.
    Node {
        /// The best node.
        node: NodeId,
        /// Whether each node's score is independent of the other feasible nodes, so that the ranking stays the same when this node is left out.
        apart: bool,
    },
    /// No node accepts the pod; the refusals with their numbers of nodes.
    Refused(Vec<Tally>),
}

/// The boards of a cluster, with the journals of changes that they have to read.
#[derive(Clone, Debug, Default)]
pub(super) struct Boards {
    pub(super) order: Order,
    /// Nodes whose pods changed.
    pub(super) loads: Journal,
    /// Nodes that were added, removed or changed.
    pub(super) nodes: Journal,
    indexes: Vec<Option<Box<Index>>>,
    index_of: FxHashMap<(ShapeId, Box<[Symbol]>), u32>,
    /// The number of the index of each class.
    index_of_class: Vec<u32>,
    /// The host states of each view: classes with the same view see the same hosts.
    hosts: Vec<Option<Box<Hosts>>>,
    /// One node for each hostname label.
    host: FxHashMap<Symbol, NodeId>,
    /// All nodes of each hostname label that several nodes have.
    twins: FxHashMap<Symbol, Vec<NodeId>>,
    /// The number of questions so far, by which the least recently used index is found.
    questions: u64,
    evictions: BoardCache<Evictions>,
    nominated: BoardCache<NominatedRefusals>,
    /// The version of the disruption budgets: grows with every change of one.
    pub(super) budgets: u64,
}

/// Inserts a node into a list of held nodes, which is sorted by node.
pub(crate) fn hold(held: &mut Vec<(NodeId, Refusal)>, node: NodeId, refusal: Refusal) {
    let at = held.partition_point(|(known, _)| *known < node);
    held.insert(at, (node, refusal));
}

impl Cluster {
    /// Returns whether boards know everything but the volumes that decides where a pod of this class goes. Boards do not know declared features
    /// and devices.
    fn is_for_boards(&self, class: &PodClass) -> bool {
        class.shape.named_nodes == NamedNodes::All
            && class.features.is_empty()
            && !self.is_about_devices(class)
    }

    /// Returns whether boards know everything that decides the cost of preemption for a pod of this class.
    fn is_for_evictions(&self, class: &PodClass) -> bool {
        let rules = self.rules(class.shape.profile);
        self.is_for_boards(class) && class.volumes.is_empty() && rules.filters_all()
    }

    /// Returns the best node for a pod, or the refusals of all nodes. `None` means that boards cannot decide, so the caller has to check every
    /// node. `held` are the nodes that refuse the pod because room is held for nominated pods, sorted by node.
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
        // This reads distant memory whose value is needed only at the end, so starting early hides the latency.
        let start = self.boards.order.start(seed);
        let number = self.index_number(class);
        let view_id = self.views.id(class)?;
        let view = self.views.get_mut(view_id)?;
        let by_host = view.by_host();
        let changed_hosts = view.take_changed_hosts();
        let mut hosts = by_host.then(|| self.boards.take_hosts(view_id));
        // Taken out and put back below, because a question borrows the whole cluster.
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

    /// Gives every node a position in the tie order and tells the journals the number of nodes.
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

    /// Returns the result of [`Cluster::preempt`] for a pod that every node refuses; `None` if boards cannot decide, because other pods matter
    /// to the pod by more than the resources they use.
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
        // The eviction is tried again only on the nodes that changed since the last question.
        for node in left {
            let verdict = self.try_eviction(class, "", node);
            board.set(node, verdict, &self.boards.order);
        }
        // Room held for the pod itself must not count against the pod. The result depends on the pod's key, so the cache may not keep it.
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

    /// Returns the nodes, in order, that refuse the pod only because room is held there for nominated pods of at least its priority, or that
    /// refuse it for another reason because of them. Boards do not know held room.
    pub(crate) fn held_otherwise(
        &mut self,
        class: PodClassId,
        key: &str,
    ) -> Arc<Vec<(NodeId, Refusal)>> {
        if !self.holds_room() {
            return Arc::default();
        }
        // If other pods matter by more than their requests, every node has to be filtered with the nominated pods.
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
        // Room held for the pod itself must not count against the pod.
        let promised = self.nominated_node(key);
        let mut held = board.excluding(promised);
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

    /// Returns the number of the index that serves a class, after creating the index if needed.
    fn index_number(&mut self, class: PodClassId) -> u32 {
        let view = self.views.id(class).and_then(|view| self.views.get(view));
        let of_view = view.map_or(&[][..], |view| view.keys());
        // If node labels decide which nodes reach a pod's volumes, the index must also group nodes by these labels.
        let plan = if self.class(class).volumes.is_empty() {
            None
        } else {
            self.volume_plans.get(&class)
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
        // The keys may have changed with the view or the volumes; then another index serves the class.
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

    /// Returns the nodes with a hostname label, without the node `but`.
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
    /// Drops the index of a class that is being collected.
    pub(super) fn forget_class(&mut self, class: PodClassId) {
        if let Some(index) = self.index_of_class.get_mut(class.index()) {
            *index = NONE;
        }
    }

    /// Drops everything that is cached for a shape that no class has any more.
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

    /// Takes the host states of a view out. The caller puts them back under the view's number.
    fn take_hosts(&mut self, view: ViewId) -> Box<Hosts> {
        if self.hosts.len() <= view.index() {
            self.hosts.resize(view.index() + 1, None);
        }
        self.hosts[view.index()].take().unwrap_or_default()
    }

    /// Drops the host states of a removed view.
    pub(super) fn drop_hosts(&mut self, view: ViewId) {
        if let Some(hosts) = self.hosts.get_mut(view.index()) {
            *hosts = None;
        }
    }

    /// Drops the host states of all views.
    pub(super) fn drop_all_hosts(&mut self) {
        self.hosts.clear();
    }

    fn open(&mut self, key: (ShapeId, Box<[Symbol]>), nodes: usize) -> u32 {
        // Every index has one slot per node, so the bound on slots is a bound on indexes.
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

    /// Records the hostname label of a node that was added or whose labels changed.
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

    /// Removes what [`Boards::name_host`] recorded.
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
