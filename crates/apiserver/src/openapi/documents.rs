//! The documents of the current resource table.
//!
//! Documents are generated when first requested, and kept until one of their resources changes.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use jiff::Timestamp;
use mullion_kinds::Resource;
use sha2::{Digest, Sha512};

use super::V2;
use crate::registry::{Registry, Table};

/// A document with the hash of its JSON, which is the ETag of both encodings.
#[derive(Clone)]
pub(crate) struct Document {
    pub(crate) json: Bytes,
    /// Empty until it is first requested.
    pub(crate) protobuf: Bytes,
    pub(crate) hash: Arc<str>,
    pub(crate) made: Timestamp,
}

impl Document {
    fn new(json: Bytes, protobuf: Bytes, now: Timestamp) -> Self {
        let hash = digest(&json).into();
        Document {
            json,
            protobuf,
            hash,
            made: now,
        }
    }
}

/// The generated documents of the current resource table.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Option<Documents>>);

/// The documents of one table.
pub(crate) struct Documents {
    table: Arc<Table>,
    /// The v3 documents by name.
    pub(crate) v3: BTreeMap<String, Document>,
    /// The resources that each v3 document describes.
    subjects: BTreeMap<String, Vec<Arc<Resource>>>,
    v2: Option<Document>,
    /// The last v2 document, possibly of an earlier table.
    everything: Option<V2>,
}

impl Cache {
    /// Calls `look` with the documents of the current table, which are generated first if needed.
    pub(crate) fn with<T>(
        &self,
        registry: &Registry,
        now: Timestamp,
        look: impl FnOnce(&mut Documents) -> T,
    ) -> T {
        let table = registry.table();
        // The lock is held while documents are generated: several clients that ask at once cause the work once.
        let mut documents = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // Documents are tied to one table; a new table reuses those that did not change.
        let current = match documents.take() {
            Some(known) if Arc::ptr_eq(&known.table, &table) => known,
            before => Documents::of(table, before, registry, now),
        };
        look(documents.insert(current))
    }
}

impl Documents {
    /// Generates the documents of a table, and reuses those whose resources have not changed.
    fn of(
        table: Arc<Table>,
        before: Option<Documents>,
        registry: &Registry,
        now: Timestamp,
    ) -> Self {
        let made = |json: String| Document::new(json.into(), Bytes::new(), now);
        let mut v3 = BTreeMap::new();
        let mut subjects = BTreeMap::new();
        for (name, resources) in super::subjects(&table) {
            let known = before.as_ref().and_then(|before| {
                let told = before.subjects.get(&name)?;
                // Compared by address: a definition that has changed has a new resource, and comparing schemas would cost much more.
                let alike = told.len() == resources.len()
                    && told.iter().zip(&resources).all(|(a, b)| Arc::ptr_eq(a, b));
                before.v3.get(&name).filter(|_| alike).cloned()
            });
            let document = known.or_else(|| {
                let first = resources.first()?;
                super::v3(&table, registry, &first.group, &first.version).map(made)
            });
            if let Some(document) = document {
                v3.insert(name.clone(), document);
                subjects.insert(name, resources);
            }
        }
        let mut everything = None;
        match before {
            // Documents that describe no group's version (such as `/version`) never change.
            Some(before) => {
                let around = before.v3.into_iter();
                v3.extend(around.filter(|(name, _)| !before.subjects.contains_key(name)));
                everything = before.everything;
            }
            None => {
                let around = super::v3_non_resource(&table, registry).into_iter();
                v3.extend(around.map(|(name, json)| (name, made(json))));
            }
        }
        Documents {
            table,
            v3,
            subjects,
            v2: None,
            everything,
        }
    }

    /// Returns the v2 document.
    pub(crate) fn everything(&mut self, registry: &Registry, now: Timestamp) -> Document {
        let (table, everything) = (&self.table, &mut self.everything);
        let made = self.v2.get_or_insert_with(|| {
            let made = super::v2(table, registry, everything.as_ref());
            let document = Document::new(made.json.clone(), made.protobuf.clone(), now);
            *everything = Some(made);
            document
        });
        made.clone()
    }
}

/// Returns the hash of a document as kube-apiserver writes it: SHA-512 in upper-case hexadecimal digits.
pub(crate) fn digest(document: &[u8]) -> String {
    let mut text = String::with_capacity(128);
    for byte in Sha512::digest(document) {
        let _ = write!(text, "{byte:02X}");
    }
    text
}
