//! Carries out what was decided: taints nodes, orders what replaces them, and lets them go once that is ready.
//!
//! Invariant: a node goes only after everything that replaces it is initialized. If a replacement fails or takes too
//! long, the nodes lose their taint and stay. A process that ends in between leaves tainted nodes, which the next pass
//! of disruption sets free ([`remove_stale_taints`]).

use std::{collections::BTreeSet, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::{
    karpenter::{DisruptionReason, node_claim_condition as condition},
    labels,
};
use mullion_engine::provision::PlannedNode;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{CONTROLLER, candidate::Candidate, edit};
use crate::{
    api_error,
    nodeclaim::drain::disrupted_taint,
    provisioner::{
        KarpenterContext,
        conditions::Status,
        decision_log::Reconciliation,
        metrics::Metric,
        order,
        requirements::{admits, from_engine},
    },
};

/// The interval between two checks of the replacements.
const LOOK: Duration = Duration::from_secs(1);
/// A command fails after this long (core: `minRetryDuration`).
const PATIENCE: SignedDuration = SignedDuration::from_mins(10);
/// Types named in a log line.
const SHOWN: usize = 5;

/// Nodes that go, and what is bought first.
pub(super) struct Command {
    pub(super) reason: DisruptionReason,
    pub(super) candidates: Vec<Candidate>,
    pub(super) replacements: Vec<PlannedNode>,
    /// Nodes that stay and take pods of those that go.
    pub(super) destinations: Vec<String>,
    /// Micro-dollars an hour.
    pub(super) saving: u64,
}

impl Command {
    fn decision(&self) -> &'static str {
        if self.replacements.is_empty() {
            "delete"
        } else {
            "replace"
        }
    }

    /// Returns the kind of consolidation, by Karpenter's names; empty for drift.
    pub(super) fn consolidation_type(&self) -> &'static str {
        match (self.reason, self.candidates.len()) {
            (DisruptionReason::Empty, _) => "empty",
            (DisruptionReason::Underutilized, 1) => "single",
            (DisruptionReason::Underutilized, _) => "multi",
            (DisruptionReason::Drifted, _) => "",
        }
    }

    /// Counts the command as decided.
    fn count(&self, karpenter: &KarpenterContext) {
        let reason = self.reason.as_str().to_lowercase();
        let labels = [
            ("decision", self.decision()),
            ("reason", &reason),
            ("consolidation_type", self.consolidation_type()),
        ];
        karpenter.metrics.count(Metric::Decisions, &labels);
        if self.reason == DisruptionReason::Underutilized {
            karpenter.metrics.add(Metric::Saving, &[], self.dollars());
        }
        let pools: BTreeSet<String> = self
            .candidates
            .iter()
            .map(|own| own.pool.name_any())
            .collect();
        for pool in pools {
            let [decision, reason, kind] = labels;
            let labels = [decision, reason, kind, ("nodepool", pool.as_str())];
            karpenter.metrics.count(Metric::DecisionsByPool, &labels);
        }
    }

    pub(super) fn node_names(&self) -> Vec<String> {
        self.candidates
            .iter()
            .map(|own| own.node.name_any())
            .collect()
    }

    /// Returns the command in the short form of Karpenter's events.
    pub(super) fn text(&self) -> String {
        let nodes = self.node_names().join(", ");
        let mut pools: Vec<String> = self
            .candidates
            .iter()
            .map(|own| own.pool.name_any())
            .collect();
        pools.dedup();
        let replacements = match self.replacements.len() {
            0 => String::new(),
            1 => " -> [1 replacement]".to_owned(),
            more => format!(" -> [{more} replacements]"),
        };
        format!(
            "{}: nodepools=[{}]: [{nodes}]{replacements}",
            self.decision(),
            pools.join(",")
        )
    }

    /// Returns the command in the form in which events on one of its nodes show it.
    pub(super) fn text_for(&self, node: &str) -> String {
        match self.candidates.len() {
            1 => self.text(),
            count => format!(
                "{}: [{node}] (part of {count}-node consolidation)",
                self.decision()
            ),
        }
    }

    /// Returns the saving in dollars per hour.
    pub(super) fn dollars(&self) -> f64 {
        self.saving as f64 / 1e6
    }

    fn pass(&self, karpenter: &KarpenterContext) -> Reconciliation {
        let command = self.candidates.first().and_then(|first| first.claim.uid());
        let nodes: Vec<Value> = self.candidates.iter().map(describe).collect();
        let pods: usize = self.candidates.iter().map(|own| own.pods.len()).sum();
        let is_one = self.replacements.len() == 1;
        let replacements = self.replacements.iter();
        let replacements: Vec<Value> = replacements
            .map(|node| describe_planned(node, is_one))
            .collect();
        karpenter
            .log
            .reconciliation(CONTROLLER)
            .with("command-id", command.unwrap_or_default())
            .with("reason", self.reason.as_str().to_lowercase())
            .with("decision", self.decision())
            .with("disrupted-node-count", nodes.len())
            .with("replacement-node-count", replacements.len())
            .with("pod-count", pods)
            .with("disrupted-nodes", nodes)
            .with("replacement-nodes", replacements)
    }
}

