//! Restarts all containers of a pod after one of them exited and a rule requests `RestartAllContainers` (kubelet:
//! RestartAllContainersOnContainerExits, enabled by default since 1.36). Running containers are stopped at once,
//! without hooks and in no particular order. Then the containers start again from the first init container, in the
//! same sandbox and with the same volumes.
//!
//! Invariant: the container that requested it waits for its own back-off, so that a pod does not restart in a tight
//! loop.

use jiff::Timestamp;

use super::{Parts, PodSim, grace_ends};
use crate::kubelet::{
    container::{State, Unit},
    restart,
};

/// The state while all containers are stopped to be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Restarting {
    /// The container whose exit requested it.
    asked: usize,
    /// Whether the stop signal was sent to the other containers.
    signaled: bool,
}

impl PodSim {
    /// Starts the restart of all containers if the container's exit requests it. Returns whether it does.
    pub(super) fn asks_for_restart_of_all(&mut self, index: usize, code: i32) -> bool {
        let container = self.container(&self.units[index]);
        let asks = container.is_some_and(|container| restart::of_all(container, code));
        if asks {
            self.restarting = Some(Restarting {
                asked: index,
                signaled: false,
            });
        }
        asks
    }

    /// Advances a restart of all containers. Returns whether containers may start, which they may not while others
    /// are being stopped.
    pub(super) fn advance_restart(&mut self, parts: &mut Parts<'_>, now: Timestamp) -> bool {
        let Some(Restarting { asked, signaled }) = self.restarting else {
            return true;
        };
        if !signaled {
            self.restarting = Some(Restarting {
                asked,
                signaled: true,
            });
            for index in 0..self.units.len() {
                self.drop_or_stop(index, parts, now);
            }
            // Containers that stop without delay have stopped now.
            self.go_on(parts, now);
        }
        if self.units.iter().any(Unit::is_running) {
            return false;
        }
        for index in 0..self.units.len() {
            self.reset_container(index, index == asked, now);
        }
        self.restarting = None;
        true
    }

    /// Stops a running container, and cancels a start in progress.
    fn drop_or_stop(&mut self, index: usize, parts: &Parts<'_>, now: Timestamp) {
        let unit = &mut self.units[index];
        // A start in progress has no container to stop yet; it begins anew with the others.
        if unit.is_coming_up() {
            unit.state = State::Idle;
        }
        if unit.is_running() {
            let message = format!("Stopping container {}", unit.name);
            self.event(false, "Killing", message, Some(index));
            self.stop_run(index, grace_ends(0, now), parts, now);
        }
    }

    /// Resets a stopped container so that it starts as if it had never run; only its history is kept.
    fn reset_container(&mut self, index: usize, asked: bool, now: Timestamp) {
        let unit = &mut self.units[index];
        // From here on status and phase treat the container as one that has not run since the restart.
        unit.starts_at_restart_all = unit.starts;
        match std::mem::replace(&mut unit.state, State::Idle) {
            State::Exited { exit, .. } | State::Ended(exit) if asked => {
                let ended = exit.finished_at.unwrap_or(now);
                self.units[index].state = self.start_again(index, exit, ended, now);
            }
            State::Exited { exit, .. } | State::Ended(exit) => unit.last = Some(exit),
            blocked @ State::Blocked { .. } => unit.state = blocked,
            _ => {}
        }
    }
}
