//! Metrics about the present state of pools, nodes and pods.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use mullion_api::{karpenter::NodePool, labels};

use super::{Metric, Numbers, series};
use crate::{
    pods,
    provisioner::{KarpenterContext, market::amounts, pending::is_daemon},
    state::requests::{self, Amounts},
};

/// Computes all metrics that come from objects.
pub(in crate::provisioner) fn now(karpenter: &KarpenterContext) -> Numbers {
    let mut numbers = Numbers::new();
    let pools = karpenter.pools.list();
    for pool in &pools {
        of_pool(&mut numbers, pool);
    }
    let has_reserved = karpenter.options.gates.reserved_capacity;
    let markets = &karpenter.metrics.markets;
    markets.add(&mut numbers, &pools, has_reserved);
    let informers = &karpenter.base.informers;
    let nodes = informers.nodes.list();
    let (mut allocatable, mut requested) = (Amounts::new(), Amounts::new());
    for node in &nodes {
        let sums = Sums::of(node, &karpenter.pods_on(&node.name_any()));
        add(&mut allocatable, &sums.allocatable);
        add(&mut requested, &sums.requests);
        let created = node.metadata.creation_timestamp.as_ref();
        let age = created.map(|created| karpenter.base.clock.now().duration_since(created.0));
        sums.write(&mut numbers, node, age.unwrap_or_default().as_secs_f64());
    }
    // A resource of which no node has any has no utilization.
    for (name, amount) in allocatable.iter().filter(|(_, amount)| **amount > 0) {
        let used = requested.get(name).copied().unwrap_or_default();
        let percent = 100.0 * used as f64 / *amount as f64;
        let resource = resource_type(name);
        let labels = series(&[("resource_type", resource.as_str())]);
        put(&mut numbers, Metric::Utilization, labels, percent);
    }
    let is_known =
        karpenter.pools.is_synced() && karpenter.claims.is_synced() && informers.nodes.is_synced();
    let labels = String::new;
    put(
        &mut numbers,
        Metric::NodeCount,
        labels(),
        nodes.len() as f64,
    );
    put(
        &mut numbers,
        Metric::Synced,
        labels(),
        f64::from(u8::from(is_known)),
    );
    let by_name: BTreeMap<String, &Node> = nodes
        .iter()
        .map(|node| (node.name_any(), &**node))
        .collect();
    for pod in informers.pods.list() {
        let node = by_name.get(pods::node_name(&pod)).copied();
        of_pod(&mut numbers, karpenter, &pod, node);
    }
    numbers
}

fn put(numbers: &mut Numbers, metric: Metric, labels: String, value: f64) {
    numbers.entry(metric).or_default().insert(labels, value);
}

fn add(sum: &mut Amounts, own: &Amounts) {
    for (name, amount) in own {
        *sum.entry(name.clone()).or_default() += amount;
    }
}

