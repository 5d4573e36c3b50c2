//! The controllers of nodes-on-demand end at any moment and start again: the same cluster comes out.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;

use crate::whole::Whole;

const PROVISIONER: &str = include_str!("../../../api/testdata/karpenter-provisioner-2022.yaml");

fn alive(whole: &Whole) -> usize {
    let instances = whole.ec2.instances();
    instances
        .iter()
        .filter(|instance| instance.state.is_alive())
        .count()
}

/// Lives through buying and removal of one node, with a restart every `seconds`.
async fn survives_restarts_every(seconds: u64) {
    let mut whole = Whole::start().await;
    whole.apply(PROVISIONER).await;
    whole.windows_deployment("iis", "10.0.20348", 10).await;
    for _ in 0..(360 / seconds) {
        whole.pass(seconds).await;
        whole.restart_karpenter().await;
        assert!(alive(&whole) <= 2, "nothing is bought twice");
    }
    whole.until_running("iis", 10).await;
    assert_eq!(whole.bought().len(), 1);
    let deployments: Api<Deployment> = Api::namespaced(whole.context.client.clone(), "default");
    whole.delete(deployments, "iis").await;
    for _ in 0..(180 / seconds) {
        whole.pass(seconds).await;
        whole.restart_karpenter().await;
    }
    whole
        .until("the node, its claim and its instance are gone", || {
            (whole.bought().is_empty() && whole.claims().is_empty() && alive(&whole) == 1)
                .then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_every_seven_seconds_changes_nothing() {
    survives_restarts_every(7).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_every_minute_changes_nothing() {
    survives_restarts_every(60).await;
}
