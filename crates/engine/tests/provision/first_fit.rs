//! Pods one by one, as Karpenter places them: no plan places fewer of them or pays more than that.

use mullion_engine::model::{
    ContainerPort, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PreferredSchedulingTerm,
};

use super::*;

/// A type of one system with this much memory, sold on demand in each of these zones.
fn sold_in(name: &str, cpu: i64, memory: &str, zones: &[(&str, u64)]) -> Arc<InstanceType> {
    let mut own = InstanceType::clone(&kind(name, "linux", cpu, 0));
    for amounts in [&mut own.capacity, &mut own.allocatable] {
        amounts.insert("memory".into(), memory.parse().expect("a quantity"));
    }
    own.offerings = zones
        .iter()
        .map(|(zone, price_micro_usd)| Offering {
            zone: (*zone).to_owned(),
            capacity_type: "on-demand".to_owned(),
            price_micro_usd: *price_micro_usd,
            available: true,
            labels: StringMap::new(),
            reservation: None,
        })
        .collect();
    Arc::new(own)
}

/// A pod of an app that is spread over zones, one more in the fullest than in the emptiest.
fn spread_over_zones(name: &str, cpu: &str) -> PodSpec {
    spread(pod(name, &[("cpu", cpu)]), label::ZONE)
}

/// A pod that shares its node with no other one of this kind.
fn alone(name: &str, cpu: &str) -> PodSpec {
    let mut own = pod(name, &[("cpu", cpu)]);
    own.template.containers[0].ports = vec![ContainerPort {
        host_port: 80,
        ..ContainerPort::default()
    }];
    own
}

fn node_in(zone: &str, cpu: &str) -> NodeSpec {
    let mut node = NodeSpec::named("n1");
    node.allocatable = amounts(&[("cpu", cpu), ("memory", "64Gi"), ("pods", "20")]);
    node.labels.insert(label::ZONE.into(), zone.into());
    node.labels.insert(label::HOSTNAME.into(), "n1".into());
    node
}

/// The zones of all planned pods that run on new nodes, sorted.
fn zones(plan: &Plan) -> Vec<&str> {
    let mut zones = Vec::new();
    for node in &plan.nodes {
        let zone = &node.options[0].offerings[0].0;
        zones.extend(node.pods.iter().map(|_| zone.as_str()));
    }
    zones.sort_unstable();
    zones
}

#[test]
fn a_zone_where_a_node_can_be_bought_counts_for_pods_on_nodes_that_are_there() {
    for by_cost in [false, true] {
        let mut cluster = Cluster::new(Options::default());
        cluster.add_node(&node_in("a", "8")).expect("a new node");
        let request = PlanRequest {
            pods: (0..4)
                .map(|index| spread_over_zones(&format!("web-{index}"), "1"))
                .collect(),
            templates: vec![pool("p", &linux())],
            by_cost,
            ..PlanRequest::default()
        };
        let plan = cluster.plan(&request).expect("a valid request");
        let bought = zones(&plan);
        let in_a = bought.iter().filter(|zone| **zone == "a").count();
        let in_b = bought.len() - in_a;
        assert_eq!((plan.existing.len() + in_a, in_b), (2, 2), "{plan:?}");
    }
}

#[test]
fn pods_that_fit_by_themselves_keep_their_place_where_others_would_be_more() {
    let mut cluster = Cluster::new(Options::default());
    cluster.add_node(&node_in("a", "4")).expect("a new node");
    let mut pods = vec![pod("big", &[("cpu", "3")])];
    pods.extend((0..4).map(|index| pod(&format!("small-{index}"), &[("cpu", "1")])));
    let request = PlanRequest {
        pods,
        by_cost: true,
        ..PlanRequest::default()
    };
    let plan = cluster.plan(&request).expect("a valid request");
    let mut placed: Vec<&str> = plan.existing.iter().map(|(pod, _)| pod.as_str()).collect();
    placed.sort_unstable();
    assert_eq!(placed, ["ns/big", "ns/small-0"]);
}

