//! A consistent copy of a store as one stream of bytes, and a directory made from it.
//!
//! The stream begins with a line that names its form, holds the rows of every table as they were at one moment, and ends with their
//! number and a checksum: a copy that is cut short or changed is refused before anything is replaced. A restored store goes on far
//! behind the revisions of the copy, as the original may have given out more of them since, and asks every watch to list again.

use std::{
    io::{self, BufReader, BufWriter, Read, Write},
    path::Path,
    sync::Arc,
};

use redb::{Database, Durability, ReadTransaction, ReadableTable};
use sha2::{Digest, Sha256};

use super::{
    directory::{self, Directory},
    error::StoreError,
    tables::{
        self, COLLECTIONS, FOLDED, FORMAT, IDENTITY, JOURNAL, KNOWN_FORMAT, NOTES, OLD_FORMAT,
        RECORDS, REVISION, STATE,
    },
};

const HEAD: &[u8] = b"mullion snapshot 1\n";
/// The gap between the last revision of a copy and the first one of a restored store: more than a store gives out in
/// the life of a copy. The same number is recommended for `etcdutl snapshot restore --bump-revision`.
const SKIPPED_REVISIONS: u64 = 1_000_000_000;
/// The number of rows that are restored in one transaction.
const ROWS_AT_ONCE: usize = 20_000;
/// The longest key or value that is taken for possible.
const MOST_BYTES: u32 = 1 << 30;

