//! Labels that a pool leaves open, and labels by the names that they had before Kubernetes 1.17.

use super::*;

const TEAM: &str = "example.com/team";

fn of_team(name: &str, team: &str) -> PodSpec {
    let mut pod = pod(name, &[("cpu", "1")]);
    pod.template.node_selector.insert(TEAM.into(), team.into());
    pod
}

fn open(operator: Operator, values: &[&str]) -> NodeTemplate {
    NodeTemplate {
        requirements: vec![require(TEAM, operator, values)],
        ..pool("p", &linux())
    }
}

fn planned(pods: Vec<PodSpec>, template: NodeTemplate, by_cost: bool) -> Plan {
    let request = PlanRequest {
        pods,
        templates: vec![template],
        by_cost,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    cluster.plan(&request).expect("valid")
}

/// The values that the nodes' claims require of the label, with the node's pods.
fn teams(plan: &Plan) -> Vec<(Vec<String>, Vec<String>)> {
    let team = |node: &mullion_engine::provision::PlannedNode| {
        let own = node.requirements.iter().find(|own| own.key == TEAM);
        let own = own.expect("a requirement on the team");
        let values = match own.operator {
            Operator::In => own.values.clone(),
            _ => Vec::new(),
        };
        (values, node.pods.clone())
    };
    let mut teams: Vec<_> = plan.nodes.iter().map(team).collect();
    teams.sort();
    teams
}

fn owned(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

#[test]
fn a_node_has_the_value_that_its_pods_ask_for() {
    for by_cost in [false, true] {
        let pods = vec![
            of_team("a-1", "a"),
            of_team("a-2", "a"),
            of_team("b-1", "b"),
        ];
        let plan = planned(pods, open(Operator::Exists, &[]), by_cost);
        let expected = [
            (owned(&["a"]), owned(&["ns/a-1", "ns/a-2"])),
            (owned(&["b"]), owned(&["ns/b-1"])),
        ];
        assert_eq!(teams(&plan), expected);
        assert!(plan.unplaceable.is_empty());
    }
}

#[test]
fn a_node_has_a_value_that_nobody_asks_for_if_the_pool_demands_the_label() {
    for by_cost in [false, true] {
        let alone = || vec![pod("any", &[("cpu", "1")])];
        let teams_of = |template| teams(&planned(alone(), template, by_cost));
        let any = || owned(&["ns/any"]);
        assert_eq!(
            teams_of(open(Operator::Exists, &[])),
            [(owned(&["0"]), any())]
        );
        assert_eq!(
            teams_of(open(Operator::Gt, &["5"])),
            [(owned(&["6"]), any())]
        );
        // A label that may be absent is left out.
        assert_eq!(
            teams_of(open(Operator::NotIn, &["a"])),
            [(owned(&[]), any())]
        );
        // Of several values that the pool names the node has one.
        assert_eq!(
            teams_of(open(Operator::In, &["x", "y"])),
            [(owned(&["x"]), any())]
        );
    }
}

#[test]
fn of_two_open_labels_pods_get_the_combinations_that_they_ask_for() {
    const STAGE: &str = "example.com/stage";
    let mut template = open(Operator::Exists, &[]);
    template
        .requirements
        .push(require(STAGE, Operator::Exists, &[]));
    // More values than there are choices, if each went with each.
    let pods: Vec<PodSpec> = (10..40)
        .map(|index| {
            let mut pod = of_team(&format!("web-{index}"), &format!("t{index}"));
            let selector = &mut pod.template.node_selector;
            selector.insert(STAGE.into(), format!("s{index}"));
            pod
        })
        .collect();
    for by_cost in [false, true] {
        let plan = planned(pods.clone(), template.clone(), by_cost);
        assert!(plan.unplaceable.is_empty(), "{:?}", plan.unplaceable);
        for node in &plan.nodes {
            let value = |key: &str| {
                let mut requirements = node.requirements.iter();
                let own = requirements.find(|own| own.key == key);
                own.expect("it is decided").values.clone()
            };
            let [pod] = &node.pods[..] else {
                panic!("one pod: {node:?}")
            };
            let index = pod.trim_start_matches("ns/web-");
            assert_eq!(value(TEAM), [format!("t{index}")]);
            assert_eq!(value(STAGE), [format!("s{index}")]);
        }
    }
}

#[test]
fn a_value_that_the_pool_excludes_is_refused() {
    for by_cost in [false, true] {
        let pods = vec![of_team("a", "a"), of_team("b", "b")];
        let plan = planned(pods, open(Operator::NotIn, &["b"]), by_cost);
        assert_eq!(teams(&plan), [(owned(&["a"]), owned(&["ns/a"]))]);
        assert_eq!(plan.unplaceable[0].pod, "ns/b");
    }
}

/// A pod that accepts each of these values of each label.
fn accepting(name: &str, labels: &[(&str, Vec<String>)]) -> PodSpec {
    use mullion_engine::model::{
        NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    };
    let demand = |(key, values): &(&str, Vec<String>)| NodeSelectorRequirement {
        key: (*key).into(),
        operator: Operator::In,
        values: values.clone(),
    };
    let term = NodeSelectorTerm {
        match_expressions: labels.iter().map(demand).collect(),
        ..NodeSelectorTerm::default()
    };
    let mut pod = pod(name, &[("cpu", "1")]);
    pod.template.affinity.node_affinity = Some(NodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: vec![term],
        }),
        ..NodeAffinity::default()
    });
    pod
}