#[test]
fn a_new_node_is_in_the_cheapest_zone_that_has_a_type_for_its_pod() {
    let types = [
        sold_in("small", 1, "4Gi", &[("b", 10)]),
        sold_in("large", 4, "16Gi", &[("b", 200), ("a", 100)]),
    ];
    let mut cluster = Cluster::new(Options::default());
    let pods = vec![spread_over_zones("web", "3")];
    let plan = plan(&mut cluster, pods, vec![pool("p", &types)]);
    assert_eq!(zones(&plan), ["a"]);
}

#[test]
fn a_claim_lists_no_type_in_a_zone_where_the_pods_may_not_run_on_it() {
    let term = |key: &str, value: &str| NodeSelectorTerm {
        match_expressions: vec![NodeSelectorRequirement {
            key: key.into(),
            operator: Operator::In,
            values: vec![value.into()],
        }],
        ..NodeSelectorTerm::default()
    };
    let mut web = pod("web", &[("cpu", "1")]);
    web.template.affinity.node_affinity = Some(NodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: vec![term(label::ZONE, "a"), term("size", "8")],
        }),
        ..NodeAffinity::default()
    });
    for by_cost in [false, true] {
        let request = PlanRequest {
            pods: vec![web.clone()],
            templates: vec![pool("p", &linux())],
            by_cost,
            ..PlanRequest::default()
        };
        let mut cluster = Cluster::new(Options::default());
        let plan = cluster.plan(&request).expect("a valid request");
        let offerings = plan.nodes[0].options.iter().flat_map(|own| &own.offerings);
        let mut zones: Vec<&str> = offerings.map(|(zone, ..)| zone.as_str()).collect();
        zones.dedup();
        assert_eq!(zones.len(), 1, "{plan:?}");
    }
}

#[test]
fn of_pools_with_one_weight_the_last_in_the_alphabet_is_tried_first() {
    let mut heavy = pool("b", &linux());
    heavy.weight = 10;
    heavy.requirements = vec![require("size", Operator::In, &["8"])];
    let templates = vec![pool("a", &linux()), heavy, pool("c", &linux())];
    let pods = vec![alone("one", "3"), alone("two", "1")];
    let of_all = plan(
        &mut Cluster::new(Options::default()),
        pods.clone(),
        templates.clone(),
    );
    let pools =
        |plan: &Plan| -> Vec<String> { plan.nodes.iter().map(|node| node.pool.clone()).collect() };
    assert_eq!(pools(&of_all), ["b", "b"]);
    let of_equals = vec![templates[0].clone(), templates[2].clone()];
    let of_equals = plan(&mut Cluster::new(Options::default()), pods, of_equals);
    assert_eq!(pools(&of_equals), ["c", "c"]);
}

#[test]
fn a_limit_on_cpu_leaves_types_open_that_have_more_memory() {
    let types = [
        sold_in("lean", 4, "8Gi", &[("a", 100)]),
        sold_in("rich", 4, "32Gi", &[("a", 120)]),
        sold_in("double", 8, "16Gi", &[("a", 200)]),
    ];
    let mut own = pool("p", &types);
    own.limits_remaining = amounts(&[("cpu", "8")]);
    // The second pod needs a node of its own, and so the first one's may no longer become the type with eight cores.
    let mut pods = vec![alone("one", "3"), alone("two", "3")];
    pods.extend((0..2).map(|index| {
        let asked = [("cpu", "500m"), ("memory", "20Gi")];
        pod(&format!("cache-{index}"), &asked)
    }));
    let plan = plan(&mut Cluster::new(Options::default()), pods, vec![own]);
    assert!(plan.unplaceable.is_empty(), "{plan:?}");
    assert_eq!(plan.nodes.len(), 2);
}

#[test]
fn a_limit_leaves_as_many_types_open_as_the_pool_demands() {
    let types = [
        sold_in("single", 4, "8Gi", &[("a", 100)]),
        sold_in("double", 8, "16Gi", &[("a", 200)]),
    ];
    let mut own = pool("p", &types);
    own.limits_remaining = amounts(&[("cpu", "8")]);
    own.requirements = vec![Requirement {
        min_values: Some(2),
        ..require(label::INSTANCE_TYPE, Operator::Exists, &[])
    }];
    let pods = vec![alone("one", "3"), alone("two", "3")];
    let plan = plan(&mut Cluster::new(Options::default()), pods, vec![own]);
    assert_eq!(plan.unplaceable.len(), 1, "{plan:?}");
    assert_eq!(plan.nodes[0].options.len(), 2, "{plan:?}");
}

