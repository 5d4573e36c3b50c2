//! Whatever comes in, the engine answers or refuses with a typed reason; it never panics.

use mullion_engine::model::{
    Affinity, Container, ContainerImage, ContainerPort, InclusionPolicy, LabelSelector,
    LabelSelectorRequirement, NodeAffinity, NodeSelector, NodeSelectorRequirement,
    NodeSelectorTerm, NodeSpec, Operator, PodAffinity, PodAffinityTerm, PodSpec,
    PreferredSchedulingTerm, Quantity, ResourceMap, Taint, TaintEffect, Toleration,
    TolerationOperator, TopologySpreadConstraint, WeightedPodAffinityTerm, WhenUnsatisfiable,
};
use mullion_engine::model::{
    CsiNodeSpec, Disk, PersistentVolumeClaimSpec, PersistentVolumeSpec, PodVolume,
    StorageClassSpec, TopologyRequirement, VolumeSource,
};
use mullion_engine::profile::ScoringStrategy;
use mullion_engine::{Cluster, Decision, Options, Profile};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

fn text() -> impl Strategy<Value = String> {
    select(vec![
        "",
        "a",
        "b",
        "zone",
        "kubernetes.io/hostname",
        "metadata.name",
        "n0",
        "7",
        "-9223372036854775808",
        "ü/ /\u{0}",
    ])
    .prop_map(str::to_owned)
}

fn number() -> impl Strategy<Value = i32> {
    select(vec![i32::MIN, -1, 0, 1, 2, 100, i32::MAX])
}

fn quantities() -> impl Strategy<Value = ResourceMap> {
    let names = select(vec![
        "cpu",
        "memory",
        "pods",
        "ephemeral-storage",
        "example.com/gpu",
        "hugepages-2Mi",
        "odd",
    ]);
    let amount = select(vec![
        "0",
        "1",
        "100m",
        "9223372036854775807",
        "16Ei",
        "1n",
        "-1",
    ]);
    let pair = (names, amount)
        .prop_map(|(name, amount)| (name.to_owned(), amount.parse().expect("a quantity")));
    vec(pair, 0..5).prop_map(|pairs| pairs.into_iter().collect())
}

fn operator() -> impl Strategy<Value = Operator> {
    use Operator::{DoesNotExist, Exists, Gt, Gte, In, Lt, Lte, NotIn};
    select(vec![In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte, Lte])
}

fn selector() -> impl Strategy<Value = Option<LabelSelector>> {
    let expression = (text(), operator(), vec(text(), 0..3)).prop_map(|(key, operator, values)| {
        LabelSelectorRequirement {
            key,
            operator,
            values,
        }
    });
    let selector = (
        prop::collection::btree_map(text(), text(), 0..3),
        vec(expression, 0..3),
    );
    prop::option::of(
        selector.prop_map(|(match_labels, match_expressions)| LabelSelector {
            match_labels,
            match_expressions,
        }),
    )
}

fn node_term() -> impl Strategy<Value = NodeSelectorTerm> {
    let requirement = || {
        (text(), operator(), vec(text(), 0..3)).prop_map(|(key, operator, values)| {
            NodeSelectorRequirement {
                key,
                operator,
                values,
            }
        })
    };
    (vec(requirement(), 0..3), vec(requirement(), 0..3)).prop_map(
        |(match_expressions, match_fields)| NodeSelectorTerm {
            match_expressions,
            match_fields,
        },
    )
}

fn pod_affinity() -> impl Strategy<Value = Option<PodAffinity>> {
    let term = || {
        (selector(), vec(text(), 0..2), selector(), text()).prop_map(
            |(label_selector, namespaces, namespace_selector, topology_key)| PodAffinityTerm {
                label_selector,
                namespaces,
                namespace_selector,
                topology_key,
            },
        )
    };
    let weighted =
        (number(), term()).prop_map(|(weight, pod_affinity_term)| WeightedPodAffinityTerm {
            weight,
            pod_affinity_term,
        });
    let affinity = (vec(term(), 0..2), vec(weighted, 0..2));
    prop::option::of(affinity.prop_map(|(required, preferred)| PodAffinity {
        required,
        preferred,
    }))
}

