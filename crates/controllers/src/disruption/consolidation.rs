//! Consolidation: removes or replaces nodes that cost more than their pods need.
//!
//! The engine proposes which nodes to remove and what to buy instead. As in Karpenter, the proposal is validated 15 seconds
//! later: the engine is asked again about the proposed nodes, and only the second answer is carried out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::SignedDuration;
use kube::ResourceExt;
use mullion_api::{
    ami::Os,
    karpenter::{
        ConsolidationPolicy, DisruptionReason, NodeClaim, NodePool,
        node_claim_condition as condition,
    },
    labels,
};
use mullion_engine::{
    Unschedulable,
    disrupt::{self, Balance, Consolidation, Moves, PoolTerms, StayReason},
    explain::more_combinations,
};

use super::{
    budget,
    candidate::{Candidate, CandidateChecker},
    command::Command,
    eligible_nodes, emptiness,
    events::DisruptionEvents,
    node_counts::NodeCounts,
    protection::disruption_milli,
    score::Scale,
};
use crate::{
    nodepool,
    provisioner::{
        BY_POOL, KarpenterContext,
        demand::Demand,
        market::{Market, amounts},
        metrics::{Metric, Metrics},
        pending::is_reschedulable,
        template,
    },
};

/// The default for the saving that a move must bring, in thousandths of the price of the removed nodes.
const LEAST_SAVING: u32 = 30;
/// How long a new node takes until pods run on it, in seconds. During that time both nodes are paid for
/// (docs/simulation.md).
const BOOT_LINUX: u32 = 60;
const BOOT_WINDOWS: u32 = 360;

/// Returns the seconds until pods run on a new node of this operating system.
pub fn boot_seconds(os: Os) -> u32 {
    match os {
        Os::Linux => BOOT_LINUX,
        Os::Windows => BOOT_WINDOWS,
    }
}

/// The engine's answer, and the candidates that it was asked about.
pub(super) struct Proposal {
    candidates: BTreeMap<String, Candidate>,
    moves: Moves,
    scale: Scale,
    /// Whether the budget of a candidate's pool allows no removal now. A budget changes with time alone, so the answer may
    /// change although the cluster does not.
    pub(super) is_constrained: bool,
}

impl Proposal {
    /// Returns the names of the nodes to remove.
    pub(super) fn nodes(&self) -> BTreeSet<String> {
        let moves = self.moves.moves.iter();
        moves.flat_map(|made| made.nodes.iter().cloned()).collect()
    }

    /// Returns Karpenter's word for why nodes that were to go are not among those that go now.
    pub(super) fn rejection(&self, nodes: &[String]) -> &'static str {
        let is_asked = |node: &String| self.candidates.contains_key(node);
        let mut stays = self.moves.stays.iter();
        let is_over_budget =
            stays.any(|(node, why)| matches!(why, StayReason::Budget) && nodes.contains(node));
        if !nodes.iter().all(is_asked) {
            "churn"
        } else if is_over_budget {
            "budget"
        } else {
            "scheduling"
        }
    }

    /// Sets the metrics that count the candidates that stay, by reason.
    pub(super) fn count_refused(&self, metrics: &Metrics) {
        metrics.clear(Metric::Refused);
        let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, why) in &self.moves.stays {
            let why = match why {
                StayReason::Budget => "budget",
                StayReason::PodStuck { .. } | StayReason::MoreCombinations { .. } => {
                    "pod_without_a_place"
                }
                StayReason::NoneCheaper => "none_cheaper",
                StayReason::SpotToSpot => "spot_to_spot",
                StayReason::NotWorthIt => "not_worth_it",
            };
            *refused.entry(why).or_default() += 1;
        }
        for (reason, count) in refused {
            metrics.set(Metric::Refused, &[("reason", reason)], count as f64);
        }
    }

    /// Takes the prices and totals from which the scores of the commands are computed.
    pub(super) fn take_scale(&mut self) -> Scale {
        std::mem::take(&mut self.scale)
    }

    /// Returns the commands to carry out: one for all nodes that need no replacement, and one for each set that is replaced.
    pub(super) fn into_commands(self) -> Vec<Command> {
        let mut commands: Vec<Command> = Vec::new();
        for made in self.moves.moves {
            let candidates = made.nodes.iter();
            let candidates: Vec<Candidate> = candidates
                .filter_map(|node| self.candidates.get(node).cloned())
                .collect();
            let destinations = made.existing.into_iter().map(|(_, node)| node);
            let command = Command {
                reason: DisruptionReason::Underutilized,
                candidates,
                destinations: destinations.collect::<BTreeSet<_>>().into_iter().collect(),
                replacements: made.replacements,
                saving: made.saving_micro_usd,
            };
            // Karpenter deletes all nodes that need no replacement in one command, so their events name all
            // of them.
            match commands.first_mut() {
                Some(first) if first.replacements.is_empty() && command.replacements.is_empty() => {
                    first.candidates.extend(command.candidates);
                    first.destinations.extend(command.destinations);
                    first.saving += command.saving;
                }
                _ => commands.push(command),
            }
        }
        commands
    }

    /// Records events on the candidates that stay, with the reason.
    pub(super) fn record_events(
        &self,
        karpenter: &KarpenterContext,
        events: &mut DisruptionEvents,
    ) {
        for (node, stays) in &self.moves.stays {
            let text = |why: &Unschedulable| {
                karpenter
                    .state
                    .with(|state| state.cluster_mut().message(why))
            };
            let (Some(own), Some(why)) = (self.candidates.get(node), message(stays, text)) else {
                continue;
            };
            events.unconsolidatable(&own.node, &own.claim, &why);
        }
    }
}

