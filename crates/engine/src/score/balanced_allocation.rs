//! kube-scheduler: NodeResourcesBalancedAllocation. The score tells whether the pod makes the use of cpu and memory
//! (or of the profile's resources) more even.
//!
//! 75 means no change, 50 is the worst score and 100 the best. The score uses real requests: a container without
//! requests adds nothing.

use crate::class::Shape;
use crate::cluster::Node;
use crate::intern::Symbol;
use crate::profile::Rules;
use crate::score::resource_allocation::{Requests, Stock, load};

/// Returns whether the pod requests any of the resources; otherwise the scorer is skipped.
pub(crate) fn applies(pod: &Shape, rules: &Rules) -> bool {
    if let Some(resources) = &rules.balanced {
        let real = &pod.requests.real;
        return resources.iter().any(|name| real.amount(*name) != 0);
    }
    pod.requests.real.cpu_milli != 0 || pod.requests.real.memory_bytes != 0
}

pub(crate) fn raw(pod: &Shape, node: &Node, rules: &Rules, stock: Option<Stock<'_>>) -> i64 {
    if let Some(resources) = &rules.balanced {
        let with = balance_of_all(pod, true, node, resources, stock);
        let without = balance_of_all(pod, false, node, resources, stock);
        // Half the change of the balance around 75, so that a change in either direction stays within 50 to 100.
        return 50 + (50 + with - without) / 2;
    }
    let request = &pod.requests.real;
    let allocatable = &node.fixed.allocatable;
    let balance_of = |cpu: i64, memory: i64| {
        let cpu = fraction(node.used.cpu_milli.wrapping_add(cpu), allocatable.cpu_milli);
        let memory = fraction(
            node.used.memory_bytes.wrapping_add(memory),
            allocatable.memory_bytes,
        );
        balance(cpu, memory)
    };
    let with = balance_of(request.cpu_milli, request.memory_bytes);
    let without = balance_of(0, 0);
    50 + (50 + with - without) / 2
}

/// Computes the evenness of any number of resources from the standard deviation of their used shares.
fn balance_of_all(
    pod: &Shape,
    with_pod: bool,
    node: &Node,
    resources: &[Symbol],
    stock: Option<Stock<'_>>,
) -> i64 {
    let fractions: Vec<f64> = resources
        .iter()
        .filter_map(|name| load(pod, with_pod, node, *name, Requests::Real, stock))
        .filter_map(|load| fraction(load.requested, load.allocatable))
        .collect();
    let deviation = match fractions.as_slice() {
        [] | [_] => 0.0,
        // The standard deviation of two numbers; kube-scheduler takes this shorter way too, which rounds differently.
        [a, b] => ((a - b) / 2.0).abs(),
        all => {
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let sum: f64 = all.iter().map(|own| (own - mean) * (own - mean)).sum();
            (sum / all.len() as f64).sqrt()
        }
    };
    // Truncated, as Go converts to an integer.
    ((1.0 - deviation) * 100.0) as i64
}

fn fraction(used: i64, allocatable: i64) -> Option<f64> {
    (allocatable != 0).then(|| (used as f64 / allocatable as f64).min(1.0))
}

fn balance(cpu: Option<f64>, memory: Option<f64>) -> i64 {
    let deviation = match (cpu, memory) {
        (Some(cpu), Some(memory)) => ((cpu - memory) / 2.0).abs(),
        _ => 0.0,
    };
    ((1.0 - deviation) * 100.0) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balance_is_the_distance_of_the_two_fractions() {
        assert_eq!(balance(fraction(3000, 4000), fraction(5000, 10_000)), 87);
        assert_eq!(balance(fraction(1, 2), fraction(1, 2)), 100);
        assert_eq!(balance(fraction(9, 2), fraction(1, 1)), 100);
        assert_eq!(balance(fraction(1, 0), fraction(1, 2)), 100);
    }
}
