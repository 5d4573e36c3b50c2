//! What a plan promises: every pod once, nothing left behind in the cluster, and nodes that hold what is planned.

mod addresses;
mod daemons;
mod first_fit;
mod in_flight;
mod open_labels;
mod preferences;
mod reservations;
mod zone_choices;
mod zone_ids;
mod zones;

use std::sync::Arc;

use mullion_engine::model::{
    Affinity, Container, LabelSelector, NodeSpec, Operator, PodAffinity, PodAffinityTerm, PodSpec,
    PodTemplate, Quantity, ResourceMap, StringMap, Taint, TaintEffect, Toleration,
    TolerationOperator, TopologySpreadConstraint, WhenUnsatisfiable, label,
};
use mullion_engine::provision::{
    InFlightNode, InstanceType, InstanceTypeOption, NodeTemplate, Offering, Plan, PlanRequest,
    PoolReason, PreferencePolicy, Requirement,
};
use mullion_engine::remedy::PodDemand;
use mullion_engine::{Cluster, Decision, ModelError, Options, Outcome, Plugin};
use proptest::prelude::*;

fn amounts(pairs: &[(&str, &str)]) -> ResourceMap {
    pairs
        .iter()
        .map(|(name, amount)| ((*name).to_owned(), amount.parse().expect("a quantity")))
        .collect()
}

fn kind(name: &str, os: &str, cpu: i64, price_micro_usd: u64) -> Arc<InstanceType> {
    let offering = |zone: &str, capacity_type: &str, price_micro_usd| Offering {
        zone: zone.to_owned(),
        capacity_type: capacity_type.to_owned(),
        price_micro_usd,
        available: true,
        labels: StringMap::new(),
        reservation: None,
    };
    let capacity = amounts(&[
        ("cpu", &cpu.to_string()),
        ("memory", &format!("{}Gi", cpu * 2)),
        ("pods", "20"),
    ]);
    Arc::new(InstanceType {
        name: name.to_owned(),
        labels: StringMap::from([
            (label::OS.into(), os.into()),
            ("size".into(), cpu.to_string()),
        ]),
        allocatable: capacity.clone(),
        capacity,
        offerings: vec![
            offering("a", "on-demand", price_micro_usd),
            offering("b", "on-demand", price_micro_usd),
            offering("b", "spot", price_micro_usd / 3),
        ],
    })
}

fn pool(name: &str, types: &[Arc<InstanceType>]) -> NodeTemplate {
    NodeTemplate {
        pool: name.to_owned(),
        instance_types: types.to_vec(),
        ..NodeTemplate::default()
    }
}

fn require(key: &str, operator: Operator, values: &[&str]) -> Requirement {
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    Requirement {
        key: key.to_owned(),
        operator,
        values,
        min_values: None,
    }
}

fn pod(name: &str, requests: &[(&str, &str)]) -> PodSpec {
    let mut container = Container::default();
    container.resources.requests = amounts(requests);
    let template = PodTemplate {
        namespace: "ns".into(),
        containers: vec![container],
        ..PodTemplate::default()
    };
    PodSpec {
        name: name.to_owned(),
        template,
        ..PodSpec::default()
    }
}

/// Spreads a pod of the app `web` evenly over places: values of a label of nodes.
fn spread(mut pod: PodSpec, key: &str) -> PodSpec {
    let labels = StringMap::from([("app".to_owned(), "web".to_owned())]);
    pod.template.labels = labels.clone();
    pod.template.topology_spread_constraints = vec![TopologySpreadConstraint {
        max_skew: 1,
        topology_key: key.into(),
        when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
        label_selector: Some(LabelSelector {
            match_labels: labels,
            ..LabelSelector::default()
        }),
        ..TopologySpreadConstraint::default()
    }];
    pod
}

fn plan(cluster: &mut Cluster, pods: Vec<PodSpec>, templates: Vec<NodeTemplate>) -> Plan {
    cluster
        .plan(&PlanRequest {
            pods,
            templates,
            ..PlanRequest::default()
        })
        .expect("a valid request")
}

fn linux() -> [Arc<InstanceType>; 3] {
    [
        kind("small", "linux", 2, 100),
        kind("medium", "linux", 4, 200),
        kind("large", "linux", 8, 400),
    ]
}

