//! Labels that an offering decides besides zone and capacity type, such as the id of its zone.

use super::*;

const ZONE_ID: &str = "topology.k8s.aws/zone-id";

/// The types of [`linux`], whose zone `a` has the id `az2` and zone `b` the id `az1`.
fn with_ids() -> [Arc<InstanceType>; 3] {
    linux().map(|mut own| {
        for sold in &mut Arc::make_mut(&mut own).offerings {
            let id = if sold.zone == "a" { "az2" } else { "az1" };
            sold.labels.insert(ZONE_ID.into(), id.into());
        }
        own
    })
}

/// The zones of each node that is planned for the pods.
fn zones(pods: &[PodSpec], pool: &NodeTemplate, by_cost: bool) -> Vec<Vec<String>> {
    let request = PlanRequest {
        pods: pods.to_vec(),
        templates: vec![pool.clone()],
        by_cost,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    let plan = cluster.plan(&request).expect("a valid request");
    let zones = plan.nodes.iter().map(|node| {
        let mut requirements = node.requirements.iter();
        let zone = requirements.find(|own| own.key == label::ZONE);
        zone.expect("it names its zones").values.clone()
    });
    zones.collect()
}

#[test]
fn pods_and_pools_choose_a_zone_by_its_id() {
    let mut web = pod("web", &[("cpu", "3")]);
    let any = pool("p", &with_ids());
    let only = NodeTemplate {
        requirements: vec![require(ZONE_ID, Operator::NotIn, &["az1"])],
        ..any.clone()
    };
    let none = NodeTemplate {
        requirements: vec![require(ZONE_ID, Operator::In, &["az3"])],
        ..any.clone()
    };
    let labelled = NodeTemplate {
        labels: StringMap::from([(ZONE_ID.into(), "az1".into())]),
        ..any.clone()
    };
    for by_cost in [false, true] {
        web.template.node_selector = StringMap::new();
        let own = std::slice::from_ref(&web);
        assert_eq!(zones(own, &only, by_cost), [["a"]]);
        assert_eq!(zones(own, &labelled, by_cost), [["b"]]);
        assert!(zones(own, &none, by_cost).is_empty());
        web.template
            .node_selector
            .insert(ZONE_ID.into(), "az2".into());
        let own = std::slice::from_ref(&web);
        assert_eq!(zones(own, &any, by_cost), [["a"]]);
        assert_eq!(zones(own, &only, by_cost), [["a"]]);
        assert!(zones(own, &labelled, by_cost).is_empty());
    }
}

#[test]
fn pods_are_spread_over_zones_by_their_ids() {
    let pods: Vec<PodSpec> = (0..4)
        .map(|index| {
            let mut own = pod(&format!("web-{index}"), &[("cpu", "1")]);
            own.template.labels.insert("app".into(), "web".into());
            own.template.topology_spread_constraints = vec![TopologySpreadConstraint {
                topology_key: ZONE_ID.into(),
                label_selector: Some(LabelSelector {
                    match_labels: StringMap::from([("app".into(), "web".into())]),
                    ..LabelSelector::default()
                }),
                max_skew: 1,
                when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
                ..TopologySpreadConstraint::default()
            }];
            own
        })
        .collect();
    let any = pool("p", &with_ids());
    for by_cost in [false, true] {
        let mut zones = zones(&pods, &any, by_cost);
        zones.sort();
        assert_eq!(zones, [["a"], ["b"]], "{by_cost}");
    }
}
