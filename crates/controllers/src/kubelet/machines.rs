//! Reports the simulated cloud's instances to the simulated kubelets.
//!
//! Invariant: instances are read with a cursor, so none is missed. Each machine is reported once when it has booted
//! and once when it is gone. [`super::driver`] acts on the reports.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use mullion_api::{ami::Os, labels};
use mullion_cloud::{
    Instance, InstanceId, Resources,
    sim::{PullSpeed, SimulatedEc2},
};
use tokio::sync::mpsc;

use super::{addresses::Addresses, driver::MachineEvent, node::NodeFacts};
use crate::Context;

/// Reports machines until the context shuts down, as [`super::driver::start`] expects them.
pub fn follow(context: &Context, ec2: SimulatedEc2) -> mpsc::UnboundedReceiver<MachineEvent> {
    let (sender, machines) = mpsc::unbounded_channel();
    let (shutdown, clock) = (context.shutdown.clone(), context.clock.clone());
    let mut changed = ec2.changed();
    context.tasks.spawn(async move {
        let mut reported = ReportedMachines::default();
        loop {
            for machine in reported.update(&ec2, clock.now()) {
                if sender.send(machine).is_err() {
                    return;
                }
            }
            let more = shutdown.run_until_cancelled(changed.changed()).await;
            if !matches!(more, Some(Ok(()))) {
                return;
            }
        }
    });
    machines
}

/// The machines that were reported to the kubelets.
#[derive(Default)]
struct ReportedMachines {
    cursor: u64,
    /// Node names of booted machines.
    booted: HashMap<InstanceId, String>,
}

impl ReportedMachines {
    fn update(&mut self, ec2: &SimulatedEc2, now: Timestamp) -> Vec<MachineEvent> {
        let changes = ec2.changes_since(self.cursor);
        self.cursor = changes.cursor;
        let mut machines = Vec::new();
        for instance in changes.instances {
            if !instance.state.is_alive() {
                let name = self.booted.remove(&instance.id);
                machines.extend(name.map(|name| MachineEvent::Gone { name }));
            // An instance changes several times after it booted; only the first of these changes is reported.
            } else if instance.booted && !self.booted.contains_key(&instance.id) {
                let name = instance.private_dns_name.clone();
                self.booted.insert(instance.id.clone(), name);
                machines.push(booted(&instance, ec2, now));
            }
        }
        // The cloud dropped changes that were not yet read: an instance may be gone without a change that says so.
        if changes.forgotten {
            let gone = self.booted.extract_if(|id, _| ec2.instance(id).is_none());
            machines.extend(gone.map(|(_, name)| MachineEvent::Gone { name }));
        }
        machines
    }
}

fn booted(instance: &Instance, ec2: &SimulatedEc2, now: Timestamp) -> MachineEvent {
    let mut facts = facts(instance, ec2.pull_speed(instance));
    if instance.os() == Os::Windows {
        // The address controller decides how many addresses there are and which pod gets which.
        facts.capacity.remove(labels::PRIVATE_IPV4);
        facts.allocatable.remove(labels::PRIVATE_IPV4);
        return MachineEvent::Booted {
            facts: Box::new(facts),
            addresses: Addresses::annotated(),
        };
    }
    let known = ec2.assigned_addresses(&instance.id);
    let (ec2, id) = (ec2.clone(), instance.id.clone());
    let most = usize::try_from(instance.capacity.pods).unwrap_or(usize::MAX);
    MachineEvent::Booted {
        facts: Box::new(facts),
        addresses: Addresses::on_demand(most, move || ec2.assign_address(&id).ok())
            .with_assigned(known, now),
    }
}

fn quantities(resources: &Resources) -> BTreeMap<String, String> {
    resources
        .to_list()
        .iter()
        .map(|(key, value)| (key.clone(), value.0.clone()))
        .collect()
}

fn facts(instance: &Instance, pull_speed: PullSpeed) -> NodeFacts {
    let image = &instance.image;
    let mut labels = instance.registration.labels.clone();
    labels.extend(
        image
            .labels()
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    labels.insert(
        mullion_api::labels::ZONE_ID.to_owned(),
        instance.zone_id.to_string(),
    );
    let taints = instance.registration.taints.iter().map(|taint| Taint {
        key: taint.key.clone(),
        value: (!taint.value.is_empty()).then(|| taint.value.clone()),
        effect: taint.effect.as_str().to_owned(),
        time_added: None,
    });
    NodeFacts {
        name: instance.private_dns_name.clone(),
        provider_id: instance.provider_id.clone(),
        instance_type: instance.instance_type.name.to_string(),
        zone: instance.zone.to_string(),
        region: instance.region.to_string(),
        os: image.os().as_str().to_owned(),
        arch: image.arch.as_str().to_owned(),
        windows_build: image.windows_build().and_then(|build| build.parse().ok()),
        internal_ip: instance.private_ip,
        external_ip: None,
        subnet_prefix_len: instance.subnet_prefix_len,
        os_image: image.os_image(),
        kernel_version: image.kernel_version(),
        container_runtime: image.container_runtime_version().to_owned(),
        kubelet_version: image.kubelet_version(),
        capacity: quantities(&instance.capacity),
        allocatable: quantities(&instance.allocatable),
        labels,
        taints: taints.collect(),
        pull_speed,
    }
}
