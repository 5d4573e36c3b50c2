//! What was acknowledged and is not there any more is missed: every bit of the journal, every length of it, and every file.

use std::fs;

use super::{
    super::{
        directory::Directory,
        journal::recover,
        tables::{STATE, State, Tables},
    },
    disk::Disk,
    trouble::{Dead, Trial, put},
    *,
};

const SECTOR: usize = 512;

/// The journal of a dead store, to be looked at again and again.
struct Remains {
    dead: Dead,
    tables: Tables,
    state: State,
}

impl Remains {
    fn of(dead: Dead) -> Self {
        let directory = Directory::take(dead.directory.path(), dead.disk.opener()).unwrap();
        let tables = Tables::open(directory).unwrap();
        let state = tables.state().unwrap();
        Remains {
            dead,
            tables,
            state,
        }
    }

    /// Returns the number of the last entry, or why the journal is refused.
    fn last(&self) -> Result<u64, String> {
        let State {
            identity, folded, ..
        } = self.state;
        match recover(self.tables.directory(), identity, folded) {
            Ok(parts) => Ok(parts.last().map_or(folded, |part| part.last())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the same after a file was changed; then the file is as it was.
    fn last_after(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> Result<u64, String> {
        let whole = self.dead.disk.synced(file);
        self.dead.disk.change(file, change);
        let last = self.last();
        self.dead.disk.change(file, |content| *content = whole);
        last
    }
}

/// Returns where the last sector begins that holds anything.
fn last_sector(file: &[u8]) -> usize {
    let end = file.iter().rposition(|byte| *byte != 0);
    end.expect("something is there") / SECTOR * SECTOR
}

#[test]
fn a_bit_of_the_last_entry_is_missed_and_so_is_one_of_any_byte() {
    let remains = Remains::of(Trial::with(3).die(|| false));
    let last = remains.last().unwrap();
    let begin = last_sector(&remains.dead.disk.synced("journal.0"));
    let refused = |file: &str, at: usize, bit: usize| {
        let said = remains.last_after(file, |content| content[at] ^= 1 << bit);
        let from = at / SECTOR * SECTOR;
        let why = format!(
            "{file} is damaged: its bytes {from} to {} are not what was written",
            from + SECTOR - 1
        );
        assert!(
            said.as_ref().is_err_and(|said| said.ends_with(&why)),
            "{said:?}, and not {why}"
        );
    };
    for at in begin..begin + SECTOR {
        for bit in 0..8 {
            refused("journal.0", at, bit);
        }
    }
    // Where no entry is yet as well.
    for at in 0..begin + 3 * SECTOR {
        refused("journal.0", at, at % 8);
    }
    for at in 0..2 * SECTOR {
        refused("journal.1", at, at % 8);
    }
    assert_eq!(remains.last(), Ok(last));
}

#[test]
fn a_journal_that_was_cut_is_refused_wherever_it_was_cut() {
    let remains = Remains::of(Trial::with(9).die(|| false));
    let last = remains.last().unwrap();
    let end = last_sector(&remains.dead.disk.synced("journal.0")) + SECTOR;
    for len in (0..end + SECTOR).step_by(SECTOR / 4) {
        let said = remains.last_after("journal.0", |content| content.truncate(len));
        let cut = said.is_err_and(|said| said.ends_with("journal.0 is damaged: it is cut short"));
        assert!(cut, "{len} of {end} bytes");
    }
    // Nothing is lost by it where nothing was.
    let cut = remains.last_after("journal.0", |content| content.truncate(end + SECTOR));
    assert_eq!(cut, Ok(last));
}

#[test]
fn a_journal_of_zeros_is_refused() {
    let remains = Remains::of(Trial::with(9).die(|| false));
    for file in ["journal.0", "journal.1"] {
        let said = remains.last_after(file, |content| content.fill(0));
        let why = format!("{file} is damaged: its bytes 0 to 511 are not what was written");
        assert!(said.is_err_and(|said| said.ends_with(&why)));
    }
}

/// Returns the number in the mark of a file.
fn mark(disk: &Disk) -> u64 {
    let content = disk.synced("journal.0");
    u64::from_le_bytes(content[16..24].try_into().expect("eight bytes"))
}

/// Returns a store whose journal was marked after its last write.
fn marked(writes: u16) -> Trial {
    let trial = Trial::marking(writes, Some(Duration::ZERO));
    let mut waited = 0;
    // Each write is an entry.
    while mark(&trial.disk) < u64::from(writes) {
        waited += 1;
        assert!(waited < 1_000_000_000);
        std::thread::yield_now();
    }
    trial
}

#[test]
fn a_marked_entry_that_is_gone_as_if_it_had_never_been_is_missed() {
    let remains = Remains::of(marked(9).die(|| false));
    let last = remains.last().unwrap();
    let begin = last_sector(&remains.dead.disk.synced("journal.0"));
    let said = |from: usize| {
        let said = remains.last_after("journal.0", |content| content[from..].fill(0));
        said.expect_err("it is refused")
    };
    let why = |there: u64| {
        format!(
            "journal.0 is damaged: it says that entry {last} was acknowledged, and the journal ends with entry {there}"
        )
    };
    assert!(said(begin).ends_with(&why(last - 1)), "{}", said(begin));
    let folded = remains.state.folded;
    assert!(said(SECTOR).ends_with(&why(folded)), "{}", said(SECTOR));
}

#[test]
fn a_mark_costs_no_sync_while_writes_go_on() {
    let mut trial = marked(3);
    let before = trial.disk.work().journal_syncs;
    let seen = mark(&trial.disk);
    trial.write(&put(0, 1)).unwrap();
    let (work, now) = (trial.disk.work(), mark(&trial.disk));
    // The entry has one, and a second is the mark's once the queue is empty.
    assert!(work.journal_syncs - before <= 2 && now <= seen + 1);
    let left = marked(5).die(|| true);
    assert_eq!(content(&left.open().unwrap()), left.model);
}

#[test]
fn each_file_of_a_cluster_that_crashed_is_missed_but_the_lock() {
    for (file, why) in [
        ("journal.0", "DIR/journal.0 is damaged: it is missing"),
        ("journal.1", "DIR/journal.1 is damaged: it is missing"),
        (
            "state.redb",
            "DIR/state.redb is damaged: it is missing, and the journal beside it is not",
        ),
    ] {
        let dead = Trial::with(20).die(|| true);
        fs::remove_file(dead.directory.path().join(file)).unwrap();
        assert_eq!(dead.refusal(), why);
        assert!(!dead.directory.path().join(file).exists());
    }
    let dead = Trial::with(20).die(|| true);
    for file in ["journal.0", "journal.1", "state.redb"] {
        fs::remove_file(dead.directory.path().join(file)).unwrap();
    }
    assert_eq!(
        dead.refusal(),
        "DIR/state.redb is damaged: it is missing, and the lock beside it says that a cluster is kept there"
    );
    let dead = Trial::with(20).die(|| true);
    fs::remove_file(dead.directory.path().join("lock")).unwrap();
    assert_eq!(content(&dead.open().unwrap()), dead.model);
}

#[test]
fn a_directory_of_the_format_before_is_read_if_it_was_closed_and_refused_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let mut model = Model::new();
    let store = opened(directory.path(), window(9));
    runtime
        .block_on(run(&store, &mut model, &put(0, 7)))
        .unwrap();
    runtime.block_on(store.close());
    let set = |values: [(&str, u64); 2]| {
        let database = redb::Database::open(directory.path().join("state.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        for (key, value) in values {
            let mut state = transaction.open_table(STATE).unwrap();
            state.insert(key, value).unwrap();
        }
        transaction.commit().unwrap();
    };
    set([("format", 2), ("journal", 1)]);
    let refused = opened_on(directory.path(), window(9), Arc::new(open_file)).err();
    let said = refused.expect("it is refused").to_string();
    assert!(
        said.ends_with("state.redb was left by an earlier version of this program that was not stopped in order"),
        "{said}"
    );
    set([("format", 2), ("journal", 0)]);
    let again = opened(directory.path(), window(9));
    assert_eq!(content(&again), model);
    runtime.block_on(again.close());
    set([("format", 4), ("journal", 0)]);
    let refused = opened_on(directory.path(), window(9), Arc::new(open_file)).err();
    let said = refused.expect("it is refused").to_string();
    assert!(said.ends_with("(its format is 4, known is 3)"), "{said}");
}
