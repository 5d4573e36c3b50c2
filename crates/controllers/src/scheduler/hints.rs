//! What an event means to a pod that one plugin refused: the queueing hints of kube-scheduler's plugins, one function each.
//!
//! A hint may say yes too often (the pod is tried in vain), never no when the event helps. Used by the table in [`super::wake`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodAffinityTerm, PodSpec, TopologySpreadConstraint};

use kube::core::SelectorExt;

use super::wake::Event;
use crate::{
    ownership,
    state::{
        node_selector,
        requests::{self, pod_requests},
        taints,
    },
};

/// Looks at a node that appeared, or at both versions of one that changed.
pub(super) type NodeHint = fn(&PodSpec, old: Option<&Node>, new: &Node) -> bool;
/// Looks at what happened to another pod.
pub(super) type PodHint = fn(&Pod, &Event) -> bool;

type Labels = BTreeMap<String, String>;

/// Any node will do.
pub(super) fn any_node(_: &PodSpec, _: Option<&Node>, _: &Node) -> bool {
    true
}

/// Whether a node takes no new pods.
pub(super) fn is_cordoned(node: &Node) -> bool {
    node.spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true))
}

/// The node takes pods.
pub(super) fn not_cordoned(_: &PodSpec, _: Option<&Node>, new: &Node) -> bool {
    !is_cordoned(new)
}

/// The pod tolerates the node, and did not before.
pub(super) fn taints_now_tolerated(pod: &PodSpec, old: Option<&Node>, new: &Node) -> bool {
    let tolerated = |node: &Node| {
        let taints = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.as_deref())
            .unwrap_or_default();
        let tolerations = pod.tolerations.as_deref().unwrap_or_default();
        taints::untolerated(taints, tolerations, &["NoSchedule", "NoExecute"]).is_none()
    };
    tolerated(new) && old.is_none_or(|old| !tolerated(old))
}

/// The pod wants the node, and did not before.
pub(super) fn affinity_now_fits(pod: &PodSpec, old: Option<&Node>, new: &Node) -> bool {
    node_selector::allows(pod, new) && old.is_none_or(|old| !node_selector::allows(pod, old))
}

/// Whether the pod fits the node when it is empty and, for a change, whether there is more of anything it asks for.
pub(super) fn fits_when_empty(pod: &PodSpec, old: Option<&Node>, new: &Node) -> bool {
    let offered = |node: &Node| {
        requests::amounts(
            node.status
                .as_ref()
                .and_then(|status| status.allocatable.as_ref()),
        )
    };
    let (wanted, now) = (pod_requests(pod), offered(new));
    let amount = |amounts: &requests::Amounts, name: &str| amounts.get(name).copied().unwrap_or(0);
    let fits = wanted
        .iter()
        .all(|(name, wanted)| *wanted <= amount(&now, name));
    let grew = old.is_none_or(|old| {
        let before = offered(old);
        let pods = std::iter::once("pods");
        wanted
            .keys()
            .map(String::as_str)
            .chain(pods)
            .any(|name| amount(&now, name) > amount(&before, name))
    });
    fits && grew
}

/// A pod on a node gave something up that the waiting pod asks for (kube-scheduler: NodeResourcesFit).
pub(super) fn resources_freed(pod: &Pod, event: &Event) -> bool {
    match event {
        Event::PodDeleted(_) => true,
        Event::NominationDropped(other) => may_use_the_room_of(pod, other),
        Event::PodScaledDown { old, new } => {
            let amounts = |pod: &Pod| pod.spec.as_ref().map(pod_requests).unwrap_or_default();
            let (wanted, before, after) = (amounts(pod), amounts(old), amounts(new));
            let of = |all: &requests::Amounts, name: &str| all.get(name).copied().unwrap_or(0);
            wanted
                .iter()
                .any(|(name, wanted)| *wanted > 0 && of(&after, name) < of(&before, name))
        }
        _ => false,
    }
}

/// A host port that the waiting pod asks for is free again (kube-scheduler: NodePorts).
pub(super) fn ports_freed(pod: &Pod, event: &Event) -> bool {
    let other = match event {
        Event::PodDeleted(other) => other,
        Event::NominationDropped(other) if may_use_the_room_of(pod, other) => other,
        _ => return false,
    };
    host_ports(pod).any(|wanted| host_ports(other).any(|freed| clash(wanted, freed)))
}

/// Host address (every one where empty), protocol, port.
type HostPort<'a> = (&'a str, &'a str, i32);

/// The host ports a pod takes.
pub(super) fn host_ports(pod: &Pod) -> impl Iterator<Item = HostPort<'_>> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(|port| {
        let number = port.host_port.filter(|number| *number > 0)?;
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let address = port.host_ip.as_deref().unwrap_or_default();
        let address = if address == "0.0.0.0" { "" } else { address };
        Some((address, protocol, number))
    })
}

