//! What happens to instances that nobody asked for: stops, spot interruptions, maintenance, checks that fail.
//!
//! Invariant: what an instance has lost it gets back only by [`SimulatedEc2::start`]; a spot instance is taken back [`NOTICE`] after its
//! interruption, unless that is called off.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{Inner, SimulatedEc2, life};
use crate::{Impairment, Instance, InstanceId, InstanceState, MessageKind, StatusCheck};

/// From a spot interruption's message to its end. Pods' grace periods and controllers' timers are real, so this is not divided by the speed.
pub const NOTICE: Duration = Duration::from_secs(120);

impl SimulatedEc2 {
    /// Stops an instance without notice, as when its host fails. Returns whether it ran.
    pub fn stop(&self, id: &InstanceId) -> bool {
        let alive = |instance: &Instance| instance.state.is_alive();
        self.inner.update_when(id, alive, |instance| {
            instance.state = InstanceState::Stopped;
            instance.booted = false;
        })
    }

    /// Starts a stopped instance, which boots anew. Returns whether it was stopped.
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

    /// Says that a spot instance will be taken back, and does so after [`NOTICE`].
    pub fn interrupt(&self, id: &InstanceId) {
        let until = Instant::now() + NOTICE;
        {
            let state = &mut *self.state();
            state.queue.send(MessageKind::SpotInterruption, id);
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

    /// Lets a spot instance run on whose interruption has been told. Returns whether that was still possible.
    pub fn call_off_interruption(&self, id: &InstanceId) -> bool {
        self.state().interrupted.remove(id).is_some()
    }

    /// Says that a spot instance is more likely than others to be taken back.
    pub fn recommend_rebalance(&self, id: &InstanceId) {
        let kind = MessageKind::RebalanceRecommendation;
        self.state().queue.send(kind, id);
    }

    /// Says that maintenance is ahead of an instance.
    pub fn schedule_maintenance(&self, id: &InstanceId) {
        let kind = MessageKind::ScheduledChange;
        self.state().queue.send(kind, id);
        self.impair(id, StatusCheck::Event);
    }

    /// Lets an instance fail a check from now on, until [`SimulatedEc2::repair`].
    pub fn impair(&self, id: &InstanceId, check: StatusCheck) {
        let since = self.inner.clock.now();
        let key = (id.clone(), check);
        self.state().impaired.entry(key).or_insert(since);
    }

    /// Lets an instance pass all checks again.
    pub fn repair(&self, id: &InstanceId) {
        self.state().impaired.retain(|(own, _), _| own != id);
    }

    /// The checks that instances fail; those that are not running are not checked.
    pub(super) fn impaired(&self) -> Vec<Impairment> {
        let state = &mut *self.state();
        let fleet = &state.fleet;
        let impaired = &mut state.impaired;
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

    /// Starts the end of an instance. Returns whether it was not begun before.
    pub(super) fn end(&self, id: &InstanceId) -> bool {
        let is_there = |instance: &Instance| instance.state < InstanceState::ShuttingDown;
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
    /// Changes an instance if it is as wanted, and wakes those who follow. Returns whether it was.
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
