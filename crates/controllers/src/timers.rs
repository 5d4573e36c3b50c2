//! A timer queue with one deadline per key, for loops that own many things that wait.
//!
//! Invariant: each key has at most one deadline that counts. Setting a new one makes older entries stale, and stale
//! entries are skipped, so a heap is enough however often deadlines move.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    hash::Hash,
};

use jiff::Timestamp;
use rustc_hash::FxBuildHasher;

/// Deadlines by key.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    heap: BinaryHeap<Reverse<(Timestamp, u64)>>,
    keys: HashMap<u64, K, FxBuildHasher>,
    armed: HashMap<K, (Timestamp, u64), FxBuildHasher>,
    sequence: u64,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            keys: HashMap::default(),
            armed: HashMap::default(),
            sequence: 0,
        }
    }
}

impl<K: Clone + Eq + Hash> Timers<K> {
    /// Sets the deadline of `key`, or removes it.
    pub(crate) fn set(&mut self, key: K, at: Option<Timestamp>) {
        match (at, self.armed.get(&key)) {
            (Some(at), Some((armed, _))) if *armed == at => {}
            (Some(at), _) => {
                self.disarm(&key);
                self.sequence += 1;
                self.heap.push(Reverse((at, self.sequence)));
                self.keys.insert(self.sequence, key.clone());
                self.armed.insert(key, (at, self.sequence));
            }
            (None, _) => self.disarm(&key),
        }
    }

    /// The next key whose deadline is not after `now`; its deadline is gone then.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<K> {
        while let Some(Reverse((at, sequence))) = self.heap.peek().copied() {
            if at > now {
                return None;
            }
            self.heap.pop();
            if let Some(key) = self.keys.remove(&sequence) {
                self.armed.remove(&key);
                return Some(key);
            }
        }
        None
    }

    /// The earliest deadline.
    pub(crate) fn next(&mut self) -> Option<Timestamp> {
        while let Some(Reverse((at, sequence))) = self.heap.peek().copied() {
            if self.keys.contains_key(&sequence) {
                return Some(at);
            }
            self.heap.pop();
        }
        None
    }

    fn disarm(&mut self, key: &K) {
        if let Some((_, sequence)) = self.armed.remove(key) {
            self.keys.remove(&sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("within range")
    }

    #[test]
    fn only_the_last_deadline_of_a_key_counts_and_keys_come_out_in_order() {
        let mut timers = Timers::default();
        timers.set("a", Some(at(5)));
        timers.set("b", Some(at(3)));
        timers.set("a", Some(at(9)));
        timers.set("c", Some(at(4)));
        timers.set("c", None);
        assert_eq!(timers.next(), Some(at(3)));
        assert_eq!(timers.pop_due(at(6)), Some("b"));
        assert_eq!(timers.pop_due(at(6)), None);
        assert_eq!(timers.next(), Some(at(9)));
        assert_eq!(timers.pop_due(at(9)), Some("a"));
        assert_eq!(timers.next(), None);
    }
}
