//! Acts on the results of a container's probes: records events, and restarts a container that failed too often.
//!
//! As in the kubelet, the restart back-off is measured from the previous exit. A container whose liveness probe
//! fails once a minute is therefore restarted at once until its back-off is longer than that.

use jiff::Timestamp;

use super::{Parts, PodSim, grace_ends};
use crate::kubelet::{
    annotations::ProbeKind,
    container::{Exit, Role, State},
    probes::{self, Outcome},
    restart,
};

impl PodSim {
    /// Probes a running container once if a probe is due.
    pub(super) fn probe(&mut self, index: usize, parts: &Parts<'_>, now: Timestamp) {
        let State::Running {
            probes: Some(probes),
            ..
        } = &mut self.units[index].state
        else {
            return;
        };
        match probes.probe(now) {
            None => {}
            Some(Outcome::Failed(kind)) => self.unhealthy(index, kind, parts),
            Some(Outcome::Kill(kind)) => {
                self.unhealthy(index, kind, parts);
                self.condemn(index, kind, parts, now);
            }
        }
    }

    /// Plans the present runs again after the simulation annotations changed.
    pub(super) fn replan_runs(&mut self, parts: &Parts<'_>, now: Timestamp) {
        for index in 0..self.units.len() {
            let State::Running {
                since,
                being_killed: false,
                ..
            } = self.units[index].state
            else {
                continue;
            };
            let plan = self.plan_run(index, since, parts);
            if let State::Running { exit, probes, .. } = &mut self.units[index].state {
                let (started, ready) = probes
                    .as_ref()
                    .map_or((true, true), |probes| (probes.started(), probes.ready()));
                *exit = plan.exit;
                *probes = plan
                    .probes
                    // A container that has started and is ready stays so: only what its probes will answer
                    // has changed.
                    .map(|probes| Box::new(probes.resumed(started, ready, now)));
            }
        }
    }

    /// Returns whether a container that is stopped because of a failed probe is restarted.
    pub(super) fn restarts_after_failed_probe(&self, index: usize) -> bool {
        let unit = &self.units[index];
        let asks = |container| restart::after_failed_probe(container, self.spec());
        unit.role == Role::Sidecar || self.container(unit).is_some_and(asks)
    }

    /// Returns the next state of a container that stopped because of a failed probe.
    pub(super) fn replace_after_failed_probe(
        &mut self,
        index: usize,
        exit: Box<Exit>,
        now: Timestamp,
    ) -> State {
        let before = self.units[index].last.as_ref();
        match before.and_then(|last| last.finished_at) {
            Some(before) => self.start_again(index, exit, before, now),
            None => {
                // This was the first run, so there is no earlier exit from which a back-off could be
                // measured.
                self.units[index].last = Some(exit);
                State::Idle
            }
        }
    }

    fn unhealthy(&mut self, index: usize, kind: ProbeKind, parts: &Parts<'_>) {
        let ip = match self.ip {
            Some(ip) => ip.to_string(),
            None => parts.facts.internal_ip.to_string(),
        };
        let container = self.container(&self.units[index]);
        let message = container.map(|container| {
            probes::failure_message(container, kind, &ip, parts.facts.is_windows())
        });
        self.event(true, "Unhealthy", message.unwrap_or_default(), Some(index));
    }

    /// Stops a container whose probe failed too often.
    fn condemn(&mut self, index: usize, kind: ProbeKind, parts: &Parts<'_>, now: Timestamp) {
        let word = match kind {
            ProbeKind::Startup => "startup",
            ProbeKind::Liveness | ProbeKind::Readiness => "liveness",
        };
        let ending = if self.restarts_after_failed_probe(index) {
            ", will be restarted"
        } else {
            ""
        };
        let name = &self.units[index].name;
        let message = format!("Container {name} failed {word} probe{ending}");
        self.event(false, "Killing", message, Some(index));
        let probe = self.container(&self.units[index]).and_then(|container| {
            match kind {
                ProbeKind::Startup => container.startup_probe.as_ref(),
                ProbeKind::Liveness | ProbeKind::Readiness => container.liveness_probe.as_ref(),
            }?
            .termination_grace_period_seconds
        });
        // A probe may shorten the grace period of its kill, since a container that hangs would use all of it.
        let grace_s = probe.or(self.spec().termination_grace_period_seconds);
        if let State::Running { being_killed, .. } = &mut self.units[index].state {
            *being_killed = true;
        }
        self.stop_run(index, grace_ends(grace_s.unwrap_or(30), now), parts, now);
    }
}
