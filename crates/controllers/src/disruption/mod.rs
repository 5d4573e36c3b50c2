//! Removing nodes that are no longer needed, no longer what was asked for, or dearer than they need be.
//!
//! Every ten seconds, and when a node is about to be empty long enough, the methods are tried in Karpenter's order until one acts: [`emptiness`],
//! [`drift`] (static pools first), [`consolidation`]; claims whose time is over ([`expiration`]) go beside them, without budgets. What may go is bounded by
//! [`budget`]s, whose windows follow a schedule, and held back by pods ([`protection`]); a [`command`] carries it out: taint first, so that
//! no pod lands there meanwhile, then what replaces the node, and at last the claim is deleted, so that [`crate::nodeclaim`] drains and ends it.
//!
//! Invariant: nothing that matters is remembered; a decision that was not carried out is made again.

pub mod budget;
pub mod candidate;
mod changes;
mod command;
pub mod consolidation;
mod disrupting;
pub mod drift;
pub mod emptiness;
mod events;
mod expiration;
mod node_counts;
pub mod protection;
mod score;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::karpenter::{
    DisruptionReason, NodeClaim, NodePool, node_claim_condition as condition,
};
use serde_json::json;
use tokio::time::sleep;

pub use self::disrupting::Disrupting;
use self::{
    candidate::CandidateChecker, changes::Changes, command::Command, consolidation::Proposal,
    events::DisruptionEvents, node_counts::NodeCounts,
};
use crate::{
    api_error,
    provisioner::{
        BY_POOL, KarpenterContext, conditions::Conditions, markets::Markets, metrics::Metric,
    },
    static_pools::{Census, planned},
};

const CONTROLLER: &str = "disruption";
/// The interval between two searches for nodes to disrupt.
const POLL: Duration = Duration::from_secs(10);
/// Consolidation is decided twice, so far apart (core: `commandValidationDelay`).
const VALIDATION: Duration = Duration::from_secs(15);

/// Starts the loop.
pub(crate) fn start(karpenter: &KarpenterContext) {
    let mut disruption = Disruption {
        changes: Changes::watch(karpenter),
        marker: drift::Marker::default(),
        events: DisruptionEvents::new(karpenter.recorder.clone()),
        karpenter: karpenter.clone(),
    };
    let run = async move {
        if !disruption.karpenter.synced().await {
            return;
        }
        loop {
            let next = match disruption.pass().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::debug!(%error, "disruption failed, will retry");
                    POLL
                }
            };
            // A node that stays due, because a budget blocks it, must not make the loop spin.
            sleep(next.clamp(Duration::from_millis(100), POLL)).await;
        }
    };
    let shutdown = karpenter.base.shutdown.clone();
    karpenter.base.tasks.spawn(async move {
        shutdown.run_until_cancelled(run).await;
    });
}

struct Disruption {
    karpenter: KarpenterContext,
    changes: Changes,
    marker: drift::Marker,
    events: DisruptionEvents,
}

impl Disruption {
    /// Looks at everything once; one method acts at most. Returns when the next node may be due.
    async fn pass(&mut self) -> kube::Result<Duration> {
        let karpenter = self.karpenter.clone();
        // Taints left by a process that ended go first: those nodes may take pods again, as this pass
        // decides.
        command::remove_stale_taints(&karpenter).await?;
        self.count_budgets();
        self.count_costs().await;
        let expires = expiration::pass(&karpenter).await?;
        // Drift is marked in every pass, even when an earlier method acts, since users read the condition.
        self.marker.mark(&karpenter).await?;
        let began = karpenter.base.clock.now();
        // Karpenter's order: the cheapest disruption first, and one method per pass, so that the next one
        // sees its result.
        let (mut acted, empty) = self.remove_empty().await?;
        self.evaluated(began, DisruptionReason::Empty, "empty");
        if !acted {
            let began = karpenter.base.clock.now();
            acted = self.replace_drifted_static().await? || self.replace_drifted().await?;
            self.evaluated(began, DisruptionReason::Drifted, "");
        }
        if !acted {
            let began = karpenter.base.clock.now();
            self.consolidate().await?;
            self.evaluated(began, DisruptionReason::Underutilized, "multi");
        }
        Ok(empty.min(expires))
    }

