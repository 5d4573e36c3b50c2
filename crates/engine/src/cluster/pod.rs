//! A bound pod: its class and the little that is its own.

use crate::class::PodClassId;
use crate::intern::Symbol;

/// A slot in the table of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PodId(pub(super) u32);

impl PodId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) key: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) class: PodClassId,
    pub(crate) node_name: Symbol,
    pub(crate) terminating: bool,
    /// Seconds since 1970; a pod that has not started counts as the newest.
    pub(crate) start_time: i64,
}