#[test]
fn options_are_sorted_by_the_cheapest_offering_that_is_left() {
    let plan = plan(
        &mut Cluster::new(Options::default()),
        vec![pod("web", &[("cpu", "3")])],
        vec![pool("p", &linux())],
    );
    let [node] = plan.nodes.as_slice() else {
        panic!("one node: {plan:?}")
    };
    let options: Vec<_> = node
        .options
        .iter()
        .map(|option| (option.name.as_str(), option.price_micro_usd))
        .collect();
    assert_eq!(options, [("medium", 66), ("large", 133)]);
    let cheapest = &node.options[0].offerings;
    assert_eq!(cheapest[0], ("b".to_owned(), "spot".to_owned(), 66));
    assert_eq!(cheapest.len(), 3);
}

/// What the node lists that is bought by cost for a pod with three cores.
fn listed_for_three_cores(pool: NodeTemplate) -> Vec<InstanceTypeOption> {
    let request = PlanRequest {
        pods: vec![pod("web", &[("cpu", "3")])],
        templates: vec![pool],
        by_cost: true,
        ..PlanRequest::default()
    };
    let plan = Cluster::new(Options::default())
        .plan(&request)
        .expect("a valid request");
    assert_eq!(plan.nodes.len(), 1, "{plan:?}");
    plan.nodes[0].options.to_vec()
}

#[test]
fn a_node_that_is_bought_by_cost_lists_nothing_that_costs_much_more() {
    let types: Vec<_> = (0..40)
        .map(|index| kind(&format!("t{index:02}"), "linux", 4, 300 + 3 * index))
        .collect();
    let lists = |capacity: &str, min_values: Option<u32>| {
        let mut own = pool("p", &types);
        own.requirements = vec![
            require(label::CAPACITY_TYPE, Operator::In, &[capacity]),
            Requirement {
                min_values,
                ..require(label::INSTANCE_TYPE, Operator::Exists, &[])
            },
        ];
        listed_for_three_cores(own)
    };
    // A quarter more than 300, and half more than 100.
    let on_demand = lists("on-demand", None);
    assert_eq!(on_demand.len(), 26);
    assert_eq!(on_demand.last().map(|own| own.price_micro_usd), Some(375));
    assert_eq!(lists("spot", None).len(), 40);
    // The pool's demand for a choice of types counts for more than the price.
    assert_eq!(lists("on-demand", Some(30)).len(), 30);
}

#[test]
fn spot_types_are_listed_at_any_price_until_there_are_fifteen() {
    let types: Vec<_> = (0..20)
        .map(|index| kind(&format!("t{index:02}"), "linux", 4, 300 + 300 * index))
        .collect();
    let mut own = pool("p", &types);
    own.requirements = vec![require(label::CAPACITY_TYPE, Operator::In, &["spot"])];
    assert_eq!(listed_for_three_cores(own).len(), 15);
}

#[test]
fn pods_learn_what_the_next_pool_and_their_dearest_demand_cost() {
    let mut cluster = Cluster::new(Options::default());
    let web = |index: usize| {
        let own = pod(&format!("web-{index}"), &[("cpu", "1")]);
        spread(own, label::HOSTNAME)
    };
    let mut spot = pool("spot", &linux());
    spot.requirements = vec![require(label::CAPACITY_TYPE, Operator::In, &["spot"])];
    let mut firm = pool("firm", &linux());
    firm.requirements = vec![require(label::CAPACITY_TYPE, Operator::In, &["on-demand"])];
    let mut request = PlanRequest {
        pods: (0..4).map(web).collect(),
        templates: vec![spot, firm],
        by_cost: true,
        ..PlanRequest::default()
    };
    let prices = cluster.prices(&request).expect("a valid request");
    let prices = prices.expect("nodes are bought");
    // Four small machines at 33; without the spread two of them hold two pods each.
    assert_eq!(
        (prices.price, &prices.pools[..]),
        (132, &["spot".to_owned()][..])
    );
    assert_eq!(prices.next, Some((vec!["firm".to_owned()], 400)));
    let spread = PodDemand::Spread(label::HOSTNAME.to_owned());
    assert_eq!(prices.dearest, Some((spread, 66)));
    assert_eq!(prices.saving_percent(), Some(50));
    // Where nothing is bought there is nothing to say.
    request.templates.clear();
    assert_eq!(cluster.prices(&request).expect("a valid request"), None);
}

