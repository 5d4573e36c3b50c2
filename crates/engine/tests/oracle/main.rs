//! A second implementation of every filter and score, slow and obvious, against which the engine is held.
//!
//! It is written from kube-scheduler's rules over plain objects, shares nothing with the engine, and agrees with the
//! recorded answers of kube-scheduler itself. `ORACLE_CLUSTERS` says how many random clusters are compared (200,000
//! unless told; one in twenty is asked about evictions too), `ORACLE_SEED` where to start. A cluster on which the two differ is shrunk and appended to
//! `testdata/differences.jsonl`, to stay there as a test once the cause is mended.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests read files, run threads and report counts; the engine does none of that"
)]

mod amounts;
mod filters;
mod objects;
mod order;
mod preemption;
mod profiles;
mod random;
mod scores;
mod selectors;
mod spread;
mod storage;
mod trial;
mod volumes;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

use mullion_engine::model::{NamespaceSpec, NodeSpec, PdbSpec, PodSpec, ServiceSpec, WorkloadSpec};
use mullion_engine::{Cluster, Decision, Options, Outcome, Plugin};
use serde_json::{Value, json};

use objects::{Node, Pod, World};
use random::{Case, Random};

/// Small objects come and go by the thousand in each comparison.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CLUSTERS: u64 = 200_000;

/// The answer by the slow rules, in the form of the recorded ones.
fn slow(case: &Case, os: bool) -> Value {
    let mut world = World::read(&case.items);
    world.profile = profiles::profile(case.profile);
    let pod: Pod = objects::read(&case.pod);
    let mut nodes: Vec<&Node> = world.nodes.iter().collect();
    nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let before = volumes::before_nodes(&world, &pod);
    let refusal = |node: &&Node| match &before {
        Some(refusal) => Some(refusal.clone()),
        None => filters::refusal(&world, &pod, node, os),
    };
    let refusals: Vec<_> = nodes.iter().map(refusal).collect();
    let feasible: Vec<&Node> = nodes
        .iter()
        .zip(&refusals)
        .filter(|(_, refusal)| refusal.is_none())
        .map(|(node, _)| *node)
        .collect();
    let columns = scores::all(&world, &pod, &feasible, os);
    let mut row = 0;
    let mut totals: Vec<(i64, &str)> = Vec::new();
    let mut answers = Vec::new();
    for (node, refusal) in nodes.iter().zip(&refusals) {
        let name = node.metadata.name.as_str();
        if let Some((plugin, reasons)) = refusal {
            answers.push(
                json!({"name": name, "fits": false, "plugin": plugin, "reasons": reasons, "total": 0}),
            );
            continue;
        }
        let scores: BTreeMap<_, _> = columns
            .iter()
            .map(|(plugin, scores)| (*plugin, scores[row]))
            .collect();
        let total: i64 = scores.values().sum();
        totals.push((total, name));
        row += 1;
        answers.push(json!({"name": name, "fits": true, "scores": scores, "total": total}));
    }
    let highest = totals.iter().map(|own| own.0).max();
    let best: Vec<_> = totals
        .iter()
        .filter(|own| Some(own.0) == highest)
        .map(|own| own.1)
        .collect();
    let mut answer = json!({"nodes": answers, "best": null});
    if best.is_empty() {
        answer["message"] = match before {
            Some((_, words)) if !nodes.is_empty() => {
                json!(format!(
                    "0/{} nodes are available: {}.",
                    nodes.len(),
                    words[0]
                ))
            }
            _ => json!(message(&refusals, nodes.len())),
        };
    } else {
        answer["best"] = json!(best);
    }
    answer
}

fn message(refusals: &[Option<filters::Refusal>], nodes: usize) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".into();
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in refusals.iter().flatten().flat_map(|refusal| &refusal.1) {
        let text = match reason.as_str() {
            "prefilter" => "node(s) didn't satisfy plugin(s) [NodeAffinity]",
            other => other,
        };
        *counts.entry(text).or_default() += 1;
    }
    let mut phrases: Vec<_> = counts
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    phrases.sort();
    format!("0/{nodes} nodes are available: {}.", phrases.join(", "))
}

