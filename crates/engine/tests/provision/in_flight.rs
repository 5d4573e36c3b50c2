//! Nodes on their way as places for pods whose rules name labels that only kubelets set.

use super::*;

/// A node that a claim will get, with the labels that the claim has.
fn on_its_way() -> InFlightNode {
    coming("claim-1", "4")
}

fn coming(name: &str, cpu: &str) -> InFlightNode {
    let mut node = NodeSpec::named(name);
    node.allocatable = amounts(&[("cpu", cpu), ("pods", "10")]);
    InFlightNode {
        node,
        ..InFlightNode::default()
    }
}

fn planned_on_the_way(pod: PodSpec) -> Vec<(String, String)> {
    let request = PlanRequest {
        pods: vec![pod],
        in_flight: vec![on_its_way()],
        templates: vec![pool("p", &linux())],
        by_cost: true,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    let plan = cluster.plan(&request).expect("valid");
    assert!(plan.nodes.is_empty(), "{plan:?}");
    plan.existing
}

#[test]
fn pods_with_rules_about_hosts_join_a_node_on_its_way() {
    let web = || {
        let mut web = pod("web", &[("cpu", "1")]);
        web.template.labels.insert("app".into(), "web".into());
        web
    };
    let own = LabelSelector {
        match_labels: StringMap::from([("app".to_owned(), "web".to_owned())]),
        ..LabelSelector::default()
    };
    let mut together = web();
    together.template.affinity.pod_affinity = Some(PodAffinity {
        required: vec![PodAffinityTerm {
            topology_key: label::HOSTNAME.into(),
            label_selector: Some(own),
            ..PodAffinityTerm::default()
        }],
        ..PodAffinity::default()
    });
    let spread = spread(web(), label::HOSTNAME);
    for pod in [together, spread] {
        let there = ("ns/web".to_owned(), "claim-1".to_owned());
        assert_eq!(planned_on_the_way(pod), [there]);
    }
}

/// A pod that must be where pods of an app are, by a label of nodes.
fn beside(name: &str, own: &str, other: &str, key: &str, cpu: &str) -> PodSpec {
    let mut pod = pod(name, &[("cpu", cpu)]);
    pod.template.labels.insert("app".into(), own.into());
    pod.template.affinity.pod_affinity = Some(PodAffinity {
        required: vec![PodAffinityTerm {
            topology_key: key.into(),
            label_selector: Some(LabelSelector {
                match_labels: StringMap::from([("app".to_owned(), other.to_owned())]),
                ..LabelSelector::default()
            }),
            ..PodAffinityTerm::default()
        }],
        ..PodAffinity::default()
    });
    pod
}

#[test]
fn pods_that_share_a_node_start_only_where_there_is_room_for_all_of_them() {
    let together = |count: usize| {
        let pods = (0..count).map(|index| format!("together-{index}"));
        let mut pods: Vec<PodSpec> = pods
            .map(|name| beside(&name, "together", "together", label::HOSTNAME, "1500m"))
            .collect();
        // Because others must be near, they are not packed in numbers.
        pods.push(beside("near", "near", "together", label::ZONE, "100m"));
        pods
    };
    for by_cost in [false, true] {
        let plan = |count: usize| {
            let request = PlanRequest {
                pods: together(count),
                in_flight: vec![on_its_way()],
                templates: vec![pool("p", &linux())],
                by_cost,
                ..PlanRequest::default()
            };
            let mut cluster = Cluster::new(Options::default());
            cluster.plan(&request).expect("valid")
        };
        // The node on its way has room for two.
        let three = plan(3);
        assert!(three.unplaceable.is_empty(), "{three:?}");
        let mut hosts = three.nodes.iter().map(|node| node.pods.len());
        assert!(hosts.any(|pods| pods >= 3), "{three:?}");
        // No node has room for six: as in Karpenter those have a place that fit where the first one goes.
        let six = plan(6);
        assert_eq!(six.existing.len(), 2, "{six:?}");
    }
}

/// Plans for these pods with two nodes on their way, where some of the pods have a place.
fn planned_again(pods: Vec<PodSpec>, places: &[(&str, &str)], by_cost: bool) -> Plan {
    let key = |pod: &str| format!("ns/{pod}");
    let places = places.iter();
    let request = PlanRequest {
        pods,
        in_flight: vec![coming("small", "2"), coming("large", "4")],
        places: places
            .map(|(pod, node)| (key(pod), (*node).to_owned()))
            .collect(),
        templates: vec![pool("p", &linux())],
        by_cost,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    let plan = cluster.plan(&request).expect("valid");
    assert!(plan.unplaceable.is_empty(), "{plan:?}");
    plan
}

#[test]
fn pods_keep_their_places_so_that_no_node_on_its_way_stays_empty() {
    let together = (0..3).map(|index| format!("together-{index}"));
    let together =
        together.map(|name| beside(&name, "together", "together", label::HOSTNAME, "900m"));
    // Without places the scheduler would choose the large node for it, beside the pods that must share a node.
    let pods: Vec<PodSpec> = together.chain([pod("alone", &[("cpu", "1")])]).collect();
    let places = [
        ("alone", "small"),
        ("together-0", "large"),
        ("together-1", "large"),
        ("together-2", "large"),
    ];
    for by_cost in [false, true] {
        for further in ["100m", "8"] {
            let mut pods = pods.clone();
            pods.push(pod("further", &[("cpu", further)]));
            let plan = planned_again(pods, &places, by_cost);
            for (pod, node) in places {
                let kept = (format!("ns/{pod}"), node.to_owned());
                assert!(plan.existing.contains(&kept), "{pod} moved: {plan:?}");
            }
        }
    }
}

#[test]
fn pods_leave_their_places_if_less_is_bought_then_and_no_node_stays_empty() {
    let pods = vec![
        pod("big", &[("cpu", "3")]),
        pod("one", &[("cpu", "1")]),
        pod("two", &[("cpu", "1")]),
    ];
    let plan = planned_again(pods, &[("one", "large"), ("two", "large")], true);
    assert!(plan.nodes.is_empty(), "{plan:?}");
}
