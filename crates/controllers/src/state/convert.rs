//! Converts Kubernetes objects to the engine's model.
//!
//! Pure and total: every object that the API server has admitted converts, and a value that cannot be parsed counts
//! as absent. Pods of one template convert to equal [`PodTemplate`]s, which the engine's speed depends on.

mod affinity;
pub(super) mod status_resources;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, StatefulSet},
        core::v1::{self as api, Namespace, Node, Pod, ReplicationController, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::{
        api::resource::Quantity as ApiQuantity,
        apis::meta::v1::{self as meta, LabelSelector as ApiLabelSelector, ObjectMeta},
    },
};
use mullion_engine::model::{
    Container, ContainerImage, ContainerPort, LabelSelector, LabelSelectorRequirement,
    NamespaceSpec, NodeSpec, Operator, OwnerRef, PdbSpec, PodSpec, PodTemplate, PreemptionPolicy,
    Quantity, ResourceMap, Resources, RestartPolicy, RestartRule, ServiceSpec, StringMap, Taint,
    TaintEffect, Toleration, TolerationOperator, WorkloadSpec,
};

use self::affinity::{affinity, spread};
use super::{devices, volumes};
use crate::pods;

/// Converts a node.
pub fn node(node: &Node) -> NodeSpec {
    let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
    let image = |image: &api::ContainerImage| ContainerImage {
        names: image.names.clone().unwrap_or_default(),
        size_bytes: image.size_bytes.unwrap_or_default(),
    };
    NodeSpec {
        name: node.metadata.name.clone().unwrap_or_default(),
        labels: map(&node.metadata.labels),
        taints: spec
            .iter()
            .flat_map(|spec| spec.taints.iter().flatten())
            .filter_map(taint)
            .collect(),
        unschedulable: spec.is_some_and(|spec| spec.unschedulable == Some(true)),
        capacity: resources(status.and_then(|status| status.capacity.as_ref())),
        allocatable: resources(status.and_then(|status| status.allocatable.as_ref())),
        images: status
            .iter()
            .flat_map(|status| status.images.iter().flatten())
            .map(image)
            .collect(),
        declared_features: status
            .and_then(|status| status.declared_features.clone())
            .unwrap_or_default(),
    }
}

/// Converts a pod.
pub fn pod(pod: &Pod) -> PodSpec {
    let status = pod.status.as_ref();
    let filled = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    PodSpec {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        node_name: filled(pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref())),
        nominated_node_name: filled(status.and_then(|status| status.nominated_node_name.as_ref())),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        preempted: is_preempted(pod),
        finished: is_finished(pod),
        start_time: status
            .and_then(|status| status.start_time.as_ref())
            .map(|at| at.0.as_second()),
        template: pod
            .spec
            .as_ref()
            .map(|spec| {
                let mut template = template(&pod.metadata, spec);
                // Both depend on the pod's status, so they are added after the part that pods of one template
                // share.
                template.claims = devices::of_pod(pod);
                status_resources::hold(&mut template, pod);
                template
            })
            .unwrap_or_default(),
    }
}

/// Returns whether kube-scheduler evicted the pod by preemption.
fn is_preempted(pod: &Pod) -> bool {
    pods::condition(pod, "DisruptionTarget").is_some_and(|disruption| {
        disruption.status == "True" && disruption.reason.as_deref() == Some("PreemptionByScheduler")
    })
}

/// Returns the pod's key in the engine's cluster without converting the whole pod (see [`PodSpec::key`]).
pub fn key(pod: &Pod) -> String {
    match &pod.metadata.uid {
        Some(uid) if !uid.is_empty() => uid.clone(),
        _ => {
            let (namespace, name) = named(&pod.metadata);
            format!("{namespace}/{name}")
        }
    }
}

