//! Simulates the startup, liveness and readiness probes of one run of a container, with the kubelet's rules for
//! thresholds.
//!
//! A probe passes unless an annotation makes it fail for a while ([`super::annotations`]). Delays and periods are
//! simulated work, so the pace divides them; thresholds are those of the pod.
//!
//! Invariant: a worker ticks only while a tick can change the result or has a failure to record, so a healthy container
//! needs no timer.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Container, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{annotations::ProbeKind, pace::Pace};

/// The minimum time between two probes at any pace, because each failing probe records an event.
const SHORTEST_PERIOD: SignedDuration = SignedDuration::from_millis(100);

/// The period in which a probe fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failing {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

/// A result of a probe that the kubelet acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The probe failed.
    Failed(ProbeKind),
    /// The probe has reached its failure threshold, so the container must be killed.
    Kill(ProbeKind),
}

/// The probes of one run of a container.
#[derive(Clone, Debug)]
pub(super) struct Probes {
    startup: Option<Worker>,
    liveness: Option<Worker>,
    readiness: Option<Worker>,
}

impl Probes {
    /// Creates the probes of a run that began at `since`; `None` if the container has none. `failing` gives the period in
    /// which a kind of probe fails.
    pub(super) fn new(
        container: &Container,
        since: Timestamp,
        pace: Pace,
        failing: impl Fn(ProbeKind) -> Option<Failing>,
    ) -> Option<Self> {
        let worker = |probe: &Option<Probe>, kind| {
            let probe = probe.as_ref()?;
            Some(Worker::new(probe, since, pace, failing(kind)))
        };
        let mut probes = Self {
            startup: worker(&container.startup_probe, ProbeKind::Startup),
            liveness: worker(&container.liveness_probe, ProbeKind::Liveness),
            readiness: worker(&container.readiness_probe, ProbeKind::Readiness),
        };
        // A container counts as live until its probe fails; the other two kinds must first succeed.
        if let Some(liveness) = &mut probes.liveness {
            liveness.passing = true;
        }
        let any =
            probes.startup.is_some() || probes.liveness.is_some() || probes.readiness.is_some();
        any.then_some(probes)
    }

    /// Continues the probes of a running container, after a restart of the kubelet or a change of its annotations.
    pub(super) fn resumed(mut self, started: bool, ready: bool, now: Timestamp) -> Self {
        if let Some(startup) = &mut self.startup {
            startup.passing = started;
        }
        if let Some(readiness) = &mut self.readiness {
            readiness.passing = ready;
        }
        let workers = [&mut self.startup, &mut self.liveness, &mut self.readiness];
        for worker in workers.into_iter().flatten() {
            worker.resume(now);
        }
        self
    }

    /// Returns whether the container is started: its startup probe, if any, has passed.
    pub(super) fn started(&self) -> bool {
        self.startup.as_ref().is_none_or(|worker| worker.passing)
    }

    /// Returns whether the container is ready.
    pub(super) fn ready(&self) -> bool {
        self.started() && self.readiness.as_ref().is_none_or(|worker| worker.passing)
    }

    /// Returns the next time at which a probe changes its result or records a failure.
    pub(super) fn wake(&self) -> Option<Timestamp> {
        if !self.started() {
            return self.startup.as_ref().and_then(Worker::wake);
        }
        [&self.liveness, &self.readiness]
            .into_iter()
            .flatten()
            .filter_map(Worker::wake)
            .min()
    }

    /// Runs one probe if one is due at `now`.
    pub(super) fn probe(&mut self, now: Timestamp) -> Option<Outcome> {
        if !self.started() {
            let worker = self.startup.as_mut()?;
            if worker.wake()? > now {
                return None;
            }
            let at = worker.next_at;
            let outcome = worker.tick(ProbeKind::Startup);
            if worker.passing {
                // Liveness and readiness probes start only after the startup probe has passed.
                for worker in [&mut self.liveness, &mut self.readiness]
                    .into_iter()
                    .flatten()
                {
                    // Their first tick is not earlier than the startup probe's success, whatever their
                    // initial delay.
                    worker.next_at = worker.next_at.max(at);
                }
            }
            return outcome;
        }
        for (worker, kind) in [
            (&mut self.liveness, ProbeKind::Liveness),
            (&mut self.readiness, ProbeKind::Readiness),
        ] {
            if let Some(worker) = worker {
                while worker.wake().is_some_and(|at| at <= now) {
                    if let Some(outcome) = worker.tick(kind) {
                        return Some(outcome);
                    }
                }
            }
        }
        None
    }

