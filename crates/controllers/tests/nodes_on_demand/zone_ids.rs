//! Pods and pools that name a zone by its id, which is the same zone in every account.

use kube::ResourceExt;
use mullion_api::labels;
use serde_json::json;

use crate::{pools, whole::Whole};

#[tokio::test(start_paused = true)]
async fn pods_get_nodes_in_the_zone_whose_id_they_and_their_pool_ask_for() {
    let whole = Whole::start().await;
    let zone_ids =
        json!({ "key": labels::ZONE_ID, "operator": "In", "values": ["usw2-az2", "usw2-az3"] });
    let kind = json!({ "key": labels::INSTANCE_TYPE, "operator": "In", "values": ["m5.large"] });
    let requirements = json!({ "requirements": [zone_ids, kind] });
    pools::linux(&whole, &[], &[], requirements).await;
    for (app, zone_id) in [("two", "usw2-az2"), ("three", "usw2-az3")] {
        let spec = json!({
            "nodeSelector": { "team": "web", labels::ZONE_ID: zone_id },
            "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "500m" } } }]
        });
        whole.deployment(app, 1, spec).await;
        whole.until_running(app, 1).await;
    }
    let place = |own: &dyn Fn(&str) -> String| (own(labels::ZONE), own(labels::ZONE_ID));
    let nodes = whole.bought();
    let mut places: Vec<_> = nodes
        .iter()
        .map(|node| place(&|key| node.labels()[key].clone()))
        .collect();
    let claims = whole.claims();
    let mut ordered: Vec<_> = claims
        .iter()
        .map(|claim| place(&|key| claim.labels()[key].clone()))
        .collect();
    places.sort();
    ordered.sort();
    let expected = [("us-west-2b", "usw2-az2"), ("us-west-2c", "usw2-az3")];
    let expected = expected.map(|(zone, id)| (zone.to_owned(), id.to_owned()));
    assert_eq!(places, expected);
    assert_eq!(ordered, expected);
}
