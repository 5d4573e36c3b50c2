//! The fuzz targets' questions in small: over the corpus of each target, and over what a few changed bytes make of it.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests read files"
)]

#[path = "../../../../fuzz/near.rs"]
mod near;
mod questions;

/// Words of the formats.
const WORDS: &[&str] = &[
    "null",
    "-1",
    "\"\"",
    "[]",
    "{}",
    "9223372036854775807",
    "1e999",
    "Ei",
    ".",
    "\\u0000",
    "metadata.name",
    "NotIn",
    "\"Exists\"",
    "kubernetes.io/hostname",
];

fn all_hold(target: &str, ask: fn(&[u8])) {
    near::all_hold(target, WORDS, 2000, ask);
}

#[test]
fn any_text_is_a_quantity_that_holds_together_or_none() {
    all_hold("engine_quantity", questions::quantity);
}

#[test]
fn any_selectors_are_answered_or_refused() {
    all_hold("engine_selector", questions::selector);
}

#[test]
fn any_objects_are_taken_in_or_refused() {
    all_hold("engine_objects", questions::objects);
}
