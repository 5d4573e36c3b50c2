//! Caches, for pods of one shape and priority, the nodes that refuse the pod because room is held there for nominated pods
//! and that would decide otherwise without them. It serves only pods to which other pods matter by nothing but the
//! resources they use.
//!
//! Invariant: after [`NominatedRefusals::refresh`] the cache has all such nodes, each with its refusal.

use std::sync::Arc;

use super::journal::Journal;
use crate::cluster::{NodeId, Question};
use crate::reason::Refusal;

/// The refusals because of nominated pods, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct NominatedRefusals {
    /// How far the journals of loads and of nodes have been read; `None` before the first refresh.
    read: Option<(u64, u64)>,
    /// The refusals, sorted by node. The question being asked shares the list and drops it afterwards, so changing the list
    /// rarely copies it.
    refusals: Arc<Vec<(NodeId, Refusal)>>,
}

impl NominatedRefusals {
    /// Updates the refusals after changes.
    pub(super) fn refresh(&mut self, question: &Question<'_>, loads: &Journal, nodes: &Journal) {
        let changed = self.read.and_then(|(of_loads, of_nodes)| {
            Some((loads.since(of_loads)?, nodes.since(of_nodes)?))
        });
        match changed {
            Some((loads, nodes)) => {
                for node in nodes.iter().chain(loads) {
                    self.look_at(*node, question);
                }
            }
            None => {
                Arc::make_mut(&mut self.refusals).clear();
                // Only nodes where room is held can refuse for that reason.
                for node in question.cluster.nominated_nodes() {
                    self.look_at(node, question);
                }
            }
        }
        self.read = Some((loads.end(), nodes.end()));
    }

    /// Returns the refusals of all nodes but `own`, sorted by node.
    pub(super) fn excluding(&self, own: Option<NodeId>) -> Arc<Vec<(NodeId, Refusal)>> {
        let mut refusals = Arc::clone(&self.refusals);
        if let Some(own) = own
            && let Ok(at) = refusals.binary_search_by_key(&own, |(node, _)| *node)
        {
            Arc::make_mut(&mut refusals).remove(at);
        }
        refusals
    }

    fn look_at(&mut self, node: NodeId, question: &Question<'_>) {
        let at = self
            .refusals
            .binary_search_by_key(&node, |(known, _)| *known);
        let held = question.held_otherwise(node, "");
        if at.is_err() && held.is_none() {
            return;
        }
        let refusals = Arc::make_mut(&mut self.refusals);
        match (at, held) {
            (Ok(at), Some(refusal)) => refusals[at].1 = refusal,
            (Ok(at), None) => drop(refusals.remove(at)),
            (Err(at), Some(refusal)) => refusals.insert(at, (node, refusal)),
            (Err(_), None) => {}
        }
    }
}