/// Returns the node to which the pod is bound.
pub fn node_name(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

/// Returns whether the pod has finished and occupies nothing.
pub fn is_finished(pod: &Pod) -> bool {
    matches!(
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    )
}

/// Converts the part of a pod that all pods of one template share.
pub fn template(metadata: &ObjectMeta, spec: &api::PodSpec) -> PodTemplate {
    let owner = metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true));
    let preemption_policy = match spec.preemption_policy.as_deref() {
        Some("Never") => PreemptionPolicy::Never,
        _ => PreemptionPolicy::PreemptLowerPriority,
    };
    PodTemplate {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        labels: map(&metadata.labels),
        owner: owner.map(|own| OwnerRef::new(&own.api_version, &own.kind, &own.name)),
        node_selector: map(&spec.node_selector),
        affinity: spec.affinity.as_ref().map(affinity).unwrap_or_default(),
        tolerations: spec.tolerations.iter().flatten().map(toleration).collect(),
        containers: spec.containers.iter().map(container).collect(),
        init_containers: spec
            .init_containers
            .iter()
            .flatten()
            .map(container)
            .collect(),
        overhead: resources(spec.overhead.as_ref()),
        resources: spec
            .resources
            .as_ref()
            .map(requirements)
            .unwrap_or_default(),
        topology_spread_constraints: spec
            .topology_spread_constraints
            .iter()
            .flatten()
            .map(spread)
            .collect(),
        priority: spec.priority.unwrap_or_default(),
        preemption_policy,
        os: spec.os.as_ref().map(|os| os.name.clone()),
        scheduling_gates: spec
            .scheduling_gates
            .iter()
            .flatten()
            .map(|gate| gate.name.clone())
            .collect(),
        host_network: spec.host_network == Some(true),
        scheduler_name: spec.scheduler_name.clone().unwrap_or_default(),
        volumes: volumes::of_pod(
            metadata.name.as_deref().unwrap_or_default(),
            metadata.uid.as_deref().unwrap_or_default(),
            spec,
        ),
        image_volumes: volumes::images_of_pod(spec),
        // The names of generated claims are in the pod's status, not in the template.
        claims: None,
    }
}

/// Converts a namespace.
pub fn namespace(namespace: &Namespace) -> NamespaceSpec {
    NamespaceSpec {
        name: namespace.metadata.name.clone().unwrap_or_default(),
        labels: map(&namespace.metadata.labels),
    }
}

/// Converts a Service.
pub fn service(service: &Service) -> ServiceSpec {
    let (namespace, name) = named(&service.metadata);
    let selector = service
        .spec
        .as_ref()
        .map(|spec| map(&spec.selector))
        .unwrap_or_default();
    ServiceSpec {
        namespace,
        name,
        selector,
    }
}

/// Converts a ReplicaSet, whose selector determines the default spreading of its pods.
pub fn replica_set(set: &ReplicaSet) -> WorkloadSpec {
    let (namespace, name) = named(&set.metadata);
    let selector = set
        .spec
        .as_ref()
        .map(|spec| label_selector(&spec.selector))
        .unwrap_or_default();
    WorkloadSpec {
        kind: "ReplicaSet".to_owned(),
        namespace,
        name,
        selector,
    }
}

/// Converts a StatefulSet, whose selector determines the default spreading of its pods.
pub fn stateful_set(set: &StatefulSet) -> WorkloadSpec {
    let (namespace, name) = named(&set.metadata);
    let selector = set.spec.as_ref().map(|spec| label_selector(&spec.selector));
    WorkloadSpec {
        kind: "StatefulSet".to_owned(),
        namespace,
        name,
        selector: selector.unwrap_or_default(),
    }
}

/// Converts a ReplicationController, whose selector determines the default spreading of its pods.
pub fn replication_controller(set: &ReplicationController) -> WorkloadSpec {
    let (namespace, name) = named(&set.metadata);
    let spec = set.spec.as_ref();
    WorkloadSpec {
        kind: "ReplicationController".to_owned(),
        namespace,
        name,
        selector: LabelSelector {
            match_labels: spec.map(|spec| map(&spec.selector)).unwrap_or_default(),
            ..LabelSelector::default()
        },
    }
}

