//! `mullion plan` on 400 random clusters, held against the plans that Karpenter's own scheduler made for them, and against the prices of a simple
//! search. `catalogue.json.gz` and `cases.jsonl.gz` were recorded with Karpenter core 1.13; docs/plan.md says what they hold.

mod ask;
mod asked;
mod buffers;
mod clusters;
mod faults;
mod manifests;
mod objects;
mod quotas;
mod rules;
mod subnets;
mod what_if;

use std::{
    collections::HashMap,
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use objects::{array, text};
use rules::Case;

fn unpacked(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/plan")
        .join(name);
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("the file is there");
    GzDecoder::new(file)
        .read_to_string(&mut text)
        .expect("a gzipped text");
    text
}

/// The answers of the program to some lines.
fn answers(lines: String) -> Vec<Value> {
    let catalogue = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/plan/catalogue.json.gz");
    let mut child = Command::new(env!("CARGO_BIN_EXE_mullion"))
        .args(["plan", "--cases", "-", "--catalogue"])
        .arg(catalogue)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stdin = child.stdin.take().expect("piped");
    let writer = thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("ends");
    writer.join().expect("no panic").expect("written");
    let text = String::from_utf8(output.stdout).expect("JSON");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Karpenter's plan in the form of ours.
fn recorded(plan: &Value) -> Value {
    let all = |node: &Value, key: &str, values: &[&str]| -> Vec<String> {
        let own = array(&node["requirements"]).find(|own| own["key"] == key);
        let admitted = |value: &&&str| match own {
            Some(own) if own["operator"] == "In" => array(&own["values"]).any(|one| one == **value),
            Some(own) if own["operator"] == "NotIn" => {
                !array(&own["values"]).any(|one| one == **value)
            }
            _ => true,
        };
        values
            .iter()
            .filter(admitted)
            .map(|value| (*value).to_owned())
            .collect()
    };
    let node = |node: &Value| {
        json!({
            "nodePool": node["nodePool"],
            "types": node["types"],
            "pods": node["pods"],
            "zones": all(node, "topology.kubernetes.io/zone", &["us-west-2a", "us-west-2b", "us-west-2c"]),
            "capacityTypes": all(node, "karpenter.sh/capacity-type", &["spot", "on-demand"]),
        })
    };
    let nodes: Vec<Value> = array(&plan["nodes"]).map(node).collect();
    json!({ "nodes": nodes, "existing": plan["existing"], "unplaced": plan["unplaced"] })
}

fn micro(dollars: &Value) -> u64 {
    (dollars.as_f64().expect("a price") * 1e6).round() as u64
}

#[test]
fn recorded_clusters_are_served_at_no_higher_price_than_karpenters() {
    let catalogue: Value = serde_json::from_str(&unpacked("catalogue.json.gz")).expect("JSON");
    let classes = catalogue.as_object().expect("classes").iter();
    let machines: HashMap<String, HashMap<String, Value>> = classes
        .map(|(name, class)| {
            let types = array(&class["types"]).map(|kind| (text(&kind["name"]), kind.clone()));
            (name.clone(), types.collect())
        })
        .collect();
    let lines = unpacked("cases.jsonl.gz");
    let answers = answers(lines.clone());
    assert_eq!(answers.len(), lines.lines().count());
    let mut faults = Vec::new();
    let (mut ours, mut searched) = (0, 0);
    for (line, answer) in lines.lines().zip(&answers) {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let id = text(&line["case"]["id"]);
        let case = Case::new(&line["case"], &machines);
        let (mut own, price) = case.check(answer);
        let karpenter = &line["karpenter"];
        // Where Karpenter's own plan is at fault only ours is looked at.
        if case.check(&recorded(karpenter)).0.is_empty() {
            let unplaced =
                |plan: &Value| plan["unplaced"].as_object().map_or(0, serde_json::Map::len);
            let lost = answer["unplaced"].as_object().into_iter().flatten();
            let lost = lost.filter(|(pod, _)| karpenter["unplaced"].get(*pod).is_none());
            own.extend(
                lost.map(|(pod, _)| format!("{pod} has no place, and has one in Karpenter's plan")),
            );
            let rounding = array(&karpenter["nodes"]).count() as u64;
            if unplaced(answer) == unplaced(karpenter)
                && price > micro(&karpenter["price"]) + rounding
            {
                own.push(format!(
                    "costs {price} micro-dollars, Karpenter's {}",
                    karpenter["price"]
                ));
            }
        }
        if !line["reference"].is_null() {
            ours += price;
            searched += micro(&line["reference"]["price"]);
        }
        faults.extend(own.first().map(|fault| format!("{id}: {fault}")));
    }
    assert!(
        faults.is_empty(),
        "{} cases:\n{}",
        faults.len(),
        faults.join("\n")
    );
    assert!(
        ours <= searched,
        "{ours} micro-dollars, a simple search {searched}"
    );
}

#[test]
fn a_line_that_is_no_case_says_what_is_wrong_with_it() {
    let said = answers("{\"case\": {\"pods\": 3}}\n{\"case\": {}}\n".to_owned());
    let why = text(&said[0]["error"]);
    assert!(
        why.starts_with("line 1: invalid type: integer `3`, expected a sequence at column "),
        "{why}"
    );
    assert_eq!(
        said[1],
        json!({ "nodes": [], "existing": {}, "unplaced": {} })
    );
    let unknown = r#"{"case": {"nodePools": [{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "p"}, "spec": {"template": {"spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "mars"}, "requirements": []}}}}]}}"#;
    let said = answers(unknown.to_owned());
    assert_eq!(
        said[0]["error"],
        "line 1: NodePool p: the catalogue has no node class mars"
    );
}
