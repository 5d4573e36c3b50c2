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
