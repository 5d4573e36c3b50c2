//! The files of the database and the journal. Each remembers whether a sync of it ever failed.
//!
//! After a failed sync the operating system may have dropped the pages that it could not write, and a repeated sync may
//! succeed all the same. So after one failure the file is not trusted for the rest of the process, whatever later calls
//! return.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::StorageBackend;

/// An open file. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub(super) struct Backend {
    file: Arc<dyn StorageBackend>,
    unsynced: Arc<AtomicBool>,
}

impl Backend {
    pub(super) fn new(file: Arc<dyn StorageBackend>) -> Self {
        Backend {
            file,
            unsynced: Arc::default(),
        }
    }

    /// Returns whether a sync has failed, after which the content on disk is unknown.
    pub(super) fn is_unsynced(&self) -> bool {
        self.unsynced.load(Ordering::Acquire)
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file
            .sync_data()
            .inspect_err(|_| self.unsynced.store(true, Ordering::Release))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}