fn spread() -> impl Strategy<Value = TopologySpreadConstraint> {
    let policy = || {
        prop::option::of(select(vec![
            InclusionPolicy::Honor,
            InclusionPolicy::Ignore,
        ]))
    };
    let when = select(vec![
        WhenUnsatisfiable::DoNotSchedule,
        WhenUnsatisfiable::ScheduleAnyway,
    ]);
    (
        number(),
        text(),
        when,
        selector(),
        prop::option::of(number()),
        (policy(), policy()),
        vec(text(), 0..2),
    )
        .prop_map(
            |(
                max_skew,
                topology_key,
                when_unsatisfiable,
                label_selector,
                min_domains,
                policies,
                match_label_keys,
            )| {
                TopologySpreadConstraint {
                    max_skew,
                    topology_key,
                    when_unsatisfiable,
                    label_selector,
                    min_domains,
                    node_affinity_policy: policies.0,
                    node_taints_policy: policies.1,
                    match_label_keys,
                }
            },
        )
}

fn toleration() -> impl Strategy<Value = Toleration> {
    use TolerationOperator::{Equal, Exists, Gt, Lt};
    let effect = prop::option::of(select(vec![
        TaintEffect::NoSchedule,
        TaintEffect::PreferNoSchedule,
    ]));
    (text(), select(vec![Equal, Exists, Gt, Lt]), text(), effect).prop_map(
        |(key, operator, value, effect)| Toleration {
            key,
            operator,
            value,
            effect,
            toleration_seconds: None,
        },
    )
}

fn pod() -> impl Strategy<Value = PodSpec> {
    let container = (quantities(), text(), number(), text()).prop_map(
        |(requests, image, host_port, protocol)| {
            let ports = vec![ContainerPort {
                host_port,
                host_ip: image.clone(),
                protocol,
            }];
            let mut container = Container {
                image,
                ports,
                ..Container::default()
            };
            container.resources.requests = requests;
            container
        },
    );
    let preferred = (number(), node_term())
        .prop_map(|(weight, preference)| PreferredSchedulingTerm { weight, preference });
    let node_affinity = (
        prop::option::of(vec(node_term(), 0..3)),
        vec(preferred, 0..2),
    )
        .prop_map(|(terms, preferred)| {
            let required = terms.map(|node_selector_terms| NodeSelector {
                node_selector_terms,
            });
            NodeAffinity {
                required,
                preferred,
            }
        });
    let affinity = (
        prop::option::of(node_affinity),
        pod_affinity(),
        pod_affinity(),
    )
        .prop_map(
            |(node_affinity, pod_affinity, pod_anti_affinity)| Affinity {
                node_affinity,
                pod_affinity,
                pod_anti_affinity,
            },
        );
    let spreads = vec(spread(), 0..2);
    let labels = prop::collection::btree_map(text(), text(), 0..3);
    (
        vec(container, 0..3),
        quantities(),
        affinity,
        spreads,
        labels,
        number(),
        vec(toleration(), 0..2),
        text(),
    )
        .prop_map(
            |(containers, overhead, affinity, spreads, labels, priority, tolerations, os)| {
                let mut pod = PodSpec::default();
                pod.template.init_containers = containers.clone();
                pod.template.containers = containers;
                pod.template.overhead = overhead;
                pod.template.affinity = affinity;
                pod.template.topology_spread_constraints = spreads;
                pod.template.labels = labels;
                pod.template.priority = priority;
                pod.template.tolerations = tolerations;
                pod.template.os = Some(os);
                pod
            },
        )
}

fn node() -> impl Strategy<Value = NodeSpec> {
    let taint = (text(), text()).prop_map(|(key, value)| Taint {
        key,
        value,
        effect: TaintEffect::PreferNoSchedule,
    });
    let image = (vec(text(), 0..2), select(vec![i64::MIN, 0, i64::MAX]))
        .prop_map(|(names, size_bytes)| ContainerImage { names, size_bytes });
    let labels = prop::collection::btree_map(text(), text(), 0..4);
    (labels, quantities(), vec(taint, 0..2), vec(image, 0..2)).prop_map(
        |(labels, allocatable, taints, images)| NodeSpec {
            labels,
            allocatable,
            taints,
            images,
            ..NodeSpec::default()
        },
    )
}

fn quantity() -> impl Strategy<Value = Quantity> {
    select(vec!["0", "-1", "1n", "16Ei", "1Gi"]).prop_map(|text| text.parse().expect("a quantity"))
}

fn disk() -> impl Strategy<Value = Disk> {
    prop_oneof![
        (text(), any::<bool>())
            .prop_map(|(name, read_only)| Disk::GcePersistentDisk { name, read_only }),
        text().prop_map(|id| Disk::AwsElasticBlockStore { id }),
        (vec(text(), 0..2), text()).prop_map(|(monitors, image)| Disk::Rbd {
            monitors,
            pool: image.clone(),
            image,
            read_only: false,
        }),
        text().prop_map(|uri| Disk::AzureDisk { uri }),
    ]
}

