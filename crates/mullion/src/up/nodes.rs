//! The nodes of a cluster for users: which exist, which are ready, and their changes since the last look.
//!
//! A node is known as soon as its instance is launched, so booting nodes are included. [`Watch`] compares looks and has no clock;
//! [`super::progress`] looks repeatedly and prints.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mullion_api::{ami::Os, labels};
use mullion_cloud::{Instance, InstanceState, sim::SimulatedEc2};
use mullion_controllers::Informer;
use rustc_hash::{FxHashMap, FxHashSet};

/// The number of nodes of a kind that are named; more are only counted.
const NAMED: usize = 3;

/// A node, registered or not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Machine {
    /// The node's name.
    pub(crate) name: String,
    /// The properties that the node has in common with others.
    pub(crate) kind: Kind,
    /// Whether the API server has a Node of this name.
    pub(crate) is_registered: bool,
    /// Whether pods can run on the node.
    pub(crate) is_ready: bool,
    /// Whether the node's instance has stopped, so that waiting for the node is useless.
    pub(crate) is_stopped: bool,
}

/// The common properties of nodes that were launched alike.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Kind {
    /// `Linux` or `Windows`.
    pub(crate) os: &'static str,
    /// `Windows Server 2022 Datacenter`.
    pub(crate) image: String,
    /// `m5.xlarge`.
    pub(crate) instance_type: String,
    /// The pool for which the node was launched, if any.
    pub(crate) pool: Option<String>,
    /// The price of the instance in millionths of a dollar per hour. What else a node costs is known to its pool only.
    price: u64,
}

impl Kind {
    fn of(instance: &Instance) -> Self {
        Kind {
            os: match instance.os() {
                Os::Linux => "Linux",
                Os::Windows => "Windows",
            },
            image: instance.image.os_image(),
            instance_type: instance.instance_type.name.to_string(),
            pool: instance.tags.get(labels::NODEPOOL).cloned(),
            price: instance.price.0,
        }
    }

    fn pool(&self) -> String {
        let pool = self.pool.as_ref();
        pool.map_or(String::new(), |pool| format!(", NodePool {pool}"))
    }
}

/// Returns every node whose instance will stay, in the order of their names.
pub(super) fn machines(ec2: &SimulatedEc2, nodes: &Informer<Node>) -> Vec<Machine> {
    let all = nodes.list();
    let registered = all.iter().map(|node| (node.name_any(), is_ready(node)));
    let registered: FxHashMap<String, bool> = registered.collect();
    // The states are ordered as an instance goes through them; a stopped one still exists.
    let is_there = |instance: &Arc<Instance>| instance.state < InstanceState::ShuttingDown;
    let instances = ec2.instances().into_iter().filter(is_there);
    let machine = |instance: Arc<Instance>| Machine {
        is_registered: registered.contains_key(&instance.private_dns_name),
        is_ready: registered.get(&instance.private_dns_name) == Some(&true),
        is_stopped: instance.state == InstanceState::Stopped,
        kind: Kind::of(&instance),
        name: instance.private_dns_name.clone(),
    };
    let mut machines: Vec<_> = instances.map(machine).collect();
    machines.sort_by(|a, b| a.name.cmp(&b.name));
    machines
}

/// The names of nodes that have been registered.
#[derive(Default)]
pub(super) struct RegisteredNodes(FxHashSet<String>);

impl RegisteredNodes {
    /// Removes the machines whose nodes were deleted: they are never registered again, so waiting for them is useless.
    pub(super) fn remaining(&mut self, machines: Vec<Machine>) -> Vec<Machine> {
        let mut machines = machines;
        machines.retain(|machine| {
            if machine.is_registered {
                self.0.insert(machine.name.clone());
            }
            machine.is_registered || !self.0.contains(&machine.name)
        });
        machines
    }
}

/// Returns whether a node reports that it is ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The changes that a node can go through.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum NodeChange {
    Bought,
    Ready,
    NotReady,
    Removed,
}

impl NodeChange {
    fn text(self) -> &'static str {
        match self {
            NodeChange::Bought => "bought",
            NodeChange::Ready => "ready",
            NodeChange::NotReady => "not ready",
            NodeChange::Removed => "removed",
        }
    }
}

struct ObservedNode {
    machine: Machine,
    /// The time of the launch, if it was seen.
    bought: Option<Duration>,
    /// The time since which the node is not ready.
    waits: Duration,
}

/// The nodes at the last look.
pub(super) struct Watch {
    registered: RegisteredNodes,
    known: BTreeMap<String, ObservedNode>,
}

