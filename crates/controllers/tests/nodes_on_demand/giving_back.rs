//! Nodes that are given back because others are cheaper, because they are no longer what was asked for, or because their time is over.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
};
use kube::{Api, ResourceExt};
use mullion_api::karpenter::{EC2NodeClass, NodePool};
use serde_json::{Value, json};

use crate::whole::Whole;

/// A pool of Linux nodes of these types, and its class.
pub(crate) async fn pool(whole: &Whole, types: &[&str], disruption: Value) {
    whole
        .create(json!({
            "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "linux" },
            "spec": {
                "role": "KarpenterNodeRole-windows-karpenter-demo",
                "amiSelectorTerms": [{ "alias": "al2023@latest" }],
                "subnetSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "windows-karpenter-demo" } }],
                "securityGroupSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "windows-karpenter-demo" } }]
            }
        }))
        .await;
    whole
        .create(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "linux" },
            "spec": {
                "disruption": disruption,
                "template": {
                    "metadata": { "labels": { "team": "web" } },
                    "spec": {
                        "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "linux" },
                        "expireAfter": "Never",
                        "requirements": [
                            { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": types },
                            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] }
                        ]
                    }
                }
            }
        }))
        .await;
}

async fn deployment(whole: &Whole, name: &str, replicas: u32, cpu: &str) {
    let requests = json!({ "cpu": cpu, "memory": "128Mi" });
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": requests } }]
    });
    whole.deployment(name, replicas, spec).await;
}

fn deployments(whole: &Whole) -> Api<Deployment> {
    Api::namespaced(whole.context.client.clone(), "default")
}

fn pools(whole: &Whole) -> Api<NodePool> {
    Api::all(whole.context.client.clone())
}

pub(crate) fn types(whole: &Whole) -> Vec<String> {
    let mut types: Vec<String> = whole
        .bought()
        .iter()
        .map(|node| node.labels()["node.kubernetes.io/instance-type"].clone())
        .collect();
    types.sort();
    types
}

/// A cluster with an `m5.2xlarge` for one small pod, whose pool may buy smaller ones.
async fn one_large_node(disruption: Value) -> Whole {
    let whole = Whole::start().await;
    pool(&whole, &["m5.2xlarge", "m5.large"], disruption).await;
    deployment(&whole, "web", 6, "1").await;
    whole.until_running("web", 6).await;
    assert_eq!(types(&whole), ["m5.2xlarge"]);
    let scale = json!({ "spec": { "replicas": 1 } });
    whole.patch(deployments(&whole), "web", scale).await;
    whole
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_too_large_is_replaced_by_a_cheaper_one() {
    let whole = one_large_node(json!({ "consolidateAfter": "30s" })).await;
    let old = whole.bought()[0].name_any();
    whole
        .until("the small node alone is left", || {
            let stays = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
            assert!(whole.pods("web").iter().any(|pod| stays(pod)));
            (types(&whole) == ["m5.large"]).then_some(())
        })
        .await;
    whole.until_running("web", 1).await;
    let line = whole.line("disrupting node(s)");
    assert_eq!(line["reason"], "underutilized");
    assert_eq!(line["decision"], "replace");
    assert_eq!(line["disrupted-nodes"][0]["instance-type"], "m5.2xlarge");
    assert_eq!(line["replacement-nodes"][0]["instance-types"], "m5.large");
    let events = whole.events(&old).await;
    let said = |reason: &str| {
        events
            .iter()
            .find(|event| event.0 == reason)
            .map(|event| event.1.clone())
    };
    assert_eq!(
        said("DisruptionTerminating").as_deref(),
        Some("Disrupting Node: Underutilized")
    );
    let candidate = said("ConsolidationCandidate").unwrap_or_default();
    assert!(
        candidate.starts_with("Consolidation candidate: replace: nodepools=[linux]: [")
            && candidate.ends_with("] -> [1 replacement] (savings: $0.29)"),
        "{candidate}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_balanced_pool_says_how_a_move_scores_and_who_changes_its_mind_is_told() {
    let whole =
        one_large_node(json!({ "consolidateAfter": "30s", "consolidationPolicy": "Balanced" }))
            .await;
    let old = whole.bought()[0].name_any();
    let is_candidate = |event: &(String, String)| event.0 == "ConsolidationCandidate";
    for _ in 0..600 {
        if whole.events(&old).await.iter().any(is_candidate) {
            break;
        }
        whole.pass(1).await;
    }
    // The only node is all of the disruption of its pool. Both nodes have the same root volume, so less than 75 % is saved.
    let events = whole.events(&old).await;
    let said = "score 0.75 >= threshold 0.50 (k: 2, savings 74.6%, disruption 100.0%)";
    assert!(
        events.contains(&("ConsolidationApproved".to_owned(), said.to_owned())),
        "{events:#?}"
    );
    let annotation =
        json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "true" } } });
    let nodes: Api<Node> = Api::all(whole.context.client.clone());
    whole.patch(nodes, &old, annotation).await;
    whole.pass(30).await;
    let events = whole.events(&old).await;
    let said = format!(
        "Consolidation rejected: replace: nodepools=[linux]: [{old}] -> [1 replacement], reason: churn (savings: $0.29)"
    );
    assert!(
        events.contains(&("ConsolidationRejected".to_owned(), said)),
        "{events:#?}"
    );
    assert_eq!(types(&whole), ["m5.2xlarge"]);
}

