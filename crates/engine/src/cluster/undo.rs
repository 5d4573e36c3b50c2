//! Checkpoint and rollback: what-if changes on the model itself, whose cost depends only on the size of the change.
//!
//! While a checkpoint is open, every primitive change logs its inverse; a rollback applies the inverses from last to
//! first. Derived data is right afterwards because the primitives update it. Checkpoints may be nested.

use super::object::{Budget, Key};
use super::{Cluster, NodeFixed, NodeId, Pod, PodId};
use crate::class::PodClassId;
use crate::devices;
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::model::{StringMap, WorkloadSpec};
use crate::storage::Change;

/// A position in the log to return to. Close each checkpoint with [`Cluster::rollback`] or [`Cluster::commit`],
/// inner ones first.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an open checkpoint logs every change"]
pub struct Checkpoint {
    position: usize,
    depth: u32,
}

/// The inverse of one primitive change.
#[derive(Clone, Debug)]
pub(super) enum Undo {
    TakePodOut(PodId),
    PutPodIn(Box<Pod>),
    TakeNodeOut(NodeId),
    PutNodeIn(Box<NodeFixed>),
    RestoreNode(Box<NodeFixed>),
    Namespace(Symbol, Option<LabelSet>),
    Service(Key, Option<StringMap>),
    Workload((String, String, String), Option<WorkloadSpec>),
    Pdb(Key, Option<Budget>),
    Unload(PodClassId, NodeId),
    Storage(Change),
    Devices(devices::Change),
    Nominated(Symbol, Vec<(Box<str>, PodClassId)>),
}

impl Cluster {
    /// Opens a checkpoint; every change after it can be undone.
    pub fn checkpoint(&mut self) -> Checkpoint {
        self.checkpoints += 1;
        Checkpoint {
            position: self.log.len(),
            depth: self.checkpoints,
        }
    }

    /// Undoes every change since the checkpoint, and closes it and all that were opened after it.
    pub fn rollback(&mut self, checkpoint: Checkpoint) {
        while self.log.len() > checkpoint.position {
            let Some(undo) = self.log.pop() else { break };
            let length = self.log.len();
            self.revert(undo);
            // `revert` calls the primitives, which log their own inverses; those must not stay in the log.
            self.log.truncate(length);
        }
        self.close(&checkpoint);
    }

    /// Keeps every change since the checkpoint, and closes it and all that were opened after it.
    pub fn commit(&mut self, checkpoint: Checkpoint) {
        self.close(&checkpoint);
    }

    fn close(&mut self, checkpoint: &Checkpoint) {
        self.checkpoints = checkpoint.depth.saturating_sub(1).min(self.checkpoints);
        // Without an open checkpoint nothing can be rolled back any more.
        if self.checkpoints == 0 {
            self.log.clear();
        }
    }

    pub(super) fn log(&mut self, undo: Undo) {
        if self.checkpoints > 0 {
            self.log.push(undo);
        }
    }

    fn revert(&mut self, undo: Undo) {
        match undo {
            Undo::TakePodOut(id) => {
                self.take_pod_out(id);
            }
            Undo::PutPodIn(pod) => {
                self.put_pod_in(*pod);
            }
            Undo::TakeNodeOut(id) => {
                self.take_node_out(id);
            }
            Undo::PutNodeIn(fixed) => self.put_node_in(*fixed),
            Undo::RestoreNode(fixed) => self.replace_fixed(*fixed),
            Undo::Namespace(name, labels) => self.change_namespace(name, labels),
            Undo::Service(key, selector) => self.change_service(key, selector),
            Undo::Workload(key, workload) => self.change_workload(key, workload),
            Undo::Pdb(key, budget) => self.change_pdb(key, budget),
            Undo::Unload(class, at) => self.unload(class, at, false),
            Undo::Storage(change) => self.change_storage(change),
            Undo::Devices(change) => self.change_devices(change),
            Undo::Nominated(node, pods) => self.change_nominated(node, pods),
        }
    }
}
