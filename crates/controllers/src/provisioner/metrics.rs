//! Karpenter's metrics: what was ordered, disrupted and ended, and what pools have, by Karpenter's names, labels and help texts.
//!
//! Invariant: counters only grow while the process lives. What objects say at this moment (limits, usage) is read from them when it is asked for.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mullion_api::{
    karpenter::{ConsolidationPolicy, NodeClaim, NodePool},
    labels,
};

use super::market::amounts;

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Claims that were created.
    Created,
    /// Claims that were disrupted.
    Disrupted,
    /// Claims that have ended.
    Terminated,
    /// How many nodes of a pool may be disrupted at a time.
    AllowedDisruptions,
    /// How many nodes of a pool its budgets count.
    NodesConsumingBudgets,
    /// What pools may have.
    Limit,
    /// What pools have.
    Usage,
    /// Commands of the disruption controller.
    Decisions,
    /// The same by pool.
    DecisionsByPool,
    /// Nodes that a method may disrupt.
    Eligible,
    /// Commands whose replacements failed.
    QueueFailures,
    /// Messages about instances that were received.
    ReceivedMessages,
    /// Messages about instances that were dealt with.
    DeletedMessages,
    /// Failing checks of instances.
    UnhealthyStatus,
}

impl Metric {
    /// Name without the prefix `karpenter_`, type and help text.
    fn describe(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Created => (
                "nodeclaims_created_total",
                "counter",
                "Number of nodeclaims created in total by Karpenter. Labeled by reason the nodeclaim was created, the owning nodepool, and if min \
                 values was relaxed for this nodeclaim.",
            ),
            Self::Disrupted => (
                "nodeclaims_disrupted_total",
                "counter",
                "Number of nodeclaims disrupted in total by Karpenter. Labeled by reason the nodeclaim was disrupted, the owning nodepool, the \
                 capacity type, the consolidation policy, and the termination mode.",
            ),
            Self::Terminated => (
                "nodeclaims_terminated_total",
                "counter",
                "Number of nodeclaims terminated in total by Karpenter. Labeled by the owning nodepool, capacity type, and zone.",
            ),
            Self::AllowedDisruptions => (
                "nodepools_allowed_disruptions",
                "gauge",
                "The number of nodes for a given NodePool that can be concurrently disrupting at a point in time. Labeled by NodePool. Note that \
                 allowed disruptions can change very rapidly, as new nodes may be created and others may be deleted at any point.",
            ),
            Self::NodesConsumingBudgets => (
                "nodepools_nodes_consuming_budgets",
                "gauge",
                "The number of nodes consuming the budget of a nodepool at a point in time. Labeled by NodePool.",
            ),
            Self::Limit => (
                "nodepools_limit",
                "gauge",
                "Limits specified on the nodepool that restrict the quantity of resources provisioned. Labeled by nodepool name and resource type.",
            ),
            Self::Usage => (
                "nodepools_usage",
                "gauge",
                "The amount of resources that have been provisioned for a nodepool. Labeled by nodepool name and resource type.",
            ),
            Self::Decisions => (
                "voluntary_disruption_decisions_total",
                "counter",
                "Number of disruption decisions performed. Labeled by disruption decision, reason, and consolidation type.",
            ),
            Self::DecisionsByPool => (
                "voluntary_disruption_decisions_by_nodepool_total",
                "counter",
                "Number of disruption decisions performed by nodepool. Labeled by nodepool name, disruption decision, reason, and consolidation type.",
            ),
            Self::Eligible => (
                "voluntary_disruption_eligible_nodes",
                "gauge",
                "Number of nodes eligible for disruption by Karpenter. Labeled by disruption reason.",
            ),
            Self::QueueFailures => (
                "voluntary_disruption_queue_failures_total",
                "counter",
                "The number of times that an enqueued disruption decision failed. Labeled by disruption method.",
            ),
            Self::ReceivedMessages => (
                "interruption_received_messages_total",
                "counter",
                "Count of messages received from the SQS queue. Broken down by message type and whether the message was actionable.",
            ),
            Self::DeletedMessages => (
                "interruption_deleted_messages_total",
                "counter",
                "Count of messages deleted from the SQS queue.",
            ),
            Self::UnhealthyStatus => (
                "interruption_instance_status_unhealthy_total",
                "counter",
                "Count of unique unhealthy instance statuses detected from EC2 DescribeInstanceStatus. Broken down by status check category.",
            ),
        }
    }
}

/// Labels as Prometheus writes them, sorted by name.
type Series = String;
type Values = BTreeMap<Metric, BTreeMap<Series, f64>>;

/// What is counted. Cheap to clone; all clones show the same.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<Values>>);

impl Metrics {
    /// Adds one to a counter.
    pub fn count(&self, metric: Metric, labels: &[(&str, &str)]) {
        *self
            .lock()
            .entry(metric)
            .or_default()
            .entry(series(labels))
            .or_default() += 1.0;
    }

    /// Sets a gauge.
    pub fn set(&self, metric: Metric, labels: &[(&str, &str)], value: usize) {
        let value = value as f64;
        self.lock()
            .entry(metric)
            .or_default()
            .insert(series(labels), value);
    }

    /// Forgets the values of a gauge, so that what is gone is not shown.
    pub fn clear(&self, metric: Metric) {
        self.lock().remove(&metric);
    }

