//! The errors of a store directory. Each message names the path and the cause; the program that was given the directory adds what to do
//! about it.

use std::{
    io,
    path::{Path, PathBuf},
};

/// An error that makes a store directory unusable, at opening or later.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process holds the directory's lock.
    #[error("{} is in use by another process", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// Permissions, a read-only file system or a similar cause forbid access to the directory or a file in it.
    #[error("{} cannot be written: {why}", path.display())]
    Unwritable {
        /// The directory or file.
        path: PathBuf,
        /// The cause in words.
        why: &'static str,
    },
    /// The file system or the user's quota is full.
    #[error("{} cannot be written: the file system is full", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The content of the file fails a check, or the file ends too early.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file has a name that the store uses, but another program wrote it.
    #[error("{} is not a cluster's: another program wrote it", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file has a format that this version of the program cannot read.
    #[error("{} was written by another version of this program (its format is {found}, known is {known})", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        found: u64,
        /// The only format that is known.
        known: u64,
    },
    /// An earlier version of the program wrote the file and did not shut down cleanly, so a part of the data is in a journal of that
    /// version.
    #[error("{} was left by an earlier version of this program that was not stopped in order", path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// The directory already holds a cluster, and the caller asked for a new one.
    #[error("{} holds a cluster already", directory.display())]
    Occupied {
        /// The directory.
        directory: PathBuf,
    },
    /// The directory holds no cluster to read.
    #[error("{} holds no cluster", directory.display())]
    Empty {
        /// The directory.
        directory: PathBuf,
    },
    /// A sync failed, so the data may not be on disk. The operating system may have dropped the dirty pages for good, so no later write
    /// could be trusted either.
    #[error("{} may not be on disk: {why}; no write is taken until the server is started again", path.display())]
    Unsynced {
        /// The file.
        path: PathBuf,
        /// The operating system's message.
        why: String,
    },
    /// The journal is full, and its entries cannot be folded into the tables fast enough.
    #[error("{} does not take what the journal holds: the disk is too slow", path.display())]
    Behind {
        /// The file of the tables.
        path: PathBuf,
    },
    /// Reading or writing failed for any other reason.
    #[error("{} cannot be read or written: {source}", path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Returns [`StoreError::Unsynced`] with this error as its cause, for errors after which the content on disk is unknown.
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

/// Turns an I/O error of a path into a [`StoreError`], with a message of our own for causes that the user can remove.
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

/// Turns an error of the database into a [`StoreError`].
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