fn numbered(prefix: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|index| format!("{prefix}{index}")).collect()
}

#[test]
fn pods_of_one_template_have_a_place_however_many_values_they_accept() {
    // Each wants a team of its own.
    let apart = PodAffinityTerm {
        topology_key: TEAM.into(),
        label_selector: Some(LabelSelector {
            match_labels: [("app".to_owned(), "web".to_owned())].into(),
            ..LabelSelector::default()
        }),
        ..PodAffinityTerm::default()
    };
    let pods: Vec<PodSpec> = (100..250)
        .map(|index| {
            let teams = numbered("t", 100..300);
            let mut pod = accepting(&format!("web-{index}"), &[(TEAM, teams)]);
            pod.template.labels.insert("app".into(), "web".into());
            pod.template.affinity.pod_anti_affinity = Some(PodAffinity {
                required: vec![apart.clone()],
                ..PodAffinity::default()
            });
            pod
        })
        .collect();
    for by_cost in [false, true] {
        let plan = planned(pods.clone(), open(Operator::Exists, &[]), by_cost);
        assert_eq!(plan.unplaceable, []);
        let teams: std::collections::BTreeSet<_> =
            teams(&plan).into_iter().map(|(team, _)| team).collect();
        assert_eq!(teams.len(), 150);
    }
}

#[test]
fn a_pool_is_not_missed_because_its_values_come_late_in_the_alphabet() {
    let (early, late) = (numbered("a", 100..300), numbered("z", 100..110));
    let of_pool = |name: &str, values: &[String]| NodeTemplate {
        requirements: vec![require(
            TEAM,
            Operator::In,
            &values.iter().map(String::as_str).collect::<Vec<_>>(),
        )],
        ..pool(name, &linux())
    };
    let preferred = NodeTemplate {
        weight: 10,
        ..of_pool("preferred", &late)
    };
    let pod = accepting("one", &[(TEAM, [early.clone(), late].concat())]);
    for by_cost in [false, true] {
        let request = PlanRequest {
            pods: vec![pod.clone()],
            templates: vec![of_pool("other", &early), preferred.clone()],
            by_cost,
            ..PlanRequest::default()
        };
        let plan = Cluster::new(Options::default()).plan(&request);
        assert_eq!(plan.expect("valid").nodes[0].pool, "preferred");
    }
}

#[test]
fn a_pod_without_a_place_is_told_if_it_accepts_more_labels_than_are_tried() {
    const STAGE: &str = "example.com/stage";
    let mut template = open(Operator::Exists, &[]);
    template
        .requirements
        .push(require(STAGE, Operator::Exists, &[]));
    let labels = [(TEAM, numbered("t", 0..40)), (STAGE, numbered("s", 0..40))];
    let one = accepting("one", &labels);
    // No zone has this name.
    let mut nowhere = accepting("nowhere", &labels);
    let selector = &mut nowhere.template.node_selector;
    selector.insert(label::ZONE.into(), "x".into());
    let mut giant = accepting("giant", &labels);
    giant.template.containers = self::pod("giant", &[("cpu", "1000")]).template.containers;
    for by_cost in [false, true] {
        let pods = vec![one.clone(), nowhere.clone(), giant.clone()];
        let plan = planned(pods, template.clone(), by_cost);
        assert_eq!(plan.nodes.len(), 1, "{plan:?}");
        let why = |name: &str| {
            let mut refused = plan.unplaceable.iter();
            let own = refused.find(|own| own.pod == name);
            own.expect("it has no place").pools[0].reason.clone()
        };
        let more = PoolReason::MoreCombinations { tried: 1024 };
        assert_eq!(why("ns/nowhere"), more);
        let text = Cluster::new(Options::default()).pool_reason_text(&more);
        assert_eq!(
            text,
            "no node with one of the first 1024 combinations of labels that the pod accepts has a place for it, and no more are tried"
        );
        // What has nothing to do with labels is told as ever.
        assert!(matches!(why("ns/giant"), PoolReason::TooLarge { .. }));
    }
}

#[test]
fn values_that_pods_prefer_or_require_by_affinity_are_asked_for_too() {
    let pod = accepting("one", &[(TEAM, owned(&["a", "b"]))]);
    for by_cost in [false, true] {
        let plan = planned(vec![pod.clone()], open(Operator::Exists, &[]), by_cost);
        assert_eq!(teams(&plan), [(owned(&["a"]), owned(&["ns/one"]))]);
    }
}

