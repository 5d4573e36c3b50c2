//! Computes the simulated usage of containers and nodes, which `kubectl top` and the autoscaler read.
//!
//! A running container uses what the annotation [`annotations::SIMULATE_USAGE`] of its pod, or else of the pod's workload,
//! sets; without the annotation half of its requests; never more than its limits. A node uses the sum over its pods plus
//! what it reserves for its system, but at most its allocatable, unless annotations set more. A container that has not run
//! for a whole window has no metrics: like a real metrics-server, a rate needs two samples.

use std::{
    cell::{OnceCell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, Node, Pod},
    apimachinery::pkg::{
        api::resource::Quantity as ApiQuantity,
        apis::meta::v1::{ObjectMeta, OwnerReference, Time},
    },
};
use kube::{ResourceExt, core::Duration};
use mullion_engine::model::Quantity;
use rustc_hash::FxHashMap;

use super::{
    annotations::{self, Amount},
    pace::Pace,
};
use crate::{
    Clock, Context, Informers,
    context::whole_seconds,
    informers::{BY_CONTROLLER, BY_NODE},
    metrics::{Amounts, ContainerMetrics, NodeMetrics, PodMetrics},
    nodeclaim::initialization::is_ready,
    ownership, pods,
};

/// The window over which usage is measured, at pace 1 (metrics-server: `--metric-resolution`).
pub const WINDOW: SignedDuration = SignedDuration::from_secs(15);
/// The usage of a container without requests.
const IDLE: ResourceUsage = ResourceUsage {
    cpu_milli: 5,
    memory_bytes: 32 << 20,
};

type Annotations = BTreeMap<String, String>;

/// Computes the metrics of a simulated cluster.
#[derive(Clone, Debug)]
pub struct Meter {
    informers: Arc<Informers>,
    clock: Clock,
    window: SignedDuration,
}

/// An amount of CPU and memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ResourceUsage {
    cpu_milli: i64,
    memory_bytes: i64,
}

/// The usage of one container.
#[derive(Clone, Copy, Debug)]
struct Usage {
    used: ResourceUsage,
    /// The part of `used` that an annotation sets.
    annotated: ResourceUsage,
}

impl Meter {
    /// Creates a meter over the pods and nodes of `context`, whose simulated work runs at `pace`.
    pub fn new(context: &Context, pace: Pace) -> Self {
        let informers = Arc::clone(&context.informers);
        informers.pods.start();
        informers.nodes.start();
        informers.replica_sets.start();
        informers.deployments.start();
        informers.stateful_sets.start();
        Self {
            informers,
            clock: context.clock.clone(),
            window: pace.of(WINDOW),
        }
    }

    /// Returns the metrics of the pods for which `wanted` is true, in one namespace or all, sorted by namespace and name.
    pub fn pods(&self, namespace: Option<&str>, wanted: impl Fn(&Pod) -> bool) -> Vec<PodMetrics> {
        let all = &self.informers.pods;
        let mut found = match namespace {
            Some(namespace) => all.in_namespace(namespace),
            None => all.list(),
        };
        found.retain(|pod| wanted(pod));
        found.sort_unstable_by(|a, b| {
            (&a.metadata.namespace, &a.metadata.name)
                .cmp(&(&b.metadata.namespace, &b.metadata.name))
        });
        let reading = self.reading();
        found.iter().filter_map(|pod| reading.pod(pod)).collect()
    }

    /// Returns the metrics of the nodes for which `wanted` is true, sorted by name.
    pub fn nodes(&self, wanted: impl Fn(&Node) -> bool) -> Vec<NodeMetrics> {
        let mut found = self.informers.nodes.list();
        found.retain(|node| wanted(node));
        found.sort_unstable_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let reading = self.reading();
        found.iter().filter_map(|node| reading.node(node)).collect()
    }

    fn reading(&self) -> UsageReading<'_> {
        UsageReading {
            meter: self,
            now: self.clock.now(),
            workloads: RefCell::default(),
        }
    }
}

/// The usage of pods at one point in time; each workload is looked up only once.
struct UsageReading<'a> {
    meter: &'a Meter,
    now: Timestamp,
    /// Workloads by the uid of the controller in their pods' owner references.
    workloads: RefCell<FxHashMap<String, Rc<Workload>>>,
}

