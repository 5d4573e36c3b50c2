//! What VRC reads out of 600 ConfigMaps, and the 34 examples of its two pages on options.

use std::collections::BTreeMap;

use mullion_engine::ip::{
    Absent, Cidr, Goal, Kind, PodUid, Pool, Settings, Step, Targets, Unreadable,
};
use serde_json::json;

use crate::{lines, number, targets, testdata};

/// Returns what a pool comes to when `pods` pods come one after the other and every call succeeds at once.
fn settle(kind: Kind, targets: Targets, pods: usize) -> Pool {
    let (mut pool, mut absent) = (Pool::new(kind), Absent::default());
    let (mut next, mut came) = (0, 0);
    loop {
        match pool.plan(Goal::Keep(targets), 0, 64) {
            Some(Step::Create(count)) => {
                let block = |n: u32| match kind {
                    Kind::Address => Cidr::new((0x0a00_0100 + n).to_be_bytes().into(), 16),
                    Kind::Prefix => Cidr::new((0x0a00_0100 + 16 * n).to_be_bytes().into(), 28),
                };
                let blocks: Vec<_> = (next..next + count).map(block).collect();
                next += count;
                pool.creating(count);
                pool.created(count, &blocks, 0, &mut absent);
            }
            Some(Step::GiveBack(blocks)) => {
                pool.giving_back(&blocks);
                pool.given_back(&blocks);
            }
            Some(Step::List) => panic!("no call failed"),
            None if came < pods => {
                came += 1;
                let pod = PodUid::from(format!("p{came}").as_str());
                pool.take(&pod, 64, 0).expect("there is a warm address");
            }
            None => return pool,
        }
    }
}

#[test]
fn every_example_of_upstreams_pages_on_options_holds() {
    let rows = lines(&testdata("pool-rows.jsonl"));
    assert_eq!(rows.len(), 34);
    for row in rows {
        let target = |key: &str| row[key].as_i64().map(|target| target.to_string());
        let kind = if row["mode"] == "prefix" {
            Kind::Prefix
        } else {
            Kind::Address
        };
        let mut data = BTreeMap::from([(
            "enable-windows-prefix-delegation".to_owned(),
            (kind == Kind::Prefix).to_string(),
        )]);
        for (key, column) in [
            ("windows-warm-ip-target", "warm_ip_target"),
            ("windows-minimum-ip-target", "minimum_ip_target"),
            ("windows-warm-prefix-target", "warm_prefix_target"),
        ] {
            data.extend(target(column).map(|target| (key.to_owned(), target)));
        }
        let (settings, unreadable) = Settings::read(&data);
        assert_eq!((unreadable, settings.kind(true)), (vec![], kind), "{row}");
        let pool = settle(kind, settings.targets(kind), number(&row["pods"]) as usize);
        let counts = pool.counts();
        match kind {
            Kind::Address => {
                assert_eq!(counts.total() as i64, number(&row["addresses"]), "{row}");
                assert_eq!(counts.warm as i64, number(&row["warm"]), "{row}");
            }
            Kind::Prefix => {
                assert_eq!(pool.slots() as i64, number(&row["prefixes"]), "{row}");
                assert_eq!(
                    counts.warm as i64,
                    number(&row["unused_addresses"]),
                    "{row}"
                );
            }
        }
    }
}

/// Returns a target of the data by the keys' rule: the one without `windows-` wins, and what Go's Atoi refuses is none.
fn target_of(data: &BTreeMap<String, String>, key: &str) -> Option<i64> {
    let text = data
        .get(key)
        .or_else(|| data.get(&format!("windows-{key}")))?;
    text.parse().ok()
}

#[test]
fn config_vectors() {
    let vectors = lines(&testdata("config-vectors.jsonl.gz"));
    let (mut equal, mut by_default) = (0, 0);
    for vector in &vectors {
        let data: BTreeMap<String, String> =
            serde_json::from_value(vector["data"].clone()).expect("a map of texts");
        let (settings, _) = Settings::read(&data);
        assert_eq!(json!(settings.windows_ipam), vector["ipam"], "{vector}");
        assert_eq!(
            json!(settings.prefix_delegation),
            vector["prefix_switch"],
            "{vector}"
        );
        if settings.prefix_delegation {
            assert_eq!(
                settings.targets(Kind::Prefix),
                targets(&vector["prefix_pool"]),
                "{vector}"
            );
            equal += 1;
            continue;
        }
        let mut theirs = targets(&vector["secondary_pool"]);
        if target_of(&data, "warm-ip-target").is_some()
            != target_of(&data, "minimum-ip-target").is_some()
        {
            by_default += 1;
        }
        // The rule that is not theirs: a target that is absent or cannot be read has its default.
        if target_of(&data, "warm-ip-target").is_none() {
            theirs.warm_ip = 3;
        }
        if target_of(&data, "minimum-ip-target").is_none() {
            theirs.min_ip = 3;
        }
        assert_eq!(settings.targets(Kind::Address), theirs, "{vector}");
        equal += 1;
    }
    println!(
        "{equal} of {} ConfigMaps, {by_default} by the rule on absent targets",
        vectors.len()
    );
    assert_eq!(equal, 600);
    assert!(by_default > 50, "the rule is put to use");
}

#[test]
fn what_cannot_be_read_is_named_with_its_key_and_value() {
    let data = [
        ("enable-windows-ipam", "yes"),
        ("warm-ip-target", "x"),
        ("windows-warm-ip-target", "5"),
    ];
    let data = data.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let (settings, unreadable) = Settings::read(&BTreeMap::from(data));
    assert!(!settings.windows_ipam);
    assert_eq!(
        settings.targets(Kind::Address),
        Targets::ADDRESSES,
        "the key without windows- wins"
    );
    let texts: Vec<_> = unreadable.iter().map(Unreadable::to_string).collect();
    assert_eq!(
        texts,
        [
            "ConfigMap kube-system/amazon-vpc-cni: enable-windows-ipam is `yes`, neither true nor false: it counts as false; write \
             \"true\" or \"false\"",
            "ConfigMap kube-system/amazon-vpc-cni: warm-ip-target is `x`, not a whole number: the default is used; write a number \
             such as \"3\"",
        ]
    );
}

#[test]
fn a_node_that_cannot_have_prefixes_keeps_the_targets_of_the_config_map() {
    let data = [
        ("enable-windows-prefix-delegation", "true"),
        ("warm-ip-target", "7"),
        ("minimum-ip-target", "9"),
    ];
    let data = data.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let (settings, _) = Settings::read(&BTreeMap::from(data));
    assert_eq!(settings.kind(true), Kind::Prefix);
    assert_eq!(settings.kind(false), Kind::Address);
    assert_eq!(
        settings.targets(settings.kind(false)),
        Targets {
            warm_ip: 7,
            min_ip: 9,
            warm_prefix: 0
        }
    );
}