fn clash(a: HostPort<'_>, b: HostPort<'_>) -> bool {
    let everywhere = a.0.is_empty() || b.0.is_empty();
    (a.1, a.2) == (b.1, b.2) && (everywhere || a.0 == b.0)
}

/// Room held for a pod counts as taken for pods of its priority and below only.
fn may_use_the_room_of(pod: &Pod, other: &Pod) -> bool {
    let priority = |pod: &Pod| {
        pod.spec
            .as_ref()
            .and_then(|spec| spec.priority)
            .unwrap_or(0)
    };
    priority(pod) <= priority(other)
}

/// A pod that the waiting pod wants near came, or one it wants far away went (kube-scheduler: InterPodAffinity).
pub(super) fn neighbours_changed(pod: &Pod, event: &Event) -> bool {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let near = affinity
        .and_then(|affinity| affinity.pod_affinity.as_ref())
        .and_then(|near| {
            near.required_during_scheduling_ignored_during_execution
                .as_deref()
        })
        .unwrap_or_default();
    let far = affinity
        .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
        .and_then(|far| {
            far.required_during_scheduling_ignored_during_execution
                .as_deref()
        })
        .unwrap_or_default();
    let wanted =
        |other: &Pod| !near.is_empty() && near.iter().all(|term| is_meant(pod, term, other));
    let unwanted = |other: &Pod| far.iter().any(|term| is_meant(pod, term, other));
    match event {
        Event::PodAdded(other) => wanted(other),
        Event::PodLabels { old, new } => {
            (!wanted(old) && wanted(new))
                || (unwanted(old) && !unwanted(new))
                || keeps_away(old, pod)
        }
        Event::PodDeleted(other) => unwanted(other) || keeps_away(other, pod),
        _ => false,
    }
}

/// Whether `other` is one of the pods that a term of `pod` is about. Namespaces chosen by their labels are taken to fit.
fn is_meant(pod: &Pod, term: &PodAffinityTerm, other: &Pod) -> bool {
    let listed = term.namespaces.as_deref().unwrap_or_default();
    let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
    let own = listed.is_empty() && other.metadata.namespace == pod.metadata.namespace;
    let in_namespace =
        term.namespace_selector.is_some() || own || listed.iter().any(|listed| listed == namespace);
    in_namespace && selects(term.label_selector.as_ref(), &labels(other))
}

/// Whether a pod on a node keeps `pod` away by its own anti-affinity.
fn keeps_away(other: &Pod, pod: &Pod) -> bool {
    let affinity = other.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let far = affinity
        .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
        .and_then(|far| {
            far.required_during_scheduling_ignored_during_execution
                .as_deref()
        });
    far.is_some_and(|terms| terms.iter().any(|term| is_meant(other, term, pod)))
}

/// A pod that one of the waiting pod's spread constraints counts came, went or changed (kube-scheduler: PodTopologySpread).
pub(super) fn spread_changed(pod: &Pod, event: &Event) -> bool {
    let counts = |other: &Pod| {
        other.metadata.namespace == pod.metadata.namespace
            && constraints(pod.spec.as_ref())
                .any(|constraint| selects(constraint.label_selector.as_ref(), &labels(other)))
    };
    match event {
        Event::PodAdded(other) | Event::PodDeleted(other) => counts(other),
        Event::PodLabels { old, new } => counts(old) || counts(new),
        _ => false,
    }
}

/// A node that the waiting pod's spread constraints count came, or left or joined one of their domains.
pub(super) fn domains_changed(pod: &PodSpec, old: Option<&Node>, new: &Node) -> bool {
    let Some(old) = old else {
        return has_spread_keys(pod, new);
    };
    let (before, after) = (has_spread_keys(pod, old), has_spread_keys(pod, new));
    let moved = || {
        let domain = |node: &Node, key: &str| {
            let labels = node.metadata.labels.as_ref()?;
            labels.get(key).cloned()
        };
        constraints(Some(pod)).any(|constraint| {
            domain(old, &constraint.topology_key) != domain(new, &constraint.topology_key)
        })
    };
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone());
    before != after || (after && (moved() || (honours_taints(pod) && taints(old) != taints(new))))
}

/// Whether a node has all the keys by which the pod is spread.
pub(super) fn has_spread_keys(pod: &PodSpec, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let has = |key: &String| labels.is_some_and(|labels| labels.contains_key(key));
    let mut keys = constraints(Some(pod)).map(|constraint| &constraint.topology_key);
    constraints(Some(pod)).next().is_some() && keys.all(has)
}

/// Whether taints decide which nodes a spread constraint counts.
pub(super) fn honours_taints(pod: &PodSpec) -> bool {
    constraints(Some(pod))
        .any(|constraint| constraint.node_taints_policy.as_deref() == Some("Honor"))
}

fn constraints(pod: Option<&PodSpec>) -> impl Iterator<Item = &TopologySpreadConstraint> {
    let all = pod.into_iter();
    all.flat_map(|spec| spec.topology_spread_constraints.iter().flatten())
        .filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")
}

