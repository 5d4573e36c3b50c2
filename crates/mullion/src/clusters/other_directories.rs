//! Remembers the clusters in directories that `--data-dir` named, so that `mullion list` can show them when they are stopped.
//!
//! Each has a small file below the state directory with its path. An entry whose directory has no cluster any more is removed when the list
//! is read; only the list uses these files.

use std::{
    fs,
    hash::{Hash, Hasher},
    io,
    path::{Path, PathBuf},
};

use rustc_hash::FxHasher;
use serde::{Deserialize, Serialize};

use super::{keep, named_root};
use crate::{input, kubeconfig};

/// A cluster in a directory of its own.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct ClusterDirectory {
    /// The name that the cluster had when it ran.
    pub(super) name: String,
    /// The directory of the cluster.
    pub(super) directory: PathBuf,
}

fn directories() -> Option<PathBuf> {
    let state = kubeconfig::state_dir().ok()?;
    Some(state.join("mullion").join("elsewhere"))
}

/// Remembers the directory of a cluster, unless it is the usual one for its name.
pub(super) fn remember(name: &str, directory: &Path) {
    if named_root().is_ok_and(|root| directory.parent() == Some(&*root)) {
        return;
    }
    let directory = ClusterDirectory {
        name: name.to_owned(),
        directory: directory.to_owned(),
    };
    let Some(directories) = directories() else {
        return;
    };
    if let Err(error) = try_remember(&directories, &directory) {
        tracing::warn!(%error, "`mullion list` will not know this cluster when it is stopped");
    }
}

fn try_remember(directories: &Path, directory: &ClusterDirectory) -> io::Result<()> {
    fs::create_dir_all(directories)?;
    // There is one file for each directory, so that processes do not overwrite each other's entries.
    let mut hasher = FxHasher::default();
    directory.directory.hash(&mut hasher);
    let file = directories.join(format!("{:016x}.json", hasher.finish()));
    fs::write(file, serde_json::to_vec(directory)?)
}

/// Returns the clusters that still exist.
pub(super) fn all() -> Vec<ClusterDirectory> {
    directories()
        .map(|directories| all_in(&directories))
        .unwrap_or_default()
}

fn all_in(directories: &Path) -> Vec<ClusterDirectory> {
    let entries = fs::read_dir(directories).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for file in entries.map(|entry| entry.path()) {
        let directory = fs::read(&file)
            .ok()
            .and_then(|text| input::json::<ClusterDirectory>(&text).ok());
        match directory {
            Some(directory) if keep::is_kept(&directory.directory) => found.push(directory),
            // Another process may have removed the file already.
            _ => drop(fs::remove_file(&file)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_remembered_as_long_as_it_holds_a_cluster() {
        let directories = tempfile::tempdir().expect("a directory");
        let kept = tempfile::tempdir().expect("a directory");
        let directory = ClusterDirectory {
            name: "shop".to_owned(),
            directory: kept.path().to_owned(),
        };
        let database = kept.path().join("state.redb");
        fs::write(&database, "x").expect("writable");
        // A second start does not change the entry.
        for _ in 0..2 {
            try_remember(directories.path(), &directory).expect("it can be written");
        }
        assert_eq!(all_in(directories.path()), [directory]);
        fs::write(directories.path().join("other.json"), "no JSON").expect("writable");
        fs::remove_file(&database).expect("it is there");
        assert_eq!(all_in(directories.path()), []);
        let left = fs::read_dir(directories.path()).expect("readable").count();
        assert_eq!(left, 0);
    }
}
