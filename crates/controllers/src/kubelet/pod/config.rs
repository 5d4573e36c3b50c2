//! Resolves a pod's references to ConfigMaps, Secrets and claims: for volumes before the sandbox is created, for
//! environments before each start of a container.
//!
//! The state machine of a pod does no I/O: it emits a question ([`Effect::Ask`]), receives the answer
//! ([`PodSim::answer`]), and uses it in the next step. A volume that cannot be filled is retried with the reconciler's
//! back-off, a container that cannot be configured at the kubelet's next sync; both are controllers' timers and
//! therefore real time.
//!
//! Invariant: at most one question is open per volume, per container and for the pod's devices, and a pod without
//! references never asks.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{Effect, Parts, PodSim, Sandbox, sync};
use crate::kubelet::{
    config::{self, FoundObjects, Object},
    container::{Retry, State},
    identity,
};

/// The first back-off after a volume could not be filled; each later one is twice as long.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_millis(500);
/// The longest back-off.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(122);
/// How long a kubelet waits for a pod's volumes before it reports a timeout; soon after that it starts to wait again.
const PATIENCE: SignedDuration = SignedDuration::from_secs(123);

/// The part of a pod that needs the result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupPurpose {
    /// A volume, by its position in the pod's spec.
    Volume(usize),
    /// A container, by its position among the pod's containers.
    Container(usize),
    /// The devices that the pod claims.
    Devices,
}

/// A lookup of objects in the pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLookup {
    /// The part of the pod that needs the result.
    pub purpose: LookupPurpose,
    /// The objects to look up.
    pub objects: BTreeSet<Object>,
}

/// The progress of a pod's volumes that are filled from objects.
#[derive(Clone, Debug)]
pub(super) enum Volumes {
    /// No volume has been checked yet.
    New,
    /// Some volumes are not filled yet.
    Pending(Box<Pending>),
    /// All volumes are filled, or there are none.
    Mounted,
}

/// Volumes that are being filled, and when the wait for them times out.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    mounts: Vec<Mount>,
    patience_ends: Timestamp,
}

#[derive(Clone, Debug)]
struct Mount {
    /// Position in `spec.volumes`.
    index: usize,
    state: MountState,
    /// The length of the last back-off.
    pause: SignedDuration,
}

#[derive(Clone, Debug)]
enum MountState {
    /// A question is open.
    Asking,
    /// The answer has arrived and is checked in the next step.
    Answered(FoundObjects),
    /// The volume could not be filled, or has not been tried.
    Failed {
        retry_at: Timestamp,
    },
    Done,
}

impl Volumes {
    /// Returns when the volumes need the next step.
    pub(super) fn wake(&self) -> Option<Timestamp> {
        let Self::Pending(pending) = self else {
            return None;
        };
        let retries = pending.mounts.iter().filter_map(|mount| match mount.state {
            MountState::Failed { retry_at } => Some(retry_at),
            _ => None,
        });
        retries.chain([pending.patience_ends]).min()
    }
}

impl PodSim {
    /// Stores the answer to a question; the next step uses it. An answer that is no longer awaited is dropped.
    pub fn answer(&mut self, purpose: LookupPurpose, found: FoundObjects) {
        match purpose {
            LookupPurpose::Volume(index) => {
                if let Volumes::Pending(pending) = &mut self.volumes
                    && let Some(mount) =
                        pending.mounts.iter_mut().find(|mount| mount.index == index)
                    // A late answer to a question that was given up must not overwrite a newer state.
                    && matches!(mount.state, MountState::Asking)
                {
                    mount.state = MountState::Answered(found);
                }
            }
            LookupPurpose::Devices => {
                if let Sandbox::Asking = self.sandbox {
                    self.sandbox = Sandbox::Answered(Box::new(found));
                }
            }
            LookupPurpose::Container(index) => {
                if let Some(unit) = self.units.get_mut(index)
                    && let State::Configuring { found: answer } = &mut unit.state
                {
                    *answer = Some(Box::new(found));
                }
            }
        }
    }

    /// Advances the volumes; returns whether all of them are filled.
    pub(super) fn advance_volumes(&mut self, now: Timestamp) -> bool {
        let mut pending = match std::mem::replace(&mut self.volumes, Volumes::Mounted) {
            Volumes::Mounted => return true,
            Volumes::Pending(pending) => pending,
            Volumes::New => {
                let mounts = self.mounts(now);
                if mounts.is_empty() {
                    return true;
                }
                Box::new(Pending {
                    mounts,
                    patience_ends: later(now, PATIENCE),
                })
            }
        };
        for mount in &mut pending.mounts {
            self.advance_mount(mount, now);
        }
        let missing: Vec<_> = pending
            .mounts
            .iter()
            .filter(|mount| !matches!(mount.state, MountState::Done))
            .map(|mount| self.volume_name(mount.index))
            .collect();
        if missing.is_empty() {
            return true;
        }
        if pending.patience_ends <= now {
            let message = format!(
                "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], \
                 failed to process volumes=[]: context deadline exceeded",
                missing.join(" ")
            );
            self.event(true, "FailedMount", message, None);
            // The kubelet syncs the pod again some time after the error, and only then begins to wait again.
            // The next event follows after the resync and a whole wait, so a stuck volume records one about
            // every two minutes.
            pending.patience_ends = later(now, sync::RESYNC_AFTER_ERROR + PATIENCE);
        }
        self.volumes = Volumes::Pending(pending);
        false
    }

