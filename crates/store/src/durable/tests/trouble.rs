//! Disks that are full, files that are damaged: what is said, and that nothing is lost by it.

use std::{fs, sync::Arc};

use super::{disk::Disk, *};

pub(super) fn put(name: u8, data: u16) -> Write {
    Write::Put {
        kind: 0,
        name,
        data,
    }
}

/// A store on a disk of its own, and what should be in it.
pub(super) struct Trial {
    pub(super) directory: tempfile::TempDir,
    pub(super) disk: Disk,
    runtime: tokio::runtime::Runtime,
    store: Store,
    model: Model,
}

impl Trial {
    /// With so many writes to six objects.
    pub(super) fn with(writes: u16) -> Self {
        Self::marking(writes, None)
    }

    /// Creates the same, with a journal that is marked after a while.
    pub(super) fn marking(writes: u16, after: Option<Duration>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let store = opened_marking(directory.path(), window(1000), disk.opener(), after).unwrap();
        let mut trial = Trial {
            directory,
            disk,
            runtime: runtime(),
            store,
            model: Model::new(),
        };
        for data in 0..writes {
            trial.write(&put((data % 6) as u8, data)).unwrap();
        }
        trial
    }

    pub(super) fn write(&mut self, write: &Write) -> Result<(), CommitError> {
        self.runtime
            .block_on(run(&self.store, &mut self.model, write))
    }

    /// Writes until it is taken; after how long that is belongs to the store's thread.
    pub(super) fn write_at_last(&mut self, write: &Write) {
        let mut tries = 0;
        while self.write(write).is_err() {
            tries += 1;
            assert!(tries < 1_000_000_000);
            std::thread::yield_now();
        }
    }

    /// Ends without a last word, as a power cut does of which so much arrives on the disk.
    pub(super) fn die(self, arrives: impl FnMut() -> bool) -> Dead {
        let disk = self.disk.after_power_cut(arrives);
        self.runtime.block_on(self.store.close());
        disk.leave_names(self.directory.path());
        Dead {
            directory: self.directory,
            disk,
            model: self.model,
        }
    }

    /// Ends in order.
    fn close(self) -> Dead {
        self.runtime.block_on(self.store.close());
        Dead {
            directory: self.directory,
            disk: self.disk,
            model: self.model,
        }
    }
}

/// What a [`Trial`] left behind.
pub(super) struct Dead {
    pub(super) directory: tempfile::TempDir,
    pub(super) disk: Disk,
    pub(super) model: Model,
}

impl Dead {
    pub(super) fn open(&self) -> Result<Store, StoreError> {
        opened_on(self.directory.path(), window(1000), self.disk.opener())
    }

    /// Returns why it cannot be opened.
    pub(super) fn refusal(&self) -> String {
        let said = self.open().err().expect("it is refused").to_string();
        said.replace(&self.directory.path().display().to_string(), "DIR")
    }
}

#[test]
fn a_full_disk_refuses_writes_and_loses_none_that_it_took() {
    let mut trial = Trial::with(0);
    trial.disk.leave_room(Some(200_000));
    let refused = (0..2000).find_map(|data| trial.write(&put((data % 6) as u8, data)).err());
    let refused = refused.expect("the disk is full at last").to_string();
    assert!(
        refused.ends_with("cannot be written: the file system is full"),
        "{refused}"
    );
    assert_eq!(
        content(&trial.store),
        trial.model,
        "what was refused is not seen"
    );
    let taken = trial.store.revision();
    trial.disk.leave_room(None);
    trial.write_at_last(&put(0, 1));
    assert!(trial.store.revision() > taken);
    let left = trial.close();
    assert_eq!(content(&left.open().unwrap()), left.model);
}

