//! From the simulated cloud's instances to the simulated kubelets' machines.
//!
//! Instances are followed by a cursor, so whoever was away catches up; a kubelet is told once that its machine has booted and once that it is gone.

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::core::v1::Taint;
use mullion_api::ami::Os;
use mullion_cloud::{Instance, InstanceId, Resources, sim::SimulatedEc2};
use mullion_controllers::kubelet::{addresses::Addresses, driver::Machine, node::NodeFacts};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Prefix length of the simulated subnets where the cloud does not say.
const USUAL_PREFIX: u8 = 18;

/// Follows the instances until `shutdown`.
pub(super) fn follow(
    ec2: SimulatedEc2,
    shutdown: CancellationToken,
) -> mpsc::UnboundedReceiver<Machine> {
    let (sender, machines) = mpsc::unbounded_channel();
    let mut changed = ec2.changed();
    tokio::spawn(async move {
        let mut known = Known::default();
        loop {
            for machine in known.news(&ec2) {
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

/// What the kubelets have been told.
#[derive(Default)]
struct Known {
    cursor: u64,
    booted: HashSet<InstanceId>,
}

impl Known {
    fn news(&mut self, ec2: &SimulatedEc2) -> Vec<Machine> {
        let changes = ec2.changes_since(self.cursor);
        self.cursor = changes.cursor;
        let mut news = Vec::new();
        for instance in changes.instances {
            if instance.state.is_alive() {
                if instance.booted && self.booted.insert(instance.id.clone()) {
                    news.push(booted(&instance, ec2));
                }
            } else if self.booted.remove(&instance.id) {
                news.push(Machine::Gone {
                    name: instance.private_dns_name.clone(),
                });
            }
        }
        news
    }
}

fn booted(instance: &Instance, ec2: &SimulatedEc2) -> Machine {
    // A Windows node has the secondary addresses of one interface, a Linux node as many as it may run pods.
    let most = match instance.os() {
        Os::Windows => instance.capacity.private_ipv4(),
        Os::Linux => instance.capacity.pods,
    };
    let (ec2, id) = (ec2.clone(), instance.id.clone());
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    Machine::Booted {
        facts: Box::new(facts(instance)),
        addresses: Addresses::on_demand(most, move || ec2.assign_address(&id).ok()),
    }
}

fn quantities(resources: &Resources) -> BTreeMap<String, String> {
    resources
        .to_list()
        .iter()
        .map(|(key, value)| (key.clone(), value.0.clone()))
        .collect()
}

fn facts(instance: &Instance) -> NodeFacts {
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
        subnet_prefix_len: USUAL_PREFIX,
        os_image: image.os_image(),
        kernel_version: image.kernel_version(),
        container_runtime: image.container_runtime_version().to_owned(),
        kubelet_version: image.kubelet_version(),
        capacity: quantities(&instance.capacity),
        allocatable: quantities(&instance.allocatable),
        labels,
        taints: taints.collect(),
    }
}
