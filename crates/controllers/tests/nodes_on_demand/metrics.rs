//! Karpenter's metrics over the life of a node.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::json;

use crate::{pools, whole::Whole};

#[tokio::test(start_paused = true)]
async fn the_life_of_a_node_is_counted() {
    let whole = Whole::start().await;
    let spec = json!({
        "limits": { "nodes": "5" },
        "disruption": { "consolidateAfter": "30s", "budgets": [{ "nodes": "2" }] }
    });
    pools::linux_with(&whole, &["m5.large"], &["on-demand"], json!({}), spec).await;
    let requests = json!({ "cpu": "500m" });
    let pod = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": requests } }]
    });
    whole.deployment("web", 1, pod).await;
    whole.until_running("web", 1).await;
    whole.pass(20).await;
    let shows = |lines: &[&str]| {
        let text = whole.karpenter.metrics_text();
        for line in lines {
            assert!(text.lines().any(|own| own == *line), "{line}\n{text}");
        }
    };
    shows(&[
        "# TYPE karpenter_nodeclaims_created_total counter",
        "karpenter_nodeclaims_created_total{min_values_relaxed=\"false\",nodepool=\"linux\",reason=\"provisioned\"} 1",
        "karpenter_nodepools_limit{nodepool=\"linux\",resource_type=\"nodes\"} 5",
        "karpenter_nodepools_usage{nodepool=\"linux\",resource_type=\"nodes\"} 1",
        "karpenter_nodepools_usage{nodepool=\"linux\",resource_type=\"cpu\"} 2",
        "karpenter_nodepools_allowed_disruptions{nodepool=\"linux\",reason=\"Empty\"} 2",
        "karpenter_nodepools_nodes_consuming_budgets{nodepool=\"linux\",reason=\"Drifted\"} 0",
        "karpenter_voluntary_disruption_eligible_nodes{reason=\"empty\"} 0",
    ]);
    let deployments: Api<Deployment> = Api::namespaced(whole.context.client.clone(), "default");
    whole.delete(deployments, "web").await;
    whole
        .until("the node is gone", || {
            whole.claims().is_empty().then_some(())
        })
        .await;
    let zone = "us-west-2";
    let text = whole.karpenter.metrics_text();
    let ended = format!(
        "karpenter_nodeclaims_terminated_total{{capacity_type=\"on-demand\",nodepool=\"linux\",zone=\"{zone}"
    );
    assert!(text.lines().any(|own| own.starts_with(&ended)), "{text}");
    shows(&[
        "karpenter_nodeclaims_disrupted_total{capacity_type=\"on-demand\",\
         consolidation_policy=\"when_empty_or_underutilized\",nodepool=\"linux\",reason=\"empty\",\
         termination_mode=\"graceful\"} 1",
        "karpenter_voluntary_disruption_decisions_total{consolidation_type=\"empty\",decision=\"delete\",reason=\"empty\"} 1",
        "karpenter_voluntary_disruption_decisions_by_nodepool_total{consolidation_type=\"empty\",decision=\"delete\",\
         nodepool=\"linux\",reason=\"empty\"} 1",
    ]);
}
