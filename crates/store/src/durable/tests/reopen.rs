//! Restarts without accidents: what comes back.

use std::sync::Arc;

use super::{disk::Disk, *};
use crate::{Cursor, Event};

/// Returns what one event was.
fn told(event: &Event) -> (u64, EventType, String, Vec<u8>, Option<u64>) {
    (
        event.revision(),
        event.event_type,
        event.object.key().as_str().to_owned(),
        event.object.line().to_vec(),
        event.previous.as_ref().map(|object| object.revision()),
    )
}

/// Returns the events of a collection after a revision; none if they are not all there.
fn events(collection: &Arc<Collection>, revision: u64) -> Option<Vec<Event>> {
    let mut cursor = Cursor::new(collection.clone(), revision).ok()?;
    let mut all = Vec::new();
    while let Some(batch) = Some(cursor.poll().ok()?).filter(|batch| !batch.is_empty()) {
        all.extend(batch);
    }
    Some(all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_restart_changes_nothing_that_anybody_can_see(
        lives in proptest::collection::vec(proptest::collection::vec(a_write(), 0..25), 1..4),
        kept in 1..20usize,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let runtime = runtime();
        let mut model = Model::new();
        let mut last = 0;
        for writes in lives {
            let store = opened(directory.path(), window(kept));
            prop_assert!(store.revision() >= last);
            prop_assert_eq!(content(&store), model.clone());
            let before = store.revision();
            for write in &writes {
                runtime.block_on(run(&store, &mut model, write)).unwrap();
            }
            let revisions = before.saturating_sub(30)..=store.revision();
            let seen: Vec<_> = KINDS.iter().map(|kind| {
                let collection = store.collection(kind);
                revisions.clone().map(|revision| events(&collection, revision).map(|all| all.iter().map(told).collect::<Vec<_>>())).collect::<Vec<_>>()
            }).collect();
            last = store.revision();
            runtime.block_on(store.close());
            let again = opened(directory.path(), window(kept));
            prop_assert_eq!(again.revision(), last);
            for (kind, seen) in KINDS.iter().zip(seen) {
                let collection = again.collection(kind);
                for (revision, seen) in revisions.clone().zip(seen) {
                    // What was in the window is in it still; a watch goes on with the same bytes or is told to list again.
                    let now = events(&collection, revision).map(|all| all.iter().map(told).collect::<Vec<_>>());
                    prop_assert_eq!(now, seen, "{} after {}", kind, revision);
                }
            }
            runtime.block_on(again.close());
        }
    }
}

#[test]
fn a_store_that_is_dropped_lets_go_of_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let store = opened(directory.path(), window(9));
    let put = Write::Put {
        kind: 0,
        name: 0,
        data: 7,
    };
    runtime
        .block_on(run(&store, &mut Model::new(), &put))
        .unwrap();
    let second = opened_on(directory.path(), window(9), Arc::new(open_file)).err();
    let said = second.map(|error| error.to_string()).unwrap_or_default();
    assert!(said.ends_with("is in use by another process"), "{said}");
    runtime.block_on(store.close());
    let late = runtime.block_on(run(&store, &mut Model::new(), &put));
    assert!(matches!(late, Err(CommitError::NotStored(_))), "{late:?}");
    assert_eq!(content(&opened(directory.path(), window(9))).len(), 1);
}

#[test]
fn what_the_window_has_forgotten_leaves_the_disk_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let store = opened(directory.path(), window(10));
    let mut model = Model::new();
    for data in 0..200 {
        let put = Write::Put {
            kind: 0,
            name: data as u8 % 3,
            data,
        };
        runtime.block_on(run(&store, &mut model, &put)).unwrap();
        let delete = Write::Delete { kind: 0, name: 2 };
        runtime.block_on(run(&store, &mut model, &delete)).unwrap();
    }
    store.compact(Timestamp::UNIX_EPOCH);
    runtime.block_on(store.close());
    let records = records(directory.path());
    // Two objects, ten events and the versions before them.
    assert!(records <= 2 + 2 * 10, "{records} records are left");
    let again = opened(directory.path(), window(10));
    assert_eq!(content(&again), model);
}

fn records(directory: &Path) -> u64 {
    use redb::{ReadableDatabase, ReadableTableMetadata};
    let database = redb::Database::open(directory.join("state.redb")).unwrap();
    let read = database.begin_read().unwrap();
    let records = read.open_table(super::super::tables::RECORDS).unwrap();
    records.len().unwrap()
}

#[test]
fn objects_that_live_for_a_time_end_at_it_after_a_restart_too() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    let store = opened(directory.path(), window(9));
    let collection = store.collection("events");
    let key = |name| Key::new(None, name);
    for (name, second) in [("early", 10), ("late", 20)] {
        let draft = Draft::new(
            EventType::Added,
            &json!({"metadata": {}}),
            Box::default(),
            1,
        );
        let create = Change::Create(key(name), draft);
        runtime
            .block_on(collection.commit(create, at(second)))
            .unwrap();
    }
    runtime.block_on(store.close());
    let again = opened(directory.path(), window(9));
    let collection = again.collection("events");
    collection.live_for(jiff::SignedDuration::from_secs(100));
    assert_eq!(runtime.block_on(again.expire(at(110))), Some(at(120)));
    assert!(collection.get("early").is_none() && collection.get("late").is_some());
}

#[test]
fn a_note_is_there_again_and_as_early_as_what_was_written_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let disk = Disk::default();
    let store = opened_on(directory.path(), window(9), disk.opener()).unwrap();
    store.notes().put("cloud/a", "one");
    store.notes().put("cloud/b", "two");
    store.notes().put("keys/a", "three");
    store.notes().remove("cloud/b");
    assert_eq!(store.notes().list("cloud/").len(), 1);
    let put = Write::Put {
        kind: 0,
        name: 0,
        data: 7,
    };
    runtime
        .block_on(run(&store, &mut Model::new(), &put))
        .unwrap();
    assert_eq!(store.notes().list("").len(), 2);
    // The moment the write is answered.
    let cut = disk.after_power_cut(|| false);
    runtime.block_on(store.close());
    cut.leave_names(directory.path());
    let again = opened_on(directory.path(), window(9), cut.opener()).unwrap();
    assert_eq!(again.notes().get("cloud/a").as_deref(), Some(&b"one"[..]));
    assert_eq!(again.notes().get("cloud/b"), None);
    assert_eq!(again.notes().get("keys/a").as_deref(), Some(&b"three"[..]));
}
