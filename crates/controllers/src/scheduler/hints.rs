//! The queueing hints of kube-scheduler's plugins, one function each: whether an event may help a pod that the
//! plugin refused.
//!
//! The hints are those of kube-scheduler 1.36, corrected for events that it is known to miss. A hint may return
//! `true` too often, which costs a vain attempt, but never `false` for an event that helps (docs/decisions/0009).
//! The table in [`super::wake`] refers to them.

use k8s_openapi::api::core::v1::{Container, Node, Pod, Taint, Toleration};
use mullion_api::labels;

use super::{
    requirements::{self, PodRequirements},
    wake::Event,
};
use crate::state::{
    node_selector,
    requests::{self, held_requests, is_resized, pod_requests},
    taints,
};

/// A hint about a node: a new one, or both versions of a changed one.
pub(super) type NodeHint = fn(&Pod, &PodRequirements, old: Option<&Node>, new: &Node) -> bool;
/// A hint about an event of another pod.
pub(super) type PodHint = fn(&Pod, &PodRequirements, &Event) -> bool;
/// A hint about a change of the waiting pod itself.
pub(super) type OwnHint = fn(old: &Pod, new: &Pod, &PodRequirements) -> bool;

/// Returns `true`: any node may help.
pub(super) fn any_node(_: &Pod, _: &PodRequirements, _: Option<&Node>, _: &Node) -> bool {
    true
}

/// Returns whether a node is cordoned.
pub(super) fn is_cordoned(node: &Node) -> bool {
    node.spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true))
}

/// Returns whether the node is schedulable and was not before (kube-scheduler: NodeUnschedulable).
pub(super) fn now_uncordoned(_: &Pod, _: &PodRequirements, old: Option<&Node>, new: &Node) -> bool {
    !is_cordoned(new) && old.is_none_or(is_cordoned)
}

/// Returns the features that a node's kubelet declares.
pub(super) fn features(node: &Node) -> &[String] {
    let status = node.status.as_ref();
    status
        .and_then(|status| status.declared_features.as_deref())
        .unwrap_or_default()
}

/// Returns whether the declared features of the node's kubelet changed (kube-scheduler: NodeDeclaredFeatures).
pub(super) fn features_changed(
    _: &Pod,
    _: &PodRequirements,
    old: Option<&Node>,
    new: &Node,
) -> bool {
    old.is_none_or(|old| features(old) != features(new))
}

/// Returns whether the pod tolerates the node's taints and did not before (kube-scheduler: TaintToleration).
pub(super) fn taints_now_tolerated(
    pod: &Pod,
    _: &PodRequirements,
    old: Option<&Node>,
    new: &Node,
) -> bool {
    let tolerated = |node: &Node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
        let effects = ["NoSchedule", "NoExecute"];
        taints::untolerated(taints.unwrap_or_default(), tolerations(pod), &effects).is_none()
    };
    tolerated(new) && old.is_none_or(|old| !tolerated(old))
}

fn tolerations(pod: &Pod) -> &[Toleration] {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default()
}

/// Returns whether a toleration was added to the pod.
pub(super) fn tolerations_added(old: &Pod, new: &Pod, _: &PodRequirements) -> bool {
    // Tolerations can only be added, so it is enough to compare their number.
    tolerations(old).len() != tolerations(new).len()
}

