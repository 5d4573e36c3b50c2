//! Every filter of the default profile as a function of the whole world: the first that refuses, with its reasons.

use mullion_engine::Plugin;

use crate::amounts;
use crate::objects::{Node, Pod, Port, World};
use crate::profiles;
use crate::selectors::{
    pod_selects_node, term_matches, term_means, term_means_newcomer, tolerates, untolerated,
};
use crate::spread;
use crate::volumes;

/// Plugin and reasons, sorted.
pub(crate) type Refusal = (&'static str, Vec<String>);

pub(crate) fn one(plugin: &'static str, reason: &str) -> Option<Refusal> {
    Some((plugin, vec![reason.to_owned()]))
}

/// The nodes that the pod names in every term of its required node affinity; `None` if it names none.
pub(crate) fn named(pod: &Pod) -> Option<Vec<String>> {
    all_named(pod).filter(|names| !names.is_empty())
}

/// Whether every term of the pod's required node affinity names nodes, and no node at that: each demands two names at once.
pub(crate) fn names_contradict(pod: &Pod) -> bool {
    all_named(pod).is_some_and(|names| names.is_empty())
}

/// The nodes that the pod names in every term of its required node affinity; `None` if a term names none.
fn all_named(pod: &Pod) -> Option<Vec<String>> {
    let required = pod.spec.affinity.node_affinity.required.as_ref()?;
    let mut union = Vec::new();
    for term in &required.node_selector_terms {
        let mut names: Option<Vec<String>> = None;
        for field in &term.match_fields {
            if field.key == "metadata.name" && field.operator == "In" {
                names = Some(match names {
                    None => field.values.clone(),
                    Some(earlier) => earlier
                        .into_iter()
                        .filter(|name| field.values.contains(name))
                        .collect(),
                });
            }
        }
        union.extend(names?);
    }
    (!required.node_selector_terms.is_empty()).then_some(union)
}

pub(crate) fn refusal(world: &World, pod: &Pod, node: &Node, os: bool) -> Option<Refusal> {
    let profile = &world.profile;
    let by_name = profile.pre_filters.contains(&Plugin::NodeAffinity);
    if by_name && named(pod).is_some_and(|named| !named.contains(&node.metadata.name)) {
        return one("PreFilter", "prefilter");
    }
    let mut order = profile.filters.clone();
    // Ours is not upstream's: it comes after those about the node itself.
    let early = [
        Plugin::NodeUnschedulable,
        Plugin::NodeName,
        Plugin::TaintToleration,
        Plugin::NodeAffinity,
    ];
    let last = order.iter().rposition(|own| early.contains(own));
    let at = last.map_or(0, |at| at + 1);
    order.insert(at, Plugin::OperatingSystem);
    order.iter().find_map(|plugin| {
        let late = if profile.pre_filters.contains(plugin) {
            None
        } else {
            volumes::conflict(world, pod, *plugin)
        };
        late.or_else(|| says(*plugin, world, pod, node, os))
    })
}

fn says(plugin: Plugin, world: &World, pod: &Pod, node: &Node, os: bool) -> Option<Refusal> {
    match plugin {
        Plugin::NodeUnschedulable => cordon(pod, node),
        Plugin::TaintToleration => {
            untolerated(pod, node)?;
            one("TaintToleration", "node(s) had untolerated taint(s)")
        }
        Plugin::NodeAffinity => {
            let added = world.profile.added_affinity.required.as_ref();
            let let_on = added.is_none_or(|added| {
                let mut terms = added.node_selector_terms.iter();
                terms.any(|term| term_matches(&profiles::node_term(term), node))
            });
            if !let_on {
                let reason = "node(s) didn't match scheduler-enforced node affinity";
                return one("NodeAffinity", reason);
            }
            let selected = pod_selects_node(pod, node, false);
            let reason = "node(s) didn't match Pod's node affinity/selector";
            (!selected).then(|| one("NodeAffinity", reason))?
        }
        Plugin::OperatingSystem => {
            let fits = !os || pod_selects_node(pod, node, true);
            let reason = "node(s) didn't match Pod's operating system";
            (!fits).then(|| one("OperatingSystem", reason))?
        }
        Plugin::NodePorts => ports(world, pod, node),
        Plugin::NodeResourcesFit => fit(world, pod, node),
        Plugin::VolumeRestrictions => volumes::restrictions(world, pod, node),
        Plugin::NodeVolumeLimits => volumes::limits(world, pod, node),
        Plugin::VolumeBinding => volumes::binding(world, pod, node),
        Plugin::VolumeZone => volumes::zones(world, pod, node),
        Plugin::PodTopologySpread => spread::refusal(world, pod, node, os),
        Plugin::InterPodAffinity => other_pods(world, pod, node),
        Plugin::NodeDeclaredFeatures => {
            let mut containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
            let needs = containers.any(|container| {
                let mut rules = container.restart_policy_rules.iter();
                rules.any(|rule| rule.action == "RestartAllContainers")
            });
            let mut declared = node.status.declared_features.iter();
            let declares = declared.any(|name| name == "RestartAllContainersOnContainerExits");
            let reason = "node(s) didn't match Pod's required features";
            (needs && !declares).then(|| one("NodeDeclaredFeatures", reason))?
        }
        _ => None,
    }
}

fn cordon(pod: &Pod, node: &Node) -> Option<Refusal> {
    let taint = crate::objects::Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        value: String::new(),
        effect: "NoSchedule".into(),
    };
    let kept_away = node.spec.unschedulable && !tolerates(&pod.spec.tolerations, &taint);
    kept_away.then(|| one("NodeUnschedulable", "node(s) were unschedulable"))?
}