/// The engine's model of a case.
fn cluster(case: &Case, os: bool) -> Cluster {
    let profile = profiles::profile(case.profile);
    let mut cluster = Cluster::with_profiles(Options { os_filter: os }, &[profile]);
    for item in &case.items {
        match item["kind"].as_str() {
            Some("Namespace") => cluster.set_namespace(&read::<NamespaceSpec>(item)),
            Some("Service") => cluster.set_service(&read::<ServiceSpec>(item)),
            Some("ReplicaSet" | "StatefulSet") => cluster.set_workload(&read::<WorkloadSpec>(item)),
            Some("Node") => drop(
                cluster
                    .add_node(&read::<NodeSpec>(item))
                    .expect("a valid node"),
            ),
            Some("PodDisruptionBudget") => cluster.set_pdb(&read::<PdbSpec>(item)),
            Some("Pod") => {
                let pod = read::<PodSpec>(item);
                match &pod.nominated_node_name {
                    Some(node) => cluster.nominate(&pod, node),
                    None => cluster.add_pod(&pod),
                }
                .expect("a valid pod");
            }
            _ => storage::apply(&mut cluster, item),
        }
    }
    cluster
}

/// The engine's answer, in the same form. What it decides must be among the best it names.
fn fast(case: &Case, os: bool) -> Value {
    let mut cluster = cluster(case, os);
    let pod: PodSpec = read(&case.pod);
    let class = cluster.pod_class(&pod.template).expect("a valid pod");
    // Asked before the full answer, so that nothing the latter prepares can help it.
    let decision = cluster.schedule_pod(&pod, 7).expect("a valid pod");
    let answer = cluster.answer(class);
    let nodes: Vec<_> = answer
        .nodes
        .iter()
        .map(|node| {
            let name = cluster.node_name(node.node);
            match &node.outcome {
                Outcome::Fits { scores, total } => {
                    let scores: BTreeMap<_, _> = scores.iter().map(|own| (own.0.name(), own.1)).collect();
                    json!({"name": name, "fits": true, "scores": scores, "total": total})
                }
                Outcome::Refused(refusal) => {
                    let mut reasons: Vec<_> = match refusal.plugin {
                        Plugin::PreFilter => vec!["prefilter".to_owned()],
                        _ => refusal.reasons().map(|reason| cluster.reason_text(reason)).collect(),
                    };
                    reasons.sort();
                    json!({"name": name, "fits": false, "plugin": refusal.plugin.name(), "reasons": reasons, "total": 0})
                }
            }
        })
        .collect();
    let best: Vec<_> = answer
        .best
        .iter()
        .map(|node| cluster.node_name(*node))
        .collect();
    let mut value = json!({"nodes": nodes, "best": null});
    match decision {
        Decision::Node(node) => {
            let chosen = cluster.node_name(node);
            value["best"] = json!(best);
            if !best.contains(&chosen) {
                value["decided"] = json!(chosen);
            }
        }
        Decision::Unschedulable(refused) => value["message"] = json!(cluster.message(&refused)),
    }
    value
}

fn read<'v, T: serde::Deserialize<'v>>(value: &'v Value) -> T {
    T::deserialize(value).expect("an object of the model")
}

fn differs(case: &Case, os: bool) -> bool {
    slow(case, os) != fast(case, os)
}

/// The random case of a seed; one in four is decided by a random profile.
fn seeded(seed: u64) -> Case {
    Case {
        profile: if seed % 4 == 3 { seed } else { 0 },
        ..random::case(&mut Random::new(seed))
    }
}

/// The case without whatever it can lose and still make the two differ.
fn shrunk(mut case: Case, os: bool, differs: impl Fn(&Case, bool) -> bool) -> Case {
    loop {
        let smaller = simpler(&case)
            .into_iter()
            .find(|smaller| differs(smaller, os));
        match smaller {
            Some(smaller) => case = smaller,
            None => return case,
        }
    }
}

/// Every case that is the given one less an item, or less a field of its pods.
fn simpler(case: &Case) -> Vec<Case> {
    let mut all = Vec::new();
    for index in 0..case.items.len() {
        let mut less = case.clone();
        less.items.remove(index);
        all.push(less);
    }
    let fields = |pod: &Value| -> Vec<String> {
        let spec = pod["spec"].as_object().expect("a spec");
        spec.keys()
            .filter(|key| *key != "nodeName" && *key != "containers")
            .cloned()
            .collect()
    };
    for field in fields(&case.pod) {
        let mut less = case.clone();
        less.pod["spec"]
            .as_object_mut()
            .expect("a spec")
            .remove(&field);
        all.push(less);
    }
    for (index, item) in case
        .items
        .iter()
        .enumerate()
        .filter(|(_, item)| item["kind"] == "Pod")
    {
        for field in fields(item) {
            let mut less = case.clone();
            less.items[index]["spec"]
                .as_object_mut()
                .expect("a spec")
                .remove(&field);
            all.push(less);
        }
    }
    all
}

fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(name)
}

/// The lines of a compressed file.
fn vectors(path: PathBuf) -> impl Iterator<Item = Value> {
    let file = std::fs::File::open(path).expect("the vectors");
    let lines = BufReader::new(flate2::read::GzDecoder::new(file)).lines();
    lines.map(|line| serde_json::from_str(&line.expect("gzip")).expect("JSON"))
}

fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().expect("a whole number"))
}

#[test]
fn the_engine_agrees_with_the_slow_rules_on_random_clusters() {
    let (clusters, first) = (
        number("ORACLE_CLUSTERS", CLUSTERS),
        number("ORACLE_SEED", 1),
    );
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let found: Vec<(u64, bool)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut seeds = (first + thread..first + clusters).step_by(threads as usize);
                    let os = |seed: u64| seed.is_multiple_of(2);
                    seeds
                        .find(|seed| differs(&seeded(*seed), os(*seed)))
                        .map(|seed| (seed, os(seed)))
                })
            })
            .collect();
        let joined = workers
            .into_iter()
            .filter_map(|worker| worker.join().expect("no panic"));
        joined.collect()
    });
    let Some(&(seed, os)) = found.first() else {
        println!("{clusters} clusters agree");
        return;
    };
    let case = shrunk(seeded(seed), os, differs);
    let (slow, fast) = (slow(&case, os), fast(&case, os));
    let line = json!({"os": os, "profile": case.profile, "items": case.items, "pod": case.pod});
    let path = testdata("differences.jsonl");
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .expect("a writable file");
    writeln!(file, "{line}").expect("a writable file");
    panic!(
        "seed {seed} differs; shrunk into {}:\n{line}\nrules  {slow}\nengine {fast}",
        path.display()
    );
}

#[test]
fn random_clusters_meet_every_rule_about_volumes() {
    let rules = [
        "node(s) had no available disk",
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
        "node(s) exceed max volume count",
        "node(s) didn't match PersistentVolume's node affinity",
        "node(s) didn't find available persistent volumes to bind",
        "node(s) did not have enough free storage",
        "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
        "node(s) had no available volume zone",
        "pod has unbound immediate PersistentVolumeClaims",
        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"incoming-e\"",
        "PVC default/incoming-e was not created for pod default/incoming (pod is not owner)",
        "persistentvolumeclaim \"c1\" not found",
        "persistentvolumeclaim \"c1\" is being deleted",
        "persistentvolumeclaim \"c1\" bound to non-existent persistentvolume \"v1\"",
        "persistentvolume \"v1\" not found",
    ];
    let mut missing: Vec<&str> = rules.to_vec();
    for seed in 0..50_000 {
        let case = seeded(seed);
        if case.pod["spec"]["volumes"].is_null() {
            continue;
        }
        let said = slow(&case, false)["message"]
            .to_string()
            .replace("\\\"", "\"");
        missing.retain(|rule| !said.contains(rule));
        if missing.is_empty() {
            return;
        }
    }
    panic!("never met: {missing:#?}");
}

#[test]
fn what_once_differed_agrees_now() {
    let Ok(file) = std::fs::File::open(testdata("differences.jsonl")) else {
        return;
    };
    for line in BufReader::new(file).lines() {
        let line: Value = serde_json::from_str(&line.expect("text")).expect("JSON");
        let items = line["items"].as_array().expect("items").clone();
        let case = Case {
            items,
            pod: line["pod"].clone(),
            profile: line["profile"].as_u64().unwrap_or(0),
        };
        let os = line["os"] == true;
        assert_eq!(slow(&case, os), fast(&case, os), "{line}");
    }
}

#[test]
fn the_slow_rules_are_those_of_kube_scheduler() {
    let mut compared = 0;
    for line in vectors(testdata("scheduler-vectors.jsonl.gz")) {
        let items = line["items"].as_array().expect("items").clone();
        let case = Case {
            items,
            pod: line["pod"].clone(),
            profile: 0,
        };
        let mut recorded = line["answer"].clone();
        recorded
            .as_object_mut()
            .expect("an answer")
            .remove("preemption");
        assert_eq!(slow(&case, false), recorded, "{}", line["id"]);
        compared += 1;
    }
    assert_eq!(compared, 4000);
    let odd = include_str!("../../testdata/edges.jsonl").lines();
    for line in odd.map(|line| serde_json::from_str::<Value>(line).expect("JSON")) {
        let items = line["items"].as_array().expect("items").clone();
        // These rules know nothing of devices.
        if items.iter().any(|item| item["kind"] == "DeviceClass") {
            continue;
        }
        let case = Case {
            items,
            pod: line["pod"].clone(),
            profile: 0,
        };
        let mut recorded = line["answer"].clone();
        if let Some(answer) = recorded.as_object_mut() {
            answer.remove("preemption");
        }
        assert_eq!(slow(&case, false), recorded, "{}", line["id"]);
    }
}
