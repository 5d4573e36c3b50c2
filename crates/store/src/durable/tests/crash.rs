//! Power cuts at any moment: what was acknowledged is there, what was not is there whole or not at all.

use std::task::Poll;

use super::{disk::Disk, *};

/// Returns a sequence of yes and no that follows from a number.
fn chances(mut seed: u64) -> impl FnMut() -> bool {
    move || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        seed >> 63 == 1
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_acknowledged_is_lost_and_no_revision_comes_twice(
        lives in proptest::collection::vec(proptest::collection::vec(a_write(), 1..20), 1..4),
        seed in any::<u64>(),
        kept in 1..20usize,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let runtime = runtime();
        let mut disk = Disk::default();
        let mut model = Model::new();
        let mut highest = 0;
        let mut chance = chances(seed);
        // Half of the journals are marked with every write and behind it.
        let mark_after = (seed % 2 == 1).then_some(Duration::ZERO);
        for writes in lives {
            let store = opened_marking(directory.path(), window(kept), disk.opener(), mark_after).unwrap();
            // Of the write that the cut interrupted nobody knows; all others are there.
            prop_assert_eq!(content(&store), model.clone());
            prop_assert!(store.revision() >= highest);
            for write in &writes {
                runtime.block_on(run(&store, &mut model, write)).unwrap();
            }
            highest = store.revision();
            // Half of the cuts come while the journal is folded.
            if chance() {
                store.compact(Timestamp::UNIX_EPOCH);
            }
            // Cut the power while one more write is on its way.
            let last = Write::Put { kind: 0, name: 0, data: 9 };
            let collection = store.collection(kind(&last));
            let change = change(&collection, &last).expect("a put is always a change");
            let (cut, acknowledged) = runtime.block_on(async {
                let on_its_way = collection.commit(change, Timestamp::UNIX_EPOCH);
                tokio::pin!(on_its_way);
                // Begun, and at any point of it.
                let begun = futures::poll!(&mut on_its_way);
                for _ in 0..seed % 4096 { std::hint::spin_loop(); }
                let acknowledged = begun.is_ready();
                let cut = disk.after_power_cut(&mut chance);
                match begun {
                    Poll::Ready(made) => made.unwrap(),
                    Poll::Pending => on_its_way.await.unwrap(),
                };
                (cut, acknowledged)
            });
            runtime.block_on(store.close());
            disk = cut;
            disk.leave_names(directory.path());
            let again = opened_on(directory.path(), window(kept), disk.opener()).unwrap();
            let found = content(&again);
            prop_assert!(!acknowledged || found != model, "an acknowledged write is lost");
            if found != model {
                let there = again.collection(kind(&last)).get("n/o0").expect("the last write is there whole");
                prop_assert!(there.revision() > highest);
                note(&mut model, &last, &there);
                prop_assert_eq!(found, model.clone());
            }
            highest = highest.max(again.revision());
            runtime.block_on(again.close());
        }
    }
}

#[test]
fn a_group_is_one_sync_however_many_write() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let store = opened_on(directory.path(), window(100), disk.opener()).unwrap();
    let collection = store.collection("things");
    let create = |name: String| {
        let draft = Draft::new(
            EventType::Added,
            &json!({"metadata": {}}),
            Box::default(),
            1,
        );
        collection.commit(
            Change::Create(Key::new(None, &name), draft),
            Timestamp::UNIX_EPOCH,
        )
    };
    let runtime = runtime();
    runtime.block_on(create("first".into())).unwrap();
    let before = disk.work().syncs;
    let all = futures::future::join_all((0..256).map(|number| create(number.to_string())));
    let made = runtime.block_on(all);
    assert!(made.iter().all(Result::is_ok));
    let after = disk.work().syncs;
    // All were in the queue before the thread had finished with the first few.
    assert!(
        after - before < 64,
        "{} syncs for 256 writes",
        after - before
    );
}

#[test]
fn a_write_costs_the_disk_the_same_however_many_objects_there_are() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let store = opened_on(directory.path(), window(10), disk.opener()).unwrap();
    let collection = store.collection("things");
    let runtime = runtime();
    let create = |name: String| {
        let object = json!({"metadata": {"name": name}, "data": "x".repeat(300)});
        let draft = Draft::new(EventType::Added, &object, Box::default(), 1);
        collection.commit(
            Change::Create(Key::new(None, &name), draft),
            Timestamp::UNIX_EPOCH,
        )
    };
    let ten = |series: &str| {
        let before = disk.work();
        for number in 0..10 {
            runtime
                .block_on(create(format!("{number}-{series}")))
                .unwrap();
        }
        let after = disk.work();
        (
            after.journal_syncs - before.journal_syncs,
            after.journal_bytes - before.journal_bytes,
        )
    };
    let few = ten("few");
    for part in 0..20 {
        let all = (0..500).map(|number| create(format!("{number}-{part}")));
        let made = runtime.block_on(futures::future::join_all(all));
        assert!(made.iter().all(Result::is_ok));
    }
    let many = ten("many");
    assert_eq!(few.0, 10, "a lone write is one sync");
    // The file may have to grow meanwhile; the names are a letter longer.
    let grown = 256 << 10;
    assert!(
        many.0 <= few.0 + 1 && many.1 % grown <= few.1 + 1000,
        "{few:?} at first, {many:?} with 10,000 objects"
    );
}
