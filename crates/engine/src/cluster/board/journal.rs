//! Journals of changed nodes, in the order of the changes, from which caches learn which nodes they must compute
//! again.
//!
//! Each reader remembers how far it has read. When a journal has more entries than computing everything again would
//! cost, its older half is dropped; a reader that needs the dropped part computes everything again.

use crate::cluster::NodeId;

/// The minimum number of entries to keep, however few nodes there are.
const LEAST_KEPT: usize = 1024;

/// A list of changed nodes with a position for each entry.
#[derive(Clone, Debug, Default)]
pub(in crate::cluster) struct Journal {
    /// The number of entries dropped so far.
    dropped: u64,
    entries: Vec<NodeId>,
    /// The number of entries from which on the older half is dropped.
    limit: usize,
}

impl Journal {
    /// Records that a node changed.
    pub(in crate::cluster) fn touch(&mut self, node: NodeId) {
        if self.entries.len() >= self.limit.max(LEAST_KEPT) {
            // Half at a time, so that dropping costs a constant per entry.
            let old = self.entries.len() / 2;
            self.entries.drain(..old);
            self.dropped += old as u64;
        }
        self.entries.push(node);
    }

    /// Sets the number of nodes, which determines how many entries are worth keeping.
    pub(super) fn expect(&mut self, nodes: usize) {
        // Reading more entries than that costs as much as computing every node anew.
        self.limit = 4 * nodes;
    }

    /// Returns the position after the last entry.
    pub(super) fn end(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    /// Returns the entries after a position; `None` if some of them were dropped.
    pub(super) fn since(&self, read: u64) -> Option<&[NodeId]> {
        let from = usize::try_from(read.checked_sub(self.dropped)?).ok()?;
        self.entries.get(from..)
    }
}
