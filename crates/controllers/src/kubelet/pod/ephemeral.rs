//! Ephemeral containers, which are added to an existing pod to inspect it (`kubectl debug`).
//!
//! They need no resources and do not wait for their turn: each is pulled and started as soon as the sandbox is up,
//! at the same time as other containers. None is started twice or removed, and they do not affect whether the pod
//! is ready or over.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer};

use super::PodSim;
use crate::kubelet::container::{Role, Unit};

impl PodSim {
    /// Adds the ephemeral containers that are new in the pod's spec. Returns `true` if there are any.
    pub(super) fn take_ephemeral(&mut self) -> bool {
        let spec = self.pod.spec.as_ref();
        let asked = spec.and_then(|spec| spec.ephemeral_containers.as_deref());
        // Ephemeral containers are only ever appended, so those behind the known ones are new.
        let known = self.ephemeral.len();
        let Some(more @ [_, ..]) = asked.and_then(|asked| asked.get(known..)) else {
            return false;
        };
        let more: Vec<Container> = more.iter().map(container).collect();
        let mut units = std::mem::take(&mut self.units).into_vec();
        for (at, container) in more.iter().enumerate() {
            units.push(Unit::new(container, Role::Ephemeral, known + at));
        }
        self.units = units.into();
        let mut all = std::mem::take(&mut self.ephemeral).into_vec();
        all.extend(more);
        self.ephemeral = all.into();
        true
    }
}

/// Returns an ephemeral container as a container, with the fields that the simulation reads.
pub(in crate::kubelet) fn container(ephemeral: &EphemeralContainer) -> Container {
    Container {
        name: ephemeral.name.clone(),
        image: ephemeral.image.clone(),
        image_pull_policy: ephemeral.image_pull_policy.clone(),
        env: ephemeral.env.clone(),
        env_from: ephemeral.env_from.clone(),
        volume_mounts: ephemeral.volume_mounts.clone(),
        command: ephemeral.command.clone(),
        args: ephemeral.args.clone(),
        security_context: ephemeral.security_context.clone(),
        ..Container::default()
    }
}
