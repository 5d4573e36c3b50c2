//! The tables on disk, into which the journal's entries are folded and from which a start reads. Only this module uses
//! the database.
//!
//! Every write is a record under its revision, so what is folded is appended at the end of the table, whatever its objects are called. A
//! record stays as long as it is the current version of an object or the window shows it; what the window lets go of is removed with the
//! revision up to which events are missing then, in the same transaction.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;
use jiff::Timestamp;
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, Table, TableDefinition,
    WriteTransaction,
};
use rustc_hash::FxHashMap;

use super::{
    backend::Backend,
    directory::Directory,
    error::{StoreError, database_error},
    journal::{Part, Row},
    record,
};

/// Revision -> what [`record`] writes.
pub(super) const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
/// Number -> the collection's name, and the revision up to which its past events are not all there.
pub(super) const COLLECTIONS: TableDefinition<'_, u32, (&str, u64)> =
    TableDefinition::new("collections");
/// Note key -> value: server state that is not an object.
pub(super) const NOTES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("notes");
/// The numbers below.
pub(super) const STATE: TableDefinition<'_, &str, u64> = TableDefinition::new("state");
pub(super) const FORMAT: &str = "format";
/// The last revision in the tables.
pub(super) const REVISION: &str = "revision";
/// A number of chance that tells this store's journal from another's.
pub(super) const IDENTITY: &str = "identity";
/// The number of the last entry of the journal that is folded.
pub(super) const FOLDED: &str = "folded";
/// 1 while there may be something in the journal that is not folded.
pub(super) const JOURNAL: &str = "journal";
/// The format that is written.
pub(super) const KNOWN_FORMAT: u64 = 3;
/// The format whose journal's entries were not made of blocks; the tables are read, what is only in the journal is not.
const UNBLOCKED_FORMAT: u64 = 2;
/// The format without a journal beside the tables; it is read.
pub(super) const OLD_FORMAT: u64 = 1;
/// The revision of a store that has no writes yet.
pub(super) const FIRST_REVISION: u64 = 1;

/// The part of a collection's history that its window has dropped.
#[derive(Debug, Default)]
pub(super) struct Discarded {
    /// The revision up to which events are missing.
    pub(super) compacted: u64,
    /// The records that are no longer needed.
    pub(super) revisions: Vec<u64>,
}

/// The changes of one transaction, which is applied as a whole or not at all.
#[derive(Default)]
pub(super) struct Fold {
    /// The journal entries to fold in.
    pub(super) part: Option<Part>,
    /// The unneeded records of each collection, with the collection's number and name.
    pub(super) discarded: Vec<(u32, Arc<str>, Discarded)>,
    /// The new state of the journal, if it changes.
    pub(super) journal: Option<JournalState>,
}

impl Fold {
    /// Returns whether the fold changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.part.is_none() && self.discarded.is_empty() && self.journal.is_none()
    }
}

/// The state of the journal, as recorded in the tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum JournalState {
    /// Its files are needed.
    Open,
    /// The journal holds nothing that is needed, and its next entry has a number above this one.
    Closed(u64),
}

/// The values that are read when the tables are opened.
pub(super) struct State {
    pub(super) identity: u64,
    pub(super) folded: u64,
    pub(super) journal_is_open: bool,
    pub(super) numbers: FxHashMap<Arc<str>, u32>,
    pub(super) notes: BTreeMap<String, Bytes>,
}

/// The tables.
pub(super) struct Tables {
    directory: Directory,
    /// None while they are broken or closed.
    open: RwLock<Option<(Database, Backend)>>,
}

impl Tables {
    /// Opens the tables of a directory, or makes them.
    pub(super) fn open(directory: Directory) -> Result<Self, StoreError> {
        if directory.is_occupied()? {
            directory.check()?;
            directory.mark_kept()?;
        } else {
            directory.make(|database| found(database, &directory.database()))?
        }
        let tables = Tables {
            directory,
            open: RwLock::default(),
        };
        tables.connect()?;
        Ok(tables)
    }

    /// Opens the tables again after an error.
    pub(super) fn connect(&self) -> Result<(), StoreError> {
        self.close();
        let opened = self.directory.open()?;
        let path = self.path();
        let found = upgrade(&opened.0).map_err(|error| database_error(&path, *error))?;
        match found {
            FormatCheck::Known => {}
            FormatCheck::Unfinished => return Err(StoreError::Unfinished { path }),
            FormatCheck::Unknown(found) => {
                let known = KNOWN_FORMAT;
                return Err(StoreError::Format { path, found, known });
            }
        }
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        Ok(())
    }