#[test]
fn a_zone_that_pods_prefer_does_not_narrow_the_zones_over_which_they_are_spread() {
    let wish = PreferredSchedulingTerm {
        weight: 10,
        preference: NodeSelectorTerm {
            match_expressions: vec![NodeSelectorRequirement {
                key: label::ZONE.into(),
                operator: Operator::In,
                values: vec!["b".into()],
            }],
            ..NodeSelectorTerm::default()
        },
    };
    let pods: Vec<PodSpec> = (0..4)
        .map(|index| {
            let mut own = spread_over_zones(&format!("web-{index}"), "1");
            own.template.affinity.node_affinity = Some(NodeAffinity {
                preferred: vec![wish.clone()],
                ..NodeAffinity::default()
            });
            own
        })
        .collect();
    for by_cost in [false, true] {
        let request = PlanRequest {
            pods: pods.clone(),
            templates: vec![pool("p", &linux())],
            by_cost,
            ..PlanRequest::default()
        };
        let mut cluster = Cluster::new(Options::default());
        let plan = cluster.plan(&request).expect("a valid request");
        assert_eq!(zones(&plan), ["a", "a", "b", "b"], "{plan:?}");
    }
}

fn bought_by_cost(pods: Vec<PodSpec>, templates: Vec<NodeTemplate>) -> Plan {
    let plan = planned_by_cost(pods, templates);
    assert!(plan.unplaceable.is_empty(), "{plan:?}");
    plan
}