fn pod_volume() -> impl Strategy<Value = PodVolume> {
    prop_oneof![
        text().prop_map(|claim| PodVolume::Claim { claim }),
        (text(), text()).prop_map(|(claim, uid)| PodVolume::Ephemeral {
            pod: claim.clone(),
            claim,
            uid,
        }),
        disk().prop_map(PodVolume::Disk),
    ]
}

fn claim() -> impl Strategy<Value = PersistentVolumeClaimSpec> {
    let names = (text(), text(), text());
    (
        names,
        any::<bool>(),
        prop::option::of(quantity()),
        selector(),
    )
        .prop_map(
            |((name, volume, class), bind_completed, request, selector)| {
                PersistentVolumeClaimSpec {
                    name,
                    volume,
                    class,
                    bind_completed,
                    request,
                    selector,
                    ..PersistentVolumeClaimSpec::default()
                }
            },
        )
}

fn volume() -> impl Strategy<Value = PersistentVolumeSpec> {
    let labels = prop::collection::btree_map(
        select(vec!["topology.kubernetes.io/zone", "zone"]).prop_map(str::to_owned),
        select(vec!["", "__", "a__b", "a"]).prop_map(str::to_owned),
        0..2,
    );
    let terms = prop::option::of(vec(node_term(), 0..2));
    (
        text(),
        text(),
        quantity(),
        labels,
        terms,
        prop::option::of(disk()),
    )
        .prop_map(
            |(name, class, capacity, labels, terms, disk)| PersistentVolumeSpec {
                name,
                class,
                capacity,
                labels,
                available: true,
                node_affinity: terms.map(|node_selector_terms| NodeSelector {
                    node_selector_terms,
                }),
                source: disk.map(VolumeSource::Disk),
                ..PersistentVolumeSpec::default()
            },
        )
}

fn class() -> impl Strategy<Value = StorageClassSpec> {
    let demand =
        (text(), vec(text(), 0..2)).prop_map(|(key, values)| TopologyRequirement { key, values });
    let terms = vec(vec(demand, 0..2), 0..2);
    (text(), text(), any::<bool>(), terms).prop_map(
        |(name, provisioner, waits_for_consumer, allowed_topologies)| StorageClassSpec {
            name,
            provisioner,
            waits_for_consumer,
            allowed_topologies,
        },
    )
}

fn csi_node() -> impl Strategy<Value = CsiNodeSpec> {
    let count = select(vec![i64::MIN, -1, 0, 1, i64::MAX]);
    let name = (0..4_u8).prop_map(|index| format!("n{index}"));
    (name, vec((text(), count), 0..3)).prop_map(|(name, limits)| CsiNodeSpec {
        name,
        limits,
        migrated_plugins: vec!["kubernetes.io/aws-ebs".to_owned()],
    })
}

