//! A directory that one process at a time uses: the file of the database, those of the journal, a lock, and who may read them.
//!
//! The lock is held until the [`Directory`] is released or dropped, and the system takes it back from a process that dies. A new database gets its
//! name only when it is whole, so a crash while it is made leaves none; then the lock file says that a cluster is kept ([`super::folder_state()`]).

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use redb::{Builder, Database, StorageBackend, backends::FileBackend};

use super::{
    backend::Backend,
    caught::caught,
    error::{StoreError, database_error, file_error},
    folder_state::{KEPT, LockState, why_missing},
    overlay::Overlay,
};

/// The database's name.
pub(super) const DATABASE: &str = "state.redb";
/// The name of a database that is not whole yet.
pub(super) const UNFINISHED: &str = "state.redb.new";
/// The names of the journal's files.
pub(super) const JOURNAL: [&str; 2] = ["journal.0", "journal.1"];
/// The name of the file that is locked, and that says whether a cluster is kept.
pub(super) const LOCK: &str = "lock";
/// The size of the database's page cache. It can be small: only the newest pages are read often.
const CACHE_BYTES: usize = 16 << 20;

/// The function that opens a file of the directory by name; tests inject a failing disk with it.
pub(super) type OpenFile =
    Arc<dyn Fn(File, &str) -> io::Result<Arc<dyn StorageBackend>> + Send + Sync>;

/// A directory in use by this process.
pub(super) struct Directory {
    path: PathBuf,
    open_file: OpenFile,
    lock: Mutex<Option<File>>,
}