/// The Deployment, or else the controller, that a pod belongs to.
struct Workload {
    annotations: Annotations,
    /// The uids of the controllers in its pods' owner references: for a Deployment, those of its ReplicaSets.
    controllers: Vec<String>,
    /// How many of its pods are ready, counted on first use.
    ready: OnceCell<i64>,
}

impl UsageReading<'_> {
    fn pod(&self, pod: &Pod) -> Option<PodMetrics> {
        let used = self.containers(pod);
        // metrics-server scrapes kubelets and shows nothing of a node that does not answer.
        if used.is_empty() || !self.node_is_ready(pods::node_name(pod)) {
            return None;
        }
        let mut metrics = PodMetrics::of(pod, self.timestamp(), self.window());
        metrics.containers = used
            .into_iter()
            .map(|(container, usage)| ContainerMetrics {
                name: container.name.clone(),
                usage: usage.used.amounts(),
            })
            .collect();
        Some(metrics)
    }

    fn node(&self, node: &Node) -> Option<NodeMetrics> {
        let name = node.metadata.name.as_deref()?;
        if !is_ready(node) {
            return None;
        }
        let status = node.status.as_ref()?;
        let amounts = |all: &Option<BTreeMap<String, ApiQuantity>>| {
            let amount = |resource| quantity(all.as_ref()?.get(resource));
            ResourceUsage {
                cpu_milli: amount("cpu").unwrap_or_default().milli_value(),
                memory_bytes: amount("memory").unwrap_or_default().value(),
            }
        };
        let (mut used, mut annotated) = (ResourceUsage::default(), ResourceUsage::default());
        for pod in self.meter.informers.pods.by_index(BY_NODE, name) {
            for (_, by_container) in self.containers(&pod) {
                used.add(by_container.used);
                annotated.add(by_container.annotated);
            }
        }
        let allocatable = amounts(&status.allocatable);
        let used = of_node(amounts(&status.capacity), allocatable, used, annotated);
        Some(NodeMetrics {
            metadata: ObjectMeta {
                name: node.metadata.name.clone(),
                labels: node.metadata.labels.clone(),
                creation_timestamp: Some(self.timestamp()),
                ..ObjectMeta::default()
            },
            timestamp: self.timestamp(),
            window: self.window(),
            usage: used.amounts(),
        })
    }

    /// Returns the containers that have run for a whole window, with their usage.
    fn containers<'p>(&self, pod: &'p Pod) -> Vec<(&'p Container, Usage)> {
        let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else {
            return Vec::new();
        };
        if status.phase.as_deref() != Some("Running") {
            return Vec::new();
        }
        // Annotations for all containers apply to app containers only, not to sidecars.
        let sidecars = spec.init_containers.iter().flatten();
        let sidecars = sidecars.zip(std::iter::repeat(false));
        let apps = spec.containers.iter().zip(std::iter::repeat(true));
        let statuses = || {
            let all = [&status.container_statuses, &status.init_container_statuses];
            all.into_iter().flatten().flatten()
        };
        let mut workload = None;
        apps.chain(sidecars)
            .filter(|(container, _)| {
                let status = statuses().find(|status| status.name == container.name);
                status.is_some_and(|status| self.is_measured(status))
            })
            .map(|(container, is_app)| {
                let workload = workload.get_or_insert_with(|| self.workload(pod));
                let used = self.container(pod, container, is_app, workload.as_deref());
                (container, used)
            })
            .collect()
    }

    fn is_measured(&self, status: &ContainerStatus) -> bool {
        let state = status.state.as_ref();
        let running = state.and_then(|state| state.running.as_ref());
        running.is_some_and(|running| {
            let since = running.started_at.as_ref().map_or(self.now, |time| time.0);
            self.now.duration_since(since) >= self.meter.window
        })
    }

    fn container(
        &self,
        pod: &Pod,
        container: &Container,
        is_app: bool,
        workload: Option<&Workload>,
    ) -> Usage {
        let planned = |annotations: Option<&Annotations>| {
            annotations::usage(annotations, &container.name, is_app)
        };
        let plan = planned(pod.metadata.annotations.as_ref())
            .or_else(|| planned(Some(&workload?.annotations)))
            .unwrap_or_default();
        // A shared amount models load behind a Service: more replicas leave less for each, so an autoscaler
        // settles.
        let share = |amount: Amount| {
            if amount.shared {
                self.share(pod, workload, amount.quantity)
            } else {
                amount.quantity
            }
        };
        let usual = usual(container);
        let resources = container.resources.as_ref();
        let limit = |resource| quantity(resources?.limits.as_ref()?.get(resource));
        let capped =
            |amount: i64, limit: Option<i64>| limit.map_or(amount, |most| amount.min(most));
        let cpu_milli = plan.cpu.map(share).map(Quantity::milli_value);
        let memory_bytes = plan.memory.map(share).map(Quantity::value);
        let used = ResourceUsage {
            cpu_milli: capped(
                cpu_milli.unwrap_or(usual.cpu_milli),
                limit("cpu").map(Quantity::milli_value),
            ),
            memory_bytes: capped(
                memory_bytes.unwrap_or(usual.memory_bytes),
                limit("memory").map(Quantity::value),
            ),
        };
        // Only usage that annotations set may exceed a node's allocatable (see [`of_node`]).
        let annotated = ResourceUsage {
            cpu_milli: cpu_milli.map_or(0, |_| used.cpu_milli),
            memory_bytes: memory_bytes.map_or(0, |_| used.memory_bytes),
        };
        Usage { used, annotated }
    }

    /// Returns a pod's share of an amount that all ready pods of its workload use together. Only ready pods have a share,
    /// because only they get requests.
    fn share(&self, pod: &Pod, workload: Option<&Workload>, total: Quantity) -> Quantity {
        if !pods::is_ready(pod) {
            return Quantity::default();
        }
        let sharers = workload.map_or(1, |workload| {
            *workload.ready.get_or_init(|| self.ready_pods(workload))
        });
        Quantity::from_milli(total.milli_value() / sharers.max(1))
    }

    fn ready_pods(&self, workload: &Workload) -> i64 {
        let pods_of = |uid: &String| self.meter.informers.pods.by_index(BY_CONTROLLER, uid);
        let ready = workload.controllers.iter().flat_map(pods_of);
        let ready = ready.filter(|pod| pods::is_ready(pod) && pods::is_active(pod));
        i64::try_from(ready.count()).unwrap_or(i64::MAX)
    }

    /// Returns the workload of a pod, found through its ReplicaSet if need be; cached for all pods of a controller.
    fn workload(&self, pod: &Pod) -> Option<Rc<Workload>> {
        let owner = ownership::controller_of(pod)?;
        if let Some(known) = self.workloads.borrow().get(&owner.uid) {
            return Some(Rc::clone(known));
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let workload = Rc::new(self.find_workload(namespace, owner));
        let mut known = self.workloads.borrow_mut();
        known.insert(owner.uid.clone(), Rc::clone(&workload));
        Some(workload)
    }

    fn find_workload(&self, namespace: &str, owner: &OwnerReference) -> Workload {
        let informers = &self.meter.informers;
        let itself = |annotations: Option<&Annotations>| Workload {
            annotations: annotations.cloned().unwrap_or_default(),
            controllers: vec![owner.uid.clone()],
            ready: OnceCell::new(),
        };
        if owner.kind == "StatefulSet" {
            let set = informers.stateful_sets.get(namespace, &owner.name);
            return itself(set.as_ref().map(|set| set.annotations()));
        }
        let set = match owner.kind.as_str() {
            "ReplicaSet" => informers.replica_sets.get(namespace, &owner.name),
            _ => None,
        };
        let deployment = set.as_ref().and_then(|set| {
            let owner = ownership::controller_of(&**set)?;
            let found = informers.deployments.get(namespace, &owner.name)?;
            // Another Deployment may have taken the name.
            (found.metadata.uid.as_ref() == Some(&owner.uid)).then_some(found)
        });
        let Some(deployment) = deployment else {
            return itself(set.as_ref().map(|set| set.annotations()));
        };
        let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
        let sets = informers.replica_sets.by_index(BY_CONTROLLER, uid);
        Workload {
            annotations: deployment.annotations().clone(),
            controllers: sets.iter().filter_map(|set| set.uid()).collect(),
            ready: OnceCell::new(),
        }
    }

    fn node_is_ready(&self, name: &str) -> bool {
        let node = self.meter.informers.nodes.get("", name);
        node.is_some_and(|node| is_ready(&node))
    }

    fn timestamp(&self) -> Time {
        Time(whole_seconds(self.now))
    }

    fn window(&self) -> Duration {
        std::time::Duration::try_from(self.meter.window)
            .unwrap_or_default()
            .into()
    }
}

