//! Classifies a folder before it is opened: free, holding a cluster, holding a cluster that has lost its data, or used by another program.
//!
//! [`folder_state`] only looks: it takes no lock, writes nothing and reads only the first bytes of each file. The lock file records that a
//! cluster was kept in the folder, so a database that was removed can be told from one that was never made.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{
    directory::{DATABASE, JOURNAL, LOCK, UNFINISHED},
    error::{StoreError, file_error},
};

/// The content of the lock file of a folder that holds a cluster.
pub(super) const KEPT: &[u8] =
    b"A cluster is kept in this folder, in state.redb. This file belongs to it.\n";
/// The first bytes of every redb database.
const MAGIC: &[u8] = b"redb\x1a\x0a\xa9\x0d\x0a";
/// The name of a folder that every new ext4 file system has.
const LOST_AND_FOUND: &str = "lost+found";

/// The state of a folder, as [`folder_state`] finds it.
#[derive(Clone, Debug, PartialEq)]
pub enum FolderState {
    /// A cluster can be made in the folder: it does not exist, is empty, or holds only the leftovers of a start that was cut off.
    Empty,
    /// The folder holds a cluster, which may be running. Only opening it shows whether the cluster can be read.
    Cluster,
    /// The folder held a cluster, but its database is missing or is no database any more.
    Damaged {
        /// The database.
        path: PathBuf,
        /// The damage, in the form of the message of [`StoreError::Damaged`].
        why: String,
    },
    /// The folder holds no cluster, but files of another program.
    Foreign {
        /// The first of these files, by name.
        path: PathBuf,
    },
}

/// The finding about a folder from its lock file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LockState {
    /// The file is absent or empty: no cluster was kept there by this version of the program.
    Nothing,
    /// The file says that a cluster is kept there.
    Kept,
    /// Another program wrote the file.
    Foreign,
}

impl LockState {
    /// Parses the content of the lock file.
    pub(super) fn of(content: &[u8]) -> Self {
        match content {
            // A crash while the file gets its content may leave zeros.
            zeros if zeros.iter().all(|byte| *byte == 0) => LockState::Nothing,
            KEPT => LockState::Kept,
            _ => LockState::Foreign,
        }
    }
}

/// Classifies a folder by its content and changes nothing.
///
/// # Errors
/// The path is no folder, or the folder or a file in it cannot be read.
pub fn folder_state(folder: &Path) -> Result<FolderState, StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FolderState::Empty),
        Err(error) => return Err(file_error(folder, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(
            entry
                .map_err(|error| file_error(folder, error))?
                .file_name(),
        );
    }
    names.sort();
    let path = folder.join(DATABASE);
    // Only the magic bytes are checked here; a running cluster holds the lock, so its database cannot be
    // opened.
    if names.iter().any(|name| name == DATABASE) {
        return Ok(match first_bytes(&path, MAGIC.len())?.as_slice() {
            MAGIC => FolderState::Cluster,
            [] => damaged(path, "it is empty"),
            _ => damaged(path, "it is not a database"),
        });
    }
    let lock = if names.iter().any(|name| name == LOCK) {
        LockState::of(&first_bytes(&folder.join(LOCK), KEPT.len() + 1)?)
    } else {
        LockState::Nothing
    };
    if let Some(why) = why_missing(folder, lock) {
        return Ok(damaged(path, why));
    }
    let foreign = names.iter().find(|name| match lock {
        LockState::Foreign if *name == LOCK => true,
        _ => ![LOCK, UNFINISHED, LOST_AND_FOUND]
            .iter()
            .any(|own| *name == own),
    });
    Ok(match foreign {
        Some(name) => FolderState::Foreign {
            path: folder.join(name),
        },
        None => FolderState::Empty,
    })
}

/// Returns the evidence that a folder without a database once had one, or `None` if there is no evidence.
pub(super) fn why_missing(folder: &Path, lock: LockState) -> Option<&'static str> {
    if JOURNAL.iter().any(|name| folder.join(name).exists()) {
        return Some("it is missing, and the journal beside it is not");
    }
    (lock == LockState::Kept)
        .then_some("it is missing, and the lock beside it says that a cluster is kept there")
}

fn damaged(path: PathBuf, why: &str) -> FolderState {
    let why = why.to_owned();
    FolderState::Damaged { path, why }
}

fn first_bytes(path: &Path, most: usize) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most as u64).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(error) => Err(file_error(path, error)),
    }
}
