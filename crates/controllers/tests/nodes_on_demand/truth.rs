//! Nodes that are not what was computed for them: it is learnt from the first, said to pods that do not fit after all, and kept.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Node},
};
use kube::{Api, ResourceExt};
use mullion_api::ami::Os;
use mullion_cloud::{
    MemoryOverhead,
    sim::{Images, KeptMemory, NodeProfile, NodeProfiles, PullSpeed},
};
use serde_json::{Value, json};

use crate::{
    giving_back::{pool, types},
    whole::Whole,
};

/// Types of which each has twice the memory of the one before.
const TYPES: [&str; 3] = ["c5.large", "m5.large", "r5.large"];

/// Linux nodes of which hypervisor and kernel hide this part of the memory.
fn hiding(part: f64) -> NodeProfiles {
    NodeProfiles(vec![NodeProfile {
        images: Images::Of(Os::Linux),
        boot: None,
        shutdown: None,
        fast_launch: false,
        domain_join: false,
        pulls: PullSpeed::default(),
        memory: KeptMemory {
            hidden: MemoryOverhead::of_fraction(part),
            reserved_bytes: None,
        },
    }])
}

async fn deployment(whole: &Whole, name: &str, replicas: u32, memory: &str) {
    let requests = json!({ "cpu": "100m", "memory": memory });
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": requests } }]
    });
    whole.deployment(name, replicas, spec).await;
}

/// The kept memory of types, as the ConfigMap has it.
async fn kept(whole: &Whole) -> Vec<(String, Value)> {
    let maps: Api<ConfigMap> = Api::namespaced(whole.context.client.clone(), "kube-system");
    let map = maps.get_opt("mullion-discovered-capacity").await;
    let data = map.expect("an answer").and_then(|map| map.data);
    let data = data.unwrap_or_default().into_iter();
    let entry = |(key, text): (String, String)| {
        let entry: Value = serde_json::from_str(&text).expect("JSON");
        let instance_type = key.split('_').next().unwrap_or_default().to_owned();
        (instance_type, entry["capacity"]["memory"].clone())
    };
    data.map(entry).collect()
}

