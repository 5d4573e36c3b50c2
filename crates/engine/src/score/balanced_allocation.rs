//! kube-scheduler: NodeResourcesBalancedAllocation, weight 1: does the pod make the use of cpu and memory more even?
//!
//! 75 means no change, 50 is the worst and 100 the best. Uses real requests: what asks for nothing weighs nothing.

use crate::class::Shape;
use crate::cluster::Node;

/// Skipped for pods that ask for neither cpu nor memory.
pub(crate) fn applies(pod: &Shape) -> bool {
    pod.requests.real.cpu_milli != 0 || pod.requests.real.memory_bytes != 0
}

pub(crate) fn raw(pod: &Shape, node: &Node) -> i64 {
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