/// Plans by cost for these pods in a cluster without nodes.
fn planned_by_cost(pods: Vec<PodSpec>, templates: Vec<NodeTemplate>) -> Plan {
    let request = PlanRequest {
        pods,
        templates,
        by_cost: true,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    cluster.plan(&request).expect("a valid request")
}

#[test]
fn pods_beyond_a_limit_are_packed_on_what_other_pools_sell() {
    let mut heavy = pool("heavy", &[kind("own", "linux", 2, 100)]);
    heavy.weight = 10;
    heavy.limits_remaining = amounts(&[("cpu", "2")]);
    // One by one, the pods beyond the limit would go to the pool that is last in the alphabet.
    let cheap = pool("cheap", &[kind("low", "linux", 8, 200)]);
    let dear = pool("dear", &[kind("high", "linux", 8, 400)]);
    let pods = (0..3).map(|index| pod(&format!("web-{index}"), &[("cpu", "2")]));
    let plan = bought_by_cost(pods.collect(), vec![heavy, cheap, dear]);
    let mut pools: Vec<&str> = plan.nodes.iter().map(|node| node.pool.as_str()).collect();
    pools.sort_unstable();
    assert_eq!(pools, ["cheap", "heavy"]);
}

#[test]
fn a_limit_leaves_packed_nodes_the_choice_of_types_that_the_pool_demands() {
    let types = [
        sold_in("single", 4, "8Gi", &[("a", 100)]),
        sold_in("double", 8, "16Gi", &[("a", 300)]),
    ];
    let mut own = pool("p", &types);
    own.limits_remaining = amounts(&[("cpu", "16")]);
    own.requirements = vec![Requirement {
        min_values: Some(2),
        ..require(label::INSTANCE_TYPE, Operator::Exists, &[])
    }];
    let pods = (0..2).map(|index| pod(&format!("web-{index}"), &[("cpu", "3")]));
    let plan = bought_by_cost(pods.collect(), vec![own]);
    assert_eq!(plan.nodes.len(), 2, "{plan:?}");
    for node in &plan.nodes {
        let types: Vec<&str> = node.options.iter().map(|own| own.name.as_str()).collect();
        assert_eq!(types, ["single", "double"]);
    }
}

#[test]
fn of_planned_nodes_with_equally_many_pods_the_last_to_get_one_gets_the_next() {
    let pods = [
        alone("one", "3"),
        alone("two", "3"),
        pod("web-0", &[("cpu", "1")]),
        pod("web-1", &[("cpu", "1")]),
        pod("web-2", &[("cpu", "1")]),
    ];
    let plan = plan(
        &mut Cluster::new(Options::default()),
        pods.to_vec(),
        vec![pool("p", &linux())],
    );
    let placed: Vec<_> = plan.nodes.iter().map(|node| &node.pods[..]).collect();
    assert_eq!(placed[0], ["ns/one", "ns/web-0"]);
    assert_eq!(placed[1], ["ns/two", "ns/web-1", "ns/web-2"]);
}

#[test]
fn no_planned_node_shrinks_for_another_one_while_pods_could_join_it() {
    let mut own = pool("p", &linux());
    own.limits_remaining = amounts(&[("cpu", "8")]);
    // Four nodes with two cores each would have no room for the other pods.
    let mut pods: Vec<PodSpec> = (0..4)
        .map(|index| alone(&format!("agent-{index}"), "1600m"))
        .collect();
    pods.extend((0..4).map(|index| pod(&format!("web-{index}"), &[("cpu", "1500m")])));
    for by_cost in [false, true] {
        let request = PlanRequest {
            pods: pods.clone(),
            templates: vec![own.clone()],
            by_cost,
            ..PlanRequest::default()
        };
        let mut cluster = Cluster::new(Options::default());
        let plan = cluster.plan(&request).expect("a valid request");
        let without: Vec<&str> = plan.unplaceable.iter().map(|pod| &*pod.pod).collect();
        assert_eq!(without, ["ns/agent-1", "ns/agent-2", "ns/agent-3"]);
    }
}

#[test]
fn an_existing_node_keeps_its_room_for_pods_that_it_takes_once_other_zones_have_some() {
    let mut cluster = Cluster::new(Options::default());
    cluster.set_node(&node_in("c", "3")).expect("valid");
    let mut pods: Vec<PodSpec> = (0..6)
        .map(|index| spread_over_zones(&format!("web-{index}"), "1500m"))
        .collect();
    pods.extend((0..3).map(|index| pod(&format!("small-{index}"), &[("cpu", "500m")])));
    let request = PlanRequest {
        pods,
        templates: vec![pool("p", &linux())],
        by_cost: true,
        ..PlanRequest::default()
    };
    let plan = cluster.plan(&request).expect("a valid request");
    assert!(plan.unplaceable.is_empty(), "{plan:?}");
    assert_eq!(plan.existing.len(), 2, "{plan:?}");
}

#[test]
fn a_node_whose_zone_is_open_goes_where_it_is_cheapest_for_the_pods_that_join_it() {
    let types = [
        sold_in("small", 2, "8Gi", &[("a", 150), ("b", 160)]),
        sold_in("large", 8, "8Gi", &[("a", 400), ("b", 200)]),
    ];
    let mut pods = vec![pod("first", &[("cpu", "1500m"), ("memory", "4Gi")])];
    pods.extend((0..5).map(|index| {
        let own = pod(
            &format!("web-{index}"),
            &[("cpu", "250m"), ("memory", "512Mi")],
        );
        near_its_like(own, "web", label::ZONE)
    }));
    let plan = bought_by_cost(pods, vec![pool("p", &types)]);
    assert_eq!(plan.price_micro_usd(), 200, "{plan:?}");
}

#[test]
fn a_node_for_the_first_of_pods_that_cannot_be_together_has_no_room_for_all() {
    let types = [
        sold_in("small", 4, "16Gi", &[("a", 100)]),
        sold_in("large", 8, "16Gi", &[("a", 200)]),
    ];
    // Each wants a node that has one of them, and none has a second one of this port.
    let of_port = |index: u32| {
        let own = alone(&format!("web-{index}"), "2");
        near_its_like(own, "web", label::HOSTNAME)
    };
    let pods: Vec<PodSpec> = (0..3).map(of_port).collect();
    let plan = planned_by_cost(pods, vec![pool("p", &types)]);
    assert_eq!(plan.unplaceable.len(), 2, "{plan:?}");
    assert_eq!(plan.price_micro_usd(), 100, "{plan:?}");
}

#[test]
fn looking_for_room_for_all_costs_no_pod_the_place_that_it_has_one_by_one() {
    // The limit is enough for one node of each type.
    let types = [
        sold_in("small", 2, "16Gi", &[("a", 100)]),
        sold_in("large", 8, "16Gi", &[("a", 400)]),
    ];
    let mut limited = pool("p", &types);
    limited.limits_remaining = amounts(&[("cpu", "10")]);
    let some = |app: &str, count: u32, cpu: &str| -> Vec<PodSpec> {
        let own = |index: u32| pod(&format!("{app}-{index}"), &[("cpu", cpu)]);
        (0..count).map(own).collect()
    };
    let together = |app: &str, count: u32, cpu: &str| -> Vec<PodSpec> {
        let pods = some(app, count, cpu).into_iter();
        pods.map(|own| near_its_like(own, app, label::HOSTNAME))
            .collect()
    };
    // One by one the large node takes `first`, one of `web` and one of `last`, and the small one takes one of `api`. With room for
    // both of `api` on the large node, none of `web` has a place.
    let mut pods = some("first", 1, "5");
    pods.extend(together("web", 5, "2"));
    pods.extend(together("api", 2, "1500m"));
    pods.extend(some("last", 3, "900m"));
    let plan = planned_by_cost(pods, vec![limited]);
    for pod in ["first-0", "web-0", "api-0", "last-0"] {
        let key = format!("ns/{pod}");
        let is_placed = plan.nodes.iter().any(|node| node.pods.contains(&key));
        assert!(is_placed, "{pod}: {plan:?}");
    }
}

/// Makes a pod one of an app whose pods must be in one place: a value of a label of nodes.
fn near_its_like(mut own: PodSpec, app: &str, key: &str) -> PodSpec {
    own.template.labels = StringMap::from([("app".to_owned(), app.to_owned())]);
    let near = PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: own.template.labels.clone(),
            ..LabelSelector::default()
        }),
        topology_key: key.into(),
        ..PodAffinityTerm::default()
    };
    own.template.affinity.pod_affinity = Some(PodAffinity {
        required: vec![near],
        preferred: Vec::new(),
    });
    own
}

