//! Properties of the model under random deltas, against an oracle that is slow and obvious: a cluster built anew.
//!
//! Whatever happened before, a cluster answers like one freshly built from what is there; a rolled back what-if leaves
//! no trace; and the order of arrival is never visible.

use std::collections::BTreeMap;

use mullion_engine::model::{
    Affinity, Container, ContainerPort, LabelSelector, NodeSpec, OwnerRef, PodAffinity,
    PodAffinityTerm, PodSpec, PodTemplate, Quantity, ServiceSpec, StringMap, Taint, TaintEffect,
    Toleration, TopologySpreadConstraint, WeightedPodAffinityTerm, WhenUnsatisfiable, WorkloadSpec,
    label,
};
use mullion_engine::{Cluster, Decision, Options, Outcome};
use proptest::prelude::*;

/// One random change. Numbers pick among a few names and shapes, so that changes meet each other.
#[derive(Clone, Debug)]
enum Delta {
    SetNode(u8, u8),
    RemoveNode(u8),
    SetPod {
        pod: u8,
        shape: u8,
        node: u8,
        terminating: bool,
    },
    RemovePod(u8),
    SetService(u8),
    RemoveService(u8),
    SetWorkload(u8, u8),
    RemoveWorkload(u8),
}

/// What is there, said in specs.
#[derive(Clone, Debug, Default)]
struct Content {
    nodes: BTreeMap<u8, NodeSpec>,
    pods: BTreeMap<u8, PodSpec>,
    services: BTreeMap<u8, ServiceSpec>,
    workloads: BTreeMap<u8, WorkloadSpec>,
}

impl Content {
    fn apply(&mut self, delta: &Delta) {
        match *delta {
            Delta::SetNode(name, shape) => drop(self.nodes.insert(name, node(name, shape))),
            Delta::RemoveNode(name) => drop(self.nodes.remove(&name)),
            Delta::SetPod {
                pod,
                shape,
                node,
                terminating,
            } => {
                self.pods
                    .insert(pod, self::pod(pod, shape, node, terminating));
            }
            Delta::RemovePod(pod) => drop(self.pods.remove(&pod)),
            Delta::SetService(app) => drop(self.services.insert(app, service(app))),
            Delta::RemoveService(app) => drop(self.services.remove(&app)),
            Delta::SetWorkload(name, app) => drop(self.workloads.insert(name, workload(name, app))),
            Delta::RemoveWorkload(name) => drop(self.workloads.remove(&name)),
        }
    }

    /// A cluster built from nothing; `backwards` turns the order of arrival around.
    fn build(&self, backwards: bool) -> Cluster {
        let mut cluster = Cluster::new(Options::default());
        let selectors = |cluster: &mut Cluster| {
            self.services
                .values()
                .for_each(|service| cluster.set_service(service));
            self.workloads
                .values()
                .for_each(|workload| cluster.set_workload(workload));
        };
        if !backwards {
            selectors(&mut cluster);
        }
        let mut nodes: Vec<_> = self.nodes.values().collect();
        let mut pods: Vec<_> = self.pods.values().collect();
        if backwards {
            nodes.reverse();
            pods.reverse();
            pods.iter()
                .for_each(|pod| cluster.add_pod(pod).expect("a new pod"));
        }
        nodes
            .iter()
            .for_each(|node| assert!(cluster.add_node(node).is_ok(), "a new node"));
        if backwards {
            selectors(&mut cluster);
        } else {
            pods.iter()
                .for_each(|pod| cluster.add_pod(pod).expect("a new pod"));
        }
        cluster
    }
}

fn apply(cluster: &mut Cluster, delta: &Delta) {
    match *delta {
        Delta::SetNode(name, shape) => drop(cluster.set_node(&node(name, shape)).expect("valid")),
        Delta::RemoveNode(name) => drop(cluster.remove_node(&format!("n{name}"))),
        Delta::SetPod {
            pod,
            shape,
            node,
            terminating,
        } => {
            cluster
                .set_pod(&self::pod(pod, shape, node, terminating))
                .expect("valid");
        }
        Delta::RemovePod(pod) => drop(cluster.remove_pod(&format!("ns/p{pod}"))),
        Delta::SetService(app) => cluster.set_service(&service(app)),
        Delta::RemoveService(app) => cluster.remove_service("ns", &format!("s{app}")),
        Delta::SetWorkload(name, app) => cluster.set_workload(&workload(name, app)),
        Delta::RemoveWorkload(name) => {
            cluster.remove_workload("ReplicaSet", "ns", &format!("r{name}"))
        }
    }
}

