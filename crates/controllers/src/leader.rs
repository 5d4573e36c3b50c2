//! Leader election by a Lease: of several processes that run the same controllers, one acts and the others wait.
//!
//! The algorithm and its times are client-go's (`tools/leaderelection`). The clocks of the processes are never
//! compared: a waiting process measures with its own clock how long the Lease has not changed. Every write carries
//! the resource version that was read, so of two processes that try to take the Lease at once one is refused. A
//! leader that stops in order gives the Lease back, so that the next one takes over at its next try instead of
//! after [`DURATION`].

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::{Clock, api_error::message};

/// How long a Lease that is not renewed keeps others waiting (client-go: LeaseDuration).
pub const DURATION: Duration = Duration::from_secs(15);
/// How long a leader may fail to renew before it has to stop (client-go: RenewDeadline). It is shorter than
/// [`DURATION`], so that the leader has stopped before another one leads.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// The time between two tries (client-go: RetryPeriod).
pub const PERIOD: Duration = Duration::from_secs(2);
/// The time limit of one try.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reason why the Lease can be neither taken nor renewed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    /// The API server refuses a request, or cannot be reached.
    #[error("{}", message(.0))]
    Api(kube::Error),
    /// The API server does not answer.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    NoAnswer,
}

/// One candidate for a Lease.
#[derive(Debug)]
pub struct Election {
    api: Api<Lease>,
    clock: Clock,
    /// The `namespace/name` of the Lease.
    lease: String,
    name: String,
    identity: String,
    observed: Option<ObservedLease>,
}

/// The Lease as it last changed, and when that was observed.
#[derive(Debug)]
struct ObservedLease {
    spec: LeaseSpec,
    at: Instant,
}

impl Election {
    /// Creates a candidate named `identity`, which must be unique among the candidates.
    pub fn new(client: Client, clock: Clock, namespace: &str, name: &str, identity: &str) -> Self {
        Election {
            api: Api::namespaced(client, namespace),
            clock,
            lease: format!("{namespace}/{name}"),
            name: name.to_owned(),
            identity: identity.to_owned(),
            observed: None,
        }
    }

