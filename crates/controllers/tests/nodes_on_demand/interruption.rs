//! Nodes whose instance the cloud takes back, stops or finds broken.

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{Api, ResourceExt};
use mullion_api::labels;
use mullion_cloud::{CapacityType, InstanceId, StatusCheck, instance_id};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{pools, whole::Whole};

/// A cluster with two pods on one spot node.
async fn on_spot() -> (Whole, Node, InstanceId) {
    let whole = Whole::start().await;
    pools::linux(&whole, &["m5.large", "m5a.large"], &["spot"], json!({})).await;
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "500m" } } }]
    });
    whole.deployment("web", 2, spec).await;
    whole.until_running("web", 2).await;
    let node = whole.bought()[0].clone();
    let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
    let id = id.as_deref().and_then(instance_id).expect("an instance");
    (whole, (*node).clone(), id)
}

/// Waits until the pods run on another node than this, and this one is gone.
async fn replaced(whole: &Whole, old: &Node) {
    let name = old.name_any();
    whole
        .until("the node is replaced", || {
            let nodes = whole.bought();
            let others = nodes.iter().filter(|node| node.name_any() != name);
            (others.count() == 1 && nodes.len() == 1).then_some(())
        })
        .await;
    whole.until_running("web", 2).await;
}

/// Where a message stands in the story.
fn place(whole: &Whole, message: &str) -> usize {
    let story = whole.story();
    let found = story.iter().rposition(|own| own == message);
    found.unwrap_or_else(|| panic!("nobody said {message:?}: {story:#?}"))
}

async fn said(whole: &Whole, object: &str, reason: &str) -> Option<String> {
    let events = whole.events(object).await;
    let mut found = events.into_iter().filter(|event| event.0 == reason);
    found.next().map(|event| event.1)
}

/// Lets no pod be evicted.
async fn keep_pods(whole: &Whole) {
    whole
        .create(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
            "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": "web" } } }
        }))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_spot_node_is_replaced_before_it_is_taken_back() {
    let (whole, old, id) = on_spot().await;
    let claim = whole.claims()[0].name_any();
    let began = Instant::now();
    whole.ec2.interrupt(&id);
    replaced(&whole, &old).await;
    assert!(began.elapsed() < mullion_cloud::sim::NOTICE);
    let line = whole.line("initiating delete from interruption message");
    assert_eq!(line["controller"], "interruption");
    assert_eq!(line["queue"], "windows-karpenter-demo");
    assert_eq!(line["messageKind"], "spot_interrupted");
    assert_eq!(line["action"], "CordonAndDrain");
    assert_eq!(line["NodeClaim"]["name"], claim.as_str());
    assert_eq!(line["Node"]["name"], old.name_any().as_str());
    let created = place(&whole, "created nodeclaim");
    assert!(place(&whole, "initiating delete from interruption message") < created);
    assert!(
        created < place(&whole, "deleted node"),
        "{:#?}",
        whole.story()
    );
    let warned = "Spot interruption warning was triggered";
    for object in [&claim, &old.name_any()] {
        let told = said(&whole, object, "SpotInterrupted").await;
        assert_eq!(told.as_deref(), Some(warned), "{object}");
    }
    let ends = "Interruption triggered termination for the Node";
    let told = said(&whole, &old.name_any(), "TerminatingOnInterruption").await;
    assert_eq!(told.as_deref(), Some(ends));
    let told = said(&whole, &claim, "TerminatingOnInterruption").await;
    assert_eq!(told, Some(format!("{ends}Claim")));
    // What was taken back is not bought again for a while.
    let line = whole.line("removing offering from offerings");
    assert_eq!(line["reason"], "spot_interrupted");
    let place = |node: &Node| {
        let label = |key: &str| node.labels()[key].clone();
        [
            label("node.kubernetes.io/instance-type"),
            label("topology.kubernetes.io/zone"),
        ]
    };
    assert_ne!(place(&whole.bought()[0]), place(&old));
}

#[tokio::test(start_paused = true)]
async fn pods_that_may_not_leave_have_a_place_when_their_node_is_taken_back() {
    let (whole, old, id) = on_spot().await;
    keep_pods(&whole).await;
    whole.pass(10).await;
    whole.ec2.interrupt(&id);
    let began = Instant::now();
    whole
        .until("another node is ready", || {
            let nodes = whole.bought();
            let ready = nodes.iter().filter(|node| crate::whole::is_ready(node));
            (ready.count() == 2).then_some(())
        })
        .await;
    assert!(began.elapsed() < mullion_cloud::sim::NOTICE);
    let is_first = |own: &Node| own.name_any() == old.name_any();
    assert!(
        whole.bought().iter().any(|node| is_first(node)),
        "its pods hold it"
    );
    replaced(&whole, &old).await;
}