#[test]
fn after_a_failed_sync_nothing_is_written_until_the_next_start() {
    for (unsyncable, file) in [("journal", "journal.0"), ("state", "state.redb")] {
        let mut trial = Trial::with(20);
        assert!(trial.store.failure().is_none());
        trial.disk.fail_syncs(Some(unsyncable));
        // What is in the journal goes to the tables.
        trial.store.compact(Timestamp::UNIX_EPOCH);
        let mut writes = (0..1_000_000_u32).map(|data| (data % 1000) as u16);
        let (unanswered, refused) = writes
            .find_map(|data| Some((data, trial.write(&put(0, data)).err()?)))
            .expect("it is noticed at last");
        let said = refused.to_string();
        let said = said.replace(&trial.directory.path().display().to_string(), "DIR");
        // The journal may have gone on in its other file by now.
        let said = said.replace("journal.1", "journal.0");
        assert_eq!(
            said,
            format!(
                "the write cannot be made permanent: DIR/{file} may not be on disk: the drive does not answer; no write is taken until the server is \
                 started again"
            )
        );
        // Not even when the drive answers again: what it has dropped it would not say.
        trial.disk.fail_syncs(None);
        let again = trial.write(&put(1, 1));
        assert!(matches!(again, Err(CommitError::NotStored(_))));
        assert_eq!(
            content(&trial.store),
            trial.model,
            "what was refused is not seen"
        );
        assert!(trial.store.failure().is_some());
        let revision = trial.store.revision();
        let mut left = trial.close();
        let store = left.open().unwrap();
        assert!(store.revision() >= revision);
        let mut found = content(&store);
        // The one write that nobody knows of may be there.
        let place = (KINDS[0], "n/o0".to_owned());
        let there = found.remove(&place).unwrap();
        let expected = left.model.remove(&place).unwrap();
        assert!(there == expected || there.1 == unanswered);
        assert_eq!(found, left.model);
        left.model.insert(place, there);
        let write = put(1, 1);
        let written = runtime().block_on(run(&store, &mut left.model, &write));
        written.unwrap();
        assert_eq!(content(&store), left.model);
    }
}

#[test]
fn a_refused_write_does_not_come_back_in_the_place_of_a_later_one() {
    let mut trial = Trial::with(20);
    // It arrives as a whole, and the disk says that it did not.
    trial.disk.refuse_next(Some("journal"));
    let refused = trial.write(&put(1, 77));
    assert!(matches!(refused, Err(CommitError::NotStored(_))));
    let mut copy = Vec::new();
    // The journal goes on in its other file.
    trial.store.copy_to(&mut copy).unwrap();
    trial.write_at_last(&put(2, 5));
    let left = trial.die(|| true);
    assert_eq!(content(&left.open().unwrap()), left.model);
}

#[test]
fn a_damaged_journal_is_told_from_one_that_ends_with_a_torn_write() {
    let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
        let left = Trial::with(30).die(|| false);
        left.disk.change("journal.0", change);
        left.refusal()
    };
    let cut = "DIR/journal.0 is damaged: it is cut short";
    let changed = |from: usize| {
        let to = from + 511;
        format!("DIR/journal.0 is damaged: its bytes {from} to {to} are not what was written")
    };
    let missing = "DIR/journal.0 is damaged: entry 2 cannot be read, and later ones are there";
    assert_eq!(refusal(&|file| file.clear()), cut);
    assert_eq!(refusal(&|file| file.truncate(100)), cut);
    assert_eq!(refusal(&|file| file.truncate(1000)), cut);
    assert_eq!(refusal(&|file| file[40] ^= 1), changed(0));
    assert_eq!(refusal(&|file| file[3000] ^= 1), changed(2560));
    assert_eq!(refusal(&|file| file[1000..4000].fill(0)), missing);
    assert_eq!(refusal(&|file| file[600..4000].fill(0)), changed(512));
    let left = Trial::with(30).die(|| false);
    fs::remove_file(left.directory.path().join("journal.1")).unwrap();
    assert_eq!(left.refusal(), "DIR/journal.1 is damaged: it is missing");

    // The last entry is one that nobody was told of: its last sector has not arrived.
    let left = Trial::with(30).die(|| false);
    left.disk.change("journal.0", |file| {
        let end = file.iter().rposition(|byte| *byte != 0).expect("entries");
        file[end / 512 * 512..].fill(0);
    });
    let found = content(&left.open().unwrap());
    let missing = left.model.iter();
    let missing = missing.filter(|(place, there)| found.get(place) != Some(there));
    assert_eq!(missing.count(), 1);
}

