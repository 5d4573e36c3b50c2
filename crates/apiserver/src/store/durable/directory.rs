//! A directory that one process at a time uses: the file of the database, a lock, and who may read them.
//!
//! The lock is held as long as the [`Directory`] lives, and the system takes it back from a process that dies. A new database gets its
//! name only when it is whole, so a crash while it is made leaves none.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use redb::{Builder, Database, backends::FileBackend};

use super::error::{StoreError, database_error, file_error};

/// The database's name.
const DATABASE: &str = "state.redb";
/// The name of a database that is not whole yet.
const UNFINISHED: &str = "state.redb.new";
const LOCK: &str = "lock";
/// What the database keeps of its pages in memory; beyond the youngest pages it reads hardly any.
const CACHE_BYTES: usize = 16 << 20;

/// How a file becomes a database; tests put a failing disk in between.
pub(super) type OpenFile = Arc<dyn Fn(File) -> Result<Database, redb::DatabaseError> + Send + Sync>;

/// A directory in use by this process.
pub(super) struct Directory {
    path: PathBuf,
    open_file: OpenFile,
    _lock: File,
}

impl Directory {
    /// Makes the directory, private to its owner, unless it is there, and takes it.
    pub(super) fn take(path: &Path, open_file: OpenFile) -> Result<Self, StoreError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .create(path)
            .map_err(|error| file_error(path, error))?;
        let lock = private().open(path.join(LOCK));
        let lock = lock.map_err(|error| file_error(path, error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Directory {
                path: path.to_owned(),
                open_file,
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse {
                directory: path.to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(file_error(path, error)),
        }
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the database is.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Whether there is a database.
    pub(super) fn is_occupied(&self) -> bool {
        self.database().exists()
    }

    /// Opens the database that is there.
    pub(super) fn open(&self) -> Result<Database, StoreError> {
        let path = self.database();
        let file = private().create(false).open(&path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::Empty {
                directory: self.path.clone(),
            },
            _ => file_error(&path, error),
        })?;
        // The database would take an empty file for a new one.
        let len = file
            .metadata()
            .map_err(|error| file_error(&path, error))?
            .len();
        if len == 0 {
            let why = "it is empty".to_owned();
            return Err(StoreError::Damaged { path, why });
        }
        (self.open_file)(file).map_err(|error| database_error(&path, error))
    }

    /// Makes a database that `fill` fills, and puts it in its place, also where there is one.
    pub(super) fn make(
        &self,
        fill: impl FnOnce(&Database) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let path = self.path.join(UNFINISHED);
        let failed = |error| file_error(&path, error);
        // One from a process that died is worth nothing.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let file = private().open(&path).map_err(failed)?;
        let made = (self.open_file)(file).map_err(|error| database_error(&path, error))?;
        let filled = fill(&made);
        drop(made);
        if let Err(error) = filled {
            // It has no name that anybody looks for.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        fs::rename(&path, self.database()).map_err(failed)?;
        self.sync()
    }

    /// Removes the database. Whatever else is in the directory stays.
    pub(super) fn erase(&self) -> Result<(), StoreError> {
        for path in [self.path.join(UNFINISHED), self.database()] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(file_error(&path, error));
                }
                _ => {}
            }
        }
        self.sync()
    }

    /// Makes the names in the directory permanent.
    fn sync(&self) -> Result<(), StoreError> {
        #[cfg(unix)]
        File::open(&self.path)
            .and_then(|directory| directory.sync_all())
            .map_err(|error| file_error(&self.path, error))?;
        Ok(())
    }
}

/// The database in a file.
pub(super) fn open_file(file: File) -> Result<Database, redb::DatabaseError> {
    Builder::new()
        .set_cache_size(CACHE_BYTES)
        .create_with_backend(FileBackend::new(file)?)
}

/// How files that only their owner may read are opened.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
