//! Inputs near those that are kept: what the fuzz targets' questions are asked of in ordinary tests.
//!
//! A test binary takes this file in by its path. `all_hold` asks a question of every input in `corpus/TARGET/` and of what a few changed
//! bytes make of them; proptest's seed decides which, and a failure prints it. `FUZZ_CASES=100000` asks of that many.

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

fn change(words: &'static [&'static str]) -> impl Strategy<Value = Change> {
    let words = prop::sample::select(words);
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

/// Asks a question of a target's inputs, and of so many that are near them; `words` are put in where another may stand.
pub(crate) fn all_hold(target: &str, words: &'static [&'static str], near: u32, ask: fn(&[u8])) {
    let corpus = corpus(target);
    corpus.iter().for_each(|input| ask(input));
    let near = std::env::var("FUZZ_CASES").map_or(near, |cases| cases.parse().expect("a number"));
    let changes = prop::collection::vec(change(words), 1..6);
    let config = ProptestConfig {
        cases: near,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(input in any::<Index>(), changes in changes)| {
        ask(&changed(corpus[input.index(corpus.len())].clone(), &changes));
    });
}
