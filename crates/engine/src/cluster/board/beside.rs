//! Nodes that refuse pods of one shape and priority because room is held there for others, and would say something else
//! without them; for pods that other pods matter to by the room they take only.
//!
//! Invariant: after [`Beside::refresh`] these are all such nodes, each with what it says.

use std::collections::BTreeMap;

use super::journal::Journal;
use crate::cluster::{NodeId, Question};
use crate::reason::Refusal;

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub(super) struct Beside {
    /// How far the journals of loads and of nodes are read; nothing is known yet without.
    read: Option<(u64, u64)>,
    refusals: BTreeMap<NodeId, Refusal>,
}

impl Beside {
    /// Catches up with what changed.
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
                self.refusals.clear();
                for node in question.cluster.nominated_nodes() {
                    self.look_at(node, question);
                }
            }
        }
        self.read = Some((loads.end(), nodes.end()));
    }

    /// All nodes but one, with what they say.
    pub(super) fn but(&self, own: Option<NodeId>) -> Vec<(NodeId, Refusal)> {
        let others = self.refusals.iter().filter(|(node, _)| Some(**node) != own);
        others
            .map(|(node, refusal)| (*node, refusal.clone()))
            .collect()
    }

    fn look_at(&mut self, node: NodeId, question: &Question<'_>) {
        match question.held_otherwise(node, "") {
            Some(refusal) => self.refusals.insert(node, refusal),
            None => self.refusals.remove(&node),
        };
    }
}
