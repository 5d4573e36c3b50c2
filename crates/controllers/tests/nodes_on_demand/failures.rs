//! What goes wrong when nodes are bought: sold-out types, limits, classes that are not ready.

use kube::ResourceExt;
use mullion_cloud::sim::CapacityPattern;
use serde_json::json;

use crate::whole::Whole;

const PROVISIONER: &str = include_str!("../../../api/testdata/karpenter-provisioner-2022.yaml");

#[tokio::test(start_paused = true)]
async fn a_sold_out_type_is_passed_over() {
    let whole = Whole::start().await;
    let pattern: CapacityPattern = "c6a.xlarge/*/*".parse().expect("a pattern");
    whole.ec2.exhaust(pattern);
    whole.apply(PROVISIONER).await;
    whole.windows_deployment("iis", "10.0.20348", 10).await;
    whole.until_running("iis", 10).await;
    let bought = whole.bought();
    assert_eq!(bought.len(), 1);
    assert_eq!(
        bought[0].labels()["node.kubernetes.io/instance-type"],
        "c5a.xlarge"
    );
}

#[tokio::test(start_paused = true)]
async fn when_everything_is_sold_out_claims_are_given_up_and_tried_again() {
    let whole = Whole::start().await;
    let everything: CapacityPattern = "*/*/*".parse().expect("a pattern");
    whole.ec2.exhaust(everything.clone());
    whole.apply(PROVISIONER).await;
    whole.windows_deployment("iis", "10.0.20348", 2).await;
    whole
        .until("a launch failed", || {
            let story = whole.story();
            story
                .iter()
                .any(|message| message == "failed launching nodeclaim")
                .then_some(())
        })
        .await;
    whole.ec2.replenish(&everything);
    whole.until_running("iis", 2).await;
    assert_eq!(whole.bought().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_throttles_is_asked_again() {
    let whole = Whole::start().await;
    whole.apply(PROVISIONER).await;
    whole
        .until("the pool is ready", || {
            let pool = whole.karpenter.pools.get("", "windows2022")?;
            pool.is("Ready").then_some(())
        })
        .await;
    whole.ec2.throttle(5);
    whole.windows_deployment("iis", "10.0.20348", 2).await;
    whole.until_running("iis", 2).await;
    assert_eq!(
        whole.bought().len(),
        1,
        "no call that failed bought anything"
    );
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_kept_and_said() {
    let whole = Whole::start().await;
    let limited = PROVISIONER.replace("cpu: 1000", "cpu: 4");
    whole.apply(&limited).await;
    whole.windows_deployment("iis", "10.0.20348", 20).await;
    whole
        .until("14 pods run", || {
            let pods = whole.pods("iis");
            let running = pods
                .iter()
                .filter(|pod| mullion_controllers::pods::is_ready(pod))
                .count();
            (running == 14).then_some(())
        })
        .await;
    whole.pass(300).await;
    assert_eq!(whole.bought().len(), 1);
    let pods = whole.pods("iis");
    let pending = pods
        .iter()
        .find(|pod| !mullion_controllers::pods::is_ready(pod));
    let events = whole.events(&pending.expect("six wait").name_any()).await;
    let told = events.iter().any(|(reason, message)| {
        reason == "FailedScheduling"
            && message
                .starts_with("Failed to schedule pod, incompatible with nodepool \"windows2022\", ")
    });
    assert!(told, "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_class_that_finds_no_subnets_buys_nothing_until_it_does() {
    let whole = Whole::start().await;
    let lost = PROVISIONER.replace("windows-karpenter-demo", "another-cluster");
    whole.apply(&lost).await;
    whole.windows_deployment("iis", "10.0.20348", 1).await;
    whole.pass(120).await;
    assert!(whole.claims().is_empty());
    let class = whole
        .karpenter
        .classes
        .get("", "windows2022")
        .expect("mirrored");
    let conditions = class
        .status
        .as_ref()
        .map(|status| status.conditions.clone());
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|c| c.type_ == "SubnetsReady");
    assert_eq!(
        ready.expect("set").message,
        "SubnetSelector did not match any Subnets"
    );
    let templates: kube::Api<mullion_api::karpenter::legacy::AWSNodeTemplate> =
        kube::Api::all(whole.context.client.clone());
    let found = json!({ "karpenter.sh/discovery": "windows-karpenter-demo" });
    let patch = json!({ "spec": { "subnetSelector": found, "securityGroupSelector": found } });
    whole.patch(templates, "windows2022", patch).await;
    whole.until_running("iis", 1).await;
}