/// Returns whether a toleration was added to the pod, which now tolerates cordoned nodes (kube-scheduler:
/// NodeUnschedulable).
pub(super) fn cordon_now_tolerated(old: &Pod, new: &Pod, requirements: &PodRequirements) -> bool {
    let cordon = Taint {
        key: labels::UNSCHEDULABLE_TAINT.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let tolerates = |toleration| taints::tolerates(toleration, &cordon);
    tolerations_added(old, new, requirements) && tolerations(new).iter().any(tolerates)
}

/// Returns whether the node affinity of pod and profile allows the node, and the pod's did not before
/// (kube-scheduler: NodeAffinity).
pub(super) fn affinity_now_fits(
    pod: &Pod,
    requirements: &PodRequirements,
    old: Option<&Node>,
    new: &Node,
) -> bool {
    let allows = |node: &Node| {
        let spec = pod.spec.as_ref();
        spec.is_some_and(|spec| node_selector::allows(spec, node))
    };
    requirements.profile_allows(new) && allows(new) && old.is_none_or(|old| !allows(old))
}

/// Returns whether the pod would fit the empty node and, for a changed node, whether any requested resource has
/// grown (kube-scheduler: NodeResourcesFit).
pub(super) fn fits_when_empty(
    _: &Pod,
    requirements: &PodRequirements,
    old: Option<&Node>,
    new: &Node,
) -> bool {
    let offered = |node: &Node| {
        let status = node.status.as_ref();
        requests::amounts(status.and_then(|status| status.allocatable.as_ref()))
    };
    // The empty node is compared, since the room that is free now is decided by the engine anyway.
    let now = offered(new);
    let amount = |amounts: &requests::Amounts, name: &str| amounts.get(name).copied().unwrap_or(0);
    // A resource that the node itself does not have may be provided by devices.
    let is_for_devices = |name: &String| {
        requirements.device_class_resources.contains(name) && amount(&now, name) == 0
    };
    let mut wanted = requirements.requests.iter();
    let fits = amount(&now, "pods") >= 1
        && wanted.all(|(name, wanted)| *wanted <= amount(&now, name) || is_for_devices(name));
    fits && old.is_none_or(|old| {
        let before = offered(old);
        let grew = |name: &str| amount(&now, name) > amount(&before, name);
        let helps = |name: &String| grew(name) || is_for_devices(name);
        grew("pods") || requirements.requests.keys().any(helps)
    })
}

/// Returns whether a bound pod released some resource that the waiting pod requests (kube-scheduler:
/// NodeResourcesFit).
pub(super) fn resources_freed(pod: &Pod, requirements: &PodRequirements, event: &Event) -> bool {
    match event {
        Event::PodDeleted(_) => true,
        Event::NominationDropped(other) => may_use_the_room_of(pod, other),
        Event::PodScaledDown { old, new } => {
            let amounts = |pod: &Pod| pod.spec.as_ref().map(pod_requests).unwrap_or_default();
            let (before, after) = (amounts(old), amounts(new));
            let of = |all: &requests::Amounts, name: &str| all.get(name).copied().unwrap_or(0);
            let mut wanted = requirements.requests.keys();
            wanted.any(|name| of(&after, name) < of(&before, name))
        }
        _ => false,
    }
}

/// Returns whether the waiting pod itself now requests less (kube-scheduler: NodeResourcesFit).
pub(super) fn scaled_down(old: &Pod, new: &Pod, _: &PodRequirements) -> bool {
    let (Some(before), Some(after)) = (&old.spec, &new.spec) else {
        return false;
    };
    let same = before.containers == after.containers && before.resources == after.resources;
    // A resize in progress holds the larger of two requests, so its end frees room although the spec stays.
    if same && !is_resized(old) {
        return false;
    }
    let after = held_requests(new);
    held_requests(old)
        .iter()
        .any(|(name, amount)| after.get(name).is_none_or(|after| after < amount))
}

/// Returns whether a host port that the waiting pod needs was released (kube-scheduler: NodePorts).
pub(super) fn ports_freed(pod: &Pod, _: &PodRequirements, event: &Event) -> bool {
    let other = match event {
        Event::PodDeleted(other) => other,
        Event::NominationDropped(other) if may_use_the_room_of(pod, other) => other,
        _ => return false,
    };
    host_ports(pod).any(|wanted| host_ports(other).any(|freed| clash(wanted, freed)))
}

/// A host port: address (empty for all addresses), protocol, port number.
type HostPort<'a> = (&'a str, &'a str, i32);

/// Iterates the host ports of a pod's containers and sidecars.
pub(super) fn host_ports(pod: &Pod) -> impl Iterator<Item = HostPort<'_>> {
    let spec = pod.spec.iter();
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let containers = spec.flat_map(move |spec| {
        let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
        spec.containers.iter().chain(sidecars)
    });
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(|port| {
        let number = port.host_port.filter(|number| *number > 0)?;
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let address = port.host_ip.as_deref().unwrap_or_default();
        // No address and the wildcard mean the same to kube-scheduler.
        let address = if address == "0.0.0.0" { "" } else { address };
        Some((address, protocol, number))
    })
}

fn clash(a: HostPort<'_>, b: HostPort<'_>) -> bool {
    let everywhere = a.0.is_empty() || b.0.is_empty();
    (a.1, a.2) == (b.1, b.2) && (everywhere || a.0 == b.0)
}

/// Returns whether the room that was reserved for `other` counted as taken for `pod`. Reserved room counts as taken
/// only for pods of the same or a lower priority.
fn may_use_the_room_of(pod: &Pod, other: &Pod) -> bool {
    let priority = |pod: &Pod| {
        let spec = pod.spec.as_ref();
        spec.and_then(|spec| spec.priority).unwrap_or(0)
    };
    priority(pod) <= priority(other)
}

/// Returns whether a pod appeared that the waiting pod's affinity requires, or one disappeared that anti-affinity
/// of either pod kept apart (kube-scheduler: InterPodAffinity).
pub(super) fn neighbours_changed(pod: &Pod, requirements: &PodRequirements, event: &Event) -> bool {
    let wanted = |other: &Pod| {
        let near = &requirements.affinity;
        !near.is_empty() && near.iter().all(|term| term.is_about(other))
    };
    let unwanted = |other: &Pod| {
        requirements
            .anti_affinity
            .iter()
            .any(|term| term.is_about(other))
    };
    match event {
        Event::PodAdded(other) => wanted(other),
        Event::PodLabels { old, new } => {
            (!wanted(old) && wanted(new)) || (unwanted(old) && !unwanted(new))
        }
        Event::PodDeleted(other) => {
            let keeps_away = || {
                requirements::anti_affinity_terms(other)
                    .iter()
                    .any(|term| term.is_about(pod))
            };
            // When the last matching pod is gone, the waiting pod may become the first of its group, on any node.
            // kube-scheduler 1.36 misses this case.
            let may_be_first = || wanted(other) && wanted(pod);
            unwanted(other) || keeps_away() || may_be_first()
        }
        Event::NominationDropped(other) if may_use_the_room_of(pod, other) => {
            unwanted(other)
                || requirements::anti_affinity_terms(other)
                    .iter()
                    .any(|term| term.is_about(pod))
        }
        _ => false,
    }
}

