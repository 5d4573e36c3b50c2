//! Karpenter's metrics under Karpenter's names, labels and help texts, and a few of ours ([`table`]): NodeClaims
//! created, disrupted and terminated, durations, and the state of pools, nodes and pods.
//!
//! Invariant: counters only grow while the process lives. Metrics about the present state of objects ([`objects`]) are
//! computed from the objects when the metrics are read.

mod distribution;
mod objects;
mod offers;
mod pods;
mod table;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mullion_api::{
    karpenter::{ConsolidationPolicy, NodeClaim},
    labels,
};
use tokio::time::Instant;

use distribution::Distribution;
pub(super) use objects::now;
pub(super) use offers::Markets;
pub(super) use pods::{Waiting, watch};
pub use table::{Description, Kind, Metric};

/// Labels as Prometheus writes them, sorted by name.
type Series = String;
/// Numbers by metric and labels.
pub(super) type Numbers = BTreeMap<Metric, BTreeMap<Series, f64>>;

#[derive(Debug, Default)]
struct Values {
    numbers: Numbers,
    distributions: BTreeMap<Metric, BTreeMap<Series, Distribution>>,
}

/// The counted values. Cheap to clone; all clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    values: Arc<Mutex<Values>>,
    /// Pods that were seen pending and are not ready yet.
    pub(super) waiting: Waiting,
    /// The offers of each class that a plan read last.
    pub(super) markets: Markets,
}

impl Metrics {
    /// Adds one to a counter.
    pub fn count(&self, metric: Metric, labels: &[(&str, &str)]) {
        self.add(metric, labels, 1.0);
    }

    /// Adds to a counter.
    pub fn add(&self, metric: Metric, labels: &[(&str, &str)], amount: f64) {
        *self
            .lock()
            .numbers
            .entry(metric)
            .or_default()
            .entry(series(labels))
            .or_default() += amount;
    }

    /// Sets a gauge.
    pub fn set(&self, metric: Metric, labels: &[(&str, &str)], value: f64) {
        self.lock()
            .numbers
            .entry(metric)
            .or_default()
            .insert(series(labels), value);
    }

    /// Adds a value to a histogram or summary, such as a duration in seconds. A negative value counts as zero; it comes
    /// from clocks that differ.
    pub fn observe(&self, metric: Metric, labels: &[(&str, &str)], value: f64) {
        let kind = metric.describe().kind;
        self.lock()
            .distributions
            .entry(metric)
            .or_default()
            .entry(series(labels))
            .or_default()
            .add(kind, value.max(0.0), Instant::now());
    }

    /// Removes all series of a gauge, so that objects that no longer exist are not reported.
    pub fn clear(&self, metric: Metric) {
        self.lock().numbers.remove(&metric);
    }

    /// Counts a claim as disrupted, and the number of its node's pods that must be rescheduled. `policy` is the pool's
    /// consolidation policy if consolidation is the reason.
    pub fn disrupted(
        &self,
        claim: &NodeClaim,
        policy: Option<ConsolidationPolicy>,
        reason: &str,
        pods: usize,
    ) {
        let policy = policy.map_or("", policy_name);
        let labels = [
            ("reason", reason),
            ("nodepool", claim.node_pool().unwrap_or_default()),
            (
                "capacity_type",
                claim.label(labels::CAPACITY_TYPE).unwrap_or_default(),
            ),
            ("consolidation_policy", policy),
            ("termination_mode", termination_mode(claim)),
        ];
        self.count(Metric::Disrupted, &labels);
        if pods > 0 {
            self.add(Metric::PodsDisrupted, &labels, pods as f64);
        }
    }

    /// Counts a claim as terminated.
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

