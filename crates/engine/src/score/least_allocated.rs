//! kube-scheduler: NodeResourcesFit's LeastAllocated score, weight 1. It is the mean free share of cpu and memory.
//!
//! Containers without requests count as 100m and 200 MiB here. A resource that the node does not offer is left out.

use super::MAX_SCORE;
use crate::class::Shape;
use crate::cluster::Node;

pub(crate) fn raw(pod: &Shape, node: &Node) -> i64 {
    let requests = &pod.requests;
    let allocatable = &node.fixed.allocatable;
    let cpu = share(
        allocatable.cpu_milli,
        node.nonzero_cpu_milli.wrapping_add(requests.own_cpu_milli),
    );
    let memory = share(
        allocatable.memory_bytes,
        node.nonzero_memory_bytes
            .wrapping_add(requests.own_memory_bytes),
    );
    let counted = i64::from(cpu.is_some()) + i64::from(memory.is_some());
    if counted == 0 {
        0
    } else {
        (cpu.unwrap_or(0) + memory.unwrap_or(0)) / counted
    }
}

fn share(allocatable: i64, requested: i64) -> Option<i64> {
    match allocatable {
        0 => None,
        _ if requested > allocatable => Some(0),
        _ => {
            let free = allocatable.wrapping_sub(requested);
            Some(match free.checked_mul(MAX_SCORE) {
                Some(hundredfold) => hundredfold / allocatable,
                // A node's bytes times 100 can exceed 64 bits; 128-bit division is slower, so it is only the
                // fallback.
                None => (i128::from(free) * i128::from(MAX_SCORE) / i128::from(allocatable)) as i64,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_round_down_and_overcommitted_is_zero() {
        assert_eq!(share(4000, 3000), Some(25));
        assert_eq!(share(6000, 3000), Some(50));
        assert_eq!(share(3, 2), Some(33));
        assert_eq!(share(3, 4), Some(0));
        assert_eq!(share(0, 1), None);
        assert_eq!(share(i64::MAX, 1), Some(99));
    }
}
