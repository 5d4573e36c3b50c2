//! Compares boards with checking every node: after any changes of a cluster the boards must give the same decisions,
//! including ties and the count of every refusal, and their cached eviction costs must equal those from trying every
//! node.

use proptest::prelude::*;

use super::variety;
use crate::cluster::{Cluster, Options};
use crate::model::{
    Affinity, Container, ContainerImage, ContainerPort, LabelSelector, NamespaceSpec, NodeAffinity,
    NodeSelectorRequirement, NodeSelectorTerm, NodeSpec, Operator, PdbSpec, PodAffinity,
    PodAffinityTerm, PodSpec, PodTemplate, PreferredSchedulingTerm, Quantity, ServiceSpec,
    StringMap, Taint, TaintEffect, Toleration, TolerationOperator, TopologySpreadConstraint,
    WeightedPodAffinityTerm, WhenUnsatisfiable, label,
};
use crate::preempt::Preemption;
use crate::schedule::Decision;
use crate::tie::tie;

const KEYS: [&str; 3] = [label::HOSTNAME, label::ZONE, "rack"];
const NAMESPACES: [&str; 3] = ["a", "b", "c"];

/// A random change or question. The numbers are small and select from few names, so that steps often concern the same
/// objects.
#[derive(Clone, Debug)]
enum Step {
    Node {
        name: u8,
        look: u16,
    },
    RemoveNode(u8),
    /// Places a pod of the template on the node that the scheduler chooses.
    Pod {
        template: u8,
        seed: u8,
    },
    /// Adds a pod to any node, whether it fits or not.
    Bound {
        template: u8,
        node: u8,
        start: u8,
        terminating: bool,
    },
    RemovePod(u8),
    Nominate {
        template: u8,
        node: u8,
    },
    Denominate(u8),
    Service {
        name: u8,
        there: bool,
    },
    Namespace {
        name: u8,
        there: bool,
    },
    Budget {
        name: u8,
        allowed: u8,
        there: bool,
    },
    /// Makes the next steps, at most this many, part of a what-if that is rolled back.
    WhatIf(u8),
    /// Collects unused classes.
    Collect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..10_u8, any::<u16>()).prop_map(|(name, look)| Step::Node { name, look }),
        1 => (0..10_u8).prop_map(Step::RemoveNode),
        8 => (0..6_u8, any::<u8>()).prop_map(|(template, seed)| Step::Pod { template, seed }),
        4 => (0..6_u8, 0..10_u8, 0..3_u8, prop::bool::weighted(0.2))
            .prop_map(|(template, node, start, terminating)| Step::Bound { template, node, start, terminating }),
        2 => any::<u8>().prop_map(Step::RemovePod),
        1 => (0..6_u8, 0..10_u8).prop_map(|(template, node)| Step::Nominate { template, node }),
        1 => (0..6_u8).prop_map(Step::Denominate),
        1 => (0..3_u8, any::<bool>()).prop_map(|(name, there)| Step::Service { name, there }),
        1 => (0..3_u8, any::<bool>()).prop_map(|(name, there)| Step::Namespace { name, there }),
        1 => (0..2_u8, 0..3_u8, any::<bool>()).prop_map(|(name, allowed, there)| Step::Budget { name, allowed, there }),
        1 => (1..5_u8).prop_map(Step::WhatIf),
        1 => Just(Step::Collect),
    ]
}

/// Derives choices from random bits.
struct Bits(u64);

