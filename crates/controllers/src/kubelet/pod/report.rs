//! Builds the status of a pod as the kubelet writes it, and decides whether a write is needed.
//!
//! Invariant: the same status is never written twice in a row, and nothing is written after the final one.

use std::{hash::Hasher, io};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{HostIP, Pod, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use rustc_hash::FxHasher;

use super::{Effect, Lifecycle, Parts, PodSim, Sandbox};
use crate::kubelet::{
    container::ReportInputs,
    node::NodeFacts,
    status::{self, View},
};

impl PodSim {
    pub(super) fn report(&mut self, parts: &Parts<'_>, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.final_status_written {
            return;
        }
        let status = self.status(parts.facts, now);
        let fingerprint = Some(fingerprint(&status));
        if self.written == fingerprint {
            return;
        }
        let address = self.ip.filter(|_| {
            parts.facts.is_windows() && !parts.addresses.are_annotated() && !self.address_written
        });
        let address = address.map(|ip| format!("{ip}/{}", parts.facts.subnet_prefix_len));
        self.address_written |= address.is_some();
        self.written = fingerprint;
        // The final status is written once; whatever others do to the object later is theirs.
        self.final_status_written = matches!(self.lifecycle, Lifecycle::Ended { .. });
        effects.push(Effect::Status {
            status: Box::new(status),
            address,
        });
    }

    /// Returns the status that the kubelet would write now.
    fn status(&mut self, facts: &NodeFacts, now: Timestamp) -> PodStatus {
        let mut written = PodStatus {
            start_time: self.start_time.map(Time),
            observed_generation: self.pod.metadata.generation,
            ..PodStatus::default()
        };
        let why = match &self.lifecycle {
            Lifecycle::Rejected(rejection) => {
                written.phase = Some("Failed".to_owned());
                written.reason = Some(rejection.reason.clone());
                written.message = Some(format!("Pod was rejected: {}", rejection.message));
                return written;
            }
            Lifecycle::Stopping { why, .. } | Lifecycle::Ended { why } => *why,
            Lifecycle::Active => None,
        };
        let has_init = self.units.iter().any(|unit| unit.role.is_of_init());
        let subject = |unit| ReportInputs {
            pod_uid: &self.uid,
            container: self.granted_container(unit),
            waiting_reason: if has_init {
                "PodInitializing"
            } else {
                "ContainerCreating"
            },
        };
        let statuses: Vec<_> = self
            .units
            .iter()
            .map(|unit| unit.status(&subject(unit)))
            .collect();
        let over = matches!(self.lifecycle, Lifecycle::Ended { .. });
        let derived = || status::phase(&self.units, |unit, code| self.restarts(unit, code), over);
        let phase = match why.map_or_else(derived, |_| "Failed") {
            // A pod that is over has a terminal phase, even if it never ran.
            "Pending" | "Running" if over => "Failed",
            phase => phase,
        };
        let view = View {
            pod: &self.pod,
            units: &self.units,
            statuses: &statuses,
            phase,
            sandbox_up: self.sandbox == Sandbox::Up,
            all_restarting: self.restarting.is_some(),
            now,
        };
        let mut conditions = status::conditions(&view, &mut self.transitions);
        conditions.extend(self.resize_conditions());
        written.conditions = Some(conditions);
        written.phase = Some(phase.to_owned());
        if let Some((reason, message)) = why {
            (written.reason, written.message) = (Some(reason.to_owned()), Some(message.to_owned()));
        }
        let host_ip = facts.internal_ip.to_string();
        let ip = if self.host_network() {
            Some(host_ip.clone())
        } else {
            let known = self
                .ip
                .filter(|_| !matches!(self.sandbox, Sandbox::Creating { .. }));
            known.map(|ip| ip.to_string())
        };
        written.pod_ips = ip.clone().map(|ip| vec![PodIP { ip }]);
        written.pod_ip = ip;
        written.host_ips = Some(vec![HostIP {
            ip: host_ip.clone(),
        }]);
        written.host_ip = Some(host_ip);
        let inits = self
            .units
            .iter()
            .filter(|unit| unit.role.is_of_init())
            .count();
        let mut statuses = statuses;
        let mut ephemeral = statuses.split_off(self.units.len() - self.ephemeral.len());
        let mut apps = statuses.split_off(inits);
        // The kubelet sorts statuses by name, but keeps init containers in the order in which they run.
        apps.sort_by(|a, b| a.name.cmp(&b.name));
        ephemeral.sort_by(|a, b| a.name.cmp(&b.name));
        written.ephemeral_container_statuses = Some(ephemeral).filter(|all| !all.is_empty());
        written.init_container_statuses = (inits > 0).then_some(statuses);
        written.container_statuses = Some(apps);
        written
    }
}

/// Returns whether the pod's condition Ready is True at the API server.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns a hash of the status, by which two statuses are compared.
fn fingerprint(status: &PodStatus) -> u64 {
    struct Sink(FxHasher);
    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut sink = io::BufWriter::with_capacity(4096, Sink(FxHasher::default()));
    // Serializing plain data into a hash cannot fail. If it did, the status would count as changed.
    let _ = serde_json::to_writer(&mut sink, status);
    sink.into_inner()
        .map(|sink| sink.0.finish())
        .unwrap_or_default()
}