fn describe(candidate: &Candidate) -> Value {
    json!({
        "Node": { "name": candidate.node.name_any() },
        "NodeClaim": { "name": candidate.claim.name_any() },
        "capacity-type": candidate.claim.label(labels::CAPACITY_TYPE).unwrap_or_default(),
        "instance-type": candidate.claim.label(labels::INSTANCE_TYPE).unwrap_or_default(),
    })
}

fn describe_planned(node: &PlannedNode, with_types: bool) -> Value {
    let sold = |kind: &str| {
        let mut offerings = node.options.iter().flat_map(|option| &option.offerings);
        offerings.any(|(_, own, _)| own == kind)
    };
    // A node of a static pool names no types: its requirements say what it may be.
    let asked = |kind: &str| {
        let mut asked = node.requirements.iter().map(from_engine);
        let asked = asked.find(|own| own.key == labels::CAPACITY_TYPE);
        node.options.is_empty() && asked.is_none_or(|own| admits(&own, Some(kind)))
    };
    let kinds = ["reserved", "spot"].into_iter();
    let mut kinds = kinds.filter(|kind| sold(kind) || (*kind == "spot" && asked(kind)));
    let mut described = json!({ "capacity-type": kinds.next().unwrap_or("on-demand") });
    if with_types {
        let types: Vec<&String> = node.options.iter().map(|option| &option.name).collect();
        described["instance-types"] =
            crate::provisioner::decision_log::abbreviated(&types, SHOWN).into();
    }
    described
}

/// Starts a command; returns `false` if another command has one of its nodes. If tainting or ordering fails, the nodes
/// stay.
///
/// # Errors
/// A node could not be tainted, or a replacement not ordered: the nodes stay.
pub(super) async fn start(karpenter: &KarpenterContext, command: Command) -> kube::Result<bool> {
    let nodes = command.node_names();
    // The nodes are taken before the first await, so that no other command can begin with one of them.
    if nodes.is_empty() || !karpenter.disrupting.begin(&nodes) {
        return Ok(false);
    }
    let pass = command.pass(karpenter);
    pass.info("disrupting node(s)");
    let begun = begin(karpenter, &command, &pass).await;
    let claims = match begun {
        Ok(claims) => claims,
        Err(error) => {
            set_free(karpenter, &command, &pass).await;
            karpenter.disrupting.end(&nodes, false);
            return Err(error);
        }
    };
    // Counted after the taints and orders succeeded: a command that could not begin was no decision.
    command.count(karpenter);
    karpenter.disrupting.ordered(&nodes);
    // Nodes that take the moved pods must not be removed before those arrive.
    for node in &command.destinations {
        karpenter.nominations.nominate(node);
    }
    // Without replacements there is nothing to wait for: the nodes go before the next method looks.
    if claims.is_empty() {
        let ended = end(karpenter, &command).await;
        karpenter.disrupting.end(&nodes, ended.is_ok());
        return ended.map(|()| true);
    }
    let (own, shutdown) = (karpenter.clone(), karpenter.base.shutdown.clone());
    karpenter.base.tasks.spawn(async move {
        shutdown
            .run_until_cancelled(carry_out(&own, &command, &claims, &pass))
            .await;
    });
    Ok(true)
}

