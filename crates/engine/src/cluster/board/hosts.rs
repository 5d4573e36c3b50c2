//! The hosts that matter to the classes of pods that share a view: those with pods of these classes, or with pods that have
//! affinity or anti-affinity about them.
//!
//! Most hosts have no such pods and share the empty state. The others are grouped into sets of equal state, of which
//! there are few, so that a decision looks at sets instead of hosts. Invariant: after [`Hosts::refresh`] a node is
//! in the set of the state that the [`View`] gives it now, or in no set if that is the empty state.

use rustc_hash::FxHashMap;

use super::journal::Journal;
use super::order::Order;
use super::set::{NodeSet, Restriction};
use crate::class::PodClass;
use crate::cluster::{Cluster, Node, NodeId, Question};
use crate::intern::Symbol;
use crate::topology::{SpreadCounts, View};

/// With more states than this, checking them costs as much as checking nodes.
const MAX_STATES: usize = 512;

/// The index of the empty state.
pub(super) const EMPTY: usize = 0;

/// The states of hosts for one class, and the nodes in each.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    version: u64,
    read_nodes: u64,
    states: Vec<HostState>,
    /// The nodes in each state; none for the empty state.
    sets: Vec<NodeSet>,
    /// The nodes that are in any of the sets.
    marked: NodeSet,
    state_of: FxHashMap<NodeId, u32>,
    number_of: FxHashMap<HostState, u32>,
}

/// The facts about a single host that matter to a class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HostState {
    /// Whether the node has a hostname label.
    pub(super) labelled: bool,
    /// Whether it has pods that match the class's required affinity.
    pub(super) near: bool,
    /// Whether it has pods that match the class's required anti-affinity.
    pub(super) apart: bool,
    /// Whether it has pods whose required anti-affinity matches the class.
    pub(super) kept_away: bool,
    /// The sum of the weights of preferred terms.
    pub(super) weight: i64,
    /// The number of matching pods for each spread rule over hosts, hard rules before soft ones.
    pub(super) pods: Box<[i64]>,
}

impl HostState {
    fn empty(view: &View) -> Self {
        HostState {
            // Nearly all nodes have the hostname label, so the state without one is the exception.
            labelled: true,
            near: false,
            apart: false,
            kept_away: false,
            weight: 0,
            pods: host_rules(view).map(|_| 0).collect(),
        }
    }

    /// Returns whether a host has the empty state, without building the state.
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
                // kube-scheduler counts hard constraints by the label and soft ones over hosts by the node itself.
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

/// Returns the spread rules over hosts, hard ones before soft ones.
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
    /// Returns whether using the states is faster than checking every node.
    pub(super) fn is_useful(&self) -> bool {
        self.states.len() <= MAX_STATES
    }

    /// Returns the states, the empty one first.
    pub(super) fn states(&self) -> &[HostState] {
        &self.states
    }

    /// Returns the nodes in a state, to be intersected with another set.
    pub(super) fn within(&self, state: usize) -> Restriction<'_> {
        match state {
            EMPTY => Restriction::Out(&self.marked),
            state => Restriction::In(&self.sets[state]),
        }
    }

    /// Returns the nodes in a state; `None` for the empty state, whose nodes are not listed.
    pub(super) fn set(&self, state: usize) -> Option<&NodeSet> {
        (state != EMPTY).then(|| &self.sets[state])
    }

    /// Updates the states after changes. `changed_hosts` are the hosts whose counts changed; `None` if that is unknown.
    pub(super) fn refresh(
        &mut self,
        question: &Question<'_>,
        changed_hosts: Option<&[(NodeId, Option<Symbol>)]>,
        order: &Order,
        nodes: &Journal,
    ) {
        let cluster = question.cluster;
        match (changed_hosts, nodes.since(self.read_nodes)) {
            (Some(changed_hosts), Some(nodes)) if self.version == order.version() => {
                nodes
                    .iter()
                    .for_each(|node| self.look(*node, question, order));
                for (node, hostname) in changed_hosts {
                    self.look(*node, question, order);
                    if let Some(hostname) = *hostname {
                        // Counts are kept by hostname label, so they changed for every node with the same label.
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

    /// Computes the state of a host anew.
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
        // `marked` is every node that is not in the empty state, so that the empty state needs no list of its own.
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
