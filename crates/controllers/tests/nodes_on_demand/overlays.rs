//! NodeOverlays: other prices, and more resources, for machines that may be bought.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::karpenter::{NodeClaim, NodeOverlay};
use mullion_cloud::Speed;
use mullion_controllers::provisioner::FeatureGates;
use serde_json::{Value, json};

use crate::{pools, whole::Whole};

const OPEN: FeatureGates = FeatureGates {
    node_overlay: true,
    node_repair: false,
    static_capacity: false,
    capacity_buffer: false,
    reserved_capacity: true,
};

fn api(whole: &Whole) -> Api<NodeOverlay> {
    Api::all(whole.context.client.clone())
}

async fn overlay(whole: &Whole, name: &str, kind: &str, fields: Value) {
    let mut spec = fields;
    spec["requirements"] = json!([
        { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": [kind] }
    ]);
    whole
        .create(json!({
            "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": name }, "spec": spec
        }))
        .await;
}

/// The conditions of an overlay as `type=status reason`, once `Ready` is as said.
async fn until_ready(whole: &Whole, name: &str, ready: &str) -> Vec<String> {
    whole
        .until(&format!("overlay {name} is Ready={ready}"), || {
            let overlay = whole.karpenter.overlays.get("", name)?;
            let conditions = &overlay.status.as_ref()?.conditions;
            let is_judged = |own: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
                own.type_ == "Ready"
                    && own.status == ready
                    && own.observed_generation == overlay.metadata.generation
            };
            conditions.iter().find(is_judged)?;
            let told = conditions
                .iter()
                .map(|own| format!("{}={} {}", own.type_, own.status, own.reason));
            Some(told.collect())
        })
        .await
}

async fn web(whole: &Whole, requests: Value) {
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{
            "name": "web", "image": "nginx", "resources": { "requests": requests, "limits": requests }
        }]
    });
    whole.deployment("web", 1, spec).await;
}

fn kind(claim: &NodeClaim) -> Option<String> {
    let kind = claim.label("node.kubernetes.io/instance-type");
    kind.map(str::to_owned)
}