/// Returns why a candidate stays, with Karpenter's message where it has one; `text` renders what keeps a pod from every
/// node. `None` if only the pool's budget is the reason, which the pool's own event reports.
pub fn message(stays: &StayReason, text: impl Fn(&Unschedulable) -> String) -> Option<String> {
    Some(match stays {
        StayReason::Budget => return None,
        StayReason::NoneCheaper => "Can't replace with a cheaper node".to_owned(),
        StayReason::NotWorthIt => "The saving is too small for the disruption".to_owned(),
        StayReason::SpotToSpot => {
            "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node"
                .to_owned()
        }
        StayReason::PodStuck { pod, why } => {
            format!("Not all pods would schedule, {pod} => {}", text(why))
        }
        StayReason::MoreCombinations { pod, tried } => {
            format!(
                "Not all pods would schedule, {pod} => {}",
                more_combinations(*tried)
            )
        }
    })
}

/// Asks the engine which nodes to remove, among those of `only` or all; `None` if there is no candidate.
///
/// # Errors
/// Returns an error if a node or pool offers an invalid amount.
pub(super) async fn propose(
    karpenter: &KarpenterContext,
    only: Option<&BTreeSet<String>>,
    events: &mut DisruptionEvents,
) -> Result<Option<Proposal>, mullion_engine::ModelError> {
    let checker = CandidateChecker::new(karpenter);
    let mut found: Vec<Candidate> = Vec::new();
    for pool in karpenter.pools.list() {
        let claims = karpenter.claims.by_index(BY_POOL, &pool.name_any());
        for claim in claims {
            let candidate = candidate(&checker, karpenter, &claim, &pool, events);
            let is_asked =
                |own: &Candidate| only.is_none_or(|only| only.contains(&own.node.name_any()));
            found.extend(candidate.filter(is_asked));
        }
    }
    if only.is_none() {
        eligible_nodes(karpenter, DisruptionReason::Underutilized, found.len());
    }
    if found.is_empty() {
        return Ok(None);
    }
    let demand = Demand::of_all(karpenter).await;
    let mut candidates = BTreeMap::new();
    let mut asked = Vec::with_capacity(found.len());
    for candidate in found {
        let own = priced(
            &candidate.claim,
            &candidate.node.name_any(),
            &candidate.pool,
            candidate.disruption_milli,
            demand.markets().of_claim(&candidate.claim),
        );
        match own {
            Ok(own) => {
                asked.push(own);
                candidates.insert(candidate.node.name_any(), candidate);
            }
            Err(why) => {
                events.unconsolidatable(&candidate.node, &candidate.claim, &why.to_string());
            }
        }
    }
    let pools = terms(karpenter, &demand, &candidates, events);
    let is_closed = |own: &Candidate| {
        let terms = pools.get(&own.pool.name_any());
        terms.is_some_and(|terms| terms.budget == 0)
    };
    // A budget opens again by its schedule, without any change that could wake consolidation.
    let is_constrained = candidates.values().any(is_closed);
    let mut question = demand.into_consolidation();
    question.candidates = asked;
    question.pools = pools;
    question.closed = closed(karpenter);
    let moves = ask(karpenter, &question)?;
    let prices = question.candidates.into_iter();
    let balances = question.pools.into_iter();
    let scale = Scale {
        prices: prices.map(|own| (own.node, own.price_micro_usd)).collect(),
        balances: balances
            .filter_map(|(pool, terms)| Some((pool, terms.balance?)))
            .collect(),
    };
    Ok(Some(Proposal {
        candidates,
        moves,
        scale,
        is_constrained,
    }))
}

