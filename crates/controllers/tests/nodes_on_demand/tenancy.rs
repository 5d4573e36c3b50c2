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

/// The tenancies of the nodes that were bought, by label and as EC2 has them.
fn tenancies(whole: &Whole) -> (Vec<String>, Vec<Tenancy>) {
    let nodes = whole.bought();
    let label = nodes
        .iter()
        .map(|node| node.labels()[labels::INSTANCE_TENANCY].clone());
    let mut label: Vec<String> = label.collect();
    label.sort();
    let providers: Vec<_> = nodes
        .iter()
        .filter_map(|node| node.spec.as_ref()?.provider_id.clone())
        .collect();
    let instances = whole.ec2.instances().into_iter();
    let own = instances.filter(|own| providers.contains(&own.provider_id));
    let mut own: Vec<Tenancy> = own.map(|own| own.tenancy).collect();
    own.sort_by_key(|own| own.as_str());
    (label, own)
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_dedicated_tenancy_buys_dedicated_instances() {
    let whole = Whole::start().await;
    pool(&whole, &["dedicated"]).await;
    pod(&whole, "web", json!({})).await;
    let expected = (vec!["dedicated".to_owned()], vec![Tenancy::Dedicated]);
    assert_eq!(tenancies(&whole), expected);
}

#[tokio::test(start_paused = true)]
async fn where_a_pool_allows_both_tenancies_only_pods_that_ask_get_dedicated_instances() {
    let whole = Whole::start().await;
    pool(&whole, &["dedicated", "default"]).await;
    pod(&whole, "web", json!({})).await;
    let asks = json!({ labels::INSTANCE_TENANCY: "dedicated" });
    pod(&whole, "own", asks).await;
    let expected = (
        vec!["dedicated".to_owned(), "default".to_owned()],
        vec![Tenancy::Dedicated, Tenancy::Default],
    );
    assert_eq!(tenancies(&whole), expected);
}

#[tokio::test(start_paused = true)]
async fn nodes_are_of_default_tenancy_where_the_pool_names_none() {
    let whole = pools::one_node().await;
    let expected = (vec!["default".to_owned()], vec![Tenancy::Default]);
    assert_eq!(tenancies(&whole), expected);
}