    /// Observes how long a method took to decide, in the metrics.
    fn evaluated(&self, began: Timestamp, reason: DisruptionReason, kind: &str) {
        let took = self.karpenter.base.clock.now().duration_since(began);
        let reason = reason.as_str().to_lowercase();
        let labels = [("reason", reason.as_str()), ("consolidation_type", kind)];
        self.karpenter
            .metrics
            .observe(Metric::Evaluation, &labels, took.as_secs_f64());
    }

    /// Sets the metric for the price of each pool's nodes, in US dollars per hour.
    async fn count_costs(&self) {
        let karpenter = &self.karpenter;
        let pools = karpenter.pools.list();
        let markets = if pools.is_empty() {
            Markets::default()
        } else {
            Markets::now(karpenter).await
        };
        karpenter.metrics.clear(Metric::Cost);
        for pool in pools {
            let name = pool.name_any();
            let claims = karpenter.claims.by_index(BY_POOL, &name);
            let launched = claims.iter().filter(|claim| claim.is(condition::LAUNCHED));
            let prices = launched
                .filter_map(|claim| consolidation::price(claim, &pool, markets.of_claim(claim)));
            let dollars = prices.sum::<u64>() as f64 / 1e6;
            let labels = [("nodepool", name.as_str())];
            karpenter.metrics.set(Metric::Cost, &labels, dollars);
        }
    }

    /// Removes empty nodes. Returns whether some went, and when the next one may be due.
    async fn remove_empty(&mut self) -> kube::Result<(bool, Duration)> {
        let karpenter = self.karpenter.clone();
        let (mut next, mut acted, mut eligible) = (POLL, false, 0);
        let checker = CandidateChecker::new(&karpenter);
        for pool in karpenter.pools.list() {
            // A static pool keeps its nodes, empty or not.
            if pool.spec.replicas.is_some() {
                continue;
            }
            let claims = karpenter.claims.by_index(BY_POOL, &pool.name_any());
            let mut candidates = Vec::new();
            for claim in &claims {
                let now = karpenter.base.clock.now();
                let going = claim.metadata.deletion_timestamp.is_some();
                let Some(wait) = emptiness::due_in(claim, &pool, now).filter(|_| !going) else {
                    continue;
                };
                // Nodes with pods are marked too: consolidation considers only claims with this condition.
                mark_consolidatable(&karpenter, claim, wait.is_zero()).await?;
                let node = karpenter.node_of(claim);
                let pods = node.map(|node| karpenter.pods_on(&node.name_any()));
                let mut on_node = pods.iter().flatten().map(|pod| &**pod);
                if !emptiness::is_empty(&mut on_node) {
                    continue;
                }
                if let Some(node) = karpenter.held_for_chunks(claim) {
                    let why = format!("Node {:?} has buffer pods", node.name_any());
                    self.events.unconsolidatable(&node, claim, &why);
                    continue;
                }
                if wait.is_zero() {
                    candidates.extend(checker.candidate(claim, &pool, false, &mut self.events))
                } else {
                    next = next.min(wait.unsigned_abs())
                }
            }
            eligible += candidates.len();
            if candidates.is_empty() {
                continue;
            }
            let room = self.room(&pool, &claims, DisruptionReason::Empty);
            // Counted as eligible before the budgets, as upstream's metric counts them.
            candidates.truncate(room);
            if !candidates.is_empty() {
                acted = true;
                let command = Command {
                    reason: DisruptionReason::Empty,
                    candidates,
                    replacements: Vec::new(),
                    destinations: Vec::new(),
                    saving: 0,
                };
                command::start(&karpenter, command).await?;
            }
        }
        eligible_nodes(&karpenter, DisruptionReason::Empty, eligible);
        Ok((acted, next))
    }

    /// Sets the metrics for how many nodes the budgets allow to be disrupted, and how many are.
    fn count_budgets(&self) {
        let metrics = &self.karpenter.metrics;
        let now = self.karpenter.base.clock.now();
        metrics.clear(Metric::AllowedDisruptions);
        metrics.clear(Metric::NodesConsumingBudgets);
        for pool in self.karpenter.pools.list() {
            let name = pool.name_any();
            let claims = self.karpenter.claims.by_index(BY_POOL, &name);
            let counted = NodeCounts::of(&self.karpenter, &claims);
            for reason in [
                DisruptionReason::Empty,
                DisruptionReason::Drifted,
                DisruptionReason::Underutilized,
            ] {
                let allowed = budget::allowed(&pool, reason, counted.nodes, now);
                // Where there is no budget Karpenter says the largest number that it has.
                let allowed = allowed.min(i32::MAX as usize);
                let labels = [("nodepool", name.as_str()), ("reason", reason.as_str())];
                metrics.set(Metric::AllowedDisruptions, &labels, allowed as f64);
                let disrupted = counted.disrupted as f64;
                metrics.set(Metric::NodesConsumingBudgets, &labels, disrupted);
            }
        }
    }

