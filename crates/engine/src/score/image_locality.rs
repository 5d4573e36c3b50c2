//! kube-scheduler: ImageLocality, weight 1. Nodes that have the pod's images score higher, by the size of the
//! images and by how many nodes have them.

use super::MAX_SCORE;
use crate::class::Shape;
use crate::cluster::{Cluster, Node};

/// Images up to this size in total do not count (kube-scheduler: `minThreshold`).
const MIN_BYTES: i64 = 23 << 20;
/// Per container, more than this does not count (kube-scheduler: `maxContainerThreshold`).
const MAX_BYTES_PER_CONTAINER: i64 = 1000 << 20;

/// Returns the name by which an image is looked up: with `:latest` if it has no tag.
pub(crate) fn normalized(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    // Only the last part: a colon before it belongs to a registry's port.
    if last.contains(':') {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}

pub(crate) fn raw(pod: &Shape, cluster: &Cluster, node: &Node) -> i64 {
    if node.fixed.images.is_empty() {
        return 0;
    }
    let total = cluster.node_count() as f64;
    let held = pod
        .images
        .iter()
        .filter(|image| node.fixed.images.iter().any(|(name, _)| name == *image));
    let sum = held
        .map(|image| {
            let (size_bytes, holders) = cluster.image(*image);
            // An image that few nodes have weighs little, or all pods of it would gather there.
            (size_bytes as f64 * (f64::from(holders) / total)) as i64
        })
        .fold(0_i64, i64::saturating_add);
    let max = MAX_BYTES_PER_CONTAINER * pod.image_containers;
    if max <= MIN_BYTES {
        return 0;
    }
    MAX_SCORE * (sum.clamp(MIN_BYTES, max) - MIN_BYTES) / (max - MIN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::normalized;

    #[test]
    fn only_a_colon_after_the_last_slash_is_a_tag() {
        assert_eq!(normalized("busybox"), "busybox:latest");
        assert_eq!(normalized("host:5000/busybox"), "host:5000/busybox:latest");
        assert_eq!(normalized("host:5000/busybox:1"), "host:5000/busybox:1");
        assert_eq!(normalized("busybox@sha256:abc"), "busybox@sha256:abc");
    }
}