#[test]
fn requirements_of_the_pool_and_of_the_pods_narrow_what_is_left() {
    let mut template = pool("p", &linux());
    template
        .requirements
        .push(require(label::CAPACITY_TYPE, Operator::In, &["on-demand"]));
    template
        .requirements
        .push(require("size", Operator::Gt, &["2"]));
    let mut web = pod("web", &[("cpu", "1")]);
    web.template
        .node_selector
        .insert(label::ZONE.into(), "b".into());
    let plan = plan(
        &mut Cluster::new(Options::default()),
        vec![web],
        vec![template],
    );
    let values = |key: &str| {
        let found = plan.nodes[0]
            .requirements
            .iter()
            .find(|requirement| requirement.key == key);
        found
            .map(|requirement| requirement.values.clone())
            .unwrap_or_default()
    };
    assert_eq!(values(label::INSTANCE_TYPE), ["medium", "large"]);
    assert_eq!(values(label::CAPACITY_TYPE), ["on-demand"]);
    assert_eq!(values(label::ZONE), ["b"]);
    assert_eq!(values("size"), ["4", "8"]);
    assert_eq!(values(label::NODE_POOL), ["p"]);
}

#[test]
fn min_values_refuse_a_plan_that_would_leave_too_few() {
    let mut template = pool("p", &linux());
    let few = Requirement {
        min_values: Some(3),
        ..require(label::INSTANCE_TYPE, Operator::Exists, &[])
    };
    template.requirements.push(few);
    let pods = vec![pod("small", &[("cpu", "1")]), pod("big", &[("cpu", "3")])];
    let plan = plan(&mut Cluster::new(Options::default()), pods, vec![template]);
    assert_eq!(plan.nodes[0].pods, ["ns/small"]);
    let reason = &plan.unplaceable[0].pools[0].reason;
    let expected = PoolReason::MinValues {
        key: label::INSTANCE_TYPE.into(),
        wanted: 3,
        found: 2,
    };
    assert_eq!(reason, &expected);
}

