//! Bound pods: of each its class and the little that is its own, found by key.
//!
//! Invariant: a key is stored once, in its pod; the table of keys holds numbers only. With a million pods that is what
//! memory goes to.

use std::hash::{Hash, Hasher};

use hashbrown::HashTable;
use rustc_hash::FxHasher;

use crate::class::PodClassId;
use crate::intern::Symbol;

/// A slot in the table of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PodId(u32);

impl PodId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) key: Box<str>,
    /// Where it is not the part of the key after the slash.
    pub(crate) other_name: Option<Box<str>>,
    pub(crate) class: PodClassId,
    pub(crate) node_name: Symbol,
    pub(crate) terminating: bool,
    /// Seconds since 1970; a pod that has not started counts as the newest.
    pub(crate) start_time: i64,
}

impl Pod {
    pub(crate) fn name(&self) -> &str {
        match &self.other_name {
            Some(name) => name,
            None => self.key.split_once('/').map_or("", |(_, name)| name),
        }
    }
}

/// Pods in one piece of memory: growing by pieces moves nothing.
const PIECE: usize = 4096;

/// All bound pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Pods {
    pieces: Vec<Vec<Option<Pod>>>,
    free: Vec<PodId>,
    by_key: HashTable<Entry>,
}

/// A pod in the table of keys, with enough of the key's hash to grow without reading keys.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    id: PodId,
}

impl Entry {
    /// The table looks at the leading and the trailing bits.
    fn spread(&self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Pods {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Makes room for more pods, so that their coming moves nothing.
    pub(super) fn reserve(&mut self, more: usize) {
        self.by_key.reserve(more, Entry::spread);
    }

    pub(super) fn find(&self, key: &str) -> Option<PodId> {
        let wanted = Entry {
            hash: hash(key),
            id: PodId(0),
        };
        let same = |entry: &Entry| {
            entry.hash == wanted.hash
                && self
                    .slot(entry.id)
                    .as_ref()
                    .is_some_and(|pod| *pod.key == *key)
        };
        self.by_key
            .find(wanted.spread(), same)
            .map(|entry| entry.id)
    }

    pub(super) fn at(&self, id: PodId) -> &Pod {
        self.slot(id)
            .as_ref()
            .expect("ids in use name pods that are there")
    }

    fn slot(&self, id: PodId) -> &Option<Pod> {
        &self.pieces[id.index() / PIECE][id.index() % PIECE]
    }

    fn slot_mut(&mut self, id: PodId) -> &mut Option<Pod> {
        &mut self.pieces[id.index() / PIECE][id.index() % PIECE]
    }

    /// Adds a pod whose key is new.
    pub(super) fn put(&mut self, pod: Pod) -> PodId {
        let hash = hash(&pod.key);
        let id = match self.free.pop() {
            Some(id) => {
                *self.slot_mut(id) = Some(pod);
                id
            }
            None => self.append(pod),
        };
        let entry = Entry { hash, id };
        self.by_key
            .insert_unique(entry.spread(), entry, Entry::spread);
        id
    }

    fn append(&mut self, pod: Pod) -> PodId {
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            // The first piece grows as it needs, so that a small cluster stays small.
            let capacity = if self.pieces.is_empty() { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(capacity));
        }
        let before = (self.pieces.len() - 1) * PIECE;
        let piece = self.pieces.last_mut().expect("pushed above");
        piece.push(Some(pod));
        PodId((before + piece.len() - 1) as u32)
    }

    pub(super) fn take(&mut self, id: PodId) -> Option<Pod> {
        let pod = self.slot_mut(id).take()?;
        let entry = Entry {
            hash: hash(&pod.key),
            id,
        };
        let same = |known: &Entry| known.id == id;
        if let Ok(found) = self.by_key.find_entry(entry.spread(), same) {
            found.remove();
        }
        self.free.push(id);
        Some(pod)
    }
}

fn hash(key: &str) -> u32 {
    let mut hasher = FxHasher::default();
    key.hash(&mut hasher);
    (hasher.finish() >> 32) as u32
}