impl Bits {
    fn below(&mut self, bound: u64) -> u64 {
        let taken = self.0 % bound;
        // Dividing leaves enough bits for most choices; mixing in the rotated number keeps them random once the bits
        // are used up.
        self.0 = (self.0 / bound) ^ self.0.rotate_left(29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        taken
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

fn map(pairs: &[(&str, &str)]) -> StringMap {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn node(name: u8, look: u16) -> NodeSpec {
    let mut bits = Bits(u64::from(look).wrapping_mul(0xbf58_476d_1ce4_e5b9));
    let mut node = NodeSpec::named(format!("n{name}"));
    // Most nodes have their own hostname label; some share one, some have none.
    if !bits.one_in(12) {
        let hostname = if bits.one_in(8) {
            "shared".to_owned()
        } else {
            node.name.clone()
        };
        node.labels.insert(label::HOSTNAME.into(), hostname);
    }
    for (key, values) in [(label::ZONE, 3), ("rack", 4), ("disk", 2)] {
        if !bits.one_in(8) {
            node.labels
                .insert(key.into(), format!("{key}-{}", bits.below(values)));
        }
    }
    if bits.one_in(4) {
        node.labels.insert(label::OS.into(), "windows".into());
    }
    if bits.one_in(4) {
        let effect = bits.pick(&[
            TaintEffect::NoSchedule,
            TaintEffect::PreferNoSchedule,
            TaintEffect::NoExecute,
        ]);
        node.taints.push(Taint {
            key: "only".into(),
            value: "some".into(),
            effect,
        });
    }
    node.unschedulable = bits.one_in(15);
    let amounts = [
        ("cpu", 1 + bits.below(4)),
        ("memory", (1 + bits.below(4)) << 30),
        ("pods", 2 + bits.below(8)),
    ];
    node.allocatable = amounts
        .into_iter()
        .map(|(name, amount)| (name.to_owned(), Quantity::from_units(amount as i64)))
        .collect();
    if bits.one_in(3) {
        node.images.push(ContainerImage {
            names: vec!["big:1".into()],
            size_bytes: 900 << 20,
        });
    }
    node
}

fn selector(bits: &mut Bits) -> LabelSelector {
    LabelSelector {
        match_labels: map(&[("app", bits.pick(&["x", "y"]))]),
        ..LabelSelector::default()
    }
}

fn term(bits: &mut Bits) -> PodAffinityTerm {
    let namespaced = LabelSelector {
        match_labels: map(&[("team", "t")]),
        ..LabelSelector::default()
    };
    PodAffinityTerm {
        label_selector: Some(selector(bits)),
        topology_key: bits.pick(&KEYS).into(),
        namespace_selector: bits.one_in(3).then_some(namespaced),
        ..PodAffinityTerm::default()
    }
}

fn terms(bits: &mut Bits) -> Option<PodAffinity> {
    let mut affinity = PodAffinity::default();
    if bits.one_in(4) {
        affinity.required.push(term(bits));
    }
    for _ in 0..bits.below(3) {
        let weight = 1 + bits.below(50) as i32;
        affinity.preferred.push(WeightedPodAffinityTerm {
            weight,
            pod_affinity_term: term(bits),
        });
    }
    bits.one_in(2).then_some(affinity)
}

fn template(look: u64) -> PodTemplate {
    let mut bits = Bits(look);
    let mut template = PodTemplate {
        namespace: bits.pick(&NAMESPACES).into(),
        labels: map(&[("app", bits.pick(&["x", "y"]))]),
        priority: bits.pick(&[0, 0, 10, 20]),
        ..PodTemplate::default()
    };
    let mut container = Container {
        image: bits.pick(&["big:1", "small"]).into(),
        ..Container::default()
    };
    for (name, amount) in [
        ("cpu", bits.pick(&[0, 100, 500, 900])),
        ("memory", bits.pick(&[0, 1 << 28, 1 << 29]) * 1000),
    ] {
        if !bits.one_in(4) {
            container
                .resources
                .requests
                .insert(name.into(), Quantity::from_milli(amount));
        }
    }
    if bits.one_in(8) {
        container.ports.push(ContainerPort {
            host_port: 80,
            ..ContainerPort::default()
        });
    }
    template.containers.push(container);
    if bits.one_in(3) {
        let operator = TolerationOperator::Exists;
        template.tolerations.push(Toleration {
            key: "only".into(),
            operator,
            ..Toleration::default()
        });
    }
    if bits.one_in(12) {
        let one = Quantity::from_units(1);
        let requests = &mut template.containers[0].resources.requests;
        requests.insert(variety::FOREIGN.into(), one);
    }
    if bits.one_in(6) {
        template.node_selector = map(&[("disk", "disk-0")]);
    }
    if bits.one_in(4) {
        let requirement = NodeSelectorRequirement {
            key: "rack".into(),
            operator: Operator::In,
            values: vec!["rack-1".into(), "rack-2".into()],
        };
        let preference = NodeSelectorTerm {
            match_expressions: vec![requirement],
            ..NodeSelectorTerm::default()
        };
        let preferred = vec![PreferredSchedulingTerm {
            weight: 7,
            preference,
        }];
        template.affinity.node_affinity = Some(NodeAffinity {
            required: None,
            preferred,
        });
    }
    let affinity = Affinity {
        pod_affinity: terms(&mut bits),
        pod_anti_affinity: terms(&mut bits),
        ..Affinity::default()
    };
    if bits.one_in(8) {
        let own = template.affinity.node_affinity.get_or_insert_default();
        own.required = Some(variety::nodes("metadata.name", &["n1", "n3", "n5"]));
    }
    if bits.one_in(4) {
        for _ in 0..1 + bits.below(2) {
            template.volumes.push(variety::volume(bits.below(60)));
        }
    }
    template.affinity.pod_affinity = affinity.pod_affinity;
    template.affinity.pod_anti_affinity = affinity.pod_anti_affinity;
    for _ in 0..bits.below(3) {
        template
            .topology_spread_constraints
            .push(TopologySpreadConstraint {
                max_skew: 1 + bits.below(3) as i32,
                topology_key: bits.pick(&KEYS).into(),
                when_unsatisfiable: bits.pick(&[
                    WhenUnsatisfiable::DoNotSchedule,
                    WhenUnsatisfiable::ScheduleAnyway,
                ]),
                label_selector: Some(selector(&mut bits)),
                ..TopologySpreadConstraint::default()
            });
    }
    template
}

/// A cluster that steps change, and the templates of its pods.
struct World {
    cluster: Cluster,
    templates: Vec<PodTemplate>,
    pods: Vec<String>,
    made: usize,
}

impl World {
    fn spec(&mut self, template: u8) -> PodSpec {
        self.made += 1;
        let template = self.templates[usize::from(template) % self.templates.len()].clone();
        PodSpec {
            name: format!("p{}", self.made),
            template,
            ..PodSpec::default()
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Node { name, look } => {
                self.cluster.set_node(&node(name, look)).expect("valid");
            }
            Step::RemoveNode(name) => drop(self.cluster.remove_node(&format!("n{name}"))),
            Step::Pod { template, seed } => {
                let spec = self.spec(template);
                if let Decision::Node(node) = self
                    .cluster
                    .schedule_pod(&spec, u64::from(seed))
                    .expect("valid")
                {
                    let class = self.cluster.pod_class(&spec.template).expect("valid");
                    self.cluster
                        .place(class, "", &spec.name, node)
                        .expect("new");
                    self.pods.push(spec.key());
                }
            }
            Step::Bound {
                template,
                node,
                start,
                terminating,
            } => {
                let mut spec = self.spec(template);
                spec.start_time = Some(i64::from(start));
                spec.terminating = terminating;
                self.cluster.bind(&spec, &format!("n{node}")).expect("new");
                self.pods.push(spec.key());
            }
            Step::RemovePod(which) if !self.pods.is_empty() => {
                let key = self.pods.swap_remove(usize::from(which) % self.pods.len());
                self.cluster.remove_pod(&key).expect("there");
            }
            Step::RemovePod(_) => {}
            Step::Nominate { template, node } => {
                let mut spec = self.spec(template);
                spec.name = format!("hopeful{template}");
                self.cluster
                    .nominate(&spec, &format!("n{node}"))
                    .expect("valid");
            }
            Step::Denominate(template) => {
                let mut spec = self.spec(template);
                spec.name = format!("hopeful{template}");
                self.cluster.denominate(&spec.key());
            }
            Step::Service { name, there } => self.service(NAMESPACES[usize::from(name)], there),
            Step::Namespace { name, there } => {
                let name = NAMESPACES[usize::from(name)].to_owned();
                let labels = if there {
                    map(&[("team", "t")])
                } else {
                    StringMap::new()
                };
                self.cluster.set_namespace(&NamespaceSpec { name, labels });
            }
            Step::Budget {
                name,
                allowed,
                there,
            } => {
                let namespace = NAMESPACES[usize::from(name)].to_owned();
                let selector = LabelSelector {
                    match_labels: map(&[("app", "x")]),
                    ..LabelSelector::default()
                };
                if there {
                    self.cluster.set_pdb(&PdbSpec {
                        namespace,
                        name: "b".into(),
                        selector: Some(selector),
                        disruptions_allowed: i32::from(allowed),
                        disrupted_pods: Vec::new(),
                    });
                } else {
                    self.cluster.remove_pdb(&namespace, "b");
                }
            }
            Step::Collect if self.cluster.checkpoints == 0 => self.cluster.collect_classes(),
            Step::Collect | Step::WhatIf(_) => {}
        }
    }

    fn service(&mut self, namespace: &str, there: bool) {
        if there {
            let selector = map(&[("app", "x")]);
            self.cluster.set_service(&ServiceSpec {
                namespace: namespace.into(),
                name: "s".into(),
                selector,
            });
        } else {
            self.cluster.remove_service(namespace, "s");
        }
    }

    /// Asks about every template with and without boards and compares the answers.
    fn compare(&mut self, seed: u64) -> Result<(), TestCaseError> {
        for index in 0..self.templates.len() {
            let class = self
                .cluster
                .pod_class(&self.templates[index])
                .expect("valid");
            let namespace = self.templates[index].namespace.clone();
            for key in [String::new(), format!("{namespace}/hopeful{index}")] {
                let fast = self.cluster.schedule_key(class, &key, seed);
                let slow = self.cluster.schedule_checking_every_node(class, &key, seed);
                prop_assert_eq!(&fast, &slow, "template {}", index);
                if let Decision::Unschedulable(refused) = fast {
                    let fast = self.cluster.preempt_by_board(class, &key, seed);
                    let slow = self.cluster.preempt_by_trying_all(class, &key, seed);
                    prop_assert!(
                        fast.is_none() || fast.as_ref() == Some(&slow),
                        "{:?} {:?} {:?}",
                        fast,
                        slow,
                        refused
                    );
                    if let Preemption::Evict { chosen } = slow {
                        let equals = self.cluster.equal_evictions(class, &key);
                        let name = |node| self.cluster.node_name(node);
                        let nearest = equals
                            .iter()
                            .max_by_key(|eviction| tie(seed, name(eviction.node)));
                        prop_assert_eq!(nearest, Some(&chosen));
                    }
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn boards_decide_as_asking_every_node_does(
        nodes in prop::collection::vec(any::<u16>(), 1..10),
        looks in prop::collection::vec(any::<u64>(), 1..6),
        steps in prop::collection::vec(step(), 1..40),
        seed in any::<u64>(),
    ) {
        let templates = looks.into_iter().map(template).collect();
        let profile = variety::profile(seed >> 7);
        let mut cluster = Cluster::with_profiles(Options::default(), &[profile]);
        // A limit of one volume per node, or one that is never reached.
        let limit = if seed & 64 == 0 { 1 } else { 100 };
        variety::store(&mut cluster, &NAMESPACES, limit);
        let mut world = World { cluster, templates, pods: Vec::new(), made: 0 };
        for (name, look) in nodes.iter().enumerate() {
            world.take(&Step::Node { name: name as u8, look: *look });
        }
        let mut what_if = None;
        for (index, step) in steps.iter().enumerate() {
            if let (Step::WhatIf(length), None) = (step, &what_if) {
                what_if = Some((world.cluster.checkpoint(), world.pods.clone(), index + usize::from(*length)));
            }
            world.take(step);
            if what_if.as_ref().is_some_and(|(_, _, end)| *end <= index)
                && let Some((checkpoint, pods, _)) = what_if.take()
            {
                world.cluster.rollback(checkpoint);
                world.pods = pods;
            }
            // Two of three steps are compared alone; otherwise several changes come between two comparisons.
            if seed.rotate_left(index as u32) % 3 != 0 {
                world.compare(seed.wrapping_add(index as u64))?;
            }
        }
        world.compare(seed)?;
    }
}
