//! PullTime, Mullion's own scorer, off by default. Nodes on which the pod could start sooner score higher, by the sizes of the images that
//! they lack.
//!
//! kube-scheduler's ImageLocality counts at most 1,000 MB per container, so a node with a Windows image of 5 GB scores no higher than one
//! with a fifth of that. An image has the size that a node with the image reports; images that no node has count the same on every node, as
//! 0.

use super::MAX_SCORE;
use crate::class::Shape;
use crate::cluster::{Cluster, Node};
use crate::model::label;

/// A node that would need this many seconds or more scores 0.
const LONGEST_S: i64 = 600;
/// The bytes of an image that a node downloads and extracts per second. Windows extracts layers one after the other, so an image of 8 GB
/// takes more than eight minutes (EKS best practices: windows/ami).
const LINUX_BYTES_PER_S: i64 = 60_000_000;
const WINDOWS_BYTES_PER_S: i64 = 15_000_000;

pub(crate) fn raw(pod: &Shape, cluster: &Cluster, node: &Node) -> i64 {
    let lacks =
        |image: &&crate::intern::Symbol| !node.fixed.images.iter().any(|(name, _)| name == *image);
    let missing = pod.images.iter().filter(lacks);
    let bytes = missing
        .map(|image| cluster.image(*image).0)
        .fold(0_i64, i64::saturating_add);
    let rate = match cluster
        .names()
        .find(label::OS)
        .and_then(|os| node.fixed.labels.value(os))
    {
        Some(os) if cluster.text(os) == "windows" => WINDOWS_BYTES_PER_S,
        _ => LINUX_BYTES_PER_S,
    };
    let seconds = (bytes / rate).min(LONGEST_S);
    MAX_SCORE * (LONGEST_S - seconds) / LONGEST_S
}

#[cfg(test)]
mod tests {
    use crate::model::{Container, ContainerImage, NodeSpec, PodSpec, PodTemplate, label};
    use crate::{Cluster, Decision, Options, Plugin, Profile};

    const GB: i64 = 1_000_000_000;

    fn node(name: &str, os: &str, images: &[(&str, i64)]) -> NodeSpec {
        let mut node = NodeSpec::named(name);
        node.labels.insert(label::OS.to_owned(), os.to_owned());
        for (resource, amount) in [("cpu", "4"), ("memory", "16Gi"), ("pods", "110")] {
            let amount = amount.parse().expect("a quantity");
            node.allocatable.insert(resource.to_owned(), amount);
        }
        let images = images.iter().map(|(name, size_bytes)| ContainerImage {
            names: vec![(*name).to_owned()],
            size_bytes: *size_bytes,
        });
        node.images = images.collect();
        node
    }

    /// Returns the node chosen for a pod with these images, and the totals of the nodes in the order of their names.
    fn decided(plugin: Plugin, nodes: &[NodeSpec], images: &[&str]) -> (String, Vec<i64>) {
        let profile = Profile {
            scores: [(plugin, 1)].into(),
            ..Profile::default()
        };
        let mut cluster = Cluster::with_profiles(Options::default(), &[profile]);
        for node in nodes {
            cluster.add_node(node).expect("a node");
        }
        let container = |image: &&str| Container {
            image: (*image).to_owned(),
            ..Container::default()
        };
        let pod = PodSpec {
            name: "p".to_owned(),
            template: PodTemplate {
                containers: images.iter().map(container).collect(),
                ..PodTemplate::default()
            },
            ..PodSpec::default()
        };
        let class = cluster.pod_class(&pod.template).expect("a pod");
        let answer = cluster.answer(class);
        let totals = answer.nodes.iter().map(|node| match node.outcome {
            crate::Outcome::Fits { total, .. } => total,
            crate::Outcome::Refused(_) => -1,
        });
        let totals = totals.collect();
        match cluster.schedule_pod(&pod, 0).expect("an answer") {
            Decision::Node(node) => (cluster.node_name(node).to_owned(), totals),
            Decision::Unschedulable(_) => (String::new(), totals),
        }
    }

    #[test]
    fn a_node_with_the_largest_image_wins_where_image_locality_sees_no_difference() {
        let nodes = [
            node(
                "small",
                "windows",
                &[("app:1", 5 * GB), ("other:1", 2 * GB)],
            ),
            node(
                "large",
                "windows",
                &[("base:1", 6 * GB), ("other:2", 2 * GB)],
            ),
        ];
        let images = ["app:1", "base:1"];
        let (_, totals) = decided(Plugin::ImageLocality, &nodes, &images);
        assert_eq!(totals[0], totals[1]);
        let (best, totals) = decided(Plugin::PullTime, &nodes, &images);
        // By name: the node `large` lacks 5 GB (333 s of 600 s), the node `small` 6 GB (400 s).
        assert_eq!((best.as_str(), totals), ("large", vec![44, 33]));
    }

    #[test]
    fn linux_pulls_faster_and_what_no_node_holds_counts_nowhere() {
        let nodes = [
            node("holds", "linux", &[("app:1", 3 * GB)]),
            node("linux", "linux", &[]),
            node("windows", "windows", &[]),
        ];
        let (best, totals) = decided(Plugin::PullTime, &nodes, &["app:1", "new:1"]);
        assert_eq!((best.as_str(), totals), ("holds", vec![100, 91, 66]));
    }
}
