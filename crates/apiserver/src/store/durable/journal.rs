//! The tables on disk, and one transaction for each group of writes. The only place that speaks to the database.
//!
//! Every write is a record under its revision, so a group is appended at the end of the table, whatever its objects are called. A record
//! stays as long as it is the current version of an object or the window shows it; what the window lets go of is removed with the
//! revision up to which events are missing then, in the same transaction.

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};
use rustc_hash::FxHashMap;

use super::{
    super::collection::Sealed,
    directory::Directory,
    error::{StoreError, database_error},
    record,
};

/// Revision -> what [`record`] writes.
pub(super) const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
/// Number -> the collection's name, and the revision up to which its past events are not all there.
pub(super) const COLLECTIONS: TableDefinition<'_, u32, (&str, u64)> =
    TableDefinition::new("collections");
/// What the server must find again that is no object.
pub(super) const NOTES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("notes");
/// [`FORMAT`] and [`REVISION`].
pub(super) const STATE: TableDefinition<'_, &str, u64> = TableDefinition::new("state");
pub(super) const FORMAT: &str = "format";
/// The last revision given out.
pub(super) const REVISION: &str = "revision";
/// The only format there is.
pub(super) const KNOWN_FORMAT: u64 = 1;
/// The revision of a store that nobody has written to.
pub(super) const FIRST_REVISION: u64 = 1;

/// The database for those who read beside the writer; none while it is broken or closed.
#[derive(Clone, Debug, Default)]
pub(super) struct Reader(Arc<RwLock<Option<Database>>>);

impl Reader {
    /// The tables as they are now.
    pub(super) fn begin(&self) -> Option<ReadTransaction> {
        let database = self.0.read().unwrap_or_else(PoisonError::into_inner);
        database.as_ref()?.begin_read().ok()
    }

    fn set(&self, database: Option<Database>) {
        // What was there closes outside the lock.
        let before = std::mem::replace(
            &mut *self.0.write().unwrap_or_else(PoisonError::into_inner),
            database,
        );
        drop(before);
    }
}

/// What the window of a collection has let go of.
#[derive(Debug, Default)]
pub(super) struct Discarded {
    /// The revision up to which events are missing.
    pub(super) compacted: u64,
    /// Records that nobody needs any more.
    pub(super) revisions: Vec<u64>,
}

/// What one transaction makes permanent.
#[derive(Debug, Default)]
pub(super) struct Group<'a> {
    /// The writes with the names of their collections and their times in seconds since 1970, in the order of their revisions.
    pub(super) writes: Vec<(&'a Arc<str>, i64, &'a Sealed)>,
    /// Notes that have changed; none where one is gone.
    pub(super) notes: Vec<(String, Option<Bytes>)>,
    /// What is not needed any more.
    pub(super) discarded: Vec<(Arc<str>, Discarded)>,
}

/// The tables, for their only writer.
pub(super) struct Journal {
    directory: Directory,
    reader: Reader,
    numbers: FxHashMap<Arc<str>, u32>,
}

impl Journal {
    /// Opens the database of a directory, or makes one.
    pub(super) fn open(directory: Directory) -> Result<Self, StoreError> {
        if !directory.is_occupied() {
            directory.make(|database| found(database, &directory.database()))?;
        }
        let mut journal = Journal {
            directory,
            reader: Reader::default(),
            numbers: FxHashMap::default(),
        };
        journal.connect()?;
        Ok(journal)
    }

    /// Opens the database again after an error. Answers with the last revision in it.
    pub(super) fn connect(&mut self) -> Result<u64, StoreError> {
        self.reader.set(None);
        let database = self.directory.open()?;
        let path = self.directory.database();
        let state = read_state(&database).map_err(|error| database_error(&path, error))?;
        if state.format != KNOWN_FORMAT {
            return Err(StoreError::Format {
                path,
                found: state.format,
                known: KNOWN_FORMAT,
            });
        }
        self.numbers = state.numbers;
        self.reader.set(Some(database));
        Ok(state.revision)
    }