#[tokio::test(start_paused = true)]
async fn a_settled_cluster_stays_as_it_is() {
    let whole = one_large_node(json!({ "consolidateAfter": "30s" })).await;
    whole
        .until("it is consolidated", || {
            (types(&whole) == ["m5.large"]).then_some(())
        })
        .await;
    whole.until_running("web", 1).await;
    let before = whole.story().len();
    whole.pass(3600).await;
    assert_eq!(
        whole.story()[before..],
        [] as [String; 0],
        "nothing more is done"
    );
}

#[tokio::test(start_paused = true)]
async fn policies_budgets_and_pods_hold_a_node() {
    let whole =
        one_large_node(json!({ "consolidateAfter": "30s", "consolidationPolicy": "WhenEmpty" }))
            .await;
    let stays = async |why: &str| {
        whole.pass(600).await;
        assert_eq!(types(&whole), ["m5.2xlarge"], "{why}");
    };
    stays("the policy").await;
    let events = whole.events(&whole.bought()[0].name_any()).await;
    let said = "NodePool \"linux\" has consolidation policy WhenEmpty, but node is not empty";
    assert!(
        events.contains(&("Unconsolidatable".to_owned(), said.to_owned())),
        "{events:#?}"
    );
    let budget = |nodes: &str| {
        json!({ "spec": { "disruption": {
            "consolidationPolicy": "WhenEmptyOrUnderutilized", "budgets": [{ "nodes": nodes, "reasons": ["Underutilized"] }]
        }}})
    };
    whole.patch(pools(&whole), "linux", budget("0")).await;
    stays("the budget").await;
    let events = whole.events("linux").await;
    let said = "No allowed disruptions for disruption reason Underutilized due to blocking budget";
    assert!(
        events.contains(&("DisruptionBlocked".to_owned(), said.to_owned())),
        "{events:#?}"
    );
    whole
        .create(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
            "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } }
        }))
        .await;
    whole.patch(pools(&whole), "linux", budget("1")).await;
    stays("the pods' budget").await;
    let events = whole.events(&whole.bought()[0].name_any()).await;
    let said = "Pdb prevents pod evictions (PodDisruptionBudget=[default/web])";
    assert!(
        events.contains(&("DisruptionBlocked".to_owned(), said.to_owned())),
        "{events:#?}"
    );
    let pod = whole.pods("web")[0].name_any();
    let annotation =
        json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "5d" } } });
    let pods: Api<Pod> = Api::namespaced(whole.context.client.clone(), "default");
    whole.patch(pods, &pod, annotation).await;
    stays("the pods' budget, whatever the annotation is").await;
    let events = whole.events(&pod).await;
    let said = "Invalid karpenter.sh/do-not-disrupt annotation: failed to parse \"5d\" as a duration: time: unknown unit \"d\" in duration \"5d\", ignoring annotation";
    assert!(
        events.contains(&("InvalidDoNotDisruptAnnotation".to_owned(), said.to_owned())),
        "{events:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_drifts_and_is_replaced() {
    let whole = Whole::start().await;
    pool(
        &whole,
        &["m5.large"],
        json!({ "consolidateAfter": "Never" }),
    )
    .await;
    deployment(&whole, "web", 2, "500m").await;
    whole.until_running("web", 2).await;
    let old = whole.bought()[0].name_any();
    let label = json!({ "spec": { "template": { "metadata": { "labels": { "stage": "two" } } } } });
    whole.patch(pools(&whole), "linux", label).await;
    whole
        .until("the new node has the label", || {
            let bought = whole.bought();
            let is_new =
                |node: &Node| node.name_any() != old && node.labels().contains_key("stage");
            (bought.len() == 1 && is_new(&bought[0])).then_some(())
        })
        .await;
    whole.until_running("web", 2).await;
    let line = whole.line("disrupting node(s)");
    assert_eq!(
        (&line["reason"], &line["decision"]),
        (&json!("drifted"), &json!("replace"))
    );
    // Another change in the class drifts, too.
    let old = whole.bought()[0].name_any();
    let classes: Api<EC2NodeClass> = Api::all(whole.context.client.clone());
    whole
        .patch(
            classes,
            "linux",
            json!({ "spec": { "tags": { "cost": "low" } } }),
        )
        .await;
    whole
        .until("it is replaced again", || {
            let bought = whole.bought();
            (bought.len() == 1 && bought[0].name_any() != old).then_some(())
        })
        .await;
    whole.until_running("web", 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_expires_whatever_budgets_say() {
    let whole = Whole::start().await;
    pool(
        &whole,
        &["m5.large"],
        json!({ "consolidateAfter": "Never", "budgets": [{ "nodes": "0" }] }),
    )
    .await;
    whole
        .patch(
            pools(&whole),
            "linux",
            json!({ "spec": { "template": { "spec": { "expireAfter": "1h" } } } }),
        )
        .await;
    deployment(&whole, "web", 1, "500m").await;
    whole.until_running("web", 1).await;
    let old = whole.bought()[0].name_any();
    whole.pass(3000).await;
    assert_eq!(whole.bought()[0].name_any(), old);
    whole
        .until("it is replaced", || {
            let bought = whole.bought();
            (bought.len() == 1 && bought[0].name_any() != old).then_some(())
        })
        .await;
    whole.until_running("web", 1).await;
    assert!(
        whole
            .story()
            .contains(&"deleting expired nodeclaim".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn nodes_that_a_dead_process_tainted_are_set_free() {
    let mut whole = one_large_node(json!({ "consolidateAfter": "30s" })).await;
    let is_tainted = |node: &Node| {
        let taints = node
            .spec
            .iter()
            .flat_map(|spec| spec.taints.iter().flatten());
        taints
            .into_iter()
            .any(|taint| taint.key == "karpenter.sh/disrupted")
    };
    whole
        .until("a node is tainted and waits for its replacement", || {
            let bought = whole.bought();
            bought.iter().any(|node| is_tainted(node)).then_some(())
        })
        .await;
    whole.restart_karpenter().await;
    whole
        .until("it ends as it was meant to", || {
            (types(&whole) == ["m5.large"]).then_some(())
        })
        .await;
    whole.until_running("web", 1).await;
    assert!(!whole.bought().iter().any(|node| is_tainted(node)));
}
