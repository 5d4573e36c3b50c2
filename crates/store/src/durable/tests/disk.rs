//! A disk in memory: it counts what is written, may be full or fail to sync, and loses at a power cut an arbitrary part of what was not
//! synced, torn at sectors.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redb::StorageBackend;

use super::super::directory::OpenFile;

const SECTOR: usize = 512;

/// The disk; all clones are one.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<Platters>>);

#[derive(Debug, Default)]
struct Platters {
    files: BTreeMap<String, Content>,
    /// How many more bytes can be written.
    room: Option<usize>,
    /// Whether syncs of files whose names begin so fail.
    unsyncable: Option<&'static str>,
    /// Whether the next write to a file whose name begins so is made and refused all the same.
    refused_next: Option<&'static str>,
    work: Work,
}

/// What a file holds.
#[derive(Debug, Default)]
struct Content {
    /// What survives a power cut for certain.
    synced: Vec<u8>,
    /// What a reader sees.
    current: Vec<u8>,
    /// What was written since the last sync.
    since: Vec<(usize, Vec<u8>)>,
}

/// What a disk has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub(super) bytes: u64,
    pub(super) writes: u64,
    pub(super) syncs: u64,
    /// Those of [`Work::syncs`] that were of the journal.
    pub(super) journal_syncs: u64,
    /// Those of [`Work::bytes`] that were of the journal.
    pub(super) journal_bytes: u64,
}

/// A file on a disk.
#[derive(Debug)]
struct OnDisk {
    disk: Disk,
    name: String,
}

impl Disk {
    /// Returns what opens files on this disk instead of the real one.
    pub(super) fn opener(&self) -> OpenFile {
        let disk = self.clone();
        Arc::new(move |file: File, name: &str| {
            // The directory takes an empty file for a damaged one.
            file.set_len(1)?;
            // A new database gets its own name when it is whole.
            let name = name.trim_end_matches(".new").to_owned();
            disk.platters().files.entry(name.clone()).or_default();
            let disk = disk.clone();
            Ok(Arc::new(OnDisk { disk, name }) as Arc<dyn StorageBackend>)
        })
    }

    fn platters(&self) -> MutexGuard<'_, Platters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the disk as a power cut at this moment leaves it; `chance` decides for every sector that was not synced whether it
    /// arrived.
    pub(super) fn after_power_cut(&self, mut chance: impl FnMut() -> bool) -> Disk {
        let platters = self.platters();
        let mut cut = |content: &Content| {
            let mut left = content.synced.clone();
            left.resize(content.current.len().max(left.len()), 0);
            for (offset, data) in &content.since {
                let mut at = *offset;
                // Sectors of the disk, not of the write.
                let mut rest = &data[..];
                while !rest.is_empty() {
                    let len = (SECTOR - at % SECTOR).min(rest.len());
                    let (piece, behind) = rest.split_at(len);
                    // What a file has lost at its end is not written to.
                    if chance() && at + len <= left.len() {
                        left[at..at + len].copy_from_slice(piece);
                    }
                    (at, rest) = (at + len, behind);
                }
            }
            Content {
                synced: left.clone(),
                current: left,
                since: Vec::new(),
            }
        };
        let files = platters.files.iter();
        let files = files.map(|(name, content)| (name.clone(), cut(content)));
        Disk(Arc::new(Mutex::new(Platters {
            files: files.collect(),
            ..Platters::default()
        })))
    }

    /// Gives a directory the names of the files on it, as a process that died would have left them.
    pub(super) fn leave_names(&self, directory: &Path) {
        for name in self.platters().files.keys() {
            std::fs::write(directory.join(name), "x").expect("the directory can be written");
        }
    }

    /// Changes what a file holds, behind everybody's back.
    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut platters = self.platters();
        let content = platters.files.get_mut(name).expect("there is such a file");
        change(&mut content.current);
        content.synced = content.current.clone();
        content.since.clear();
    }

    /// Returns what a file holds for certain.
    pub(super) fn synced(&self, name: &str) -> Vec<u8> {
        self.platters().content(name).synced.clone()
    }

    /// Lets every sync of files whose names begin so fail.
    pub(super) fn fail_syncs(&self, of: Option<&'static str>) {
        self.platters().unsyncable = of;
    }

    /// Lets the next write to a file whose name begins so be made and refused all the same.
    pub(super) fn refuse_next(&self, of: Option<&'static str>) {
        self.platters().refused_next = of;
    }

    /// Lets the disk be full after so many more bytes, or never.
    pub(super) fn leave_room(&self, bytes: Option<usize>) {
        self.platters().room = bytes;
    }

    /// Returns what it has done so far.
    pub(super) fn work(&self) -> Work {
        self.platters().work
    }
}

impl Platters {
    fn content(&mut self, name: &str) -> &mut Content {
        self.files.get_mut(name).expect("it was opened")
    }
}

impl StorageBackend for OnDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.platters().content(&self.name).current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut platters = self.disk.platters();
        let from = offset as usize;
        let content = platters.content(&self.name);
        let part = content.current.get(from..from + out.len());
        out.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platters = self.disk.platters();
        platters.content(&self.name).current.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platters = self.disk.platters();
        if platters
            .unsyncable
            .is_some_and(|of| self.name.starts_with(of))
        {
            return Err(io::Error::other("the drive does not answer"));
        }
        platters.work.syncs += 1;
        platters.work.journal_syncs += u64::from(self.name.starts_with("journal"));
        let content = platters.content(&self.name);
        content.synced = content.current.clone();
        content.since.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platters = self.disk.platters();
        let from = offset as usize;
        let end = from + data.len();
        if let Some(room) = platters.room {
            let left = room.checked_sub(data.len());
            platters.room = Some(left.ok_or(io::ErrorKind::StorageFull)?);
        }
        platters.work.writes += 1;
        platters.work.bytes += data.len() as u64;
        if self.name.starts_with("journal") {
            platters.work.journal_bytes += data.len() as u64;
        }
        let content = platters.content(&self.name);
        if content.current.len() < end {
            content.current.resize(end, 0);
        }
        content.current[from..end].copy_from_slice(data);
        content.since.push((from, data.to_vec()));
        if platters
            .refused_next
            .take_if(|of| self.name.starts_with(*of))
            .is_some()
        {
            return Err(io::Error::other("the drive is in a bad mood"));
        }
        Ok(())
    }
}
