//! One of the two files of the journal, as its only writer uses it: a mark, entries one after the other, then what an earlier use of the
//! file has left.
//!
//! Invariant: an entry is written only where the file is long enough already, for it and for one block more, and that length is on disk.
//! So a file that ends within an entry, or right behind one, has been cut short by somebody else.

use std::path::PathBuf;

use redb::StorageBackend;

use super::{
    super::{
        backend::Backend,
        error::{StoreError, file_error},
    },
    block::BLOCK,
};

/// The file grows by so many bytes at a time.
const STEP: u64 = 256 << 10;
/// The offset of the first entry; the mark stands before it.
pub(super) const FIRST: u64 = BLOCK as u64;

/// A file of the journal.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) backend: Backend,
    pub(super) path: PathBuf,
    /// The length of the file in bytes, as far as it is known to be on disk.
    len: u64,
    /// The offset at which the next entry is written.
    at: u64,
    /// True if an append has failed, so that a refused entry may follow the last one.
    torn: bool,
}

impl Segment {
    /// Creates a file that begins with a mark, overwriting what is in it.
    pub(super) fn new(
        backend: Backend,
        path: PathBuf,
        mark: &[u8; BLOCK],
    ) -> Result<Self, StoreError> {
        let mut segment = Segment::found(backend, path);
        let failed = |error| file_error(&segment.path, error);
        // Blocks of an earlier journal must not follow the new entries.
        segment.backend.set_len(0).map_err(failed)?;
        segment.fill(0, STEP)?;
        segment.put_mark(mark)?;
        segment.sync()?;
        segment.len = STEP;
        Ok(segment)
    }

    /// Wraps a file of an earlier process, for reading.
    pub(super) fn found(backend: Backend, path: PathBuf) -> Self {
        Segment {
            backend,
            path,
            len: 0,
            at: FIRST,
            torn: false,
        }
    }

    /// Returns the bytes of the entries in it.
    pub(super) fn bytes(&self) -> u64 {
        self.at - FIRST
    }

    /// Begins anew. Of a file that has grown beyond `most` bytes the rest is given back.
    pub(super) fn begin_again(&mut self, most: u64) -> Result<(), StoreError> {
        if self.len > most {
            let failed = |error| file_error(&self.path, error);
            self.backend.set_len(most).map_err(failed)?;
            self.len = most;
        }
        self.at = FIRST;
        Ok(())
    }

    /// Writes an entry durably, and with it everything that was written before.
    pub(super) fn append(&mut self, entry: &[u8]) -> Result<(), StoreError> {
        let end = self.at + entry.len() as u64;
        let needed = end + BLOCK as u64;
        if needed > self.len {
            let len = needed.next_multiple_of(STEP);
            // Growing and writing in one step could leave a short file after a crash, which counts as cut by
            // somebody else.
            self.fill(self.len, len)?;
            self.sync()?;
            self.len = len;
        }
        // Until the sync succeeds nobody knows how much of the entry is on disk.
        self.torn = true;
        self.write(self.at, entry)?;
        self.sync()?;
        self.torn = false;
        self.at = end;
        Ok(())
    }

    /// Ensures that no entry follows the last one. A refused entry may be complete on disk, and its number is used again.
    pub(super) fn end(&mut self) -> Result<(), StoreError> {
        if self.torn {
            self.write(self.at, &[0; BLOCK])?;
            self.sync()?;
            self.torn = false;
        }
        Ok(())
    }

    /// Writes the mark; it is permanent after the next sync.
    pub(super) fn put_mark(&self, mark: &[u8; BLOCK]) -> Result<(), StoreError> {
        self.write(0, mark)
    }

    /// Syncs the file's data to disk.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let synced = self.backend.sync_data();
        synced.map_err(|error| file_error(&self.path, error))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let written = self.backend.write(at, bytes);
        written.map_err(|error| file_error(&self.path, error))
    }

    /// Fills a part of the file with zeros. Written and not only made longer: what is written there later then needs no more than its own bytes.
    fn fill(&self, from: u64, to: u64) -> Result<(), StoreError> {
        let zeros = vec![0; STEP as usize];
        let mut at = from;
        while at < to {
            let part = STEP.min(to - at);
            self.write(at, &zeros[..part as usize])?;
            at += part;
        }
        Ok(())
    }
}