    /// Returns whether a probe is due at `now`.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.wake().is_some_and(|at| at <= now)
    }
}

/// Returns the event message of a failing probe, by the kind of its handler; `ip` is the pod's address.
pub(super) fn failure_message(
    container: &Container,
    kind: ProbeKind,
    ip: &str,
    windows: bool,
) -> String {
    let (word, probe) = match kind {
        ProbeKind::Startup => ("Startup", &container.startup_probe),
        ProbeKind::Liveness => ("Liveness", &container.liveness_probe),
        ProbeKind::Readiness => ("Readiness", &container.readiness_probe),
    };
    let output = probe.as_ref().map_or_else(String::new, |probe| {
        if probe.http_get.is_some() {
            "HTTP probe failed with statuscode: 503".to_owned()
        } else if let Some(socket) = &probe.tcp_socket {
            let refused = if windows {
                "connectex: No connection could be made because the target machine actively refused it."
            } else {
                "connect: connection refused"
            };
            let host = socket.host.as_deref().unwrap_or(ip);
            format!("dial tcp {host}:{}: {refused}", port(container, &socket.port))
        } else if probe.grpc.is_some() {
            "service unhealthy (responded with \"NOT_SERVING\")".to_owned()
        } else {
            String::new()
        }
    });
    format!("{word} probe failed: {output}")
}

/// Returns the port number that a probe uses, by number or by name.
fn port(container: &Container, port: &IntOrString) -> i32 {
    match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_ref() == Some(name));
            named.map_or(0, |port| port.container_port)
        }
    }
}

/// The state of one probe.
#[derive(Clone, Debug)]
struct Worker {
    period: SignedDuration,
    successes_needed: i32,
    failures_needed: i32,
    failing: Option<Failing>,
    next_at: Timestamp,
    /// Whether the probe counts as passed, by its thresholds.
    passing: bool,
    /// The result of the last probe, and how many in a row had it.
    streak: (bool, i32),
}

impl Worker {
    fn new(probe: &Probe, since: Timestamp, pace: Pace, failing: Option<Failing>) -> Self {
        let seconds = |seconds: Option<i32>, default: i32| {
            SignedDuration::from_secs(i64::from(seconds.unwrap_or(default)))
        };
        Self {
            period: pace
                .of(seconds(probe.period_seconds, 10))
                // A high speed would otherwise turn one failing probe into thousands of events.
                .max(SHORTEST_PERIOD),
            successes_needed: probe.success_threshold.unwrap_or(1),
            failures_needed: probe.failure_threshold.unwrap_or(3),
            failing,
            next_at: pace.after(since, seconds(probe.initial_delay_seconds, 0)),
            passing: false,
            streak: (true, 0),
        }
    }

    fn resume(&mut self, now: Timestamp) {
        let missed = now.duration_since(self.next_at);
        if missed.is_positive() {
            self.next_at = self.tick_after(now);
        }
    }

    /// Returns the first tick at or after `moment`.
    fn tick_after(&self, moment: Timestamp) -> Timestamp {
        let behind = moment.duration_since(self.next_at).as_nanos();
        if behind <= 0 {
            return self.next_at;
        }
        let period = self.period.as_nanos();
        let ticks = behind.div_euclid(period) + i128::from(behind.rem_euclid(period) > 0);
        let ahead = i64::try_from(ticks * period).map(SignedDuration::from_nanos);
        ahead
            .ok()
            .and_then(|ahead| self.next_at.saturating_add(ahead).ok())
            .unwrap_or(Timestamp::MAX)
    }

    fn wake(&self) -> Option<Timestamp> {
        // A healthy probe has nothing to record until its next failure begins, so it needs no timer before.
        let settled = self.passing && self.streak.0;
        if !settled {
            return Some(self.next_at);
        }
        let failing = self
            .failing
            .filter(|failing| failing.until > self.next_at)?;
        let at = self.tick_after(failing.from);
        (at < failing.until).then_some(at)
    }