fn ask(
    karpenter: &KarpenterContext,
    question: &Consolidation,
) -> Result<Moves, mullion_engine::ModelError> {
    karpenter
        .state
        .with(|state| state.cluster_mut().consolidate(question))
}

/// Returns the node of a claim as a candidate if consolidation may consider it (Karpenter core:
/// `consolidation.ShouldDisrupt`).
fn candidate(
    checker: &CandidateChecker<'_>,
    karpenter: &KarpenterContext,
    claim: &Arc<NodeClaim>,
    pool: &Arc<NodePool>,
    events: &mut DisruptionEvents,
) -> Option<Candidate> {
    // A static pool keeps its number of nodes whatever they cost.
    if pool.spec.replicas.is_some() {
        return None;
    }
    let candidate = checker.candidate(claim, pool, false, events)?;
    // A node that holds chunks of CapacityBuffers is not empty: its chunks have to be moved like pods.
    let is_empty = candidate.is_empty() && karpenter.held_for_chunks(claim).is_none();
    if let Some(why) = refusal(pool, is_empty) {
        events.unconsolidatable(&candidate.node, &candidate.claim, &why);
        return None;
    }
    // Empty nodes go by the method for emptiness, which has budgets of its own.
    if is_empty {
        return None;
    }
    // Nodes whose last command failed rest, or each pass would taint and free them again.
    let may = claim.is(condition::CONSOLIDATABLE)
        && !karpenter
            .disrupting
            .is_backing_off(&candidate.node.name_any());
    may.then_some(candidate)
}

/// Returns Karpenter's message why a pool does not let consolidation remove its nodes; `None` if it does.
pub fn refusal(pool: &NodePool, is_empty: bool) -> Option<String> {
    let disruption = &pool.spec.disruption;
    let name = pool.name_any();
    if disruption.consolidate_after.duration().is_none() {
        Some(format!("NodePool {name:?} has consolidation disabled"))
    } else if !is_empty && disruption.consolidation_policy == ConsolidationPolicy::WhenEmpty {
        Some(format!(
            "NodePool {name:?} has consolidation policy WhenEmpty, but node is not empty"
        ))
    } else {
        None
    }
}

/// The price of a node is unknown, because no machine of its instance type can be bought.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Instance Type {0:?} not found")]
pub struct UnknownPrice(String);

/// Returns a claim's node as the engine's candidate; `disruption_milli` is the disruption that its removal causes.
///
/// # Errors
/// Returns an error if the node's price is unknown.
pub fn priced(
    claim: &NodeClaim,
    node: &str,
    pool: &NodePool,
    disruption_milli: u64,
    market: Option<&Market>,
) -> Result<disrupt::Candidate, UnknownPrice> {
    let label = |key: &str| claim.label(key).unwrap_or_default();
    let price = price(claim, pool, market);
    let status = claim.status.as_ref();
    Ok(disrupt::Candidate {
        node: node.to_owned(),
        pool: pool.name_any(),
        price_micro_usd: price
            .ok_or_else(|| UnknownPrice(label(labels::INSTANCE_TYPE).to_owned()))?,
        capacity: status
            .map(|status| amounts(&status.capacity))
            .unwrap_or_default(),
        disruption_milli,
        is_spot: label(labels::CAPACITY_TYPE) == labels::SPOT,
    })
}