#[tokio::test(start_paused = true)]
async fn a_rebalance_recommendation_is_only_told() {
    let (whole, old, id) = on_spot().await;
    let claim = whole.claims()[0].name_any();
    whole.ec2.recommend_rebalance(&id);
    whole.pass(600).await;
    assert_eq!(whole.bought()[0].name_any(), old.name_any());
    for object in [&claim, &old.name_any()] {
        let told = said(&whole, object, "SpotRebalanceRecommendation").await;
        assert_eq!(
            told.as_deref(),
            Some("Spot rebalance recommendation was triggered")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_stops_or_is_to_be_maintained_is_replaced() {
    let (whole, old, id) = on_spot().await;
    whole.ec2.stop(&id);
    replaced(&whole, &old).await;
    let told = said(&whole, &old.name_any(), "InstanceStopping").await;
    assert_eq!(told.as_deref(), Some("Instance is stopping"));

    let old = whole.bought()[0].clone();
    let id = old
        .spec
        .as_ref()
        .and_then(|spec| spec.provider_id.as_deref());
    let id = id.and_then(instance_id).expect("an instance");
    whole.ec2.schedule_maintenance(&id);
    replaced(&whole, &old).await;
    let told = said(&whole, &old.name_any(), "InstanceUnhealthy").await;
    let unhealthy = "An unhealthy warning was triggered for the instance";
    assert_eq!(told.as_deref(), Some(unhealthy));
    // Stopped and interrupted instances are terminated as all others.
    let alive = whole.ec2.instances();
    let spot = alive
        .iter()
        .filter(|own| own.capacity_type == CapacityType::Spot);
    let states: Vec<_> = spot.map(|own| own.state.as_str()).collect();
    assert_eq!(
        states.iter().filter(|state| **state == "running").count(),
        1,
        "{states:?}"
    );
    assert_eq!(states.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_fails_its_checks_is_ended_whatever_protects_its_pods() {
    let (whole, old, id) = on_spot().await;
    keep_pods(&whole).await;
    let claim = whole.claims()[0].name_any();
    whole.ec2.impair(&id, StatusCheck::Instance);
    whole.pass(100).await;
    let claims = whole.claims();
    assert!(
        claims[0].metadata.deletion_timestamp.is_none(),
        "it may recover"
    );
    replaced(&whole, &old).await;
    let line = whole.line("detected unhealthy instance owned by cluster");
    assert_eq!(line["controller"], "interruption.instancestatus");
    assert_eq!(line["category"], "InstanceStatus");
    assert_eq!(line["instanceID"], &*id.0);
    let line = whole.line("initiating delete from interruption message");
    assert_eq!(line["action"], "ForcefulTermination");
    let told = said(&whole, &claim, "InstanceUnhealthy").await;
    assert!(told.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_spot_offering_that_was_taken_back_within_minutes_counts_for_more_for_a_while() {
    let whole = Whole::start().await;
    pools::linux(&whole, &["m5.large"], &["spot"], json!({})).await;
    let zone_of = async |name: &str| {
        let spec = json!({
            "nodeSelector": { "team": "web" },
            "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "1500m" } } }]
        });
        whole.deployment(name, 1, spec).await;
        whole.until_running(name, 1).await;
        let pod = whole.pods(name)[0].clone();
        let on = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let nodes = whole.bought();
        let node = nodes.iter().find(|node| Some(node.name_any()) == on);
        let node = node.expect("its node was bought").clone();
        let zone = node.labels()["topology.kubernetes.io/zone"].clone();
        (node, zone)
    };
    let (node, first) = zone_of("a").await;
    let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
    let id = id.as_deref().and_then(instance_id).expect("an instance");
    whole.ec2.interrupt(&id);
    whole
        .until("the node is replaced", || {
            let nodes = whole.bought();
            (nodes.len() == 1 && nodes[0].name_any() != node.name_any()).then_some(())
        })
        .await;
    // EC2 would sell it again, at the price that the other zones have.
    whole.pass(1200).await;
    let (_, second) = zone_of("b").await;
    assert_ne!(second, first);
    whole.pass(3600).await;
    let (_, third) = zone_of("c").await;
    assert_eq!(third, first, "what happened an hour ago is over");
}

/// The spot offerings whose risk is kept in the cluster, as type and zone.
async fn kept_risks(whole: &Whole) -> Vec<String> {
    let maps: Api<ConfigMap> = Api::namespaced(whole.context.client.clone(), "kube-system");
    let map = maps.get_opt("mullion-discovered-capacity").await;
    let data = map.expect("an answer").and_then(|map| map.data);
    let text = data.and_then(|mut data| data.remove("spot-risks"));
    let risks: Value = serde_json::from_str(&text.unwrap_or("{}".to_owned())).expect("JSON");
    let risks = risks.as_object().expect("a map");
    risks.keys().cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn which_spot_instances_were_taken_back_early_is_known_after_a_restart() {
    let (mut whole, old, id) = on_spot().await;
    let place = |node: &Node| {
        let label = |key: &str| node.labels()[key].clone();
        format!("{}/{}", label(labels::INSTANCE_TYPE), label(labels::ZONE))
    };
    whole.ec2.interrupt(&id);
    replaced(&whole, &old).await;
    assert_eq!(kept_risks(&whole).await, [place(&old)]);
    whole.restart_karpenter().await;
    let next = whole.bought()[0].clone();
    let id = next.spec.as_ref().and_then(|spec| spec.provider_id.clone());
    let id = id.as_deref().and_then(instance_id).expect("an instance");
    whole.ec2.interrupt(&id);
    replaced(&whole, &next).await;
    let mut both = [place(&old), place(&next)];
    both.sort();
    assert_eq!(kept_risks(&whole).await, both);
}
