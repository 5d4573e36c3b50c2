//! Placement groups: which nodes are in one, in which partition, and what happens when a group has no place left.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use mullion_api::{account::PlacementGroup, labels};
use serde_json::{Value, json};

use crate::{
    pools::{self, change_class},
    whole::Whole,
};

const GROUP: &str = "near";

fn group(whole: &Whole, strategy: &str, partition_count: u32) {
    let group = PlacementGroup {
        strategy: strategy.to_owned(),
        partition_count,
    };
    whole
        .ec2
        .group(&BTreeMap::from([(GROUP.to_owned(), group)]));
}

/// A pool of `m5.large` whose class selects the group, once the class is ready.
async fn pool(whole: &Whole, more: Value) {
    pools::linux(whole, &["m5.large"], &["on-demand"], more).await;
    change_class(
        whole,
        json!({ "placementGroupSelector": { "name": GROUP } }),
    )
    .await;
    whole.pass(5).await;
}

/// Pods each of which has a node of its own.
async fn pods(whole: &Whole, count: u32, more: Value) {
    let mut spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "1200m" } } }]
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    whole.deployment("web", count, spec).await;
    whole.until_running("web", count as usize).await;
}

/// The values of a label, one of each node that was bought.
fn values(whole: &Whole, key: &str) -> Vec<String> {
    let nodes = whole.bought();
    let values = nodes.iter().map(|node| node.labels()[key].clone());
    let mut values: Vec<String> = values.collect();
    values.sort();
    values
}

#[tokio::test(start_paused = true)]
async fn pods_are_spread_over_the_partitions_of_a_group() {
    let whole = Whole::start().await;
    group(&whole, "partition", 3);
    pool(&whole, json!({})).await;
    let spread = json!([{
        "maxSkew": 1, "topologyKey": labels::PLACEMENT_GROUP_PARTITION, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } }
    }]);
    pods(&whole, 3, json!({ "topologySpreadConstraints": spread })).await;
    assert_eq!(
        values(&whole, labels::PLACEMENT_GROUP_PARTITION),
        ["1", "2", "3"]
    );
    let ids: BTreeSet<_> = values(&whole, labels::PLACEMENT_GROUP_ID)
        .into_iter()
        .collect();
    assert_eq!(ids.len(), 1);
    let claims = whole.claims();
    for claim in claims.iter() {
        let own = claim.labels();
        assert!(
            own.contains_key(labels::PLACEMENT_GROUP_PARTITION),
            "{own:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn ec2_chooses_the_partition_where_nobody_asks_for_one() {
    let whole = Whole::start().await;
    group(&whole, "partition", 2);
    let zone = json!({ "key": labels::ZONE, "operator": "In", "values": ["us-west-2a"] });
    let kind = json!({ "key": labels::INSTANCE_TYPE, "operator": "In", "values": ["m5.large"] });
    pool(&whole, json!({ "requirements": [zone, kind] })).await;
    pods(&whole, 2, json!({})).await;
    assert_eq!(
        values(&whole, labels::PLACEMENT_GROUP_PARTITION),
        ["1", "2"]
    );
    let mut claims = whole.claims().into_iter();
    let named = |key: &str| key == labels::PLACEMENT_GROUP_PARTITION;
    let asks = claims.any(|claim| claim.spec.requirements.iter().any(|own| named(&own.key)));
    assert!(!asks, "no claim asks for a partition");
}

#[tokio::test(start_paused = true)]
async fn a_spread_group_has_seven_nodes_in_a_zone() {
    let whole = Whole::start().await;
    group(&whole, "spread", 0);
    pool(&whole, json!({})).await;
    pods(&whole, 9, json!({})).await;
    let mut zones: BTreeMap<String, usize> = BTreeMap::new();
    for zone in values(&whole, labels::ZONE) {
        *zones.entry(zone).or_default() += 1;
    }
    assert!(zones.values().all(|count| *count <= 7), "{zones:?}");
    assert_eq!(zones.values().sum::<usize>(), 9);
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_cluster_group_are_in_one_zone_and_go_when_their_class_leaves_the_group() {
    let whole = Whole::start().await;
    group(&whole, "cluster", 0);
    pool(&whole, json!({})).await;
    pods(&whole, 2, json!({})).await;
    let zones: BTreeSet<_> = values(&whole, labels::ZONE).into_iter().collect();
    assert_eq!(zones.len(), 1);
    change_class(&whole, json!({ "placementGroupSelector": null })).await;
    whole
        .until("a node has drifted", || {
            let claims = whole.claims();
            let reason = claims
                .iter()
                .find_map(|claim| Some(claim.condition("Drifted")?.reason.clone()));
            (reason? == "PlacementGroupDrift").then_some(())
        })
        .await;
}
