//! Why a directory cannot be used: each a sentence that names the place and the cause. What to do about it is said by the program that
//! was given the directory.

use std::{
    io,
    path::{Path, PathBuf},
};

/// A directory that cannot be used, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it.
    #[error("{} is in use by another process", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// It, or a file in it, may not be read or written.
    #[error("{} cannot be written: {why}", path.display())]
    Unwritable {
        /// The directory or file.
        path: PathBuf,
        /// The cause in words.
        why: &'static str,
    },
    /// No room is left.
    #[error("{} cannot be written: the file system is full", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// What is in the file was not written so.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another program wrote a file that has the name of one of the store's.
    #[error("{} is not a cluster's: another program wrote it", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A later version of the program has written it.
    #[error("{} was written by another version of this program (its format is {found}, known is {known})", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        found: u64,
        /// The only format that is known.
        known: u64,
    },
    /// An earlier version of the program has written it and was not stopped in order, so a part of it is in a journal of that version.
    #[error("{} was left by an earlier version of this program that was not stopped in order", path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// There is something already where something new was to be made.
    #[error("{} holds a cluster already", directory.display())]
    Occupied {
        /// The directory.
        directory: PathBuf,
    },
    /// There is nothing to read.
    #[error("{} holds no cluster", directory.display())]
    Empty {
        /// The directory.
        directory: PathBuf,
    },
    /// The system could not say that what was written is on disk. What it has dropped, it may have dropped for good, so nothing that is
    /// written after that could be trusted.
    #[error("{} may not be on disk: {why}; no write is taken until the server is started again", path.display())]
    Unsynced {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// The journal is full, and what is in it cannot be moved to the tables fast enough.
    #[error("{} does not take what the journal holds: the disk is too slow", path.display())]
    Behind {
        /// The file of the tables.
        path: PathBuf,
    },
    /// Reading or writing went wrong in another way.
    #[error("{} cannot be read or written: {source}", path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// The same, where it means that nobody knows what is on disk.
    pub(super) fn unsynced(self, path: &Path) -> Self {
        StoreError::Unsynced {
            path: path.to_owned(),
            why: match self {
                StoreError::Full { .. } => "the file system is full".to_owned(),
                StoreError::Io { source, .. } => source.to_string(),
                other => other.to_string(),
            },
        }
    }
}

/// What the system says about a path, in our words where the user can do something about it.
pub(super) fn file_error(path: &Path, source: io::Error) -> StoreError {
    let path = path.to_owned();
    let unwritable = |why| StoreError::Unwritable {
        path: path.clone(),
        why,
    };
    match source.kind() {
        io::ErrorKind::PermissionDenied => unwritable("you may not"),
        io::ErrorKind::ReadOnlyFilesystem => unwritable("the file system is read-only"),
        io::ErrorKind::NotFound => unwritable("the directory it belongs in is not there"),
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            unwritable("a file stands where a directory is needed")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path },
        io::ErrorKind::FileTooLarge => unwritable("the file may not become longer (ulimit -f)"),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => StoreError::Damaged {
            path,
            why: source.to_string(),
        },
        _ => StoreError::Io { path, source },
    }
}

/// What the database says.
pub(super) fn database_error(path: &Path, error: impl Into<redb::Error>) -> StoreError {
    let path = path.to_owned();
    match error.into() {
        redb::Error::Io(source) => file_error(&path, source),
        redb::Error::DatabaseAlreadyOpen => StoreError::InUse { directory: path },
        redb::Error::DatabaseClosed => StoreError::Closed,
        redb::Error::Corrupted(why) => StoreError::Damaged { path, why },
        other => StoreError::Damaged {
            path,
            why: other.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_can_mend_is_said_in_words() {
        let said = |kind: io::ErrorKind| file_error(Path::new("/data"), kind.into()).to_string();
        assert_eq!(
            said(io::ErrorKind::NotFound),
            "/data cannot be written: the directory it belongs in is not there"
        );
        assert_eq!(
            said(io::ErrorKind::PermissionDenied),
            "/data cannot be written: you may not"
        );
    }
}
