//! Turns the engine's scenarios into manifests that a client can send.
//!
//! Invariant: converted back to the engine's model, they are the scenario's own nodes and pods (tested), so the same question is measured
//! with and without the API server.

use mullion_engine::{model::label, scenario::Scenario};
use serde_json::{Value, json};

/// The number of namespaces in the scenario that selects namespaces.
pub(super) const NAMESPACES: usize = 100;
/// The number of pods that a node can hold.
pub(super) const POD_SLOTS: usize = 110;
/// The number of apps that pods belong to; the next constant is for the large scenario.
const APPS: usize = 40;
const APPS_OF_LARGE: usize = 200;
/// The priority class of pods that preempt others.
const URGENT: &str = "urgent";

/// Returns a node with 32 CPUs, 128 GiB and room for 110 pods in one of three zones.
pub(super) fn node(scenario: Scenario, index: usize) -> Value {
    let windows = scenario == Scenario::Mixed && index % 10 < 3;
    let name = format!("node-{index}");
    let amounts = json!({"cpu": "32", "memory": "128Gi", "pods": POD_SLOTS.to_string()});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": &name, "labels": {
            label::HOSTNAME: &name,
            label::OS: if windows { "windows" } else { "linux" },
            label::ZONE: format!("zone-{}", index % 3),
        }},
        "spec": {"taints": taints(scenario, index)},
        "status": {
            "capacity": &amounts, "allocatable": &amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        },
    })
}

/// Returns the taints that a node keeps once it is ready.
pub(super) fn taints(scenario: Scenario, index: usize) -> Value {
    if scenario == Scenario::Mixed && index % 10 < 3 {
        json!([{"key": "os", "value": "windows", "effect": "NoSchedule"}])
    } else {
        json!([])
    }
}

/// Returns the name of a namespace.
pub(super) fn namespace(index: usize) -> String {
    format!("team-{index}")
}

/// Returns the namespaces, services and priority classes that a scenario needs, each with the path at which it is created.
pub(super) fn surroundings(scenario: Scenario) -> Vec<(String, Value)> {
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let accounts = |namespace: &str| {
        (
            format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            account.clone(),
        )
    };
    let mut all = vec![accounts("default")];
    match scenario {
        Scenario::NamespaceAntiAffinity => {
            for name in (0..NAMESPACES).map(namespace) {
                let object = json!({
                    "apiVersion": "v1", "kind": "Namespace",
                    "metadata": {"name": &name, "labels": {"team": "devops"}},
                });
                all.push(("/api/v1/namespaces".to_owned(), object));
                all.push(accounts(&name));
            }
        }
        Scenario::DefaultSpread => {
            for app in 0..APPS {
                let app = format!("app-{app}");
                let object = json!({
                    "apiVersion": "v1", "kind": "Service", "metadata": {"name": &app},
                    "spec": {"selector": {"app": &app}, "ports": [{"port": 80}]},
                });
                all.push(("/api/v1/namespaces/default/services".to_owned(), object));
            }
        }
        Scenario::Preemption => {
            let object = json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": URGENT}, "value": 1000,
            });
            all.push((
                "/apis/scheduling.k8s.io/v1/priorityclasses".to_owned(),
                object,
            ));
        }
        _ => {}
    }
    all
}

/// Returns the pod templates of a scenario without names; they are used in turn.
pub(super) fn pods(scenario: Scenario) -> Vec<Value> {
    let (count, apps) = match scenario {
        Scenario::Large => (APPS_OF_LARGE, APPS_OF_LARGE),
        Scenario::NamespaceAntiAffinity => (APPS * NAMESPACES / 20, APPS),
        Scenario::Mixed => (2 * APPS, APPS),
        _ => (APPS, APPS),
    };
    (0..count)
        .map(|index| pod(scenario, index, &format!("app-{}", index % apps)))
        .collect()
}

fn pod(scenario: Scenario, index: usize, app: &str) -> Value {
    let mut pod = plain("default", app);
    let spec = &mut pod["spec"];
    match scenario {
        Scenario::Mixed if index % 2 == 1 => {
            spec["nodeSelector"] = json!({label::OS: "windows"});
            spec["tolerations"] = json!([{
                "key": "os", "operator": "Equal", "value": "windows", "effect": "NoSchedule",
            }]);
        }
        Scenario::ZoneSpread => {
            spec["topologySpreadConstraints"] = json!([{
                "maxSkew": 1, "topologyKey": label::ZONE, "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": group(app),
            }]);
        }
        Scenario::Affinity => {
            spec["affinity"] = json!({"podAffinity": required(term(label::ZONE, app))});
        }
        Scenario::AntiAffinity => {
            spec["affinity"] = json!({"podAntiAffinity": required(term(label::HOSTNAME, app))});
        }
        Scenario::NamespaceAntiAffinity => {
            let mut term = term(label::HOSTNAME, app);
            term["namespaceSelector"] = json!({"matchLabels": {"team": "devops"}});
            spec["affinity"] = json!({"podAntiAffinity": required(term)});
            pod["metadata"]["namespace"] = namespace(index % NAMESPACES).into();
        }
        Scenario::Preferred => {
            spec["affinity"] = json!({
                "podAffinity": preferred(term(label::ZONE, app)),
                "podAntiAffinity": preferred(term(label::HOSTNAME, app)),
            });
        }
        Scenario::Preemption => spec["priorityClassName"] = URGENT.into(),
        _ => {}
    }
    pod
}

/// Returns a pod that requests more than any node has.
pub(super) fn misfit() -> Value {
    let mut pod = plain("default", "misfit");
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "64".into();
    pod
}

/// Returns a pod of low priority on a node, without a grace period for its deletion.
pub(super) fn filler(node: usize) -> Value {
    let mut pod = plain("default", "filler");
    pod["spec"]["nodeName"] = format!("node-{node}").into();
    pod["spec"]["terminationGracePeriodSeconds"] = 0.into();
    pod
}

fn plain(namespace: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "labels": {"app": app}},
        "spec": {"containers": [{
            "name": "pause", "image": "registry.k8s.io/pause:3.10",
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        }]},
    })
}

fn group(app: &str) -> Value {
    json!({"matchLabels": {"app": app}})
}

fn term(key: &str, app: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": group(app)})
}

fn required(term: Value) -> Value {
    json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]})
}

fn preferred(term: Value) -> Value {
    json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "podAffinityTerm": term}]})
}

#[cfg(test)]
mod tests {
    use mullion_engine::model::{NodeSpec, PodSpec};

    use super::*;

    #[test]
    fn manifests_are_the_nodes_and_pods_that_the_engine_is_measured_with() {
        for scenario in super::super::SCENARIOS {
            for index in 0..12 {
                let mut read: NodeSpec =
                    serde_json::from_value(node(scenario, index)).expect("a node");
                // The scheduler uses only what is allocatable, not the capacity.
                read.capacity = Default::default();
                assert_eq!(read, scenario.node(index), "{}", scenario.name());
            }
            let read: Vec<_> = pods(scenario)
                .into_iter()
                .map(|pod| {
                    let pod: PodSpec = serde_json::from_value(pod).expect("a pod");
                    pod.template
                })
                .collect();
            let mut expected = scenario.templates();
            // In a manifest the pod has only the class's name; the API server sets the priority.
            expected
                .iter_mut()
                .for_each(|template| template.priority = 0);
            assert_eq!(read, expected, "{}", scenario.name());
        }
    }
}
