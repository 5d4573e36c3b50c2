//! What pods prefer decides which nodes are bought, as far as it may cost.

use mullion_engine::model::{
    Affinity, LabelSelector, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, Operator,
    PodAffinity, PodAffinityTerm, PodSpec, PreferredSchedulingTerm, StringMap, Taint, TaintEffect,
    TopologySpreadConstraint, WeightedPodAffinityTerm, WhenUnsatisfiable, label,
};
use mullion_engine::provision::{NodeTemplate, Plan, PlanRequest, PreferencePolicy};
use mullion_engine::{Cluster, Options, Outcome};
use proptest::prelude::*;

use super::{bought, kind, linux, pod, pool, pools, random_pod};

fn bought_for(pods: Vec<PodSpec>, templates: Vec<NodeTemplate>, policy: PreferencePolicy) -> Plan {
    let request = PlanRequest {
        pods,
        templates,
        by_cost: true,
        preferences: policy,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    cluster.plan(&request).expect("a valid request")
}

/// Types of the planned nodes, with their zones.
fn nodes(plan: &Plan) -> Vec<(&str, &str)> {
    assert!(plan.unplaceable.is_empty(), "{plan:?}");
    let mut all: Vec<(&str, &str)> = plan
        .nodes
        .iter()
        .map(|node| {
            let option = &node.options[0];
            (option.name.as_str(), option.offerings[0].0.as_str())
        })
        .collect();
    all.sort_unstable();
    all
}

/// A pod that prefers nodes with these labels, by weight.
fn wishing(name: &str, cpu: &str, wishes: &[(i32, &str, &str)]) -> PodSpec {
    let mut own = pod(name, &[("cpu", cpu)]);
    let term = |(weight, key, value): &(i32, &str, &str)| PreferredSchedulingTerm {
        weight: *weight,
        preference: NodeSelectorTerm {
            match_expressions: vec![NodeSelectorRequirement {
                key: (*key).to_owned(),
                operator: Operator::In,
                values: vec![(*value).to_owned()],
            }],
            ..NodeSelectorTerm::default()
        },
    };
    own.template.affinity.node_affinity = Some(NodeAffinity {
        preferred: wishes.iter().map(term).collect(),
        ..NodeAffinity::default()
    });
    own
}

fn near_or_apart(app: &str, key: &str) -> Vec<WeightedPodAffinityTerm> {
    vec![WeightedPodAffinityTerm {
        weight: 100,
        pod_affinity_term: PodAffinityTerm {
            label_selector: Some(LabelSelector {
                match_labels: StringMap::from([("app".into(), app.into())]),
                ..LabelSelector::default()
            }),
            topology_key: key.into(),
            ..PodAffinityTerm::default()
        },
    }]
}

/// A pod that prefers to be apart from others of its app, on hosts of their own.
fn apart(name: &str, cpu: &str) -> PodSpec {
    let mut own = pod(name, &[("cpu", cpu)]);
    own.template.labels.insert("app".into(), "web".into());
    own.template.affinity = Affinity {
        pod_anti_affinity: Some(PodAffinity {
            preferred: near_or_apart("web", label::HOSTNAME),
            ..PodAffinity::default()
        }),
        ..Affinity::default()
    };
    own
}

use PreferencePolicy::{Ignore, Respect, WithinPrice};

#[test]
fn labels_that_pods_prefer_are_bought_where_they_cost_little() {
    let eight = |cpu: &str| -> Vec<PodSpec> {
        let own = |index: usize| wishing(&format!("web-{index}"), cpu, &[(1, "size", "8")]);
        (0..8).map(own).collect()
    };
    // Four small machines at 33, or one large at 133.
    let plan = bought_for(eight("1"), vec![pool("p", &linux())], WithinPrice);
    assert_eq!(nodes(&plan), [("large", "b")]);
    let plan = bought_for(eight("1"), vec![pool("p", &linux())], Ignore);
    assert_eq!(plan.price_micro_usd(), 132);
    // One pod alone does not get a machine of four times the price.
    let alone = || vec![eight("1").swap_remove(0)];
    let plan = bought_for(alone(), vec![pool("p", &linux())], WithinPrice);
    assert_eq!(nodes(&plan), [("small", "b")]);
    let plan = bought_for(alone(), vec![pool("p", &linux())], Respect);
    assert_eq!(nodes(&plan), [("large", "b")]);
    let generous = NodeTemplate {
        preference_price: Some(4000),
        ..pool("p", &linux())
    };
    let plan = bought_for(alone(), vec![generous], WithinPrice);
    assert_eq!(nodes(&plan), [("large", "b")]);
}

#[test]
fn a_zone_that_pods_prefer_is_taken_unless_it_is_too_dear() {
    let in_a = || vec![wishing("web", "1", &[(1, label::ZONE, "a")])];
    // Spot is sold in zone b only.
    let plan = bought_for(in_a(), vec![pool("p", &linux())], WithinPrice);
    assert_eq!(nodes(&plan), [("small", "b")]);
    let plan = bought_for(in_a(), vec![pool("p", &linux())], Respect);
    assert_eq!(nodes(&plan), [("small", "a")]);
}

#[test]
fn the_heaviest_preference_that_can_be_met_counts() {
    let wishes = [
        (1, label::ZONE, "b"),
        (50, label::ZONE, "a"),
        (100, label::ZONE, "c"),
        (0, "size", "8"),
    ];
    let plan = bought_for(
        vec![wishing("web", "1", &wishes)],
        vec![pool("p", &linux())],
        Respect,
    );
    assert_eq!(nodes(&plan), [("small", "a")]);
}

#[test]
fn pods_that_prefer_hosts_of_their_own_get_them_where_they_cost_little() {
    let two = |cpu: &str| vec![apart("web-0", cpu), apart("web-1", cpu)];
    // Two small machines cost what a medium one does.
    let plan = bought_for(two("2"), vec![pool("p", &linux())], WithinPrice);
    assert_eq!(nodes(&plan), [("small", "b"), ("small", "b")]);
    // Five in one large machine would be cheaper by pod, but there are two.
    let types = [
        kind("small", "linux", 2, 300),
        kind("medium", "linux", 4, 570),
        kind("large", "linux", 8, 900),
    ];
    let plan = bought_for(two("1500m"), vec![pool("p", &types)], WithinPrice);
    assert_eq!(nodes(&plan), [("small", "b"), ("small", "b")]);
    let plan = bought_for(two("500m"), vec![pool("p", &linux())], WithinPrice);
    assert_eq!(nodes(&plan), [("small", "b")]);
    let plan = bought_for(two("500m"), vec![pool("p", &linux())], Respect);
    assert_eq!(nodes(&plan), [("small", "b"), ("small", "b")]);
    // One that is meant, too, joins none of them where that is kept.
    let mut three = two("500m");
    let mut other = pod("other", &[("cpu", "500m")]);
    other.template.labels.insert("app".into(), "web".into());
    three.push(other);
    for (policy, nodes) in [(Respect, 3), (Ignore, 1)] {
        let plan = bought_for(three.clone(), vec![pool("p", &linux())], policy);
        assert_eq!(plan.nodes.len(), nodes, "{plan:?}");
    }
}

#[test]
fn spreading_over_hosts_is_a_preference_like_others() {
    let two = || {
        let spread = |name: &str| {
            let mut own = apart(name, "500m");
            own.template.affinity = Affinity::default();
            own.template.topology_spread_constraints = vec![TopologySpreadConstraint {
                max_skew: 1,
                topology_key: label::HOSTNAME.into(),
                when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
                label_selector: Some(LabelSelector {
                    match_labels: own.template.labels.clone(),
                    ..LabelSelector::default()
                }),
                ..TopologySpreadConstraint::default()
            }];
            own
        };
        vec![spread("web-0"), spread("web-1")]
    };
    for (policy, nodes) in [(WithinPrice, 1), (Ignore, 1), (Respect, 2)] {
        let plan = bought_for(two(), vec![pool("p", &linux())], policy);
        assert_eq!(plan.nodes.len(), nodes, "{policy:?}");
    }
}

#[test]
fn pods_that_prefer_company_are_planned_near_it_where_that_costs_little() {
    let both = || {
        let mut db = pod("db", &[("cpu", "2")]);
        db.template.labels.insert("app".into(), "db".into());
        db.template
            .node_selector
            .insert(label::ZONE.into(), "a".into());
        let mut web = pod("web", &[("cpu", "2")]);
        web.template.affinity.pod_affinity = Some(PodAffinity {
            preferred: near_or_apart("db", label::ZONE),
            ..PodAffinity::default()
        });
        vec![db, web]
    };
    let plan = bought_for(both(), vec![pool("p", &linux())], WithinPrice);
    assert_eq!(nodes(&plan), [("small", "a"), ("small", "b")]);
    let plan = bought_for(both(), vec![pool("p", &linux())], Respect);
    assert!(nodes(&plan).iter().all(|node| node.1 == "a"), "{plan:?}");
}

#[test]
fn pools_with_a_soft_taint_are_bought_from_where_others_are_much_dearer() {
    let soft = |name: &str, price: u64| {
        let mut own = pool(name, &[kind("small", "linux", 2, price)]);
        own.taints.push(Taint {
            key: "old".into(),
            value: String::new(),
            effect: TaintEffect::PreferNoSchedule,
        });
        own
    };
    let clean = |price: u64| pool("clean", &[kind("small", "linux", 2, price)]);
    let from = |clean_price: u64, policy| {
        let pools = vec![soft("a-soft", 300), clean(clean_price)];
        let plan = bought_for(vec![pod("web", &[("cpu", "1")])], pools, policy);
        plan.nodes[0].pool.clone()
    };
    assert_eq!(from(310, WithinPrice), "clean");
    assert_eq!(from(600, WithinPrice), "a-soft");
    assert_eq!(from(600, Respect), "clean");
    assert_eq!(from(310, Ignore), "a-soft");
    // The only pool there is.
    let plan = bought_for(
        vec![pod("web", &[("cpu", "1")])],
        vec![soft("a-soft", 300)],
        Respect,
    );
    assert_eq!(plan.nodes.len(), 1, "{plan:?}");
}

/// A random pod with random preferences.
fn random_wishing(index: usize, shape: u8, wish: u8) -> PodSpec {
    let mut own = random_pod(index, shape);
    let zones = ["a", "b", "c"];
    let zone = zones[usize::from(wish / 4) % 3];
    match wish % 4 {
        0 => {
            let wishes = [(i32::from(wish % 7), label::ZONE, zone), (3, "size", "4")];
            own.template.affinity.node_affinity =
                wishing("", "1", &wishes).template.affinity.node_affinity;
        }
        1 => {
            let near = own
                .template
                .affinity
                .pod_affinity
                .get_or_insert_with(Default::default);
            near.preferred = near_or_apart(&format!("a{}", wish % 3), label::ZONE);
        }
        2 => {
            let apart = own
                .template
                .affinity
                .pod_anti_affinity
                .get_or_insert_with(Default::default);
            apart.preferred = near_or_apart(&format!("a{}", wish % 3), label::HOSTNAME);
        }
        _ => {}
    }
    own
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_with_preferences_place_as_many_pods_and_cost_little_more(
        shapes in prop::collection::vec((any::<u8>(), any::<u8>()), 1..30)
    ) {
        let pods: Vec<PodSpec> = shapes
            .iter()
            .enumerate()
            .map(|(index, (shape, wish))| random_wishing(index, *shape, *wish))
            .collect();
        let pools = pools();
        let without = bought_for(pods.clone(), pools.clone(), Ignore);
        for policy in [WithinPrice, Respect] {
            let plan = bought_for(pods.clone(), pools.clone(), policy);
            prop_assert!(plan.unplaceable.len() <= without.unplaceable.len() || policy == Respect);
            if policy == WithinPrice && plan.unplaceable.len() == without.unplaceable.len() {
                prop_assert!(plan.price_micro_usd() * 10 <= without.price_micro_usd() * 11);
            }
            // The scheduler takes every pod where it is planned.
            let mut cluster = Cluster::new(Options::default());
            for index in 0..plan.nodes.len() {
                cluster.add_node(&bought(index, &plan, &pools)).expect("a new node");
            }
            for (index, node) in plan.nodes.iter().enumerate() {
                for key in &node.pods {
                    let pod = pods.iter().find(|pod| pod.key() == *key).expect("it was asked for");
                    let class = cluster.pod_class(&pod.template).expect("valid");
                    let name = format!("bought-{index}");
                    let here = cluster.node(&name);
                    let answer = cluster.answer(class);
                    let outcome = answer.nodes.iter().find(|node| Some(node.node) == here);
                    let fits = outcome.is_some_and(|node| matches!(node.outcome, Outcome::Fits { .. }));
                    prop_assert!(fits, "{key} on {name}");
                    cluster.bind(pod, &name).expect("a new pod");
                }
            }
        }
    }
}
