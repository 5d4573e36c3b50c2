//! The pods that this scheduler is evicting, from the decision until they are seen to leave.
//!
//! The API server is told by writers, which may be far behind the decisions. Meanwhile nobody else needs to evict such a pod again, and
//! whoever was promised the room on its node waits for it instead of evicting others elsewhere.

use rustc_hash::FxHashMap;

/// See the module's words. A plain struct.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// Node name by uid.
    nodes: FxHashMap<String, String>,
    /// Uids by node name, in the order in which they were decided on.
    by_node: FxHashMap<String, Vec<String>>,
}

impl Evictions {
    /// A pod on a node is to be evicted. Whether that is new.
    pub(super) fn begin(&mut self, uid: &str, node: &str) -> bool {
        if self.contains(uid) {
            return false;
        }
        self.nodes.insert(uid.to_owned(), node.to_owned());
        let on_node = self.by_node.entry(node.to_owned()).or_default();
        on_node.push(uid.to_owned());
        true
    }

    /// A pod is gone, on its way out, or will not be evicted after all.
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

    /// Whether a pod is being evicted.
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.nodes.contains_key(uid)
    }

    /// The pod on a node that was decided on last.
    pub(super) fn last_on(&self, node: &str) -> Option<&str> {
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
            (evictions.last_on("n"), evictions.last_on("m")),
            (Some("b"), None)
        );
        evictions.end("b");
        evictions.end("nobody");
        assert_eq!(evictions.last_on("n"), Some("a"));
        assert!(evictions.contains("a") && !evictions.contains("b"));
        evictions.end("a");
        assert!(evictions.nodes.is_empty() && evictions.by_node.is_empty());
    }
}
