//! A table that finds values by content and gives each a number, which stays the same as long as the value is
//! kept.
//!
//! In an index map the removal of a value changes the numbers of others; here it does not. The number of a
//! removed value is used again.

use std::hash::{Hash, Hasher};
use std::ops::Index;

use hashbrown::HashTable;
use rustc_hash::FxHasher;

/// Values with their keys and numbers.
#[derive(Clone, Debug)]
pub(super) struct Table<K, V> {
    /// The values by number; `None` where a number is free.
    rows: Vec<Option<(K, V)>>,
    /// The hash table of numbers; `None` while there are few values.
    by_key: Option<HashTable<u32>>,
    /// The numbers of removed values, which are used again before new ones.
    free: Vec<u32>,
}

/// Up to this many values, comparing a key with all others is faster than hashing it: keys are large and differ
/// in their first fields.
const FEW: usize = 16;

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table {
            rows: Vec::new(),
            by_key: None,
            free: Vec::new(),
        }
    }
}

impl<K: Hash + Eq, V> Table<K, V> {
    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    pub(super) fn find(&self, key: &K) -> Option<usize> {
        let same = |number: &u32| {
            self.row(*number as usize)
                .is_some_and(|(known, _)| known == key)
        };
        match &self.by_key {
            Some(by_key) => by_key.find(hash(key), same).map(|number| *number as usize),
            None => (0..self.rows.len()).find(|number| same(&(*number as u32))),
        }
    }

    /// Adds a key that is not in the table yet.
    pub(super) fn insert(&mut self, key: K, value: V) -> usize {
        let row = Some((key, value));
        let number = match self.free.pop() {
            Some(number) => {
                self.rows[number as usize] = row;
                number
            }
            None => {
                self.rows.push(row);
                u32::try_from(self.rows.len() - 1).expect("fewer than four billion fit in memory")
            }
        };
        if self.by_key.is_some() {
            self.index(number);
        } else if self.rows.len() > FEW {
            // Kept from now on: a table around this size would otherwise be hashed again and again.
            self.by_key = Some(HashTable::new());
            (0..self.rows.len() as u32).for_each(|number| self.index(number));
        }
        number as usize
    }

    /// Enters the value with this number, if there is one, into the hash table.
    fn index(&mut self, number: u32) {
        let rows = &self.rows;
        let hash_of = |number: &u32| {
            let row = rows[*number as usize].as_ref();
            // Only numbers in use are in the hash table, so the default is never taken.
            row.map_or(0, |(key, _)| hash(key))
        };
        if let Some(by_key) = &mut self.by_key
            && rows[number as usize].is_some()
        {
            by_key.insert_unique(hash_of(&number), number, hash_of);
        }
    }

    pub(super) fn remove(&mut self, number: usize) -> Option<V> {
        let (key, value) = self.rows.get_mut(number)?.take()?;
        if let Some(by_key) = &mut self.by_key
            && let Ok(entry) = by_key.find_entry(hash(&key), |known| *known as usize == number)
        {
            entry.remove();
        }
        self.free.push(number as u32);
        Some(value)
    }

    pub(super) fn key(&self, number: usize) -> Option<&K> {
        self.row(number).map(|(key, _)| key)
    }

    pub(super) fn get(&self, number: usize) -> Option<&V> {
        self.row(number).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut V> {
        let row = self.rows.get_mut(number)?.as_mut();
        row.map(|(_, value)| value)
    }

    /// Returns all values with their numbers and keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &K, &V)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(number, row)| row.as_ref().map(|(key, value)| (number, key, value)))
    }

    fn row(&self, number: usize) -> Option<&(K, V)> {
        self.rows.get(number)?.as_ref()
    }
}

impl<K, V> Index<usize> for Table<K, V> {
    type Output = V;

    fn index(&self, number: usize) -> &V {
        let row = self.rows[number].as_ref();
        &row.expect("a number is used for as long as its value is kept")
            .1
    }
}

fn hash<K: Hash>(key: &K) -> u64 {
    let mut hasher = FxHasher::default();
    key.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_values_are_found_like_few() {
        let mut table = Table::default();
        for key in 0..4 * FEW {
            assert_eq!((table.find(&key), table.insert(key, ())), (None, key));
            table.remove(key / 2);
            assert_eq!(table.find(&(key / 2)), None);
            table.insert(key / 2, ());
            let found = (0..=key).map(|known| table.find(&known));
            assert!(found.eq((0..=key).map(Some)), "{key}");
            assert_eq!(table.len(), key + 1);
        }
    }

    #[test]
    fn numbers_outlive_the_removal_of_others_and_are_given_out_again() {
        let mut table = Table::default();
        let numbers = ["a", "b", "c"].map(|key| table.insert(key, key.len()));
        assert_eq!(table.remove(numbers[0]), Some(1));
        assert_eq!(
            (table.find(&"a"), table.find(&"c")),
            (None, Some(numbers[2]))
        );
        assert_eq!(table.insert("dd", 2), numbers[0]);
        assert_eq!(table.len(), 3);
        assert_eq!(table.iter().map(|(_, _, length)| length).sum::<usize>(), 4);
    }
}