/// Converts a PodDisruptionBudget.
pub fn pdb(pdb: &PodDisruptionBudget) -> PdbSpec {
    let (namespace, name) = named(&pdb.metadata);
    let status = pdb.status.as_ref();
    PdbSpec {
        namespace,
        name,
        selector: pdb
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref())
            .map(label_selector),
        disruptions_allowed: status
            .and_then(|status| status.disruptions_allowed)
            .unwrap_or_default(),
        disrupted_pods: status
            .and_then(|status| status.disrupted_pods.as_ref())
            .map(|pods| pods.keys().cloned().collect())
            .unwrap_or_default(),
    }
}

/// Converts a taint; `None` if its effect is unknown.
pub fn taint(taint: &api::Taint) -> Option<Taint> {
    let value = taint.value.clone().unwrap_or_default();
    Some(Taint {
        key: taint.key.clone(),
        value,
        effect: TaintEffect::named(&taint.effect)?,
    })
}

/// Converts a toleration.
pub fn toleration(toleration: &api::Toleration) -> Toleration {
    let operator = match toleration.operator.as_deref() {
        Some("Exists") => TolerationOperator::Exists,
        Some("Gt") => TolerationOperator::Gt,
        Some("Lt") => TolerationOperator::Lt,
        _ => TolerationOperator::Equal,
    };
    Toleration {
        key: toleration.key.clone().unwrap_or_default(),
        operator,
        value: toleration.value.clone().unwrap_or_default(),
        effect: toleration.effect.as_deref().and_then(TaintEffect::named),
        toleration_seconds: toleration.toleration_seconds,
    }
}

/// Converts a resource map; amounts that cannot be parsed are left out.
pub fn resources(map: Option<&BTreeMap<String, ApiQuantity>>) -> ResourceMap {
    let parse = |(name, quantity): (&String, &ApiQuantity)| {
        Some((name.clone(), quantity.0.parse::<Quantity>().ok()?))
    };
    map.into_iter().flatten().filter_map(parse).collect()
}

/// Converts a label selector.
pub fn label_selector(selector: &ApiLabelSelector) -> LabelSelector {
    let expression = |requirement: &meta::LabelSelectorRequirement| LabelSelectorRequirement {
        key: requirement.key.clone(),
        operator: operator(&requirement.operator),
        values: requirement.values.clone().unwrap_or_default(),
    };
    LabelSelector {
        match_labels: map(&selector.match_labels),
        match_expressions: selector
            .match_expressions
            .iter()
            .flatten()
            .map(expression)
            .collect(),
    }
}

fn map(map: &Option<BTreeMap<String, String>>) -> StringMap {
    map.clone().unwrap_or_default()
}

