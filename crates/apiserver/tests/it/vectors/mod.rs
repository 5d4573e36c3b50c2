//! Replays requests that were recorded against kube-apiserver 1.36 and compares our answers with its own.
//!
//! `testdata/api-vectors.jsonl.gz` holds a scenario per line: steps with method, path, headers, body and the recorded status, answer and
//! warnings. `VECTORS=substring` replays the scenarios whose id contains it and prints every difference, due or not.

#![expect(
    clippy::print_stdout,
    reason = "the tally is what a run of the replayer is for"
)]

mod compare;
mod due;
mod trial;

use std::{collections::BTreeMap, io::Read, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Request, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use mullion_apiserver::{ApiServer, Config, admission::User};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tower::ServiceExt;

use compare::{differences, matches_text};

/// When every scenario begins: about the time of the recording, since some answers show how long ago a given time was.
const EPOCH: Timestamp = Timestamp::constant(1_795_260_000, 0);
/// How many of the due scenarios agree today; raised as the server grows, never lowered.
const DUE_THAT_AGREE: usize = 795;

#[tokio::test(start_paused = true)]
async fn recorded_answers_of_kube_apiserver_are_repeated() {
    let filter = std::env::var("VECTORS").ok();
    let mut tallies: BTreeMap<(bool, String), Tally> = BTreeMap::new();
    let mut failing = Vec::new();
    for line in lines() {
        let scenario: Value = serde_json::from_str(&line).expect("a scenario is JSON");
        let id = scenario["id"].as_str().expect("every scenario has an id");
        if filter
            .as_ref()
            .is_some_and(|filter| !id.contains(filter.as_str()))
        {
            continue;
        }
        let due = due::is_due(&scenario);
        let found = replay(&scenario, &line).await;
        let tally = tallies
            .entry((
                due,
                scenario["topic"].as_str().unwrap_or_default().to_owned(),
            ))
            .or_default();
        tally.total += 1;
        if found.is_empty() {
            tally.agree += 1;
        } else {
            if filter.is_some() {
                println!("--- {id}\n    {}", found.join("\n    "));
            }
            if due {
                failing.push(id.to_owned());
            }
        }
    }
    for ((due, topic), tally) in &tallies {
        println!(
            "{} {topic:12} {:4} of {:4} agree",
            if *due { "due  " } else { "later" },
            tally.agree,
            tally.total
        );
    }
    if filter.is_none() {
        println!("due scenarios that differ: {}", failing.join(" "));
        let agree: usize = tallies
            .iter()
            .filter(|((due, _), _)| *due)
            .map(|(_, tally)| tally.agree)
            .sum();
        assert!(
            agree >= DUE_THAT_AGREE,
            "{agree} due scenarios agree, {DUE_THAT_AGREE} did before; now differing: {failing:?}"
        );
    }
}

#[derive(Default)]
struct Tally {
    agree: usize,
    total: usize,
}

fn lines() -> Vec<String> {
    let packed = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/testdata/api-vectors.jsonl.gz"
    ))
    .expect("the vectors are in testdata");
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed.as_slice())
        .read_to_string(&mut text)
        .expect("the vectors unpack");
    text.lines().map(str::to_owned).collect()
}

/// The bodies of a scenario's steps as they were sent: the order of keys decides which error comes first.
fn bodies(line: &str) -> Vec<Option<Box<RawValue>>> {
    #[derive(Deserialize)]
    struct Bodies {
        steps: Vec<Step>,
    }
    #[derive(Deserialize)]
    struct Step {
        body: Option<Box<RawValue>>,
    }
    let bodies: Bodies = serde_json::from_str(line).expect("a scenario has steps");
    bodies.steps.into_iter().map(|step| step.body).collect()
}