impl Watch {
    /// Creates a watch that knows the nodes that the user has been shown; the first look reports all changes since then.
    pub(super) fn new(shown: Vec<Machine>) -> Watch {
        let mut registered = RegisteredNodes::default();
        let shown = registered.remaining(shown).into_iter();
        let known = shown.map(|machine| {
            let known = ObservedNode {
                machine,
                bought: None,
                waits: Duration::ZERO,
            };
            (known.machine.name.clone(), known)
        });
        Watch {
            known: known.collect(),
            registered,
        }
    }

    /// Compares the nodes at `now`, a time since the start of the watch, with those of the last look. Returns a line for every change.
    pub(super) fn look(&mut self, machines: Vec<Machine>, now: Duration) -> Vec<String> {
        let mut before = std::mem::take(&mut self.known);
        let mut known = BTreeMap::new();
        let mut changes: BTreeMap<(NodeChange, Kind), Vec<String>> = BTreeMap::new();
        for machine in self.registered.remaining(machines) {
            let last = before.remove(&machine.name);
            let was_ready = last.as_ref().is_some_and(|last| last.machine.is_ready);
            // The launch of a node that was shown before this watch began was not seen.
            let bought = match &last {
                Some(last) => last.bought,
                None => Some(now),
            };
            let mut became = |change, text| {
                let key = (change, machine.kind.clone());
                changes.entry(key).or_default().push(text);
            };
            if last.is_none() {
                became(NodeChange::Bought, machine.name.clone());
            }
            match (was_ready, machine.is_ready) {
                (false, true) => became(NodeChange::Ready, ready(&machine, bought, now)),
                (true, false) => became(NodeChange::NotReady, machine.name.clone()),
                _ => {}
            }
            let waits = match &last {
                // A node that was ready at the last look waits anew, whatever time its first start took.
                Some(last) if !was_ready => last.waits,
                _ => now,
            };
            let name = machine.name.clone();
            known.insert(
                name,
                ObservedNode {
                    machine,
                    bought,
                    waits,
                },
            );
        }
        // Nodes that are not among the machines any more were removed.
        for (name, gone) in before {
            let key = (NodeChange::Removed, gone.machine.kind);
            changes.entry(key).or_default().push(name);
        }
        self.known = known;
        let lines = changes.into_iter();
        lines
            .flat_map(|((change, kind), names)| lines_of(change, &kind, names))
            .collect()
    }

    /// Returns the progress of nodes that are not ready yet; `None` if all are.
    pub(super) fn progress(&self, now: Duration) -> Option<String> {
        let known = &self.known;
        let waiting = || known.values().filter(|known| !known.machine.is_ready);
        let since = waiting().map(|known| known.waits).min()?;
        let mut kinds: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for known in waiting() {
            let kind = &known.machine.kind;
            *kinds.entry((&kind.image, &kind.instance_type)).or_default() += 1;
        }
        let kinds = kinds.iter();
        let kinds: Vec<_> = kinds
            .map(|((image, kind), count)| format!("{count} x {kind} ({image})"))
            .collect();
        let all = known.len();
        Some(format!(
            "{} of {all} nodes ready, {} s; waiting for {}",
            all - waiting().count(),
            now.saturating_sub(since).as_secs(),
            kinds.join(", ")
        ))
    }
}

fn ready(machine: &Machine, bought: Option<Duration>, now: Duration) -> String {
    let Machine { name, kind, .. } = machine;
    match bought {
        Some(bought) => {
            let seconds = now.saturating_sub(bought).as_secs();
            format!("{name}, {seconds} s after it was bought")
        }
        None => format!("{name}, {}, {}", kind.instance_type, kind.image),
    }
}

