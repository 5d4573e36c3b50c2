//! Choices between zones that several rules leave open.

use super::*;

/// A type of this size, with its price in each zone.
fn sold_in(name: &str, cpu: i64, prices: [(&str, u64); 3]) -> Arc<InstanceType> {
    let mut own = InstanceType::clone(&kind(name, "linux", cpu, 0));
    let offerings = prices.iter().map(|(zone, price_micro_usd)| Offering {
        zone: (*zone).to_owned(),
        capacity_type: "on-demand".to_owned(),
        price_micro_usd: *price_micro_usd,
        available: true,
        labels: StringMap::new(),
        reservation: None,
    });
    own.offerings = offerings.collect();
    Arc::new(own)
}

/// Makes a pod one that must be in a zone with pods of an app.
fn near(mut own: PodSpec, app: &str) -> PodSpec {
    let near = PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: StringMap::from([("app".to_owned(), app.to_owned())]),
            ..LabelSelector::default()
        }),
        topology_key: label::ZONE.into(),
        ..PodAffinityTerm::default()
    };
    own.template.affinity.pod_affinity = Some(PodAffinity {
        required: vec![near],
        preferred: Vec::new(),
    });
    own
}

fn of_app(mut own: PodSpec, app: &str) -> PodSpec {
    own.template.labels = StringMap::from([("app".to_owned(), app.to_owned())]);
    own
}

/// Six apps, each of two pods that must be in one zone and together are cheapest in the zone where one of them is dearest.
#[test]
fn the_zones_of_many_apps_are_chosen_one_by_one() {
    let mut pods = Vec::new();
    let mut templates = Vec::new();
    for index in 0..6 {
        let cheap = if index % 2 == 0 { "b" } else { "c" };
        let price = |zone: &'static str| (zone, if zone == cheap { 150 } else { 200 });
        let types = [
            sold_in("one", 4, [("a", 100), ("b", 110), ("c", 120)]),
            sold_in("two", 8, [price("a"), price("b"), price("c")]),
        ];
        let pool_name = format!("p{index}");
        templates.push(pool(&pool_name, &types));
        let app = format!("app-{index}");
        for number in 0..2 {
            let cpu = format!("{}m", 3000 + 100 * index);
            let own = pod(&format!("{app}-{number}"), &[("cpu", &cpu)]);
            let mut own = near(of_app(own, &app), &app);
            let selector = &mut own.template.node_selector;
            selector.insert(label::NODE_POOL.into(), pool_name.clone());
            pods.push(own);
        }
    }
    let mut cluster = Cluster::new(Options::default());
    let request = PlanRequest {
        pods,
        templates,
        by_cost: true,
        ..PlanRequest::default()
    };
    let plan = cluster.plan(&request).expect("a valid request");
    let prices = plan
        .nodes
        .iter()
        .map(|node| node.options[0].price_micro_usd);
    assert_eq!((plan.nodes.len(), prices.sum::<u64>()), (6, 900));
}

/// The pod could be near `db` in `a` and in `c`. A small type is cheapest in `a`, the large one that a second pod needs in `c`.
#[test]
fn a_node_may_be_in_all_zones_that_affinity_admits_until_another_pod_decides() {
    let mut cluster = Cluster::new(Options::default());
    for zone in ["a", "c"] {
        let mut node = NodeSpec::named(format!("n-{zone}"));
        node.allocatable = amounts(&[("cpu", "1"), ("memory", "8Gi"), ("pods", "10")]);
        node.labels.insert(label::ZONE.into(), zone.into());
        cluster.add_node(&node).expect("a new node");
        let db = of_app(pod(&format!("db-{zone}"), &[("cpu", "1")]), "db");
        cluster.bind(&db, &node.name).expect("room for it");
    }
    let types = [
        sold_in("small", 1, [("a", 10), ("b", 5), ("c", 20)]),
        sold_in("large", 2, [("a", 100), ("b", 5), ("c", 40)]),
    ];
    let front = || near(pod("front", &[("cpu", "1")]), "db");
    let alone = plan(&mut cluster, vec![front()], vec![pool("p", &types)]);
    let zones = alone.nodes[0].requirements.iter();
    let zones: Vec<&Requirement> = zones.filter(|own| own.key == label::ZONE).collect();
    assert_eq!(zones[0].values, ["a", "c"]);
    let pods = vec![front(), pod("side", &[("cpu", "900m")])];
    let both = plan(&mut cluster, pods, vec![pool("p", &types)]);
    assert_eq!(both.nodes.len(), 1);
    assert_eq!(both.nodes[0].options[0].price_micro_usd, 40);
}

/// The pool of higher weight sells in `a` alone, so machines of the other one are bought for `b` and `c`, and where two small ones are
/// cheaper than a large one they are bought by cost there, too.
#[test]
fn pods_that_are_spread_are_packed_in_zones_where_pools_of_higher_weight_sell_nothing() {
    let types = |zones: &[&str]| {
        let mut types = [
            sold_in("one", 4, [("a", 100), ("b", 100), ("c", 100)]),
            sold_in("two", 8, [("a", 300), ("b", 300), ("c", 300)]),
        ];
        for own in &mut types {
            let mut kept = InstanceType::clone(own);
            kept.offerings
                .retain(|offering| zones.contains(&offering.zone.as_str()));
            *own = Arc::new(kept);
        }
        types
    };
    let mut first = pool("first", &types(&["a"]));
    first.weight = 10;
    let pods =
        (0..6).map(|index| spread(pod(&format!("web-{index}"), &[("cpu", "3")]), label::ZONE));
    let request = PlanRequest {
        pods: pods.collect(),
        templates: vec![first, pool("second", &types(&["a", "b", "c"]))],
        by_cost: true,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    let plan = cluster.plan(&request).expect("a valid request");
    assert!(plan.unplaceable.is_empty(), "{plan:?}");
    let prices = plan
        .nodes
        .iter()
        .map(|node| node.options[0].price_micro_usd);
    assert_eq!((plan.nodes.len(), prices.sum::<u64>()), (6, 600));
    let of_first = plan.nodes.iter().filter(|node| node.pool == "first");
    assert_eq!(of_first.count(), 2);
}
