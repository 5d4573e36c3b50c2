//! What lists and watches promise, checked against a plain model of the store.

use std::{collections::BTreeMap, sync::Arc};

use futures::FutureExt;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A write to one of a few keys, so that the same object is written often.
#[derive(Clone, Debug)]
enum Write {
    Put { namespace: u8, name: u8, data: u8 },
    Delete { namespace: u8, name: u8 },
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let put = (0..3u8, 0..4u8, any::<u8>()).prop_map(|(namespace, name, data)| Write::Put {
        namespace,
        name,
        data,
    });
    let delete = (0..3u8, 0..4u8).prop_map(|(namespace, name)| Write::Delete { namespace, name });
    proptest::collection::vec(prop_oneof![3 => put, 1 => delete], 1..60)
}

fn key(namespace: u8, name: u8) -> Key {
    Key::new(Some(&format!("n{namespace}")), &format!("o{name}"))
}

fn draft(collection: &Collection, event: EventType, key: &Key, data: u8) -> Draft {
    let object = json!({"metadata": {"name": key.name(), "namespace": key.namespace(), "labels": {"data": data.to_string()}}, "data": data});
    Draft::new(event, &object, Box::default(), collection.next_revision())
}

fn commit(collection: &Arc<Collection>, change: Change) -> Result<Arc<Object>, CommitError> {
    collection
        .commit(change, Timestamp::UNIX_EPOCH)
        .now_or_never()
        .expect("memory does not wait")
}

/// Makes a write; nothing happens to an object that is not there.
fn run(collection: &Arc<Collection>, write: &Write) {
    let change = match *write {
        Write::Put {
            namespace,
            name,
            data,
        } => {
            let key = key(namespace, name);
            match collection.get(key.as_str()) {
                Some(seen) => {
                    Change::Update(seen, draft(collection, EventType::Modified, &key, data))
                }
                None => {
                    Change::Create(key.clone(), draft(collection, EventType::Added, &key, data))
                }
            }
        }
        Write::Delete { namespace, name } => match collection.get(key(namespace, name).as_str()) {
            Some(seen) => Change::Delete(seen),
            None => return,
        },
    };
    commit(collection, change).expect("nobody else writes");
}

type Model = BTreeMap<String, Value>;

fn state(objects: &[Arc<Object>]) -> Model {
    objects
        .iter()
        .map(|object| (object.key().as_str().to_owned(), object.parse()))
        .collect()
}

fn store(events: usize) -> (Store, Arc<Collection>) {
    let store = Store::new(Window {
        events,
        seconds: i64::MAX,
        ..Window::default()
    });
    let collection = store.collection("things");
    (store, collection)
}

proptest! {
    #[test]
    fn a_list_and_the_events_after_it_reproduce_the_store(writes in writes(), split in 0..60usize) {
        let (_, collection) = store(1000);
        let split = split.min(writes.len());
        writes[..split].iter().for_each(|write| run(&collection, write));
        let list = collection.snapshot(None);
        let mut model = state(&list.objects);
        let mut cursor = Cursor::new(collection.clone(), list.revision).unwrap();
        writes[split..].iter().for_each(|write| run(&collection, write));
        let mut last = list.revision;
        while let Some(events) = Some(cursor.poll().unwrap()).filter(|events| !events.is_empty()) {
            for event in events {
                prop_assert!(event.revision() > last);
                last = event.revision();
                let line: Value = serde_json::from_slice(&event.object.line()).unwrap();
                let key = event.object.key().as_str().to_owned();
                let known = model.contains_key(&key);
                prop_assert_eq!(event.previous.is_some(), known);
                match line["type"].as_str().unwrap() {
                    "DELETED" => { model.remove(&key); }
                    "ADDED" => { prop_assert!(!known); model.insert(key, line["object"].clone()); }
                    _ => { prop_assert!(known); model.insert(key, line["object"].clone()); }
                }
            }
        }
        prop_assert_eq!(model, state(&collection.snapshot(None).objects));
        prop_assert_eq!(cursor.progress(), collection.revision());
    }

    #[test]
    fn every_past_revision_can_be_listed_in_pages(writes in writes(), limit in 1..5usize) {
        let (_, collection) = store(1000);
        let mut past: Vec<(u64, Model)> = Vec::new();
        for write in &writes {
            run(&collection, write);
            past.push((collection.revision(), state(&collection.snapshot(Some("n1")).objects)));
        }
        for (revision, expected) in past {
            let mut listed = Vec::new();
            let mut start: Option<String> = None;
            loop {
                let request = PageRequest { namespace: Some("n1"), start: start.as_deref(), limit: Some(limit), at: Some(revision) };
                let page = collection.list(&request, |_| true).unwrap();
                prop_assert_eq!(page.revision, revision);
                prop_assert_eq!(page.remaining + page.objects.len() + listed.len(), expected.len());
                listed.extend(page.objects);
                match page.next {
                    Some(next) => start = Some(next),
                    None => break,
                }
            }
            prop_assert!(listed.is_sorted_by_key(|object| object.key().clone()));
            prop_assert_eq!(state(&listed), expected);
        }
    }
}

