//! Disks that are full, files that are damaged: what is said, and that nothing is lost by it.

use std::{fs, sync::Arc};

use super::{disk::Disk, *};

fn put(name: u8, data: u16) -> Write {
    Write::Put {
        kind: 0,
        name,
        data,
    }
}

#[test]
fn a_full_disk_refuses_writes_and_loses_none_that_it_took() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let runtime = runtime();
    let store = opened_on(directory.path(), window(1000), disk.opener()).unwrap();
    let mut model = Model::new();
    disk.leave_room(Some(200_000));
    let refused = (0..2000).find_map(|data| {
        let write = put((data % 6) as u8, data);
        runtime.block_on(run(&store, &mut model, &write)).err()
    });
    let refused = refused.expect("the disk is full at last").to_string();
    assert!(
        refused.ends_with("cannot be written: the file system is full"),
        "{refused}"
    );
    assert_eq!(content(&store), model, "what was refused is not seen");
    let taken = store.revision();
    disk.leave_room(None);
    // It is tried again after a while; how long that is belongs to the thread.
    let mut tries = 0;
    while runtime
        .block_on(run(&store, &mut model, &put(0, 1)))
        .is_err()
    {
        tries += 1;
        assert!(tries < 1_000_000_000);
        std::thread::yield_now();
    }
    assert!(store.revision() > taken);
    runtime.block_on(store.close());
    let again = opened_on(directory.path(), window(1000), disk.opener()).unwrap();
    assert_eq!(content(&again), model);
}

#[test]
fn after_a_failed_sync_nothing_is_written_until_the_next_start() {
    for unsyncable in ["journal", "state"] {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        let runtime = runtime();
        let store = opened_on(directory.path(), window(1000), disk.opener()).unwrap();
        let mut model = Model::new();
        for data in 0..20 {
            let write = put((data % 6) as u8, data);
            runtime.block_on(run(&store, &mut model, &write)).unwrap();
        }
        assert!(store.failure().is_none());
        disk.fail_syncs(Some(unsyncable));
        // What is in the journal goes to the tables.
        store.compact(Timestamp::UNIX_EPOCH);
        let mut unanswered = model.clone();
        let mut refused = None;
        for data in 0..1_000_000_u32 {
            let write = put(0, (data % 1000) as u16);
            let mut after = model.clone();
            match runtime.block_on(run(&store, &mut after, &write)) {
                Ok(()) => model = after,
                Err(error) => {
                    refused = Some(error);
                    let made = model.get(&(KINDS[0], "n/o0".to_owned())).unwrap().1;
                    assert_ne!(made, 9999);
                    unanswered.insert((KINDS[0], "n/o0".to_owned()), (0, data as u16 % 1000));
                    break;
                }
            }
        }
        let said = refused.expect("it is noticed at last").to_string();
        let said = said.replace(&directory.path().display().to_string(), "DIR");
        let file = match unsyncable {
            "journal" => "journal.0",
            _ => "state.redb",
        };
        assert_eq!(
            said,
            format!(
                "the write cannot be made permanent: DIR/{file} may not be on disk: the drive does not answer; no write is taken until the server is \
                 started again"
            )
        );
        // Not even when the drive answers again: what it has dropped it would not say.
        disk.fail_syncs(None);
        let again = runtime.block_on(run(&store, &mut model.clone(), &put(1, 1)));
        assert!(matches!(again, Err(CommitError::NotStored(_))));
        assert_eq!(content(&store), model, "what was refused is not seen");
        assert!(store.failure().is_some());
        let revision = store.revision();
        runtime.block_on(store.close());
        let store = opened_on(directory.path(), window(1000), disk.opener()).unwrap();
        assert!(store.revision() >= revision);
        let mut found = content(&store);
        // The one write that nobody knows of may be there.
        let place = (KINDS[0], "n/o0".to_owned());
        let there = found.remove(&place).unwrap();
        let expected = model.remove(&place).unwrap();
        assert!(there == expected || there.1 == unanswered[&place].1);
        assert_eq!(found, model);
        model.insert(place, there);
        runtime
            .block_on(run(&store, &mut model, &put(1, 1)))
            .unwrap();
        assert_eq!(content(&store), model);
    }
}