/// Taints the nodes and orders their replacements; returns the names of the new claims.
async fn begin(
    karpenter: &KarpenterContext,
    command: &Command,
    pass: &Reconciliation,
) -> kube::Result<Vec<String>> {
    let why = command.reason.as_str();
    for candidate in &command.candidates {
        // The taint comes first, so that no new pod is scheduled to the node while its replacement is planned
        // and launched.
        taint(karpenter, &candidate.node.name_any(), true).await?;
        edit(karpenter, &candidate.claim.name_any(), |conditions| {
            if !conditions.is_true(condition::DISRUPTION_REASON) {
                conditions.set(condition::DISRUPTION_REASON, Status::True, why, why);
            }
        })
        .await?;
    }
    let mut claims = Vec::with_capacity(command.replacements.len());
    for planned in &command.replacements {
        let ordered = order(karpenter, planned, &why.to_lowercase(), pass).await;
        match ordered.and_then(|claim| claim.ok_or_else(|| gone(planned))) {
            Ok(claim) => claims.push(claim.name_any()),
            Err(error) => {
                // A part of the replacements is of no use: the nodes stay, so what was ordered for their pods
                // has to go.
                drop_claims(karpenter, &claims).await;
                return Err(error);
            }
        }
    }
    Ok(claims)
}

/// Returns the error for a replacement whose pool was deleted while it was planned.
fn gone(planned: &PlannedNode) -> kube::Error {
    let message = format!("NodePool {} is gone", planned.pool);
    kube::Error::Service(message.into())
}

/// Deletes the replacements of a command that was given up.
async fn drop_claims(karpenter: &KarpenterContext, claims: &[String]) {
    for name in claims {
        // What stays is empty, and goes as an empty node.
        let _ = karpenter.delete_claim(name).await;
    }
}

/// Waits for the replacements and lets the nodes go.
async fn carry_out(
    karpenter: &KarpenterContext,
    command: &Command,
    claims: &[String],
    pass: &Reconciliation,
) {
    let nodes = command.node_names();
    let ready = until_ready(karpenter, command, claims).await;
    let outcome = match ready {
        Ok(()) => end(karpenter, command)
            .await
            .map_err(|error| error.to_string()),
        Err(why) => Err(why.to_string()),
    };
    if let Err(why) = &outcome {
        pass.error(
            "failed terminating nodes while executing a disruption command",
            why,
        );
        count_failures(karpenter, command, claims);
        set_free(karpenter, command, pass).await;
    } else {
        pass.debug("command succeeded");
    }
    karpenter.disrupting.end(&nodes, outcome.is_ok());
    // After a failure the pods count on their old nodes again, and after success they are evicted: both need
    // a new plan.
    karpenter.batcher.trigger(
        command
            .candidates
            .first()
            .and_then(|own| own.claim.uid())
            .unwrap_or_default(),
    );
}

/// Counts the replacements that did not become ready. Karpenter writes the decision into the label of the consolidation
/// type, too.
fn count_failures(karpenter: &KarpenterContext, command: &Command, claims: &[String]) {
    let reason = command.reason.as_str().to_lowercase();
    let is_ready = |name: &String| {
        let claim = karpenter.claims.get("", name);
        claim.is_some_and(|claim| claim.is(condition::INITIALIZED))
    };
    for _ in claims.iter().filter(|name| !is_ready(name)) {
        let labels = [
            ("decision", command.decision()),
            ("reason", reason.as_str()),
            ("consolidation_type", command.decision()),
        ];
        karpenter.metrics.count(Metric::QueueFailures, &labels);
    }
}

/// The reason why replacements do not become ready.
#[derive(Debug, thiserror::Error)]
enum ReplacementError {
    /// This NodeClaim is gone.
    #[error("replacement was deleted (NodeClaim={0})")]
    Deleted(String),
    /// A NodeClaim takes too long.
    #[error(
        "command reached timeout, waiting for replacement initialization, nodeclaim not initialized (NodeClaim={claim}, duration={seconds}s)"
    )]
    NotInitialized { claim: String, seconds: i64 },
}

/// Waits until all replacements are ready.
///
/// # Errors
/// A replacement is gone, or they took too long.
async fn until_ready(
    karpenter: &KarpenterContext,
    command: &Command,
    claims: &[String],
) -> Result<(), ReplacementError> {
    let started = karpenter.base.clock.now();
    let mut announced: Vec<&String> = Vec::new();
    loop {
        let mut waiting = None;
        for name in claims {
            let Some(claim) = karpenter.claims.get("", name) else {
                return Err(ReplacementError::Deleted(name.clone()));
            };
            if !announced.contains(&name) {
                let reason = command.reason.as_str();
                let launching = format!("Launching NodeClaim: {reason}");
                karpenter
                    .recorder
                    .normal(&*claim, "DisruptionLaunching", launching);
                if !claim.is(condition::INITIALIZED) {
                    let message = "Waiting on readiness to continue disruption";
                    karpenter
                        .recorder
                        .normal(&*claim, "DisruptionWaitingReadiness", message);
                }
                announced.push(name);
            }
            // Nobody takes a node away that others wait for.
            karpenter.nominations.nominate(name);
            if let Some(node) = claim.node_name() {
                karpenter.nominations.nominate(node);
            }
            if !claim.is(condition::INITIALIZED) {
                waiting = waiting.or(Some(name));
            }
        }
        let Some(name) = waiting else {
            return Ok(());
        };
        let took = karpenter.base.clock.now().duration_since(started);
        if took > PATIENCE {
            return Err(ReplacementError::NotInitialized {
                claim: name.clone(),
                seconds: took.as_secs(),
            });
        }
        sleep(LOOK).await;
    }
}

