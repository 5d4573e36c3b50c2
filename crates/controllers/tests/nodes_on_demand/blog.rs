//! The announcement of Karpenter for Windows, lived through: from zero to ten pods of each build and back.

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::whole::Whole;

const PROVISIONER_2019: &str =
    include_str!("../../../api/testdata/karpenter-provisioner-2019.yaml");
const PROVISIONER_2022: &str =
    include_str!("../../../api/testdata/karpenter-provisioner-2022.yaml");

#[tokio::test(start_paused = true)]
async fn ten_windows_pods_buy_one_node_and_give_it_back() {
    let whole = Whole::start().await;
    whole.apply(PROVISIONER_2019).await;
    whole.apply(PROVISIONER_2022).await;
    whole.windows_deployment("iis-2022", "10.0.20348", 10).await;
    whole.until_running("iis-2022", 10).await;

    let bought = whole.bought();
    assert_eq!(bought.len(), 1);
    let node = &bought[0];
    assert_eq!(
        node.labels()["node.kubernetes.io/instance-type"],
        "c6a.xlarge"
    );
    assert_eq!(
        node.labels()["node.kubernetes.io/windows-build"],
        "10.0.20348"
    );
    assert_eq!(node.labels()["karpenter.sh/nodepool"], "windows2022");
    assert_eq!(node.labels()["karpenter.sh/initialized"], "true");
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.clone());
    assert_eq!(
        json!(allocatable),
        json!({
            "cpu": "3920m", "ephemeral-storage": "44Gi", "memory": "6012Mi", "pods": "110",
            "vpc.amazonaws.com/PrivateIPv4Address": "14"
        })
    );
    let launched = whole.line("launched nodeclaim");
    assert_eq!(launched["instance-type"], "c6a.xlarge");
    assert_eq!(launched["capacity-type"], "on-demand");
    assert_eq!(launched["allocatable"]["cpu"], "3920m");

    whole.windows_deployment("iis-2019", "10.0.17763", 10).await;
    whole.until_running("iis-2019", 10).await;
    assert_eq!(whole.bought().len(), 2);

    let deployments: Api<Deployment> = Api::namespaced(whole.context.client.clone(), "default");
    whole.delete(deployments.clone(), "iis-2022").await;
    whole.delete(deployments, "iis-2019").await;
    whole
        .until("the Windows nodes and their claims are gone", || {
            (whole.bought().is_empty() && whole.claims().is_empty()).then_some(())
        })
        .await;
    assert_eq!(whole.nodes().len(), 1, "the Linux node stays");

    let story = whole.story();
    let mut rest = story.iter().map(String::as_str);
    for step in [
        "found provisionable pod(s)",
        "computed new nodeclaim(s) to fit pod(s)",
        "created nodeclaim",
        "launched nodeclaim",
        "registered nodeclaim",
        "initialized nodeclaim",
        "disrupting node(s)",
        "tainted node",
        "deleted node",
        "deleted nodeclaim",
    ] {
        assert!(
            rest.any(|message| message == step),
            "{step:?} is missing or out of order: {story:#?}"
        );
    }
    for step in [
        "launched nodeclaim",
        "registered nodeclaim",
        "initialized nodeclaim",
        "deleted nodeclaim",
    ] {
        let told = story.iter().filter(|message| *message == step).count();
        assert_eq!(told, 2, "{step:?} is told once per node: {story:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_are_told_where_they_should_go() {
    let whole = Whole::start().await;
    whole.apply(PROVISIONER_2022).await;
    whole.windows_deployment("iis", "10.0.20348", 1).await;
    whole
        .until("a claim", || whole.claims().first().cloned())
        .await;
    whole.until_running("iis", 1).await;
    let claim = whole.claims()[0].name_any();
    let pod = whole.pods("iis")[0].name_any();
    let expected = (
        "Nominated".to_owned(),
        format!("Pod should schedule on: nodeclaim/{claim}"),
    );
    let events = whole.events(&pod).await;
    assert!(events.contains(&expected), "{events:#?}");
}
