//! The durations of the steps of an instance's life, and the tasks that move the instance through them.
//!
//! Invariant: states only advance (pending, running, booted; stopped; shutting-down, terminated), whichever task runs first, unless a
//! stopped instance is started again.

use std::{sync::Arc, time::Duration};

use mullion_engine::ip::Kind;
use tokio::time::sleep;

use super::{Inner, Random, boot::Boot, interface::Interface};
use crate::{Instance, InstanceId, InstanceState};

/// The duration of the call that launches an instance.
pub(super) const LAUNCH_CALL: Duration = Duration::from_millis(1_500);

/// The durations of one instance's steps, at speed 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    pending: Duration,
    boot: Duration,
    shutdown: Duration,
}

impl Steps {
    /// Returns the typical durations of an image's nodes, each up to a tenth longer.
    pub(super) fn of(typical: Boot, random: &mut Random) -> Self {
        let mut about = |time: Duration| {
            let ms = time.as_millis() as u64;
            Duration::from_millis(ms + random.below(ms / 10))
        };
        Self {
            pending: about(typical.pending),
            boot: about(typical.boot),
            shutdown: about(typical.shutdown),
        }
    }
}

/// Continues the life of an instance that an earlier process launched.
pub(super) fn go_on(inner: &Arc<Inner>, instance: &Instance) {
    let typical = inner.config.node_profiles.of(instance.image.family);
    let steps = Steps::of(typical, &mut inner.state().random);
    let now = inner.clock.now();
    match instance.state {
        InstanceState::Pending | InstanceState::Running if !instance.booted => {
            let age = now.duration_since(instance.launched_at);
            let age = Duration::try_from(age).unwrap_or_default();
            boot_from(inner, &instance.id, steps, age);
        }
        // When the shutdown began is not stored, so it takes its whole time again.
        InstanceState::ShuttingDown => shut_down(inner, &instance.id, steps),
        _ => {}
    }
}

/// Boots a new instance.
pub(super) fn boot(inner: &Arc<Inner>, id: &InstanceId, steps: Steps) {
    boot_from(inner, id, steps, Duration::ZERO);
}

/// Boots an instance of some age: the time since its launch counts.
fn boot_from(inner: &Arc<Inner>, id: &InstanceId, steps: Steps, age: Duration) {
    let speed = inner.config.speed;
    // At full speed the instance is ready when the launch returns, without waiting for a task to run.
    if speed.scale(steps.boot).is_zero() {
        inner.update(id, |instance| {
            instance.state = InstanceState::Running;
            instance.booted = true;
        });
        return;
    }
    let runs_at = speed.scale(steps.pending);
    let booted_at = runs_at + speed.scale(steps.boot);
    let runs_in = runs_at.saturating_sub(age);
    // An instance that should have booted while the process was down is ready at once.
    let boots_in = booted_at.saturating_sub(age).saturating_sub(runs_in);
    let (weak, id) = (Arc::downgrade(inner), id.clone());
    tokio::spawn(async move {
        sleep(runs_in).await;
        let Some(inner) = weak.upgrade() else { return };
        inner.update_if(&id, InstanceState::Pending, |instance| {
            instance.state = InstanceState::Running;
        });
        drop(inner);
        sleep(boots_in).await;
        let Some(inner) = weak.upgrade() else { return };
        inner.update_if(&id, InstanceState::Running, |instance| {
            instance.booted = true;
        });
    });
}

/// Terminates an instance that is shutting down.
pub(super) fn shut_down(inner: &Arc<Inner>, id: &InstanceId, steps: Steps) {
    let delay = inner.config.speed.scale(steps.shutdown);
    if delay.is_zero() {
        inner.finish(id);
        return;
    }
    let (weak, id) = (Arc::downgrade(inner), id.clone());
    tokio::spawn(async move {
        sleep(delay).await;
        if let Some(inner) = weak.upgrade() {
            inner.finish(&id);
        }
    });
}

impl Inner {
    /// Changes an instance if it still has this state.
    fn update_if(&self, id: &InstanceId, state: InstanceState, edit: impl FnOnce(&mut Instance)) {
        self.update_when(id, |instance| instance.state == state, edit);
    }

    /// Terminates an instance and releases its addresses in one step, so that they are recorded as free before another instance can get
    /// them.
    fn finish(&self, id: &InstanceId) {
        let mut state = self.state();
        let Some(instance) = state.fleet.get(id).cloned() else {
            return;
        };
        let interface = state.fleet.interface(id).map(std::mem::take);
        for (kind, first) in interface.iter().flat_map(Interface::all) {
            state.network.give_back(&instance.subnet, kind, first);
        }
        let primary = instance.private_ip;
        let network = &mut state.network;
        network.give_back(&instance.subnet, Kind::Address, primary);
        let revision = state.update(id, |instance| {
            instance.state = InstanceState::Terminated;
            instance.booted = false;
        });
        drop(state);
        if let Some(revision) = revision {
            self.changed.send_replace(revision);
        }
    }
}
