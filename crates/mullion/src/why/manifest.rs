//! The files of `-f`: every object in them, with where it stands.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::template::put;
use crate::{
    failure::{Failure, file_error, first_line},
    input,
};

/// Endings of the files of a directory that are read, as kubectl reads them.
const ENDINGS: [&str; 3] = ["json", "yaml", "yml"];

/// An object of a manifest.
pub(super) struct Document {
    /// `shop.yaml: document 2 (Service shop/web)`.
    pub(super) place: String,
    pub(super) object: Value,
}

/// Every object of these files, and of the files of these directories; lists are taken apart.
///
/// # Errors
/// A file cannot be read or is no manifest, or an object lacks its kind, apiVersion or name.
pub(super) fn documents(paths: &[PathBuf]) -> Result<Vec<Document>, Failure> {
    let mut found = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => {
                for file in files(path)? {
                    read(&file, &mut found)?;
                }
            }
            false => read(path, &mut found)?,
        }
    }
    Ok(found)
}

/// The manifests of a directory by name; those of directories in it are not.
fn files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let shown = directory.display();
    let refuse = |error: std::io::Error| {
        Failure::input(format!("{shown} cannot be read: {}", file_error(&error)))
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(refuse)? {
        let path = entry.map_err(refuse)?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_file() && ending.is_some_and(|ending| ENDINGS.contains(&ending)) {
            files.push(path);
        }
    }
    files.sort();
    match files.is_empty() {
        false => Ok(files),
        true => Err(Failure::input(format!(
            "{shown} has no manifest: no file that ends in .yaml, .yml or .json"
        ))),
    }
}

fn read(path: &Path, found: &mut Vec<Document>) -> Result<(), Failure> {
    let text = input::text_of(path)?;
    let shown = input::named(path);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
        .map_err(|error| Failure::input(format!("{shown}: {}", first_line(&error))))?;
    let several = documents.len() > 1;
    for (index, object) in documents.into_iter().enumerate() {
        let place = match several {
            true => format!("{shown}: document {}", index + 1),
            false => shown.to_string(),
        };
        take(object, place, found)?;
    }
    Ok(())
}

fn take(object: Value, place: String, found: &mut Vec<Document>) -> Result<(), Failure> {
    if object.is_null() {
        return Ok(());
    }
    if let Some(items) = object["items"].as_array() {
        let usual = object["kind"].as_str().unwrap_or_default();
        let usual = usual.strip_suffix("List").unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            let mut item = item.clone();
            if item["kind"].is_null() && !usual.is_empty() {
                put(&mut item, "apiVersion", object["apiVersion"].clone());
                put(&mut item, "kind", usual.into());
            }
            take(item, format!("{place}: items[{index}]"), found)?;
        }
        return Ok(());
    }
    let title = title(&object);
    if let Some(missing) = missing(&object) {
        let named = match title.is_empty() {
            true => title,
            false => format!(" ({title})"),
        };
        return Err(Failure::input(format!(
            "{place}{named}: an object without {missing}"
        )));
    }
    found.push(Document {
        place: format!("{place} ({title})"),
        object,
    });
    Ok(())
}

/// What an object lacks that every one has.
fn missing(object: &Value) -> Option<&'static str> {
    let lacks = |value: &Value| value.as_str().is_none_or(str::is_empty);
    let meta = &object["metadata"];
    if lacks(&object["kind"]) {
        return Some("a kind");
    }
    if lacks(&object["apiVersion"]) {
        return Some("an apiVersion");
    }
    (lacks(&meta["name"]) && lacks(&meta["generateName"])).then_some("a name")
}

/// `Service shop/web`, as far as it is said.
fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let meta = &object["metadata"];
    let home = Some(text(&meta["namespace"])).filter(|home| !home.is_empty());
    let name = match home {
        Some(home) => format!("{home}/{}", text(&meta["name"])),
        None => text(&meta["name"]),
    };
    let title = format!("{} {name}", text(&object["kind"]));
    title.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Result<Vec<String>, String> {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("all.yaml"), text).expect("a file");
        std::fs::write(directory.path().join("notes.txt"), "kind: [").expect("a file");
        let shown = format!("{}/", directory.path().display());
        let read = documents(&[directory.path().to_owned()]);
        let places = read.map(|all| all.into_iter().map(|own| own.place.replace(&shown, "")));
        let places = places.map(Iterator::collect);
        places.map_err(|failure| failure.to_string().replace(&shown, ""))
    }

    #[test]
    fn every_object_of_a_directory_is_found_and_knows_its_place() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nkind: List\nitems:\n- kind: ServiceList\n  apiVersion: v1\n  items: [{metadata: {name: b, namespace: c}}]\n";
        let expected = [
            "all.yaml: document 1 (Pod a)",
            "all.yaml: document 2: items[0]: items[0] (Service c/b)",
        ];
        assert_eq!(places(text).expect("manifests"), expected);
    }

    #[test]
    fn an_object_that_lacks_what_every_one_has_is_named() {
        let refused = |text: &str| places(text).expect_err("refused");
        for (text, expected) in [
            (
                "kind: List\nitems: [{metadata: {name: a}}]",
                "items[0] (a): an object without a kind",
            ),
            (
                "kind: PodList\napiVersion: v1\nitems: [a]",
                "items[0]: an object without a kind",
            ),
            ("[a]", "an object without a kind"),
            (
                "{kind: Pod, metadata: {name: a}}",
                " (Pod a): an object without an apiVersion",
            ),
            (
                "{kind: Pod, apiVersion: v1, metadata: {namespace: b}}",
                " (Pod b/): an object without a name",
            ),
            (
                "{kind: Pod, apiVersion: v1, metadata: a}",
                " (Pod): an object without a name",
            ),
        ] {
            let between = if expected.starts_with(' ') { "" } else { ": " };
            assert_eq!(refused(text), format!("error: all.yaml{between}{expected}"));
        }
    }
}
