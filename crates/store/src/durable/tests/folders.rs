//! What a folder is taken for, and that a kept cluster without its data does not begin anew.

use std::fs;

use super::*;
use crate::{FolderState, erase, folder_state};

fn state(folder: &Path) -> String {
    let said = match folder_state(folder).expect("the folder can be read") {
        FolderState::Empty => "empty".to_owned(),
        FolderState::Cluster => "cluster".to_owned(),
        FolderState::Damaged { path, why } => StoreError::Damaged { path, why }.to_string(),
        FolderState::Foreign { path } => format!("foreign: {}", path.display()),
    };
    said.replace(&folder.display().to_string(), "DIR")
}

#[test]
fn a_folder_is_free_a_clusters_a_damaged_clusters_or_somebody_elses() {
    let parent = tempfile::tempdir().unwrap();
    let said = |name: &str, files: &[(&str, &[u8])]| {
        let folder = parent.path().join(name);
        fs::create_dir(&folder).unwrap();
        for (file, content) in files {
            fs::write(folder.join(file), content).unwrap();
        }
        state(&folder)
    };
    let lock = super::super::folder_state::KEPT;
    assert_eq!(state(&parent.path().join("never")), "empty");
    assert_eq!(said("new", &[]), "empty");
    assert_eq!(said("mounted", &[("lost+found", b"")]), "empty");
    // A first start that was cut off before there was a cluster.
    let cut_off: [(&str, &[u8]); 2] = [("lock", b""), ("state.redb.new", b"redb")];
    assert_eq!(said("cut off", &cut_off), "empty");
    assert_eq!(said("zeros", &[("lock", &[0; 20])]), "empty");
    assert_eq!(said("text", &[("b", b"1"), ("a", b"")]), "foreign: DIR/a");
    assert_eq!(said("lock", &[("lock", b"4711\n")]), "foreign: DIR/lock");
    let beside: [(&str, &[u8]); 2] = [("lock", b""), ("notes.txt", b"")];
    assert_eq!(said("notes", &beside), "foreign: DIR/notes.txt");
    assert_eq!(
        said("no database", &[("state.redb", b"this is no database")]),
        "DIR/state.redb is damaged: it is not a database"
    );
    assert_eq!(
        said("nothing", &[("state.redb", b"")]),
        "DIR/state.redb is damaged: it is empty"
    );
    assert_eq!(
        said("journal", &[("journal.1", b"")]),
        "DIR/state.redb is damaged: it is missing, and the journal beside it is not"
    );
    let kept: [(&str, &[u8]); 2] = [("lock", lock), ("notes.txt", b"")];
    assert_eq!(
        said("kept", &kept),
        "DIR/state.redb is damaged: it is missing, and the lock beside it says that a cluster is kept there"
    );
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = folder_state(&file).unwrap_err().to_string();
    assert!(refused.ends_with("a file stands where a directory is needed"));
}

#[test]
fn each_file_of_a_cluster_that_was_stopped_is_missed_but_the_lock() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let mut model = Model::new();
    let store = opened(directory.path(), window(9));
    let put = Write::Put {
        kind: 0,
        name: 0,
        data: 7,
    };
    runtime.block_on(run(&store, &mut model, &put)).unwrap();
    assert_eq!(state(directory.path()), "cluster", "while it runs");
    runtime.block_on(store.close());
    let mut files: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["lock", "state.redb"]);

    fs::remove_file(directory.path().join("lock")).unwrap();
    assert_eq!(state(directory.path()), "cluster");
    let again = opened(directory.path(), window(9));
    assert_eq!(content(&again), model);
    runtime.block_on(again.close());

    fs::remove_file(directory.path().join("state.redb")).unwrap();
    let refused = opened_on(directory.path(), window(9), Arc::new(open_file)).err();
    let said = refused.expect("it is refused").to_string();
    let said = said.replace(&directory.path().display().to_string(), "DIR");
    let missing = "DIR/state.redb is damaged: it is missing, and the lock beside it says that a cluster is kept there";
    assert_eq!((&*said, &*state(directory.path())), (missing, missing));
    assert!(!directory.path().join("state.redb").exists());
    // Who says so begins anew.
    erase(directory.path()).unwrap();
    assert_eq!(state(directory.path()), "empty");
    let anew = opened(directory.path(), window(9));
    assert!(content(&anew).is_empty());
}

#[test]
fn a_lock_file_of_another_program_is_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let lock = directory.path().join("lock");
    fs::write(&lock, "4711\n").unwrap();
    let refused = opened_on(directory.path(), window(9), Arc::new(open_file)).err();
    let said = refused.expect("it is refused").to_string();
    assert!(
        said.ends_with("lock is not a cluster's: another program wrote it"),
        "{said}"
    );
    assert!(erase(directory.path()).is_err());
    assert_eq!(fs::read_to_string(lock).unwrap(), "4711\n");
}
