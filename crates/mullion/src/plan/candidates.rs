//! Selects the nodes that consolidation may remove, and says why the other nodes stay, by the rules of [`mullion_controllers::disruption`].
//!
//! The controllers apply those rules to watched objects; this module applies them to the objects of one moment. Commands that the
//! controllers carry out at the moment are not visible here, only their effects: the taint on the node and the deletion of its NodeClaim.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::ResourceExt;
use mullion_api::karpenter::{
    DisruptionReason, NodeClaim, NodePool, node_claim_condition as condition,
};
use mullion_controllers::{
    disruption::{
        budget,
        candidate::{LEAVING, held},
        consolidation::{UnknownPrice, pool_terms, price, priced, refusal},
        emptiness,
        protection::{Budgets, disruption_milli},
    },
    nodeclaim::drain::disrupted_taint,
    provisioner::{market::Market, markets::Markets, pending::is_reschedulable},
};
use mullion_engine::disrupt::{Balance, Candidate, PoolTerms};

use super::drain::Drain;
use crate::{failure::Failure, up, why::state::State};

/// The objects that decide which nodes may be removed.
pub(super) struct Objects {
    pools: Vec<NodePool>,
    claims: Vec<NodeClaim>,
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<String, Vec<Pod>>,
    budgets: Budgets,
    now: Timestamp,
}

/// The input for consolidation that [`Objects::find`] collects.
#[derive(Default)]
pub(super) struct ConsolidationInput {
    pub(super) candidates: Vec<Candidate>,
    pub(super) terms: BTreeMap<String, PoolTerms>,
    /// Nodes that must not get any pods from other nodes.
    pub(super) closed: Vec<String>,
    /// Nodes that are not candidates, each with the reason.
    pub(super) stays: Vec<(String, String)>,
}

/// The reason why a node is not a candidate.
#[derive(Debug)]
enum Stays {
    /// A command of the controllers removes the node.
    Leaving,
    /// The node, a pod on it or the policy of its pool forbids the removal; the controllers say why.
    Held(String),
    /// The pool has a fixed number of nodes.
    Fixed(String),
    /// The pods of the node changed within `consolidateAfter` of the pool.
    Young { seconds: u64, pool: String },
    /// The price of the node is unknown.
    Price(UnknownPrice),
}

impl fmt::Display for Stays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stays::Leaving => f.write_str(LEAVING),
            Stays::Held(why) => f.write_str(why),
            Stays::Fixed(pool) => write!(f, "NodePool {pool:?} has a fixed number of nodes"),
            Stays::Young { seconds, pool } => write!(
                f,
                "pods came or went within the {seconds} s of consolidateAfter of NodePool {pool:?}"
            ),
            Stays::Price(why) => write!(f, "{why}"),
        }
    }
}

impl Objects {
    /// Reads the objects from a state that keeps nodes and pods unabridged ([`State::keeping`]).
    ///
    /// # Errors
    /// One of the objects is malformed.
    pub(super) fn of(state: &State, now: Timestamp) -> Result<Self, Failure> {
        let nodes: Vec<Node> = state.kept("Node").map_err(Failure::input)?;
        let all: Vec<Pod> = state.kept("Pod").map_err(Failure::input)?;
        let budgets: Vec<PodDisruptionBudget> =
            state.kept("PodDisruptionBudget").map_err(Failure::input)?;
        let mut pods: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
        for pod in all {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            if let Some(node) = node {
                pods.entry(node).or_default().push(pod);
            }
        }
        Ok(Objects {
            pools: state.kept("NodePool").map_err(Failure::input)?,
            claims: state.kept("NodeClaim").map_err(Failure::input)?,
            nodes: nodes
                .into_iter()
                .map(|node| (node.name_any(), node))
                .collect(),
            pods,
            budgets: Budgets::of(budgets.iter()),
            now,
        })
    }

    /// Returns why the pods on a node forbid its removal now (PodDisruptionBudgets, for example), worded as Karpenter words it; `None` if
    /// they allow it.
    pub(super) fn held_by(&self, node: &str) -> Option<String> {
        self.budgets.refusal(self.on(node).iter(), self.now)
    }

    /// Returns what keeps pods on a node that is being emptied, or that would be.
    pub(super) fn drain(&self, node: &str) -> Drain {
        let claim = self.claim_of(node);
        let is_leaving = self
            .nodes
            .get(node)
            .is_some_and(|node| is_leaving(claim, node));
        Drain::of(self.on(node), &self.budgets, claim, is_leaving, self.now)
    }

    /// Returns the nodes that are being removed already.
    pub(super) fn leaving(&self) -> BTreeSet<&String> {
        let by_claims = self.claims.iter().filter_map(|claim| {
            let (name, node) = self.nodes.get_key_value(claim.node_name()?)?;
            is_leaving(Some(claim), node).then_some(name)
        });
        let by_nodes = self.nodes.iter().filter(|(_, node)| is_leaving(None, node));
        by_claims.chain(by_nodes.map(|(name, _)| name)).collect()
    }

    fn claim_of(&self, node: &str) -> Option<&NodeClaim> {
        let mut claims = self.claims.iter();
        claims.find(|claim| claim.node_name() == Some(node))
    }