/// Deletes a deployment and all nodes that were bought, and waits until they are gone.
async fn clear(whole: &Whole, name: &str) {
    let deployments: Api<Deployment> = Api::namespaced(whole.context.client.clone(), "default");
    whole.delete(deployments, name).await;
    let nodes: Api<Node> = Api::all(whole.context.client.clone());
    for node in whole.bought() {
        whole.delete(nodes.clone(), &node.name_any()).await;
    }
    let gone = || (whole.bought().is_empty() && whole.claims().is_empty()).then_some(());
    whole.until("all nodes are gone", gone).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_fit_its_node_is_told_and_no_type_is_bought_twice_for_it() {
    let mut whole = Whole::start_on(hiding(0.4)).await;
    pool(&whole, &TYPES, json!({ "consolidateAfter": "Never" })).await;
    // An m5.large is counted with 6903 MiB for pods and has 4241.
    deployment(&whole, "web", 1, "5Gi").await;
    whole.until_running("web", 1).await;
    assert_eq!(types(&whole), ["m5.large", "r5.large"]);
    let pod = whole.pods("web")[0].name_any();
    let events = whole.events(&pod).await;
    let told = events
        .iter()
        .find(|(reason, _)| reason == "PlannedNodeTooSmall");
    let (_, told) = told.unwrap_or_else(|| panic!("the pod is not told: {events:?}"));
    assert!(
        told.contains("4241Mi of memory where 6903Mi was expected")
            && told.ends_with("m5.large is planned with what nodes of it have from now on"),
        "{told}"
    );
    let line = whole.line("updating discovered capacity cache");
    assert_eq!(line["memory-capacity"], "4915Mi");
    assert_eq!(line["instance-type"], "m5.large");

    // The claim says what was expected, not what came.
    let claims = whole.claims();
    let of_type = |name: &str| {
        let found = claims
            .iter()
            .find(|claim| claim.labels()["node.kubernetes.io/instance-type"] == name);
        let status = found.and_then(|claim| claim.status.clone());
        status.expect("it is launched").capacity
    };
    assert_eq!(of_type("m5.large").text("memory"), Some("7577Mi"));

    // What is known outlives the nodes and the process.
    clear(&whole, "web").await;
    let memory = |text: &str| json!(text);
    assert_eq!(
        kept(&whole).await,
        [
            ("m5.large".to_owned(), memory("4915Mi")),
            ("r5.large".to_owned(), memory("9830Mi")),
        ]
    );
    whole.restart_karpenter().await;
    deployment(&whole, "again", 1, "5Gi").await;
    whole.until_running("again", 1).await;
    assert_eq!(types(&whole), ["r5.large"]);
    let found = whole.claims();
    let status = found[0].status.clone().expect("it is launched");
    assert_eq!(status.capacity.text("memory"), Some("9830Mi"));
}

#[tokio::test(start_paused = true)]
async fn nodes_on_their_way_count_as_the_first_of_their_type_turned_out() {
    let whole = Whole::start_on(hiding(0.4)).await;
    pool(
        &whole,
        &["m5.large"],
        json!({ "consolidateAfter": "Never" }),
    )
    .await;
    // Six times two pods are planned on six nodes; each node has room for one.
    deployment(&whole, "web", 12, "3Gi").await;
    whole.until_running("web", 12).await;
    assert_eq!(whole.bought().len(), 12);
    let bought = whole.ec2.instances().len();
    // One more is the node group's.
    assert_eq!(bought, 13, "no node was bought to stay empty");
}

#[tokio::test(start_paused = true)]
async fn nodes_with_more_than_was_computed_take_more_pods_the_next_time() {
    let whole = Whole::start_on(hiding(0.0)).await;
    pool(&whole, &TYPES, json!({ "consolidateAfter": "Never" })).await;
    // A c5.large is counted with 3114 MiB and has 3422.
    deployment(&whole, "web", 1, "3100Mi").await;
    whole.until_running("web", 1).await;
    assert_eq!(types(&whole), ["c5.large"]);
    deployment(&whole, "more", 1, "3300Mi").await;
    whole.until_running("more", 1).await;
    assert_eq!(types(&whole), ["c5.large", "c5.large"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_says_whether_its_node_has_what_was_bought() {
    let whole = Whole::start_on(hiding(0.4)).await;
    pool(
        &whole,
        &["m5.large"],
        json!({ "consolidateAfter": "Never" }),
    )
    .await;
    deployment(&whole, "web", 1, "1Gi").await;
    whole.until_running("web", 1).await;
    let said = || {
        let status = whole.claims()[0].status.clone().unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        let found = conditions.find(|own| own.type_ == "ConsistentStateFound");
        found.map(|own| [own.status, own.reason, own.message])
    };
    // It is looked at when it is launched, and then every ten minutes.
    assert_eq!(said(), None);
    let found = whole.until("the claim is looked at", said).await;
    assert_eq!(
        found,
        [
            "False",
            "ConsistencyCheckFailed",
            "Consistency Check Failed"
        ]
    );
    let claim = whole.claims()[0].name_any();
    let events = whole.events(&claim).await;
    let issue = "expected 7577Mi of resource memory, but found 4915Mi (64.9% of expected)";
    let expected = ("FailedConsistencyCheck".to_owned(), issue.to_owned());
    assert!(events.contains(&expected), "{events:?}");
    assert_eq!(whole.line("failed consistency check")["issue"], issue);
    // What was learnt is expected of the next one.
    deployment(&whole, "more", 1, "4000Mi").await;
    whole.until_running("more", 1).await;
    let second = || {
        let claims = whole.claims();
        let second = claims.iter().find(|own| own.name_any() != claim);
        second?.is("ConsistentStateFound").then_some(())
    };
    whole.until("the second claim is as expected", second).await;
}
