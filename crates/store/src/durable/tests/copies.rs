//! Copies of a store that runs, and stores made from them.

use std::fs;

use super::*;
use crate::{CopyError, Cursor, check_copy, erase, restore_copy};

fn filled(directory: &Path) -> (Store, Model) {
    let store = opened(directory, window(100));
    let mut model = Model::new();
    let runtime = runtime();
    for data in 0..30 {
        let put = Write::Put {
            kind: (data % 2) as u8,
            name: (data % 5) as u8,
            data,
        };
        runtime.block_on(run(&store, &mut model, &put)).unwrap();
    }
    store.notes().put("keys/ca", "secret");
    runtime.block_on(store.notes().settled()).unwrap();
    (store, model)
}

#[test]
fn a_copy_taken_while_the_store_runs_holds_one_moment() {
    let parent = tempfile::tempdir().unwrap();
    let (store, model) = filled(&parent.path().join("one"));
    let taken_at = store.revision();
    let mut copy = Vec::new();
    store.copy_to(&mut copy).unwrap();
    let put = Write::Put {
        kind: 0,
        name: 0,
        data: 999,
    };
    runtime()
        .block_on(run(&store, &mut model.clone(), &put))
        .unwrap();

    let directory = parent.path().join("two");
    restore_copy(&copy[..], &directory, false).unwrap();
    let again = opened(&directory, window(100));
    assert_eq!(content(&again), model);
    assert_eq!(
        again.notes().get("keys/ca").as_deref(),
        Some(&b"secret"[..])
    );
    // Whoever has seen the original later has seen other things under these revisions.
    assert!(again.revision() > store.revision());
    let watch = Cursor::new(again.collection(KINDS[0]), taken_at);
    assert!(watch.is_err(), "a watch from before has to list again");
    let mut model = model;
    runtime().block_on(run(&again, &mut model, &put)).unwrap();
    assert_eq!(content(&again), model);
}

#[test]
fn a_copy_that_is_not_whole_replaces_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let (store, _) = filled(&parent.path().join("one"));
    let mut copy = Vec::new();
    store.copy_to(&mut copy).unwrap();
    let (other, model) = filled(&parent.path().join("two"));
    runtime().block_on(other.close());
    let two = parent.path().join("two");
    let occupied = restore_copy(&copy[..], &two, false).unwrap_err();
    assert!(occupied.to_string().ends_with("holds a cluster already"));
    let mut changed = copy.clone();
    changed[copy.len() / 2] ^= 1;
    for bad in [
        &copy[..copy.len() - 1],
        &copy[..10],
        &changed,
        b"",
        b"something else entirely",
    ] {
        for refused in [restore_copy(bad, &two, true), check_copy(bad)] {
            let why = refused.unwrap_err();
            assert!(matches!(why, CopyError::Malformed(_)), "{why}");
        }
    }
    let two_again = opened(&two, window(100));
    assert_eq!(content(&two_again), model);
    runtime().block_on(two_again.close());
    assert_eq!(
        fs::read_dir(&two).unwrap().count(),
        2,
        "nothing is left over"
    );
    let busy = restore_copy(&copy[..], &parent.path().join("one"), true).unwrap_err();
    assert!(busy.to_string().ends_with("is in use by another process"));
}

#[test]
fn what_is_erased_is_the_store_and_nothing_else() {
    let parent = tempfile::tempdir().unwrap();
    erase(&parent.path().join("never")).unwrap();
    let directory = parent.path().join("one");
    let (store, _) = filled(&directory);
    fs::write(directory.join("mine.txt"), "mine").unwrap();
    let busy = erase(&directory).unwrap_err();
    assert!(busy.to_string().ends_with("is in use by another process"));
    runtime().block_on(store.close());
    erase(&directory).unwrap();
    assert!(directory.join("mine.txt").exists());
    assert!(content(&opened(&directory, window(100))).is_empty());
}
