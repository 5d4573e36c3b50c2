//! What the classes of pods that have one view see of single hosts: their own kind's pods there, and who attracts them or keeps them away.
//!
//! Most hosts show nothing of the sort. The others are in sets of equal state, of which there are few, so that hosts
//! are weighed by the set. Invariant: after [`Hosts::refresh`] a node is in the set of the state that the
//! [`View`] gives it now, or in none if that is the empty state.

use rustc_hash::FxHashMap;

use super::journal::Journal;
use super::order::Order;
use super::set::{NodeSet, Within};
use crate::class::PodClass;
use crate::cluster::{Cluster, Node, NodeId, Question};
use crate::intern::Symbol;
use crate::topology::{SpreadCounts, View};

/// With more states than this, asking them costs about what asking nodes does.
const MAX_STATES: usize = 512;

/// The number of the empty state.
pub(super) const EMPTY: usize = 0;

/// See the module's words.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    version: u64,
    read_nodes: u64,
    states: Vec<HostState>,
    /// By state; the empty state's is not kept.
    sets: Vec<NodeSet>,
    /// Nodes that are in any of the sets.
    marked: NodeSet,
    state_of: FxHashMap<NodeId, u32>,
    number_of: FxHashMap<HostState, u32>,
}

/// What a class sees of a host by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HostState {
    /// It has a hostname label.
    pub(super) labelled: bool,
    /// Pods that match the class's required affinity are there.
    pub(super) near: bool,
    /// Pods that match its required anti-affinity are there.
    pub(super) apart: bool,
    /// Pods are there whose required anti-affinity it matches.
    pub(super) kept_away: bool,
    /// The sum of preferences.
    pub(super) weight: i64,
    /// Per spread rule over hosts, hard before soft: matching pods there.
    pub(super) pods: Box<[i64]>,
}

impl HostState {
    fn empty(view: &View) -> Self {
        HostState {
            labelled: true,
            near: false,
            apart: false,
            kept_away: false,
            weight: 0,
            pods: host_rules(view).map(|_| 0).collect(),
        }
    }

    /// Whether a host shows a class nothing of its own, found out without building its state.
    fn is_empty(node: &Node, class: &PodClass, view: &View) -> bool {
        let Some(value) = node.fixed.labels.value(Symbol::HOSTNAME) else {
            return false;
        };
        let none = |pairs: &crate::topology::PairCounts| {
            pairs.is_empty() || pairs.count(Symbol::HOSTNAME, value) == 0
        };
        none(&view.anti)
            && none(&view.existing_anti)
            && (class.affinity.is_empty() || none(&view.affinity))
            && (view.score.is_empty() || view.score.sum(Symbol::HOSTNAME, value) == 0)
            && host_rules(view).all(|counts| {
                counts.pods_at(if counts.rule.hard {
                    value
                } else {
                    node.fixed.name
                }) == 0
            })
    }

    fn of(node: &Node, class: &PodClass, view: &View) -> Self {
        let value = node.fixed.labels.value(Symbol::HOSTNAME);
        let counts = |pairs: &crate::topology::PairCounts| {
            value.is_some_and(|value| pairs.count(Symbol::HOSTNAME, value) > 0)
        };
        let by_host = class
            .affinity
            .iter()
            .any(|term| term.key == Symbol::HOSTNAME);
        let pods = host_rules(view).map(|counts| {
            if counts.rule.hard {
                value.map_or(0, |value| counts.pods_at(value))
            } else {
                counts.pods_at(node.fixed.name)
            }
        });
        HostState {
            labelled: value.is_some(),
            near: by_host && counts(&view.affinity),
            apart: counts(&view.anti),
            kept_away: counts(&view.existing_anti),
            weight: value.map_or(0, |value| view.score.sum(Symbol::HOSTNAME, value)),
            pods: pods.collect(),
        }
    }
}

