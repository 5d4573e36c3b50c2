//! Metrics over the life of a node, held against `docs/metrics.md`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt};
use mullion_api::labels;
use mullion_cloud::instance_id;
use serde_json::json;

use crate::{pools, whole::Whole};

const DOCS: &str = include_str!("../../../../docs/metrics.md");

/// What the page says of metrics: type and labels by name.
fn documented() -> BTreeMap<&'static str, (&'static str, BTreeSet<String>)> {
    let rows = DOCS.lines().filter(|line| {
        ["| `karpenter_", "| `mullion_"]
            .iter()
            .any(|own| line.starts_with(own))
    });
    let read = |line: &'static str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let mut cell = || cells.next().expect("a cell");
        let (name, kind, own) = (cell().trim_matches('`'), cell(), cell());
        let own = own.split(", ").filter(|own| !own.is_empty());
        let mut names = BTreeSet::new();
        for label in own {
            match label {
                "those of nodes" => names.extend(labels::WELL_KNOWN.iter().map(|key| {
                    let (_, name) = key.split_once('/').expect("a key with a prefix");
                    name.replace('-', "_")
                })),
                label => drop(names.insert(label.trim_matches('`').to_owned())),
            }
        }
        (name, (kind, names))
    };
    rows.map(read).collect()
}

/// Names of a sample's labels, those aside by which a distribution is split.
fn labels_of(sample: &str) -> BTreeSet<String> {
    let Some((_, rest)) = sample.split_once('{') else {
        return BTreeSet::new();
    };
    // No value of these tests has a quote or a comma in it.
    let (own, _) = rest.rsplit_once('}').expect("an end");
    let names = own.split(',').filter_map(|label| label.split_once('='));
    let names = names.map(|(name, _)| name.to_owned());
    names
        .filter(|name| !["le", "quantile"].contains(&name.as_str()))
        .collect()
}

