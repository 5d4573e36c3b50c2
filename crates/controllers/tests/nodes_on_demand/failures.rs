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
async fn what_was_refused_on_the_way_to_a_node_is_in_the_log() {
    let whole = Whole::start().await;
    whole
        .ec2
        .exhaust("c6a.xlarge/us-west-2a/*".parse().expect("a pattern"));
    whole.apply(PROVISIONER).await;
    whole.windows_deployment("iis", "10.0.20348", 10).await;
    whole.until_running("iis", 10).await;
    let refused = whole.line("removing offering from offerings");
    let claim = whole.claims()[0].name_any();
    let told = [
        ("level", "DEBUG"),
        ("controller", "nodeclaim.lifecycle"),
        ("name", &claim),
        ("reason", "InsufficientInstanceCapacity"),
        ("instance-type", "c6a.xlarge"),
        ("zone", "us-west-2a"),
        ("capacity-type", "on-demand"),
        ("ttl", "3m0s"),
    ];
    for (field, value) in told {
        assert_eq!(refused[field], value, "{field}");
    }
    let bought = whole.bought();
    assert_eq!(
        bought[0].labels()["topology.kubernetes.io/zone"],
        "us-west-2b"
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_nothing_is_left_for_is_told_in_the_fleets_words() {
    let whole = Whole::start().await;
    whole.ec2.exhaust("*/*/*".parse().expect("a pattern"));
    whole.apply(PROVISIONER).await;
    whole.windows_deployment("iis", "10.0.20348", 1).await;
    whole
        .until("a launch failed", || {
            let story = whole.story();
            let failed = story.iter().any(|m| m == "failed launching nodeclaim");
            failed.then_some(())
        })
        .await;
    let failed = whole.line("failed launching nodeclaim");
    let error = failed["error"].as_str().expect("a text");
    let expected = "creating instance, insufficient capacity, with fleet error(s), InsufficientInstanceCapacity: We \
                    currently do not have sufficient ";
    assert!(error.starts_with(expected), "{error}");
    let claim = failed["name"].as_str().expect("a name").to_owned();
    whole.pass(60).await;
    let events = whole.events(&claim).await;
    let told = events
        .iter()
        .find(|(reason, _)| reason == "InsufficientCapacityError");
    let (_, message) = told.unwrap_or_else(|| panic!("{events:#?}"));
    let start = format!("NodeClaim {claim} event: {expected}");
    assert!(
        message.starts_with(&start) && message.ends_with("..."),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pool_whose_machines_were_all_refused_is_skipped_and_told_why() {
    let whole = Whole::start().await;
    whole.ec2.exhaust("*/*/*".parse().expect("a pattern"));
    let one_type = PROVISIONER.replace(
        "requirements:",
        "requirements:\n    - { key: node.kubernetes.io/instance-type, operator: In, values: [c6a.xlarge] }",
    );
    assert_ne!(one_type, PROVISIONER);
    whole.apply(&one_type).await;
    whole.windows_deployment("iis", "10.0.20348", 1).await;
    let skipped = "skipping, nodepool requirements filtered out all instance types";
    whole
        .until("the pool is skipped", || {
            whole.story().iter().any(|m| m == skipped).then_some(())
        })
        .await;
    let line = whole.line(skipped);
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["NodePool"]["name"], "windows2022");
    whole.pass(1).await;
    let told = (
        "NoCompatibleInstanceTypes".to_owned(),
        "NodePool requirements filtered out all compatible available instance types".to_owned(),
    );
    let events = whole.events("windows2022").await;
    assert!(events.contains(&told), "{events:#?}");
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
                == "Failed to schedule pod, all available instance types exceed limits for nodepool (NodePool=windows2022)"
    });
    assert!(told, "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_pool_without_its_class_is_ignored_aloud_while_another_buys() {
    let whole = Whole::start().await;
    whole.apply(PROVISIONER).await;
    whole
        .create(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "lost" },
            "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "nowhere" },
                "requirements": []
            }}}
        }))
        .await;
    whole
        .until("the other pool is ready", || {
            let pool = whole.karpenter.pools.get("", "windows2022")?;
            pool.is("Ready").then_some(())
        })
        .await;
    whole.windows_deployment("iis", "10.0.20348", 1).await;
    whole.until_running("iis", 1).await;
    let ignored = whole.line("ignoring nodepool, not ready");
    assert_eq!(ignored["NodePool"]["name"], "lost");
    assert!(!whole.story().contains(&"no nodepools found".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_class_that_finds_no_subnets_buys_nothing_until_it_does() {
    let whole = Whole::start().await;
    let lost = PROVISIONER.replace("windows-karpenter-demo", "another-cluster");
    whole.apply(&lost).await;
    whole.windows_deployment("iis", "10.0.20348", 1).await;
    whole.pass(120).await;
    assert!(whole.claims().is_empty());
    let ignored = whole.line("ignoring nodepool, not ready");
    assert_eq!(ignored["level"], "ERROR");
    assert_eq!(ignored["controller"], "provisioner");
    assert_eq!(ignored["NodePool"]["name"], "windows2022");
    assert_eq!(ignored["error"], serde_json::Value::Null);
    assert_eq!(whole.line("no nodepools found")["level"], "INFO");
    let refused = "could not schedule pod".to_owned();
    assert!(
        !whole.story().contains(&refused),
        "one line says it for all pods"
    );
    let pod = whole.pods("iis")[0].name_any();
    let told = (
        "FailedScheduling".to_owned(),
        "Failed to schedule pod, no nodepools found".to_owned(),
    );
    let events = whole.events(&pod).await;
    assert!(events.contains(&told), "{events:#?}");
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

#[tokio::test(start_paused = true)]
async fn launches_that_keep_failing_are_given_up_and_make_their_pool_unhealthy() {
    let whole = Whole::start().await;
    whole.apply(PROVISIONER).await;
    let pool = || whole.karpenter.pools.get("", "windows2022");
    whole
        .until("the pool is ready", || pool()?.is("Ready").then_some(()))
        .await;
    whole.ec2.throttle(u32::MAX);
    whole.windows_deployment("iis", "10.0.20348", 1).await;
    whole
        .until("a claim is on its way", || {
            (!whole.claims().is_empty()).then_some(())
        })
        .await;
    let first = whole.claims()[0].name_any();
    whole.pass(240).await;
    assert_eq!(whole.claims()[0].name_any(), first, "it has five minutes");
    let told = whole
        .until("two launches were given up", || {
            let pool = pool()?;
            let mut conditions = pool.status.iter().flat_map(|status| &status.conditions);
            let healthy = conditions.find(|c| c.type_ == "NodeRegistrationHealthy")?;
            (healthy.status == "False").then(|| healthy.clone())
        })
        .await;
    assert_eq!(told.reason, "RequestLimitExceeded");
    assert_eq!(
        told.message,
        "Error creating fleet request: Request limit exceeded"
    );
    assert!(whole.claims().iter().all(|claim| claim.name_any() != first));
    whole.ec2.throttle(0);
    whole.until_running("iis", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_provisioner_that_an_object_of_its_name_keeps_from_being_mirrored_says_so() {
    let whole = Whole::start().await;
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "windows2022" },
        "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "own" }, "requirements": [],
        }}},
    });
    whole.create(pool).await;
    let class = json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "windows2022" },
        "spec": {
            "role": "nodes", "amiSelectorTerms": [{ "alias": "al2023@latest" }],
            "subnetSelectorTerms": [{ "tags": { "a": "b" } }], "securityGroupSelectorTerms": [{ "tags": { "a": "b" } }],
        },
    });
    whole.create(class).await;
    whole.apply(PROVISIONER).await;
    whole.pass(60).await;
    let said = |mirror: &str, kind: &str| {
        let message = format!(
            "{mirror} windows2022 is there and no mirror of this {kind}, so the {kind} buys nothing: give one of them another name, or delete the {mirror}"
        );
        ("NotMirrored".to_owned(), message)
    };
    let events = whole.events("windows2022").await;
    let told: Vec<_> = events
        .iter()
        .filter(|(reason, _)| reason == "NotMirrored")
        .collect();
    assert_eq!(told.len(), 2, "{events:#?}");
    assert!(
        events.contains(&said("NodePool", "Provisioner")),
        "{events:#?}"
    );
    assert!(
        events.contains(&said("EC2NodeClass", "AWSNodeTemplate")),
        "{events:#?}"
    );
}