fn node(name: u8, shape: u8) -> NodeSpec {
    let mut node = NodeSpec::named(format!("n{name}"));
    node.labels
        .insert(label::HOSTNAME.into(), node.name.clone());
    if shape % 4 != 3 {
        node.labels
            .insert(label::ZONE.into(), format!("z{}", shape % 4));
    }
    let windows = shape % 5 == 4;
    node.labels.insert(
        label::OS.into(),
        if windows { "windows" } else { "linux" }.into(),
    );
    if windows {
        node.taints.push(Taint {
            key: "os".into(),
            value: "windows".into(),
            effect: TaintEffect::NoSchedule,
        });
    }
    node.unschedulable = shape % 7 == 6;
    node.allocatable
        .insert("cpu".into(), Quantity::from_units(2 + i64::from(shape % 3)));
    node.allocatable
        .insert("memory".into(), "4Gi".parse().expect("a quantity"));
    node.allocatable
        .insert("pods".into(), Quantity::from_units(5));
    node
}

fn service(app: u8) -> ServiceSpec {
    let selector = StringMap::from([("app".into(), format!("a{app}"))]);
    ServiceSpec {
        namespace: "ns".into(),
        name: format!("s{app}"),
        selector,
    }
}

fn workload(name: u8, app: u8) -> WorkloadSpec {
    let match_labels = StringMap::from([("app".into(), format!("a{app}"))]);
    let selector = LabelSelector {
        match_labels,
        ..LabelSelector::default()
    };
    WorkloadSpec {
        kind: "ReplicaSet".into(),
        namespace: "ns".into(),
        name: format!("r{name}"),
        selector,
    }
}

fn pod(name: u8, shape: u8, node: u8, terminating: bool) -> PodSpec {
    PodSpec {
        name: format!("p{name}"),
        node_name: Some(format!("n{node}")),
        terminating,
        start_time: Some(i64::from(name)),
        template: template(shape),
        ..PodSpec::default()
    }
}

/// A handful of templates that together use every filter that looks at other pods.
fn template(shape: u8) -> PodTemplate {
    let mut template = PodTemplate {
        namespace: "ns".into(),
        ..PodTemplate::default()
    };
    template
        .labels
        .insert("app".into(), format!("a{}", shape % 3));
    let own = LabelSelector {
        match_labels: template.labels.clone(),
        ..LabelSelector::default()
    };
    let term = |key: &str| PodAffinityTerm {
        label_selector: Some(own.clone()),
        topology_key: key.into(),
        ..PodAffinityTerm::default()
    };
    let spread = |key: &str, when_unsatisfiable| TopologySpreadConstraint {
        max_skew: 1,
        topology_key: key.into(),
        when_unsatisfiable,
        label_selector: Some(own.clone()),
        ..TopologySpreadConstraint::default()
    };
    let required = |key| {
        Some(PodAffinity {
            required: vec![term(key)],
            preferred: Vec::new(),
        })
    };
    let preferred = |key, weight| {
        let term = WeightedPodAffinityTerm {
            weight,
            pod_affinity_term: term(key),
        };
        Some(PodAffinity {
            required: Vec::new(),
            preferred: vec![term],
        })
    };
    let mut container = Container::default();
    container.resources.requests.insert(
        "cpu".into(),
        Quantity::from_milli(100 * i64::from(1 + shape % 4)),
    );
    template.priority = i32::from(shape % 2) * 10;
    match shape % 9 {
        0 => template
            .topology_spread_constraints
            .push(spread(label::ZONE, WhenUnsatisfiable::DoNotSchedule)),
        1 => template
            .topology_spread_constraints
            .push(spread(label::HOSTNAME, WhenUnsatisfiable::ScheduleAnyway)),
        2 => {
            template.affinity = Affinity {
                pod_affinity: required(label::ZONE),
                ..Affinity::default()
            }
        }
        3 => {
            template.affinity = Affinity {
                pod_anti_affinity: required(label::HOSTNAME),
                ..Affinity::default()
            }
        }
        4 => {
            template.affinity = Affinity {
                pod_affinity: preferred(label::ZONE, 7),
                ..Affinity::default()
            }
        }
        5 => {
            template.affinity = Affinity {
                pod_anti_affinity: preferred(label::HOSTNAME, 3),
                ..Affinity::default()
            }
        }
        6 => container.ports.push(ContainerPort {
            host_port: 80,
            ..ContainerPort::default()
        }),
        7 => template.tolerations.push(Toleration {
            key: "os".into(),
            value: "windows".into(),
            ..Toleration::default()
        }),
        _ => {
            template.owner = Some(OwnerRef {
                kind: "ReplicaSet".into(),
                name: format!("r{}", shape % 2),
            });
        }
    }
    template.containers.push(container);
    template
}

fn delta() -> impl Strategy<Value = Delta> {
    prop_oneof![
        3 => (0..6_u8, any::<u8>()).prop_map(|(name, shape)| Delta::SetNode(name, shape)),
        1 => (0..6_u8).prop_map(Delta::RemoveNode),
        8 => (0..16_u8, 0..36_u8, 0..6_u8, prop::bool::weighted(0.2))
            .prop_map(|(pod, shape, node, terminating)| Delta::SetPod { pod, shape, node, terminating }),
        2 => (0..16_u8).prop_map(Delta::RemovePod),
        1 => (0..3_u8).prop_map(Delta::SetService),
        1 => (0..3_u8).prop_map(Delta::RemoveService),
        1 => (0..2_u8, 0..3_u8).prop_map(|(name, app)| Delta::SetWorkload(name, app)),
        1 => (0..2_u8).prop_map(Delta::RemoveWorkload),
    ]
}