/// Returns a line for each node, or a single line if there are many.
fn lines_of(change: NodeChange, kind: &Kind, names: Vec<String>) -> Vec<String> {
    let Kind {
        image,
        instance_type,
        price,
        ..
    } = kind;
    let pool = kind.pool();
    let usd = |count: usize| *price as f64 * count as f64 / 1e6;
    let word = change.text();
    if names.len() > NAMED {
        let count = names.len();
        let cost = match change {
            NodeChange::Bought => format!(", {:.3} USD/h together without volumes", usd(count)),
            _ => String::new(),
        };
        return vec![format!(
            "{count} nodes {word}: {instance_type}, {image}{cost}{pool}"
        )];
    }
    let line = |name: String| match change {
        NodeChange::Bought => format!(
            "node bought: {name}, {instance_type}, {image}, {:.3} USD/h without its volume{pool}",
            usd(1)
        ),
        NodeChange::Ready | NodeChange::NotReady => format!("node {word}: {name}"),
        NodeChange::Removed => format!("node removed: {name}, {instance_type}, {image}{pool}"),
    };
    names.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, pool: Option<&str>, is_ready: bool) -> Machine {
        let (os, image, instance_type, price) = match pool {
            Some(_) => (
                "Windows",
                "Windows Server 2022 Datacenter",
                "c6a.xlarge",
                337_000,
            ),
            None => ("Linux", "Amazon Linux 2023", "m5.large", 96_000),
        };
        Machine {
            name: name.to_owned(),
            kind: Kind {
                os,
                image: image.to_owned(),
                instance_type: instance_type.to_owned(),
                pool: pool.map(str::to_owned),
                price,
            },
            is_registered: true,
            is_ready,
            is_stopped: false,
        }
    }

    #[test]
    fn a_node_that_is_deleted_is_removed_and_not_waited_for_while_its_instance_is_there() {
        let booting = Machine {
            is_registered: false,
            ..machine("ip-10-0-1-2", None, false)
        };
        let there = || vec![machine("ip-10-0-1-1", None, true), booting.clone()];
        let mut deleted = there();
        (deleted[0].is_registered, deleted[0].is_ready) = (false, false);
        let mut watch = Watch::new(there());
        let second = Duration::from_secs(1);
        assert_eq!(
            watch.look(deleted.clone(), second),
            ["node removed: ip-10-0-1-1, m5.large, Amazon Linux 2023"]
        );
        let progress = watch.progress(second).expect("one boots");
        assert!(
            progress.starts_with("0 of 1 nodes ready, 1 s;"),
            "{progress}"
        );
        assert_eq!(watch.look(deleted.clone(), 2 * second), [] as [String; 0]);
        // Waiting for all nodes to be ready must not count the deleted node either.
        let mut registered = RegisteredNodes::default();
        registered.remaining(there());
        assert_eq!(registered.remaining(deleted), [booting]);
    }

    #[test]
    fn what_happens_between_the_banner_and_the_first_look_is_told() {
        let shown = ["ip-10-0-1-1", "ip-10-0-1-2", "ip-10-0-1-3"];
        let shown = shown.map(|name| machine(name, None, false)).to_vec();
        let mut now = shown.clone();
        now[0].is_ready = true;
        (now[1].is_registered, now[1].is_ready) = (false, false);
        now.remove(2);
        let mut watch = Watch::new(shown);
        assert_eq!(
            watch.look(now, Duration::ZERO),
            [
                "node ready: ip-10-0-1-1, m5.large, Amazon Linux 2023",
                "node removed: ip-10-0-1-2, m5.large, Amazon Linux 2023",
                "node removed: ip-10-0-1-3, m5.large, Amazon Linux 2023",
            ]
        );
    }

    #[test]
    fn every_node_is_told_when_it_is_bought_ready_and_removed() {
        let pool = Some("windows-2022");
        let many = |is_ready| -> Vec<Machine> {
            let names = (1..=5).map(|number| format!("ip-10-0-9-{number}"));
            names.map(|name| machine(&name, pool, is_ready)).collect()
        };
        let looks = [
            (
                0,
                vec![
                    machine("ip-10-0-1-1", None, true),
                    machine("ip-10-0-1-2", None, false),
                ],
            ),
            (
                4,
                vec![
                    machine("ip-10-0-1-1", None, true),
                    machine("ip-10-0-1-2", None, true),
                ],
            ),
            (
                10,
                vec![
                    machine("ip-10-0-1-1", None, true),
                    machine("ip-10-0-1-2", None, true),
                    machine("ip-10-0-3-7", pool, false),
                ],
            ),
            (
                41,
                vec![
                    machine("ip-10-0-1-1", None, false),
                    machine("ip-10-0-1-2", None, true),
                    machine("ip-10-0-3-7", pool, true),
                ],
            ),
            (50, many(false)),
            (80, many(true)),
            (90, Vec::new()),
        ];
        let mut watch = Watch::new(looks[0].1.clone());
        let mut told = String::new();
        for (second, machines) in looks {
            let now = Duration::from_secs(second);
            let lines = watch.look(machines, now);
            let later = now + Duration::from_secs(2);
            let progress = watch.progress(later).unwrap_or("all are ready".to_owned());
            told += &format!("{second} s\n  {}\n  [{progress}]\n", lines.join("\n  "));
        }
        insta::assert_snapshot!(told);
    }
}
