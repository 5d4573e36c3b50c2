//! A pool that leaves a label open: its nodes have the values that pods select.

use std::collections::BTreeSet;

use kube::ResourceExt;
use mullion_api::labels;
use serde_json::json;

use crate::{pools, whole::Whole};

const UNIT: &str = "example.com/unit";

#[tokio::test(start_paused = true)]
async fn one_pool_serves_units_that_stay_apart_and_its_nodes_stay() {
    let whole = Whole::start().await;
    let unit = json!({ "key": UNIT, "operator": "Exists" });
    let kind = json!({ "key": labels::INSTANCE_TYPE, "operator": "In", "values": ["m5.large"] });
    let requirements = json!({ "requirements": [unit, kind] });
    pools::linux(&whole, &[], &[], requirements).await;
    // A pod of a unit nearly fills a machine.
    for unit in ["a", "b"] {
        let spec = json!({
            "nodeSelector": { "team": "web", UNIT: unit },
            "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "1500m" } } }]
        });
        whole.deployment(unit, 2, spec).await;
    }
    for unit in ["a", "b"] {
        whole.until_running(unit, 2).await;
    }
    let mut units: Vec<String> = whole
        .bought()
        .iter()
        .map(|node| node.labels()[UNIT].clone())
        .collect();
    units.sort();
    assert_eq!(units, ["a", "a", "b", "b"]);
    let names = || -> BTreeSet<String> {
        let claims = whole.claims();
        claims.iter().map(|claim| claim.name_any()).collect()
    };
    let before = names();
    whole.pass(1800).await;
    assert_eq!(names(), before, "nothing drifts and nothing is bought");
}
