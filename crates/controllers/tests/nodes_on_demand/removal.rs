//! Nodes that go: drained with respect, whoever asked for it.

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::whole::Whole;

const PROVISIONER: &str = include_str!("../../../api/testdata/karpenter-provisioner-2022.yaml");

#[tokio::test(start_paused = true)]
async fn a_deleted_node_is_drained_within_its_budget_and_replaced() {
    let whole = Whole::start().await;
    whole.apply(PROVISIONER).await;
    whole
        .create(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "iis" },
            "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "iis" } } }
        }))
        .await;
    whole.windows_deployment("iis", "10.0.20348", 3).await;
    whole.until_running("iis", 3).await;
    let first = whole.bought()[0].name_any();
    let nodes: Api<Node> = Api::all(whole.context.client.clone());
    whole.delete(nodes, &first).await;
    whole
        .until("the node is gone", || {
            let ready = whole
                .pods("iis")
                .iter()
                .filter(|pod| mullion_controllers::pods::is_ready(pod))
                .count();
            assert!(ready >= 2, "the budget holds");
            whole
                .bought()
                .iter()
                .all(|node| node.name_any() != first)
                .then_some(())
        })
        .await;
    whole.until_running("iis", 3).await;
    assert_eq!(whole.bought().len(), 1);
    let alive = whole.ec2.instances();
    let alive = alive
        .iter()
        .filter(|instance| instance.state.is_alive())
        .count();
    assert_eq!(alive, 2, "the Linux node and the new one");
}

#[tokio::test(start_paused = true)]
async fn do_not_disrupt_keeps_an_empty_node() {
    let whole = Whole::start().await;
    whole.apply(PROVISIONER).await;
    whole.windows_deployment("iis", "10.0.20348", 1).await;
    whole.until_running("iis", 1).await;
    let name = whole.bought()[0].name_any();
    let nodes: Api<Node> = Api::all(whole.context.client.clone());
    let protect =
        |value| json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": value } } });
    whole
        .patch(nodes.clone(), &name, protect(json!("true")))
        .await;
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
        Api::namespaced(whole.context.client.clone(), "default");
    whole.delete(deployments, "iis").await;
    whole.pass(600).await;
    assert_eq!(whole.bought().len(), 1);
    whole
        .patch(nodes, &name, protect(serde_json::Value::Null))
        .await;
    whole
        .until("the node is gone", || {
            whole.bought().is_empty().then_some(())
        })
        .await;
}
