//! Reads manifests for `mullion why -f` and `mullion check`: all their objects, each with its place in the file.

use std::{
    collections::{BTreeMap, hash_map::Entry},
    fmt,
    path::{Path, PathBuf},
};

use rustc_hash::FxHashMap;
use serde_json::Value;

use super::{kinds, refused::Refusals, template::put, world};
use crate::{
    failure::{Failure, file_error, first_line},
    input, out,
};

/// The file extensions that are read in a directory, the same as kubectl's.
const ENDINGS: [&str; 3] = ["json", "yaml", "yml"];

/// The number of notes about objects that are given more than once.
const SHOWN: usize = 4;

/// An object of a manifest. It may lack fields that every object must have, until [`whole`] has refused it.
pub(crate) struct Document {
    pub(crate) place: Place,
    pub(crate) object: Value,
}

impl Document {
    /// Returns whether the object is of a kind that is no misspelling of another one.
    pub(super) fn is_known(&self) -> bool {
        let kind = self.object["kind"].as_str().unwrap_or_default();
        kinds::meant(kind).is_none()
    }
}

/// The place of an object, as in `shop.yaml: document 2 (Service shop/web)`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    text: String,
    /// The number of objects before this one, in all files.
    pub(super) order: usize,
    pub(super) kind: String,
    /// The namespace that the object names; empty if it names none.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Place {
    /// Returns the place of an object that comes first.
    pub(crate) fn of(text: &str, kind: &str, name: &str) -> Self {
        Place {
            text: text.to_owned(),
            order: 0,
            kind: kind.to_owned(),
            namespace: String::new(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An object in a YAML document, or an item if the document is a list; it may be any YAML value.
pub(crate) struct ManifestObject {
    /// The index of the document in the file, from 0.
    pub(crate) document: usize,
    /// The index of the item in the list, and in lists within lists; empty if the document is not a list.
    pub(crate) items: Vec<usize>,
    pub(crate) object: Value,
}

/// Reads all objects from these files and from the files in these directories; lists are replaced by their items.
///
/// # Errors
/// A file cannot be read or is not a manifest.
pub(crate) fn documents(paths: &[PathBuf]) -> Result<Vec<Document>, Failure> {
    let mut found = Vec::new();
    for path in paths {
        for file in files(path)? {
            read(&file, &mut found)?;
        }
    }
    Ok(found)
}

/// Returns the objects that have a kind, an apiVersion and a name, and refuses the others.
pub(crate) fn whole(mut documents: Vec<Document>, refusals: &mut Refusals) -> Vec<Document> {
    documents.retain(|Document { place, object }| {
        let missing = missing(object);
        if let Some(missing) = missing {
            let failure = Failure::input(format!("an object without {missing}"));
            refusals.refuse(place, failure);
        }
        missing.is_none()
    });
    documents
}

/// Returns whether any of the objects is of a kind.
pub(crate) fn have(documents: &[Document], kind: &str) -> bool {
    let mut objects = documents.iter().map(|document| &document.object);
    objects.any(|object| object["kind"] == kind)
}

/// Returns each object once: of those with the same kind, namespace and name the last one counts, as if all were applied in turn, and a note
/// names it. `namespace` is that of objects that name none. Objects whose names the API server makes are all different.
pub(crate) fn last_of_each(documents: Vec<Document>, namespace: Option<&str>) -> Vec<Document> {
    let mut kept: Vec<Document> = Vec::with_capacity(documents.len());
    let mut known: FxHashMap<[String; 4], usize> = FxHashMap::default();
    let mut replaced = BTreeMap::new();
    for document in documents {
        match identity(&document.object, namespace) {
            Some(identity) => match known.entry(identity) {
                // The object stays where it came first, because it is created then.
                Entry::Occupied(there) => {
                    replaced.insert(*there.get(), kept[*there.get()].place.clone());
                    kept[*there.get()] = document;
                }
                Entry::Vacant(free) => {
                    free.insert(kept.len());
                    kept.push(document);
                }
            },
            None => kept.push(document),
        }
    }
    for (index, earlier) in replaced.iter().take(SHOWN) {
        let Document { place, .. } = &kept[*index];
        out::note(&if place.text == earlier.text {
            format!("{place} is given more than once, and counts once")
        } else {
            format!("{place} counts in place of {earlier}, as with kubectl apply")
        });
    }
    if let more @ 1.. = replaced.len().saturating_sub(SHOWN) {
        out::note(&format!(
            "so for {more} more objects that are given more than once"
        ));
    }
    kept
}

/// Returns what only one object of a cluster can have: group, kind, namespace and name. Returns `None` if the API server is to make the name.
fn identity(object: &Value, namespace: Option<&str>) -> Option<[String; 4]> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let name = text(&object["metadata"]["name"]);
    if name.is_empty() {
        return None;
    }
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let home = if kinds::is_cluster_scoped(&kind) {
        ""
    } else {
        world::home_of(object, namespace)
    };
    Some([group.to_owned(), kind, home.to_owned(), name])
}

/// Returns the file itself, or the manifests directly in a directory, sorted by name; subdirectories are not searched, as by kubectl.
///
/// # Errors
/// The directory cannot be read or has no manifest, or the path is a Helm chart or its values.
fn files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if let Some(chart) = chart_of(path) {
        let (path, chart) = (path.display(), chart.display());
        return Err(
            Failure::input(format!("{path} is of a Helm chart, which Helm renders"))
                .hint(format!("helm template {chart} >all.yaml, and -f all.yaml")),
        );
    }
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files = Directory::of(path)?.files;
    some(files, path)
}

/// The manifests found in a directory and its subdirectories.
pub(crate) struct ManifestFiles {
    pub(crate) files: Vec<PathBuf>,
    /// Why subdirectories cannot be read.
    pub(crate) unread: Vec<Failure>,
    /// Directories that were skipped because they are Helm charts, whose templates are not valid manifests.
    pub(crate) charts: Vec<PathBuf>,
}

/// Returns the file itself, or the manifests in a directory and its subdirectories, sorted by name. Hidden directories and links to
/// directories are skipped.
///
/// # Errors
/// The directory cannot be read, or there is no manifest.
pub(crate) fn files_below(path: &Path) -> Result<ManifestFiles, Failure> {
    let mut below = ManifestFiles {
        files: Vec::new(),
        unread: Vec::new(),
        charts: Vec::new(),
    };
    if !path.is_dir() {
        below.files.push(path.to_owned());
        return Ok(below);
    }
    let mut left = vec![path.to_owned()];
    while let Some(directory) = left.pop() {
        if is_chart(&directory) {
            below.charts.push(directory);
            continue;
        }
        let Directory { files, directories } = match Directory::of(&directory) {
            Ok(read) => read,
            Err(failure) if directory == path => return Err(failure),
            Err(failure) => {
                below.unread.push(failure);
                continue;
            }
        };
        below.files.extend(files);
        // The last element is taken first, so the reversed order visits directories by name.
        left.extend(directories.into_iter().rev());
    }
    // If something was skipped, the caller tells the user about it instead.
    if below.charts.is_empty() && below.unread.is_empty() {
        below.files = some(below.files, path)?;
    }
    Ok(below)
}

/// Returns the Helm chart of a path that has no manifests: of the chart itself or of its templates, which Helm renders, or of a file of values.
pub(crate) fn chart_of(path: &Path) -> Option<&Path> {
    if is_chart(path) {
        return Some(path);
    }
    if path.is_dir() {
        let mut templates = path.ancestors().filter(|own| own.ends_with("templates"));
        return templates.find_map(|own| own.parent().filter(|chart| is_chart(chart)));
    }
    let name = path.file_name()?.to_str()?;
    let is_of_values = name.starts_with("values") && !name.ends_with(".json");
    path.parent()
        .filter(|parent| is_of_values && is_chart(parent))
}

/// Returns whether a directory is a Helm chart.
pub(crate) fn is_chart(directory: &Path) -> bool {
    directory.join("Chart.yaml").is_file()
}

fn some(files: Vec<PathBuf>, directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    if files.is_empty() {
        Err(Failure::input(format!(
            "{} has no manifest: no file that ends in .yaml, .yml or .json",
            directory.display()
        )))
    } else {
        Ok(files)
    }
}

/// The entries of a directory, sorted by name.
struct Directory {
    /// The manifests in the directory.
    files: Vec<PathBuf>,
    /// The subdirectories that are not hidden.
    directories: Vec<PathBuf>,
}

impl Directory {
    fn of(path: &Path) -> Result<Self, Failure> {
        let refuse = |error: std::io::Error| {
            let (shown, why) = (path.display(), file_error(&error));
            Failure::input(format!("{shown} cannot be read: {why}"))
        };
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(path).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let path = entry.path();
            let ending = path.extension().and_then(|ending| ending.to_str());
            if entry.file_type().map_err(refuse)?.is_dir() {
                if !entry.file_name().to_string_lossy().starts_with('.') {
                    directories.push(path);
                }
            } else if ending.is_some_and(|ending| ENDINGS.contains(&ending)) {
                // Emacs marks a file that is being edited by a link to nowhere with such a name.
                let is_lock = entry.file_name().to_string_lossy().starts_with(".#");
                let is_dangling = !is_lock && path.is_symlink() && !path.exists();
                if path.is_file() || is_dangling {
                    files.push(path);
                }
            }
        }
        files.sort();
        directories.sort();
        Ok(Directory { files, directories })
    }
}

