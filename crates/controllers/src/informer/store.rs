//! The objects of one kind by key, and the indexes over them.
//!
//! Invariant: an object is in an index exactly under the values that its index function returns for the stored
//! version.

use std::sync::Arc;

use kube::Resource;
use rustc_hash::FxHashMap;

use super::{IndexFn, Key};

/// The index that every store has.
pub(super) const NAMESPACE: &str = "namespace";

pub(super) struct Store<K> {
    objects: FxHashMap<Key, Arc<K>>,
    indexes: Vec<Index<K>>,
}

struct Index<K> {
    name: &'static str,
    values_of: IndexFn<K>,
    entries: FxHashMap<Box<str>, FxHashMap<Key, Arc<K>>>,
}

impl<K> Store<K> {
    pub(super) fn object(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    pub(super) fn objects(&self) -> impl ExactSizeIterator<Item = &Arc<K>> {
        self.objects.values()
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn by_index(
        &self,
        index: &str,
        value: &str,
    ) -> impl ExactSizeIterator<Item = &Arc<K>> {
        let entry = self
            .indexes
            .iter()
            .find(|i| i.name == index)
            .and_then(|i| i.entries.get(value));
        entry.map(FxHashMap::values).unwrap_or_default()
    }
}

impl<K: Resource> Store<K> {
    pub(super) fn new(indexes: &[(&'static str, IndexFn<K>)]) -> Self {
        let by_namespace: (&str, IndexFn<K>) = (NAMESPACE, |object, file_under| {
            if let Some(namespace) = &object.meta().namespace {
                file_under(namespace);
            }
        });
        let indexes = std::iter::once(&by_namespace)
            .chain(indexes)
            .map(|&(name, values_of)| Index {
                name,
                values_of,
                entries: FxHashMap::default(),
            })
            .collect();
        Self {
            objects: FxHashMap::default(),
            indexes,
        }
    }

    /// Stores `object`, and returns the version that it replaces.
    pub(super) fn insert(&mut self, key: Key, object: Arc<K>) -> Option<Arc<K>> {
        let previous = self.objects.insert(key.clone(), Arc::clone(&object));
        for index in &mut self.indexes {
            if let Some(previous) = &previous {
                // The old version is removed by its own values, which may differ from those of the new one.
                index.remove(&key, previous);
            }
            index.insert(&key, &object);
        }
        previous
    }

    /// Removes and returns the object under `key`.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let object = self.objects.remove(key)?;
        for index in &mut self.indexes {
            index.remove(key, &object);
        }
        Some(object)
    }

    /// Replaces the whole content by `objects`. Returns the version that each of them replaces, and the removed
    /// objects.
    pub(super) fn replace(
        &mut self,
        objects: impl ExactSizeIterator<Item = (Key, Arc<K>)>,
    ) -> (Vec<Option<Arc<K>>>, Vec<Arc<K>>) {
        // With the objects taken out and the indexes cleared, `insert` finds no earlier versions to remove
        // one by one.
        let mut before = std::mem::take(&mut self.objects);
        for index in &mut self.indexes {
            index.entries.clear();
        }
        let previous = objects
            .map(|(key, object)| {
                let previous = before.remove(&key);
                self.insert(key, object);
                previous
            })
            .collect();
        (previous, before.into_values().collect())
    }
}

impl<K> Index<K> {
    fn insert(&mut self, key: &Key, object: &Arc<K>) {
        let entries = &mut self.entries;
        (self.values_of)(object, &mut |value| match entries.get_mut(value) {
            Some(entry) => {
                entry.insert(key.clone(), Arc::clone(object));
            }
            None => {
                entries.insert(
                    value.into(),
                    std::iter::once((key.clone(), Arc::clone(object))).collect(),
                );
            }
        });
    }

    fn remove(&mut self, key: &Key, object: &K) {
        let entries = &mut self.entries;
        (self.values_of)(object, &mut |value| {
            if let Some(entry) = entries.get_mut(value) {
                entry.remove(key);
                if entry.is_empty() {
                    entries.remove(value);
                }
            }
        });
    }
}