/// Returns the name of a resource as a label's value.
fn resource_type(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// Adds a pool's limits and usage by resource, in cores for cpu and whole units otherwise.
pub(super) fn of_pool(numbers: &mut Numbers, pool: &NodePool) {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let limits = pool.spec.limits.as_ref();
    let usage = pool.status.as_ref().map(|status| &status.resources);
    for (metric, list) in [(Metric::Limit, limits), (Metric::Usage, usage)] {
        for (resource, amount) in list.map(amounts).unwrap_or_default() {
            let value = if resource == labels::CPU {
                amount.milli_value() as f64 / 1000.0
            } else {
                amount.value() as f64
            };
            let kind = resource_type(&resource);
            let labels = series(&[("resource_type", &kind), ("nodepool", name)]);
            put(numbers, metric, labels, value);
        }
    }
}

/// The allocatable amounts and the overhead of a node, and the requests and limits of its pods.
struct Sums {
    allocatable: Amounts,
    overhead: Amounts,
    requests: Amounts,
    limits: Amounts,
    daemon_requests: Amounts,
    daemon_limits: Amounts,
}

impl Sums {
    fn of(node: &Node, on_node: &[std::sync::Arc<Pod>]) -> Self {
        let status = node.status.as_ref();
        let allocatable = requests::amounts(status.and_then(|own| own.allocatable.as_ref()));
        let mut overhead = requests::amounts(status.and_then(|own| own.capacity.as_ref()));
        for (name, amount) in &mut overhead {
            *amount -= allocatable.get(name).copied().unwrap_or_default();
        }
        let mut sums = Self {
            allocatable,
            overhead,
            requests: Amounts::new(),
            limits: Amounts::new(),
            daemon_requests: Amounts::new(),
            daemon_limits: Amounts::new(),
        };
        for pod in on_node.iter().filter(|pod| !pods::is_finished(pod)) {
            let limits = pod.spec.as_ref().map(requests::pod_limits);
            let (mut requests, mut limits) =
                (requests::held_requests(pod), limits.unwrap_or_default());
            // A pod takes a slot, in Karpenter's sums, too.
            for own in [&mut requests, &mut limits] {
                own.insert(labels::PODS.to_owned(), 1);
            }
            add(&mut sums.requests, &requests);
            add(&mut sums.limits, &limits);
            if is_daemon(pod) {
                add(&mut sums.daemon_requests, &requests);
                add(&mut sums.daemon_limits, &limits);
            }
        }
        sums
    }

    fn write(&self, numbers: &mut Numbers, node: &Node, age: f64) {
        let own = node_labels(node);
        let with = |resource: Option<&str>| {
            let mut all: Vec<(&str, &str)> = own
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            all.extend(resource.map(|resource| ("resource_type", resource)));
            series(&all)
        };
        for (metric, amounts) in [
            (Metric::NodesAllocatable, &self.allocatable),
            (Metric::NodesPodRequests, &self.requests),
            (Metric::NodesPodLimits, &self.limits),
            (Metric::NodesDaemonRequests, &self.daemon_requests),
            (Metric::NodesDaemonLimits, &self.daemon_limits),
            (Metric::NodesOverhead, &self.overhead),
        ] {
            for (name, amount) in amounts {
                let value = if name == labels::CPU {
                    *amount as f64 / 1000.0
                } else {
                    *amount as f64
                };
                put(numbers, metric, with(Some(&resource_type(name))), value);
            }
        }
        put(numbers, Metric::NodesAge, with(None), age);
    }
}

/// Returns the labels of metrics about a node: its name, its phase, whether Karpenter manages it, and its well-known
/// labels by the last part of their names.
fn node_labels(node: &Node) -> BTreeMap<String, String> {
    let status = node.status.as_ref();
    let managed = node.labels().contains_key(labels::NODEPOOL).to_string();
    let phase = status.and_then(|own| own.phase.clone()).unwrap_or_default();
    let fixed = [
        ("managed", managed),
        ("node_name", node.name_any()),
        ("phase", phase),
    ];
    let fixed = fixed.map(|(name, value)| (name.to_owned(), value));
    let known = labels::WELL_KNOWN.iter().filter_map(|key| {
        let (_, name) = key.split_once('/')?;
        let value = node.labels().get(*key).cloned().unwrap_or_default();
        Some((name.to_lowercase().replace('-', "_"), value))
    });
    known.chain(fixed).collect()
}

fn of_pod(numbers: &mut Numbers, karpenter: &KarpenterContext, pod: &Pod, node: Option<&Node>) {
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    let owner = pod.owner_references().first().map(|owner| {
        let kind = owner.kind.to_lowercase();
        let version = &owner.api_version;
        format!(
            // Karpenter's form of the label, which only looks like a path of the API.
            "/apis/{version}/namespaces/{namespace}/{kind}s/{}",
            owner.name
        )
    });
    let label = |key: &str| {
        let label = node.and_then(|node| node.labels().get(key));
        label.map(String::as_str).unwrap_or_default()
    };
    let truth = |is_so: bool| if is_so { "true" } else { "false" };
    let pool = label(labels::NODEPOOL);
    let state = series(&[
        ("name", &name),
        ("namespace", &namespace),
        ("owner", owner.as_deref().unwrap_or_default()),
        ("node", pods::node_name(pod)),
        ("scheduled", truth(!pods::node_name(pod).is_empty())),
        ("nodepool", pool),
        ("zone", label(labels::ZONE)),
        ("arch", label(labels::ARCH)),
        ("capacity_type", label(labels::CAPACITY_TYPE)),
        ("instance_type", label(labels::INSTANCE_TYPE)),
        ("phase", pods::phase(pod)),
        ("ready", truth(pods::is_ready(pod))),
        ("managed", truth(!pool.is_empty())),
    ]);
    put(numbers, Metric::PodsState, state, 1.0);
    let own = series(&[("name", &name), ("namespace", &namespace)]);
    let created = pod.metadata.creation_timestamp.as_ref();
    let age = created.map(|created| karpenter.base.clock.now().duration_since(created.0));
    let age = age.unwrap_or_default().as_secs_f64();
    let scheduled = pods::condition(pod, "PodScheduled").is_some_and(|own| own.status == "True");
    let wait = karpenter.metrics.waiting.of(&pod.uid().unwrap_or_default());
    let since = |at: Option<Timestamp>| {
        at.map(|at| karpenter.base.clock.now().duration_since(at).as_secs_f64())
    };
    let is_unbound = pods::phase(pod) == "Pending" && !scheduled;
    let placed = wait.and_then(|wait| since(wait.placed));
    let undecided = wait.filter(|wait| wait.decided.is_none());
    let undecided = undecided.and_then(|wait| since(wait.seen));
    for (metric, value) in [
        (Metric::PodsUnbound, Some(age).filter(|_| is_unbound)),
        (Metric::PodsUnstarted, wait.map(|_| age)),
        (
            Metric::SchedulingUndecided,
            undecided.filter(|_| is_unbound),
        ),
        (Metric::ProvisioningUnbound, placed.filter(|_| is_unbound)),
        (Metric::ProvisioningUnstarted, placed),
    ] {
        if let Some(value) = value {
            put(numbers, metric, own.clone(), value);
        }
    }
}