/// Sends a scenario's steps to a server of its own; the differences of the first step that does not agree.
async fn replay(scenario: &Value, line: &str) -> Vec<String> {
    // The clock follows tokio's, which is paused: what happens within a second does not depend on this machine.
    let start = tokio::time::Instant::now();
    let server = ApiServer::new(Config {
        clock: Arc::new(move || {
            EPOCH + SignedDuration::try_from(start.elapsed()).unwrap_or_default()
        }),
        ..Config::default()
    });
    let router = server.router();
    let mut answers: Vec<Value> = Vec::new();
    let steps = scenario["steps"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    for (index, (step, body)) in steps.iter().zip(bodies(line)).enumerate() {
        let mut patience = if step.get("until").is_some() { 60 } else { 1 };
        let (answer, mut found) = loop {
            patience -= 1;
            let answer = match tokio::time::timeout(
                Duration::from_secs(120),
                send(&router, step, body.as_deref(), &answers),
            )
            .await
            {
                Ok(answer) => answer,
                Err(_) => return vec![format!("step {index}: no answer within 120 s")],
            };
            let found = step_differences(step, &answer);
            if patience == 0 || until_holds(step, &answer) {
                break (answer, found);
            }
            // What goes on in the server comes to rest meanwhile; time is paused.
            tokio::time::sleep(Duration::from_millis(250)).await;
        };
        if step["setup"] == true && matches!(answer.status, 200 | 201 | 409) {
            found.clear();
        }
        if let Some(changed) = step["answer"].get("_rv_changed") {
            let last = answers
                .iter()
                .rev()
                .find(|other| other["metadata"]["uid"] == answer.body["metadata"]["uid"]);
            let ours = last.is_some_and(|last| {
                last["metadata"]["resourceVersion"] != answer.body["metadata"]["resourceVersion"]
            });
            if *changed != ours {
                found.push(format!(
                    "resourceVersion changed: expected {changed}, got {ours}"
                ));
            }
        }
        if !found.is_empty() {
            let path = step["path"].as_str().unwrap_or_default();
            found.insert(
                0,
                format!(
                    "step {index}: {} {path} body {}",
                    step["method"].as_str().unwrap_or_default(),
                    step["body"]
                ),
            );
            return found;
        }
        answers.push(answer.body);
    }
    Vec::new()
}

struct Answer {
    status: u16,
    body: Value,
    warnings: Vec<String>,
}

async fn send(
    router: &axum::Router,
    step: &Value,
    body: Option<&RawValue>,
    answers: &[Value],
) -> Answer {
    let path = substitute(step["path"].as_str().unwrap_or_default(), answers);
    let mut request = Request::builder()
        .method(step["method"].as_str().unwrap_or_default())
        .uri(path);
    for (name, value) in step["headers"].as_object().into_iter().flatten() {
        request = request.header(name, value.as_str().unwrap_or_default());
    }
    let body = match (step.get("body"), body) {
        (Some(Value::String(text)), _) => Body::from(substitute(text, answers)),
        (Some(_), Some(raw)) => Body::from(substitute(raw.get(), answers)),
        _ => Body::empty(),
    };
    let mut request = request
        .body(body)
        .expect("a recorded request is well formed");
    request.extensions_mut().insert(User {
        name: "admin".into(),
        uid: "admin".into(),
        groups: vec!["system:masters".into(), "system:authenticated".into()],
        ..User::default()
    });
    let response = router
        .clone()
        .oneshot(request)
        .await
        .expect("the router answers every request");
    let status = response.status().as_u16();
    let warnings = response
        .headers()
        .get_all("warning")
        .iter()
        .filter_map(|value| value.to_str().ok().map(str::to_owned))
        .collect();
    let json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_none_or(|value| value.to_str().is_ok_and(|value| value.contains("json")));
    let bytes = response
        .into_body()
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let body = if step["stream"] == true && status == 200 {
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .filter(|event| !is_plain_bookmark(event))
            .collect()
    } else if json {
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    } else {
        Value::String(text)
    };
    Answer {
        status,
        body,
        warnings,
    }
}

/// The recording leaves out bookmarks other than the one that ends the initial events.
fn is_plain_bookmark(event: &Value) -> bool {
    event["type"] == "BOOKMARK"
        && event["object"]["metadata"]["annotations"]
            .get("k8s.io/initial-events-end")
            .is_none()
}

/// Replaces `${steps[3].metadata.resourceVersion}` by that value of the earlier answer.
fn substitute(text: &str, answers: &[Value]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${steps[") {
        out.push_str(&rest[..start]);
        let tail = &rest[start + "${steps[".len()..];
        let end = tail.find('}').expect("a reference ends with a brace");
        let (index, path) = tail[..end]
            .split_once(']')
            .expect("a reference has an index");
        let index: usize = index.parse().expect("a step's index is a number");
        let pointer = path.replace('.', "/");
        let value = answers
            .get(index)
            .and_then(|answer| answer.pointer(&pointer));
        match value {
            Some(Value::String(text)) => out.push_str(text),
            Some(value) => out.push_str(&value.to_string()),
            None => {}
        }
        rest = &tail[end + 1..];
    }
    out.push_str(rest);
    out
}

fn until_holds(step: &Value, answer: &Answer) -> bool {
    let Some(until) = step.get("until") else {
        return true;
    };
    let status = until
        .get("status")
        .is_none_or(|status| *status == answer.status);
    let condition = until.get("condition").is_none_or(|wanted| {
        let conditions = answer.body["status"]["conditions"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        conditions.iter().any(|condition| {
            condition["type"] == wanted["type"] && condition["status"] == wanted["status"]
        })
    });
    status && condition
}

fn step_differences(step: &Value, answer: &Answer) -> Vec<String> {
    let mut found = Vec::new();
    if step["status"] != answer.status {
        found.push(format!(
            "status: expected {}, got {}",
            step["status"], answer.status
        ));
    }
    let mut expected = step["answer"].clone();
    let mut actual = answer.body.clone();
    if step["stream"] == true {
        mark_ages(&mut expected);
    }
    if let Some(map) = expected.as_object_mut() {
        map.remove("_rv_changed");
    }
    reduce_tables(
        &mut actual,
        step["path"]
            .as_str()
            .is_some_and(|path| path.contains("includeObject=")),
    );
    if step["path"]
        .as_str()
        .is_some_and(|path| path.starts_with("/api"))
        && actual["kind"] == "APIResourceList"
    {
        sort_resources(&mut actual);
    }
    if expected["kind"] == "APIVersions" {
        for tree in [&mut expected, &mut actual] {
            tree["serverAddressByClientCIDRs"] = Value::Null;
        }
    }
    found.extend(differences(&expected, &actual));
    let expected: Vec<&str> = step["warnings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let agree = expected.len() == answer.warnings.len()
        && expected
            .iter()
            .zip(&answer.warnings)
            .all(|(want, have)| matches_text(want, have));
    if !agree {
        found.push(format!(
            "warnings: expected {expected:?}, got {:?}",
            answer.warnings
        ));
    }
    found
}

/// In streams the recording replaced the ages of the first row only.
fn mark_ages(events: &mut Value) {
    for event in events.as_array_mut().into_iter().flatten() {
        let rows = event
            .pointer_mut("/object/rows")
            .and_then(Value::as_array_mut);
        let cells = rows
            .into_iter()
            .flatten()
            .filter_map(|row| row.get_mut("cells")?.as_array_mut());
        for cell in cells.flatten() {
            let digits = cell.as_str().and_then(|text| text.strip_suffix('s'));
            if digits.is_some_and(|digits| digits.parse::<u32>().is_ok()) {
                *cell = "<age>".into();
            }
        }
    }
}

/// Tables were recorded without column descriptions and without row objects unless `includeObject` was asked for.
fn reduce_tables(value: &mut Value, keep_objects: bool) {
    if let Some(events) = value.as_array_mut() {
        for event in events {
            if let Some(object) = event.get_mut("object") {
                reduce_tables(object, keep_objects);
            }
        }
        return;
    }
    if value["kind"] != "Table" {
        return;
    }
    for column in value["columnDefinitions"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        column
            .as_object_mut()
            .map(|column| column.remove("description"));
    }
    if !keep_objects {
        for row in value["rows"].as_array_mut().into_iter().flatten() {
            row.as_object_mut().map(|row| row.remove("object"));
        }
    }
}

/// Discovery lists were recorded sorted by name and reduced to some fields.
fn sort_resources(list: &mut Value) {
    const KEPT: &[&str] = &[
        "name",
        "kind",
        "namespaced",
        "verbs",
        "shortNames",
        "categories",
        "singularName",
        "group",
        "version",
    ];
    if let Some(resources) = list["resources"].as_array_mut() {
        for resource in resources.iter_mut() {
            if let Some(map) = resource.as_object_mut() {
                map.retain(|key, _| KEPT.contains(&key.as_str()));
            }
        }
        resources.sort_by_key(|resource| resource["name"].as_str().unwrap_or_default().to_owned());
    }
}
