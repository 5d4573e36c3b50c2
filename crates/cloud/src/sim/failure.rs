//! Failures of instances: stops, spot interruptions, maintenance, failed status checks.
//!
//! Invariant: a stopped instance runs again only through [`SimulatedEc2::start`]; a spot instance is terminated [`NOTICE`]
//! after its interruption notice, unless the interruption is called off.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{Inner, SimulatedEc2, life};
use crate::{Impairment, Instance, InstanceId, InstanceState, MessageKind, StatusCheck};

/// The time from a spot interruption notice to the termination. Pods' grace periods and controllers' timers are real, so
/// this is not divided by the speed.
pub const NOTICE: Duration = Duration::from_secs(120);

impl SimulatedEc2 {
    /// Stops an instance without notice, as when its host fails. Returns whether it was pending or running.
    pub fn stop(&self, id: &InstanceId) -> bool {
        let alive = |instance: &Instance| instance.state.is_alive();
        self.inner.update_when(id, alive, |instance| {
            instance.state = InstanceState::Stopped;
            instance.booted = false;
        })
    }

    /// Starts a stopped instance, which then boots. Returns whether it was stopped.
    pub fn start(&self, id: &InstanceId) -> bool {
        let stopped = |instance: &Instance| instance.state == InstanceState::Stopped;
        let started = self.inner.update_when(id, stopped, |instance| {
            instance.state = InstanceState::Pending;
        });
        if let Some(instance) = self.instance(id).filter(|_| started) {
            life::boot(&self.inner, id, self.steps(&instance));
        }
        started
    }

    /// Sends the interruption notice for a spot instance, or one of an interruptible capacity reservation, and terminates it
    /// after [`NOTICE`].
    pub fn interrupt(&self, id: &InstanceId) {
        let until = Instant::now() + NOTICE;
        let instance = self.instance(id);
        let reservation = instance.and_then(|instance| instance.reservation.clone());
        let kind = if reservation.is_some_and(|own| own.interruptible) {
            MessageKind::ReservationInterruption
        } else {
            MessageKind::SpotInterruption
        };
        {
            let state = &mut *self.state();
            state.queue.send(kind, id);
            // The task compares this time with its own, so that a second notice, or one that was called off
            // and sent again, is not cut short by the first one's task.
            state.interrupted.insert(id.clone(), until);
        }
        let (weak, id) = (Arc::downgrade(&self.inner), id.clone());
        tokio::spawn(async move {
            sleep_until(until).await;
            let Some(inner) = weak.upgrade() else { return };
            let ec2 = SimulatedEc2 { inner };
            let is_due = {
                let interrupted = &mut ec2.state().interrupted;
                let is_due = interrupted.get(&id) == Some(&until);
                if is_due {
                    interrupted.remove(&id);
                }
                is_due
            };
            if is_due {
                ec2.end(&id);
            }
        });
    }

    /// Calls off the interruption of a spot instance. Returns whether it was still pending.
    pub fn call_off_interruption(&self, id: &InstanceId) -> bool {
        self.state().interrupted.remove(id).is_some()
    }

    /// Sends a rebalance recommendation for a spot instance.
    pub fn recommend_rebalance(&self, id: &InstanceId) {
        let kind = MessageKind::RebalanceRecommendation;
        self.state().queue.send(kind, id);
    }

    /// Announces scheduled maintenance of an instance.
    pub fn schedule_maintenance(&self, id: &InstanceId) {
        let kind = MessageKind::ScheduledChange;
        self.state().queue.send(kind, id);
        self.impair(id, StatusCheck::Event);
    }

    /// Lets an instance fail a status check until [`SimulatedEc2::repair`].
    pub fn impair(&self, id: &InstanceId, check: StatusCheck) {
        let since = self.inner.clock.now();
        let key = (id.clone(), check);
        self.state().impaired.entry(key).or_insert(since);
    }

    /// Lets an instance pass all status checks again.
    pub fn repair(&self, id: &InstanceId) {
        self.state().impaired.retain(|(own, _), _| own != id);
    }

    /// Returns the failed status checks of running instances, and drops those of terminated ones.
    pub(super) fn impaired(&self) -> Vec<Impairment> {
        let state = &mut *self.state();
        let fleet = &state.fleet;
        let impaired = &mut state.impaired;
        // Stopped instances keep their checks, which fail again when they run.
        impaired.retain(|(id, _), _| {
            let instance = fleet.get(id);
            instance.is_some_and(|own| own.state != InstanceState::Terminated)
        });
        let runs = |id: &InstanceId| {
            let instance = fleet.get(id);
            instance.is_some_and(|own| own.state == InstanceState::Running)
        };
        let failing = impaired.iter().filter(|((id, _), _)| runs(id));
        failing
            .map(|((id, check), since)| Impairment {
                instance: id.clone(),
                check: *check,
                since: *since,
            })
            .collect()
    }

    /// Terminates an instance. Returns `false` if it was shutting down or terminated already.
    pub(super) fn end(&self, id: &InstanceId) -> bool {
        let is_there = |instance: &Instance| instance.state < InstanceState::ShuttingDown;
        // Checked again under the lock below; here it only avoids drawing random numbers for nothing.
        let Some(instance) = self.instance(id).filter(|own| is_there(own)) else {
            return false;
        };
        let steps = self.steps(&instance);
        let begun = self.inner.update_when(id, is_there, |instance| {
            instance.state = InstanceState::ShuttingDown;
        });
        if begun {
            life::shut_down(&self.inner, id, steps);
        }
        begun
    }

    fn steps(&self, instance: &Instance) -> life::Steps {
        let typical = self.inner.config.node_profiles.of(instance.image.family);
        life::Steps::of(typical, &mut self.state().random)
    }
}

impl Inner {
    /// Changes an instance if `wanted` is true for it, and notifies followers. Returns whether it was changed.
    pub(super) fn update_when(
        &self,
        id: &InstanceId,
        wanted: impl Fn(&Instance) -> bool,
        edit: impl FnOnce(&mut Instance),
    ) -> bool {
        let mut state = self.state();
        if !state.fleet.get(id).is_some_and(|instance| wanted(instance)) {
            return false;
        }
        let revision = state.update(id, edit);
        drop(state);
        if let Some(revision) = revision {
            self.changed.send_replace(revision);
        }
        true
    }
}
