//! The pods that this scheduler is evicting, from the decision until the watch shows that they leave.
//!
//! Writers send the evictions, possibly long after the decisions. Meanwhile such a pod must not be evicted a second time,
//! and a pod that is nominated to its node waits for the room instead of evicting pods elsewhere.

use rustc_hash::FxHashMap;

/// The pending evictions, by pod and by node. A plain struct.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// The node of each pod, by the pod's uid.
    nodes: FxHashMap<String, String>,
    /// The uids of pods on each node, in the order of the decisions.
    by_node: FxHashMap<String, Vec<String>>,
}

impl Evictions {
    /// Records that a pod on a node is to be evicted. Returns whether that is new.
    pub(super) fn begin(&mut self, uid: &str, node: &str) -> bool {
        if self.contains(uid) {
            return false;
        }
        self.nodes.insert(uid.to_owned(), node.to_owned());
        let on_node = self.by_node.entry(node.to_owned()).or_default();
        on_node.push(uid.to_owned());
        true
    }

    /// Drops a pod that leaves, or that will not be evicted after all.
    pub(super) fn end(&mut self, uid: &str) {
        let Some(node) = self.nodes.remove(uid) else {
            return;
        };
        if let Some(on_node) = self.by_node.get_mut(&node) {
            on_node.retain(|known| known != uid);
            if on_node.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }

    /// Returns whether a pod is being evicted.
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.nodes.contains_key(uid)
    }

    /// Returns the pod on a node whose eviction was decided last.
    pub(super) fn last_evicted_on(&self, node: &str) -> Option<&str> {
        self.by_node.get(node)?.last().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_being_evicted_once_until_it_leaves() {
        let mut evictions = Evictions::default();
        assert!(evictions.begin("a", "n") && evictions.begin("b", "n"));
        assert!(!evictions.begin("a", "n"));
        assert_eq!(
            (
                evictions.last_evicted_on("n"),
                evictions.last_evicted_on("m")
            ),
            (Some("b"), None)
        );
        evictions.end("b");
        evictions.end("nobody");
        assert_eq!(evictions.last_evicted_on("n"), Some("a"));
        assert!(evictions.contains("a") && !evictions.contains("b"));
        evictions.end("a");
        assert!(evictions.nodes.is_empty() && evictions.by_node.is_empty());
    }
}