async fn until_node_of(whole: &Whole, wanted: &str) {
    whole
        .until(&format!("the one node is a {wanted}"), || {
            let claims = whole.claims();
            let is_it = |own: &NodeClaim| kind(own).as_deref() == Some(wanted);
            (claims.len() == 1 && is_it(&claims[0]) && claims[0].is("Initialized")).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_type_that_an_overlay_makes_cheapest_is_bought_and_given_up_when_the_overlay_is_gone() {
    let whole = Whole::start_with(Speed::REAL, OPEN).await;
    overlay(
        &whole,
        "discount",
        "m5.xlarge",
        json!({ "priceAdjustment": "-75%" }),
    )
    .await;
    assert_eq!(
        until_ready(&whole, "discount", "True").await,
        [
            "Ready=True Ready",
            "ValidationSucceeded=True ValidationSucceeded"
        ]
    );
    let at_once = json!({ "disruption": { "consolidateAfter": "0s" } });
    pools::linux_with(
        &whole,
        &["m5.large", "m5.xlarge"],
        &["on-demand"],
        json!({}),
        at_once,
    )
    .await;
    web(&whole, json!({ "cpu": "500m" })).await;
    whole.until_running("web", 1).await;
    until_node_of(&whole, "m5.xlarge").await;
    let claim = &whole.claims()[0];
    let annotations = claim.annotations();
    assert_eq!(annotations["karpenter.sh/price-overlay-applied"], "true");
    assert!(!annotations.contains_key("karpenter.sh/capacity-overlay-applied"));
    // While it counts, the node is the cheapest there is.
    whole.pass(900).await;
    until_node_of(&whole, "m5.xlarge").await;
    whole.delete(api(&whole), "discount").await;
    until_node_of(&whole, "m5.large").await;
    // An overlay for one capacity type or pool reaches no other.
    let mut elsewhere = json!({ "price": "0.001", "weight": 3 });
    elsewhere["requirements"] =
        json!([{ "key": "karpenter.sh/nodepool", "operator": "In", "values": ["other"] }]);
    whole
        .create(json!({
            "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": "elsewhere" }, "spec": elsewhere
        }))
        .await;
    until_ready(&whole, "elsewhere", "True").await;
    whole.pass(900).await;
    until_node_of(&whole, "m5.large").await;
    // A dearer type is given up as soon as another costs less.
    overlay(&whole, "dear", "m5.large", json!({ "price": "3.50" })).await;
    until_node_of(&whole, "m5.xlarge").await;
}

#[tokio::test(start_paused = true)]
async fn resources_of_an_overlay_are_planned_with_and_the_node_waits_until_it_has_them() {
    let whole = Whole::start_with(Speed::REAL, OPEN).await;
    let card = "example.com/card";
    overlay(
        &whole,
        "cards",
        "m5.xlarge",
        json!({ "capacity": { card: "2" } }),
    )
    .await;
    until_ready(&whole, "cards", "True").await;
    pools::linux(
        &whole,
        &["m5.large", "m5.xlarge"],
        &["on-demand"],
        json!({}),
    )
    .await;
    web(&whole, json!({ card: "1" })).await;
    let claim = whole
        .until("the node waits for its cards", || {
            let claim = whole.claims().into_iter().next()?;
            let conditions = &claim.status.as_ref()?.conditions;
            let mut conditions = conditions.iter();
            conditions
                .any(|own| own.type_ == "Initialized" && own.reason == "ResourceNotRegistered")
                .then_some(claim)
        })
        .await;
    assert_eq!(kind(&claim).as_deref(), Some("m5.xlarge"));
    let status = claim.status.as_ref().expect("it is launched");
    assert_eq!(status.capacity.text(card), Some("2"));
    assert_eq!(status.allocatable.text(card), Some("2"));
    let annotations = claim.annotations();
    assert_eq!(annotations["karpenter.sh/capacity-overlay-applied"], "true");
    assert!(!annotations.contains_key("karpenter.sh/price-overlay-applied"));
    // No second node is bought for the pod meanwhile.
    whole.pass(120).await;
    assert_eq!(whole.claims().len(), 1);
    // What a device plugin does.
    let nodes: Api<Node> = Api::all(whole.context.client.clone());
    let name = whole.bought()[0].name_any();
    let patch = json!({ "status": { "capacity": { card: "2" } } });
    nodes
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .expect("it is accepted");
    until_node_of(&whole, "m5.xlarge").await;
    whole.until_running("web", 1).await;
}

#[tokio::test(start_paused = true)]
async fn overlays_in_conflict_say_so_until_one_goes() {
    let whole = Whole::start_with(Speed::REAL, OPEN).await;
    pools::linux(
        &whole,
        &["m5.large", "m5.xlarge"],
        &["on-demand"],
        json!({}),
    )
    .await;
    for (name, price) in [("a", "0.01"), ("b", "5.00")] {
        overlay(&whole, name, "m5.xlarge", json!({ "price": price })).await;
    }
    assert_eq!(
        until_ready(&whole, "a", "False").await,
        [
            "Ready=False UnhealthyDependents",
            "ValidationSucceeded=False Conflict"
        ]
    );
    until_ready(&whole, "b", "True").await;
    whole.delete(api(&whole), "b").await;
    until_ready(&whole, "a", "True").await;
    // A value that the schema lets through.
    let requirements = json!([{ "key": "team", "operator": "In", "values": ["-"] }]);
    let patch = json!({ "spec": { "requirements": requirements } });
    whole.patch(api(&whole), "a", patch).await;
    assert_eq!(
        until_ready(&whole, "a", "False").await,
        [
            "Ready=False UnhealthyDependents",
            "ValidationSucceeded=False RuntimeValidation"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn while_the_gate_is_closed_an_overlay_changes_nothing_and_says_so() {
    let whole = Whole::start().await;
    overlay(&whole, "discount", "m5.xlarge", json!({ "price": "0.01" })).await;
    assert_eq!(
        until_ready(&whole, "discount", "False").await,
        [
            "FieldsIgnored=True NoEffect",
            "Ready=False FeatureGateClosed"
        ]
    );
    pools::linux(
        &whole,
        &["m5.large", "m5.xlarge"],
        &["on-demand"],
        json!({}),
    )
    .await;
    web(&whole, json!({ "cpu": "500m" })).await;
    until_node_of(&whole, "m5.large").await;
}

#[tokio::test(start_paused = true)]
async fn the_schema_refuses_what_karpenters_does() {
    let whole = Whole::start().await;
    let refused = async |spec: Value| {
        let overlay = json!({ "metadata": { "name": "o" }, "spec": spec });
        let overlay = serde_json::from_value(overlay).expect("an overlay");
        let created = api(&whole).create(&Default::default(), &overlay).await;
        created.expect_err("it is refused").to_string()
    };
    let none = json!([]);
    let said =
        refused(json!({ "requirements": none, "price": "1", "priceAdjustment": "+1" })).await;
    assert!(
        said.contains("cannot set both 'price' and 'priceAdjustment'"),
        "{said}"
    );
    let said = refused(json!({ "requirements": none, "capacity": { "cpu": "1" } })).await;
    assert!(said.contains("invalid resource restricted"), "{said}");
    let empty = json!([{ "key": "team", "operator": "NotIn", "values": [] }]);
    let said = refused(json!({ "requirements": empty })).await;
    assert!(
        said.contains("requirements with operator 'NotIn' must have a value defined"),
        "{said}"
    );
    let key = json!([{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["a"] }]);
    let said = refused(json!({ "requirements": key })).await;
    assert!(
        said.contains("label \"kubernetes.io/hostname\" is restricted"),
        "{said}"
    );
    for adjustment in ["5", "5%", "-101%", "-150%", "10.5", "+"] {
        let said = refused(json!({ "requirements": none, "priceAdjustment": adjustment })).await;
        assert!(
            said.contains("spec.priceAdjustment"),
            "{adjustment}: {said}"
        );
    }
    for weight in [0, 10_001] {
        let said = refused(json!({ "requirements": none, "weight": weight })).await;
        assert!(said.contains("spec.weight"), "{weight}: {said}");
    }
}
