//! Reserved capacity: used first, never more than there is, and waited for while nodes hold more than they will use.

use mullion_engine::provision::{PlannedNode, Reservation, ReservedPolicy};

use super::*;

const ID: &str = label::RESERVATION_ID;

/// A type with so many machines of a reservation left, in zone a.
fn reserved(own: &Arc<InstanceType>, id: &str, left: u32, available: bool) -> Arc<InstanceType> {
    let mut kind = (**own).clone();
    kind.offerings.push(Offering {
        zone: "a".to_owned(),
        capacity_type: "reserved".to_owned(),
        price_micro_usd: 1,
        available,
        labels: StringMap::from([(ID.to_owned(), id.to_owned())]),
        reservation: Some(Reservation {
            id: id.to_owned(),
            left,
        }),
    });
    Arc::new(kind)
}

/// Pods of which a node of the type medium holds one.
fn pods(count: usize) -> Vec<PodSpec> {
    let pods = 0..count;
    pods.map(|index| pod(&format!("web-{index}"), &[("cpu", "3")]))
        .collect()
}

fn asked(
    templates: &[NodeTemplate],
    count: usize,
    policy: ReservedPolicy,
    by_cost: bool,
) -> (Vec<PlannedNode>, usize) {
    let request = PlanRequest {
        pods: pods(count),
        templates: templates.to_vec(),
        by_cost,
        reserved: policy,
        ..PlanRequest::default()
    };
    let plan = Cluster::new(Options::default())
        .plan(&request)
        .expect("a valid request");
    let waiting = plan.unplaceable.iter().filter(|pod| pod.waits()).count();
    assert_eq!(waiting, plan.unplaceable.len(), "{:?}", plan.unplaceable);
    (plan.nodes, waiting)
}

/// How many nodes may run in a reservation.
fn in_reservation(nodes: &[PlannedNode], id: &str) -> usize {
    let may_run = |node: &&PlannedNode| node.reservations.iter().any(|own| own == id);
    nodes.iter().filter(may_run).count()
}

fn values<'a>(node: &'a PlannedNode, key: &str) -> &'a [String] {
    let mut requirements = node.requirements.iter();
    let found = requirements.find(|own| own.key == key);
    found.map_or(&[], |own| &own.values)
}

#[test]
fn what_is_reserved_is_used_first_and_never_more_than_there_is() {
    let [small, medium, large] = linux();
    let pool = pool("p", &[small, reserved(&medium, "cr-1", 2, true), large]);
    for by_cost in [false, true] {
        let (nodes, waiting) = asked(
            std::slice::from_ref(&pool),
            5,
            ReservedPolicy::FallBack,
            by_cost,
        );
        assert_eq!(waiting, 0);
        assert_eq!(in_reservation(&nodes, "cr-1"), 2, "{by_cost}: {nodes:?}");
        let pods: usize = nodes.iter().map(|node| node.pods.len()).sum();
        assert_eq!(pods, 5);
        let mut reserved = nodes.iter().filter(|node| !node.reservations.is_empty());
        let node = reserved.next().expect("one");
        assert_eq!(values(node, label::CAPACITY_TYPE), ["reserved"]);
        assert_eq!(values(node, ID), ["cr-1"]);
        assert_eq!(values(node, label::ZONE), ["a"]);
        assert_eq!(values(node, label::INSTANCE_TYPE), ["medium"]);
        let bought = nodes.iter().find(|node| node.reservations.is_empty());
        let bought = bought.expect("one");
        assert!(values(bought, ID).is_empty());
        assert!(!values(bought, label::CAPACITY_TYPE).contains(&"reserved".to_owned()));
    }
}

#[test]
fn pods_wait_for_reserved_capacity_that_nodes_of_the_plan_hold() {
    let [_, medium, _] = linux();
    let pool = pool("p", &[reserved(&medium, "cr-1", 2, true)]);
    for by_cost in [false, true] {
        let (nodes, waiting) = asked(
            std::slice::from_ref(&pool),
            5,
            ReservedPolicy::Wait,
            by_cost,
        );
        assert_eq!((nodes.len(), waiting), (2, 3), "{by_cost}");
        assert_eq!(in_reservation(&nodes, "cr-1"), 2);
    }
}

