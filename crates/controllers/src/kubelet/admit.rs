//! The checks that a kubelet makes before it accepts a pod, with its reasons and messages.
//!
//! The scheduler has made most of these checks already; they matter for pods that set `nodeName` themselves and when two
//! schedulers race. The checks run in the kubelet's order, and the first that fails is reported.

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};

use crate::state::{
    node_selector,
    requests::{self, Amounts},
    taints,
};

/// Why a pod is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// `status.reason`.
    pub reason: String,
    /// The event's message; the status prefixes it with "Pod was rejected: ".
    pub message: String,
}

/// The resources and ports that a pod occupies on a node.
#[derive(Clone, Debug, Default)]
pub struct Occupant {
    /// The pod's requests.
    pub requests: Amounts,
    /// The host ports: address, protocol, port.
    pub host_ports: Vec<(String, String, i32)>,
}

impl Occupant {
    /// Returns what a pod with this spec occupies.
    pub fn of(spec: &PodSpec) -> Self {
        let sidecars = spec
            .init_containers
            .iter()
            .flatten()
            .filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let ports = spec
            .containers
            .iter()
            .chain(sidecars)
            .flat_map(|container| container.ports.iter().flatten());
        let host_ports = ports.filter_map(|port| {
            let number = port.host_port.filter(|port| *port > 0)?;
            let ip = port
                .host_ip
                .clone()
                .filter(|ip| !ip.is_empty())
                .unwrap_or_else(|| "0.0.0.0".to_owned());
            Some((
                ip,
                port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                number,
            ))
        });
        Self {
            requests: requests::pod_requests(spec),
            host_ports: host_ports.collect(),
        }
    }
}

/// The sum of what all pods on a node occupy.
///
/// Invariant: a pod is removed with the same amounts with which it was added; resources that no pod uses have no entry.
#[derive(Clone, Debug, Default)]
pub struct Occupied {
    requests: Amounts,
    host_ports: Vec<(String, String, i32)>,
    pods: i64,
}

impl Occupied {
    /// Adds a pod.
    pub fn add(&mut self, pod: &Occupant) {
        requests::add(&mut self.requests, &pod.requests);
        self.host_ports.extend(pod.host_ports.iter().cloned());
        self.pods += 1;
    }

    /// Removes a pod.
    pub fn remove(&mut self, pod: &Occupant) {
        for (name, amount) in &pod.requests {
            if let Some(used) = self.requests.get_mut(name) {
                *used -= amount;
            }
        }
        self.requests.retain(|_, used| *used != 0);
        for port in &pod.host_ports {
            if let Some(at) = self.host_ports.iter().position(|used| used == port) {
                self.host_ports.swap_remove(at);
            }
        }
        self.pods -= 1;
    }
}

/// Checks whether a kubelet accepts `pod`; `os` is the node's operating system, `used` is what its pods occupy.
///
/// # Errors
/// Returns the first check that fails.
pub fn admit(
    pod: &Pod,
    pod_needs: &Occupant,
    node: &Node,
    os: &str,
    used: &Occupied,
) -> Result<(), Rejection> {
    let reject = |reason: &str, message: &str| {
        Err(Rejection {
            reason: reason.to_owned(),
            message: message.to_owned(),
        })
    };
    let Some(spec) = &pod.spec else { return Ok(()) };
    // The kubelet compares the pod's own label, not its node selector. This is kept because existing charts depend on it.
    let label = pod
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get("kubernetes.io/os"));
    if label.is_some_and(|label| label != os) {
        return reject(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        );
    }
    if spec.os.as_ref().is_some_and(|wanted| wanted.name != os) {
        return reject(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        );
    }
    if asks_for_strict_groups(spec) && !supports_strict_groups(node) {
        return reject(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        );
    }
    fits(pod_needs, used, node)?;
    if !node_selector::allows(spec, node) {
        return reject(
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        );
    }
    if spec.node_name != node.metadata.name {
        return reject(
            "NodeName",
            "Predicate NodeName failed: node(s) didn't match the requested node name",
        );
    }
    if pod_needs
        .host_ports
        .iter()
        .any(|port| used.host_ports.iter().any(|other| ports_clash(port, other)))
    {
        return reject(
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        );
    }
    let node_taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    if taints::untolerated(
        node_taints,
        spec.tolerations.as_deref().unwrap_or_default(),
        &["NoExecute"],
    )
    .is_some()
    {
        return reject(
            "TaintToleration",
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        );
    }
    Ok(())
}

