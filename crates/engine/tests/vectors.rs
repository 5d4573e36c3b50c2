//! Replays kube-scheduler 1.36's own answers to 4,000 random clusters, and to some whose rules are odd, and compares every one of ours.
//!
//! A line holds a cluster, a pod and the answer: per node the first refusing plugin with its reasons or the scores by
//! plugin, the best nodes, the message, and the preemption victims. Counts per theme are printed (`--nocapture`).

#![allow(
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "the replayer reads a file and reports counts"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;
use mullion_engine::model::{NamespaceSpec, NodeSpec, PdbSpec, PodSpec, ServiceSpec};
use mullion_engine::preempt::{Eviction, Preemption};
use mullion_engine::{Answer, Claims, Cluster, Decision, NodeId, Options, Outcome, Plugin, Reason};
use serde_json::{Value, json};

const SEED: u64 = 7;

/// Builds the cluster of a line. Pods are added in reverse, as proof that order does not matter; nodes are not, since
/// upstream takes an image's size from the node it saw first.
fn cluster(items: &[Value]) -> Cluster {
    let mut cluster = Cluster::new(Options { os_filter: false });
    let pods = items.iter().rev().filter(|item| item["kind"] == "Pod");
    for item in pods.chain(items.iter().filter(|item| item["kind"] != "Pod")) {
        match item["kind"].as_str() {
            Some("Namespace") => cluster.set_namespace(&read::<NamespaceSpec>(item)),
            Some("Service") => cluster.set_service(&read::<ServiceSpec>(item)),
            Some("PodDisruptionBudget") => cluster.set_pdb(&read::<PdbSpec>(item)),
            Some("Node") => drop(
                cluster
                    .add_node(&read::<NodeSpec>(item))
                    .expect("valid node"),
            ),
            Some("Pod") => cluster.add_pod(&read::<PodSpec>(item)).expect("valid pod"),
            Some("CSINode") => cluster.set_csi_node(&read(item)),
            Some("DeviceClass") => cluster.set_device_class(&read(item)),
            Some("ResourceSlice") => cluster.set_resource_slice(&read(item)),
            Some("ResourceClaim") => cluster.set_resource_claim(&read(item)),
            other => panic!("unknown kind {other:?}"),
        }
    }
    cluster
}

fn read<T: serde::de::DeserializeOwned>(item: &Value) -> T {
    serde_json::from_value(item.clone()).expect("an object of the model")
}

/// Our answer in the form of the recorded ones.
fn answer(cluster: &mut Cluster, pod: &PodSpec) -> Value {
    let class = cluster.pod_class(&pod.template).expect("valid pod");
    let answer = cluster.answer(class);
    let nodes: Vec<_> = answer
        .nodes
        .iter()
        .map(|node| node_answer(cluster, node.node, &node.outcome))
        .collect();
    let mut value = json!({ "nodes": nodes, "best": best(cluster, &answer) });
    match cluster.schedule_pod(pod, SEED).expect("valid pod") {
        Decision::Node(node) => assert!(
            answer.best.contains(&node),
            "the decision is one of the best"
        ),
        Decision::Unschedulable(refused) => {
            value["message"] = json!(cluster.message(&refused));
            let preemption = cluster.preempt(class, &pod.key(), &refused, SEED);
            let equals = cluster.equal_evictions(class, &pod.key());
            value["preemption"] = preemption_answer(cluster, refused.claims, &preemption, &equals);
        }
    }
    value
}

fn node_answer(cluster: &Cluster, node: NodeId, outcome: &Outcome) -> Value {
    let name = cluster.node_name(node);
    match outcome {
        Outcome::Fits { scores, total } => {
            let scores: BTreeMap<_, _> = scores
                .iter()
                .map(|(plugin, score)| (plugin.name(), *score))
                .collect();
            json!({ "name": name, "fits": true, "scores": scores, "total": total })
        }
        Outcome::Refused(refusal) if refusal.plugin == Plugin::PreFilter => {
            assert_eq!(refusal.reason, Reason::NotNamed);
            json!({ "name": name, "fits": false, "plugin": "PreFilter", "reasons": ["prefilter"], "total": 0 })
        }
        Outcome::Refused(refusal) => {
            let mut reasons: Vec<_> = refusal
                .reasons()
                .map(|reason| cluster.reason_text(reason))
                .collect();
            reasons.sort();
            json!({ "name": name, "fits": false, "plugin": refusal.plugin.name(), "reasons": reasons, "total": 0 })
        }
    }
}

