//! What is tidied up: instances without a claim, and claims without an instance.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::ResourceExt;
use mullion_api::ami::AmiFamily;
use mullion_cloud::{
    BoxFuture, CloudProvider, InstanceId, InstanceState, LaunchRequest, NodeTemplate,
    remote::{Remote, Wire, WireError, answer},
    sim::SimulatedEc2,
};

use crate::whole::{Whole, order};

const PROVISIONER: &str = include_str!("../../../api/testdata/karpenter-provisioner-2022.yaml");

/// A cloud whose lists of instances are so slow that they are no longer true when they come.
#[derive(Debug)]
struct SlowLists(SimulatedEc2);

impl Wire for SlowLists {
    fn send(&self, call: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, WireError>> {
        Box::pin(async move {
            let answer = answer(&self.0, &call).await;
            if call.starts_with(b"{\"List\"") {
                tokio::time::sleep(Duration::from_secs(600)).await;
            }
            Ok(answer?)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_bought_while_instances_are_listed_is_not_taken_for_lost() {
    let mut whole = Whole::start().await;
    let remote = Remote::connect(Arc::new(SlowLists(whole.ec2.clone()))).await;
    let remote = remote.expect("it answers");
    whole.restart_karpenter_on(Arc::new(remote)).await;
    whole.apply(PROVISIONER).await;
    whole.windows_deployment("iis", "10.0.20348", 1).await;
    whole.until_running("iis", 1).await;
    let bought = whole.claims()[0].name_any();
    whole.pass(1500).await;
    let claims: Vec<_> = whole.claims().iter().map(|own| own.name_any()).collect();
    assert_eq!(claims, [bought]);
}

/// An instance that a process of a cluster has bought which was killed before it wrote down that it did.
async fn leaked(whole: &Whole, cluster: &str) -> InstanceId {
    let template = NodeTemplate::new(AmiFamily::AmazonLinux2, whole.ec2.config().version);
    let order = LaunchRequest {
        tags: BTreeMap::from(
            [
                ("karpenter.sh/nodepool", "web"),
                ("karpenter.k8s.aws/ec2nodeclass", "web"),
                ("eks:eks-cluster-name", cluster),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        ),
        ..order(cluster, template)
    };
    let launched = whole.ec2.launch(order).await.expect("there is capacity");
    launched.instance.id.clone()
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_a_claim_is_ended_by_whoever_leads_for_a_short_time_only() {
    let mut whole = Whole::start().await;
    let id = leaked(&whole, "windows-karpenter-demo").await;
    // It may have a claim that is not written down yet.
    whole.pass(20).await;
    let state = |whole: &Whole| whole.ec2.instance(&id).expect("it is known").state;
    assert!(state(&whole) < InstanceState::ShuttingDown);
    for _ in 0..3 {
        whole.restart_karpenter().await;
        whole.pass(15).await;
    }
    assert!(state(&whole) >= InstanceState::ShuttingDown);
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_another_cluster_in_the_account_is_left_alone() {
    let whole = Whole::start().await;
    let id = leaked(&whole, "other").await;
    whole.pass(900).await;
    assert!(
        whole
            .ec2
            .instance(&id)
            .expect("it is known")
            .state
            .is_alive()
    );
}
