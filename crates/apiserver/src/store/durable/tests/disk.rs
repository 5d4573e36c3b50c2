//! A disk in memory: it counts what is written, may be full, and loses at a power cut an arbitrary part of what was not synced, torn at
//! sectors.

use std::{
    fs::File,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redb::{Builder, Database, DatabaseError, StorageBackend};

use super::super::directory::OpenFile;

const SECTOR: usize = 512;

/// The disk; all clones are one.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<Platter>>);

#[derive(Debug, Default)]
struct Platter {
    /// What survives a power cut for certain.
    synced: Vec<u8>,
    /// What a reader sees.
    current: Vec<u8>,
    /// What was written since the last sync.
    since: Vec<(usize, Vec<u8>)>,
    /// How many more bytes can be written.
    room: Option<usize>,
    /// Bytes written so far.
    written: u64,
    /// Syncs so far.
    syncs: u64,
}

impl Disk {
    /// What opens files on this disk instead of the real one.
    pub(super) fn opener(&self) -> OpenFile {
        let disk = self.clone();
        Arc::new(move |file: File| -> Result<Database, DatabaseError> {
            // The directory takes an empty file for a damaged one.
            file.set_len(1).map_err(redb::StorageError::from)?;
            Builder::new().create_with_backend(disk.clone())
        })
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk as a power cut at this moment leaves it; `chance` decides for every sector that was not synced whether it arrived.
    pub(super) fn after_power_cut(&self, mut chance: impl FnMut() -> bool) -> Disk {
        let platter = self.platter();
        let mut left = platter.synced.clone();
        left.resize(platter.current.len().max(left.len()), 0);
        for (offset, data) in &platter.since {
            let mut at = *offset;
            for piece in data.chunks(SECTOR) {
                if chance() {
                    left[at..at + piece.len()].copy_from_slice(piece);
                }
                at += piece.len();
            }
        }
        Disk(Arc::new(Mutex::new(Platter {
            synced: left.clone(),
            current: left,
            ..Platter::default()
        })))
    }

    /// Lets the disk be full after so many more bytes, or never.
    pub(super) fn leave_room(&self, bytes: Option<usize>) {
        self.platter().room = bytes;
    }

    /// Bytes written and syncs so far.
    pub(super) fn work(&self) -> (u64, u64) {
        let platter = self.platter();
        (platter.written, platter.syncs)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.platter().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.platter();
        let from = offset as usize;
        let part = platter.current.get(from..from + out.len());
        out.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platter = self.platter();
        platter.current.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.platter();
        platter.syncs += 1;
        platter.synced = platter.current.clone();
        platter.since.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.platter();
        let from = offset as usize;
        let end = from + data.len();
        if let Some(room) = platter.room {
            let left = room.checked_sub(data.len());
            platter.room = Some(left.ok_or(io::ErrorKind::StorageFull)?);
        }
        if platter.current.len() < end {
            platter.current.resize(end, 0);
        }
        platter.current[from..end].copy_from_slice(data);
        platter.since.push((from, data.to_vec()));
        platter.written += data.len() as u64;
        Ok(())
    }
}
