//! The fuzz targets' questions in small: over the corpus of each target, and over what a few changed bytes make of it.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests read files"
)]

mod questions;

use std::path::PathBuf;

use proptest::prelude::*;
use proptest::sample::Index;

/// The inputs that are kept for a target, in order of their names.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(folder).expect("every target has a corpus");
    let mut paths: Vec<_> = files.map(|file| file.expect("readable").path()).collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).expect("readable"))
        .collect()
}

/// One change of some bytes.
#[derive(Clone, Debug)]
enum Change {
    Put(Index, u8),
    Cut(Index, u8),
    Repeat(Index, u8),
    /// Puts a word of the formats where another may stand.
    Word(Index, &'static str),
}

fn change() -> impl Strategy<Value = Change> {
    let words = prop::sample::select(vec![
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
    ]);
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Put(at, byte)),
        (any::<Index>(), 1..40_u8).prop_map(|(at, length)| Change::Cut(at, length)),
        (any::<Index>(), 1..40_u8).prop_map(|(at, length)| Change::Repeat(at, length)),
        (any::<Index>(), words).prop_map(|(at, word)| Change::Word(at, word)),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        if bytes.is_empty() {
            break;
        }
        let span = |at: &Index, length: u8| {
            let from = at.index(bytes.len());
            from..bytes.len().min(from + usize::from(length))
        };
        match change {
            Change::Put(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Change::Cut(at, length) => drop(bytes.drain(span(at, *length))),
            Change::Repeat(at, length) => {
                let span = span(at, *length);
                let copy = bytes[span.clone()].to_vec();
                bytes.splice(span.start..span.start, copy);
            }
            Change::Word(at, word) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, word.bytes());
            }
        }
    }
    bytes
}

fn all_hold(target: &str, ask: fn(&[u8])) {
    let corpus = corpus(target);
    corpus.iter().for_each(|input| ask(input));
    let changes = prop::collection::vec(change(), 1..6);
    proptest!(ProptestConfig::with_cases(2000), |(input in any::<Index>(), changes in changes)| {
        ask(&changed(corpus[input.index(corpus.len())].clone(), &changes));
    });
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
