//! What makes a group of writes permanent: it is appended to a file with one write and one sync.
//!
//! The journal has two files. While entries go to one, those of the other are folded into the tables ([`super::folder`]); then they
//! change places. The numbers of entries grow by one and never come twice, so after a crash the entries that are not in the tables yet
//! are found by their numbers, in whichever file they are ([`recover`]).

mod entry;
mod segment;

use std::{ops::RangeInclusive, path::Path};

pub(super) use self::entry::{Entry, Row};
use self::segment::{Entries, Segment};
use super::{directory::Directory, error::StoreError};

/// How many bytes of entries a file takes before the other one is used.
const FULL: u64 = 8 << 20;
/// How many it takes when the other one is not free yet.
const OVERFULL: u64 = 64 << 20;

/// The journal, for its only writer.
pub(super) struct Journal {
    segments: [Segment; 2],
    active: usize,
    identity: u64,
    /// The number of the next entry.
    next: u64,
    /// The number of the first entry in the active file.
    first: u64,
}

/// Entries that are to be folded.
pub(super) struct Part {
    segment: Segment,
    identity: u64,
    numbers: RangeInclusive<u64>,
}

impl Journal {
    /// Makes the files anew. Numbers begin behind `last`.
    pub(super) fn create(
        directory: &Directory,
        identity: u64,
        last: u64,
    ) -> Result<Self, StoreError> {
        let make = |index| -> Result<Segment, StoreError> {
            let (backend, path) = directory.make_journal(index)?;
            Segment::new(backend, path)
        };
        let segments = [make(0)?, make(1)?];
        directory.sync()?;
        Ok(Journal {
            segments,
            active: 0,
            identity,
            next: last + 1,
            first: last + 1,
        })
    }

    /// Makes an entry permanent, all of it or nothing.
    pub(super) fn append(&mut self, entry: &mut Entry) -> Result<(), StoreError> {
        self.segments[self.active].append(entry.sealed(self.identity, self.next))?;
        self.next += 1;
        Ok(())
    }

    /// The number of the last entry.
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }

    /// The file that a sync of has failed, so that nobody knows what is in it on disk.
    pub(super) fn unsynced(&self) -> Option<&Path> {
        let mut segments = self.segments.iter();
        let unsynced = segments.find(|segment| segment.backend.is_unsynced());
        unsynced.map(|segment| &*segment.path)
    }

    /// Whether the other file should be used.
    pub(super) fn is_full(&self) -> bool {
        self.segments[self.active].bytes() >= FULL
    }

    /// Whether the other file must be used.
    pub(super) fn is_overfull(&self) -> bool {
        self.segments[self.active].bytes() >= OVERFULL
    }

    /// Goes on in the other file, which must be free. Answers with what is to be folded now; nothing if nothing was written.
    pub(super) fn turn(&mut self) -> Result<Option<Part>, StoreError> {
        if self.next == self.first {
            return Ok(None);
        }
        let other = 1 - self.active;
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
    /// The number of the last entry.
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
        let damaged = || StoreError::Damaged {
            path: self.segment.path.clone(),
            why: "entries that were there cannot be read any more".to_owned(),
        };
        let path = &self.segment.path;
        let mut entries = Entries::of(&self.segment.backend, path, self.identity)?;
        let mut last = None;
        while last < Some(self.last())
            && let Some((number, rows)) = entries.next()?
        {
            last = Some(number);
            if self.numbers.contains(&number) {
                for row in rows {
                    each(row.map_err(|_| damaged())?)?;
                }
            }
        }
        match last == Some(self.last()) {
            true => Ok(()),
            false => Err(damaged().into()),
        }
    }
}

/// What the process before has left in the files and not folded: the entries behind the number `folded`, the oldest first.
///
/// # Errors
/// A file is missing or damaged, or entries are missing in between.
pub(super) fn recover(
    directory: &Directory,
    identity: u64,
    folded: u64,
) -> Result<Vec<Part>, StoreError> {
    let mut parts = Vec::new();
    for index in 0..2 {
        let (backend, path) = directory.open_journal(index)?;
        let segment = Segment::found(backend, path);
        let mut entries = Entries::of(&segment.backend, &segment.path, identity)?;
        let mut numbers: Option<(u64, u64)> = None;
        while let Some((number, _)) = entries.next()? {
            numbers = Some((numbers.map_or(number, |(first, _)| first), number));
        }
        entries.check_end(folded)?;
        drop(entries);
        if let Some((first, last)) = numbers
            && last > folded
        {
            parts.push(Part {
                segment,
                identity,
                numbers: first.max(folded + 1)..=last,
            });
        }
    }
    parts.sort_by_key(Part::last);
    let mut next = folded + 1;
    for part in &parts {
        if *part.numbers.start() != next {
            return Err(StoreError::Damaged {
                path: part.segment.path.clone(),
                why: format!(
                    "entry {next} of the journal is missing before entry {}",
                    part.numbers.start()
                ),
            });
        }
        next = part.last() + 1;
    }
    Ok(parts)
}
