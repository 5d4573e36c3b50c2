//! How all containers of a pod start anew because one of them exited as a rule with `RestartAllContainers` says (kubelet:
//! RestartAllContainersOnContainerExits, on since 1.36). What runs is stopped at once, without hooks and in no order; then the containers
//! come up from the first init container on, in the sandbox and with the volumes they had.
//!
//! Invariant: the container that asked for it waits as long as its own back-off says, so that a pod does not go round in circles.

use jiff::Timestamp;

use super::{Parts, PodSim, grace_ends};
use crate::kubelet::{
    container::{State, Unit},
    restart,
};

/// All containers are being stopped to be started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Restarting {
    /// The container whose exit asked for it.
    asked: usize,
    /// Whether the stop signal was sent to the other containers.
    signaled: bool,
}

impl PodSim {
    /// Notes that all are to start anew if the exit of a container asks for it.
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

    /// Whether the containers may come up: not while others are being stopped for a new start.
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
            // Those that stop at once have.
            self.go_on(parts, now);
        }
        if self.units.iter().any(Unit::is_running) {
            return false;
        }
        for index in 0..self.units.len() {
            self.begin_anew(index, index == asked, now);
        }
        self.restarting = None;
        true
    }

    /// Stops what runs, and gives up what was about to.
    fn drop_or_stop(&mut self, index: usize, parts: &Parts<'_>, now: Timestamp) {
        let unit = &mut self.units[index];
        if unit.is_coming_up() {
            unit.state = State::Idle;
        }
        if unit.is_running() {
            let message = format!("Stopping container {}", unit.name);
            self.event(false, "Killing", message, Some(index));
            self.stop_run(index, grace_ends(0, now), parts, now);
        }
    }

    /// Lets a container that has stopped be started as if it had never run; only its history stays.
    fn begin_anew(&mut self, index: usize, asked: bool, now: Timestamp) {
        let unit = &mut self.units[index];
        unit.anew_at = unit.starts;
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
