//! Restores the pods that a restarted kubelet finds at the API server.
//!
//! Invariant: no container that ran is started a second time, and a pod with a final status is never written again.

use std::sync::Arc;

use jiff::Timestamp;
use mullion_engine::images::ImageRef;

use super::{Lifecycle, Parts, PodSim, Sandbox, config::Volumes};
use crate::kubelet::container::State;

impl PodSim {
    pub(super) fn adopt(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        let pod = Arc::clone(&self.pod);
        let Some(status) = pod.status.as_ref() else {
            return;
        };
        let Some(start) = &status.start_time else {
            return;
        };
        self.start_time = Some(start.0);
        if let Some("Succeeded" | "Failed") = status.phase.as_deref() {
            // The status is final, so only a deletion remains to be carried out.
            self.lifecycle = Lifecycle::Ended { why: None };
            self.final_status_written = true;
            return;
        }
        self.adopt_resize();
        let begun = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses)
            .flatten()
            .any(|status| status.container_id.is_some());
        let address = status.pod_ip.as_ref().and_then(|ip| ip.parse().ok());
        match address {
            Some(address) if !self.host_network() => {
                parts.addresses.adopt(&self.uid, address);
                self.ip = Some(address);
            }
            // A pod on the host network has its address from the start, so the address does not show that the
            // sandbox exists; a container ID does.
            _ if self.host_network() && begun => {}
            _ => return,
        }
        // An address proves that sandbox and volumes were set up before the restart; doing so again would
        // delay the pod.
        self.sandbox = Sandbox::Up;
        self.volumes = Volumes::Mounted;
        let found = || {
            status
                .container_statuses
                .iter()
                .chain(&status.init_container_statuses)
                .chain(&status.ephemeral_container_statuses)
                .flatten()
        };
        for index in 0..self.units.len() {
            let name = &*self.units[index].name;
            let Some(status) = found().find(|status| status.name == name) else {
                continue;
            };
            let (started, ready) = (status.started == Some(true), status.ready);
            let run = |since| {
                let plan = self.plan_run(index, since, parts);
                State::Running {
                    since,
                    exit: plan.exit,
                    probes: plan
                        .probes
                        .map(|probes| Box::new(probes.resumed(started, ready, now))),
                    being_killed: false,
                }
            };
            let found = self.units[index].found(status, run);
            self.units[index] = found;
            // A container that has run proves that its image is on the node.
            if self.units[index].starts > 0
                && let Ok(image) = ImageRef::parse(&self.units[index].image)
            {
                parts.images.adopt(&image, now);
            }
        }
        self.adopt_replacing(now);
    }
}
