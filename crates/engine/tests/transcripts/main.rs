//! Runs the transcripts in `testdata/*.txt`: commands, `----`, what the engine answers.
//!
//! A transcript is read like a session: all blocks of a file act on one cluster, in order. After a deliberate change
//! run with `UPDATE_TRANSCRIPTS=1`, which rewrites the answers, and review the difference. Words: see `words.rs`.

#![allow(
    clippy::disallowed_methods,
    reason = "the runner reads files; the engine does not"
)]

mod session;
mod storage;
mod words;

use std::path::PathBuf;

use session::Session;

#[test]
fn every_transcript_in_testdata_is_what_the_engine_answers() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let update = std::env::var_os("UPDATE_TRANSCRIPTS").is_some();
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("testdata is there")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "there are transcripts");
    let mut differing = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a text file");
        let replayed = replay(&text);
        if replayed == text {
            continue;
        }
        if update {
            std::fs::write(&path, replayed).expect("a writable file");
        } else {
            differing.push(format!(
                "{}\n{}",
                path.display(),
                first_difference(&text, &replayed)
            ));
        }
    }
    assert!(
        differing.is_empty(),
        "UPDATE_TRANSCRIPTS=1 rewrites\n{}",
        differing.join("\n")
    );
}

/// The transcript with the answers of this engine. Comment lines (`#`) and blank lines stay.
fn replay(text: &str) -> String {
    let mut session = Session::default();
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    let mut answers = String::new();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        if line == "----" {
            out.push_str(&std::mem::take(&mut answers));
            while lines.peek().is_some_and(|line| !line.is_empty()) {
                lines.next();
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            answers.push_str(&session.run(line));
        }
    }
    out
}

fn first_difference(expected: &str, found: &str) -> String {
    let mut pairs = expected.lines().zip(found.lines()).enumerate();
    match pairs.find(|(_, (expected, found))| expected != found) {
        Some((line, (expected, found))) => format!(
            "line {}\n  expected {expected}\n  found    {found}",
            line + 1
        ),
        None => format!(
            "expected {} lines, found {}",
            expected.lines().count(),
            found.lines().count()
        ),
    }
}
