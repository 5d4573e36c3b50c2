//! The JSON form of Kubernetes' objects, from which the flat types of the model are deserialized.
//!
//! Unknown fields are ignored; absent ones get their zero value. Times must be in the API server's format,
//! RFC 3339 in UTC.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};

use super::{
    Affinity, Container, ContainerImage, ContainerPort, LabelSelector, NamespaceSpec, NodeSpec,
    OwnerRef, PdbSpec, PodSpec, PodTemplate, PreemptionPolicy, RESIZE_PENDING, ResourceMap,
    Resources, RestartPolicy, RestartRule, ServiceSpec, StringMap, Taint, TaintEffect, Toleration,
    TopologySpreadConstraint, WorkloadSpec, hold, hold_pod_level,
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: String,
    namespace: String,
    uid: String,
    labels: Option<StringMap>,
    deletion_timestamp: Option<String>,
    owner_references: Vec<Owner>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Owner {
    api_version: String,
    kind: String,
    name: String,
    controller: bool,
}

#[derive(Deserialize)]
pub(super) struct Node {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    spec: NodeBody,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeBody {
    taints: Option<Vec<Taint>>,
    unschedulable: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeStatus {
    capacity: Option<ResourceMap>,
    allocatable: Option<ResourceMap>,
    images: Option<Vec<ContainerImage>>,
    declared_features: Option<Vec<String>>,
}

impl From<Node> for NodeSpec {
    fn from(node: Node) -> Self {
        NodeSpec {
            name: node.metadata.name,
            labels: node.metadata.labels.unwrap_or_default(),
            taints: node.spec.taints.unwrap_or_default(),
            unschedulable: node.spec.unschedulable,
            capacity: node.status.capacity.unwrap_or_default(),
            allocatable: node.status.allocatable.unwrap_or_default(),
            images: node.status.images.unwrap_or_default(),
            declared_features: node.status.declared_features.unwrap_or_default(),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Pod {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    spec: PodBody,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodBody {
    node_name: Option<String>,
    node_selector: Option<StringMap>,
    affinity: Option<Affinity>,
    tolerations: Option<Vec<Toleration>>,
    containers: Vec<ContainerBody>,
    init_containers: Option<Vec<ContainerBody>>,
    overhead: Option<ResourceMap>,
    resources: Option<Resources>,
    topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    priority: Option<i32>,
    preemption_policy: Option<PreemptionPolicy>,
    os: Option<Named>,
    scheduling_gates: Option<Vec<Named>>,
    host_network: bool,
    scheduler_name: String,
    volumes: Option<Vec<super::volume_wire::Source>>,
    resource_claims: Option<Vec<super::device_wire::PodClaim>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerBody {
    name: String,
    image: String,
    resources: Resources,
    ports: Vec<ContainerPort>,
    restart_policy: Option<RestartPolicy>,
    restart_policy_rules: Vec<RestartRule>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    start_time: Option<String>,
    nominated_node_name: Option<String>,
    resource_claim_statuses: Option<Vec<super::device_wire::ClaimName>>,
    conditions: Option<Vec<Condition>>,
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
    resources: Option<Resources>,
    allocated_resources: Option<ResourceMap>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    resources: Option<Resources>,
    allocated_resources: Option<ResourceMap>,
}

impl PodStatus {
    /// Returns whether the pod is being preempted (kube-scheduler: `podTerminatingByPreemption`, without
    /// the check for deletion).
    fn is_preempted(&self) -> bool {
        let conditions = self.conditions.iter().flatten();
        let mut disruptions = conditions.filter(|condition| condition.r#type == "DisruptionTarget");
        disruptions.next().is_some_and(|disruption| {
            disruption.status == "True" && disruption.reason == "PreemptionByScheduler"
        })
    }

    /// Raises the requests of a pod and its containers to the amounts they hold during an in-place resize.
    fn hold(&self, spec: &mut PodBody) {
        let conditions = self.conditions.iter().flatten();
        let pending = conditions
            .filter(|condition| condition.r#type == RESIZE_PENDING.0)
            .map(|condition| condition.reason == RESIZE_PENDING.1);
        // kube-scheduler looks at the first condition of this type only.
        let infeasible = pending.take(1).any(|infeasible| infeasible);
        // Of the init containers kube-scheduler counts only sidecars here.
        let sidecars = spec.init_containers.iter_mut().flatten();
        let sidecars =
            sidecars.filter(|container| container.restart_policy == Some(RestartPolicy::Always));
        for container in spec.containers.iter_mut().chain(sidecars) {
            let statuses = self.container_statuses.iter().flatten();
            let mut statuses = statuses.chain(self.init_container_statuses.iter().flatten());
            if let Some(status) = statuses.find(|status| status.name == container.name)
                && let Some(resources) = &status.resources
            {
                let held = [&resources.requests].into_iter();
                let held = held.chain(&status.allocated_resources);
                hold(&mut container.resources.requests, infeasible, held);
            }
        }
        if let Some(asked) = &mut spec.resources
            && let Some(has) = &self.resources
        {
            let held = [&has.requests].into_iter().chain(&self.allocated_resources);
            hold_pod_level(&mut asked.requests, infeasible, held);
        }
    }
}

impl From<Pod> for PodSpec {
    fn from(mut pod: Pod) -> Self {
        // Before anything is taken out of the spec, because it changes the containers' requests.
        pod.status.hold(&mut pod.spec);
        let preempted = pod.status.is_preempted();
        let containers = |bodies: Vec<ContainerBody>| bodies.into_iter().map(Into::into).collect();
        let init_containers = pod.spec.init_containers.unwrap_or_default();
        let owner = pod
            .metadata
            .owner_references
            .into_iter()
            .find(|owner| owner.controller);
        let (name, uid) = (&pod.metadata.name, &pod.metadata.uid);
        let volumes = pod.spec.volumes.unwrap_or_default();
        let images = volumes.iter().filter_map(|volume| volume.image());
        let image_volumes = images.map(str::to_owned).collect();
        let volumes = volumes
            .into_iter()
            .filter_map(|volume| volume.of_pod(name, uid))
            .collect();
        let template = PodTemplate {
            namespace: pod.metadata.namespace,
            labels: pod.metadata.labels.unwrap_or_default(),
            owner: owner.map(|own| OwnerRef::new(&own.api_version, &own.kind, &own.name)),
            node_selector: pod.spec.node_selector.unwrap_or_default(),
            affinity: pod.spec.affinity.unwrap_or_default(),
            tolerations: pod.spec.tolerations.unwrap_or_default(),
            containers: containers(pod.spec.containers),
            init_containers: containers(init_containers),
            overhead: pod.spec.overhead.unwrap_or_default(),
            resources: pod.spec.resources.unwrap_or_default(),
            topology_spread_constraints: pod.spec.topology_spread_constraints.unwrap_or_default(),
            priority: pod.spec.priority.unwrap_or_default(),
            preemption_policy: pod.spec.preemption_policy.unwrap_or_default(),
            os: pod.spec.os.map(|os| os.name),
            scheduling_gates: pod
                .spec
                .scheduling_gates
                .unwrap_or_default()
                .into_iter()
                .map(|gate| gate.name)
                .collect(),
            host_network: pod.spec.host_network,
            scheduler_name: pod.spec.scheduler_name,
            volumes,
            image_volumes,
            claims: super::device_wire::claims(
                (name, uid),
                pod.spec.resource_claims.unwrap_or_default(),
                &pod.status.resource_claim_statuses.unwrap_or_default(),
            ),
        };
        PodSpec {
            uid: pod.metadata.uid,
            name: pod.metadata.name,
            node_name: pod.spec.node_name.filter(|name| !name.is_empty()),
            nominated_node_name: pod
                .status
                .nominated_node_name
                .filter(|name| !name.is_empty()),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            preempted,
            finished: matches!(pod.status.phase.as_str(), "Succeeded" | "Failed"),
            start_time: pod.status.start_time.as_deref().and_then(seconds),
            template,
        }
    }
}

impl From<ContainerBody> for Container {
    fn from(body: ContainerBody) -> Self {
        Container {
            image: body.image,
            resources: body.resources,
            ports: body.ports,
            restart_policy: body.restart_policy,
            restart_policy_rules: body.restart_policy_rules,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Namespace {
    metadata: Meta,
}

impl From<Namespace> for NamespaceSpec {
    fn from(namespace: Namespace) -> Self {
        NamespaceSpec {
            name: namespace.metadata.name,
            labels: namespace.metadata.labels.unwrap_or_default(),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Service {
    metadata: Meta,
    #[serde(default)]
    spec: ServiceBody,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServiceBody {
    selector: Option<StringMap>,
}

impl From<Service> for ServiceSpec {
    fn from(service: Service) -> Self {
        ServiceSpec {
            namespace: service.metadata.namespace,
            name: service.metadata.name,
            selector: service.spec.selector.unwrap_or_default(),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Workload {
    #[serde(default)]
    kind: String,
    metadata: Meta,
    #[serde(default)]
    spec: WorkloadBody,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WorkloadBody {
    selector: Selector,
}

/// A selector. A ReplicationController has a plain map, all other kinds have a label selector.
#[derive(Deserialize)]
#[serde(untagged)]
enum Selector {
    Map(StringMap),
    Labels(LabelSelector),
}

impl Default for Selector {
    fn default() -> Self {
        Selector::Labels(LabelSelector::default())
    }
}

impl From<Workload> for WorkloadSpec {
    fn from(workload: Workload) -> Self {
        let selector = match workload.spec.selector {
            Selector::Map(match_labels) => LabelSelector {
                match_labels,
                ..LabelSelector::default()
            },
            Selector::Labels(selector) => selector,
        };
        let Meta {
            namespace, name, ..
        } = workload.metadata;
        WorkloadSpec {
            kind: workload.kind,
            namespace,
            name,
            selector,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Pdb {
    metadata: Meta,
    #[serde(default)]
    spec: PdbBody,
    #[serde(default)]
    status: PdbStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PdbBody {
    selector: Option<LabelSelector>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PdbStatus {
    disruptions_allowed: i32,
    disrupted_pods: Option<std::collections::BTreeMap<String, serde::de::IgnoredAny>>,
}

impl From<Pdb> for PdbSpec {
    fn from(pdb: Pdb) -> Self {
        PdbSpec {
            namespace: pdb.metadata.namespace,
            name: pdb.metadata.name,
            selector: pdb.spec.selector,
            disruptions_allowed: pdb.status.disruptions_allowed,
            disrupted_pods: pdb
                .status
                .disrupted_pods
                .unwrap_or_default()
                .into_keys()
                .collect(),
        }
    }
}

/// Deserializes an effect; absent and empty both mean "all effects".
pub(super) fn effect<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<TaintEffect>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    let text = Option::<Text<'_>>::deserialize(deserializer)?;
    let text = text.as_ref().map_or("", |text| &text.0);
    match (text, TaintEffect::named(text)) {
        ("", _) => Ok(None),
        (_, None) => Err(serde::de::Error::custom(format!(
            "`{text}` is not a taint effect"
        ))),
        (_, effect) => Ok(effect),
    }
}

/// Parses a time such as `2026-01-27T00:00:00Z` into seconds since 1970; fractions of a second are dropped.
fn seconds(time: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| time.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    // The calculation uses years that start in March, so that the leap day is the last day of a year.
    let (year, month) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day;
    Some((days - 719_469) * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(seconds("2026-01-27T00:00:01Z"), Some(1_769_472_001));
        assert_eq!(seconds("2024-03-01T12:30:00.123456Z"), Some(1_709_296_200));
        assert_eq!(seconds("yesterday"), None);
    }

    #[test]
    fn an_empty_toleration_effect_means_all_effects() {
        let toleration: Toleration =
            serde_json::from_str(r#"{"key":"os","operator":"","effect":""}"#).expect("valid");
        assert_eq!(toleration.effect, None);
        assert!(serde_json::from_str::<Toleration>(r#"{"effect":"NoShedule"}"#).is_err());
    }

    #[test]
    fn a_pod_reads_from_its_json_and_ignores_what_does_not_matter() {
        let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"d","uid":"u","labels":null,
            "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"rs","uid":"x","controller":true}]},
            "spec":{"os":{"name":"windows"},"dnsPolicy":"Default","containers":[{"name":"c","image":"i","resources":
            {"requests":{"cpu":"100m","memory":1024}}}]},"status":{"phase":"Failed"}}"#;
        let pod: PodSpec = serde_json::from_str(json).expect("valid");
        assert_eq!(pod.template.os.as_deref(), Some("windows"));
        assert_eq!(
            pod.template.containers[0].resources.requests["memory"].value(),
            1024
        );
        assert_eq!(
            pod.template.owner.as_ref().map(|owner| owner.name.as_str()),
            Some("rs")
        );
        assert!(pod.finished);
    }

    #[test]
    fn a_pod_that_is_resized_holds_the_most_of_what_it_wants_has_and_was_promised() {
        let cpu = |wanted: &str, has: &str, promised: &str, reason: &str| {
            let json = format!(
                r#"{{"spec":{{"containers":[{{"name":"b"}},{{"name":"a","resources":{{"requests":{{"cpu":"{wanted}"}}}}}}]}},
                "status":{{"conditions":[{{"type":"PodResizePending","reason":"{reason}"}}],"containerStatuses":[
                {{"name":"a","resources":{{"requests":{{"cpu":"{has}"}}}},"allocatedResources":{{"cpu":"{promised}"}}}},
                {{"name":"b","resources":{{}}}}]}}}}"#
            );
            let pod: PodSpec = serde_json::from_str(&json).expect("valid");
            assert!(pod.template.containers[0].resources.requests.is_empty());
            pod.template.containers[1].resources.requests["cpu"].value()
        };
        assert_eq!(cpu("1", "3", "2", ""), 3);
        assert_eq!(cpu("1", "2", "3", ""), 3);
        assert_eq!(cpu("10", "1", "1", "Deferred"), 10);
        assert_eq!(cpu("10", "1", "1", "Infeasible"), 1);
    }

    #[test]
    fn a_pod_that_asks_as_a_whole_holds_what_its_status_says_beside_its_overhead() {
        let requests = |reason: &str, status: &str| {
            let json = format!(
                r#"{{"spec":{{"resources":{{"requests":{{"cpu":"2"}}}},"overhead":{{"cpu":"3"}},"containers":[{{"name":"a"}}]}},
                "status":{{"conditions":[{{"type":"PodResizePending","reason":"{reason}"}}],{status}}}}}"#
            );
            let pod: PodSpec = serde_json::from_str(&json).expect("valid");
            pod.template.resources.requests
        };
        let cpu = |reason: &str, status: &str| requests(reason, status)["cpu"].value();
        let has = r#""resources":{"requests":{"cpu":"6","memory":"1Gi"}},"allocatedResources":{"cpu":"4"}"#;
        assert_eq!(cpu("", has), 6);
        assert_eq!(requests("", has).len(), 1, "the spec asks for no memory");
        let less = r#""resources":{"requests":{"cpu":"1"}},"allocatedResources":{"cpu":"1"}"#;
        assert_eq!(cpu("Deferred", less), 2);
        assert_eq!(cpu("Infeasible", less), 1);
        assert_eq!(cpu("Infeasible", r#""resources":{}"#), 0);
        let promised = r#""allocatedResources":{"cpu":"4"}"#;
        assert_eq!(cpu("", promised), 2, "only a status with resources counts");
    }
}