    /// The door for readers.
    pub(super) fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// Where the database is, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.database()
    }

    /// The directory, for messages.
    pub(super) fn directory(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// Lets go of the database; the directory stays taken until the journal is dropped.
    pub(super) fn close(&mut self) {
        self.reader.set(None);
    }

    /// Makes a group permanent, all of it or nothing. After an error the database is closed.
    pub(super) fn commit(&mut self, group: &Group<'_>) -> Result<(), StoreError> {
        let database = self.reader.0.read().unwrap_or_else(PoisonError::into_inner);
        let database_ref = database.as_ref().ok_or(StoreError::Closed)?;
        let written = write(database_ref, &mut self.numbers, group);
        drop(database);
        written.map_err(|error| {
            self.reader.set(None);
            database_error(&self.path(), *error)
        })
    }
}

/// What is read when a database is opened.
struct State {
    format: u64,
    revision: u64,
    numbers: FxHashMap<Arc<str>, u32>,
}

fn read_state(database: &Database) -> Result<State, redb::Error> {
    let read = database.begin_read()?;
    let state = read.open_table(STATE)?;
    let value = |key: &str| -> Result<u64, redb::Error> {
        Ok(state.get(key)?.map_or(0, |value| value.value()))
    };
    let mut numbers = FxHashMap::default();
    for row in read.open_table(COLLECTIONS)?.iter()? {
        let (number, collection) = row?;
        numbers.insert(collection.value().0.into(), number.value());
    }
    Ok(State {
        format: value(FORMAT)?,
        revision: value(REVISION)?,
        numbers,
    })
}

/// Makes the tables of a new database.
pub(super) fn found(database: &Database, path: &std::path::Path) -> Result<(), StoreError> {
    let make = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        transaction.open_table(RECORDS)?;
        transaction.open_table(COLLECTIONS)?;
        transaction.open_table(NOTES)?;
        {
            let mut state = transaction.open_table(STATE)?;
            state.insert(FORMAT, KNOWN_FORMAT)?;
            state.insert(REVISION, FIRST_REVISION)?;
        }
        Ok(transaction.commit()?)
    };
    make().map_err(|error| database_error(path, error))
}

fn write(
    database: &Database,
    numbers: &mut FxHashMap<Arc<str>, u32>,
    group: &Group<'_>,
) -> Result<(), Box<redb::Error>> {
    // The default durability: permanent when the commit returns, with one sync.
    let transaction = database.begin_write().map_err(boxed)?;
    {
        let mut records = transaction.open_table(RECORDS).map_err(boxed)?;
        let mut collections = transaction.open_table(COLLECTIONS).map_err(boxed)?;
        let mut number_of = |name: &Arc<str>, compacted: Option<u64>| {
            let known = numbers.get(name).copied();
            let number = known.unwrap_or(numbers.len() as u32);
            if known.is_none() || compacted.is_some() {
                collections.insert(number, (&**name, compacted.unwrap_or(0)))?;
                numbers.insert(name.clone(), number);
            }
            Ok::<u32, redb::StorageError>(number)
        };
        for (name, at, sealed) in &group.writes {
            let number = number_of(name, None).map_err(boxed)?;
            let len = record::encoded_len(sealed);
            let mut place = records
                .insert_reserve(sealed.object.revision(), len)
                .map_err(boxed)?;
            record::encode(place.as_mut(), number, *at, sealed);
        }
        for (name, discarded) in &group.discarded {
            number_of(name, Some(discarded.compacted)).map_err(boxed)?;
            for revision in &discarded.revisions {
                records.remove(revision).map_err(boxed)?;
            }
        }
    }
    if let Some((_, _, last)) = group.writes.last() {
        let mut state = transaction.open_table(STATE).map_err(boxed)?;
        state
            .insert(REVISION, last.object.revision())
            .map_err(boxed)?;
    }
    if !group.notes.is_empty() {
        let mut notes = transaction.open_table(NOTES).map_err(boxed)?;
        for (key, value) in &group.notes {
            match value {
                Some(value) => notes.insert(&**key, &**value).map_err(boxed)?,
                None => notes.remove(&**key).map_err(boxed)?,
            };
        }
    }
    transaction.commit().map_err(boxed)
}

fn boxed(error: impl Into<redb::Error>) -> Box<redb::Error> {
    Box::new(error.into())
}