fn profile() -> impl Strategy<Value = Profile> {
    let number = || select(vec![i64::MIN, -1, 0, 1, 100, i64::MAX]);
    let points = vec((number(), number()), 0..4);
    let strategy = prop_oneof![
        Just(ScoringStrategy::MostAllocated),
        points.prop_map(ScoringStrategy::RequestedToCapacityRatio),
    ];
    (
        strategy,
        vec((text(), number()), 0..3),
        vec(text(), 0..4),
        number(),
        number(),
    )
        .prop_map(|(strategy, resources, balanced_resources, weight, hard)| {
            let mut profile = Profile {
                balanced_resources,
                hard_pod_affinity_weight: hard,
                ..Profile::default()
            };
            profile.fit.strategy = strategy;
            profile.fit.resources = resources;
            profile.scores.values_mut().for_each(|own| *own = weight);
            profile
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nonsense_about_storage_and_profiles_is_answered_or_refused(
        profile in profile(),
        nodes in vec(node(), 1..6),
        claims in vec(claim(), 0..4),
        volumes in vec(volume(), 0..4),
        classes in vec(class(), 0..4),
        csi_nodes in vec(csi_node(), 0..4),
        pods in vec((pod(), vec(pod_volume(), 0..3)), 1..6),
    ) {
        let mut cluster = Cluster::with_profiles(Options::default(), &[profile]);
        claims.iter().for_each(|claim| cluster.set_claim(claim));
        volumes.iter().for_each(|volume| cluster.set_volume(volume));
        classes.iter().for_each(|class| cluster.set_storage_class(class));
        csi_nodes.iter().for_each(|node| cluster.set_csi_node(node));
        for (index, node) in nodes.into_iter().enumerate() {
            // A node that offers less than nothing is refused, which is fine here.
            let mut node = NodeSpec { name: format!("n{index}"), ..node };
            node.allocatable.insert("pods".to_owned(), Quantity::from_units(9));
            let _ = cluster.add_node(&node);
        }
        for (index, (mut pod, volumes)) in pods.into_iter().enumerate() {
            pod.name = format!("p{index}");
            pod.template.volumes = volumes;
            match cluster.schedule_pod(&pod, 0) {
                Ok(Decision::Node(node)) => {
                    let name = cluster.node_name(node).to_owned();
                    cluster.bind(&pod, &name).expect("a new pod");
                }
                Ok(Decision::Unschedulable(refused)) => {
                    let class = cluster.pod_class(&pod.template).expect("it was scheduled");
                    let preemption = cluster.preempt(class, &pod.key(), &refused, 0);
                    prop_assert!(!cluster.message_with_preemption(&refused, &preemption).is_empty());
                    cluster.bind(&pod, "n0").expect("a new pod");
                }
                Err(error) => prop_assert!(error.to_string().contains("below zero")),
            }
        }
    }
}

#[test]
fn a_million_labels_are_a_node_like_any_other() {
    let mut cluster = Cluster::new(Options::default());
    let mut node = NodeSpec::named("crowded");
    node.allocatable
        .insert("pods".to_owned(), Quantity::from_units(1));
    node.labels = (0..1_000_000)
        .map(|index| (format!("key-{index}"), index.to_string()))
        .collect();
    let id = cluster.add_node(&node).expect("valid");
    let mut pod = PodSpec {
        name: "picky".to_owned(),
        ..PodSpec::default()
    };
    let select = |value: &str| [("key-999999".to_owned(), value.to_owned())].into();
    pod.template.node_selector = select("999999");
    let decision = cluster.schedule_pod(&pod, 0).expect("valid");
    assert_eq!(decision, Decision::Node(id));
    pod.template.node_selector = select("1");
    let decision = cluster.schedule_pod(&pod, 0).expect("valid");
    let Decision::Unschedulable(refused) = decision else {
        panic!("no node has that label");
    };
    let message = cluster.message(&refused);
    assert_eq!(
        message,
        "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nonsense_is_answered_or_refused(nodes in vec(node(), 0..4), pods in vec(pod(), 1..10)) {
        let mut cluster = Cluster::new(Options::default());
        for (index, node) in nodes.into_iter().enumerate() {
            let node = NodeSpec { name: format!("n{index}"), ..node };
            prop_assert_eq!(cluster.add_node(&node).is_err(), node.allocatable.values().any(|amount| amount.is_negative()));
        }
        for (index, mut pod) in pods.into_iter().enumerate() {
            pod.name = format!("p{index}");
            match cluster.schedule_pod(&pod, 0) {
                Ok(Decision::Node(node)) => {
                    let name = cluster.node_name(node).to_owned();
                    cluster.bind(&pod, &name).expect("a new pod");
                }
                Ok(Decision::Unschedulable(refused)) => {
                    let class = cluster.pod_class(&pod.template).expect("it was scheduled");
                    let preemption = cluster.preempt(class, &pod.key(), &refused, 0);
                    prop_assert!(!cluster.message_with_preemption(&refused, &preemption).is_empty());
                    if index % 2 == 0 {
                        cluster.bind(&pod, "n0").expect("a new pod");
                    }
                }
                Err(_) => {}
            }
        }
    }

    #[test]
    fn any_text_is_a_quantity_or_refused(text in ".{0,24}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            prop_assert_eq!(quantity.to_string().parse::<Quantity>(), Ok(quantity));
        }
    }

    #[test]
    fn numbers_with_suffixes_read_back(digits in "[+-]?[0-9]{0,25}(\\.[0-9]{0,25})?", suffix in select(vec!["", "n", "u", "m", "k", "E", "Ki", "Ei", "e3", "E-9", "e99", "e-99"])) {
        if let Ok(quantity) = format!("{digits}{suffix}").parse::<Quantity>() {
            prop_assert_eq!(quantity.to_string().parse::<Quantity>(), Ok(quantity));
            prop_assert!(quantity.milli_value() >= quantity.value() || quantity.is_negative());
        }
    }

    #[test]
    fn any_json_is_an_object_or_refused(json in "\\{\"(metadata|spec|status)\":(null|\\{\"(name|labels|containers|allocatable|taints|affinity|phase)\":(null|1|\"x\"|\\[\\]|\\{\\}|\\{\"cpu\":\"x\"\\})\\})\\}") {
        let _ = serde_json::from_str::<PodSpec>(&json);
        let _ = serde_json::from_str::<NodeSpec>(&json);
    }
}