impl Directory {
    /// Creates the directory, with access for its owner only, unless it exists, and takes its lock.
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
        // A lock of the operating system, not the existence of the file: it ends with the process, also after
        // a crash.
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::InUse {
                    directory: path.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(file_error(path, error)),
        }
        let taken = Directory {
            path: path.to_owned(),
            open_file,
            lock: Mutex::new(Some(lock)),
        };
        match taken.lock_says()? {
            LockState::Foreign => Err(StoreError::Foreign {
                path: path.join(LOCK),
            }),
            LockState::Nothing | LockState::Kept => Ok(taken),
        }
    }

    /// Reads the lock file and returns its finding.
    fn lock_says(&self) -> Result<LockState, StoreError> {
        let mut content = Vec::new();
        self.with_lock_file(|mut file| {
            file.rewind()?;
            file.take(KEPT.len() as u64 + 1).read_to_end(&mut content)
        })?;
        Ok(LockState::of(&content))
    }

    /// Writes into the lock file that the directory holds a cluster.
    pub(super) fn mark_kept(&self) -> Result<(), StoreError> {
        if self.lock_says()? == LockState::Kept {
            return Ok(());
        }
        self.with_lock_file(|mut file| {
            file.rewind()?;
            file.write_all(KEPT)?;
            file.set_len(KEPT.len() as u64)?;
            file.sync_all()
        })
    }

    fn with_lock_file<T>(
        &self,
        work: impl FnOnce(&File) -> io::Result<T>,
    ) -> Result<T, StoreError> {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let file = lock.as_ref().ok_or(StoreError::Closed)?;
        work(file).map_err(|error| file_error(&self.path.join(LOCK), error))
    }

    /// Releases the lock, so that others can take the directory while this value still exists.
    pub(super) fn release(&self) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the database.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Returns whether the directory holds a database.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if there was a database: its journal is still there, or the lock file says so.
    pub(super) fn is_occupied(&self) -> Result<bool, StoreError> {
        let path = self.database();
        if path.exists() {
            return Ok(true);
        }
        match why_missing(&self.path, self.lock_says()?) {
            None => Ok(false),
            Some(why) => Err(StoreError::Damaged {
                path,
                why: why.to_owned(),
            }),
        }
    }

    /// Verifies the checksums of the whole database without changing the file. The database's own repair would go back to an older state
    /// where it finds damage, and the cluster would forget writes that it has acknowledged.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let path = self.database();
        let backend = self.backend(self.existing()?, DATABASE, &path)?;
        // Opening repairs the database, so it is opened on an overlay that keeps writes in memory.
        let overlay = Overlay::over(backend).map_err(|error| file_error(&path, error))?;
        // What it finds in damaged pages may be impossible to it.
        let checked = caught(|| {
            let mut database = Builder::new()
                .set_cache_size(CACHE_BYTES)
                .create_with_backend(overlay)?;
            database.check_integrity()
        });
        match checked {
            Some(Ok(true)) => Ok(()),
            Some(Ok(false)) | None => Err(StoreError::Damaged {
                why: "what is in it is not what was written".to_owned(),
                path,
            }),
            Some(Err(error)) => Err(database_error(&path, error)),
        }
    }

    /// Opens the database that is there, and the file it is in.
    pub(super) fn open(&self) -> Result<(Database, Backend), StoreError> {
        self.database_in(self.existing()?, DATABASE, &self.database())
    }

    /// Returns the database's file.
    fn existing(&self) -> Result<File, StoreError> {
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
        Ok(file)
    }

    fn database_in(
        &self,
        file: File,
        name: &str,
        path: &Path,
    ) -> Result<(Database, Backend), StoreError> {
        let backend = self.backend(file, name, path)?;
        let database = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(backend.clone());
        let database = database.map_err(|error| database_error(path, error))?;
        Ok((database, backend))
    }

    fn backend(&self, file: File, name: &str, path: &Path) -> Result<Backend, StoreError> {
        let opened = (self.open_file)(file, name);
        opened
            .map(Backend::new)
            .map_err(|error| file_error(path, error))
    }

    /// Creates or reopens one of the two journal files, for new content.
    pub(super) fn make_journal(&self, index: usize) -> Result<(Backend, PathBuf), StoreError> {
        let path = self.path.join(JOURNAL[index]);
        let file = private().open(&path);
        let file = file.map_err(|error| file_error(&path, error))?;
        Ok((self.backend(file, JOURNAL[index], &path)?, path))
    }

    /// Opens one of the two journal files as an earlier process has left it.
    pub(super) fn open_journal(&self, index: usize) -> Result<(Backend, PathBuf), StoreError> {
        let path = self.path.join(JOURNAL[index]);
        let file = private().create(false).open(&path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::Damaged {
                path: path.clone(),
                why: "it is missing".to_owned(),
            },
            _ => file_error(&path, error),
        })?;
        Ok((self.backend(file, JOURNAL[index], &path)?, path))
    }

    /// Removes the journal.
    pub(super) fn remove_journal(&self) -> Result<(), StoreError> {
        for name in JOURNAL {
            remove(&self.path.join(name))?;
        }
        Ok(())
    }

    /// Creates a database, lets `fill` write it, and renames it into place, replacing one that is there.
    pub(super) fn make(
        &self,
        fill: impl FnOnce(&Database) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let path = self.path.join(UNFINISHED);
        let failed = |error| file_error(&path, error);
        // One from a process that died is worth nothing.
        remove(&path)?;
        let file = private().open(&path).map_err(failed)?;
        let (made, _) = self.database_in(file, UNFINISHED, &path)?;
        let filled = fill(&made);
        drop(made);
        if let Err(error) = filled {
            // It has no name that anybody looks for.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        // The database is closed and synced before it gets its name, and the directory is synced before the
        // lock file claims that there is a cluster.
        fs::rename(&path, self.database()).map_err(failed)?;
        self.sync()?;
        self.mark_kept()
    }

    /// Removes the database. Whatever else is in the directory stays.
    pub(super) fn erase(&self) -> Result<(), StoreError> {
        // First, so that an erasure that is cut off leaves no cluster that is said to be kept.
        self.with_lock_file(|file| file.set_len(0))?;
        remove(&self.path.join(UNFINISHED))?;
        remove(&self.database())?;
        self.remove_journal()?;
        self.sync()
    }

    /// Syncs the directory itself, so that created and renamed files survive a crash.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        #[cfg(unix)]
        File::open(&self.path)
            .and_then(|directory| directory.sync_all())
            .map_err(|error| file_error(&self.path, error))?;
        Ok(())
    }
}

/// Returns a file on the disk.
pub(super) fn open_file(file: File, _name: &str) -> io::Result<Arc<dyn StorageBackend>> {
    let opened = FileBackend::new(file).map_err(io::Error::other)?;
    Ok(Arc::new(opened))
}

/// Removes a file that may not be there.
fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error(path, error)),
        _ => Ok(()),
    }
}

/// Returns the options to create and open files that only their owner may read and write.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