    /// Returns the store's directory.
    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns the path of the tables' file, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.database()
    }

    /// Reads the numbers, collections and notes, which is everything but the objects.
    pub(super) fn state(&self) -> Result<State, StoreError> {
        let read = self.begin().ok_or(StoreError::Closed)?;
        read_state(&read).map_err(|error| database_error(&self.path(), *error))
    }

    /// Begins a read of the tables as they are now; `None` while they are broken or closed.
    pub(super) fn begin(&self) -> Option<ReadTransaction> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.as_ref()?.0.begin_read().ok()
    }

    /// Returns when records were written; the beginning of time for those that are not in the tables.
    pub(super) fn written_at(&self, revisions: &[u64]) -> Vec<Timestamp> {
        let records = self.begin().and_then(|read| read.open_table(RECORDS).ok());
        let at = |revision: &u64| {
            let bytes = records.as_ref()?.get(revision).ok()??;
            Timestamp::from_second(record::written_at(bytes.value())?).ok()
        };
        let all = revisions.iter();
        all.map(|revision| at(revision).unwrap_or(Timestamp::UNIX_EPOCH))
            .collect()
    }

    /// Lets go of the database and of the directory.
    pub(super) fn release(&self) {
        self.close();
        self.directory.release();
    }

    /// Lets go of the database; the directory stays taken.
    fn close(&self) {
        // What was there closes outside the lock.
        let before =
            std::mem::take(&mut *self.open.write().unwrap_or_else(PoisonError::into_inner));
        drop(before);
    }

    /// Writes the fold in one durable transaction. After an error the tables are closed.
    ///
    /// # Errors
    /// [`StoreError::Unsynced`] if the content on disk is unknown after a failed sync.
    pub(super) fn fold(&self, fold: &Fold) -> Result<(), StoreError> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let (database, backend) = open.as_ref().ok_or(StoreError::Closed)?;
        let done = write(database, fold);
        // Asked before the tables are closed, which drops the backend.
        let unsynced = backend.is_unsynced();
        drop(open);
        done.map_err(|failed| {
            // redb refuses further use of a database after an error, so it is opened again for the next
            // attempt.
            self.close();
            let error = match failed {
                Failed::Journal(error) => return error,
                Failed::Tables(error) => database_error(&self.path(), *error),
            };
            if unsynced {
                error.unsynced(&self.path())
            } else {
                error
            }
        })
    }
}

/// The error of a failed fold: of the journal that is read, or of the tables that are written.
enum Failed {
    Journal(StoreError),
    Tables(Box<redb::Error>),
}

impl<E: Into<redb::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Failed::Tables(Box::new(error.into()))
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Failed::Journal(error)
    }
}

fn write(database: &Database, fold: &Fold) -> Result<(), Failed> {
    let mut transaction = database.begin_write()?;
    // Saves going through everything when the tables are opened after a crash.
    transaction.set_quick_repair(true);
    fill(&transaction, fold)?;
    Ok(transaction.commit()?)
}

fn fill(transaction: &WriteTransaction, fold: &Fold) -> Result<(), Failed> {
    let mut state = transaction.open_table(STATE)?;
    let mut collections = transaction.open_table(COLLECTIONS)?;
    let mut records = transaction.open_table(RECORDS)?;
    let mut notes = transaction.open_table(NOTES)?;
    if let Some(part) = &fold.part {
        let mut last = 0;
        part.read(|row| apply(row, &mut last, &mut records, &mut collections, &mut notes))?;
        // A part may hold only notes, which have no revision.
        if last > 0 {
            state.insert(REVISION, last)?;
        }
        // In the same transaction as the rows: after a crash the journal's entries are folded exactly once.
        state.insert(FOLDED, part.last())?;
    }
    for (number, name, discarded) in &fold.discarded {
        collections.insert(number, (&**name, discarded.compacted))?;
        for revision in &discarded.revisions {
            records.remove(revision)?;
        }
    }
    match fold.journal {
        Some(JournalState::Open) => {
            state.insert(JOURNAL, 1)?;
        }
        Some(JournalState::Closed(last)) => {
            state.insert(JOURNAL, 0)?;
            state.insert(FOLDED, last)?;
        }
        None => {}
    }
    Ok(())
}