/// Returns the usage of a node whose pods use `used`, of which `annotated` comes from annotations: the pods' usage plus the
/// system's reserve, capped at the allocatable so that `kubectl top` shows at most 100 %. Annotations alone may exceed that.
fn of_node(
    capacity: ResourceUsage,
    allocatable: ResourceUsage,
    used: ResourceUsage,
    annotated: ResourceUsage,
) -> ResourceUsage {
    let of = |read: fn(ResourceUsage) -> i64| {
        let kept = read(capacity).saturating_sub(read(allocatable)).max(0);
        let all = read(used).saturating_add(kept);
        all.min(read(allocatable).max(read(annotated)))
    };
    ResourceUsage {
        cpu_milli: of(|amounts| amounts.cpu_milli),
        memory_bytes: of(|amounts| amounts.memory_bytes),
    }
}

impl ResourceUsage {
    fn add(&mut self, other: ResourceUsage) {
        self.cpu_milli = self.cpu_milli.saturating_add(other.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
    }

    /// Formats the amounts as metrics-server does: CPU in cores or millicores, memory in Ki.
    fn amounts(self) -> Amounts {
        let memory_ki = self.memory_bytes / 1024 + i64::from(self.memory_bytes % 1024 != 0);
        let cpu = match self.cpu_milli % 1000 {
            0 => (self.cpu_milli / 1000).to_string(),
            _ => format!("{}m", self.cpu_milli),
        };
        let memory = match memory_ki {
            0 => "0".to_owned(),
            ki => format!("{ki}Ki"),
        };
        Amounts::from([
            ("cpu".to_owned(), ApiQuantity(cpu)),
            ("memory".to_owned(), ApiQuantity(memory)),
        ])
    }
}

/// Returns the memory in bytes that a container uses if no annotation sets it.
pub(super) fn usual_memory(container: &Container) -> i64 {
    usual(container).memory_bytes
}

/// Returns the usage of a container without annotations: half of its requests.
fn usual(container: &Container) -> ResourceUsage {
    let requests = container
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    let half = |resource: &str, amount: fn(Quantity) -> i64| {
        quantity(requests?.get(resource)).map(|requested| amount(requested) / 2)
    };
    ResourceUsage {
        cpu_milli: half("cpu", Quantity::milli_value).unwrap_or(IDLE.cpu_milli),
        memory_bytes: half("memory", Quantity::value).unwrap_or(IDLE.memory_bytes),
    }
}

fn quantity(text: Option<&ApiQuantity>) -> Option<Quantity> {
    text?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(cpu_milli: i64, memory: i64) -> ResourceUsage {
        ResourceUsage {
            cpu_milli,
            memory_bytes: memory << 20,
        }
    }

    #[test]
    fn a_node_uses_no_more_than_pods_can_have_of_it_unless_it_is_told_to() {
        // A Windows node of 2 GiB reserves most of them for its system.
        let (capacity, allocatable) = (mib(2_000, 2_048), mib(1_900, 350));
        let of = |used, annotated| of_node(capacity, allocatable, used, annotated);
        assert_eq!(of(mib(0, 0), mib(0, 0)), mib(100, 350));
        assert_eq!(of(mib(5, 320), mib(0, 0)), mib(105, 350));
        assert_eq!(of(mib(5, 900), mib(0, 800)), mib(105, 800));
        assert_eq!(of(mib(3_000, 0), mib(2_500, 0)), mib(2_500, 350));
        // A node with room uses what it reserves and what its pods use.
        let of = |used| of_node(mib(2_000, 8_192), mib(1_900, 7_192), used, mib(0, 0));
        assert_eq!(of(mib(50, 200)), mib(150, 1_200));
    }
}
