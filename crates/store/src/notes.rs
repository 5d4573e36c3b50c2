//! Small values beside the objects: keys, certificates, the state of what the server works with.
//!
//! Invariant: in a durable store a note is permanent no later than any write of an object that is begun after it was put, so whoever
//! sees such an object finds the note, after a crash too.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;

use super::durable::{StoreError, Writer};

/// Values by key. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Notes {
    place: Place,
}

#[derive(Clone)]
enum Place {
    Memory(Arc<RwLock<BTreeMap<String, Bytes>>>),
    Journal(Writer),
}

impl Notes {
    pub(super) fn in_memory() -> Self {
        Notes {
            place: Place::Memory(Arc::default()),
        }
    }

    pub(super) fn in_journal(writer: Writer) -> Self {
        Notes {
            place: Place::Journal(writer),
        }
    }

    /// Returns the value under a key.
    pub fn get(&self, key: &str) -> Option<Bytes> {
        self.list(key).remove(key)
    }

    /// Returns the values whose keys begin with `prefix`, by key.
    pub fn list(&self, prefix: &str) -> BTreeMap<String, Bytes> {
        match &self.place {
            Place::Memory(values) => {
                let values = values.read().unwrap_or_else(PoisonError::into_inner);
                let from = values.range(prefix.to_owned()..);
                from.take_while(|(key, _)| key.starts_with(prefix))
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect()
            }
            Place::Journal(writer) => writer.notes(prefix),
        }
    }

    /// Sets the value under a key without waiting for the disk; see [`Notes::settled`].
    pub fn put(&self, key: impl Into<String>, value: impl Into<Bytes>) {
        self.change(key.into(), Some(value.into()));
    }

    /// Removes the value under a key without waiting for the disk.
    pub fn remove(&self, key: impl Into<String>) {
        self.change(key.into(), None);
    }

    fn change(&self, key: String, value: Option<Bytes>) {
        match &self.place {
            Place::Memory(values) => {
                let mut values = values.write().unwrap_or_else(PoisonError::into_inner);
                match value {
                    Some(value) => values.insert(key, value),
                    None => values.remove(&key),
                };
            }
            Place::Journal(writer) => writer.note(key, value),
        }
    }

    /// Waits until every note that was put is permanent.
    ///
    /// # Errors
    /// The disk does not take them.
    pub async fn settled(&self) -> Result<(), Arc<StoreError>> {
        match &self.place {
            Place::Memory(_) => Ok(()),
            Place::Journal(writer) => writer.settle().await,
        }
    }
}
