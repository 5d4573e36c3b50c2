//! A store that outlives its process: every write is permanent before anybody sees it.
//!
//! [`open`] brings back what a [`directory`] holds ([`restore`]) and starts the one thread that writes ([`thread`]): it takes what has
//! come meanwhile, checks it in order, makes it permanent as one group with one sync ([`journal`]), publishes it and answers. Nobody
//! sees what a crash could lose. Behind that, another thread ([`folder`]) moves the journal into the [`tables`], from which the next
//! start reads. [`copy`] takes a consistent copy while that goes on.

mod backend;
mod caught;
mod copy;
mod directory;
mod error;
mod folder;
mod folder_state;
mod journal;
mod overlay;
mod pending;
mod record;
mod restore;
mod tables;
mod thread;
mod writer;

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::{collection::Collection, log::Window};

pub(super) use self::writer::Writer;
pub use self::{
    copy::{CopyError, check_copy, restore_copy},
    error::StoreError,
    folder_state::{FolderState, folder_state},
};
use self::{
    directory::{Directory, OpenFile},
    journal::Journal,
    tables::{Fold, JournalState, Tables},
    thread::Start,
};

/// How old the journal's mark may become while writes go on, and how long writes have paused when it is brought up to date.
const MARK_AFTER: Duration = Duration::from_millis(100);

/// A directory's store, ready to be used.
pub(super) struct OpenStore {
    pub(super) revision: Arc<AtomicU64>,
    pub(super) collections: FxHashMap<Arc<str>, Arc<Collection>>,
    pub(super) writer: Writer,
}

/// Takes a directory's lock and restores the data that it holds.
pub(super) fn open(path: &Path, window: Window, now: Timestamp) -> Result<OpenStore, StoreError> {
    let open_file = Arc::new(directory::open_file);
    open_with(path, window, now, open_file, Some(MARK_AFTER))
}

/// Forgets what a directory holds, if it holds anything; files that are not the store's stay.
///
/// # Errors
/// The directory is in use, or may not be written.
pub fn erase(path: &Path) -> Result<(), StoreError> {
    if !path.exists() {
        return Ok(());
    }
    Directory::take(path, Arc::new(directory::open_file))?.erase()
}

fn open_with(
    path: &Path,
    window: Window,
    now: Timestamp,
    open_file: OpenFile,
    mark_after: Option<Duration>,
) -> Result<OpenStore, StoreError> {
    let tables = Arc::new(Tables::open(Directory::take(path, open_file)?)?);
    let journal = open_journal(&tables, mark_after)?;
    let state = tables.state()?;
    let (writer, queue) = Writer::new(tables.clone(), state.notes);
    // The thread starts after the restore, so no write is handled before the index is complete.
    let restored = restore::restore(&tables, window, now, &writer)?;
    let start = Start {
        journal,
        tables,
        numbers: state.numbers,
        pending: writer.pending(),
        revision: restored.revision.clone(),
        fatal: writer.fatal(),
    };
    thread::start(start, queue)?;
    Ok(OpenStore {
        revision: restored.revision,
        collections: restored.collections,
        writer,
    })
}

/// Moves what a crash has left in the journal into the tables, and begins a new journal.
fn open_journal(tables: &Tables, mark_after: Option<Duration>) -> Result<Journal, StoreError> {
    let state = tables.state()?;
    let mut last = state.folded;
    if state.journal_is_open {
        for part in journal::recover(tables.directory(), state.identity, last)? {
            last = part.last();
            let part = Some(part);
            tables.fold(&Fold {
                part,
                ..Fold::default()
            })?;
        }
        // Parts of one more entry may be there: its number is not used again.
        last += 1;
        // Recorded before the new journal is created: a crash in between must not make the next start look
        // for entries in files that are being overwritten.
        let journal = Some(JournalState::Closed(last));
        tables.fold(&Fold {
            journal,
            ..Fold::default()
        })?;
    }
    let journal = Journal::create(tables.directory(), state.identity, last, mark_after)?;
    // Recorded after the files exist, so that a missing file of an open journal is damage and not an
    // interrupted start.
    let open = Some(JournalState::Open);
    tables.fold(&Fold {
        journal: open,
        ..Fold::default()
    })?;
    Ok(journal)
}

#[cfg(test)]
mod tests;
