//! Free addresses of subnets: no more nodes are planned than there are addresses for, wherever else the nodes could be.

use std::collections::BTreeSet;

use mullion_engine::provision::SubnetAddresses;

use super::*;

/// A subnet in each zone, with so many free addresses.
fn addresses(free: &[(&str, usize)]) -> SubnetAddresses {
    let subnet = |zone: &str| format!("subnet-{zone}");
    let of_zone = |(zone, _): &(&str, usize)| {
        let place = ("p".to_owned(), (*zone).to_owned());
        (place, vec![subnet(zone)])
    };
    SubnetAddresses {
        free: free
            .iter()
            .map(|(zone, free)| (subnet(zone), *free))
            .collect(),
        subnets: free.iter().map(of_zone).collect(),
        ordered: Vec::new(),
    }
}

/// A pod that needs a node of its own, in a zone if one is named.
fn alone(name: &str, zone: Option<&str>) -> PodSpec {
    let mut pod = pod(name, &[("cpu", "3")]);
    if let Some(zone) = zone {
        let selector = &mut pod.template.node_selector;
        selector.insert(label::ZONE.into(), zone.into());
    }
    pod
}

fn planned(pods: &[PodSpec], addresses: &SubnetAddresses, by_cost: bool) -> Plan {
    let [_, medium, _] = linux();
    let request = PlanRequest {
        pods: pods.to_vec(),
        templates: vec![pool("p", &[medium])],
        by_cost,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    let plan = cluster.plan_with_addresses(&request, addresses);
    assert_eq!(cluster.node_count(), 0);
    let plan = plan.expect("a valid request");
    let placed: usize = plan.nodes.iter().map(|node| node.pods.len()).sum();
    assert_eq!(placed + plan.unplaceable.len(), pods.len(), "{plan:?}");
    plan
}

/// The zones in which a planned node may be.
fn zones(plan: &Plan, pod: &str) -> BTreeSet<String> {
    let has =
        |node: &&mullion_engine::provision::PlannedNode| node.pods.iter().any(|own| own == pod);
    let node = plan.nodes.iter().find(has).expect("a node");
    let options = node.options.iter();
    let offerings = options.flat_map(|option| &option.offerings);
    offerings.map(|(zone, ..)| zone.clone()).collect()
}

fn full(plan: &Plan) -> Vec<&str> {
    plan.full.iter().map(|(_, zone)| zone.as_str()).collect()
}

#[test]
fn no_more_nodes_are_planned_than_subnets_have_addresses_for() {
    let pods: Vec<_> = (0..5)
        .map(|index| alone(&format!("web-{index}"), None))
        .collect();
    for by_cost in [false, true] {
        let all = planned(&pods, &addresses(&[("a", 2), ("b", 3)]), by_cost);
        assert_eq!((all.nodes.len(), full(&all)), (5, vec![]));
        let some = planned(&pods, &addresses(&[("a", 2), ("b", 1)]), by_cost);
        assert_eq!((some.nodes.len(), full(&some)), (3, vec!["a", "b"]));
        let reasons = some.unplaceable.iter().map(|own| &own.pools[0].reason);
        assert!(
            reasons
                .into_iter()
                .all(|own| *own == PoolReason::NoOffering)
        );
    }
}

#[test]
fn a_node_that_may_be_elsewhere_leaves_the_last_address_to_one_that_may_not() {
    let both = addresses(&[("a", 1), ("b", 1)]);
    for by_cost in [false, true] {
        for pods in [
            [alone("free", None), alone("bound", Some("a"))],
            [alone("free", None), alone("bound", Some("b"))],
            [alone("1", Some("b")), alone("2", None)],
        ] {
            let plan = planned(&pods, &both, by_cost);
            assert_eq!((plan.nodes.len(), full(&plan)), (2, vec![]), "{plan:?}");
        }
    }
}

#[test]
fn what_finds_no_address_in_one_zone_is_planned_again_for_the_others() {
    let pods = [
        alone("1", Some("a")),
        alone("2", Some("a")),
        alone("3", None),
        alone("4", None),
    ];
    let plan = planned(&pods, &addresses(&[("a", 1), ("b", 9)]), true);
    assert_eq!(full(&plan), ["a"]);
    assert_eq!(plan.nodes.len(), 3, "{plan:?}");
    assert_eq!(plan.bound_micro_usd, None);
    let lost: Vec<_> = plan
        .unplaceable
        .iter()
        .map(|own| own.pod.as_str())
        .collect();
    assert_eq!(lost, ["ns/2"]);
    assert!(zones(&plan, "ns/1").contains("a"));
}

#[test]
fn pods_that_are_spread_count_those_on_nodes_that_got_an_address() {
    let pods: Vec<_> = (0..4)
        .map(|index| spread(alone(&format!("web-{index}"), None), label::ZONE))
        .collect();
    let plan = planned(&pods, &addresses(&[("a", 1), ("b", 9)]), false);
    // One in a, and no more than one more than that in b.
    assert_eq!((plan.nodes.len(), full(&plan)), (3, vec!["a"]), "{plan:?}");
}

#[test]
fn nodes_that_are_launched_before_take_their_addresses() {
    let pods = [alone("1", None)];
    let zones = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut own = addresses(&[("a", 1), ("b", 0)]);
    assert_eq!(planned(&pods, &own, true).nodes.len(), 1);
    own.ordered = vec![("p".to_owned(), zones(&["a", "b"]))];
    let plan = planned(&pods, &own, true);
    assert_eq!((plan.nodes.len(), full(&plan)), (0, vec!["a", "b"]));
}

#[test]
fn zones_without_subnets_are_not_limited() {
    let pods = [alone("1", None), alone("2", None)];
    let mut own = addresses(&[("a", 1)]);
    let plan = planned(&pods, &own, true);
    assert_eq!((plan.nodes.len(), full(&plan)), (2, vec![]));
    // Two subnets of a zone count together.
    own.subnets.insert(
        ("p".into(), "b".into()),
        vec!["subnet-a".into(), "subnet-c".into()],
    );
    own.free.insert("subnet-c".into(), 1);
    assert_eq!(planned(&pods, &own, true).nodes.len(), 2);
    own.free.insert("subnet-c".into(), 0);
    assert_eq!(planned(&pods, &own, true).nodes.len(), 1);
}