/// Spread rules over hosts, hard before soft.
fn host_rules(view: &View) -> impl Iterator<Item = &SpreadCounts> {
    let rules = view.hard.iter().chain(&view.soft);
    rules.filter(|counts| counts.rule.key == Symbol::HOSTNAME)
}

impl Default for Hosts {
    fn default() -> Self {
        Hosts {
            version: u64::MAX,
            read_nodes: 0,
            states: Vec::new(),
            sets: Vec::new(),
            marked: NodeSet::default(),
            state_of: FxHashMap::default(),
            number_of: FxHashMap::default(),
        }
    }
}

impl Hosts {
    /// Whether it answers faster than asking every node would.
    pub(super) fn is_useful(&self) -> bool {
        self.states.len() <= MAX_STATES
    }

    /// The states there are; the empty one first.
    pub(super) fn states(&self) -> &[HostState] {
        &self.states
    }

    /// The nodes in a state, as a part of any other set.
    pub(super) fn within(&self, state: usize) -> Within<'_> {
        match state {
            EMPTY => Within::Out(&self.marked),
            state => Within::In(&self.sets[state]),
        }
    }

    /// The nodes in a state, if they are listed.
    pub(super) fn set(&self, state: usize) -> Option<&NodeSet> {
        (state != EMPTY).then(|| &self.sets[state])
    }

    /// Catches up: `moved` are the hosts whose counts changed, none if that is not known.
    pub(super) fn refresh(
        &mut self,
        question: &Question<'_>,
        moved: Option<&[(NodeId, Option<Symbol>)]>,
        order: &Order,
        nodes: &Journal,
    ) {
        let cluster = question.cluster;
        match (moved, nodes.since(self.read_nodes)) {
            (Some(moved), Some(nodes)) if self.version == order.version() => {
                nodes
                    .iter()
                    .for_each(|node| self.look(*node, question, order));
                for (node, hostname) in moved {
                    self.look(*node, question, order);
                    if let Some(hostname) = *hostname {
                        let others = cluster.hosts_named(hostname, *node);
                        others.for_each(|other| self.look(other, question, order));
                    }
                }
            }
            _ => {
                let empty = HostState::empty(question.view);
                *self = Hosts {
                    version: order.version(),
                    states: vec![empty.clone()],
                    sets: vec![NodeSet::default()],
                    number_of: [(empty, EMPTY as u32)].into_iter().collect(),
                    ..Hosts::default()
                };
                cluster
                    .nodes()
                    .for_each(|node| self.look(node, question, order));
            }
        }
        self.read_nodes = nodes.end();
    }

    /// Works a host's state out anew.
    fn look(&mut self, node: NodeId, question: &Question<'_>, order: &Order) {
        let state = match cluster_node(question.cluster, node) {
            Some(there) if HostState::is_empty(there, question.class, question.view) => {
                EMPTY as u32
            }
            Some(there) => self.number(HostState::of(there, question.class, question.view)),
            None => EMPTY as u32,
        };
        let before = self.state_of.get(&node).copied().unwrap_or(EMPTY as u32);
        if state == before {
            return;
        }
        let position = order.position(node);
        if before == EMPTY as u32 {
            self.marked.insert(position, order.len());
        } else {
            self.sets[before as usize].remove(position);
        }
        if state == EMPTY as u32 {
            self.marked.remove(position);
            self.state_of.remove(&node);
        } else {
            self.sets[state as usize].insert(position, order.len());
            self.state_of.insert(node, state);
        }
    }

    fn number(&mut self, state: HostState) -> u32 {
        if let Some(number) = self.number_of.get(&state) {
            return *number;
        }
        let number = self.states.len() as u32;
        self.states.push(state.clone());
        self.sets.push(NodeSet::default());
        self.number_of.insert(state, number);
        number
    }
}

fn cluster_node(cluster: &Cluster, node: NodeId) -> Option<&Node> {
    cluster.nodes.get(node.index())?.as_ref()
}