fn best(cluster: &Cluster, answer: &Answer) -> Value {
    let names: Vec<_> = answer
        .best
        .iter()
        .map(|node| cluster.node_name(*node))
        .collect();
    if names.is_empty() {
        Value::Null
    } else {
        json!(names)
    }
}

fn preemption_answer(
    cluster: &Cluster,
    claims: Claims,
    preemption: &Preemption,
    equals: &[Eviction],
) -> Value {
    let Preemption::Evict { chosen } = preemption else {
        return json!([{ "node": "", "victims": [], "message": cluster.preemption_message(claims, preemption) }]);
    };
    assert!(equals.contains(chosen), "the choice is one of the equals");
    let evictions = equals.iter().map(|eviction| {
        let mut victims = eviction.victims.clone();
        victims.sort();
        json!({ "node": cluster.node_name(eviction.node), "victims": victims })
    });
    evictions.collect()
}

/// What differs, by part. Preemption was recorded for the preempt theme only, and of several equals upstream shows
/// those its random start led to: each must be one of ours.
fn differences(ours: &Value, theirs: &Value) -> Vec<&'static str> {
    let mut differences: Vec<_> = ["nodes", "best", "message"]
        .into_iter()
        .filter(|key| ours[key] != theirs[key])
        .collect();
    if let Some(recorded) = theirs["preemption"].as_array() {
        let given = ours["preemption"]
            .as_array()
            .expect("an array is always given");
        if !recorded.iter().all(|eviction| given.contains(eviction)) {
            differences.push("preemption");
        }
    }
    differences
}

#[test]
fn answers_that_follow_the_quirks_of_kube_scheduler_are_its_own() {
    let lines = include_str!("../testdata/edges.jsonl").lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("valid JSON"))
        .collect();
    assert_eq!(lines.len(), 10);
    for line in lines {
        let mut cluster = cluster(line["items"].as_array().expect("items"));
        let ours = answer(&mut cluster, &read(&line["pod"]));
        assert_eq!(
            differences(&ours, &line["answer"]),
            [""; 0],
            "{}:\n  ours   {ours}\n  theirs {}",
            line["id"],
            line["answer"]
        );
    }
}

#[test]
fn every_recorded_answer_of_kube_scheduler_is_ours_too() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/testdata/scheduler-vectors.jsonl.gz"
    );
    let file = std::fs::File::open(file).expect("the vectors are in testdata");
    let mut themes: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut failures = Vec::new();
    for line in BufReader::new(GzDecoder::new(file)).lines() {
        let line: Value = serde_json::from_str(&line.expect("valid gzip")).expect("valid JSON");
        let mut cluster = cluster(line["items"].as_array().expect("items"));
        let ours = answer(&mut cluster, &read(&line["pod"]));
        let differences = differences(&ours, &line["answer"]);
        let theme = line["theme"].as_str().expect("theme").to_owned();
        let counts = themes.entry(theme).or_default();
        counts.1 += 1;
        if differences.is_empty() {
            counts.0 += 1;
        } else if failures.len() < 5 {
            failures.push(format!(
                "{} {differences:?}\n  ours   {ours}\n  theirs {}",
                line["id"], line["answer"]
            ));
        }
    }
    for (theme, (agree, all)) in &themes {
        println!("{theme:14} {agree:4} of {all:4}");
    }
    let total = themes
        .values()
        .fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
    println!("{:14} {:4} of {:4}", "all themes", total.0, total.1);
    assert_eq!(total.1, 4000, "all vectors were read");
    assert_eq!(total.0, total.1, "these differ:\n{}", failures.join("\n"));
}
