//! PodDisruptionBudgets and the collection of pods that nobody else removes.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
    policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
};
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, daemon_set, deployment};

fn budget(app: &str, rule: Value) -> Value {
    let mut budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": app},
        "spec": {"selector": {"matchLabels": {"app": app}}},
    });
    budget["spec"]
        .as_object_mut()
        .expect("an object")
        .extend(rule.as_object().expect("an object").clone());
    budget
}

fn status(cluster: &Cluster, name: &str) -> Option<PodDisruptionBudgetStatus> {
    cluster
        .context
        .informers
        .pod_disruption_budgets
        .get("default", name)?
        .status
        .clone()
}

/// currentHealthy, desiredHealthy, expectedPods, disruptionsAllowed.
async fn until_counts(cluster: &Cluster, name: &str, counts: [i32; 4]) {
    cluster
        .until(&format!("{name} counts {counts:?}"), || {
            let status = status(cluster, name)?;
            let found = [
                status.current_healthy?,
                status.desired_healthy?,
                status.expected_pods?,
                status.disruptions_allowed?,
            ];
            (found == counts).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_follows_the_scale_and_the_health_of_its_pods() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 4, "web:1")).await;
    cluster
        .create(budget("web", json!({"maxUnavailable": "25%"})))
        .await;
    until_counts(&cluster, "web", [4, 3, 4, 1]).await;
    let condition = status(&cluster, "web")
        .and_then(|status| status.conditions)
        .expect("conditions")[0]
        .clone();
    let text = (
        condition.type_.as_str(),
        condition.status.as_str(),
        condition.reason.as_str(),
    );
    assert_eq!(text, ("DisruptionAllowed", "True", "SufficientPods"));
    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 8}}))
        .await;
    until_counts(&cluster, "web", [8, 6, 8, 2]).await;
    cluster
        .delete::<PodDisruptionBudget>("web", &DeleteParams::default())
        .await;
    cluster
        .create(budget("web", json!({"minAvailable": 8})))
        .await;
    until_counts(&cluster, "web", [8, 8, 8, 0]).await;
    let condition = status(&cluster, "web")
        .and_then(|status| status.conditions)
        .expect("conditions")[0]
        .clone();
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("False", "InsufficientPods")
    );
}

#[tokio::test(start_paused = true)]
async fn an_eviction_spends_the_budget_until_the_pod_is_replaced() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({}), json!([])).await;
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster
        .create(budget("web", json!({"minAvailable": 1})))
        .await;
    until_counts(&cluster, "web", [2, 1, 2, 1]).await;
    cluster.set_ready("web:1", false);
    let name = cluster.pods("web")[0].name_any();
    let pods: Api<Pod> = cluster.api();
    pods.evict(&name, &kube::api::EvictParams::default())
        .await
        .expect("the budget allows it");
    until_counts(&cluster, "web", [1, 1, 2, 0]).await;
    let other = cluster
        .until("a survivor is left", || {
            cluster
                .pods("web")
                .into_iter()
                .find(|pod| mullion_controllers::pods::is_ready(pod))
        })
        .await;
    let refused = pods
        .evict(&other.name_any(), &kube::api::EvictParams::default())
        .await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 429));
    cluster.set_ready("web:1", true);
    let waiting = cluster
        .pods("web")
        .into_iter()
        .find(|pod| pod.name_any() != other.name_any())
        .expect("a replacement");
    cluster
        .delete::<Pod>(&waiting.name_any(), &DeleteParams::default())
        .await;
    until_counts(&cluster, "web", [2, 1, 2, 1]).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_computed_is_not_allowed() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({}), json!([])).await;
    cluster.create(daemon_set("agent", "agent:1")).await;
    cluster
        .until("it runs", || {
            (cluster.pods("agent").len() == 1).then_some(())
        })
        .await;
    cluster
        .create(budget("agent", json!({"maxUnavailable": 1})))
        .await;
    let condition = cluster
        .until("the failure is reported", || {
            status(&cluster, "agent")?.conditions?.first().cloned()
        })
        .await;
    assert_eq!(condition.reason, "SyncFailed");
    assert_eq!(
        condition.message,
        "daemonsets.apps does not implement the scale subresource"
    );
    assert_eq!(
        status(&cluster, "agent").and_then(|status| status.disruptions_allowed),
        Some(0)
    );
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_vanished_node_are_failed_and_removed() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({}), json!([])).await;
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster.rolled_out("web").await;
    let before: Vec<_> = cluster
        .pods("web")
        .iter()
        .map(|pod| pod.name_any())
        .collect();
    cluster.freeze();
    let nodes: Api<Node> = Api::all(cluster.context.client.clone());
    nodes
        .delete("n1", &DeleteParams::default())
        .await
        .expect("it is there");
    cluster.pass(30).await;
    assert!(before.iter().all(|name| {
        cluster
            .context
            .informers
            .pods
            .get("default", name)
            .is_some()
    }));
    cluster
        .until("they are gone", || {
            let left = |name: &String| {
                cluster
                    .context
                    .informers
                    .pods
                    .get("default", name)
                    .is_some()
            };
            (!before.iter().any(left)).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_disruption_that_was_announced_but_did_not_come_is_taken_back() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 1, "web:1")).await;
    cluster.rolled_out("web").await;
    let name = cluster.pods("web")[0].name_any();
    let announced = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": "spared in the end", "lastTransitionTime": cluster.context.now(),
    });
    let patch = kube::api::Patch::Strategic(json!({"status": {"conditions": [announced]}}));
    let pods: Api<Pod> = cluster.api();
    pods.patch_status(&name, &kube::api::PatchParams::default(), &patch)
        .await
        .expect("it is accepted");
    let condition = || {
        let pod = cluster.context.informers.pods.get("default", &name)?;
        mullion_controllers::pods::condition(&pod, "DisruptionTarget").cloned()
    };
    cluster.pass(110).await;
    assert_eq!(condition().expect("it is there").status, "True");
    cluster.pass(20).await;
    let condition = condition().expect("it stays, but is False");
    assert_eq!(
        (condition.status.as_str(), condition.reason),
        ("False", None)
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_a_budgets_pods_is_told() {
    let cluster = Cluster::start().await;
    for name in ["first", "second"] {
        let mut two = budget("bare", json!({"maxUnavailable": 1}));
        two["metadata"]["name"] = json!(name);
        cluster.create(two).await;
    }
    cluster
        .create(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare", "labels": {"app": "bare"}},
            "spec": {"containers": [{"name": "c", "image": "web:1"}]},
        }))
        .await;
    cluster.pass(10).await;
    let told = cluster.events("bare").await;
    let message = r#"Pod "default"/"bare" matches multiple PodDisruptionBudgets.  Chose "first" arbitrarily."#;
    assert!(
        told.contains(&(
            "MultiplePodDisruptionBudgets".to_owned(),
            message.to_owned()
        )),
        "{told:?}"
    );
    let told = cluster.events("first").await;
    let unmanaged = told
        .iter()
        .find(|(reason, _)| reason == "UnmanagedPods")
        .expect("it is told");
    let start = "Pods selected by this PodDisruptionBudget (selector: &LabelSelector{MatchLabels:map[string]string{app: bare,},\
                 MatchExpressions:[]LabelSelectorRequirement{},}) were found to be unmanaged. As a result,";
    assert!(unmanaged.1.starts_with(start), "{}", unmanaged.1);
}
