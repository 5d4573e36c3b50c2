//! What a store on disk promises, held against a plain model: nothing acknowledged is lost, nothing half-written is seen, no revision
//! comes twice. [`disk`] is a disk that loses power, tears writes and runs full.

mod copies;
mod crash;
mod damage;
mod disk;
mod folders;
mod reopen;
mod trouble;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::directory::{OpenFile, open_file};
use crate::{
    Change, Collection, CommitError, Draft, EventType, Key, Object, Store, StoreError, Window,
    notes::Notes,
};

/// A write to one of a few objects of a few kinds, so that the same object is written often.
#[derive(Clone, Debug)]
enum Write {
    Put { kind: u8, name: u8, data: u16 },
    Delete { kind: u8, name: u8 },
}

fn a_write() -> impl Strategy<Value = Write> {
    let put = (0..2u8, 0..6u8, any::<u16>()).prop_map(|(kind, name, data)| Write::Put {
        kind,
        name,
        data,
    });
    let delete = (0..2u8, 0..6u8).prop_map(|(kind, name)| Write::Delete { kind, name });
    prop_oneof![3 => put, 1 => delete]
}

const KINDS: [&str; 2] = ["things", "others.example.com"];

/// What should be there: by kind and key the revision and the data.
type Model = BTreeMap<(&'static str, String), (u64, u16)>;

fn window(events: usize) -> Window {
    Window {
        events,
        seconds: i64::MAX,
        ..Window::default()
    }
}

fn opened(directory: &Path, window: Window) -> Store {
    opened_on(directory, window, Arc::new(open_file)).expect("the directory can be used")
}

fn opened_on(directory: &Path, window: Window, disk: OpenFile) -> Result<Store, StoreError> {
    opened_marking(directory, window, disk, None)
}

/// Opens a store whose journal is marked after a while, or never.
fn opened_marking(
    directory: &Path,
    window: Window,
    disk: OpenFile,
    after: Option<Duration>,
) -> Result<Store, StoreError> {
    let opened = super::open_with(directory, window, Timestamp::UNIX_EPOCH, disk, after)?;
    Ok(Store {
        revision: opened.revision,
        window,
        collections: opened.collections.into(),
        notes: Notes::in_journal(opened.writer.clone()),
        writer: Some(opened.writer),
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime without drivers can be made")
}

/// Returns the change that a write is to the collection as it is; none if there is nothing to delete.
fn change(collection: &Collection, write: &Write) -> Option<Change> {
    let (Write::Put { name, .. } | Write::Delete { name, .. }) = write;
    let key = Key::new(Some("n"), &format!("o{name}"));
    let seen = collection.get(key.as_str());
    let Write::Put { data, .. } = write else {
        return seen.map(Change::Delete);
    };
    let object = json!({"metadata": {"name": key.name(), "labels": {"data": data.to_string()}}, "data": data});
    let event = match seen {
        Some(_) => EventType::Modified,
        None => EventType::Added,
    };
    let draft = Draft::new(event, &object, Box::default(), collection.next_revision());
    Some(match seen {
        Some(seen) => Change::Update(seen, draft),
        None => Change::Create(key, draft),
    })
}

fn kind(write: &Write) -> &'static str {
    let (Write::Put { kind, .. } | Write::Delete { kind, .. }) = write;
    KINDS[usize::from(*kind)]
}

/// Makes a write in the store and, if it was made, in the model.
async fn run(store: &Store, model: &mut Model, write: &Write) -> Result<(), CommitError> {
    let collection = store.collection(kind(write));
    if let Some(change) = change(&collection, write) {
        let made = collection.commit(change, Timestamp::UNIX_EPOCH).await?;
        note(model, write, &made);
    }
    Ok(())
}

fn note(model: &mut Model, write: &Write, made: &Object) {
    let place = (kind(write), made.key().as_str().to_owned());
    match write {
        Write::Put { data, .. } => model.insert(place, (made.revision(), *data)),
        Write::Delete { .. } => model.remove(&place),
    };
}

/// Returns what is there.
fn content(store: &Store) -> Model {
    let mut content = Model::new();
    for kind in KINDS {
        for object in store.collection(kind).snapshot(None).objects {
            let tree = object.parse();
            assert_eq!(
                tree["metadata"]["resourceVersion"],
                object.revision().to_string()
            );
            let data = tree["data"].as_u64().expect("it was written") as u16;
            assert_eq!(object.meta().label("data"), Some(data.to_string().as_str()));
            let place = (kind, object.key().as_str().to_owned());
            content.insert(place, (object.revision(), data));
        }
    }
    content
}