/// Fails unless the page says of every metric that is served what it is.
fn assert_documented(text: &str) -> BTreeSet<String> {
    let documented = documented();
    let mut served = BTreeSet::new();
    let mut family = "";
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            let said = documented.get(name).map(|(kind, _)| *kind);
            assert_eq!(said, Some(kind), "{name}");
            served.insert(name.to_owned());
            family = name;
        } else if !line.starts_with('#') {
            assert!(line.starts_with(family), "{line}");
            assert_eq!(labels_of(line), documented[family].1, "{line}");
        }
    }
    served
}

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
        "karpenter_nodepools_cost_total{nodepool=\"linux\"} 0.098191",
        "karpenter_scheduler_unschedulable_pods_count{controller=\"provisioner\"} 0",
        "karpenter_scheduler_ignored_pods_count 0",
        "karpenter_scheduler_scheduling_duration_seconds_bucket{controller=\"provisioner\",le=\"+Inf\"} 1",
        "karpenter_cluster_state_node_count 2",
        "karpenter_cluster_state_synced 1",
        "karpenter_cloudprovider_instance_type_cpu_cores{instance_type=\"m5.large\"} 2",
        "karpenter_cloudprovider_instance_type_memory_bytes{instance_type=\"m5.large\"} 8589934592",
        "karpenter_cloudprovider_instance_type_offering_available{capacity_type=\"on-demand\",instance_type=\"m5.large\",zone=\"us-west-2a\"} 1",
        "karpenter_cloudprovider_instance_type_offering_available{capacity_type=\"reserved\",instance_type=\"m5.large\",zone=\"us-west-2a\"} 0",
        "karpenter_cloudprovider_instance_type_offering_price_estimate{capacity_type=\"on-demand\",instance_type=\"m5.large\",zone=\"us-west-2a\"} 0.096",
        "karpenter_pods_bound_duration_seconds_count 1",
        "karpenter_pods_startup_duration_seconds_count 1",
        "karpenter_pods_scheduling_decision_duration_seconds_bucket{le=\"2\"} 1",
        "karpenter_pods_provisioning_bound_duration_seconds_bucket{le=\"40\"} 0",
        "karpenter_pods_provisioning_bound_duration_seconds_bucket{le=\"120\"} 1",
        "karpenter_pods_provisioning_startup_duration_seconds_count 1",
        "karpenter_voluntary_disruption_consolidation_timeouts_total{consolidation_type=\"multi\"} 0",
        "mullion_plan_price_usd_per_hour 0.098191",
        "mullion_plan_gap_percent 0",
    ]);
    let lives = assert_documented(&whole.karpenter.metrics_text());
    assert!(lives.contains("karpenter_nodes_allocatable"));
    let name = whole.bought()[0].name_any();
    let text = whole.karpenter.metrics_text();
    let of_node = |metric: &str, resource: &str| {
        let own = [
            format!("node_name=\"{name}\""),
            format!("resource_type=\"{resource}\""),
        ];
        let prefix = format!("{metric}{{");
        let mut found = text.lines().filter(|line| {
            line.starts_with(&prefix) && own.iter().all(|label| line.contains(label.as_str()))
        });
        let line = found
            .next()
            .unwrap_or_else(|| panic!("{metric} {resource}\n{text}"));
        let (_, value) = line.rsplit_once(' ').expect("a value");
        value.parse::<f64>().expect("a number")
    };
    assert_eq!(of_node("karpenter_nodes_allocatable", "cpu"), 1.93);
    assert_eq!(of_node("karpenter_nodes_system_overhead", "cpu"), 0.07);
    assert_eq!(of_node("karpenter_nodes_total_pod_requests", "cpu"), 0.5);
    assert_eq!(of_node("karpenter_nodes_total_pod_requests", "pods"), 1.0);
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
        "karpenter_nodes_drained_total{nodepool=\"linux\"} 1",
        "karpenter_nodes_lifetime_duration_seconds_bucket{nodepool=\"linux\",le=\"900\"} 1",
        "karpenter_nodes_termination_duration_seconds_count{nodepool=\"linux\"} 1",
        "karpenter_nodeclaims_termination_duration_seconds_count{nodepool=\"linux\"} 1",
        "karpenter_nodeclaims_instance_termination_duration_seconds_count{nodepool=\"linux\"} 1",
    ]);
    let ended = assert_documented(&whole.karpenter.metrics_text());
    let first = [
        "karpenter_nodes_created_total",
        "karpenter_nodes_terminated_total",
    ];
    assert!(first.iter().all(|own| ended.contains(*own)), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_that_leave_a_node_and_messages_about_it_are_counted() {
    let whole = Whole::start().await;
    pools::linux(&whole, &["m5.large"], &["spot"], json!({})).await;
    let pod = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx" }]
    });
    whole.deployment("web", 2, pod).await;
    whole.until_running("web", 2).await;
    let node = whole.bought()[0].clone();
    let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
    let id = id.as_deref().and_then(instance_id).expect("an instance");
    whole.ec2.interrupt(&id);
    whole
        .until("the node is replaced", || {
            let nodes = whole.bought();
            (nodes.len() == 1 && nodes[0].name_any() != node.name_any()).then_some(())
        })
        .await;
    let text = whole.karpenter.metrics_text();
    assert_documented(&text);
    for line in [
        "karpenter_pods_eviction_requests_total{code=\"200\"} 2",
        "karpenter_pods_drained_total{reason=\"Forceful Termination\"} 2",
        "karpenter_pods_disruption_initiated_total{capacity_type=\"spot\",consolidation_policy=\"\",nodepool=\"linux\",\
         reason=\"spot_interrupted\",termination_mode=\"graceful\"} 2",
        "karpenter_nodes_created_total{nodepool=\"linux\",zone=\"us-west-2b\"} 1",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}\n{text}");
    }
    let age = "karpenter_interruption_message_queue_duration_seconds_bucket{le=\"30\"}";
    assert!(text.lines().any(|own| own.starts_with(age)), "{text}");
}

#[tokio::test(start_paused = true)]
async fn what_the_cloud_refuses_is_counted_by_zone() {
    let whole = Whole::start().await;
    whole
        .ec2
        .exhaust("m5.large/*/spot".parse().expect("a pattern"));
    let types = ["m5.large", "m5.xlarge"];
    pools::linux(&whole, &types, &["spot"], json!({})).await;
    let pod = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx" }]
    });
    whole.deployment("web", 1, pod).await;
    whole.until_running("web", 1).await;
    let text = whole.karpenter.metrics_text();
    let failures: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("karpenter_cloudprovider_instance_launch_failures_total{"))
        .collect();
    assert!(!failures.is_empty(), "{text}");
    for line in failures {
        let labels = "{capacity_type=\"spot\",reason=\"LaunchFailed\",zone=\"us-west-2";
        assert!(
            line.contains(labels) && line.contains(",zone_id=\"usw2-az"),
            "{line}"
        );
    }
    let sold_out = "karpenter_cloudprovider_instance_type_offering_available{capacity_type=\"spot\",instance_type=\"m5.large\",zone=\"";
    let mut available = text.lines().filter(|line| line.starts_with(sold_out));
    assert!(available.any(|line| line.ends_with(" 0")), "{text}");
    assert_documented(&text);
}