    /// Returns how many more nodes of a pool may be removed now; records an event on the pool if its budgets allow
    /// none.
    fn room(
        &mut self,
        pool: &NodePool,
        claims: &[Arc<NodeClaim>],
        reason: DisruptionReason,
    ) -> usize {
        let counted = NodeCounts::of(&self.karpenter, claims);
        let now = self.karpenter.base.clock.now();
        let allowed = budget::allowed(pool, reason, counted.nodes, now);
        if allowed == 0 {
            self.events.pool_blocked(pool, reason.as_str());
        }
        allowed.saturating_sub(counted.disrupted)
    }

    /// Replaces drifted nodes of static pools one for one, as many as budgets and limits allow. Returns whether any is
    /// replaced.
    async fn replace_drifted_static(&mut self) -> kube::Result<bool> {
        let karpenter = self.karpenter.clone();
        let mut acted = false;
        for pool in karpenter.pools.list() {
            let Some(replicas) = pool.spec.replicas else {
                continue;
            };
            let checker = CandidateChecker::new(&karpenter);
            let drifted = drift::static_candidates(&checker, &karpenter, &pool, &mut self.events);
            if drifted.is_empty() {
                continue;
            }
            // Between counting nodes and ordering new ones nobody else may order for a static pool, or it
            // exceeds its limit.
            let _turn = karpenter.static_pool_lock.take().await;
            let claims = karpenter.claims.by_index(BY_POOL, &pool.name_any());
            let allowed = self.room(&pool, &claims, DisruptionReason::Drifted);
            let census = Census::of(&karpenter, &claims);
            // Nodes that are too many go before others are replaced.
            let too_many = census.running + census.pending > usize::try_from(replicas).unwrap_or(0);
            if too_many {
                continue;
            }
            let count = allowed.min(census.room(&pool));
            for candidate in drifted.into_iter().take(count) {
                let command = Command {
                    reason: DisruptionReason::Drifted,
                    candidates: vec![candidate],
                    replacements: vec![planned(&pool)],
                    destinations: Vec::new(),
                    saving: 0,
                };
                acted |= command::start(&karpenter, command).await?;
            }
        }
        Ok(acted)
    }

    /// Replaces one drifted node, if there is one that can be replaced. Returns whether a command was started.
    async fn replace_drifted(&mut self) -> kube::Result<bool> {
        let karpenter = self.karpenter.clone();
        let drifted = drift::candidates(
            &CandidateChecker::new(&karpenter),
            &karpenter,
            &mut self.events,
        );
        eligible_nodes(&karpenter, DisruptionReason::Drifted, drifted.len());
        for candidate in drifted {
            let claims = karpenter
                .claims
                .by_index(BY_POOL, &candidate.pool.name_any());
            if self.room(&candidate.pool, &claims, DisruptionReason::Drifted) == 0 {
                continue;
            }
            match drift::replacement(&karpenter, &candidate).await {
                Ok(Ok(command)) => return command::start(&karpenter, command).await,
                Ok(Err(why)) => {
                    self.events
                        .blocked(Some(&candidate.node), &candidate.claim, &why.to_string());
                }
                Err(error) => tracing::debug!(%error, "a drifted node cannot be planned for"),
            }
        }
        Ok(false)
    }