#[test]
fn a_write_against_an_older_version_is_refused() {
    let (_, collection) = store(10);
    let key = key(0, 0);
    let first = commit(
        &collection,
        Change::Create(key.clone(), draft(&collection, EventType::Added, &key, 1)),
    )
    .unwrap();
    let again = Change::Create(key.clone(), draft(&collection, EventType::Added, &key, 1));
    assert!(commit(&collection, again).is_err());
    let update = |seen: &Arc<Object>| {
        Change::Update(
            seen.clone(),
            draft(&collection, EventType::Modified, &key, 2),
        )
    };
    let second = commit(&collection, update(&first)).unwrap();
    assert!(commit(&collection, update(&first)).is_err());
    assert!(commit(&collection, Change::Delete(first)).is_err());
    let deleted = commit(&collection, Change::Delete(second)).unwrap();
    assert!(collection.get(key.as_str()).is_none());
    assert_eq!(deleted.revision(), collection.revision());
}

#[test]
fn revisions_are_shared_by_all_collections() {
    let (store, things) = store(10);
    let others = store.collection("others");
    let key = key(0, 0);
    let create = |collection: &Arc<Collection>| {
        commit(
            collection,
            Change::Create(key.clone(), draft(collection, EventType::Added, &key, 1)),
        )
        .unwrap()
        .revision()
    };
    let (first, second) = (create(&things), create(&others));
    assert!(second > first);
    assert_eq!((things.revision(), store.revision()), (second, second));
    assert_eq!(store.collection("things").len(), 1);
}

#[test]
fn a_watcher_that_the_window_has_passed_is_told_so() {
    let (_, collection) = store(3);
    let mut slow = Cursor::new(collection.clone(), collection.revision()).unwrap();
    let start = collection.revision();
    for data in 0..5 {
        run(
            &collection,
            &Write::Put {
                namespace: 0,
                name: 0,
                data,
            },
        );
    }
    let oldest = start + 2;
    assert_eq!(
        slow.poll().unwrap_err(),
        Expired {
            revision: start,
            oldest
        }
    );
    assert_eq!(
        Cursor::new(collection.clone(), start).err(),
        Some(Expired {
            revision: start,
            oldest
        })
    );
    assert_eq!(
        Cursor::new(collection.clone(), oldest)
            .unwrap()
            .poll()
            .unwrap()
            .len(),
        3
    );
    let past = PageRequest {
        at: Some(start),
        ..PageRequest::default()
    };
    assert_eq!(
        collection.list(&past, |_| true).unwrap_err(),
        ListError::Compacted { revision: start }
    );
    let future = PageRequest {
        at: Some(1000),
        ..PageRequest::default()
    };
    assert_eq!(
        collection.list(&future, |_| true).unwrap_err(),
        ListError::Future {
            current: collection.revision()
        }
    );
}