    /// Checks every node and returns the candidates, the terms of the pools, and the nodes that stay with their reasons.
    /// `hosts` are the nodes that keep room for chunks of CapacityBuffers, so they are not empty.
    pub(super) fn find(&self, markets: &Markets, hosts: &BTreeSet<String>) -> ConsolidationInput {
        let mut found = ConsolidationInput::default();
        let mut managed = Vec::new();
        for claim in &self.claims {
            let Some(node) = self.node_of(claim) else {
                continue;
            };
            let name = node.name_any();
            managed.push(name.clone());
            let pool = self.pool_of(claim);
            let is_young = pool.is_some_and(|pool| self.is_young(claim, pool));
            // A node within `consolidateAfter` is still being filled or emptied, and moved pods would restart
            // its timer (Karpenter core: `IsUnderConsolidateAfter`).
            if !claim.is(condition::INITIALIZED) || is_young {
                found.closed.push(name.clone());
            }
            let Some(pool) = pool else {
                let why = if is_leaving(Some(claim), node) {
                    LEAVING
                } else {
                    "its NodePool is not there"
                };
                found.stays.push((name, why.to_owned()));
                continue;
            };
            let market = markets.of_claim(claim);
            match self.judge(claim, node, pool, market, hosts.contains(&name)) {
                Ok(candidate) => found.candidates.push(candidate),
                Err(why) => found.stays.push((name, why.to_string())),
            }
        }
        for name in self.nodes.keys().filter(|name| !managed.contains(name)) {
            let why = "no NodePool bought it".to_owned();
            found.stays.push((name.clone(), why));
        }
        for pool in &self.pools {
            let market = markets.of_pool(pool);
            found
                .terms
                .insert(pool.name_any(), self.terms(pool, market));
        }
        found
    }

    fn node_of(&self, claim: &NodeClaim) -> Option<&Node> {
        self.nodes.get(claim.node_name()?)
    }

    fn pool_of(&self, claim: &NodeClaim) -> Option<&NodePool> {
        let name = claim.node_pool()?;
        self.pools.iter().find(|pool| pool.name_any() == name)
    }

    fn on(&self, node: &str) -> &[Pod] {
        self.pods.get(node).map_or(&[], Vec::as_slice)
    }

    /// Returns whether pods were added to the node or removed from it within the pool's `consolidateAfter`.
    fn is_young(&self, claim: &NodeClaim, pool: &NodePool) -> bool {
        let due = emptiness::due_in(claim, pool, self.now);
        due.is_some_and(|due| due > SignedDuration::ZERO)
    }

    /// Returns the node of a claim as a candidate, or the reason why it is not one (Karpenter core: `ValidateNodeDisruptable`,
    /// `ShouldDisrupt`).
    fn judge(
        &self,
        claim: &NodeClaim,
        node: &Node,
        pool: &NodePool,
        market: Option<&Market>,
        holds_chunks: bool,
    ) -> Result<Candidate, Stays> {
        let name = node.name_any();
        // A node with the taint is being removed by a command of the controllers.
        if is_leaving(Some(claim), node) {
            return Err(Stays::Leaving);
        }
        if let Some(why) = held(claim, node, false).or_else(|| self.held_by(&name)) {
            return Err(Stays::Held(why));
        }
        if pool.spec.replicas.is_some() {
            return Err(Stays::Fixed(pool.name_any()));
        }
        let on_it = || self.on(&name).iter();
        if let Some(why) = refusal(pool, !holds_chunks && emptiness::is_empty(on_it())) {
            return Err(Stays::Held(why));
        }
        if self.is_young(claim, pool) {
            let after = pool.spec.disruption.consolidate_after.duration();
            return Err(Stays::Young {
                seconds: after.unwrap_or_default().as_secs(),
                pool: pool.name_any(),
            });
        }
        let disruption_milli = disruption_milli(on_it().filter(|pod| is_reschedulable(pod)));
        priced(claim, &name, pool, disruption_milli, market).map_err(Stays::Price)
    }

    /// Returns the terms for removing nodes of a pool: how many more its disruption budgets allow, and the pool's total price and
    /// disruption cost.
    fn terms(&self, pool: &NodePool, market: Option<&Market>) -> PoolTerms {
        let name = pool.name_any();
        let own = |claim: &&NodeClaim| claim.node_pool() == Some(name.as_str());
        let (mut nodes, mut disrupted) = (0, 0);
        let mut all = Balance::default();
        for claim in self.claims.iter().filter(own) {
            let Some(node) = self.node_of(claim) else {
                continue;
            };
            all.price_micro_usd += price(claim, pool, market).unwrap_or(0);
            let pods = self.on(&node.name_any()).iter();
            all.disruption_milli += disruption_milli(pods.filter(|pod| is_reschedulable(pod)));
            // Budgets are shares of the nodes that work (Karpenter core: `BuildDisruptionBudgetMapping`): a
            // node that is not ready counts as disrupted already, so that a broken pool is not shrunk
            // further.
            if claim.is(condition::INITIALIZED) && !claim.is(condition::INSTANCE_TERMINATING) {
                nodes += 1;
                let goes = is_leaving(Some(claim), node);
                disrupted += usize::from(goes || !up::nodes::is_ready(node));
            }
        }
        let allowed = budget::allowed(pool, DisruptionReason::Underutilized, nodes, self.now);
        pool_terms(pool, allowed.saturating_sub(disrupted), market, || all)
    }
}

/// Returns whether a node is already being removed: the claim or the node is being deleted, or the node has the taint of disruption.
fn is_leaving(claim: Option<&NodeClaim>, node: &Node) -> bool {
    let taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    let mut keys = taints.map(|taint| &taint.key);
    claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some())
        || node.metadata.deletion_timestamp.is_some()
        || keys.any(|key| *key == disrupted_taint().key)
}
