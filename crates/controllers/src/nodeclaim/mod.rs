//! The life of a bought node: launched, registered, initialized, and its end.
//!
//! One queue walks each NodeClaim as far as it can go (`launch`, `registration`, `initialization`), gives up on
//! those that get stuck (`liveness`) and ends those that are deleted (`termination`). Nodes that are deleted are
//! drained and terminated by `node_termination`; `pod_events` remembers when a node was last used, `repair` ends nodes that are
//! unhealthy, `consistency` says whether nodes have what was bought, and `garbage` tidies up after crashes.
//!
//! Invariant: every step may be repeated. A launch carries the claim's uid as client token, so a crash between buying
//! an instance and writing it down buys nothing twice.

mod consistency;
pub(crate) mod deadline;
mod detachment;
pub mod do_not_disrupt;
pub mod drain;
mod eviction;
mod garbage;
pub(crate) mod initialization;
pub(crate) mod launch;
pub(crate) mod launch_failure;
mod launch_turns;
mod liveness;
mod node_termination;
mod pod_events;
mod progress;
mod registration;
mod repair;
mod termination;
mod traced;

use std::time::Duration;

pub(crate) use launch::log_unavailable;
use launch_turns::LaunchTurns;

use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::{
    karpenter::{NodeClaim, node_claim_condition as condition},
    labels,
};
use mullion_cloud::CloudError;
use serde_json::json;

use crate::{
    Change, Queue, api_error,
    informers::BY_PROVIDER_ID,
    provisioner::{
        BY_CLASS, KarpenterContext, conditions::Conditions, decision_log::Reconciliation,
        market::MarketError,
    },
    queue::Backoff,
};

/// Group and kind of claims in the decision log.
const CLAIM: (&str, &str) = ("karpenter.sh", "NodeClaim");
/// What is asked again without an event to wake it is asked after this long.
const POLL: Duration = Duration::from_secs(1);
/// How claims that fail are retried.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