fn labels(pod: &Pod) -> Labels {
    pod.metadata.labels.clone().unwrap_or_default()
}

fn selects(
    selector: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
    labels: &Labels,
) -> bool {
    ownership::selector(selector).is_some_and(|selector| selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn pod(app: &str, spec: Value) -> Arc<Pod> {
        let mut spec = spec;
        if spec["containers"].is_null() {
            spec["containers"] = json!([]);
        }
        let pod = json!({ "metadata": { "name": app, "namespace": "ns", "labels": { "app": app } }, "spec": spec });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn terms(kind: &str, app: &str) -> Value {
        let term =
            json!({ "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": app } } });
        json!({ "affinity": { kind: { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } })
    }

    #[test]
    fn a_pod_waits_for_the_pod_it_wants_near_not_for_any() {
        let waiting = pod("a", terms("podAffinity", "web"));
        let added = |app| Event::PodAdded(pod(app, json!({})));
        assert!(neighbours_changed(&waiting, &added("web")));
        assert!(!neighbours_changed(&waiting, &added("db")));
        let gone = Event::PodDeleted(pod("web", json!({})));
        assert!(!neighbours_changed(&waiting, &gone));
        let labelled = Event::PodLabels {
            old: pod("db", json!({})),
            new: pod("web", json!({})),
        };
        assert!(neighbours_changed(&waiting, &labelled));
    }

    #[test]
    fn a_pod_waits_for_the_end_of_the_pod_it_keeps_away_from_and_of_the_one_that_keeps_it_away() {
        let waiting = pod("a", terms("podAntiAffinity", "web"));
        let gone = |app| Event::PodDeleted(pod(app, json!({})));
        assert!(neighbours_changed(&waiting, &gone("web")));
        assert!(!neighbours_changed(&waiting, &gone("db")));
        let keeper = Event::PodDeleted(pod("db", terms("podAntiAffinity", "a")));
        assert!(neighbours_changed(&pod("a", json!({})), &keeper));
        assert!(!neighbours_changed(&pod("b", json!({})), &keeper));
    }

    #[test]
    fn a_spread_pod_is_woken_by_the_pods_its_constraint_counts_in_its_namespace() {
        let constraint = json!({
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": { "matchLabels": { "app": "web" } },
            }],
        });
        let waiting = pod("web", constraint);
        assert!(spread_changed(
            &waiting,
            &Event::PodDeleted(pod("web", json!({})))
        ));
        assert!(!spread_changed(
            &waiting,
            &Event::PodDeleted(pod("db", json!({})))
        ));
        let mut elsewhere = Pod::clone(&pod("web", json!({})));
        elsewhere.metadata.namespace = Some("other".into());
        assert!(!spread_changed(
            &waiting,
            &Event::PodAdded(Arc::new(elsewhere))
        ));
        let node = |labels: Value| -> Node {
            serde_json::from_value(json!({ "metadata": { "name": "n", "labels": labels } }))
                .expect("a node")
        };
        let spec = waiting.spec.as_ref().expect("a spec");
        let (bare, zoned) = (node(json!({})), node(json!({ "zone": "a" })));
        assert!(domains_changed(spec, None, &zoned) && !domains_changed(spec, None, &bare));
        assert!(domains_changed(spec, Some(&zoned), &bare));
        assert!(!domains_changed(spec, Some(&zoned), &zoned));
        assert!(has_spread_keys(spec, &zoned) && !has_spread_keys(spec, &bare));
    }

    #[test]
    fn a_pod_waits_for_the_host_port_it_wants() {
        let with_port = |port: i32| {
            let container =
                json!({ "name": "c", "ports": [{ "containerPort": 80, "hostPort": port }] });
            pod("a", json!({ "containers": [container] }))
        };
        let waiting = with_port(80);
        assert!(ports_freed(&waiting, &Event::PodDeleted(with_port(80))));
        assert!(!ports_freed(&waiting, &Event::PodDeleted(with_port(81))));
        assert!(!ports_freed(&waiting, &Event::PodAdded(with_port(80))));
    }

    #[test]
    fn room_that_was_held_helps_pods_of_the_same_priority_and_below() {
        let of = |priority: i32| pod("a", json!({ "priority": priority }));
        let dropped = Event::NominationDropped(of(10));
        assert!(resources_freed(&of(10), &dropped));
        assert!(!resources_freed(&of(11), &dropped));
    }

    #[test]
    fn a_pod_that_shrinks_helps_those_that_want_what_it_gives_up() {
        let requesting = |resource: &str, amount: &str| {
            let container =
                json!({ "name": "c", "resources": { "requests": { resource: amount } } });
            pod("a", json!({ "containers": [container] }))
        };
        let shrunk = Event::PodScaledDown {
            old: requesting("cpu", "2"),
            new: requesting("cpu", "1"),
        };
        assert!(resources_freed(&requesting("cpu", "1"), &shrunk));
        assert!(!resources_freed(&requesting("memory", "1Gi"), &shrunk));
    }
}