/// The error of making a copy, or of restoring a store from one.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// There is nothing on disk.
    #[error("this server keeps its objects in memory only")]
    InMemory,
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// The fold of the journal into the tables failed.
    #[error("not everything is in the tables: {0}")]
    NotFolded(Arc<StoreError>),
    /// The fold of the journal did not end in time.
    #[error("not everything is in the tables yet: the disk is too slow")]
    Late,
    /// The stream is none of ours, or not all of it is there.
    #[error("it is no snapshot, or not a whole one: {0}")]
    Malformed(&'static str),
    /// The stream cannot be read or written.
    #[error("{0}")]
    Stream(#[from] io::Error),
    /// The directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database cannot be read or written.
    #[error("the database cannot be read or written: {0}")]
    Database(#[from] Box<redb::Error>),
}

fn failed(error: impl Into<redb::Error>) -> CopyError {
    CopyError::Database(Box::new(error.into()))
}

/// A stream that counts rows and sums up what goes through.
struct ChecksumStream<T> {
    stream: T,
    sum: Sha256,
    rows: u64,
}

impl<W: Write> ChecksumStream<W> {
    fn row(&mut self, table: u8, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.rows += 1;
        self.put(&[table])?;
        for part in [key, value] {
            self.put(&(part.len() as u32).to_le_bytes())?;
            self.put(part)?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.stream.write_all(bytes)
    }
}

/// Writes what a transaction sees.
pub(super) fn write(read: &ReadTransaction, out: &mut dyn Write) -> Result<(), CopyError> {
    let mut out = ChecksumStream {
        stream: BufWriter::with_capacity(1 << 16, out),
        sum: Sha256::new(),
        rows: 0,
    };
    out.put(HEAD)?;
    for row in read
        .open_table(STATE)
        .map_err(failed)?
        .iter()
        .map_err(failed)?
    {
        let (key, value) = row.map_err(failed)?;
        out.row(1, key.value().as_bytes(), &value.value().to_le_bytes())?;
    }
    let collections = read.open_table(COLLECTIONS).map_err(failed)?;
    for row in collections.iter().map_err(failed)? {
        let (number, collection) = row.map_err(failed)?;
        let name = collection.value().0;
        out.row(2, &number.value().to_le_bytes(), name.as_bytes())?;
    }
    for row in read
        .open_table(NOTES)
        .map_err(failed)?
        .iter()
        .map_err(failed)?
    {
        let (key, value) = row.map_err(failed)?;
        out.row(3, key.value().as_bytes(), value.value())?;
    }
    for row in read
        .open_table(RECORDS)
        .map_err(failed)?
        .iter()
        .map_err(failed)?
    {
        let (revision, record) = row.map_err(failed)?;
        out.row(4, &revision.value().to_le_bytes(), record.value())?;
    }
    let rows = out.rows;
    out.put(&[0])?;
    out.put(&rows.to_le_bytes())?;
    // The number of rows is part of the sum; the sum itself is not.
    let sum = out.sum.clone().finalize();
    out.stream.write_all(&sum)?;
    Ok(out.stream.flush()?)
}

/// Creates a directory's store from a copy. With `replace` it replaces a store that is there, of which nothing remains.
///
/// # Errors
/// The stream is no whole copy, or the directory is in use, holds a store already, or cannot be written.
pub fn restore_copy(from: impl Read, directory: &Path, replace: bool) -> Result<(), CopyError> {
    let taken = Directory::take(directory, Arc::new(directory::open_file))?;
    // The lock is held by now, so no other process can make a cluster between this check and the rename.
    if !replace && taken.is_occupied().map_err(CopyError::Store)? {
        return Err(CopyError::Store(StoreError::Occupied {
            directory: directory.to_owned(),
        }));
    }
    let mut outcome = Ok(());
    let path = taken.database();
    let made = taken.make(|database| {
        tables::found(database, &path)?;
        outcome = fill(database, from);
        match &outcome {
            Ok(()) => Ok(()),
            // Only says that there is nothing to keep; the cause is in the outcome.
            Err(_) => Err(StoreError::Closed),
        }
    });
    outcome?;
    Ok(made?)
}

/// Reads a copy to its end.
///
/// # Errors
/// It is none, or not whole.
pub fn check_copy(from: impl Read) -> Result<(), CopyError> {
    let mut rows = Rows::begin(from)?;
    while rows.next()?.is_some() {}
    Ok(())
}

fn fill(database: &Database, from: impl Read) -> Result<(), CopyError> {
    let mut rows = Rows::begin(from)?;
    let mut more = true;
    while more {
        // Permanent as a whole at the end.
        let mut transaction = database.begin_write().map_err(failed)?;
        transaction
            // A sync per transaction would only cost time: the file has no name before it is complete.
            .set_durability(Durability::None)
            .map_err(failed)?;
        {
            let mut state = transaction.open_table(STATE).map_err(failed)?;
            let mut collections = transaction.open_table(COLLECTIONS).map_err(failed)?;
            let mut notes = transaction.open_table(NOTES).map_err(failed)?;
            let mut records = transaction.open_table(RECORDS).map_err(failed)?;
            for _ in 0..ROWS_AT_ONCE {
                let Some(Row { table, key, value }) = rows.next()? else {
                    more = false;
                    break;
                };
                match table {
                    1 => state.insert(text(&key)?, number(&value)?).map(drop),
                    2 => collections
                        .insert(short(&key)?, (text(&value)?, 0))
                        .map(drop),
                    3 => notes.insert(text(&key)?, &*value).map(drop),
                    4 => records.insert(number(&key)?, &*value).map(drop),
                    _ => return Err(CopyError::Malformed("a row is of no known table")),
                }
                .map_err(failed)?;
            }
        }
        transaction.commit().map_err(failed)?;
    }
    renew(database)
}

/// Raises the store's revision above every one that clients of the original may have seen.
fn renew(database: &Database) -> Result<(), CopyError> {
    let transaction = database.begin_write().map_err(failed)?;
    {
        let mut state = transaction.open_table(STATE).map_err(failed)?;
        let value = |key| -> Result<u64, CopyError> {
            Ok(state
                .get(key)
                .map_err(failed)?
                .map_or(0, |value| value.value()))
        };
        if !(OLD_FORMAT..=KNOWN_FORMAT).contains(&value(FORMAT)?) {
            return Err(CopyError::Malformed("its format is not known"));
        }
        // Clients may have seen later revisions of the original; the same numbers must not come again with
        // other content.
        let revision = value(REVISION)?.saturating_add(SKIPPED_REVISIONS);
        // The journal of the original is none of this store.
        for (key, value) in [
            (FORMAT, KNOWN_FORMAT),
            (REVISION, revision),
            (IDENTITY, rand::random()),
            (FOLDED, 0),
            (JOURNAL, 0),
        ] {
            state.insert(key, value).map_err(failed)?;
        }
        let mut collections = transaction.open_table(COLLECTIONS).map_err(failed)?;
        let known: Result<Vec<(u32, String)>, redb::StorageError> = collections
            .iter()
            .map_err(failed)?
            .map(|row| row.map(|(number, row)| (number.value(), row.value().0.to_owned())))
            .collect();
        for (number, name) in known.map_err(failed)? {
            // No past events are in the copy that a watch could resume from, so all of them count as dropped.
            collections
                .insert(number, (&*name, revision))
                .map_err(failed)?;
        }
    }
    transaction.commit().map_err(failed)
}

/// A row of a table.
struct Row {
    table: u8,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The rows of a copy; after the last one it has been found whole.
struct Rows<R> {
    from: ChecksumStream<BufReader<R>>,
}

impl<R: Read> Rows<R> {
    fn begin(from: R) -> Result<Self, CopyError> {
        let mut rows = Rows {
            from: ChecksumStream {
                stream: BufReader::with_capacity(1 << 16, from),
                sum: Sha256::new(),
                rows: 0,
            },
        };
        if rows.bytes(HEAD.len())? != HEAD {
            return Err(CopyError::Malformed("it does not begin as one"));
        }
        Ok(rows)
    }

    fn next(&mut self) -> Result<Option<Row>, CopyError> {
        let table = self.bytes(1)?[0];
        if table != 0 {
            self.from.rows += 1;
            let (key, value) = (self.part()?, self.part()?);
            return Ok(Some(Row { table, key, value }));
        }
        if number(&self.bytes(8)?)? != self.from.rows {
            return Err(CopyError::Malformed("rows are missing"));
        }
        let sum = self.from.sum.clone().finalize();
        if self.bytes(sum.len())? != sum[..] {
            return Err(CopyError::Malformed("its checksum does not fit"));
        }
        Ok(None)
    }

    fn bytes(&mut self, len: usize) -> Result<Vec<u8>, CopyError> {
        let mut bytes = Vec::new();
        let mut part = (&mut self.from.stream).take(len as u64);
        if part.read_to_end(&mut bytes)? < len {
            return Err(CopyError::Malformed("it ends too early"));
        }
        self.from.sum.update(&bytes);
        Ok(bytes)
    }

    fn part(&mut self) -> Result<Vec<u8>, CopyError> {
        let len = short(&self.bytes(4)?)?;
        // A damaged length must not make the reader reserve gigabytes.
        if len > MOST_BYTES {
            return Err(CopyError::Malformed("a row is too long"));
        }
        self.bytes(len as usize)
    }
}

fn text(bytes: &[u8]) -> Result<&str, CopyError> {
    std::str::from_utf8(bytes).map_err(|_| CopyError::Malformed("a name is no text"))
}

fn number(bytes: &[u8]) -> Result<u64, CopyError> {
    let bytes = bytes.try_into();
    bytes
        .map(u64::from_le_bytes)
        .map_err(|_| CopyError::Malformed("a number is too short"))
}

fn short(bytes: &[u8]) -> Result<u32, CopyError> {
    let bytes = bytes.try_into();
    bytes
        .map(u32::from_le_bytes)
        .map_err(|_| CopyError::Malformed("a number is too short"))
}
