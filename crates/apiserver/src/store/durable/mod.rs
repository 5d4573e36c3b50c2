//! A store that outlives its process: every write is permanent before anybody sees it.
//!
//! [`open`] brings back what a [`directory`] holds ([`restore`]) and starts the one thread that writes ([`writer`]): it takes what has
//! come meanwhile, checks it in order, makes it permanent as one group with one sync ([`journal`]), publishes it and answers. Nobody
//! sees what a crash could lose. [`copy`] takes a consistent copy while that goes on.

mod copy;
mod directory;
mod error;
mod journal;
mod record;
mod restore;
mod writer;

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU64},
};

use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::{collection::Collection, log::Window};

pub(super) use self::writer::Writer;
pub use self::{
    copy::{CopyError, check_copy, restore_copy},
    error::StoreError,
};
use self::{
    directory::{Directory, OpenFile},
    journal::Journal,
};

/// A directory's store, ready to be used.
pub(super) struct Opened {
    pub(super) revision: Arc<AtomicU64>,
    pub(super) collections: FxHashMap<Arc<str>, Arc<Collection>>,
    pub(super) writer: Writer,
}

/// Takes a directory and brings back what it holds.
pub(super) fn open(path: &Path, window: Window, now: Timestamp) -> Result<Opened, StoreError> {
    open_with(path, window, now, Arc::new(directory::open_file))
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
) -> Result<Opened, StoreError> {
    let journal = Journal::open(Directory::take(path, open_file)?)?;
    let (writer, queue) = Writer::new(journal.reader());
    let restored = restore::restore(&journal, window, now, &writer)?;
    let last = restored.revision.clone();
    writer::start(journal, queue, writer.aside(), last)?;
    Ok(Opened {
        revision: restored.revision,
        collections: restored.collections,
        writer,
    })
}

#[cfg(test)]
mod tests;
