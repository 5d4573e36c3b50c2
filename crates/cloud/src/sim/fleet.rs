//! All instances, and the order in which they last changed.
//!
//! Invariant: each instance has one position in the order of changes, that of its last change, so a follower
//! that was away reads each changed instance once. Beyond [`REMEMBERED_TERMINATED`], the oldest terminated
//! instances are dropped.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use super::{interface::Interface, ledger::SavedInstance};
use crate::{Instance, InstanceId, InstanceState};

/// The number of terminated instances that are kept.
const REMEMBERED_TERMINATED: usize = 1000;

/// The changes since a cursor.
#[derive(Clone, Debug)]
pub struct Changes {
    /// Changed instances in the order of their last change.
    pub instances: Vec<Arc<Instance>>,
    /// The cursor for the next call.
    pub cursor: u64,
    /// Whether instances may have been dropped since the old cursor. If so, an instance that is neither listed
    /// here nor by [`super::SimulatedEc2::instances`] is gone.
    pub forgotten: bool,
}

#[derive(Default)]
pub(super) struct Fleet {
    instances: BTreeMap<InstanceId, Entry>,
    by_revision: BTreeMap<u64, InstanceId>,
    by_token: HashMap<String, InstanceId>,
    terminated: VecDeque<InstanceId>,
    revision: u64,
    forgotten_revision: u64,
}

struct Entry {
    instance: Arc<Instance>,
    revision: u64,
    token: String,
    interface: Interface,
}

impl Fleet {
    pub(super) fn len(&self) -> usize {
        self.instances.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Instance>> {
        self.instances.values().map(|entry| &entry.instance)
    }

    pub(super) fn get(&self, id: &InstanceId) -> Option<&Arc<Instance>> {
        Some(&self.instances.get(id)?.instance)
    }

    /// Returns the instance that was launched with this client token.
    pub(super) fn bought_with(&self, token: &str) -> Option<&Arc<Instance>> {
        self.get(self.by_token.get(token)?)
    }

    pub(super) fn insert(&mut self, token: String, instance: Instance) -> (Arc<Instance>, u64) {
        let id = instance.id.clone();
        let instance = Arc::new(instance);
        self.revision += 1;
        self.by_revision.insert(self.revision, id.clone());
        self.by_token.insert(token.clone(), id.clone());
        self.instances.insert(
            id,
            Entry {
                instance: Arc::clone(&instance),
                revision: self.revision,
                token,
                interface: Interface::default(),
            },
        );
        (instance, self.revision)
    }

    /// Returns the addresses of an instance's network interface besides the primary one.
    pub(super) fn interface(&mut self, id: &InstanceId) -> Option<&mut Interface> {
        Some(&mut self.instances.get_mut(id)?.interface)
    }

    /// Restores an instance of an earlier process.
    pub(super) fn bring_back(&mut self, token: String, instance: Instance, interface: Interface) {
        let id = instance.id.clone();
        if instance.state == InstanceState::Terminated {
            self.terminated.push_back(id.clone());
        }
        self.insert(token, instance);
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.interface = interface;
        }
    }

    /// Returns the stored form of an instance.
    pub(super) fn saved(&self, id: &InstanceId) -> Option<SavedInstance> {
        let entry = self.instances.get(id)?;
        let saved = SavedInstance::of(&entry.instance, &entry.token, &entry.interface);
        Some(saved)
    }

    /// Changes an instance. Returns the new revision and the instances that were dropped, or `None` if the
    /// instance is unknown.
    pub(super) fn update(
        &mut self,
        id: &InstanceId,
        edit: impl FnOnce(&mut Instance),
    ) -> Option<(u64, Vec<InstanceId>)> {
        let entry = self.instances.get_mut(id)?;
        let was_terminated = entry.instance.state == InstanceState::Terminated;
        // Callers that hold the old version keep it: a shared instance is copied before it is changed.
        edit(Arc::make_mut(&mut entry.instance));
        self.revision += 1;
        self.by_revision.remove(&entry.revision);
        self.by_revision.insert(self.revision, id.clone());
        entry.revision = self.revision;
        let mut forgotten = Vec::new();
        if !was_terminated && entry.instance.state == InstanceState::Terminated {
            self.terminated.push_back(id.clone());
            forgotten = self.forget_oldest();
        }
        Some((self.revision, forgotten))
    }

    pub(super) fn changes_since(&self, cursor: u64) -> Changes {
        let instances = self
            .by_revision
            .range(cursor.saturating_add(1)..)
            .filter_map(|(_, id)| self.get(id).cloned())
            .collect();
        Changes {
            instances,
            cursor: self.revision,
            forgotten: cursor < self.forgotten_revision,
        }
    }

    fn forget_oldest(&mut self) -> Vec<InstanceId> {
        let mut forgotten = Vec::new();
        while self.terminated.len() > REMEMBERED_TERMINATED {
            let Some(entry) = self
                .terminated
                .pop_front()
                .and_then(|id| self.instances.remove(&id))
            else {
                break;
            };
            self.by_revision.remove(&entry.revision);
            self.by_token.remove(&entry.token);
            // A follower whose cursor is older may not have read that the instance was terminated.
            self.forgotten_revision = self.forgotten_revision.max(entry.revision);
            forgotten.push(entry.instance.id.clone());
        }
        forgotten
    }
}
