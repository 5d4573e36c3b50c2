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
    let (mut named, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut next: Vec<_> = directories.into_iter().collect();
    while let Some(directory) = next.pop() {
        if seen.insert(directory.clone()) {
            let Kustomization {
                patches,
                components,
            } = named_in(&directory);
            named.extend(patches);
            next.extend(components);
        }
    }
    named
}

/// The paths that a kustomization names.
#[derive(Default)]
struct Kustomization {
    /// The files that are merged into objects.
    patches: Vec<PathBuf>,
    /// The directories with kustomizations of their own that are a part of this one.
    components: Vec<PathBuf>,
}

/// Returns what the kustomization of a directory names.
fn named_in(directory: &Path) -> Kustomization {
    let mut texts = NAMES
        .into_iter()
        .filter_map(|name| std::fs::read_to_string(directory.join(name)).ok());
    let read = texts.next().map(|text| serde_saphyr::from_str(&text));
    let Some(Ok(kustomization)) = read else {
        return Kustomization::default();
    };
    let kustomization: Value = kustomization;
    let paths = |list: &str| -> Vec<PathBuf> {
        let items = kustomization[list].as_array().into_iter().flatten();
        let paths = items.filter_map(|item| item.as_str().or(item["path"].as_str()));
        let real = paths.filter_map(|path| directory.join(path).canonicalize().ok());
        real.collect()
    };
    let lists = ["patches", "patchesStrategicMerge", "patchesJson6902"];
    Kustomization {
        patches: lists.into_iter().flat_map(paths).collect(),
        components: paths("components"),
    }
}