    /// Returns all metrics in Prometheus' text format, including those in `now`, which were just computed from objects.
    pub(super) fn text(&self, now: Numbers) -> String {
        let values = self.lock();
        let none = BTreeMap::new();
        let mut text = String::new();
        for metric in Metric::ALL {
            let counted = values.numbers.get(&metric).unwrap_or(&none);
            let seen = now.get(&metric).unwrap_or(&none);
            let distributions = values.distributions.get(&metric);
            if counted.is_empty() && seen.is_empty() && distributions.is_none() {
                continue;
            }
            let Description {
                name, kind, help, ..
            } = metric.describe();
            let name = format!("{}{name}", metric.prefix());
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "# HELP {name} {help}\n# TYPE {name} {}",
                kind.as_str()
            );
            for (series, value) in counted.iter().chain(seen) {
                let _ = if series.is_empty() {
                    writeln!(text, "{name} {value}")
                } else {
                    writeln!(text, "{name}{{{series}}} {value}")
                };
            }
            for (series, distribution) in distributions.into_iter().flatten() {
                distribution.write(&mut text, &name, kind, series, Instant::now());
            }
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn series(labels: &[(&str, &str)]) -> Series {
    let mut labels: Vec<_> = labels.to_vec();
    // Equal labels must give one series, whatever their order in the call.
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

fn policy_name(policy: ConsolidationPolicy) -> &'static str {
    match policy {
        ConsolidationPolicy::WhenEmpty => "when_empty",
        ConsolidationPolicy::WhenEmptyOrUnderutilized => "when_empty_or_underutilized",
        ConsolidationPolicy::Balanced => "balanced",
    }
}

/// Returns Karpenter's termination mode of a claim: whether its pods are waited for without limit, for a time, or not
/// at all.
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
    use std::collections::BTreeSet;

    use mullion_api::karpenter::NodePool;
    use serde_json::json;

    use super::*;

    const DOCS: &str = include_str!("../../../../../docs/metrics.md");

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
        let balanced = Some(ConsolidationPolicy::Balanced);
        metrics.disrupted(&claim, balanced, "underutilized", 3);
        metrics.disrupted(&claim, None, "expired", 0);
        metrics.disrupted(&claim, None, "expired", 0);
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
        let mut now = Numbers::new();
        objects::of_pool(&mut now, &pool);
        let text = metrics.text(now);
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
            "karpenter_pods_disruption_initiated_total{capacity_type=\"spot\",consolidation_policy=\"balanced\",nodepool=\"web\",\
             reason=\"underutilized\",termination_mode=\"eventual\"} 3",
            "karpenter_interruption_deleted_messages_total 1",
        ];
        assert_eq!(lines, expected);
        assert!(text.contains("# TYPE karpenter_nodepools_limit gauge\n"));
    }

    #[test]
    fn the_page_lists_every_metric_with_its_type_and_labels_and_no_other() {
        let mut listed = BTreeSet::new();
        for line in DOCS
            .lines()
            .filter(|line| line.starts_with("| `karpenter_") || line.starts_with("| `mullion_"))
        {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [name, kind, labels, meaning] = cells[..] else {
                panic!("four cells: {line}");
            };
            assert!(!meaning.is_empty(), "{line}");
            listed.insert((name.to_owned(), kind.to_owned(), labels.to_owned()));
        }
        let described = |metric: Metric| {
            let own = metric.describe();
            let mut labels: Vec<_> = own.labels.iter().map(|own| format!("`{own}`")).collect();
            if metric.is_of_node() {
                labels.push("those of nodes".to_owned());
            }
            let name = format!("`{}{}`", metric.prefix(), own.name);
            (name, own.kind.as_str().to_owned(), labels.join(", "))
        };
        let described: BTreeSet<_> = Metric::ALL.into_iter().map(described).collect();
        assert_eq!(listed, described);
    }

    #[test]
    fn every_metric_stands_in_its_place() {
        assert!(Metric::ALL.is_sorted());
        for metric in Metric::ALL {
            let own = metric.describe();
            assert!(own.labels.is_sorted(), "{}", own.name);
            let is_counter = own.kind == Kind::Counter;
            let gauge = metric == Metric::Cost;
            assert_eq!(own.name.ends_with("_total"), is_counter || gauge);
        }
    }
}