#[test]
fn former_names_of_labels_are_there_on_nodes_to_be_bought_and_on_nodes_on_their_way() {
    let former = |name: &str| {
        let mut pod = pod(name, &[("cpu", "1")]);
        let selector = &mut pod.template.node_selector;
        selector.insert("beta.kubernetes.io/os".into(), "linux".into());
        selector.insert(label::BETA_ZONE.into(), "b".into());
        pod
    };
    for by_cost in [false, true] {
        let plan = planned(vec![former("one")], pool("p", &linux()), by_cost);
        let offerings = &plan.nodes[0].options[0].offerings;
        assert!(offerings.iter().all(|(zone, ..)| zone == "b"));
        let mut node = NodeSpec::named("claim-1");
        node.allocatable = amounts(&[("cpu", "4"), ("pods", "10")]);
        node.labels.insert(label::OS.into(), "linux".into());
        node.labels.insert(label::ZONE.into(), "b".into());
        let request = PlanRequest {
            pods: vec![former("one")],
            in_flight: vec![InFlightNode {
                node,
                pods: Vec::new(),
            }],
            templates: vec![pool("p", &linux())],
            by_cost,
            ..PlanRequest::default()
        };
        let mut cluster = Cluster::new(Options::default());
        let plan = cluster.plan(&request).expect("valid");
        let place = ("ns/one".to_owned(), "claim-1".to_owned());
        assert_eq!(plan.existing, [place]);
    }
}

#[test]
fn every_pod_has_a_place_however_many_values_of_an_open_label_pods_ask_for() {
    let names: Vec<String> = (100..300).map(|index| format!("t{index}")).collect();
    let values: Vec<&str> = names.iter().map(String::as_str).collect();
    let pods: Vec<PodSpec> = values
        .iter()
        .flat_map(|team| {
            [
                of_team(&format!("{team}-1"), team),
                of_team(&format!("{team}-2"), team),
            ]
        })
        .collect();
    for template in [open(Operator::Exists, &[]), open(Operator::In, &values)] {
        for by_cost in [false, true] {
            let mut pods = pods.clone();
            // A pod that finds no place takes no other's turn.
            let mut giant = pod("giant", &[("cpu", "1000")]);
            let selector = &mut giant.template.node_selector;
            selector.insert(TEAM.into(), names[0].clone());
            pods.push(giant);
            let plan = planned(pods, template.clone(), by_cost);
            let refused: Vec<&str> = plan.unplaceable.iter().map(|own| &*own.pod).collect();
            assert_eq!(refused, ["ns/giant"]);
            let own = |team: &String| {
                let pods = [format!("ns/{team}-1"), format!("ns/{team}-2")];
                (vec![team.clone()], pods.to_vec())
            };
            assert_eq!(teams(&plan), names.iter().map(own).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_limit_counts_the_nodes_of_all_values_together() {
    let pods: Vec<PodSpec> = (100..300)
        .map(|index| of_team(&format!("web-{index}"), &format!("t{index}")))
        .collect();
    let mut template = open(Operator::Exists, &[]);
    template.limits_remaining = amounts(&[("nodes", "150")]);
    for by_cost in [false, true] {
        let plan = planned(pods.clone(), template.clone(), by_cost);
        assert_eq!((plan.nodes.len(), plan.unplaceable.len()), (150, 50));
    }
}

#[test]
fn pods_of_many_values_are_spread_over_zones_together() {
    use mullion_engine::model::{LabelSelector, TopologySpreadConstraint, WhenUnsatisfiable};
    let pods: Vec<PodSpec> = (100..250)
        .map(|index| {
            let mut pod = of_team(&format!("web-{index}"), &format!("t{index}"));
            pod.template.labels.insert("app".into(), "web".into());
            pod.template.topology_spread_constraints = vec![TopologySpreadConstraint {
                max_skew: 1,
                topology_key: label::ZONE.into(),
                when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
                label_selector: Some(LabelSelector {
                    match_labels: [("app".to_owned(), "web".to_owned())].into(),
                    ..LabelSelector::default()
                }),
                ..TopologySpreadConstraint::default()
            }];
            pod
        })
        .collect();
    for by_cost in [false, true] {
        let plan = planned(pods.clone(), open(Operator::Exists, &[]), by_cost);
        assert!(plan.unplaceable.is_empty(), "{:?}", plan.unplaceable);
        let mut by_zone = std::collections::BTreeMap::<String, usize>::new();
        for node in &plan.nodes {
            let own = node.requirements.iter().find(|own| own.key == label::ZONE);
            let [zone] = &own.expect("a zone").values[..] else {
                panic!("one zone: {node:?}")
            };
            *by_zone.entry(zone.clone()).or_default() += node.pods.len();
        }
        let least = by_zone.values().min().expect("zones");
        let most = by_zone.values().max().expect("zones");
        assert!(most - least <= 1, "{by_zone:?}");
    }
}