fn read(path: &Path, found: &mut Vec<Document>) -> Result<(), Failure> {
    let text = input::text_of(path)?;
    let shown = input::named(path);
    let (several, objects) = objects(&text, &shown)?;
    if objects.is_empty() {
        out::note(&format!("{shown} has no objects: nothing is taken from it"));
    }
    for ManifestObject {
        document,
        items,
        object,
    } in objects
    {
        let mut place = if several {
            format!("{shown}: document {}", document + 1)
        } else {
            shown.clone()
        };
        for index in items {
            place += &format!(": items[{index}]");
        }
        let title = title(&object);
        if !title.is_empty() {
            place += &format!(" ({title})");
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        found.push(Document {
            place: Place {
                text: place,
                order: found.len(),
                kind: text(&object["kind"]),
                namespace: text(&object["metadata"]["namespace"]),
                name: text(&object["metadata"]["name"]),
            },
            object,
        });
    }
    Ok(())
}

/// Returns whether a text has several YAML documents, and their objects; empty documents are skipped, and lists are replaced by their
/// items.
///
/// # Errors
/// The text is not YAML.
pub(crate) fn objects(text: &str, shown: &str) -> Result<(bool, Vec<ManifestObject>), Failure> {
    // As in Go's YAML, 0440 is octal: the usual way to write the mode of a file.
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| Failure::input(format!("{shown}: {}", first_line(&error))))?;
    let several = documents.len() > 1;
    let mut found = Vec::new();
    for (document, object) in documents.into_iter().enumerate() {
        let whole = ManifestObject {
            document,
            items: Vec::new(),
            object,
        };
        take(whole, &mut found);
    }
    Ok((several, found))
}

