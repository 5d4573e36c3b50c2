//! Builds the status that the kubelet reports for one container.
//!
//! Invariant: the last error of a container that cannot start is reported until the container has started, however
//! often the start is retried in between (the kubelet's reason cache).

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
        ContainerStateWaiting, ContainerStatus, ResourceRequirements, VolumeMountStatus,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use mullion_engine::images::ImageRef;

use super::{Exit, Role, State, Unit};
use crate::kubelet::ids;

/// The inputs of a container's status that its [`Unit`] does not store.
pub(in crate::kubelet) struct ReportInputs<'a> {
    pub(in crate::kubelet) pod_uid: &'a str,
    /// The container in the pod's spec.
    pub(in crate::kubelet) container: Option<&'a Container>,
    /// The waiting reason of a container that was not started yet.
    pub(in crate::kubelet) waiting_reason: &'static str,
}

impl Unit {
    /// Returns the status that the kubelet reports.
    pub(in crate::kubelet) fn status(&self, subject: &ReportInputs<'_>) -> ContainerStatus {
        let mut status = ContainerStatus {
            name: self.name.to_string(),
            image: self.image.to_string(),
            restart_count: self.restarts(),
            started: Some(false),
            volume_mounts: subject.container.and_then(mounts),
            ..ContainerStatus::default()
        };
        let before = self.last.as_deref();
        let (state, last) = match &self.state {
            State::Running { since, probes, .. } => {
                let probes = probes.as_deref();
                status.started = Some(probes.is_none_or(|probes| probes.started()));
                status.ready = matches!(self.role, Role::App | Role::Sidecar)
                    && probes.is_none_or(|probes| probes.ready());
                let running = ContainerState {
                    running: Some(ContainerStateRunning {
                        started_at: Some(Time(*since)),
                    }),
                    ..ContainerState::default()
                };
                (running, before)
            }
            // An init container that succeeded counts as ready, as `kubectl` shows it.
            State::Exited { exit, .. } | State::Ended(exit) => {
                status.ready = self.role == Role::Init && exit.code == 0;
                (self.ended(exit, subject), before)
            }
            State::Idle
            | State::Pulling { .. }
            | State::Blocked { .. }
            | State::Configuring { .. }
            | State::Creating { .. }
            | State::CrashLoop { .. } => match (&self.failure, before) {
                (Some(failure), _) => (
                    waiting(failure.reason, Some(failure.message.clone())),
                    before,
                ),
                (None, before) if self.is_reset_by_restart_all() => {
                    (waiting(subject.waiting_reason, None), before)
                }
                // A container that restarts without a wait is shown as terminated until it runs again.
                (None, Some(exit)) => (self.ended(exit, subject), None),
                (None, None) => (waiting(subject.waiting_reason, None), None),
            },
        };
        status.last_state = last.map(|exit| self.ended(exit, subject));
        let seen = state.running.is_some()
            || state
                .terminated
                .as_ref()
                .is_some_and(|ended| ended.container_id.is_some())
            || status.last_state.is_some();
        if seen {
            status.container_id = Some(ids::container_id(
                subject.pod_uid,
                &self.name,
                self.restarts(),
            ));
            if let Ok(image) = ImageRef::parse(&self.image) {
                status.image = image.full_name();
                status.image_id = ids::repo_digest(&image);
            }
            let resources = subject.container.map(resources);
            status.allocated_resources = resources
                .as_ref()
                .and_then(|resources| resources.requests.clone());
            status.resources = resources;
        }
        if self.role == Role::Ephemeral {
            // An ephemeral container has neither probes nor resources.
            status.started = None;
            (status.allocated_resources, status.resources) = (None, None);
        }
        status.state = Some(state);
        status
    }

    fn ended(&self, exit: &Exit, subject: &ReportInputs<'_>) -> ContainerState {
        let terminated = ContainerStateTerminated {
            container_id: exit
                .attempt
                .map(|attempt| ids::container_id(subject.pod_uid, &self.name, attempt)),
            exit_code: exit.code,
            finished_at: exit.finished_at.map(Time),
            message: exit.message.map(str::to_owned),
            reason: Some(exit.reason.to_owned()),
            signal: None,
            started_at: exit.started_at.map(Time),
        };
        ContainerState {
            terminated: Some(terminated),
            ..ContainerState::default()
        }
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message,
        }),
        ..ContainerState::default()
    }
}

/// Returns the resources that the container was given: in a simulation those that it requests.
fn resources(container: &Container) -> ResourceRequirements {
    let asked = container.resources.clone().unwrap_or_default();
    let filled = |list: Option<BTreeMap<String, Quantity>>| list.filter(|list| !list.is_empty());
    ResourceRequirements {
        claims: asked.claims,
        limits: filled(asked.limits),
        requests: filled(asked.requests),
    }
}

fn mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref()?;
    let status = mounts.iter().map(|mount| VolumeMountStatus {
        mount_path: mount.mount_path.clone(),
        name: mount.name.clone(),
        read_only: mount.read_only.filter(|read_only| *read_only),
        recursive_read_only: (mount.read_only == Some(true)).then(|| {
            let enabled = mount.recursive_read_only.as_deref() == Some("Enabled");
            if enabled { "Enabled" } else { "Disabled" }.to_owned()
        }),
        volume_status: None,
    });
    Some(status.collect())
}
