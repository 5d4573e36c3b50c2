//! Which nodes changed, in order: what whoever keeps something per node has to look at again.
//!
//! Readers remember how far they have read. The older half is dropped when there is more to read than starting over
//! would cost; a reader that is further behind starts over.

use crate::cluster::NodeId;

/// Entries kept however few nodes there are.
const LEAST_KEPT: usize = 1024;

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub(in crate::cluster) struct Journal {
    /// Entries dropped so far.
    dropped: u64,
    entries: Vec<NodeId>,
    /// Entries kept.
    limit: usize,
}

impl Journal {
    /// Something about a node changed.
    pub(in crate::cluster) fn touch(&mut self, node: NodeId) {
        if self.entries.len() >= self.limit.max(LEAST_KEPT) {
            let old = self.entries.len() / 2;
            self.entries.drain(..old);
            self.dropped += old as u64;
        }
        self.entries.push(node);
    }

    /// How many nodes there are, which is what starting over costs.
    pub(super) fn expect(&mut self, nodes: usize) {
        self.limit = 4 * nodes;
    }

    /// Where reading would go on after everything that is there.
    pub(super) fn end(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    /// What came after a position; none if part of it was dropped.
    pub(super) fn since(&self, read: u64) -> Option<&[NodeId]> {
        let from = usize::try_from(read.checked_sub(self.dropped)?).ok()?;
        self.entries.get(from..)
    }
}
