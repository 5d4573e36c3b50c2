//! Caches the cost of preemption on each node, for pods of one shape and priority to which other pods matter only by
//! the resources they use.
//!
//! Nodes of equal cost form a set, and sets are ordered by cost, so the choice is the first node of the first set.
//! Invariant: after [`Evictions::refresh`] each node has the cost, or the reason why preemption does not help, that a
//! trial on the model would give now; nodes for which sums of resources do not suffice are returned for a trial.

use std::collections::BTreeMap;

use super::journal::Journal;
use super::order::Order;
use super::set::{NodeSet, Restriction};
use crate::cluster::{NodeId, Question};
use crate::preempt::{Cost, Plan};
use crate::reason::{Plugin, Reason, Refusal, Tally};

/// The cached verdict of each node.
#[derive(Clone, Debug, Default)]
pub(super) struct Evictions {
    /// The version of the tie order for which the verdicts hold.
    version: u64,
    /// The version of the disruption budgets for which the verdicts hold.
    budgets: u64,
    /// The positions up to which the journals have been read.
    read_loads: u64,
    read_nodes: u64,
    /// The verdicts by node.
    slots: Vec<EvictionVerdict>,
    /// The nodes of each cost, of which the cheapest are asked for first.
    by_cost: BTreeMap<Cost, NodeSet>,
    /// The refusals with their numbers of nodes. One that no node has any more stays, because verdicts name it by its
    /// index.
    tallies: Vec<Tally>,
    /// Nodes whose verdict holds for one question only and must be computed again.
    single_use: Vec<NodeId>,
}

/// The verdict of a node about preemption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EvictionVerdict {
    /// The node does not exist, or the pod fits without preemption.
    #[default]
    Nothing,
    Cost(Cost),
    /// Preemption does not help; the index of the tally.
    Refused(usize),
}

impl Evictions {
    /// Updates the verdicts after changes. Returns the nodes that need a trial on the model, whose results
    /// [`Evictions::set`] stores.
    pub(super) fn refresh(
        &mut self,
        question: &Question<'_>,
        order: &Order,
        (loads, nodes): (&Journal, &Journal),
        budgets: u64,
    ) -> Vec<NodeId> {
        let mut left = Vec::new();
        // Budgets and the order of nodes change every verdict, so then all of them are worked out again.
        let current =
            self.version == order.version() && self.budgets == budgets && !self.slots.is_empty();
        match (loads.since(self.read_loads), nodes.since(self.read_nodes)) {
            (Some(loads), Some(nodes)) if current => {
                let single_use = std::mem::take(&mut self.single_use);
                for node in nodes.iter().chain(loads).chain(&single_use) {
                    self.rate(*node, question, order, &mut left);
                }
            }
            _ => {
                *self = Evictions {
                    version: order.version(),
                    budgets,
                    ..Evictions::default()
                };
                question
                    .cluster
                    .nodes()
                    .for_each(|node| self.rate(node, question, order, &mut left));
            }
        }
        self.read_loads = loads.end();
        self.read_nodes = nodes.end();
        left.sort_unstable();
        left.dedup();
        left
    }

    /// Returns the cheapest node; among equals the nearest to the start.
    pub(super) fn best(&self, start: u32, order: &Order) -> Option<NodeId> {
        let (_, cheapest) = self.by_cost.first_key_value()?;
        Some(order.node(cheapest.first(start, Restriction::All)?))
    }

    /// Returns the reasons why preemption does not help, with the number of nodes.
    pub(super) fn refusals(&self) -> Vec<Tally> {
        self.tallies
            .iter()
            .filter(|tally| tally.nodes > 0)
            .cloned()
            .collect()
    }

    /// Stores the result of a trial on the model: a cost, or why preemption does not help; `None` if the pod fits.
    pub(super) fn set(
        &mut self,
        node: NodeId,
        verdict: Option<Result<Cost, Refusal>>,
        order: &Order,
    ) {
        let verdict = match verdict {
            None => EvictionVerdict::Nothing,
            Some(Ok(cost)) => EvictionVerdict::Cost(cost),
            Some(Err(refusal)) => EvictionVerdict::Refused(self.tally(&refusal)),
        };
        self.change(node, verdict, order);
    }

    /// Stores a result like [`Evictions::set`], but only for the present question.
    pub(super) fn set_for_question(
        &mut self,
        node: NodeId,
        verdict: Option<Result<Cost, Refusal>>,
        order: &Order,
    ) {
        self.set(node, verdict, order);
        self.single_use.push(node);
    }

    fn rate(
        &mut self,
        node: NodeId,
        question: &Question<'_>,
        order: &Order,
        left: &mut Vec<NodeId>,
    ) {
        let cluster = question.cluster;
        if self.slots.len() <= node.index() {
            self.slots
                .resize(node.index() + 1, EvictionVerdict::Nothing);
        }
        if cluster.nodes.get(node.index()).is_none_or(Option::is_none) {
            self.change(node, EvictionVerdict::Nothing, order);
            return;
        }
        let not_helpful = |reason| Refusal::new(Plugin::DefaultPreemption, reason);
        let priority = question.class.priority;
        let nominated_pods = cluster.held_on(node, priority, "");
        let refusal = question
            .check_static(node)
            .or_else(|| question.check_room(node));
        let verdict = match refusal {
            None if nominated_pods.is_empty() => EvictionVerdict::Nothing,
            Some(refusal) if refusal.is_unresolvable() => {
                EvictionVerdict::Refused(self.tally(&not_helpful(Reason::PreemptionNotHelpful)))
            }
            refusal => {
                match cluster.plan_eviction(&question.class.shape, priority, node, &nominated_pods)
                {
                    // The node refuses the pod because of room held for nominated pods, even if its own pods leave
                    // enough.
                    Plan::Evict(cost) => EvictionVerdict::Cost(cost),
                    Plan::NoVictims if refusal.is_some() => {
                        EvictionVerdict::Refused(self.tally(&not_helpful(Reason::NoVictims)))
                    }
                    _ => {
                        left.push(node);
                        return;
                    }
                }
            }
        };
        self.change(node, verdict, order);
    }

    fn tally(&mut self, refusal: &Refusal) -> usize {
        let general = refusal.in_general();
        let known = self
            .tallies
            .iter()
            .position(|tally| tally.refusal == general);
        known.unwrap_or_else(|| {
            self.tallies.push(Tally {
                refusal: general,
                nodes: 0,
            });
            self.tallies.len() - 1
        })
    }

    fn change(&mut self, node: NodeId, after: EvictionVerdict, order: &Order) {
        let before = std::mem::replace(&mut self.slots[node.index()], after);
        if before == after {
            return;
        }
        let position = order.position(node);
        match before {
            EvictionVerdict::Nothing => {}
            EvictionVerdict::Refused(tally) => self.tallies[tally].nodes -= 1,
            EvictionVerdict::Cost(cost) => {
                if let Some(nodes) = self.by_cost.get_mut(&cost) {
                    nodes.remove(position);
                    if nodes.is_empty() {
                        self.by_cost.remove(&cost);
                    }
                }
            }
        }
        match after {
            EvictionVerdict::Nothing => {}
            EvictionVerdict::Refused(tally) => self.tallies[tally].nodes += 1,
            EvictionVerdict::Cost(cost) => self
                .by_cost
                .entry(cost)
                .or_default()
                .insert(position, order.len()),
        }
    }
}