fn apply(
    row: Row<'_>,
    last: &mut u64,
    records: &mut Table<'_, u64, &'static [u8]>,
    collections: &mut Table<'_, u32, (&'static str, u64)>,
    notes: &mut Table<'_, &'static str, &'static [u8]>,
) -> Result<(), Failed> {
    match row {
        Row::Record { revision, bytes } => {
            *last = revision;
            records.insert(revision, bytes)?;
        }
        Row::Collection { number, name } => {
            // A repeated entry must not reset the revision up to which events are missing.
            if collections.get(number)?.is_none() {
                collections.insert(number, (name, 0))?;
            }
        }
        Row::Note {
            key,
            value: Some(value),
        } => {
            notes.insert(key, value)?;
        }
        Row::Note { key, value: None } => {
            notes.remove(key)?;
        }
    }
    Ok(())
}

fn read_state(read: &ReadTransaction) -> Result<State, Box<redb::Error>> {
    let state = read.open_table(STATE).map_err(boxed)?;
    let value = |key: &str| -> Result<u64, Box<redb::Error>> {
        Ok(state
            .get(key)
            .map_err(boxed)?
            .map_or(0, |value| value.value()))
    };
    let mut numbers = FxHashMap::default();
    let collections = read.open_table(COLLECTIONS).map_err(boxed)?;
    for row in collections.iter().map_err(boxed)? {
        let (number, collection) = row.map_err(boxed)?;
        numbers.insert(collection.value().0.into(), number.value());
    }
    let mut notes = BTreeMap::new();
    for row in read
        .open_table(NOTES)
        .map_err(boxed)?
        .iter()
        .map_err(boxed)?
    {
        let (key, value) = row.map_err(boxed)?;
        let value = Bytes::copy_from_slice(value.value());
        notes.insert(key.value().to_owned(), value);
    }
    Ok(State {
        identity: value(IDENTITY)?,
        folded: value(FOLDED)?,
        journal_is_open: value(JOURNAL)? != 0,
        numbers,
        notes,
    })
}

/// Creates the tables in a new database.
pub(super) fn found(database: &Database, path: &Path) -> Result<(), StoreError> {
    let make = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        transaction.open_table(RECORDS)?;
        transaction.open_table(COLLECTIONS)?;
        transaction.open_table(NOTES)?;
        {
            let mut state = transaction.open_table(STATE)?;
            state.insert(FORMAT, KNOWN_FORMAT)?;
            state.insert(REVISION, FIRST_REVISION)?;
            state.insert(IDENTITY, rand::random::<u64>())?;
        }
        Ok(transaction.commit()?)
    };
    make().map_err(|error| database_error(path, error))
}

/// The result of checking the format of an open database.
enum FormatCheck {
    /// Tables of the known format.
    Known,
    /// Tables of an earlier format, and a journal of that format that is not folded.
    Unfinished,
    /// Tables of this format, which is not known.
    Unknown(u64),
}

/// Brings tables of an earlier format into the known one.
fn upgrade(database: &Database) -> Result<FormatCheck, Box<redb::Error>> {
    let read = database.begin_read().map_err(boxed)?;
    let state = read.open_table(STATE).map_err(boxed)?;
    let value = |key: &str| -> Result<u64, Box<redb::Error>> {
        let value = state.get(key).map_err(boxed)?;
        Ok(value.map_or(0, |value| value.value()))
    };
    let format = value(FORMAT)?;
    match format {
        KNOWN_FORMAT => return Ok(FormatCheck::Known),
        // Writes that are only in the old journal would be lost silently; the earlier version folds them when
        // it stops.
        UNBLOCKED_FORMAT if value(JOURNAL)? != 0 => return Ok(FormatCheck::Unfinished),
        UNBLOCKED_FORMAT | OLD_FORMAT => {}
        unknown => return Ok(FormatCheck::Unknown(unknown)),
    }
    let transaction = database.begin_write().map_err(boxed)?;
    {
        let mut state = transaction.open_table(STATE).map_err(boxed)?;
        state.insert(FORMAT, KNOWN_FORMAT).map_err(boxed)?;
        if format == OLD_FORMAT {
            let identity = rand::random::<u64>();
            state.insert(IDENTITY, identity).map_err(boxed)?;
        }
    }
    transaction.commit().map_err(boxed)?;
    Ok(FormatCheck::Known)
}

fn boxed(error: impl Into<redb::Error>) -> Box<redb::Error> {
    Box::new(error.into())
}