fn asks_for_strict_groups(spec: &PodSpec) -> bool {
    let policy = spec
        .security_context
        .as_ref()
        .and_then(|context| context.supplemental_groups_policy.as_deref());
    policy == Some("Strict")
}

fn supports_strict_groups(node: &Node) -> bool {
    let features = node
        .status
        .as_ref()
        .and_then(|status| status.features.as_ref());
    features.and_then(|features| features.supplemental_groups_policy) == Some(true)
}

/// Why a resize is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// `Deferred` until other pods leave room, or `Infeasible` on this node.
    pub reason: &'static str,
    /// The message of the condition.
    pub message: String,
}

/// Checks whether the resize of a pod can be granted now; `used` is what the other pods occupy.
///
/// # Errors
/// Returns why the pod keeps its present resources.
pub fn resize(needs: &Occupant, used: &Occupied, node: &Node) -> Result<(), Pending> {
    let status = node.status.as_ref();
    let allocatable = requests::amounts(status.and_then(|status| status.allocatable.as_ref()));
    for name in ["memory", "cpu"] {
        let requested = needs.requests.get(name).copied().unwrap_or(0);
        let capacity = allocatable.get(name).copied().unwrap_or(0);
        // Infeasible is checked against the whole node first: waiting for other pods to leave could never
        // help.
        if requested > capacity {
            return Err(Pending {
                reason: "Infeasible",
                message: format!(
                    "Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}"
                ),
            });
        }
    }
    fits(needs, used, node).map_err(|rejection| Pending {
        reason: "Deferred",
        message: rejection.message,
    })
}

fn fits(needs: &Occupant, used: &Occupied, node: &Node) -> Result<(), Rejection> {
    let allocatable = requests::amounts(
        node.status
            .as_ref()
            .and_then(|status| status.allocatable.as_ref()),
    );
    let out_of = |name: &str, requested: i64, used: i64, capacity: i64| Rejection {
        reason: format!("OutOf{name}"),
        message: format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        ),
    };
    let capacity = |name: &str| allocatable.get(name).copied().unwrap_or(0);
    if used.pods + 1 > capacity("pods") {
        return Err(out_of("pods", 1, used.pods, capacity("pods")));
    }
    // The native resources come first, as in the kubelet. Extended resources that the node does not have are ignored:
    // devices provide them, through a claim of the pod.
    let native = ["cpu", "memory", "ephemeral-storage"];
    let extended = needs
        .requests
        .keys()
        .map(String::as_str)
        .filter(|name| !native.contains(name));
    let extended = extended.filter(|name| capacity(name) > 0);
    for name in native.into_iter().chain(extended) {
        let requested = needs.requests.get(name).copied().unwrap_or(0);
        let in_use = used.requests.get(name).copied().unwrap_or(0);
        if requested > 0 && requested > capacity(name) - in_use {
            return Err(out_of(name, requested, in_use, capacity(name)));
        }
    }
    Ok(())
}

