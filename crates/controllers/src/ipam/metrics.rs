//! The metrics of this controller: addresses by node and state, calls by kind and result, and waiting pods.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mullion_cloud::AddressError;
use mullion_engine::ip::{Counts, Interface};
use tokio::time::Instant;

/// The counters of the controller. Cheap to clone; all clones share the same counters.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// The numbers of each node, with the time at which they were taken.
    nodes: BTreeMap<String, (NodeNumbers, Option<Instant>)>,
    calls: BTreeMap<(&'static str, String), u64>,
}

/// A snapshot of the metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsSnapshot {
    /// The numbers by node.
    pub nodes: BTreeMap<String, NodeNumbers>,
    /// The number of finished calls to EC2 by kind and result: `success` or the code of EC2's error.
    pub calls: BTreeMap<(&'static str, String), u64>,
}

/// The numbers of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeNumbers {
    /// The number of addresses by state.
    pub addresses: Counts,
    /// The number of waiting pods.
    pub waiting: usize,
    /// How long the first of them has waited, in milliseconds.
    pub longest_wait_ms: u64,
}

impl Metrics {
    /// Returns a snapshot of the metrics.
    pub fn numbers(&self) -> MetricsSnapshot {
        let all = self.lock();
        let nodes = all.nodes.iter().map(|(name, (numbers, at))| {
            let mut numbers = *numbers;
            let since = at.filter(|_| numbers.waiting > 0).map(|at| at.elapsed());
            let since = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
            // The pod has gone on waiting since the numbers were taken.
            numbers.longest_wait_ms += since;
            (name.clone(), numbers)
        });
        MetricsSnapshot {
            nodes: nodes.collect(),
            calls: all.calls.clone(),
        }
    }

    pub(super) fn node(&self, name: &str, interface: &Interface) {
        let waits = interface.waiting().map(|pod| interface.waited_ms(pod));
        let numbers = NodeNumbers {
            addresses: interface.counts(),
            waiting: interface.waiting().len(),
            longest_wait_ms: waits.max().unwrap_or(0),
        };
        let (numbers, mut all) = ((numbers, Some(Instant::now())), self.lock());
        match all.nodes.get_mut(name) {
            Some(node) => *node = numbers,
            None => drop(all.nodes.insert(name.to_owned(), numbers)),
        }
    }

    pub(super) fn node_is_gone(&self, name: &str) {
        self.lock().nodes.remove(name);
    }

    pub(super) fn called<T>(&self, kind: &'static str, ended: &Result<T, AddressError>) {
        let result = match ended {
            Ok(_) => "success".to_owned(),
            Err(error) => {
                let text = error.to_string();
                // Only the code: messages contain ids, and each would become a time series of its own.
                let code = text.split(':').next().unwrap_or_default();
                code.to_owned()
            }
        };
        *self.lock().calls.entry((kind, result)).or_default() += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetricsSnapshot {
    /// Formats the snapshot in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, lines: Vec<(String, String)>| {
            if lines.is_empty() {
                return;
            }
            text +=
                &format!("# HELP mullion_ipam_{name} {help}\n# TYPE mullion_ipam_{name} {kind}\n");
            for (labels, value) in lines {
                text += &format!("mullion_ipam_{name}{{{labels}}} {value}\n");
            }
        };
        let by_state = self.nodes.iter().flat_map(|(node, numbers)| {
            let counts = &numbers.addresses;
            let states = [
                ("used", counts.used),
                ("warm", counts.warm),
                ("cooling", counts.cooling),
                ("creating", counts.creating),
                ("deleting", counts.deleting),
            ];
            states.map(|(state, count)| {
                (
                    format!("node=\"{node}\",state=\"{state}\""),
                    count.to_string(),
                )
            })
        });
        let help = "Addresses on the interfaces of Windows nodes by state.";
        family("addresses", "gauge", help, by_state.collect());
        let of_nodes = |value: fn(&NodeNumbers) -> String| {
            let nodes = self.nodes.iter();
            let lines = nodes.map(|(node, numbers)| (format!("node=\"{node}\""), value(numbers)));
            lines.collect::<Vec<_>>()
        };
        let waiting = of_nodes(|numbers| numbers.waiting.to_string());
        let help = "Windows pods that wait for an address.";
        family("waiting_pods", "gauge", help, waiting);
        let longest = of_nodes(|numbers| (numbers.longest_wait_ms as f64 / 1000.0).to_string());
        let help = "How long the pod that waits longest has waited for an address.";
        family("longest_wait_seconds", "gauge", help, longest);
        let calls = self.calls.iter().map(|((kind, result), count)| {
            (
                format!("kind=\"{kind}\",result=\"{result}\""),
                count.to_string(),
            )
        });
        let help = "Calls to EC2 about addresses that ended, by the code of EC2's error.";
        family("calls_total", "counter", help, calls.collect());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_kind_and_by_the_code_of_their_error() {
        let metrics = Metrics::default();
        metrics.called("assign", &Ok(()));
        metrics.called::<()>("assign", &Err(AddressError::NoPrefix));
        metrics.called::<()>("assign", &Err(AddressError::NoPrefix));
        let text = metrics.numbers().text();
        assert_eq!(
            text,
            "# HELP mullion_ipam_calls_total Calls to EC2 about addresses that ended, by the code of EC2's error.\n\
             # TYPE mullion_ipam_calls_total counter\n\
             mullion_ipam_calls_total{kind=\"assign\",result=\"InsufficientCidrBlocks\"} 2\n\
             mullion_ipam_calls_total{kind=\"assign\",result=\"success\"} 1\n"
        );
    }
}
