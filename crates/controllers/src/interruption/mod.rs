//! Handles interruptions: nodes whose instance the cloud takes back, stops or finds broken are replaced before they are
//! gone.
//!
//! Messages come from a queue (`CloudProvider::receive_messages`), failed status checks from
//! `CloudProvider::impairments`. Their [`kind::Kind`] determines the action: the claim of the instance is deleted, so
//! that its node is tainted and drained at once while the provisioner buys a place for its pods (AWS provider:
//! `interruption`, `interruption.instancestatus`).
//!
//! Invariant: a message is deleted after its action was carried out, so a crash in between repeats the action.

mod act;
mod kind;

use std::{collections::BTreeSet, time::Duration};

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use mullion_cloud::{CloudError, Impairment, Message, StatusCheck};
use tokio::time::sleep;

use self::{act::act, kind::Kind};
use crate::provisioner::{KarpenterContext, metrics::Metric};

const CONTROLLER: &str = "interruption";
const OF_CHECKS: &str = "interruption.instancestatus";
/// How often the cloud's status checks are read.
const CHECKS: Duration = Duration::from_secs(60);
/// A check must fail for this long before the instance is replaced, because many failures mend themselves.
const PATIENCE: SignedDuration = SignedDuration::from_secs(120);
/// The pause after a failed call.
const RETRY: Duration = Duration::from_secs(1);

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

/// Starts both controllers.
pub(crate) fn start(karpenter: &KarpenterContext) {
    let queue = karpenter.clone();
    let read = async move {
        if !queue.synced().await {
            return;
        }
        queue
            .log
            .reconciliation(CONTROLLER)
            .with("queue", queue.options.cluster.as_str())
            .debug("watching interruption queue");
        loop {
            if let Err(error) = read_queue(&queue).await {
                tracing::debug!(%error, "reading messages about instances failed, will retry");
                sleep(RETRY).await;
            }
        }
    };
    let checks = karpenter.clone();
    let look = async move {
        if !checks.synced().await {
            return;
        }
        let mut known = BTreeSet::new();
        loop {
            if let Err(error) = look_at_checks(&checks, &mut known).await {
                tracing::debug!(%error, "looking at checks of instances failed, will retry");
            }
            sleep(CHECKS).await;
        }
    };
    let shutdown = karpenter.base.shutdown.clone();
    karpenter.base.tasks.spawn(async move {
        let both = async { tokio::join!(read, look) };
        shutdown.run_until_cancelled(both).await;
    });
}

/// Handles the next messages. One that fails stays in the queue, which delivers it again.
async fn read_queue(karpenter: &KarpenterContext) -> Result<(), Error> {
    let messages = karpenter.cloud.receive_messages().await?;
    let ended = join_all(
        messages
            .iter()
            .map(|message| handle_message(karpenter, message)),
    )
    .await;
    ended.into_iter().collect()
}

async fn handle_message(karpenter: &KarpenterContext, message: &Message) -> Result<(), Error> {
    let pass = karpenter.log.reconciliation(CONTROLLER);
    let pass = pass.with("queue", karpenter.options.cluster.as_str());
    let kind = Kind::from(message.kind);
    let received = [("message_type", kind.as_str())];
    karpenter.metrics.count(Metric::ReceivedMessages, &received);
    let age = karpenter.base.clock.now().duration_since(message.sent_at);
    karpenter
        .metrics
        .observe(Metric::MessageAge, &[], age.as_secs_f64());
    act(karpenter, kind, &message.instance, &pass).await?;
    karpenter.cloud.delete_message(message).await?;
    karpenter.metrics.count(Metric::DeletedMessages, &[]);
    Ok(())
}

/// Handles instances that fail a status check. `known` are the failures that were logged already.
async fn look_at_checks(
    karpenter: &KarpenterContext,
    known: &mut BTreeSet<(String, &'static str)>,
) -> Result<(), Error> {
    let now = karpenter.base.clock.now();
    let mut seen = BTreeSet::new();
    for failure in karpenter.cloud.impairments().await? {
        if !is_lasting(&failure, now) {
            continue;
        }
        let pass = karpenter.log.reconciliation(OF_CHECKS);
        let (kind, instance) = (failure.check.into(), &failure.instance);
        if !act(karpenter, kind, instance, &pass).await? {
            continue;
        }
        let key = (instance.to_string(), category(failure.check));
        if !known.contains(&key) {
            let unhealthy = [("category", key.1)];
            karpenter.metrics.count(Metric::UnhealthyStatus, &unhealthy);
            pass.with("instanceID", key.0.as_str())
                .with("category", key.1)
                .info("detected unhealthy instance owned by cluster");
        }
        seen.insert(key);
    }
    // A failure that has ended is logged again if it comes back.
    *known = seen;
    Ok(())
}

/// Returns whether a failure has lasted long enough to be acted on. Announced maintenance is always acted on.
fn is_lasting(failure: &Impairment, now: Timestamp) -> bool {
    failure.check == StatusCheck::Event || now.duration_since(failure.since) >= PATIENCE
}

/// Returns Karpenter's name of a check.
fn category(check: StatusCheck) -> &'static str {
    match check {
        StatusCheck::Instance => "InstanceStatus",
        StatusCheck::System => "SystemStatus",
        StatusCheck::Event => "EventStatus",
    }
}

#[cfg(test)]
mod tests {
    use mullion_cloud::InstanceId;

    use super::*;

    #[test]
    fn a_failing_check_is_given_two_minutes_and_maintenance_none() {
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let lasting = |check, seconds| {
            let failure = Impairment {
                instance: InstanceId("i-1".into()),
                check,
                since,
            };
            is_lasting(&failure, since + SignedDuration::from_secs(seconds))
        };
        assert!(!lasting(StatusCheck::Instance, 119));
        assert!(lasting(StatusCheck::System, 120));
        assert!(lasting(StatusCheck::Event, 0));
    }
}