#[test]
fn a_refused_write_does_not_come_back_in_the_place_of_a_later_one() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let runtime = runtime();
    let store = opened_on(directory.path(), window(1000), disk.opener()).unwrap();
    let mut model = Model::new();
    for data in 0..20 {
        runtime
            .block_on(run(&store, &mut model, &put(0, data)))
            .unwrap();
    }
    // It arrives as a whole, and the disk says that it did not.
    disk.refuse_next(Some("journal"));
    let refused = runtime.block_on(run(&store, &mut model.clone(), &put(1, 77)));
    assert!(matches!(refused, Err(CommitError::NotStored(_))));
    let mut copy = Vec::new();
    // The journal goes on in its other file.
    store.copy_to(&mut copy).unwrap();
    let mut tries = 0;
    while runtime
        .block_on(run(&store, &mut model, &put(2, 5)))
        .is_err()
    {
        tries += 1;
        assert!(tries < 1_000_000_000);
        std::thread::yield_now();
    }
    let left = disk.after_power_cut(|| true);
    runtime.block_on(store.close());
    left.leave_names(directory.path());
    let again = opened_on(directory.path(), window(1000), left.opener()).unwrap();
    assert_eq!(content(&again), model);
}

/// A store whose process died with so many writes in the journal.
fn died_with(directory: &Path, writes: u16) -> (Disk, Model) {
    let disk = Disk::default();
    let runtime = runtime();
    let store = opened_on(directory, window(1000), disk.opener()).unwrap();
    let mut model = Model::new();
    for data in 0..writes {
        let write = put((data % 6) as u8, data);
        runtime.block_on(run(&store, &mut model, &write)).unwrap();
    }
    let left = disk.after_power_cut(|| false);
    runtime.block_on(store.close());
    left.leave_names(directory);
    (left, model)
}

#[test]
fn a_damaged_journal_is_told_from_one_that_ends_with_a_torn_write() {
    let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
        let directory = tempfile::tempdir().unwrap();
        let (disk, _) = died_with(directory.path(), 30);
        disk.change("journal.0", change);
        let opened = opened_on(directory.path(), window(1000), disk.opener());
        let said = opened.err().expect("it is refused").to_string();
        said.replace(&directory.path().display().to_string(), "DIR")
    };
    let cut = "DIR/journal.0 is damaged: it is cut short";
    let changed = "DIR/journal.0 is damaged: entries in the middle of it cannot be read";
    assert_eq!(refusal(&|file| file.clear()), cut);
    assert_eq!(refusal(&|file| file.truncate(100)), cut);
    assert_eq!(refusal(&|file| file.truncate(1000)), cut);
    assert_eq!(refusal(&|file| file[40] ^= 1), changed);
    assert_eq!(refusal(&|file| file[3000] ^= 1), changed);
    assert_eq!(refusal(&|file| file[1000..4000].fill(0)), changed);
    let directory = tempfile::tempdir().unwrap();
    let (disk, _) = died_with(directory.path(), 30);
    fs::remove_file(directory.path().join("journal.1")).unwrap();
    let opened = opened_on(directory.path(), window(1000), disk.opener());
    let said = opened.err().expect("it is refused").to_string();
    assert!(said.ends_with("journal.1 is damaged: it is missing"));

    // The last entry is one that nobody was told of.
    let directory = tempfile::tempdir().unwrap();
    let (disk, model) = died_with(directory.path(), 30);
    disk.change("journal.0", |file| {
        let end = file.iter().rposition(|byte| *byte != 0).expect("entries");
        file[end - 20..].fill(0);
    });
    let store = opened_on(directory.path(), window(1000), disk.opener()).unwrap();
    let (found, missing) = (content(&store), model.iter());
    let missing = missing.filter(|(place, there)| found.get(place) != Some(there));
    assert_eq!(missing.count(), 1);
}

#[test]
fn the_journal_of_another_store_is_left_alone() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (disk, _) = died_with(one.path(), 10);
    let (other, model) = died_with(two.path(), 20);
    let mut stolen = Vec::new();
    disk.change("journal.0", |file| stolen = file.clone());
    other.change("journal.1", |file| *file = stolen);
    let store = opened_on(two.path(), window(1000), other.opener()).unwrap();
    assert_eq!(content(&store), model);
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

#[test]
fn damage_in_the_middle_of_the_file_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let store = opened(directory.path(), window(1000));
    for data in 0..60 {
        runtime
            .block_on(run(&store, &mut Model::new(), &put((data % 6) as u8, data)))
            .unwrap();
    }
    runtime.block_on(store.close());
    let file = directory.path().join("state.redb");
    let mut bytes = fs::read(&file).unwrap();
    let mut found = 0;
    while let Some(at) = bytes[found..]
        .windows(10)
        .position(|part| part == b"\"metadata\"")
    {
        found += at;
        bytes[found - 40..found].fill(0xff);
        found += 1;
    }
    fs::write(&file, bytes).unwrap();
    let refused = opened_on(directory.path(), window(1000), Arc::new(open_file)).err();
    let refused = refused.expect("it is refused").to_string();
    assert!(refused.contains("state.redb is damaged: "), "{refused}");
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
