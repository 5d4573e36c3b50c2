//! One of the two files of the journal: entries one after the other from its beginning, then what an earlier use of it has left.
//!
//! Invariant: an entry is written only where the file is long enough already, for it and for the head of the next, and that length is
//! on disk. So a file that ends within an entry, or right behind one, has been cut short by somebody else, and is told from one whose
//! last entry was torn by a power cut.

use std::path::{Path, PathBuf};

use redb::StorageBackend;

use super::{
    super::{
        backend::Backend,
        error::{StoreError, file_error},
    },
    entry::{HEAD, Head, Rows},
};

/// The file grows by so many bytes at a time.
const STEP: u64 = 256 << 10;
/// Entries begin at multiples of it, so that a head lies within one sector of the disk and is there or not.
const ALIGNED: u64 = HEAD as u64;

/// A file of the journal.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) backend: Backend,
    pub(super) path: PathBuf,
    /// How long the file is for certain.
    len: u64,
    /// Where the next entry goes.
    at: u64,
    /// Whether there may be a refused entry already.
    torn: bool,
}

impl Segment {
    /// A new file, whatever is in it.
    pub(super) fn new(backend: Backend, path: PathBuf) -> Result<Self, StoreError> {
        let mut segment = Segment {
            backend,
            path,
            len: 0,
            at: 0,
            torn: false,
        };
        let failed = |error| file_error(&segment.path, error);
        segment.backend.set_len(0).map_err(failed)?;
        segment.grow_to(STEP)?;
        Ok(segment)
    }

    /// One that another process has left, to be read.
    pub(super) fn found(backend: Backend, path: PathBuf) -> Self {
        Segment {
            backend,
            path,
            len: 0,
            at: 0,
            torn: false,
        }
    }

    /// The bytes of the entries in it.
    pub(super) fn bytes(&self) -> u64 {
        self.at
    }

    /// Begins anew. Of a file that has grown beyond `most` bytes the rest is given back.
    pub(super) fn begin_again(&mut self, most: u64) -> Result<(), StoreError> {
        if self.len > most {
            let failed = |error| file_error(&self.path, error);
            self.backend.set_len(most).map_err(failed)?;
            self.len = most;
        }
        self.at = 0;
        Ok(())
    }

    /// Makes an entry permanent.
    pub(super) fn append(&mut self, entry: &[u8]) -> Result<(), StoreError> {
        let end = self.at + (entry.len() as u64).next_multiple_of(ALIGNED);
        if end + ALIGNED > self.len {
            self.grow_to((end + ALIGNED).next_multiple_of(STEP))?;
        }
        self.torn = true;
        self.write(self.at, entry)?;
        self.torn = false;
        self.at = end;
        Ok(())
    }

    /// Makes sure that no entry follows the last one. One that was refused may be there as a whole, and its number is given again.
    pub(super) fn end(&mut self) -> Result<(), StoreError> {
        if self.torn {
            self.write(self.at, &[0; HEAD])?;
            self.torn = false;
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let failed = |error| file_error(&self.path, error);
        self.backend.write(at, bytes).map_err(failed)?;
        self.backend.sync_data().map_err(failed)
    }

    fn grow_to(&mut self, len: u64) -> Result<(), StoreError> {
        let failed = |error| file_error(&self.path, error);
        // Written and not only made longer: what is written there later then needs no more than its own bytes.
        let zeros = vec![0; STEP as usize];
        let mut at = self.len;
        while at < len {
            let part = STEP.min(len - at);
            self.backend
                .write(at, &zeros[..part as usize])
                .map_err(failed)?;
            at += part;
        }
        self.backend.sync_data().map_err(failed)?;
        self.len = len;
        Ok(())
    }
}

/// Reads entries from the beginning of a file on, as long as each is whole and its number is one more than the last.
pub(super) struct Entries<'a> {
    backend: &'a Backend,
    path: &'a Path,
    identity: u64,
    len: u64,
    at: u64,
    last: Option<u64>,
    rows: Vec<u8>,
}

impl<'a> Entries<'a> {
    pub(super) fn of(
        backend: &'a Backend,
        path: &'a Path,
        identity: u64,
    ) -> Result<Self, StoreError> {
        let len = backend.len().map_err(|error| file_error(path, error))?;
        Ok(Entries {
            backend,
            path,
            identity,
            len,
            at: 0,
            last: None,
            rows: Vec::new(),
        })
    }

    /// The next entry's number and rows; none where the entries end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Rows<'_>)>, StoreError> {
        let Some(head) = self.head()? else {
            return Ok(None);
        };
        let follows = head.number > 0 && self.last.is_none_or(|last| head.number == last + 1);
        if !follows || self.at + HEAD as u64 + head.len > self.len {
            return Ok(None);
        }
        self.rows.resize(head.len as usize, 0);
        let failed = |error| file_error(self.path, error);
        self.backend
            .read(self.at + HEAD as u64, &mut self.rows)
            .map_err(failed)?;
        if !head.fits(self.identity, &self.rows) {
            return Ok(None);
        }
        self.at += (HEAD as u64 + head.len).next_multiple_of(ALIGNED);
        self.last = Some(head.number);
        Ok(Some((head.number, Rows(&self.rows))))
    }

    fn head(&self) -> Result<Option<Head>, StoreError> {
        if self.len - self.at < HEAD as u64 {
            return Ok(None);
        }
        let mut bytes = [0; HEAD];
        let failed = |error| file_error(self.path, error);
        self.backend.read(self.at, &mut bytes).map_err(failed)?;
        Ok(Some(Head::read(bytes)))
    }

    /// Whether the entries end because a write was torn, or none was made. Otherwise something that was permanent is not there any more.
    ///
    /// # Errors
    /// The file was cut short, or a later entry than `folded` is whole behind one that is not.
    pub(super) fn check_end(&self, folded: u64) -> Result<(), StoreError> {
        let damaged = |why: &str| {
            Err(StoreError::Damaged {
                path: self.path.to_owned(),
                why: why.to_owned(),
            })
        };
        let last = self.last.unwrap_or(0).max(folded);
        let Some(head) = self.head()? else {
            return damaged("it is cut short");
        };
        // A torn entry fits in all the same.
        let end = (self.at + HEAD as u64 + head.len).next_multiple_of(ALIGNED);
        if head.number == last + 1 && end + ALIGNED > self.len {
            return damaged("it is cut short");
        }
        let mut rest = vec![0; (self.len - self.at) as usize];
        let failed = |error| file_error(self.path, error);
        self.backend.read(self.at, &mut rest).map_err(failed)?;
        for at in (HEAD..rest.len()).step_by(HEAD) {
            let Some(bytes) = rest[at..].first_chunk::<HEAD>() else {
                break;
            };
            let head = Head::read(*bytes);
            if head.number <= last {
                continue;
            }
            let rows = rest[at + HEAD..].get(..head.len as usize);
            if rows.is_some_and(|rows| head.fits(self.identity, rows)) {
                return damaged("entries in the middle of it cannot be read");
            }
        }
        Ok(())
    }
}
