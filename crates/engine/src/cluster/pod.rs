//! The bound pods of the model: each has its class and its individual fields, and is found by its key.
//!
//! Invariant: a key is stored once, in its pod; the table of keys holds only slot numbers. With a million pods the
//! keys take most of the memory.

use std::hash::{Hash, Hasher};

use hashbrown::HashTable;
use rustc_hash::FxHasher;

use crate::class::PodClassId;
use crate::intern::Symbol;
use crate::model::PodSpec;

/// The slot of a pod in [`Pods`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PodId(u32);

impl PodId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A bound pod. It takes as few bytes as possible, because with a million pods the time goes into memory accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pod_key: PodKey,
    pub(crate) class: PodClassId,
    pub(crate) node_name: Symbol,
    pub(crate) terminating: bool,
    pub(crate) preempted: bool,
    /// The start time in seconds since 1970. A pod that has not started has the latest time, so it counts as the
    /// newest.
    pub(crate) start_time: i64,
}

/// The key of a pod, followed by its name if the key does not end with the name, in one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodKey {
    text: Box<str>,
    /// The length of the key in bytes.
    key: u32,
}

impl PodKey {
    /// Returns the key of a pod: its uid, or without one its namespace and name ([`crate::model::PodSpec::key`]).
    /// Lengths are stored in 32 bits, because names are far shorter than four billion bytes.
    pub(super) fn new(uid: &str, namespace: &str, name: &str) -> Self {
        // With a uid the name follows the key; without one the key ends with it, so it is stored once either way.
        let parts = match uid {
            "" => [namespace, "/", name],
            uid => [uid, name, ""],
        };
        let mut text = String::with_capacity(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| text.push_str(part));
        let key = if uid.is_empty() {
            text.len()
        } else {
            uid.len()
        };
        PodKey {
            text: text.into(),
            key: key as u32,
        }
    }

    pub(super) fn of(spec: &PodSpec) -> Self {
        PodKey::new(&spec.uid, &spec.template.namespace, &spec.name)
    }

    pub(super) fn key(&self) -> &str {
        &self.text[..self.key as usize]
    }
}

/// The stage of a pod between its start and its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodLifecycle {
    pub(super) finished: bool,
    pub(super) terminating: bool,
    pub(super) preempted: bool,
    pub(super) start_time: i64,
}

impl PodLifecycle {
    pub(super) fn of(spec: &PodSpec) -> Self {
        PodLifecycle {
            finished: spec.finished,
            terminating: spec.terminating,
            preempted: spec.preempted,
            start_time: spec.start_time.unwrap_or(i64::MAX),
        }
    }
}

impl Pod {
    pub(super) fn new(pod_key: PodKey, class: PodClassId, node_name: Symbol) -> Self {
        Pod {
            pod_key,
            class,
            node_name,
            terminating: false,
            preempted: false,
            start_time: i64::MAX,
        }
    }

    pub(crate) fn key(&self) -> &str {
        self.pod_key.key()
    }

    pub(crate) fn name(&self) -> &str {
        match &self.pod_key.text[self.pod_key.key as usize..] {
            "" => self.key().split_once('/').map_or("", |(_, name)| name),
            name => name,
        }
    }
}

/// The number of pods per piece of memory. Memory grows by pieces, so that growing never moves pods.
const PIECE: usize = 4096;

/// All bound pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Pods {
    pieces: Vec<Vec<Option<Pod>>>,
    /// The number of slots that have been used so far.
    begun: usize,
    free: Vec<PodId>,
    by_key: HashTable<Entry>,
}

/// A slot number in the table of keys, with 32 bits of the key's hash, so that the table can grow without reading
/// keys.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    id: PodId,
}

impl Entry {
    /// Spreads the 32 bits over 64, because the hash table uses both the leading and the trailing bits.
    fn spread(&self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Pods {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Reserves memory for more pods, so that adding them moves nothing.
    pub(super) fn reserve(&mut self, more: usize) {
        self.by_key.reserve(more, Entry::spread);
        let wanted = (self.begun + more).div_ceil(PIECE);
        while self.pieces.len() < wanted {
            self.pieces.push(Vec::new());
        }
        for piece in &mut self.pieces {
            piece.resize(PIECE, None);
        }
    }

    pub(super) fn find(&self, key: &str) -> Option<PodId> {
        let wanted = Entry {
            hash: hash(key),
            id: PodId(0),
        };
        // The hash is compared first, because reading a key costs a cache miss.
        let same = |entry: &Entry| {
            entry.hash == wanted.hash
                && self
                    .slot(entry.id)
                    .as_ref()
                    .is_some_and(|pod| pod.key() == key)
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

    /// Adds a pod with a new key.
    pub(super) fn put(&mut self, pod: Pod) -> PodId {
        let hash = hash(pod.key());
        // The slot that was freed last: a rollback takes pods out and puts them back in reverse order, so each gets the
        // id again by which the log names it.
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
        let (piece, place) = (self.begun / PIECE, self.begun % PIECE);
        if piece == self.pieces.len() {
            // Only the first piece grows on demand, so that a small cluster uses little memory.
            let capacity = if piece == 0 { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(capacity));
        }
        let piece = &mut self.pieces[piece];
        match piece.get_mut(place) {
            Some(slot) => *slot = Some(pod),
            None => piece.push(Some(pod)),
        }
        self.begun += 1;
        PodId((self.begun - 1) as u32)
    }

    pub(super) fn take(&mut self, id: PodId) -> Option<Pod> {
        let pod = self.slot_mut(id).take()?;
        let entry = Entry {
            hash: hash(pod.key()),
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