pub(crate) fn host_ports(pod: &Pod) -> Vec<&Port> {
    let sidecars = pod
        .spec
        .init_containers
        .iter()
        .filter(|init| init.restart_policy == "Always");
    let containers = pod.spec.containers.iter().chain(sidecars);
    containers
        .flat_map(|container| &container.ports)
        .filter(|port| port.host_port > 0)
        .collect()
}

fn ports(world: &World, pod: &Pod, node: &Node) -> Option<Refusal> {
    fn or<'a>(text: &'a str, default: &'a str) -> &'a str {
        if text.is_empty() { default } else { text }
    }
    let clash = |a: &Port, b: &Port| {
        let (left, right) = (or(&a.host_ip, "0.0.0.0"), or(&b.host_ip, "0.0.0.0"));
        a.host_port == b.host_port
            && or(&a.protocol, "TCP") == or(&b.protocol, "TCP")
            && (left == right || left == "0.0.0.0" || right == "0.0.0.0")
    };
    let wanted = host_ports(pod);
    let clashes = |held: &Port| wanted.iter().any(|port| clash(port, held));
    let taken = match &world.trial {
        Some(trial) => trial.ports.iter().any(|(ip, protocol, port)| {
            clashes(&Port {
                host_ip: ip.clone(),
                protocol: protocol.clone(),
                host_port: *port,
            })
        }),
        None => world
            .on(node)
            .any(|other| host_ports(other).into_iter().any(clashes)),
    };
    let reason = "node(s) didn't have free ports for the requested pod ports";
    taken.then(|| one("NodePorts", reason))?
}

fn fit(world: &World, pod: &Pod, node: &Node) -> Option<Refusal> {
    let allocatable = amounts::allocatable(node);
    let used = amounts::used(world, node);
    let mut reasons = Vec::new();
    if world.on(node).count() as i64 + 1 > amounts::get(&allocatable, "pods") {
        reasons.push("Too many pods".to_owned());
    }
    for (name, wanted) in amounts::requests(pod) {
        let free = amounts::get(&allocatable, &name) - amounts::get(&used, &name);
        let ignored = profiles::is_ignored(&world.profile, &name);
        if !ignored && wanted > 0 && wanted > free {
            reasons.push(format!("Insufficient {name}"));
        }
    }
    reasons.sort();
    (!reasons.is_empty()).then_some(("NodeResourcesFit", reasons))
}

fn other_pods(world: &World, pod: &Pod, node: &Node) -> Option<Refusal> {
    const PLUGIN: &str = "InterPodAffinity";
    if world
        .trial
        .as_ref()
        .is_some_and(|trial| trial.skips_affinity)
    {
        return None;
    }
    let affinity = &pod.spec.affinity;
    let place = |node: &Node, key: &str| node.metadata.labels.get(key).cloned();
    let near = &affinity.pod_affinity.required;
    // A pod counts for a term if it is meant by all of them, in the places whose nodes have the term's key.
    let counts = |other: &Pod| {
        near.iter()
            .all(|term| term_means(term, &pod.metadata, &other.metadata, world))
    };
    let counted: Vec<&Pod> = world
        .placed
        .iter()
        .filter(|other| !near.is_empty() && counts(other))
        .collect();
    let in_place = |key: &str| {
        counted.iter().any(|other| {
            place(world.under(other), key).is_some()
                && place(world.under(other), key) == place(node, key)
        })
    };
    if near
        .iter()
        .any(|term| place(node, &term.topology_key).is_none())
    {
        return one(PLUGIN, "node(s) didn't match pod affinity rules");
    }
    if !near.iter().all(|term| in_place(&term.topology_key)) {
        let any = near.iter().any(|term| {
            counted
                .iter()
                .any(|other| place(world.under(other), &term.topology_key).is_some())
        });
        let first = !any
            && near
                .iter()
                .all(|term| term_means(term, &pod.metadata, &pod.metadata, world));
        if !first {
            return one(PLUGIN, "node(s) didn't match pod affinity rules");
        }
    }
    let share = |other: &Pod, key: &str| {
        let theirs = place(world.under(other), key);
        theirs.is_some() && theirs == place(node, key)
    };
    let apart = &affinity.pod_anti_affinity.required;
    let refused = apart.iter().any(|term| {
        world.placed.iter().any(|other| {
            term_means(term, &pod.metadata, &other.metadata, world)
                && share(other, &term.topology_key)
        })
    });
    if refused {
        return one(PLUGIN, "node(s) didn't match pod anti-affinity rules");
    }
    let kept_away = world.placed.iter().any(|other| {
        other
            .spec
            .affinity
            .pod_anti_affinity
            .required
            .iter()
            .any(|term| {
                term_means_newcomer(term, &other.metadata, &pod.metadata, world)
                    && share(other, &term.topology_key)
            })
    });
    let reason = "node(s) didn't satisfy existing pods anti-affinity rules";
    kept_away.then(|| one(PLUGIN, reason))?
}
