//! Nodes that are no longer where their class asks for, or that are not sold any more.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mullion_api::{fault::FaultKind, karpenter::NodeClaim};
use mullion_cloud::{CloudProvider, TagSelector};
use serde_json::{Value, json};

use crate::{
    pools::{change_class, one_node},
    whole::Whole,
};

/// Waits until another node has taken the place of the only one; gives why the old one went.
async fn until_replaced(whole: &Whole, old: &str) -> String {
    let mut why = None;
    whole
        .until("it is replaced", || {
            let drifted = |claim: &NodeClaim| {
                let drifted = claim.condition("Drifted")?;
                (drifted.status == "True").then(|| drifted.reason.clone())
            };
            why = why
                .take()
                .or_else(|| whole.claims().iter().find_map(|claim| drifted(claim)));
            let bought = whole.bought();
            let is_new = |node: &Node| node.name_any() != old;
            (bought.len() == 1 && is_new(&bought[0])).then_some(())
        })
        .await;
    whole.until_running("web", 1).await;
    why.expect("its claim has drifted")
}

fn zone(whole: &Whole) -> String {
    whole.bought()[0].labels()["topology.kubernetes.io/zone"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_class_that_names_its_image_has_nodes_of_it_whatever_newer_ones_there_are() {
    let whole = one_node().await;
    let old = whole.bought()[0].name_any();
    let image = || {
        let status = whole.claims()[0].status.clone();
        status.expect("it is launched").image_id
    };
    let select = async |alias: &str| {
        let terms = json!({ "amiSelectorTerms": [{ "alias": alias }] });
        change_class(&whole, terms).await;
    };
    let first = image();
    select("al2023@v20250317").await;
    let newer = whole.ec2.fault(FaultKind::NewImage, "al2023@latest");
    whole.ec2.cause(&newer.expect("it can be caused"));
    whole.pass(3600).await;
    assert_eq!(whole.bought()[0].name_any(), old);
    select("al2023@v20250417").await;
    assert_eq!(until_replaced(&whole, &old).await, "AMIDrift");
    assert_ne!(image(), first);
    let old = whole.bought()[0].name_any();
    select("al2023@v20250317").await;
    assert_eq!(until_replaced(&whole, &old).await, "AMIDrift");
    assert_eq!(image(), first);
}

#[tokio::test(start_paused = true)]
async fn a_class_that_names_a_parameter_or_tags_has_nodes_of_the_image_that_they_select() {
    let whole = one_node().await;
    let old = whole.bought()[0].name_any();
    let image = || {
        let status = whole.claims()[0].status.clone();
        status.expect("it is launched").image_id
    };
    let select = async |term: Value| {
        change_class(
            &whole,
            json!({ "amiFamily": "AL2023", "amiSelectorTerms": [term] }),
        )
        .await;
    };
    let first = image();
    let version = whole.ec2.config().version;
    let name = format!(
        "/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/x86_64/standard/recommended/image_id"
    );
    select(json!({ "ssmParameter": name })).await;
    whole.pass(600).await;
    assert_eq!(whole.bought()[0].name_any(), old);
    let newer = whole.ec2.fault(FaultKind::NewImage, "al2023@latest");
    whole.ec2.cause(&newer.expect("it can be caused"));
    assert_eq!(until_replaced(&whole, &old).await, "AMIDrift");
    let second = image();
    assert_ne!(second, first);
    let tags = BTreeMap::from([("stage".to_owned(), "proven".to_owned())]);
    let tags = BTreeMap::from([(first.clone(), tags)]);
    whole.ec2.name_images(&tags, &BTreeMap::new());
    let old = whole.bought()[0].name_any();
    select(json!({ "tags": { "stage": "proven" } })).await;
    assert_eq!(until_replaced(&whole, &old).await, "AMIDrift");
    assert_eq!(image(), first);
    let ignored = || {
        let class = whole.karpenter.classes.get("", "linux")?;
        let conditions = class.status.clone()?.conditions;
        let mut ignored = conditions.into_iter();
        ignored.find(|own| own.type_ == "FieldsIgnored")
    };
    assert_eq!(ignored(), None);
    select(json!({ "tags": { "stage": "canary" } })).await;
    let ignored = whole.until("the class says so", ignored).await;
    assert_eq!(
        ignored.message,
        "spec.amiSelectorTerms[0] has no effect: no simulated image is selected by it, so nodes run the newest image of the family"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_in_a_subnet_that_its_class_leaves_is_replaced() {
    let whole = one_node().await;
    let (old, place) = (whole.bought()[0].name_any(), zone(&whole));
    let all = TagSelector {
        tags: [("karpenter.sh/discovery".to_owned(), "*".to_owned())].into(),
        ..TagSelector::default()
    };
    let subnets = whole.ec2.subnets(&[all]).await.expect("there are some");
    let others: Vec<_> = subnets
        .iter()
        .filter(|subnet| *subnet.zone != *place)
        .map(|subnet| json!({ "id": &*subnet.id }))
        .collect();
    change_class(&whole, json!({ "subnetSelectorTerms": others })).await;
    assert_eq!(until_replaced(&whole, &old).await, "SubnetDrift");
    assert_ne!(zone(&whole), place);
}

#[tokio::test(start_paused = true)]
async fn a_node_with_other_security_groups_than_its_class_is_replaced() {
    let whole = one_node().await;
    let old = whole.bought()[0].name_any();
    let terms = json!({ "securityGroupSelectorTerms": [{ "name": "default" }] });
    change_class(&whole, terms).await;
    assert_eq!(until_replaced(&whole, &old).await, "SecurityGroupDrift");
    whole.pass(900).await;
    assert_eq!(whole.claims().len(), 1, "its successor has not drifted");
    assert!(whole.claims()[0].condition("Drifted").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_offering_is_gone_for_good_is_replaced_after_an_hour() {
    let whole = one_node().await;
    let old = whole.bought()[0].name_any();
    // As if EC2 had closed the zone that it is in.
    let claim = whole.claims()[0].name_any();
    let gone = json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": "us-west-2z" } } });
    whole.patch(whole.karpenter.claim_api(), &claim, gone).await;
    whole.pass(3000).await;
    assert!(
        whole.claims()[0].condition("Drifted").is_none(),
        "it is young"
    );
    assert_eq!(until_replaced(&whole, &old).await, "InstanceTypeNotFound");
}

#[tokio::test(start_paused = true)]
async fn that_ec2_has_none_left_is_no_drift() {
    let whole = one_node().await;
    whole.ec2.exhaust("*/*/*".parse().expect("a pattern"));
    whole.pass(3 * 3600).await;
    assert!(whole.claims()[0].condition("Drifted").is_none());
    assert_eq!(whole.claims().len(), 1);
}
