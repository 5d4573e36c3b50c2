//! Pods spread over zones, where some zones have nodes and others can be bought in.

use super::*;

/// A pod of an app whose pods are spread evenly over the zones.
fn even(name: &str) -> PodSpec {
    spread(pod(name, &[("cpu", "900m")]), label::ZONE)
}

fn node(name: &str, zone: &str, cpu: &str) -> NodeSpec {
    let mut node = NodeSpec::named(name);
    node.allocatable = amounts(&[("cpu", cpu), ("memory", "8Gi"), ("pods", "10")]);
    node.labels.insert(label::HOSTNAME.into(), name.into());
    node.labels.insert(label::ZONE.into(), zone.into());
    node.labels.insert(label::OS.into(), "linux".into());
    node
}

fn plan_for(cluster: &mut Cluster, pods: Vec<PodSpec>, in_flight: Vec<NodeSpec>) -> Plan {
    let in_flight = in_flight.into_iter().map(|node| InFlightNode {
        node,
        ..InFlightNode::default()
    });
    let request = PlanRequest {
        pods,
        in_flight: in_flight.collect(),
        templates: vec![pool("p", &linux())],
        by_cost: true,
        preferences: PreferencePolicy::Respect,
        ..PlanRequest::default()
    };
    let plan = cluster.plan(&request).expect("valid");
    assert!(plan.unplaceable.is_empty(), "{plan:?}");
    plan
}

#[test]
fn a_zone_that_can_be_bought_in_counts_for_pods_that_join_nodes_on_their_way() {
    let mut cluster = Cluster::new(Options::default());
    let pods = (0..4).map(|index| even(&format!("web-{index}"))).collect();
    let plan = plan_for(&mut cluster, pods, vec![node("claim-1", "a", "8")]);
    assert_eq!(plan.existing.len(), 2, "{plan:?}");
    assert_eq!(plan.nodes.len(), 1, "{plan:?}");
    assert_eq!(plan.nodes[0].pods.len(), 2, "{plan:?}");
}

#[test]
fn a_node_that_is_there_takes_a_pod_as_soon_as_others_are_planned_in_the_zones_behind() {
    let mut cluster = Cluster::new(Options::default());
    cluster.set_node(&node("there", "b", "2")).expect("valid");
    cluster.bind(&even("first"), "there").expect("valid");
    let pods = (0..3).map(|index| even(&format!("web-{index}"))).collect();
    let plan = plan_for(&mut cluster, pods, Vec::new());
    assert_eq!(plan.existing.len(), 1, "{plan:?}");
    assert_eq!(plan.nodes.len(), 1, "{plan:?}");
}

#[test]
fn a_node_that_is_there_is_tried_again_once_others_are_planned_in_the_zones_behind() {
    let mut cluster = Cluster::new(Options::default());
    for (name, cpu) in [("there", "2"), ("full", "1")] {
        cluster.set_node(&node(name, "b", cpu)).expect("valid");
    }
    // Pods that also prefer hosts of their own are not packed but planned one by one.
    let alone = |name: &str| {
        let mut pod = even(name);
        let rules = &mut pod.template.topology_spread_constraints;
        rules.push(TopologySpreadConstraint {
            topology_key: label::HOSTNAME.into(),
            when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
            ..rules[0].clone()
        });
        pod
    };
    cluster.bind(&alone("first"), "full").expect("valid");
    let pods = (0..3).map(|index| alone(&format!("web-{index}"))).collect();
    let plan = plan_for(&mut cluster, pods, Vec::new());
    assert_eq!(plan.existing.len(), 1, "{plan:?}");
    assert_eq!(plan.nodes.len(), 2, "{plan:?}");
}

#[test]
fn zones_get_more_pods_than_they_must_if_that_uses_room_that_is_there() {
    let mut cluster = Cluster::new(Options::default());
    for (name, zone, cpu) in [
        ("full", "b", "1"),
        ("large", "a", "7800m"),
        ("small-1", "a", "1800m"),
        ("small-2", "c", "1800m"),
    ] {
        cluster.set_node(&node(name, zone, cpu)).expect("valid");
    }
    // Two a host; the zones may differ by two.
    let twos = |name: &str| {
        let mut pod = even(name);
        pod.template.containers[0].resources.requests = amounts(&[("cpu", "500m")]);
        let rules = &mut pod.template.topology_spread_constraints;
        rules[0].max_skew = 2;
        rules.push(TopologySpreadConstraint {
            topology_key: label::HOSTNAME.into(),
            ..rules[0].clone()
        });
        pod
    };
    for name in ["first", "second"] {
        cluster.bind(&twos(name), "full").expect("valid");
    }
    // These fill the large node only if all of them are there.
    let mut pods: Vec<PodSpec> = (0..6)
        .map(|index| pod(&format!("large-{index}"), &[("cpu", "1100m")]))
        .collect();
    pods.extend((0..6).map(|index| twos(&format!("web-{index}"))));
    let plan = plan_for(&mut cluster, pods, Vec::new());
    assert_eq!(plan.existing.len(), 12, "{plan:?}");
}