/// Everything a caller can see: every node's word on every shape of pod, the decision, and who is where.
fn visible(cluster: &mut Cluster) -> Vec<String> {
    let mut seen = Vec::new();
    for shape in 0..36 {
        let class = cluster.pod_class(&template(shape)).expect("valid");
        let answer = cluster.answer(class);
        if let Decision::Node(node) = cluster.schedule(class, u64::from(shape % 2)) {
            assert!(
                answer.best.contains(&node),
                "the decision is one of the best"
            );
        }
        for node in answer.nodes {
            let outcome = match node.outcome {
                Outcome::Fits { scores, total } => format!("{total} {scores:?}"),
                Outcome::Refused(refusal) => {
                    let details: Vec<_> = refusal
                        .reasons()
                        .map(|reason| cluster.reason_detail(reason))
                        .collect();
                    format!("{} {details:?}", refusal.plugin.name())
                }
            };
            seen.push(format!(
                "{shape} {} {outcome}",
                cluster.node_name(node.node)
            ));
        }
        seen.push(match cluster.schedule(class, u64::from(shape)) {
            Decision::Node(node) => cluster.node_name(node).to_owned(),
            Decision::Unschedulable(refused) => {
                let preemption = cluster.preempt(class, "", &refused, 1);
                cluster.message_with_preemption(&refused, &preemption)
            }
        });
    }
    let mut nodes: Vec<_> = cluster.nodes().collect();
    nodes.sort_by_key(|node| cluster.node_name(*node).to_owned());
    seen.extend(
        nodes
            .iter()
            .map(|node| format!("{} {:?}", cluster.node_name(*node), cluster.pods_on(*node))),
    );
    seen.push(format!(
        "{} nodes, {} pods",
        cluster.node_count(),
        cluster.pod_count()
    ));
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_cluster_answers_like_one_built_anew(deltas in prop::collection::vec(delta(), 1..60)) {
        let mut content = Content::default();
        let mut cluster = Cluster::new(Options::default());
        for (index, delta) in deltas.iter().enumerate() {
            content.apply(delta);
            apply(&mut cluster, delta);
            if index == deltas.len() / 2 {
                // From here on every view exists and is corrected instead of made.
                visible(&mut cluster);
            }
        }
        prop_assert_eq!(visible(&mut cluster), visible(&mut content.build(false)));
    }

    #[test]
    fn order_of_arrival_is_not_visible(deltas in prop::collection::vec(delta(), 1..60)) {
        let mut content = Content::default();
        deltas.iter().for_each(|delta| content.apply(delta));
        prop_assert_eq!(visible(&mut content.build(true)), visible(&mut content.build(false)));
    }

    #[test]
    fn pods_placed_one_after_another_always_get_a_best_node(
        deltas in prop::collection::vec(delta(), 1..30),
        shapes in prop::collection::vec(0..36_u8, 1..60),
    ) {
        let mut cluster = Cluster::new(Options::default());
        deltas.iter().for_each(|delta| apply(&mut cluster, delta));
        for (index, shape) in shapes.iter().enumerate() {
            let class = cluster.pod_class(&template(*shape)).expect("valid");
            let best = cluster.answer(class).best;
            let chosen = match cluster.schedule(class, 3) {
                Decision::Node(node) => node,
                Decision::Unschedulable(_) => {
                    prop_assert!(best.is_empty());
                    continue;
                }
            };
            prop_assert!(best.contains(&chosen));
            let name = cluster.node_name(chosen).to_owned();
            let placed = PodSpec { name: format!("new{index}"), template: template(*shape), ..PodSpec::default() };
            cluster.bind(&placed, &name).expect("a new pod");
            if index % 7 == 6 {
                cluster.remove_pod(&format!("ns/new{index}")).expect("just bound");
            }
        }
    }

    #[test]
    fn rollback_restores_exactly(
        before in prop::collection::vec(delta(), 1..40),
        what_if in prop::collection::vec(delta(), 1..30),
        deeper in prop::collection::vec(delta(), 0..10),
    ) {
        let mut cluster = Cluster::new(Options::default());
        before.iter().for_each(|delta| apply(&mut cluster, delta));
        let seen = visible(&mut cluster);
        let outer = cluster.checkpoint();
        what_if.iter().for_each(|delta| apply(&mut cluster, delta));
        let middle = visible(&mut cluster);
        let inner = cluster.checkpoint();
        deeper.iter().for_each(|delta| apply(&mut cluster, delta));
        cluster.rollback(inner);
        prop_assert_eq!(visible(&mut cluster), middle);
        cluster.rollback(outer);
        prop_assert_eq!(visible(&mut cluster), seen);
    }
}