/// Returns the price of a claim's node in micro-dollars per hour; `None` if it is unknown.
pub fn price(claim: &NodeClaim, pool: &NodePool, market: Option<&Market>) -> Option<u64> {
    let label = |key: &str| claim.label(key).unwrap_or_default();
    let market = market?;
    let machine = market.price(
        label(labels::INSTANCE_TYPE),
        label(labels::ZONE),
        label(labels::CAPACITY_TYPE),
    );
    Some(machine? + template::node_price(pool, market))
}

/// Returns the terms on which nodes of each pool may be removed.
fn terms(
    karpenter: &KarpenterContext,
    demand: &Demand,
    candidates: &BTreeMap<String, Candidate>,
    events: &mut DisruptionEvents,
) -> BTreeMap<String, PoolTerms> {
    let now = karpenter.base.clock.now();
    let mut terms = BTreeMap::new();
    for pool in karpenter.pools.list() {
        let name = pool.name_any();
        let claims = karpenter.claims.by_index(BY_POOL, &name);
        let counted = NodeCounts::of(karpenter, &claims);
        let reason = DisruptionReason::Underutilized;
        let allowed = budget::allowed(&pool, reason, counted.nodes, now);
        if allowed == 0
            && counted.nodes > 0
            && candidates.values().any(|own| own.pool.name_any() == name)
        {
            events.pool_blocked(&pool, reason.as_str());
        }
        let market = demand.markets().of_pool(&pool);
        let room = allowed.saturating_sub(counted.disrupted);
        let all = || balance(karpenter, &pool, &claims, market);
        terms.insert(name, pool_terms(&pool, room, market, all));
    }
    terms
}

/// Returns the terms on which nodes of a pool may be removed. `budget` is the number that may be removed now, `all` gives
/// the totals of the pool's nodes.
pub fn pool_terms(
    pool: &NodePool,
    budget: usize,
    market: Option<&Market>,
    all: impl FnOnce() -> Balance,
) -> PoolTerms {
    let policy = pool.spec.disruption.consolidation_policy;
    PoolTerms {
        budget,
        least_saving_per_mille: least_saving(pool),
        boot_seconds: boot_seconds(market.map_or(Os::Linux, Market::os)),
        balance: (policy == ConsolidationPolicy::Balanced).then(all),
    }
}

/// Returns the saving that a move must bring, in thousandths of the price of the removed nodes.
fn least_saving(pool: &NodePool) -> u32 {
    let saving = nodepool::terms::least_saving(pool).ok().flatten();
    saving.unwrap_or(LEAST_SAVING)
}

/// Returns the total price and disruption of a pool's nodes.
fn balance(
    karpenter: &KarpenterContext,
    pool: &NodePool,
    claims: &[Arc<NodeClaim>],
    market: Option<&Market>,
) -> Balance {
    let mut all = Balance::default();
    for claim in claims {
        let Some(node) = karpenter.node_of(claim) else {
            continue;
        };
        let pods = karpenter.pods_on(&node.name_any());
        let moving = pods.iter().filter(|pod| is_reschedulable(pod));
        // A node of a type that is no longer sold has no price, but its pods still count as disruption.
        all.price_micro_usd += price(claim, pool, market).unwrap_or(0);
        all.disruption_milli += disruption_milli(moving.map(|pod| &**pod));
    }
    all
}

/// Returns the names of nodes that must not receive moved pods: those that are not initialized, and those whose pods changed
/// within the pool's `consolidateAfter` (Karpenter core: `IsUnderConsolidateAfter`).
fn closed(karpenter: &KarpenterContext) -> Vec<String> {
    let now = karpenter.base.clock.now();
    let mut closed = Vec::new();
    for claim in karpenter.claims.list() {
        let Some(node) = karpenter.node_of(&claim) else {
            continue;
        };
        let pool = claim
            .node_pool()
            .and_then(|pool| karpenter.pools.get("", pool));
        let is_young = || {
            let due = pool.and_then(|pool| emptiness::due_in(&claim, &pool, now));
            due.is_some_and(|due| due > SignedDuration::ZERO)
        };
        // A node within `consolidateAfter` is still being filled or emptied; moving pods there would restart
        // its timer.
        if !claim.is(condition::INITIALIZED) || is_young() {
            closed.push(node.name_any());
        }
    }
    closed
}
