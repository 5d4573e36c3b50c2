//! How long the steps of an instance's life take, and the task that walks it through them.
//!
//! Invariant: states only go forward (pending, running, booted; stopped; shutting-down, terminated), whichever task comes first, but for a
//! stopped instance that is started again.

use std::{sync::Arc, time::Duration};

use mullion_engine::ip::Kind;
use tokio::time::sleep;

use super::{Inner, Random, boot::Boot, interface::Interface};
use crate::{Instance, InstanceId, InstanceState};

/// The call that buys an instance.
pub(super) const LAUNCH_CALL: Duration = Duration::from_millis(1_500);

/// Steps of one instance's life, at speed 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    pending: Duration,
    boot: Duration,
    shutdown: Duration,
}

impl Steps {
    /// What nodes of an image take, up to a tenth longer.
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

/// Walks an instance of an earlier process on to where it was going.
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
        InstanceState::ShuttingDown => shut_down(inner, &instance.id, steps),
        _ => {}
    }
}

/// Walks a new instance to booted.
pub(super) fn boot(inner: &Arc<Inner>, id: &InstanceId, steps: Steps) {
    boot_from(inner, id, steps, Duration::ZERO);
}

/// Walks an instance of some age to booted.
fn boot_from(inner: &Arc<Inner>, id: &InstanceId, steps: Steps, age: Duration) {
    let speed = inner.config.speed;
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

/// Walks an instance that was told to stop to terminated.
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
    /// Changes an instance if it is still in this state.
    fn update_if(&self, id: &InstanceId, state: InstanceState, edit: impl FnOnce(&mut Instance)) {
        self.update_when(id, |instance| instance.state == state, edit);
    }

    /// Terminates an instance and gives its addresses back: in one step, so that they are written down as free before another instance
    /// can have them.
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