    /// Waits until this candidate holds the Lease.
    pub async fn won(&mut self) {
        let mut last = None;
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {
                    let holder = self.holder();
                    if last != holder {
                        let lease = &self.lease;
                        tracing::info!(
                            "{} leads by Lease {lease}; this process waits",
                            holder.as_deref().unwrap_or("nobody")
                        );
                        last = holder;
                    }
                }
                Err(error) => tracing::warn!(
                    "Lease {} cannot be taken, which is tried again in {} s: {error}",
                    self.lease,
                    PERIOD.as_secs()
                ),
            }
            sleep(PERIOD).await;
        }
    }

    /// Renews the Lease until it is lost, and returns why: another process holds it, or it could not be renewed
    /// before [`DEADLINE`]. The caller must stop acting when this returns.
    pub async fn lost(&mut self) -> String {
        let mut until = Instant::now() + DEADLINE;
        let mut why = None;
        loop {
            // Never beyond the deadline, or a leader would act while another one may lead.
            sleep_until((Instant::now() + PERIOD).min(until)).await;
            // The Lease is valid from the time of the request, not of the response.
            let begun = Instant::now();
            let failed = match timeout_at(until, self.attempt()).await {
                Ok(Ok(true)) => {
                    until = begun + DEADLINE;
                    continue;
                }
                Ok(Ok(false)) => {
                    let holder = self.holder().unwrap_or_default();
                    return format!("Lease {} is held by {holder}", self.lease);
                }
                Ok(Err(error)) => error,
                Err(_) => {
                    let why = why
                        .map_or_else(|| "no answer".to_owned(), |why: LeaseError| why.to_string());
                    return format!(
                        "Lease {} could not be renewed for {} s: {why}",
                        self.lease,
                        DEADLINE.as_secs()
                    );
                }
            };
            tracing::warn!("Lease {} could not be renewed: {failed}", self.lease);
            why = Some(failed);
        }
    }

    /// Gives the Lease back if this candidate holds it, so that the next one need not wait. Call it after
    /// everything that acts has stopped.
    pub async fn give_back(&mut self) {
        let given = async {
            let Some(lease) = self.api.get_opt(&self.name).await? else {
                return Ok(());
            };
            let spec = lease.spec.clone().unwrap_or_default();
            if spec.holder_identity.as_deref() != Some(&self.identity) {
                return Ok(());
            }
            let now = MicroTime(self.clock.now());
            let spec = LeaseSpec {
                // An empty holder tells the other candidates that the lease is free now, without a wait for its
                // expiry.
                holder_identity: Some(String::new()),
                lease_duration_seconds: Some(1),
                renew_time: Some(now.clone()),
                acquire_time: Some(now),
                ..spec
            };
            self.write(lease, spec).await
        };
        match timeout(PATIENCE, given).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let why = message(&error);
                tracing::warn!("Lease {} is not given back: {why}", self.lease);
            }
            Err(_) => tracing::warn!("Lease {} is not given back: no answer", self.lease),
        }
    }

    /// Returns the last observed holder of the Lease.
    fn holder(&self) -> Option<String> {
        let holder = self.observed.as_ref()?.spec.holder_identity.clone();
        holder.filter(|name| !name.is_empty())
    }

    /// Takes or renews the Lease. Returns `false` if another process holds it.
    async fn attempt(&mut self) -> Result<bool, LeaseError> {
        match timeout(PATIENCE, self.attempt_once()).await {
            Ok(Ok(held)) => Ok(held),
            // If another process was faster, the next try sees that it is the holder.
            Ok(Err(error)) => Err(LeaseError::Api(error)),
            Err(_) => Err(LeaseError::NoAnswer),
        }
    }

    async fn attempt_once(&mut self) -> kube::Result<bool> {
        let now = MicroTime(self.clock.now());
        let mine = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(0),
            ..LeaseSpec::default()
        };
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(mine),
            };
            let made = self.api.create(&PostParams::default(), &lease).await?;
            self.notice(made.spec.unwrap_or_default());
            // Whoever creates the Lease holds it, since a second creation fails.
            return Ok(true);
        };
        let found = lease.spec.clone().unwrap_or_default();
        // The expiry is measured from the moment when this process first saw the present content.
        self.notice(found.clone());
        let holder = found.holder_identity.as_deref().unwrap_or_default();
        let transitions = found.lease_transitions.unwrap_or_default();
        let is_mine = holder == self.identity;
        // The times in the Lease are another machine's, so only whether it changes counts.
        if !is_mine && !holder.is_empty() && !self.has_expired(&found) {
            return Ok(false);
        }
        let spec = if is_mine {
            // A renewal keeps the time and number of the acquisition.
            LeaseSpec {
                acquire_time: found.acquire_time,
                lease_transitions: Some(transitions),
                ..mine
            }
        } else {
            LeaseSpec {
                lease_transitions: Some(transitions + 1),
                ..mine
            }
        };
        self.write(lease, spec.clone()).await?;
        self.notice(spec);
        Ok(true)
    }

    /// Returns whether the Lease has not changed for as long as its holder declared it valid.
    fn has_expired(&self, found: &LeaseSpec) -> bool {
        let seconds = found.lease_duration_seconds.unwrap_or_default();
        let valid = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        self.observed
            .as_ref()
            .is_none_or(|observed| observed.at.elapsed() >= valid)
    }

    fn notice(&mut self, spec: LeaseSpec) {
        if self
            .observed
            .as_ref()
            .is_none_or(|observed| observed.spec != spec)
        {
            let at = Instant::now();
            self.observed = Some(ObservedLease { spec, at });
        }
    }

    /// Replaces the Lease that was read; fails with a conflict if another process wrote it in between.
    async fn write(&self, mut lease: Lease, spec: LeaseSpec) -> kube::Result<()> {
        lease.spec = Some(spec);
        let replaced = self
            .api
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        replaced.map(drop)
    }
}