    /// Removes or replaces nodes that cost more than their pods need.
    async fn consolidate(&mut self) -> kube::Result<()> {
        if self.changes.is_settled() {
            return Ok(());
        }
        // Read before the question: a change while the engine answers must not count as seen.
        let seen = self.changes.seen();
        let karpenter = self.karpenter.clone();
        let began = karpenter.base.clock.now();
        let first = consolidation::propose(&karpenter, None, &mut self.events).await;
        let took = karpenter.base.clock.now().duration_since(began);
        let labels = [("controller", "disruption")];
        karpenter
            .metrics
            .observe(Metric::Scheduling, &labels, took.as_secs_f64());
        let first = match first {
            Ok(first) => first,
            Err(error) => {
                tracing::debug!(%error, "consolidation cannot be planned");
                return Ok(());
            }
        };
        let Some(mut first) = first else {
            return Ok(());
        };
        first.count_refused(&karpenter.metrics);
        first.record_events(&karpenter, &mut self.events);
        let nodes = first.nodes();
        if nodes.is_empty() {
            if !first.is_constrained {
                self.changes.record_nothing_found(seen);
            }
            return Ok(());
        }
        let mut proposed = Vec::new();
        let scale = first.take_scale();
        for command in first.into_commands() {
            scale.record(&command, &mut self.events);
            for own in &command.candidates {
                let text = command.text_for(&own.node.name_any());
                let saved = command.dollars();
                let what = format!("Consolidation candidate: {text} (savings: ${saved:.2})");
                self.events.candidate(&own.node, &own.claim, &what);
            }
            proposed.push(command);
        }
        // Karpenter waits so that pods of a rollout or a scale-up that is under way can arrive before nodes
        // go.
        sleep(VALIDATION).await;
        // Only the nodes of the first answer are asked about, so the second can drop moves but not invent new
        // ones.
        let second = consolidation::propose(&karpenter, Some(&nodes), &mut self.events).await;
        let second = second.ok().flatten();
        let stands = second.as_ref().map(Proposal::nodes).unwrap_or_default();
        for command in proposed {
            let names = command.node_names();
            let failed = names.iter().filter(|node| !stands.contains(*node)).count();
            if failed > 0 {
                let second = second.as_ref();
                let reason = second.map_or("churn", |second| second.rejection(&names));
                for own in &command.candidates {
                    let text = command.text_for(&own.node.name_any());
                    let saved = command.dollars();
                    let what = format!(
                        "Consolidation rejected: {text}, reason: {reason} (savings: ${saved:.2})"
                    );
                    self.events.rejected(&own.node, &own.claim, &what);
                }
                let labels = [("consolidation_type", command.consolidation_type())];
                karpenter
                    .metrics
                    .add(Metric::FailedValidations, &labels, failed as f64);
            }
        }
        for command in second.into_iter().flat_map(Proposal::into_commands) {
            command::start(&karpenter, command).await?;
        }
        Ok(())
    }
}

/// Writes into the metrics how many nodes a method may disrupt.
fn eligible_nodes(karpenter: &KarpenterContext, reason: DisruptionReason, count: usize) {
    let reason = reason.as_str().to_lowercase();
    let labels = [("reason", reason.as_str())];
    karpenter
        .metrics
        .set(Metric::Eligible, &labels, count as f64);
}

/// Sets or clears the condition `Consolidatable` of a claim.
async fn mark_consolidatable(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    due: bool,
) -> kube::Result<()> {
    let marked = claim.is(condition::CONSOLIDATABLE);
    if marked == due {
        return Ok(());
    }
    edit(karpenter, &claim.name_any(), |conditions| {
        if due {
            conditions.set_true(condition::CONSOLIDATABLE)
        } else {
            conditions.clear(condition::CONSOLIDATABLE)
        }
    })
    .await
}

/// Edits the conditions of a claim, read from the API server. Writes nothing if they stay the same.
async fn edit(
    karpenter: &KarpenterContext,
    name: &str,
    work: impl FnOnce(&mut Conditions<'_>),
) -> kube::Result<()> {
    let api = karpenter.claim_api();
    let Some(claim) = api.get_opt(name).await? else {
        return Ok(());
    };
    let mut status = claim.status.unwrap_or_default();
    let before = status.conditions.clone();
    let now = karpenter.base.clock.now();
    work(&mut Conditions::new(
        &mut status.conditions,
        now,
        claim.metadata.generation,
    ));
    if before == status.conditions {
        return Ok(());
    }
    let patch = json!({
        "metadata": { "resourceVersion": claim.metadata.resource_version },
        "status": { "conditions": status.conditions },
    });
    let patched = api
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        // Somebody wrote at the same time; the next look sees what it is now.
        Err(error) if api_error::is_conflict(&error) || api_error::is_not_found(&error) => Ok(()),
        other => other.map(drop),
    }
}
