//! Dedicated tenancy: which nodes have hardware of the account's own, and who decides that.

use kube::ResourceExt;
use mullion_api::labels;
use mullion_cloud::Tenancy;
use serde_json::{Value, json};

use crate::{pools, whole::Whole};

/// A pool of `m5.large` on demand that allows these tenancies.
async fn pool(whole: &Whole, tenancies: &[&str]) {
    let requirements = json!([
        { "key": labels::INSTANCE_TYPE, "operator": "In", "values": ["m5.large"] },
        { "key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"] },
        { "key": labels::INSTANCE_TENANCY, "operator": "In", "values": tenancies },
    ]);
    let more = json!({ "requirements": requirements });
    pools::linux(whole, &[], &[], more).await;
}

/// A pod for a node of the pool's own.
async fn pod(whole: &Whole, name: &str, selector: Value) {
    let mut all = json!({ "team": "web" });
    for (key, value) in selector.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    let spec = json!({
        "nodeSelector": all,
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "1200m" } } }]
    });
    whole.deployment(name, 1, spec).await;
    whole.until_running(name, 1).await;
}

/// The tenancies of the nodes that were bought: the label of each beside what EC2 has.
fn tenancies(whole: &Whole) -> Vec<(String, Tenancy)> {
    let instances = whole.ec2.instances();
    let nodes = whole.bought();
    let both = nodes.iter().map(|node| {
        let id = node
            .spec
            .as_ref()
            .and_then(|spec| spec.provider_id.as_ref());
        let mut instances = instances.iter();
        let instance = instances.find(|own| Some(&own.provider_id) == id);
        let label = node.labels()[labels::INSTANCE_TENANCY].clone();
        (label, instance.expect("its instance").tenancy)
    });
    let mut both: Vec<_> = both.collect();
    both.sort_by(|a, b| a.0.cmp(&b.0));
    both
}

fn dedicated() -> (String, Tenancy) {
    ("dedicated".to_owned(), Tenancy::Dedicated)
}

fn default() -> (String, Tenancy) {
    ("default".to_owned(), Tenancy::Default)
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_dedicated_tenancy_buys_dedicated_instances() {
    let whole = Whole::start().await;
    pool(&whole, &["dedicated"]).await;
    pod(&whole, "web", json!({})).await;
    assert_eq!(tenancies(&whole), [dedicated()]);
}

#[tokio::test(start_paused = true)]
async fn where_a_pool_allows_both_tenancies_only_pods_that_ask_get_dedicated_instances() {
    let whole = Whole::start().await;
    pool(&whole, &["dedicated", "default"]).await;
    pod(&whole, "web", json!({})).await;
    let asks = json!({ labels::INSTANCE_TENANCY: "dedicated" });
    pod(&whole, "own", asks).await;
    assert_eq!(tenancies(&whole), [dedicated(), default()]);
}

#[tokio::test(start_paused = true)]
async fn nodes_are_of_default_tenancy_where_the_pool_names_none() {
    let whole = pools::one_node().await;
    assert_eq!(tenancies(&whole), [default()]);
}