/// Returns whether a node appeared, or joined or left a topology domain of the waiting pod's terms (kube-scheduler:
/// InterPodAffinity).
pub(super) fn neighbourhood_changed(
    _: &Pod,
    requirements: &PodRequirements,
    old: Option<&Node>,
    new: &Node,
) -> bool {
    let Some(old) = old else {
        let joins = |term: &requirements::AffinityTerm| domain(new, &term.topology_key).is_some();
        // If only the anti-affinity of other pods blocks the pod, any new node may be free of them. kube-scheduler
        // 1.36 misses this case.
        return requirements.affinity.is_empty()
            || !requirements.anti_affinity.is_empty()
            || requirements.affinity.iter().any(joins);
    };
    let domains = |term: &requirements::AffinityTerm| {
        let key = &term.topology_key;
        (domain(old, key), domain(new, key))
    };
    let joined = |term: &requirements::AffinityTerm| {
        let (before, after) = domains(term);
        after.is_some() && before != after
    };
    let left = |term: &requirements::AffinityTerm| {
        let (before, after) = domains(term);
        before.is_some() && before != after
    };
    // Without terms of its own the pod was refused by the anti-affinity of others, whose domains are not
    // known here.
    let only_others = requirements.affinity.is_empty() && requirements.anti_affinity.is_empty();
    only_others
        || requirements.affinity.iter().any(joined)
        || requirements.anti_affinity.iter().any(left)
}

/// Returns whether the pod's labels changed, to which the anti-affinity of other pods refers. kube-scheduler has
/// this hint since 1.37.
pub(super) fn labels_changed(old: &Pod, new: &Pod, _: &PodRequirements) -> bool {
    old.metadata.labels != new.metadata.labels
}

/// Returns whether a pod that one of the waiting pod's spread constraints counts appeared, disappeared or changed
/// (kube-scheduler: PodTopologySpread).
pub(super) fn spread_changed(pod: &Pod, requirements: &PodRequirements, event: &Event) -> bool {
    let inside = |other: &Pod| other.metadata.namespace == pod.metadata.namespace;
    let counts =
        |other: &Pod| inside(other) && requirements.spread.iter().any(|own| own.counts(other));
    match event {
        Event::PodAdded(other) | Event::PodDeleted(other) => counts(other),
        Event::NominationDropped(other) => may_use_the_room_of(pod, other) && counts(other),
        Event::PodLabels { old, new } => inside(new) && counted_otherwise(requirements, old, new),
        _ => false,
    }
}

/// Returns whether the waiting pod now counts in other constraints of its own, or its tolerations changed while
/// they decide which nodes count (kube-scheduler: PodTopologySpread).
pub(super) fn own_spread_changed(old: &Pod, new: &Pod, requirements: &PodRequirements) -> bool {
    let honours_taints = requirements.spread.iter().any(|own| own.honours_taints);
    (honours_taints && tolerations(old) != tolerations(new))
        || counted_otherwise(requirements, old, new)
}

fn counted_otherwise(requirements: &PodRequirements, old: &Pod, new: &Pod) -> bool {
    let mut constraints = requirements.spread.iter();
    constraints.any(|own| own.counts(old) != own.counts(new))
}

/// Returns whether a node that the waiting pod's spread constraints count appeared, or left or joined one of their
/// domains (kube-scheduler: PodTopologySpread).
pub(super) fn domains_changed(
    _: &Pod,
    requirements: &PodRequirements,
    old: Option<&Node>,
    new: &Node,
) -> bool {
    let Some(old) = old else {
        return has_spread_keys(requirements, new);
    };
    let (before, after) = (
        has_spread_keys(requirements, old),
        has_spread_keys(requirements, new),
    );
    let moved = || {
        let mut constraints = requirements.spread.iter();
        constraints.any(|own| domain(old, &own.topology_key) != domain(new, &own.topology_key))
    };
    let taints = |node: &Node| {
        let spec = node.spec.as_ref();
        spec.and_then(|spec| spec.taints.clone())
            .unwrap_or_default()
    };
    before != after || (after && (moved() || taints(old) != taints(new)))
}

/// Returns whether a node has the topology keys of all the pod's spread constraints.
pub(super) fn has_spread_keys(requirements: &PodRequirements, node: &Node) -> bool {
    let has = |own: &requirements::SpreadConstraint| domain(node, &own.topology_key).is_some();
    !requirements.spread.is_empty() && requirements.spread.iter().all(has)
}

fn domain<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    let labels = node.metadata.labels.as_ref()?;
    labels.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests;
