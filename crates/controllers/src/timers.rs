//! A timer queue with one deadline per key, for loops that own many waiting items.
//!
//! Invariant: each key has at most one valid deadline. Setting a new one makes older heap entries stale, and stale
//! entries are skipped, so a heap is sufficient however often deadlines move.

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
            // Loops set the same deadline again and again; without this check each time would grow the heap.
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

    /// Returns the keys whose deadlines are not after `now`, in order, and removes these deadlines.
    ///
    /// All due keys are returned at once: a key that the caller sets again to a time that has passed is due in the
    /// next round. A loop over single keys might never end.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Vec<K> {
        let mut due = Vec::new();
        while let Some(Reverse((at, sequence))) = self.heap.peek().copied()
            && at <= now
        {
            self.heap.pop();
            if let Some(key) = self.keys.remove(&sequence) {
                self.armed.remove(&key);
                due.push(key);
            }
        }
        due
    }

    /// Returns the earliest deadline.
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
        assert_eq!(timers.take_due(at(6)), ["b"]);
        assert_eq!(timers.take_due(at(6)), [""; 0]);
        assert_eq!(timers.next(), Some(at(9)));
        timers.set("d", Some(at(8)));
        assert_eq!(timers.take_due(at(9)), ["d", "a"]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_key_that_is_set_again_for_a_moment_that_has_come_is_due_in_the_next_round() {
        let mut timers = Timers::default();
        timers.set("a", Some(at(5)));
        let mut rung = 0;
        for key in timers.take_due(at(5)) {
            rung += 1;
            timers.set(key, Some(at(5)));
        }
        assert_eq!((rung, timers.next()), (1, Some(at(5))));
        assert_eq!(timers.take_due(at(5)), ["a"]);
    }
}