fn named(metadata: &ObjectMeta) -> (String, String) {
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

fn operator(operator: &str) -> Operator {
    match operator {
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        _ => Operator::In,
    }
}

fn container(container: &api::Container) -> Container {
    let restart_policy = match container.restart_policy.as_deref() {
        Some("Always") => Some(RestartPolicy::Always),
        Some("OnFailure") => Some(RestartPolicy::OnFailure),
        Some("Never") => Some(RestartPolicy::Never),
        _ => None,
    };
    // Ports without a host port do not matter to placement, and would only make templates differ that are otherwise
    // equal.
    let ports = container.ports.iter().flatten().filter_map(|port| {
        Some(ContainerPort {
            host_port: port.host_port.filter(|port| *port > 0)?,
            host_ip: port.host_ip.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_default(),
        })
    });
    let rules = container.restart_policy_rules.iter().flatten();
    let rules = rules.map(|rule| RestartRule {
        action: rule.action.clone(),
    });
    Container {
        image: container.image.clone().unwrap_or_default(),
        resources: container
            .resources
            .as_ref()
            .map(requirements)
            .unwrap_or_default(),
        ports: ports.collect(),
        restart_policy,
        restart_policy_rules: rules.collect(),
    }
}

fn requirements(requirements: &api::ResourceRequirements) -> Resources {
    Resources {
        requests: resources(requirements.requests.as_ref()),
        limits: resources(requirements.limits.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Checks that this conversion and the engine's own reader of the API's JSON produce the same model.
    fn agree(object: Value) {
        let ours = pod(&serde_json::from_value(object.clone()).expect("a pod"));
        let engines: PodSpec = serde_json::from_value(object).expect("a pod");
        assert_eq!(ours, engines);
    }

    #[test]
    fn a_pod_converts_to_what_the_engine_reads_from_its_json() {
        let selector = json!({ "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "t", "operator": "Exists" }] });
        let near = json!({ "topologyKey": "zone", "labelSelector": selector, "namespaces": ["a"], "namespaceSelector": {} });
        agree(json!({
            "metadata": {
                "name": "p", "namespace": "ns", "uid": "u", "labels": { "app": "web" },
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Other", "name": "o", "uid": "1" },
                    { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "2", "controller": true },
                ],
            },
            "spec": {
                "nodeName": "n1", "nodeSelector": { "kubernetes.io/os": "windows" }, "os": { "name": "windows" },
                "priority": 7, "preemptionPolicy": "Never", "schedulingGates": [{ "name": "g" }], "hostNetwork": true,
                "schedulerName": "default-scheduler", "overhead": { "cpu": "10m" },
                "tolerations": [
                    { "key": "os", "value": "windows", "effect": "NoSchedule" },
                    { "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30 },
                ],
                "containers": [{
                    "name": "c", "image": "i:1", "ports": [{ "containerPort": 80, "hostPort": 8080, "protocol": "TCP" }],
                    "resources": { "requests": { "cpu": "100m", "memory": "1Gi" }, "limits": { "example.com/x": "1" } },
                }],
                "initContainers": [{ "name": "s", "image": "i:2", "restartPolicy": "Always" }],
                "topologySpreadConstraints": [{
                    "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector,
                    "minDomains": 2, "nodeTaintsPolicy": "Honor", "matchLabelKeys": ["hash"],
                }],
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{
                            "matchExpressions": [{ "key": "zone", "operator": "NotIn", "values": ["b"] }],
                            "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }],
                        }] },
                        "preferredDuringSchedulingIgnoredDuringExecution": [{
                            "weight": 5, "preference": { "matchExpressions": [{ "key": "cores", "operator": "Gt", "values": ["4"] }] },
                        }],
                    },
                    "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [near] },
                    "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 3, "podAffinityTerm": near }] },
                },
            },
            "status": { "phase": "Running", "startTime": "2026-01-27T10:00:00Z", "nominatedNodeName": "n2" },
        }));
    }

    #[test]
    fn the_smallest_pod_converts_too() {
        agree(json!({ "metadata": { "name": "p" }, "spec": { "containers": [] } }));
    }

    #[test]
    fn a_node_converts_to_what_the_engine_reads_from_its_json() {
        let object = json!({
            "metadata": { "name": "n1", "labels": { "kubernetes.io/os": "windows" } },
            "spec": { "unschedulable": true, "taints": [{ "key": "os", "value": "windows", "effect": "NoSchedule" }] },
            "status": {
                "capacity": { "cpu": "4" }, "allocatable": { "cpu": "3920m", "memory": "6012Mi", "pods": "110" },
                "images": [{ "names": ["docker.io/library/nginx:1"], "sizeBytes": 72 }],
            },
        });
        let ours = node(&serde_json::from_value(object.clone()).expect("a node"));
        let engines: NodeSpec = serde_json::from_value(object).expect("a node");
        assert_eq!(ours, engines);
    }
}
