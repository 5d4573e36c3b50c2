//! What EC2 refuses: how long nobody asks for it, who buys something else meanwhile, and who tries it again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt};
use mullion_cloud::catalogue;
use serde_json::{Value, json};

use crate::{
    pools::{self, Pool},
    whole::Whole,
};

const REFUSED: &str = "removing offering from offerings";

async fn gpu_pods(whole: &Whole, count: u32) {
    let gpus = json!({ "nvidia.com/gpu": "8" });
    let spec = json!({
        "nodeSelector": { "team": "gpu" },
        "containers": [{ "name": "train", "image": "train", "resources": { "requests": gpus, "limits": gpus } }]
    });
    whole.deployment("train", count, spec).await;
}

async fn web(whole: &Whole, count: u32) {
    let requests = json!({ "cpu": "1500m" });
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": requests } }]
    });
    whole.deployment("web", count, spec).await;
}

/// When which zone's offering of a type was refused, and for how long it rests, from the log.
fn refusals(whole: &Whole, instance_type: &str) -> BTreeMap<String, Vec<(Timestamp, String)>> {
    let mut refusals: BTreeMap<String, Vec<(Timestamp, String)>> = BTreeMap::new();
    for line in whole.log.since(0).0 {
        let told: Value = serde_json::from_str(&line.text).expect("every line is JSON");
        if told["message"] == REFUSED && told["instance-type"] == instance_type {
            let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
            let zone = refusals.entry(text("zone")).or_default();
            zone.push((line.at, text("ttl")));
        }
    }
    refusals
}

#[tokio::test(start_paused = true)]
async fn of_many_nodes_that_nobody_sells_one_is_asked_for_at_a_time_and_other_pools_buy_on() {
    let whole = Whole::start().await;
    pools::linux(&whole, &["m5.large"], &["on-demand"], json!({})).await;
    let gpu = Pool {
        name: "gpu",
        team: "gpu",
        types: &["p4d.24xlarge"],
        capacity: &["on-demand"],
    };
    gpu.create(&whole, json!({}), json!({})).await;
    let pattern: mullion_cloud::sim::CapacityPattern = "p4d.24xlarge".parse().expect("a pattern");
    whole.ec2.exhaust(pattern.clone());
    gpu_pods(&whole, 150).await;
    web(&whole, 3).await;
    whole.until_running("web", 3).await;
    assert_eq!(
        refusals(&whole, "p4d.24xlarge").len(),
        3,
        "it was asked for in each zone"
    );
    // Everybody knows at once: nothing more is ordered until the offerings may be tried again.
    let claims = whole.claims().len();
    assert_eq!(claims, 3, "those of the other pool");
    whole.pass(600).await;
    for (zone, told) in refusals(&whole, "p4d.24xlarge") {
        let rests: Vec<&str> = told.iter().map(|(_, rest)| rest.as_str()).collect();
        assert_eq!(rests, ["3m0s", "6m0s", "12m0s"], "{zone}");
        for pair in told.windows(2) {
            let gap = pair[1].0.duration_since(pair[0].0);
            assert!(gap.as_secs() >= 180, "{zone}: {gap:?}");
        }
    }
    // Once EC2 has some, one is tried and the others follow.
    let deployments: Api<Deployment> = Api::namespaced(whole.context.client.clone(), "default");
    let few = json!({ "spec": { "replicas": 5 } });
    whole.patch(deployments, "train", few).await;
    whole.ec2.replenish(&pattern);
    whole.until_running("train", 5).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_bought_from_a_pool_of_lower_weight_at_once() {
    let whole = Whole::start().await;
    let first = json!({ "weight": 10 });
    pools::linux_with(&whole, &["m5.large"], &["on-demand"], json!({}), first).await;
    let spare = Pool {
        name: "spare",
        team: "web",
        types: &["m6i.large"],
        capacity: &["on-demand"],
    };
    spare.create(&whole, json!({}), json!({})).await;
    whole.ec2.exhaust("m5.large".parse().expect("a pattern"));
    web(&whole, 1).await;
    let launched = |whole: &Whole| {
        let claims = whole.claims();
        let claim = claims.iter().find(|claim| claim.is("Launched"))?;
        claim
            .label("node.kubernetes.io/instance-type")
            .map(str::to_owned)
    };
    let bought = whole
        .until("something is bought", || launched(&whole))
        .await;
    assert_eq!(bought, "m6i.large");
    let refused = refusals(&whole, "m5.large");
    let first = refused.values().flatten().map(|(at, _)| *at).min();
    let waited = whole
        .context
        .clock
        .now()
        .duration_since(first.expect("it was asked for"));
    assert!(
        waited.as_secs() < 30,
        "not after the refusal is forgotten: {waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_saving_that_was_refused_is_none_for_a_while() {
    let whole = Whole::start().await;
    let disruption = json!({ "disruption": { "consolidateAfter": "30s" } });
    let types = ["m5.2xlarge", "m5.large"];
    pools::linux_with(&whole, &types, &["on-demand"], json!({}), disruption).await;
    web(&whole, 4).await;
    whole.until_running("web", 4).await;
    assert_eq!(whole.bought().len(), 1);
    whole.ec2.exhaust("m5.large".parse().expect("a pattern"));
    let deployments: Api<Deployment> = Api::namespaced(whole.context.client.clone(), "default");
    whole
        .patch(deployments, "web", json!({ "spec": { "replicas": 1 } }))
        .await;
    let old = whole.bought()[0].name_any();
    whole.pass(1800).await;
    let story = whole.story();
    let tried = story.iter().filter(|line| *line == "disrupting node(s)");
    assert_eq!(tried.count(), 1, "{story:#?}");
    assert_eq!(whole.bought()[0].name_any(), old);
    // When there is some again the node is replaced.
    whole.ec2.replenish(&"m5.large".parse().expect("a pattern"));
    whole
        .until("the small node alone is left", || {
            let bought = whole.bought();
            let kind = &bought.first()?.labels()["node.kubernetes.io/instance-type"];
            (bought.len() == 1 && kind == "m5.large").then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_zone_whose_subnet_is_full_is_left_alone_for_three_minutes() {
    let whole = Whole::start_in_subnets(28).await;
    // Each launch lists a few types of about one price, so that one list after the other would be refused.
    let types: Vec<&str> = catalogue::all().iter().map(|own| &*own.name).collect();
    pools::linux(&whole, &types, &["on-demand"], json!({})).await;
    let spec = json!({
        "nodeSelector": { "team": "web", "topology.kubernetes.io/zone": "us-west-2a" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "1500m" } } }],
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "web" } }
        }]
    });
    // Each pod has a node of its own, and each node takes one of eleven addresses.
    whole.deployment("web", 14, spec).await;
    let orders = || {
        let lines = whole.log.since(0).0;
        let is_order = |text: &str| text.contains("\"message\":\"created nodeclaim\"");
        lines.iter().filter(|line| is_order(&line.text)).count()
    };
    let first = "InsufficientFreeAddressesInSubnet";
    whole
        .until("a launch finds no address", || {
            let lines = whole.log.since(0).0;
            lines
                .iter()
                .any(|line| line.text.contains(first))
                .then_some(())
        })
        .await;
    // Launches that are under way end in the same way.
    whole.pass(20).await;
    let before = orders();
    whole.pass(140).await;
    assert_eq!(orders(), before);
    whole.pass(60).await;
    assert!(orders() > before, "tried again after three minutes");
}
