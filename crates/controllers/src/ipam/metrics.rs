//! The numbers of this controller: addresses by node and state, calls by kind and result, and pods that wait.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mullion_cloud::AddressError;
use mullion_engine::ip::{Counts, Interface};

/// What the controller counts. Cheap to clone; all clones show the same.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<Numbers>>);

/// The numbers at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers {
    /// By node.
    pub nodes: BTreeMap<String, NodeNumbers>,
    /// Calls to EC2 that ended, by kind and result: `success` or the code of EC2's error.
    pub calls: BTreeMap<(&'static str, String), u64>,
}

/// The numbers of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeNumbers {
    /// Addresses by state.
    pub addresses: Counts,
    /// Pods that wait.
    pub waiting: usize,
    /// For how long the first of them has waited, in milliseconds.
    pub longest_wait_ms: u64,
}

impl Metrics {
    /// Returns the numbers.
    pub fn numbers(&self) -> Numbers {
        self.lock().clone()
    }

    pub(super) fn node(&self, name: &str, interface: &Interface) {
        let waits = interface.waiting().map(|pod| interface.waited_ms(pod));
        let numbers = NodeNumbers {
            addresses: interface.counts(),
            waiting: interface.waiting().len(),
            longest_wait_ms: waits.max().unwrap_or(0),
        };
        let mut all = self.lock();
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
                let code = text.split(':').next().unwrap_or_default();
                code.to_owned()
            }
        };
        *self.lock().calls.entry((kind, result)).or_default() += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Numbers {
    /// Returns the numbers in the text format of Prometheus.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, labels: &str, value: u64| {
            text += &format!("mullion_ipam_{name}{{{labels}}} {value}\n");
        };
        for (node, numbers) in &self.nodes {
            let counts = &numbers.addresses;
            let states = [
                ("used", counts.used),
                ("warm", counts.warm),
                ("cooling", counts.cooling),
                ("creating", counts.creating),
                ("deleting", counts.deleting),
            ];
            for (state, count) in states {
                let labels = format!("node=\"{node}\",state=\"{state}\"");
                line("addresses", &labels, count as u64);
            }
            let labels = format!("node=\"{node}\"");
            line("waiting_pods", &labels, numbers.waiting as u64);
            line(
                "longest_wait_milliseconds",
                &labels,
                numbers.longest_wait_ms,
            );
        }
        for ((kind, result), count) in &self.calls {
            let labels = format!("kind=\"{kind}\",result=\"{result}\"");
            line("calls_total", &labels, *count);
        }
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
            "mullion_ipam_calls_total{kind=\"assign\",result=\"InsufficientCidrBlocks\"} 2\n\
             mullion_ipam_calls_total{kind=\"assign\",result=\"success\"} 1\n"
        );
    }
}