#[test]
fn a_namespace_is_not_a_prefix_of_another() {
    let (_, collection) = store(10);
    for namespace in ["a", "a-b", "ab", "a.b"] {
        let key = Key::new(Some(namespace), "x");
        commit(
            &collection,
            Change::Create(key.clone(), draft(&collection, EventType::Added, &key, 1)),
        )
        .unwrap();
    }
    let found = collection.snapshot(Some("a")).objects;
    assert_eq!(
        found
            .iter()
            .map(|object| object.key().as_str())
            .collect::<Vec<_>>(),
        ["a/x"]
    );
    let all: Vec<String> = collection
        .snapshot(None)
        .objects
        .iter()
        .map(|object| object.key().as_str().to_owned())
        .collect();
    assert_eq!(all, ["a-b/x", "a.b/x", "a/x", "ab/x"]);
}

#[tokio::test]
async fn a_waiting_watcher_is_woken_by_a_write() {
    let (_, collection) = store(10);
    let mut cursor = Cursor::new(collection.clone(), collection.revision()).unwrap();
    let waiting = tokio::spawn(async move { cursor.next().await.unwrap().len() });
    tokio::task::yield_now().await;
    run(
        &collection,
        &Write::Put {
            namespace: 0,
            name: 0,
            data: 1,
        },
    );
    assert_eq!(waiting.await.unwrap(), 1);
}

#[test]
fn a_collection_that_rests_forgets_its_past_as_well() {
    let window = Window {
        events: 100,
        seconds: 60,
        ..Window::default()
    };
    let store = Store::new(window);
    let collection = store.collection("things");
    run(
        &collection,
        &Write::Put {
            namespace: 0,
            name: 0,
            data: 1,
        },
    );
    let start = collection.revision() - 1;
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    store.compact(at(60));
    assert!(Cursor::new(collection.clone(), start).is_ok());
    store.compact(at(61));
    assert!(Cursor::new(collection.clone(), start).is_err());
    assert_eq!(collection.len(), 1);
}

#[test]
fn the_window_drops_its_oldest_events_when_old_versions_take_too_many_bytes() {
    let collection = Store::new(Window {
        bytes: 0,
        ..Window::default()
    })
    .collection("things");
    let start = collection.revision();
    let put = |name, data| {
        let write = Write::Put {
            namespace: 0,
            name,
            data,
        };
        run(&collection, &write);
    };
    put(0, 1);
    put(1, 1);
    let oldest = |revision| Cursor::new(collection.clone(), revision).err();
    assert_eq!(oldest(start), None, "new objects belong to the index");
    put(0, 2);
    let now = collection.revision();
    let oldest = oldest(start).map(|expired| expired.oldest);
    assert_eq!(oldest, Some(now), "the replaced version did not fit");
    put(2, 1);
    assert_eq!(
        Cursor::new(collection.clone(), now)
            .unwrap()
            .poll()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(collection.len(), 3);
}

/// Returns how many pieces of memory a hundred writes take.
fn allocations(collection: &Arc<Collection>) -> u64 {
    let write = |data| {
        let put = Write::Put {
            namespace: 0,
            name: 0,
            data,
        };
        run(collection, &put);
    };
    write(0);
    allocation_counter::measure(|| (0..100).for_each(write)).count_total
}

#[test]
fn watchers_that_do_not_read_cost_a_writer_nothing() {
    let alone = allocations(&store(10_000).1);
    let (_, collection) = store(10_000);
    let slow: Vec<Cursor> = (0..500)
        .map(|_| Cursor::new(collection.clone(), collection.revision()).unwrap())
        .collect();
    assert_eq!(allocations(&collection), alone);
    drop(slow);
}

#[test]
fn a_write_costs_the_same_among_few_objects_and_among_many() {
    let few = allocations(&store(10_000).1);
    let (_, collection) = store(10_000);
    for name in 0..20_000 {
        let key = Key::new(Some("n9"), &format!("o{name}"));
        let create = Change::Create(key.clone(), draft(&collection, EventType::Added, &key, 1));
        commit(&collection, create).unwrap();
    }
    let many = allocations(&collection);
    // Of the window, which is full by now, each write lets one event go.
    assert!(
        many <= few + 110,
        "{few} allocations at first, {many} among 20,000"
    );
}
