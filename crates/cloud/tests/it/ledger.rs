//! A ledger in memory.

use std::sync::Mutex;

use mullion_cloud::sim::{Ledger, Saved};

/// The values that a simulated EC2 has stored.
#[derive(Debug, Default)]
pub(crate) struct Book(pub(crate) Mutex<Saved>);

impl Ledger for Book {
    fn put(&self, key: &str, value: Option<Vec<u8>>) {
        let mut saved = self.0.lock().unwrap();
        match value {
            Some(value) => saved.insert(key.into(), value),
            None => saved.remove(key),
        };
    }
}