fn ports_clash(a: &(String, String, i32), b: &(String, String, i32)) -> bool {
    let any = |ip: &str| ip == "0.0.0.0" || ip == "::";
    (a.1.as_str(), a.2) == (b.1.as_str(), b.2) && (a.0 == b.0 || any(&a.0) || any(&b.0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn verdict(pod: Value, others: &[Occupant]) -> Result<(), (String, String)> {
        let node = json!({
            "metadata": { "name": "n1", "labels": { "kubernetes.io/os": "windows" } },
            "spec": { "taints": [{ "key": "drain", "effect": "NoExecute" }, { "key": "os", "effect": "NoSchedule" }] },
            "status": { "allocatable": { "cpu": "2", "memory": "4Gi", "pods": "2", "example.com/fpga": "1" } },
        });
        let mut pod = pod;
        pod["spec"]["nodeName"] = pod["spec"].get("nodeName").cloned().unwrap_or(json!("n1"));
        if pod["spec"]["tolerations"].is_null() {
            pod["spec"]["tolerations"] = json!([{ "operator": "Exists" }]);
        }
        pod["spec"]["containers"] = pod["spec"].get("containers").cloned().unwrap_or(json!([]));
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let node = serde_json::from_value(node).expect("a node");
        let needs = Occupant::of(pod.spec.as_ref().expect("a spec"));
        let mut used = Occupied::default();
        others.iter().for_each(|other| used.add(other));
        admit(&pod, &needs, &node, "windows", &used).map_err(|r| (r.reason, r.message))
    }

    fn requesting(resource: &str, amount: &str) -> Value {
        json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": { resource: amount } } }] } })
    }

    fn occupant(cpu_milli: i64) -> Occupant {
        Occupant {
            requests: Amounts::from([("cpu".to_owned(), cpu_milli)]),
            host_ports: Vec::new(),
        }
    }

    #[test]
    fn refusals_have_upstreams_reasons_and_words() {
        let port = json!({ "spec": { "containers": [{ "name": "c", "ports": [{ "containerPort": 80, "hostPort": 80 }] }] } });
        let mut taken = occupant(0);
        taken
            .host_ports
            .push(("10.0.0.1".to_owned(), "TCP".to_owned(), 80));
        let cases: Vec<(Value, Vec<Occupant>, &str, &str)> = vec![
            (
                json!({ "metadata": { "labels": { "kubernetes.io/os": "linux" } }, "spec": {} }),
                vec![],
                "PodOSSelectorNodeLabelDoesNotMatch",
                "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
            ),
            (
                json!({ "spec": { "os": { "name": "linux" } } }),
                vec![],
                "PodOSNotSupported",
                "Failed to admit pod as the OS field doesn't match node OS",
            ),
            (
                json!({ "spec": { "securityContext": { "supplementalGroupsPolicy": "Strict" } } }),
                vec![],
                "SupplementalGroupsPolicyNotSupported",
                "SupplementalGroupsPolicy=Strict is not supported in this node",
            ),
            (
                requesting("cpu", "1500m"),
                vec![occupant(700)],
                "OutOfcpu",
                "Node didn't have enough resource: cpu, requested: 1500, used: 700, capacity: 2000",
            ),
            (
                requesting("memory", "8Gi"),
                vec![],
                "OutOfmemory",
                "Node didn't have enough resource: memory, requested: 8589934592, used: 0, capacity: 4294967296",
            ),
            (
                requesting("example.com/fpga", "2"),
                vec![],
                "OutOfexample.com/fpga",
                "Node didn't have enough resource: example.com/fpga, requested: 2, used: 0, capacity: 1",
            ),
            (
                json!({ "spec": {} }),
                vec![occupant(0), occupant(0)],
                "OutOfpods",
                "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2",
            ),
            (
                json!({ "spec": { "nodeSelector": { "a": "b" } } }),
                vec![],
                "NodeAffinity",
                "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
            ),
            (
                port,
                vec![taken],
                "NodePorts",
                "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
            ),
            (
                json!({ "spec": { "tolerations": [{ "key": "os", "operator": "Exists" }] } }),
                vec![],
                "TaintToleration",
                "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
            ),
        ];
        for (pod, others, reason, message) in cases {
            assert_eq!(
                verdict(pod.clone(), &others),
                Err((reason.to_owned(), message.to_owned())),
                "{pod}"
            );
        }
    }

    #[test]
    fn a_pod_that_goes_leaves_nothing_of_what_it_occupied() {
        let mut pod = occupant(700);
        pod.host_ports
            .push(("0.0.0.0".to_owned(), "TCP".to_owned(), 80));
        let mut used = Occupied::default();
        used.add(&pod);
        used.add(&occupant(300));
        used.remove(&pod);
        assert_eq!(used.requests, occupant(300).requests);
        assert_eq!((used.pods, used.host_ports.len()), (1, 0));
        used.remove(&occupant(300));
        assert!(used.requests.is_empty());
    }

    #[test]
    fn a_pod_that_fits_is_taken_and_unknown_extended_resources_are_not_held_against_it() {
        assert_eq!(verdict(requesting("cpu", "2"), &[]), Ok(()));
        assert_eq!(
            verdict(requesting("vpc.amazonaws.com/PrivateIPv4Address", "1"), &[]),
            Ok(())
        );
    }
}