/// Why a step could not be done.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Cloud(#[from] CloudError),
    #[error("launching nodeclaim, {0}")]
    Market(#[from] MarketError),
    #[error("launching nodeclaim, creating instance, creating fleet request, {0}")]
    Launch(CloudError),
    #[error("launching nodeclaim, resolving NodeClass readiness, NodeClass is in Ready=Unknown")]
    ClassUnready,
    #[error(transparent)]
    Deadline(#[from] deadline::ParseError),
}

/// Starts the controllers of NodeClaims and their nodes.
pub(crate) fn start(karpenter: &KarpenterContext) {
    let queue = Queue::with_backoff("nodeclaim.lifecycle", BACKOFF);
    let claims = queue.clone();
    karpenter
        .claims
        .on_change(move |change| claims.add(change.object().name_any()));
    let (claims, informer) = (queue.clone(), karpenter.claims.clone());
    karpenter.base.informers.nodes.on_change(move |change| {
        let spec = change.object().spec.as_ref();
        if let Some(id) = spec.and_then(|spec| spec.provider_id.as_deref()) {
            for claim in informer.by_index(BY_PROVIDER_ID, id) {
                claims.add(claim.name_any());
            }
        }
    });
    // A class that became ready lets its claims be launched.
    let (claims, informer) = (queue.clone(), karpenter.claims.clone());
    karpenter.classes.on_change(move |change| {
        if !matches!(change, Change::Deleted(_)) {
            for claim in informer.by_index(BY_CLASS, &change.object().name_any()) {
                if !claim.is(condition::LAUNCHED) {
                    claims.add(claim.name_any());
                }
            }
        }
    });
    let (lifecycle, again) = (karpenter.clone(), queue.clone());
    let turns = LaunchTurns::new(queue.clone());
    queue.run(&karpenter.base, 8, move |name: String| {
        let (karpenter, turns, again) = (lifecycle.clone(), turns.clone(), again.clone());
        async move {
            if let Some(delay) = reconcile(&karpenter, &turns, &name).await? {
                again.add_after(name, delay);
            }
            Ok::<_, Error>(())
        }
    });
    consistency::start(karpenter);
    node_termination::start(karpenter);
    pod_events::start(karpenter);
    garbage::start(karpenter);
    repair::start(karpenter);
}

/// Takes a claim as far as it can go. Returns after which time to reconcile it again if nothing else wakes it.
async fn reconcile(
    karpenter: &KarpenterContext,
    turns: &LaunchTurns,
    name: &str,
) -> Result<Option<Duration>, Error> {
    // Read afresh: a step that was done a moment ago must not be done and told twice.
    let Some(claim) = karpenter.claim_api().get_opt(name).await? else {
        return Ok(None);
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return termination::finalize(karpenter, &claim).await;
    }
    let mut claim = with_finalizer(karpenter, claim).await?;
    // All steps change one copy; the difference is written once at the end, so a claim is not patched four
    // times.
    let stored = claim.clone();
    let launched = match launch::step(karpenter, turns, &mut claim).await {
        Ok(launch::Outcome::Refused) => return Ok(None),
        Ok(launch::Outcome::Done | launch::Outcome::Waits) => Ok(()),
        Err(error) => Err(error),
    };
    let registered = if claim.is(condition::LAUNCHED) {
        registration::step(karpenter, &mut claim).await
    } else {
        Ok(())
    };
    // A failed registration left the node half known; initialization would judge it by old data.
    let initialized = match &registered {
        Ok(()) if claim.is(condition::LAUNCHED) => {
            initialization::step(karpenter, &mut claim).await
        }
        _ => Ok(()),
    };
    edit(karpenter, &mut claim, |conditions| {
        let parts = [
            condition::LAUNCHED,
            condition::REGISTERED,
            condition::INITIALIZED,
        ];
        conditions.initialize(&parts);
        conditions.summarize(&parts);
    });
    write_back(karpenter, &stored, &claim).await?;
    // A step that keeps failing must not keep a claim alive.
    let look_again = liveness::step(karpenter, &claim).await?;
    // Errors are returned last, after the conditions that explain them were written.
    launched.and(registered).and(initialized)?;
    Ok(look_again)
}

/// Adds the finalizer unless the claim has it. A launch without it could leak an instance, because nobody would end it.
async fn with_finalizer(
    karpenter: &KarpenterContext,
    claim: NodeClaim,
) -> Result<NodeClaim, Error> {
    if has_finalizer(claim.finalizers()) {
        return Ok(claim);
    }
    let mut finalizers = claim.finalizers().to_vec();
    finalizers.push(labels::TERMINATION_FINALIZER.to_owned());
    let patch = json!({ "metadata": {
        "resourceVersion": claim.resource_version(), "finalizers": finalizers
    }});
    let patched = karpenter
        .claim_api()
        .patch(
            &claim.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await?;
    Ok(patched)
}

fn has_finalizer(finalizers: &[String]) -> bool {
    finalizers
        .iter()
        .any(|f| f == labels::TERMINATION_FINALIZER)
}

/// Edits the conditions of a claim in memory.
fn edit(
    karpenter: &KarpenterContext,
    claim: &mut NodeClaim,
    work: impl FnOnce(&mut Conditions<'_>),
) {
    let generation = claim.metadata.generation;
    let status = claim.status.get_or_insert_default();
    let now = karpenter.base.clock.now();
    work(&mut Conditions::new(
        &mut status.conditions,
        now,
        generation,
    ));
}

/// Writes the changes of a claim: labels and annotations first, so that whoever sees the status sees them, too.
async fn write_back(
    karpenter: &KarpenterContext,
    stored: &NodeClaim,
    claim: &NodeClaim,
) -> Result<(), Error> {
    let (api, name) = (karpenter.claim_api(), claim.name_any());
    let params = PatchParams::default();
    let (old, new) = (&stored.metadata, &claim.metadata);
    if (&old.labels, &old.annotations) != (&new.labels, &new.annotations) {
        let patch = json!({ "metadata": { "labels": new.labels, "annotations": new.annotations } });
        // A merge patch keeps labels and annotations that others add meanwhile, so it needs no resource
        // version.
        let patched = api.patch(&name, &params, &Patch::Merge(patch)).await;
        api_error::ignore_not_found(patched)?;
    }
    if stored.status != claim.status {
        let patch = Patch::Merge(json!({ "status": claim.status }));
        api_error::ignore_not_found(api.patch_status(&name, &params, &patch).await)?;
    }
    Ok(())
}

/// Returns the log entry builder of one reconciliation of a claim.
fn pass(
    karpenter: &KarpenterContext,
    controller: &'static str,
    claim: &NodeClaim,
) -> Reconciliation {
    let mut pass = karpenter
        .log
        .reconciliation_of(controller, CLAIM, &claim.name_any());
    if let Some(id) = claim.provider_id() {
        pass = pass.with("provider-id", id);
    }
    if let Some(node) = claim.node_name() {
        pass = pass.with_ref("Node", node);
    }
    pass
}
