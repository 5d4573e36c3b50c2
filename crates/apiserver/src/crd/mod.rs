//! Custom resource definitions: from a definition object to served rows.
//!
//! [`mullion_schema::structural`] parses a version's schema once. [`defaults`], [`validation`] and [`rules`] ([`mullion_cel`]) apply the
//! schema to every write, and the schema becomes the [`mullion_schema::Type`] that decoding, pruning and field ownership use.
//! [`correlation`] finds the values that a write does not change. [`resource`] is the [`mullion_kinds::Kind`] of the instances.
//! [`definition`] and [`kind`] validate the definitions themselves; [`crate::definitions`] accepts their names, establishes them and cleans
//! up after them.

pub(crate) mod columns;
mod correlation;
pub(crate) mod defaults;
pub(crate) mod definition;
mod finalizers;
mod findings;
mod jsonpath;
pub(crate) mod kind;
pub(crate) mod resource;
pub(crate) mod rules;
pub(crate) mod validation;

use std::{
    collections::HashSet,
    sync::{LazyLock, Mutex, PoisonError},
};

/// The finalizer that keeps a definition until its instances are gone.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Returns a copy of the text that lives as long as the program. Only column names and selectable fields are interned: they are few, and
/// each new version of a definition brings the same ones again.
pub(crate) fn intern(text: &str) -> &'static str {
    static TEXTS: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known;
    }
    let leaked: &'static str = Box::leak(text.into());
    texts.insert(leaked);
    leaked
}