    /// Runs the probe at the time that [`Worker::wake`] returned.
    fn tick(&mut self, kind: ProbeKind) -> Option<Outcome> {
        let at = self.wake()?;
        self.next_at = at.saturating_add(self.period).unwrap_or(Timestamp::MAX);
        let passes = self
            .failing
            .is_none_or(|failing| at < failing.from || at >= failing.until);
        self.streak = match self.streak {
            (before, count) if before == passes => (passes, count.saturating_add(1)),
            _ => (passes, 1),
        };
        if passes {
            // Only the failure threshold ends a passing state, so a success below its own threshold keeps it.
            self.passing |= self.streak.1 >= self.successes_needed;
            return None;
        }
        if self.streak.1 < self.failures_needed {
            return Some(Outcome::Failed(kind));
        }
        self.passing = false;
        match kind {
            ProbeKind::Readiness => Some(Outcome::Failed(kind)),
            ProbeKind::Startup | ProbeKind::Liveness => Some(Outcome::Kill(kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("within range")
    }

    /// Returns second, outcome, started and ready after each probe, until `end_s`.
    fn probed(
        container: Value,
        kind: ProbeKind,
        window: (i64, i64),
        end_s: i64,
    ) -> Vec<(i64, Option<Outcome>, bool, bool)> {
        let mut container = container;
        container["name"] = json!("c");
        let container: Container = serde_json::from_value(container).expect("a container");
        let failing = Failing {
            from: at(window.0),
            until: at(window.1),
        };
        let failing = |asked| (asked == kind).then_some(failing);
        let mut probes =
            Probes::new(&container, at(0), Pace::REAL, failing).expect("it has probes");
        let mut seen = Vec::new();
        while let Some(now) = probes.wake().filter(|now| *now <= at(end_s)) {
            let outcome = probes.probe(now);
            seen.push((now.as_second(), outcome, probes.started(), probes.ready()));
            if matches!(outcome, Some(Outcome::Kill(_))) {
                break;
            }
        }
        seen
    }

    #[test]
    fn readiness_begins_when_the_startup_probe_has_passed_and_then_needs_no_timer() {
        let container = json!({
            "startupProbe": { "initialDelaySeconds": 5, "periodSeconds": 2 },
            "readinessProbe": { "initialDelaySeconds": 3, "successThreshold": 2, "periodSeconds": 4 },
        });
        assert_eq!(
            probed(container, ProbeKind::Startup, (0, 6), 100),
            [
                (5, Some(Outcome::Failed(ProbeKind::Startup)), false, false),
                (7, None, true, false),
                (7, None, true, false),
                (11, None, true, true),
            ]
        );
    }

    #[test]
    fn a_container_is_unready_after_as_many_failures_as_its_probe_allows_and_ready_again_after_a_success()
     {
        let container = json!({ "readinessProbe": { "periodSeconds": 10, "failureThreshold": 2 } });
        let failed = Some(Outcome::Failed(ProbeKind::Readiness));
        assert_eq!(
            probed(container, ProbeKind::Readiness, (15, 45), 1_000),
            [
                (0, None, true, true),
                (20, failed, true, true),
                (30, failed, true, false),
                (40, failed, true, false),
                (50, None, true, true),
            ]
        );
    }

    #[test]
    fn a_container_is_killed_when_its_liveness_or_startup_probe_has_failed_too_often() {
        for (key, kind) in [
            ("livenessProbe", ProbeKind::Liveness),
            ("startupProbe", ProbeKind::Startup),
        ] {
            let seen = probed(
                json!({ key: { "periodSeconds": 5 } }),
                kind,
                (0, 1_000),
                100,
            );
            let outcomes: Vec<_> = seen
                .iter()
                .map(|(at, outcome, ..)| (*at, *outcome))
                .collect();
            let failed = Some(Outcome::Failed(kind));
            assert_eq!(
                outcomes,
                [(0, failed), (5, failed), (10, Some(Outcome::Kill(kind)))]
            );
        }
    }
}
