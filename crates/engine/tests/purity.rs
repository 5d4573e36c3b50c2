//! The engine is pure, and this is where that is looked after: its sources name nothing of the outside world, and the
//! lint list forbids it. What it may depend on is among the workspace's import rules.
//!
//! Comments and tests beside the code are not looked at. What is forbidden here and in `clippy.toml` is the same.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this test reads the sources; the engine reads nothing"
)]

use std::path::{Path, PathBuf};

/// Names that no source may hold, and why.
const FORBIDDEN: [(&str, &str); 27] = [
    ("std::time", "time is an argument"),
    ("Instant::now", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("std::env", "inputs are arguments"),
    ("std::thread", "the engine starts no threads"),
    ("Mutex", "nothing shared changes"),
    ("RwLock", "nothing shared changes"),
    ("OnceLock", "nothing shared changes"),
    ("sync::atomic", "nothing shared changes"),
    ("std::fs", "the engine does no IO"),
    ("std::io", "the engine does no IO"),
    ("std::net", "the engine does no IO"),
    ("std::os", "there need not be an operating system"),
    ("std::process", "the engine starts nothing"),
    ("thread_local!", "nothing is global"),
    ("static mut", "nothing is global"),
    ("RandomState", "its order is random"),
    ("collections::HashMap", "its order is random"),
    ("collections::HashSet", "its order is random"),
    ("hashbrown::HashMap", "its order is random"),
    ("hashbrown::HashSet", "its order is random"),
    ("getrandom", "randomness is an argument"),
    ("unsafe ", "the engine has no use for it"),
    ("async fn", "the engine never waits"),
    (".await", "the engine never waits"),
    ("println!", "the engine says nothing by itself"),
    ("extern \"C\"", "the engine calls nothing outside"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code of a source: without comments, and without what is after `#[cfg(test)]`, which ends every file that has it.
fn code(text: &str) -> String {
    let code = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text);
    let lines = code.lines().map(|line| match line.find("//") {
        Some(at) => &line[..at],
        None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn no_source_names_the_outside_world() {
    let mut paths = Vec::new();
    sources(&root().join("src"), &mut paths);
    assert!(paths.len() > 80, "the sources are there");
    let mut found = Vec::new();
    for path in paths.iter().filter(|path| !path.ends_with("tests.rs")) {
        let code = code(&std::fs::read_to_string(path).expect("a text file"));
        for (name, why) in FORBIDDEN {
            if code.contains(name) {
                found.push(format!("{}: {name}: {why}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn maps_of_indexmap_say_their_hasher() {
    let mut paths = Vec::new();
    sources(&root().join("src"), &mut paths);
    for path in paths {
        let code = code(&std::fs::read_to_string(&path).expect("a text file"));
        for kind in ["IndexMap<", "IndexSet<"] {
            for (at, _) in code.match_indices(kind) {
                let rest = &code[at..code.len().min(at + 120)];
                let said = rest.split(['=', ';', '{']).next().unwrap_or(rest);
                assert!(
                    said.contains("FxBuildHasher"),
                    "{}: {said}: without a hasher its order is random",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn the_lint_list_forbids_clocks_environment_threads_files_and_random_maps() {
    let list = std::fs::read_to_string(root().join("clippy.toml")).expect("the lint list");
    for path in [
        "std::time::Instant",
        "std::time::SystemTime",
        "std::collections::HashMap",
        "std::collections::HashSet",
        "std::hash::RandomState",
        "std::fs::File",
        "std::net::TcpStream",
        "std::net::UdpSocket",
        "std::process::Command",
        "std::thread::spawn",
        "std::thread::sleep",
        "std::env::var",
        "std::env::args",
        "std::fs::read",
        "std::io::stdin",
    ] {
        assert!(
            list.contains(&format!("\"{path}\"")),
            "{path} is not forbidden"
        );
    }
}

#[test]
fn the_crate_has_no_unsafe_code() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("the manifest");
    assert!(manifest.contains("[lints]\nworkspace = true\n"));
    let workspace = root().join("../../Cargo.toml");
    let workspace = std::fs::read_to_string(workspace).expect("the workspace's manifest");
    assert!(workspace.contains("unsafe_code = \"forbid\""));
}