#[test]
fn the_journal_of_another_store_is_refused_and_left_alone() {
    let one = Trial::with(10).die(|| false);
    let other = Trial::with(20).die(|| false);
    let mut stolen = Vec::new();
    one.disk.change("journal.0", |file| stolen = file.clone());
    let mut before = Vec::new();
    other.disk.change("journal.1", |file| {
        before = std::mem::replace(file, stolen.clone());
    });
    // What was in the file that it replaced is not there.
    assert_eq!(
        other.refusal(),
        "DIR/journal.1 is damaged: it belongs to another cluster"
    );
    assert_eq!(other.disk.synced("journal.1"), stolen);
    other.disk.change("journal.1", |file| *file = before);
    assert_eq!(content(&other.open().unwrap()), other.model);
}

#[test]
fn what_is_no_store_is_refused_in_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let here = |name: &str| directory.path().join(name);
    for (name, content) in [("empty", ""), ("text", "this is no database\n")] {
        fs::create_dir(here(name)).unwrap();
        fs::write(here(name).join("state.redb"), content).unwrap();
    }
    fs::write(here("file"), "").unwrap();
    let refused = ["empty", "text", "file", "file/below"].map(|name| {
        let error = opened_on(&here(name), window(1), Arc::new(open_file)).err();
        let said = error.expect("it is refused").to_string();
        said.replace(&directory.path().display().to_string(), "DIR")
    });
    assert_eq!(
        refused.join("\n"),
        "DIR/empty/state.redb is damaged: it is empty\n\
         DIR/text/state.redb is damaged: Not a redb database: magic number mismatch\n\
         DIR/file cannot be written: a file stands where a directory is needed\n\
         DIR/file/below cannot be written: a file stands where a directory is needed"
    );
    assert_eq!(
        fs::read_to_string(here("text").join("state.redb")).unwrap(),
        "this is no database\n"
    );
}

/// Returns a directory with a store that was closed, and what is in it.
fn closed() -> (tempfile::TempDir, Model) {
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let store = opened(directory.path(), window(1000));
    let mut model = Model::new();
    for data in 0..60 {
        let write = put((data % 6) as u8, data);
        runtime.block_on(run(&store, &mut model, &write)).unwrap();
    }
    runtime.block_on(store.close());
    (directory, model)
}

#[test]
fn damage_anywhere_in_the_database_is_noticed_and_left_as_it_is() {
    let (directory, model) = closed();
    let file = directory.path().join("state.redb");
    let whole = fs::read(&file).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let page = |from: usize| {
        let mut damaged = whole.clone();
        damaged[from..from + 4096].fill(0);
        damaged
    };
    let flipped = |at: usize| {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        damaged
    };
    let cut = |len: usize| whole[..len].to_vec();
    let flips = (0..40).map(|part| flipped(used * part / 40 + 7));
    let pages = (1..used / 4096).map(|page| page * 4096);
    let pages = pages.filter(|from| whole[*from..][..4096].iter().any(|byte| *byte != 0));
    let all =
        flips
            .chain(pages.take(20).map(page))
            .chain([cut(whole.len() / 2), cut(4096), cut(100)]);
    let mut refused = 0;
    for damaged in all {
        fs::write(&file, &damaged).unwrap();
        match opened_on(directory.path(), window(1000), Arc::new(open_file)) {
            // Nobody needs what was damaged.
            Ok(store) => {
                assert_eq!(content(&store), model);
                runtime().block_on(store.close());
            }
            Err(why) => {
                refused += 1;
                assert!(why.to_string().contains("state.redb is damaged: "), "{why}");
                assert!(fs::read(&file).unwrap() == damaged);
            }
        }
    }
    assert!(refused > 10, "{refused} were refused");
}

#[test]
fn a_journal_without_its_database_is_refused() {
    let trial = Trial::with(20);
    let database = trial.directory.path().join("state.redb");
    let dead = trial.die(|| true);
    fs::remove_file(database).unwrap();
    assert_eq!(
        dead.refusal(),
        "DIR/state.redb is damaged: it is missing, and the journal beside it is not"
    );
    // Who says so begins anew.
    crate::erase(dead.directory.path()).unwrap();
    assert!(content(&opened(dead.directory.path(), window(9))).is_empty());
}

#[cfg(unix)]
#[test]
fn only_their_owner_may_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("a").join("b");
    drop(opened(&directory, window(1)));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    for file in fs::read_dir(&directory).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
}
