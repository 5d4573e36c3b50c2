//! The write-ahead journal: a group of writes becomes permanent when it is appended to a file, with one write and one sync.
//!
//! The journal has two files of [`block`]s. While entries go to one, those of the other are folded into the tables ([`super::folder`]);
//! then they change places. The numbers of entries grow by one and never come twice, so after a crash the entries that are not in the
//! tables yet are found by their numbers, in whichever file they are ([`mod@recover`]). Each file begins with a mark that says up to which
//! number entries were acknowledged; it is brought up to date when writes pause, and with a group every now and then.

mod block;
mod entries;
mod entry;
mod recover;
mod segment;

use std::{
    ops::RangeInclusive,
    path::Path,
    time::{Duration, Instant},
};

use self::{
    entries::{Entries, damaged},
    segment::Segment,
};
pub(super) use self::{
    entry::{Entry, Row},
    recover::recover,
};
use super::{directory::Directory, error::StoreError};

/// The bytes of entries after which a file counts as full, and the other file is used if it is free.
const FULL: u64 = 8 << 20;
/// The bytes of entries that a file takes at most while the other file is not free.
const OVERFULL: u64 = 64 << 20;
/// A buffer that has grown beyond this is not kept.
const MOST_KEPT: usize = 1 << 20;

/// The journal, for its only writer.
pub(super) struct Journal {
    segments: [Segment; 2],
    active: usize,
    identity: u64,
    /// The number of the next entry.
    next: u64,
    /// The number of the first entry in the active file.
    first: u64,
    /// The number of attempts to write an entry, including those that the disk refused.
    attempts: u32,
    blocks: Vec<u8>,
    /// Up to which number entries are marked as acknowledged, and since when.
    marked: (u64, Instant),
    /// The age that a mark may reach while entries are written; `None` writes no marks.
    mark_after: Option<Duration>,
}

/// Entries that are to be folded.
pub(super) struct Part {
    segment: Segment,
    identity: u64,
    numbers: RangeInclusive<u64>,
}

impl Journal {
    /// Creates both files. Entries are numbered from `last + 1`.
    pub(super) fn create(
        directory: &Directory,
        identity: u64,
        last: u64,
        mark_after: Option<Duration>,
    ) -> Result<Self, StoreError> {
        let make = |index| -> Result<Segment, StoreError> {
            let (backend, path) = directory.make_journal(index)?;
            Segment::new(backend, path, &block::mark(identity, last))
        };
        let segments = [make(0)?, make(1)?];
        directory.sync()?;
        Ok(Journal {
            segments,
            active: 0,
            identity,
            next: last + 1,
            first: last + 1,
            attempts: 0,
            blocks: Vec::new(),
            marked: (last, Instant::now()),
            mark_after,
        })
    }

    /// Writes an entry durably, as a whole or not at all.
    pub(super) fn append(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let (_, since) = self.marked;
        if self.needs_mark()
            && self
                .mark_after
                .is_some_and(|after| since.elapsed() >= after)
        {
            // The sync of the entry is the mark's as well.
            self.put_mark()?;
        }
        // What a refused attempt has left is not taken for a part of this one.
        self.attempts = self.attempts.wrapping_add(1);
        let (attempt, rows) = (self.attempts, entry.rows());
        self.blocks.shrink_to(MOST_KEPT);
        block::write_entry(&mut self.blocks, self.identity, self.next, attempt, rows);
        self.segments[self.active].append(&self.blocks)?;
        // Only after success: a refused entry's number is used again, and its attempt tells the two apart.
        self.next += 1;
        Ok(())
    }

    /// Returns the pause after which the written entries should be marked, or `None` if there is nothing to mark.
    pub(super) fn mark_in(&self) -> Option<Duration> {
        self.mark_after.filter(|_| self.needs_mark())
    }

    /// Marks all entries as acknowledged, permanently.
    pub(super) fn mark(&mut self) -> Result<(), StoreError> {
        self.put_mark()?;
        self.segments[self.active].sync()
    }

    fn needs_mark(&self) -> bool {
        self.marked.0 < self.last()
    }

    fn put_mark(&mut self) -> Result<(), StoreError> {
        let last = self.last();
        self.segments[self.active].put_mark(&block::mark(self.identity, last))?;
        self.marked = (last, Instant::now());
        Ok(())
    }

    /// Returns the number of the last entry.
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Returns the path of a file whose sync has failed, after which its content on disk is unknown.
    pub(super) fn unsynced(&self) -> Option<&Path> {
        let mut segments = self.segments.iter();
        let unsynced = segments.find(|segment| segment.backend.is_unsynced());
        unsynced.map(|segment| &*segment.path)
    }

    /// Returns whether the active file is full, so that the other one should be used.
    pub(super) fn is_full(&self) -> bool {
        self.segments[self.active].bytes() >= FULL
    }

    /// Returns whether the active file takes no more entries, so that the other one must be used.
    pub(super) fn is_overfull(&self) -> bool {
        self.segments[self.active].bytes() >= OVERFULL
    }

    /// Switches to the other file, which must be free. Returns the part of the journal that is to be folded now, or `None` if there are no
    /// new entries.
    pub(super) fn turn(&mut self) -> Result<Option<Part>, StoreError> {
        if self.next == self.first {
            return Ok(None);
        }
        let other = 1 - self.active;
        // Both files are prepared before anything is switched, so that an error leaves the journal as it was.
        self.segments[self.active].end()?;
        self.segments[other].begin_again(FULL)?;
        let part = Part {
            segment: self.segments[self.active].clone(),
            identity: self.identity,
            numbers: self.first..=self.next - 1,
        };
        self.active = other;
        self.first = self.next;
        Ok(Some(part))
    }
}

impl Part {
    /// Returns the number of the last entry.
    pub(super) fn last(&self) -> u64 {
        *self.numbers.end()
    }

    /// Reads every row in order.
    ///
    /// # Errors
    /// The file cannot be read, an entry is not there any more, or `each` fails.
    pub(super) fn read<E: From<StoreError>>(
        &self,
        mut each: impl FnMut(Row<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let unread = || {
            let why = "entries that were there cannot be read any more";
            damaged(&self.segment.path, why)
        };
        let mut entries = Entries::of(&self.segment, self.identity)?;
        let mut last = None;
        while last < Some(self.last())
            && let Some((number, rows)) = entries.next()?
        {
            last = Some(number);
            // After a crash, entries at the beginning of the file may be folded already.
            if self.numbers.contains(&number) {
                for row in rows {
                    each(row.map_err(|_| unread())?)?;
                }
            }
        }
        if last == Some(self.last()) {
            Ok(())
        } else {
            Err(unread().into())
        }
    }
}