#[test]
fn a_node_of_pods_placed_one_by_one_holds_a_machine_of_every_reservation_it_may_run_in() {
    let [_, medium, large] = linux();
    let types = [
        reserved(&medium, "cr-1", 1, true),
        reserved(&large, "cr-2", 1, true),
    ];
    let pool = NodeTemplate {
        // A pod that does not go beside another.
        daemons: vec![pod("agent", &[("cpu", "1")]).template],
        ..pool("p", &types)
    };
    let huge = |name: &str| pod(name, &[("cpu", "3"), ("memory", "7Gi")]);
    let request = |reserved| PlanRequest {
        pods: (0..3).map(|index| huge(&format!("web-{index}"))).collect(),
        templates: vec![pool.clone()],
        reserved,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    let plan = cluster.plan(&request(ReservedPolicy::Wait)).expect("valid");
    // The large machine holds two of them, so the first node gives the medium one back.
    let held: Vec<_> = plan
        .nodes
        .iter()
        .map(|node| node.reservations.to_vec())
        .collect();
    assert_eq!(held, [["cr-2"], ["cr-1"]]);
    assert!(plan.unplaceable.is_empty());
    let mut one = request(ReservedPolicy::Wait);
    one.pods.truncate(1);
    let plan = cluster.plan(&one).expect("valid");
    assert_eq!(*plan.nodes[0].reservations, ["cr-1", "cr-2"]);
}

#[test]
fn what_launches_hold_is_waited_for_and_what_is_used_up_is_not() {
    let [_, medium, _] = linux();
    for by_cost in [false, true] {
        let held = pool("p", &[reserved(&medium, "cr-1", 0, true)]);
        let (nodes, waiting) = asked(
            std::slice::from_ref(&held),
            2,
            ReservedPolicy::Wait,
            by_cost,
        );
        assert_eq!((nodes.len(), waiting), (0, 2));
        let (nodes, waiting) = asked(&[held], 2, ReservedPolicy::FallBack, by_cost);
        assert_eq!((nodes.len(), waiting), (2, 0));
        let used_up = pool("p", &[reserved(&medium, "cr-1", 0, false)]);
        let (nodes, waiting) = asked(&[used_up], 2, ReservedPolicy::Wait, by_cost);
        assert_eq!((nodes.len(), waiting), (2, 0));
        assert_eq!(in_reservation(&nodes, "cr-1"), 0);
    }
}

#[test]
fn no_pool_of_lower_weight_is_asked_while_reserved_capacity_is_held() {
    let [_, medium, _] = linux();
    let first = NodeTemplate {
        weight: 10,
        ..pool("first", &[reserved(&medium, "cr-1", 1, true)])
    };
    let second = pool("second", &[medium]);
    let (nodes, waiting) = asked(&[second, first], 2, ReservedPolicy::Wait, false);
    assert_eq!((nodes.len(), waiting), (1, 1));
    assert_eq!(nodes[0].pool, "first");
}

#[test]
fn pools_share_a_reservation() {
    let [_, medium, _] = linux();
    let with = |name: &str, left| pool(name, &[reserved(&medium, "cr-1", left, true)]);
    for by_cost in [false, true] {
        let pools = [with("a", 3), with("b", 2)];
        let (nodes, _) = asked(&pools, 4, ReservedPolicy::FallBack, by_cost);
        assert_eq!(in_reservation(&nodes, "cr-1"), 2);
        assert_eq!(nodes.len(), 4);
    }
}

#[test]
fn a_pool_of_one_reservation_buys_nothing_else() {
    let [small, medium, _] = linux();
    let pool = NodeTemplate {
        requirements: vec![require(label::CAPACITY_TYPE, Operator::In, &["reserved"])],
        ..pool("p", &[small, reserved(&medium, "cr-1", 1, true)])
    };
    let request = PlanRequest {
        pods: pods(2),
        templates: vec![pool],
        by_cost: true,
        ..PlanRequest::default()
    };
    let plan = Cluster::new(Options::default())
        .plan(&request)
        .expect("a valid request");
    assert_eq!(in_reservation(&plan.nodes, "cr-1"), 1);
    let [refused] = plan.unplaceable.as_slice() else {
        panic!("one pod has no place: {plan:?}")
    };
    assert_eq!(refused.pools[0].reason, PoolReason::NoOffering);
    assert!(!refused.waits());
}

#[test]
fn a_choice_of_types_that_a_pool_demands_counts_what_is_not_reserved() {
    let [small, medium, large] = linux();
    let choice = Requirement {
        min_values: Some(2),
        ..require(label::INSTANCE_TYPE, Operator::Exists, &[])
    };
    let pool = NodeTemplate {
        requirements: vec![choice],
        ..pool("p", &[small, reserved(&medium, "cr-1", 1, true), large])
    };
    let (nodes, _) = asked(&[pool], 1, ReservedPolicy::Wait, false);
    assert_eq!(*nodes[0].reservations, ["cr-1"]);
    assert_eq!(values(&nodes[0], label::INSTANCE_TYPE), ["medium"]);
    assert!(!nodes[0].min_values_relaxed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Reservations of two types, pods of several sizes: whatever the way, no reservation has more nodes than machines, and no pod is lost.
    #[test]
    fn no_plan_has_more_nodes_in_a_reservation_than_machines(
        sizes in proptest::collection::vec(1u32..8, 1..24),
        left in (0u32..4, 0u32..4),
        waits in any::<bool>(),
        by_cost in any::<bool>(),
    ) {
        let [small, medium, large] = linux();
        let types = [
            small,
            reserved(&medium, "cr-1", left.0, left.0 > 0),
            reserved(&large, "cr-2", left.1, left.1 > 0),
        ];
        let sized = |(index, size): (usize, &u32)| {
            pod(&format!("web-{index}"), &[("cpu", &format!("{size}"))])
        };
        let request = PlanRequest {
            pods: sizes.iter().enumerate().map(sized).collect(),
            templates: vec![pool("p", &types)],
            by_cost,
            reserved: if waits { ReservedPolicy::Wait } else { ReservedPolicy::FallBack },
            ..PlanRequest::default()
        };
        let plan = Cluster::new(Options::default()).plan(&request).expect("valid");
        for (id, left) in [("cr-1", left.0), ("cr-2", left.1)] {
            prop_assert!(in_reservation(&plan.nodes, id) <= left as usize, "{:?}", plan);
        }
        let placed: usize = plan.nodes.iter().map(|node| node.pods.len()).sum();
        prop_assert_eq!(placed + plan.unplaceable.len(), sizes.len());
        if !waits {
            prop_assert!(plan.unplaceable.is_empty());
        }
        for node in &plan.nodes {
            let mut sold = node.options.iter().flat_map(|option| &option.offerings);
            let is_reserved = !node.reservations.is_empty();
            prop_assert!(sold.all(|(_, kind, _)| (kind == "reserved") == is_reserved));
        }
    }
}