#[test]
fn pods_join_a_node_on_its_way_instead_of_buying_another() {
    let mut on_its_way = InFlightNode {
        node: NodeSpec::named("claim-1"),
        ..InFlightNode::default()
    };
    on_its_way.node.allocatable = amounts(&[("cpu", "4"), ("memory", "8Gi"), ("pods", "10")]);
    let agent = pod("agent-claim-1", &[("cpu", "1")]);
    on_its_way.pods = vec![agent, pod("earlier", &[("cpu", "1")])];
    let request = PlanRequest {
        pods: vec![pod("one", &[("cpu", "1")]), pod("two", &[("cpu", "1500m")])],
        in_flight: vec![on_its_way],
        templates: vec![pool("p", &linux())],
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    let plan = cluster.plan(&request).expect("valid");
    assert_eq!(plan.existing, [("ns/two".to_owned(), "claim-1".to_owned())]);
    assert_eq!(plan.nodes[0].pods, ["ns/one"]);
    assert_eq!(cluster.node_count(), 0);
}

#[test]
fn a_node_that_is_there_but_not_ready_counts_as_it_will_be_and_only_for_the_plan() {
    let mut cluster = Cluster::new(Options::default());
    let mut node = NodeSpec::named("n1");
    node.allocatable = amounts(&[("cpu", "4"), ("pods", "10")]);
    node.taints.push(Taint {
        key: "starting".into(),
        value: String::new(),
        effect: TaintEffect::NoSchedule,
    });
    cluster.add_node(&node).expect("a new node");
    let win = || {
        pod(
            "win",
            &[("cpu", "1"), ("vpc.amazonaws.com/PrivateIPv4Address", "1")],
        )
    };
    let mut ready = node.clone();
    ready.taints.clear();
    ready.allocatable.insert(
        "vpc.amazonaws.com/PrivateIPv4Address".into(),
        Quantity::from_units(9),
    );
    let in_flight = vec![InFlightNode {
        node: ready,
        ..InFlightNode::default()
    }];
    let plan = cluster
        .plan(&PlanRequest {
            pods: vec![win()],
            in_flight,
            ..PlanRequest::default()
        })
        .expect("valid");
    assert_eq!(plan.existing, [("ns/win".to_owned(), "n1".to_owned())]);
    let after = cluster.schedule_pod(&win(), 0).expect("valid");
    assert!(
        matches!(after, Decision::Unschedulable(_)),
        "the plan left no trace"
    );
}

#[test]
fn the_last_gpu_of_a_node_is_not_spent_on_pods_without_one_however_little_else_the_node_has() {
    let mut cluster = Cluster::new(Options::default());
    let mut node = NodeSpec::named("n1");
    node.allocatable = amounts(&[
        ("cpu", "2"),
        ("memory", "2Mi"),
        ("pods", "10"),
        ("example.com/gpu", "1"),
    ]);
    cluster.add_node(&node).expect("a new node");
    let mut dear = kind("dear", "linux", 2, 1_000_000);
    let own = Arc::make_mut(&mut dear);
    own.allocatable.extend(amounts(&[("example.com/gpu", "1")]));
    own.capacity.clone_from(&own.allocatable);
    let mut types = linux().to_vec();
    types.push(dear);
    // They come before the pod with the GPU: they ask for more memory.
    let plain = (0..300).map(|index| {
        let name = format!("plain-{index}");
        pod(&name, &[("cpu", "1"), ("memory", "1Mi")])
    });
    let trained = pod("trained", &[("cpu", "1"), ("example.com/gpu", "1")]);
    let plan = cluster
        .plan(&PlanRequest {
            pods: plain.chain([trained]).collect(),
            templates: vec![pool("p", &types)],
            by_cost: true,
            ..PlanRequest::default()
        })
        .expect("valid");
    let there: Vec<_> = plan.existing.iter().map(|(pod, _)| pod.as_str()).collect();
    assert!(there.contains(&"ns/trained"), "{there:?}");
    assert_eq!(plan.unplaceable, []);
}

#[test]
fn a_limit_on_nodes_counts_machines() {
    let mut template = pool("p", &linux());
    template.limits_remaining = amounts(&[("nodes", "1")]);
    let pods = vec![pod("one", &[("cpu", "7")]), pod("two", &[("cpu", "7")])];
    let plan = plan(&mut Cluster::new(Options::default()), pods, vec![template]);
    assert_eq!(plan.nodes.len(), 1);
    let expected = PoolReason::LimitReached {
        resource: "nodes".into(),
        remaining: Quantity::from_units(0),
        others: Vec::new(),
    };
    assert_eq!(plan.unplaceable[0].pools[0].reason, expected);
}

#[test]
fn planned_nodes_shrink_when_the_limit_would_stop_the_next_one() {
    let mut template = pool("p", &linux());
    template.limits_remaining = amounts(&[("cpu", "8")]);
    let mut pods = vec![pod("one", &[("cpu", "1")]), pod("two", &[("cpu", "1")])];
    for pod in &mut pods {
        let apart = PodAffinityTerm {
            label_selector: Some(LabelSelector::default()),
            topology_key: label::HOSTNAME.into(),
            ..PodAffinityTerm::default()
        };
        let apart = PodAffinity {
            required: vec![apart],
            preferred: Vec::new(),
        };
        pod.template.affinity = Affinity {
            pod_anti_affinity: Some(apart),
            ..Affinity::default()
        };
    }
    let plan = plan(&mut Cluster::new(Options::default()), pods, vec![template]);
    assert_eq!(plan.unplaceable, []);
    assert_eq!(plan.nodes.len(), 2);
    assert_eq!(
        plan.nodes[0].options.len(),
        1,
        "the first node gave up the larger types"
    );
}

#[test]
fn impossible_input_is_reported_and_changes_nothing() {
    let mut cluster = Cluster::new(Options::default());
    let plan = plan(
        &mut cluster,
        vec![pod("bad", &[("cpu", "-1")]), pod("good", &[])],
        vec![pool("p", &linux())],
    );
    assert!(matches!(
        plan.unplaceable[0].invalid,
        Some(ModelError::NegativeQuantity { .. })
    ));
    assert_eq!(plan.nodes[0].pods, ["ns/good"]);
    let mut template = pool("p", &linux());
    template.daemons = vec![pod("agent", &[("cpu", "-1")]).template];
    let request = PlanRequest {
        templates: vec![template],
        ..PlanRequest::default()
    };
    assert!(matches!(
        cluster.plan(&request),
        Err(ModelError::NegativeQuantity { .. })
    ));
    assert_eq!(cluster.node_count(), 0);
}

fn random_pod(index: usize, shape: u8) -> PodSpec {
    let cpu = format!("{}m", 200 * (1 + u32::from(shape % 5)));
    let mut pod = pod(&format!("p{index}"), &[("cpu", &cpu)]);
    let app = format!("a{}", shape % 2);
    pod.template.labels.insert("app".into(), app.clone());
    let selector = LabelSelector {
        match_labels: StringMap::from([("app".into(), app)]),
        ..LabelSelector::default()
    };
    match shape % 6 {
        0 => {
            let apart = PodAffinityTerm {
                label_selector: Some(selector),
                topology_key: label::HOSTNAME.into(),
                ..PodAffinityTerm::default()
            };
            let apart = PodAffinity {
                required: vec![apart],
                preferred: Vec::new(),
            };
            pod.template.affinity = Affinity {
                pod_anti_affinity: Some(apart),
                ..Affinity::default()
            };
        }
        1 => drop(
            pod.template
                .node_selector
                .insert(label::ZONE.into(), "b".into()),
        ),
        2 => {
            pod.template.os = Some("windows".into());
            let tolerated = Toleration {
                key: "os".into(),
                value: "windows".into(),
                ..Toleration::default()
            };
            pod.template.tolerations.push(tolerated);
        }
        3 => drop(
            pod.template
                .node_selector
                .insert(label::CAPACITY_TYPE.into(), "spot".into()),
        ),
        _ => {}
    }
    pod
}

/// The pods of a DaemonSet that runs on nodes with any taints.
fn agent(cpu: &str) -> PodTemplate {
    let mut agent = pod("agent", &[("cpu", cpu)]).template;
    agent.tolerations.push(Toleration {
        operator: TolerationOperator::Exists,
        ..Toleration::default()
    });
    agent
}

fn pools() -> Vec<NodeTemplate> {
    let mut windows = pool(
        "windows",
        &[
            kind("w-small", "windows", 2, 300),
            kind("w-large", "windows", 8, 900),
        ],
    );
    windows.taints.push(Taint {
        key: "os".into(),
        value: "windows".into(),
        effect: TaintEffect::NoSchedule,
    });
    windows.daemons = vec![agent("100m")];
    let mut linux = pool("linux", &linux());
    linux.limits_remaining = amounts(&[("cpu", "30")]);
    vec![windows, linux]
}

/// The node a plan buys if the cheapest offering can be had.
fn bought(index: usize, plan: &Plan, pools: &[NodeTemplate]) -> NodeSpec {
    let planned = &plan.nodes[index];
    let pool = pools
        .iter()
        .find(|pool| pool.pool == planned.pool)
        .expect("a known pool");
    let option = &planned.options[0];
    let kind = pool
        .instance_types
        .iter()
        .find(|kind| kind.name == option.name)
        .expect("a known type");
    let mut node = NodeSpec::named(format!("bought-{index}"));
    node.labels = kind.labels.clone();
    node.labels
        .insert(label::HOSTNAME.into(), node.name.clone());
    node.labels
        .insert(label::ZONE.into(), option.offerings[0].0.clone());
    node.labels
        .insert(label::CAPACITY_TYPE.into(), option.offerings[0].1.clone());
    node.taints = pool.taints.clone();
    node.allocatable = kind.allocatable.clone();
    for (name, amount) in &planned.daemons {
        let left = node.allocatable.entry(name.clone()).or_default();
        *left = left.saturating_sub(*amount);
    }
    node
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_pod_is_planned_once_and_its_node_takes_it(shapes in prop::collection::vec(any::<u8>(), 1..40)) {
        let pods: Vec<_> = shapes.iter().enumerate().map(|(index, shape)| random_pod(index, *shape)).collect();
        let pools = pools();
        let mut cluster = Cluster::new(Options::default());
        let plan = plan(&mut cluster, pods.clone(), pools.clone());
        let planned = plan.nodes.iter().flat_map(|node| node.pods.clone());
        let mut keys: Vec<_> = planned.chain(plan.unplaceable.iter().map(|pod| pod.pod.clone())).collect();
        keys.sort();
        let mut expected: Vec<_> = pods.iter().map(PodSpec::key).collect();
        expected.sort();
        prop_assert_eq!(keys, expected);

        for index in 0..plan.nodes.len() {
            cluster.add_node(&bought(index, &plan, &pools)).expect("a new node");
        }
        for (index, node) in plan.nodes.iter().enumerate() {
            for key in &node.pods {
                let pod = pods.iter().find(|pod| pod.key() == *key).expect("a planned pod was asked for");
                let class = cluster.pod_class(&pod.template).expect("valid");
                let name = format!("bought-{index}");
                let here = cluster.node(&name);
                let answer = cluster.answer(class);
                let outcome = answer.nodes.iter().find(|node| Some(node.node) == here).map(|node| &node.outcome);
                prop_assert!(matches!(outcome, Some(Outcome::Fits { .. })), "{key} on {name}: {outcome:?}");
                cluster.bind(pod, &name).expect("a new pod");
            }
        }
        for refusal in plan.unplaceable.iter().flat_map(|pod| pod.pools.iter()) {
            let stopped = matches!(
                refusal.reason,
                PoolReason::LimitReached { .. }
                    | PoolReason::Incompatible { plugin: Plugin::OperatingSystem | Plugin::TaintToleration | Plugin::NodeAffinity, .. }
            );
            prop_assert!(stopped, "{refusal:?}");
        }
    }
}