    /// Returns the volumes that need objects, due at once.
    fn mounts(&self, now: Timestamp) -> Vec<Mount> {
        let volumes = self.spec().volumes.iter().flatten().enumerate();
        volumes
            .filter(|(_, volume)| !config::of_volume(volume, self.name()).is_empty())
            .map(|(index, _)| Mount {
                index,
                state: MountState::Failed { retry_at: now },
                pause: SignedDuration::ZERO,
            })
            .collect()
    }

    fn advance_mount(&mut self, mount: &mut Mount, now: Timestamp) {
        let volumes = self.spec().volumes.as_ref();
        let volume = volumes.and_then(|volumes| volumes.get(mount.index));
        let pod = self.name().to_owned();
        let uses = volume.map(|volume| config::of_volume(volume, &pod));
        let uses = uses.unwrap_or_default();
        let claim = volume.and_then(|volume| config::claim_of(volume, &pod));
        match &mount.state {
            MountState::Failed { retry_at } if *retry_at <= now => {
                mount.state = MountState::Asking;
                let objects = uses.objects();
                self.ask(LookupPurpose::Volume(mount.index), objects);
            }
            // The kubelet waits for a volume to be attached without an event.
            MountState::Answered(found) if uses.is_attaching(found) => {
                mount.state = MountState::Failed {
                    retry_at: later(now, FIRST_PAUSE),
                };
            }
            MountState::Answered(found) => {
                let Err(error) = uses.payload(found) else {
                    mount.state = MountState::Done;
                    return;
                };
                let name = self.volume_name(mount.index);
                if let Some(claim) = claim {
                    let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
                    let message = format!(
                        "Unable to attach or mount volumes: unmounted volumes=[{name}], unattached volumes=[], \
                         failed to process volumes=[{name}]: error processing PVC {namespace}/{claim}: {error}"
                    );
                    self.event(true, "FailedMount", message, None);
                    mount.state = MountState::Failed {
                        retry_at: later(now, sync::RESYNC_AFTER_ERROR),
                    };
                    return;
                }
                let message = format!("MountVolume.SetUp failed for volume \"{name}\" : {error}");
                self.event(true, "FailedMount", message, None);
                mount.pause = (mount.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                mount.state = MountState::Failed {
                    retry_at: later(now, mount.pause),
                };
            }
            _ => {}
        }
    }

    fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    fn volume_name(&self, index: usize) -> String {
        let volume = self.spec().volumes.as_ref().and_then(|all| all.get(index));
        volume.map(|volume| volume.name.clone()).unwrap_or_default()
    }

    /// Returns the state that follows when a container's image is present: it is created, after a lookup if its
    /// environment needs one.
    pub(super) fn configure(&mut self, index: usize, parts: &Parts<'_>, now: Timestamp) -> State {
        let container = self.container(&self.units[index]);
        let objects = container.map(|container| config::of_container(container).objects());
        let objects = objects.unwrap_or_default();
        if objects.is_empty() {
            return self.create(index, parts, now);
        }
        self.ask(LookupPurpose::Container(index), objects);
        State::Configuring { found: None }
    }

    /// Returns the state that follows the answer to that lookup.
    pub(super) fn configured(
        &mut self,
        index: usize,
        found: &FoundObjects,
        parts: &Parts<'_>,
        now: Timestamp,
    ) -> State {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        let uses = self.container(&self.units[index]).map(config::of_container);
        match uses.unwrap_or_default().environment(namespace, found) {
            Ok(()) => self.create(index, parts, now),
            Err(error) => self.refused(index, "CreateContainerConfigError", error.to_string(), now),
        }
    }

    /// Returns the state that follows a complete environment: the container is created, unless its account violates
    /// `runAsNonRoot`.
    fn create(&mut self, index: usize, parts: &Parts<'_>, now: Timestamp) -> State {
        let container = self.container(&self.units[index]);
        let error = container
            .filter(|_| parts.facts.is_windows())
            .and_then(|own| identity::breaks_non_root(&self.pod, own, &self.reference()));
        match error {
            None => sync::creating(parts, now),
            Some(error) => self.refused(index, "CreateContainerConfigError", error, now),
        }
    }

    /// Returns the state of a container that cannot be created or started; it is retried at the kubelet's next sync.
    pub(super) fn refused(
        &mut self,
        index: usize,
        reason: &'static str,
        error: String,
        now: Timestamp,
    ) -> State {
        self.event(true, "Failed", format!("Error: {error}"), Some(index));
        self.failed(index, reason, error);
        State::Blocked {
            retry: Some(Box::new(Retry {
                backing_off_at: None,
                at: later(now, sync::RESYNC_AFTER_ERROR),
            })),
        }
    }

    pub(super) fn ask(&mut self, purpose: LookupPurpose, objects: BTreeSet<Object>) {
        self.effects
            .push(Effect::Ask(ObjectLookup { purpose, objects }));
    }
}

fn later(now: Timestamp, pause: SignedDuration) -> Timestamp {
    now.saturating_add(pause).unwrap_or(Timestamp::MAX)
}