/// Zone `a` has room on its node for a fourth pod, but only once two more are in `b`, whose only new node of the pool that Karpenter
/// opens first costs twice as much as two of the other pool's.
#[test]
fn a_node_of_another_pool_of_the_same_weight_is_tried_with_the_room_that_existing_nodes_have() {
    let mut cluster = Cluster::new(Options::default());
    let skewed = |name: &str| {
        let mut pod = spread_over_zones(name, "1");
        pod.template.topology_spread_constraints[0].max_skew = 2;
        pod
    };
    let there = [("n-a", "a", 3), ("n-b", "b", 1), ("n-c", "c", 2)];
    for (name, zone, count) in there {
        // Only the node in `a` has room for one more.
        let cpu = if zone == "a" {
            "4"
        } else {
            &*count.to_string()
        };
        let mut node = node_in(zone, cpu);
        node.name = name.to_owned();
        node.labels.insert(label::HOSTNAME.into(), name.into());
        cluster.add_node(&node).expect("a new node");
        for index in 0..count {
            let own = skewed(&format!("{name}-{index}"));
            cluster.bind(&own, name).expect("room for it");
        }
    }
    let sold = |name: &str, price: u64| {
        let zones = [("a", price), ("b", price), ("c", price)];
        [sold_in(name, 2, "8Gi", &zones)]
    };
    let request = PlanRequest {
        pods: (0..3)
            .map(|index| skewed(&format!("web-{index}")))
            .collect(),
        templates: vec![
            pool("cheap", &sold("small", 100_000)),
            pool("dear", &sold("large", 400_000)),
        ],
        by_cost: true,
        ..PlanRequest::default()
    };
    let plan = cluster.plan(&request).expect("a valid request");
    let pools: Vec<&str> = plan.nodes.iter().map(|node| node.pool.as_str()).collect();
    assert_eq!((pools, plan.existing.len()), (vec!["cheap"], 1), "{plan:?}");
}