fn take(whole: ManifestObject, found: &mut Vec<ManifestObject>) {
    let ManifestObject {
        document,
        ref items,
        ref object,
    } = whole;
    if object.is_null() {
        return;
    }
    let Some(list) = object["items"].as_array() else {
        return found.push(whole);
    };
    // The items of a typed list such as PodList need not have a kind.
    let usual = object["kind"].as_str().unwrap_or_default();
    let usual = usual.strip_suffix("List").unwrap_or_default();
    for (index, item) in list.iter().enumerate() {
        let mut item = item.clone();
        if item["kind"].is_null() && !usual.is_empty() {
            put(&mut item, "apiVersion", object["apiVersion"].clone());
            put(&mut item, "kind", usual.into());
        }
        let mut items = items.clone();
        items.push(index);
        let item = ManifestObject {
            document,
            items,
            object: item,
        };
        take(item, found);
    }
}

/// Returns which field an object lacks of those that every object must have.
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

/// Returns the kind, namespace and name of an object, as in `Service shop/web`; missing ones are left out.
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
        let mut refusals = Refusals::default();
        let read = documents(&[directory.path().to_owned()]);
        let read = read.map(|all| whole(all, &mut refusals));
        let read = read.and_then(|all| refusals.result().map(|()| all));
        let place = |own: Document| own.place.text.replace(&shown, "");
        let places = read.map(|all| all.into_iter().map(place).collect());
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
    fn numbers_are_read_as_kubectl_reads_them() {
        let text = "a: [0440, 0o440, 288, 0, 10, 08, '0440']";
        let (_, read) = objects(text, "a").expect("YAML");
        let expected = serde_json::json!([288, 288, 288, 0, 10, 8.0, "0440"]);
        assert_eq!(read[0].object["a"], expected);
    }

    #[test]
    fn of_objects_with_one_name_the_last_counts_where_the_first_stood() {
        let document = |place: &str, text: &str| Document {
            place: Place::of(place, "", ""),
            object: serde_saphyr::from_str(text).expect("YAML"),
        };
        let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a";
        let documents = vec![
            document("first", &format!("{pod}}}}}")),
            document("other home", &format!("{pod}, namespace: b}}}}")),
            document(
                "made 1",
                "{apiVersion: v1, kind: Pod, metadata: {generateName: a}}",
            ),
            document(
                "made 2",
                "{apiVersion: v1, kind: Pod, metadata: {generateName: a}}",
            ),
            document("node", "{apiVersion: v1, kind: Node, metadata: {name: a}}"),
            document("last", &format!("{pod}, namespace: shop}}}}")),
            document(
                "last node",
                "{apiVersion: v1, kind: Node, metadata: {name: a, namespace: b}}",
            ),
            document(
                "job",
                "{apiVersion: batch/v1, kind: Job, metadata: {name: a}}",
            ),
            document(
                "foreign",
                "{apiVersion: batch.example.com/v1, kind: Job, metadata: {name: a}}",
            ),
        ];
        let kept = last_of_each(documents, Some("shop"));
        let places: Vec<_> = kept.iter().map(|own| &*own.place.text).collect();
        let expected = [
            "last",
            "other home",
            "made 1",
            "made 2",
            "last node",
            "job",
            "foreign",
        ];
        assert_eq!(places, expected);
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