    /// Counts a claim as disrupted. `policy` is its pool's, if consolidation disrupts it.
    pub fn disrupted(&self, claim: &NodeClaim, policy: Option<ConsolidationPolicy>, reason: &str) {
        let policy = policy.map_or("", policy_name);
        self.count(
            Metric::Disrupted,
            &[
                ("reason", reason),
                ("nodepool", claim.node_pool().unwrap_or_default()),
                (
                    "capacity_type",
                    claim.label(labels::CAPACITY_TYPE).unwrap_or_default(),
                ),
                ("consolidation_policy", policy),
                ("termination_mode", termination_mode(claim)),
            ],
        );
    }

    /// Counts a claim as ended.
    pub fn terminated(&self, claim: &NodeClaim) {
        self.count(
            Metric::Terminated,
            &[
                ("nodepool", claim.node_pool().unwrap_or_default()),
                (
                    "capacity_type",
                    claim.label(labels::CAPACITY_TYPE).unwrap_or_default(),
                ),
                ("zone", claim.label(labels::ZONE).unwrap_or_default()),
            ],
        );
    }

    /// Returns everything in the text format of Prometheus, with what these pools may have and have.
    pub fn text<'a>(&self, pools: impl Iterator<Item = &'a NodePool>) -> String {
        let mut values = self.lock().clone();
        for pool in pools {
            of_pool(&mut values, pool);
        }
        let mut text = String::new();
        for (metric, lines) in values.iter().filter(|(_, lines)| !lines.is_empty()) {
            let (name, kind, help) = metric.describe();
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "# HELP karpenter_{name} {help}\n# TYPE karpenter_{name} {kind}"
            );
            for (series, value) in lines {
                let _ = match series.is_empty() {
                    true => writeln!(text, "karpenter_{name} {value}"),
                    false => writeln!(text, "karpenter_{name}{{{series}}} {value}"),
                };
            }
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn series(labels: &[(&str, &str)]) -> Series {
    let mut labels: Vec<_> = labels.to_vec();
    labels.sort_unstable();
    let escaped = |value: &str| {
        value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    };
    let labels = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    labels.collect::<Vec<_>>().join(",")
}

/// What a pool may have and has, resource by resource: whole units, cores for cpu.
fn of_pool(values: &mut Values, pool: &NodePool) {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let limits = pool.spec.limits.as_ref();
    let usage = pool.status.as_ref().map(|status| &status.resources);
    for (metric, list) in [(Metric::Limit, limits), (Metric::Usage, usage)] {
        for (resource, amount) in list.map(amounts).unwrap_or_default() {
            let kind = resource.to_lowercase().replace('-', "_");
            let value = match resource == labels::CPU {
                true => amount.milli_value() as f64 / 1000.0,
                false => amount.value() as f64,
            };
            let series = series(&[("resource_type", &kind), ("nodepool", name)]);
            values.entry(metric).or_default().insert(series, value);
        }
    }
}

fn policy_name(policy: ConsolidationPolicy) -> &'static str {
    match policy {
        ConsolidationPolicy::WhenEmpty => "when_empty",
        ConsolidationPolicy::WhenEmptyOrUnderutilized => "when_empty_or_underutilized",
        ConsolidationPolicy::Balanced => "balanced",
    }
}

/// How far pods are protected from the end of their node: as long as they are there, for a time, or not at all.
fn termination_mode(claim: &NodeClaim) -> &'static str {
    let Some(grace) = &claim.spec.termination_grace_period else {
        return "graceful";
    };
    match grace.duration() {
        Some(grace) if grace.is_zero() => "forceful",
        _ => "eventual",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counters_and_what_pools_have_are_written_as_prometheus_reads_them() {
        let metrics = Metrics::default();
        let claim: NodeClaim = serde_json::from_value(json!({
            "metadata": { "name": "c", "labels": {
                "karpenter.sh/nodepool": "web", "karpenter.sh/capacity-type": "spot", "topology.kubernetes.io/zone": "a"
            }},
            "spec": {
                "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [],
                "terminationGracePeriod": "30s"
            }
        }))
        .expect("a claim");
        metrics.disrupted(&claim, Some(ConsolidationPolicy::Balanced), "underutilized");
        metrics.disrupted(&claim, None, "expired");
        metrics.disrupted(&claim, None, "expired");
        metrics.terminated(&claim);
        metrics.count(Metric::DeletedMessages, &[]);
        let pool: NodePool = serde_json::from_value(json!({
            "metadata": { "name": "web" },
            "spec": {
                "limits": { "cpu": "1500m", "ephemeral-storage": "1Ki" },
                "template": { "spec": {
                    "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": []
                }}
            },
            "status": { "resources": { "nodes": "2" } }
        }))
        .expect("a pool");
        let text = metrics.text(std::iter::once(&pool));
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "karpenter_nodeclaims_disrupted_total{capacity_type=\"spot\",consolidation_policy=\"\",nodepool=\"web\",\
             reason=\"expired\",termination_mode=\"eventual\"} 2",
            "karpenter_nodeclaims_disrupted_total{capacity_type=\"spot\",consolidation_policy=\"balanced\",nodepool=\"web\",\
             reason=\"underutilized\",termination_mode=\"eventual\"} 1",
            "karpenter_nodeclaims_terminated_total{capacity_type=\"spot\",nodepool=\"web\",zone=\"a\"} 1",
            "karpenter_nodepools_limit{nodepool=\"web\",resource_type=\"cpu\"} 1.5",
            "karpenter_nodepools_limit{nodepool=\"web\",resource_type=\"ephemeral_storage\"} 1024",
            "karpenter_nodepools_usage{nodepool=\"web\",resource_type=\"nodes\"} 2",
            "karpenter_interruption_deleted_messages_total 1",
        ];
        assert_eq!(lines, expected);
        assert!(text.contains("# TYPE karpenter_nodepools_limit gauge\n"));
    }
}