/// Deletes the claims of the nodes.
async fn end(karpenter: &KarpenterContext, command: &Command) -> kube::Result<()> {
    let why = command.reason.as_str();
    let reason = why.to_lowercase();
    for Candidate {
        claim, node, pool, ..
    } in &command.candidates
    {
        // Deleting the claim only begins the drain; its finalizer evicts the pods and ends the instance.
        karpenter.delete_claim(&claim.name_any()).await?;
        let policy = pool.spec.disruption.consolidation_policy;
        let policy = Some(policy).filter(|_| !command.consolidation_type().is_empty());
        karpenter.count_disrupted(claim, policy, &reason);
        let message = format!("Disrupting Node: {why}");
        karpenter
            .recorder
            .normal(&**node, "DisruptionTerminating", message);
        let message = format!("Disrupting NodeClaim: {why}");
        karpenter
            .recorder
            .normal(&**claim, "DisruptionTerminating", message);
    }
    // Until the watch shows that they go they are this command's.
    for candidate in &command.candidates {
        karpenter
            .wait_until_going(&candidate.claim.name_any())
            .await;
    }
    Ok(())
}

/// Removes the taint from nodes that stay after all.
async fn set_free(karpenter: &KarpenterContext, command: &Command, pass: &Reconciliation) {
    for candidate in &command.candidates {
        let (node, claim) = (candidate.node.name_any(), candidate.claim.name_any());
        if let Err(error) = free(karpenter, &node, &claim).await {
            // The next look tries again.
            pass.error("removing taint from nodes", &error);
        }
    }
}

async fn free(karpenter: &KarpenterContext, node: &str, claim: &str) -> kube::Result<()> {
    taint(karpenter, node, false).await?;
    edit(karpenter, claim, |conditions| {
        conditions.clear(condition::DISRUPTION_REASON)
    })
    .await
}

/// Removes the taint from nodes that no command is about: those of a process that ended.
pub(super) async fn remove_stale_taints(karpenter: &KarpenterContext) -> kube::Result<()> {
    let is_disrupted = |taint: &Taint| taint.key == labels::DISRUPTED_TAINT;
    for claim in karpenter.claims.list() {
        let Some(node) = karpenter.node_of(&claim) else {
            continue;
        };
        let spec = node.spec.iter();
        let mut taints = spec.flat_map(|spec| spec.taints.iter().flatten());
        // A crash may lie between the two writes of `begin`, so either mark counts.
        let is_marked = taints.any(is_disrupted) || claim.is(condition::DISRUPTION_REASON);
        let goes = claim.metadata.deletion_timestamp.is_some()
            || node.metadata.deletion_timestamp.is_some();
        let name = node.name_any();
        if is_marked && !goes && !karpenter.disrupting.contains(&name) {
            free(karpenter, &name, &claim.name_any()).await?;
        }
    }
    Ok(())
}

/// Adds the taint that keeps new pods away from a node, or removes it.
async fn taint(karpenter: &KarpenterContext, name: &str, wanted: bool) -> kube::Result<()> {
    let Some(node): Option<Node> = karpenter.node_api().get_opt(name).await? else {
        return Ok(());
    };
    let taint = disrupted_taint();
    let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let is_there = taints.iter().any(|own| own.key == taint.key);
    if is_there == wanted {
        return Ok(());
    }
    if wanted {
        taints.push(taint)
    } else {
        taints.retain(|own| own.key != taint.key)
    }
    // A merge patch replaces the whole list of taints, so the resource version keeps taints that others added
    // meanwhile.
    let patch = json!({
        "metadata": { "resourceVersion": node.metadata.resource_version },
        "spec": { "taints": taints },
    });
    let patched = karpenter
        .node_api()
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    api_error::ignore_not_found(patched).map(drop)
}
