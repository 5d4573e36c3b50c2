//! Kubernetes' objects as their JSON says them: the shape the rules are written for, without any compilation.

use std::collections::BTreeMap;

use serde::Deserialize;

pub(crate) type Labels = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) labels: Labels,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) owner_references: Vec<Owner>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Owner {
    #[serde(rename = "apiVersion")]
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) controller: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    pub(crate) metadata: Meta,
    pub(crate) spec: NodeBody,
    pub(crate) status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeBody {
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStatus {
    pub(crate) allocatable: BTreeMap<String, String>,
    pub(crate) images: Vec<Image>,
    pub(crate) declared_features: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Image {
    pub(crate) names: Vec<String>,
    pub(crate) size_bytes: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Taint {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) effect: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) metadata: Meta,
    pub(crate) spec: PodBody,
    pub(crate) status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    pub(crate) phase: String,
    pub(crate) start_time: String,
    pub(crate) nominated_node_name: String,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) container_statuses: Vec<ContainerStatus>,
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
    pub(crate) resources: Option<Resources>,
    pub(crate) allocated_resources: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    pub(crate) r#type: String,
    pub(crate) reason: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerStatus {
    pub(crate) name: String,
    pub(crate) resources: Option<Resources>,
    pub(crate) allocated_resources: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodBody {
    pub(crate) node_name: String,
    pub(crate) node_selector: Labels,
    pub(crate) affinity: Affinity,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) containers: Vec<Container>,
    pub(crate) init_containers: Vec<Container>,
    pub(crate) overhead: BTreeMap<String, String>,
    pub(crate) resources: Resources,
    pub(crate) topology_spread_constraints: Vec<Spread>,
    pub(crate) os: Option<Named>,
    pub(crate) priority: i32,
    pub(crate) preemption_policy: String,
    pub(crate) volumes: Vec<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    pub(crate) name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) resources: Resources,
    pub(crate) ports: Vec<Port>,
    pub(crate) restart_policy: String,
    pub(crate) restart_policy_rules: Vec<RestartRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RestartRule {
    pub(crate) action: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Resources {
    pub(crate) requests: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Port {
    #[serde(rename = "hostPort")]
    pub(crate) host_port: i32,
    #[serde(rename = "hostIP")]
    pub(crate) host_ip: String,
    pub(crate) protocol: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Toleration {
    pub(crate) key: String,
    pub(crate) operator: String,
    pub(crate) value: String,
    pub(crate) effect: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spread {
    pub(crate) max_skew: i64,
    pub(crate) topology_key: String,
    pub(crate) when_unsatisfiable: String,
    pub(crate) label_selector: Option<Selector>,
    pub(crate) min_domains: Option<i64>,
    pub(crate) node_affinity_policy: Option<String>,
    pub(crate) node_taints_policy: Option<String>,
    pub(crate) match_label_keys: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Affinity {
    pub(crate) node_affinity: NodeAffinity,
    pub(crate) pod_affinity: PodAffinity,
    pub(crate) pod_anti_affinity: PodAffinity,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub(crate) required: Option<NodeSelector>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub(crate) preferred: Vec<PreferredTerm>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeSelector {
    pub(crate) node_selector_terms: Vec<NodeTerm>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeTerm {
    pub(crate) match_expressions: Vec<Requirement>,
    pub(crate) match_fields: Vec<Requirement>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PreferredTerm {
    pub(crate) weight: i64,
    pub(crate) preference: NodeTerm,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub(crate) required: Vec<PodTerm>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub(crate) preferred: Vec<WeightedTerm>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodTerm {
    pub(crate) label_selector: Option<Selector>,
    pub(crate) namespaces: Vec<String>,
    pub(crate) namespace_selector: Option<Selector>,
    pub(crate) topology_key: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WeightedTerm {
    pub(crate) weight: i64,
    pub(crate) pod_affinity_term: PodTerm,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Selector {
    pub(crate) match_labels: Labels,
    pub(crate) match_expressions: Vec<Requirement>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Requirement {
    pub(crate) key: String,
    pub(crate) operator: String,
    pub(crate) values: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Service {
    pub(crate) metadata: Meta,
    pub(crate) spec: ServiceBody,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ServiceBody {
    pub(crate) selector: Option<Labels>,
}

/// A ReplicaSet or StatefulSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Workload {
    pub(crate) kind: String,
    pub(crate) metadata: Meta,
    pub(crate) spec: WorkloadBody,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WorkloadBody {
    pub(crate) selector: Selector,
}

/// Everything the rules look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    /// Pods that occupy a node that is there.
    pub(crate) placed: Vec<Pod>,
    /// While pods come and go in thought.
    pub(crate) trial: Option<crate::trial::Trial>,
    /// Pods that room is held for.
    pub(crate) promised: Vec<Pod>,
    /// PodDisruptionBudgets, as they are.
    pub(crate) budgets: Vec<serde_json::Value>,
    pub(crate) namespaces: BTreeMap<String, Labels>,
    pub(crate) services: Vec<Service>,
    pub(crate) workloads: Vec<Workload>,
    /// Claims, volumes, classes and the like, as they are.
    pub(crate) storage: Vec<serde_json::Value>,
    pub(crate) profile: mullion_engine::Profile,
}

impl World {
    pub(crate) fn read(items: &[serde_json::Value]) -> Self {
        let mut world = World::default();
        let mut pods: Vec<Pod> = Vec::new();
        for item in items {
            match item["kind"].as_str() {
                Some("Node") => world.nodes.push(read(item)),
                Some("Pod") => pods.push(read(item)),
                Some("Namespace") => {
                    let meta: Meta = read(&item["metadata"]);
                    world.namespaces.insert(meta.name, meta.labels);
                }
                Some("PodDisruptionBudget") => world.budgets.push(item.clone()),
                Some("Service") => world.services.push(read(item)),
                Some("ReplicaSet" | "StatefulSet") => world.workloads.push(read(item)),
                _ => world.storage.push(item.clone()),
            }
        }
        let over = |pod: &Pod| matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
        let on_a_node = |pod: &Pod| {
            world
                .nodes
                .iter()
                .any(|node| node.metadata.name == pod.spec.node_name)
        };
        world.promised = pods
            .iter()
            .filter(|pod| !pod.status.nominated_node_name.is_empty())
            .cloned()
            .collect();
        world.placed = pods
            .into_iter()
            .filter(|pod| !over(pod) && on_a_node(pod))
            .collect();
        world
    }

    pub(crate) fn on<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = &'a Pod> {
        self.placed
            .iter()
            .filter(|pod| pod.spec.node_name == node.metadata.name)
    }

    /// The node of a placed pod.
    pub(crate) fn under(&self, pod: &Pod) -> &Node {
        self.nodes
            .iter()
            .find(|node| node.metadata.name == pod.spec.node_name)
            .expect("placed pods are on nodes that are there")
    }
}

pub(crate) fn read<'v, T: serde::Deserialize<'v>>(value: &'v serde_json::Value) -> T {
    T::deserialize(value).expect("a Kubernetes object")
}
