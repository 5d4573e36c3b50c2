//! Finds the files that kustomize merges into other objects: they are parts of objects, whose required fields may be missing.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// The names of a kustomization.
const NAMES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
/// The number of directories above a file in which a kustomization is looked for.
const LEVELS: usize = 4;

/// Returns which of these files are patches of the kustomizations in their directories and above them.
pub(super) fn patches<'f>(files: impl Iterator<Item = &'f Path>) -> BTreeSet<PathBuf> {
    let files = files.filter_map(|file| file.canonicalize().ok());
    let above = |file: PathBuf| -> Vec<PathBuf> {
        let directories = file.ancestors().skip(1).take(LEVELS);
        directories.map(Path::to_owned).collect()
    };
    let directories: BTreeSet<_> = files.flat_map(above).collect();
    let named = directories.iter().flat_map(|directory| named_in(directory));
    named.collect()
}

/// Returns the patches that the kustomization of a directory names.
fn named_in(directory: &Path) -> Vec<PathBuf> {
    let mut texts = NAMES
        .into_iter()
        .filter_map(|name| std::fs::read_to_string(directory.join(name)).ok());
    let read = texts.next().map(|text| serde_saphyr::from_str(&text));
    let Some(Ok(kustomization)) = read else {
        return Vec::new();
    };
    let kustomization: Value = kustomization;
    let lists = ["patches", "patchesStrategicMerge", "patchesJson6902"].into_iter();
    let items = lists.flat_map(|list| kustomization[list].as_array().into_iter().flatten());
    let paths = items.filter_map(|item| item.as_str().or(item["path"].as_str()));
    paths
        .filter_map(|path| directory.join(path).canonicalize().ok())
        .collect()
}
