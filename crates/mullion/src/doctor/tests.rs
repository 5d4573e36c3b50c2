//! Tests the checks' examples (`tests/doctor/DOC*.yaml`, `NET*.yaml`), what holds for all of them, and the page that is generated from the table.
//!
//! A file has sections `### RESULT: remark`. The check of the file's id must have that result when the documents of the section are merged
//! into the cluster of `healthy.yaml`. `$delete: true` removes an object, `kind: Refused` names lists that the user may not read,
//! `kind: DryRun` has the pod that a dry run returns, `kind: Finding` a finding of `mullion check`, `kind: Many` stands for copies of an
//! object, `kind: Way` has the answer on a path of traffic, and `kind: Unprobed` is a path that was not tested. If every problem of a section
//! has a change, the changes must make the check pass, and afterwards there must be nothing left to change.

use std::{collections::BTreeMap, fs, path::PathBuf};

use futures::FutureExt;
use serde_json::{Value, json};

use super::{
    account,
    change::Change,
    explain,
    findings::{Findings, Outcome},
    kinds::{KINDS, Scope},
    network::{self, Answer, Probes, TrafficPath},
    snapshot::{DryRun, Snapshot, name_of, namespace_of},
    table::{self, FixKind},
};
use crate::check::LiveFinding;

/// The objects of a cluster, and the kinds that cannot be listed.
#[derive(Clone, Default)]
struct World {
    objects: Vec<Value>,
    refused: Vec<String>,
    dry_run: Value,
    findings: Vec<LiveFinding>,
    answers: Option<BTreeMap<TrafficPath, Answer>>,
}

struct Section {
    expected: String,
    remark: String,
    documents: Vec<Value>,
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/doctor")
}

fn read(name: &str) -> String {
    let path = directory().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn sections(id: &str) -> Vec<Section> {
    let content = read(&format!("{id}.yaml"));
    let parts = content.split("### ").skip(1).map(|part| {
        let (head, text) = part.split_once('\n').expect("a section has a head");
        let (expected, remark) = head.split_once(':').unwrap_or((head, ""));
        let documents = documents(text).into_iter();
        Section {
            expected: expected.trim().to_owned(),
            remark: remark.trim().to_owned(),
            documents: documents.filter(|own| !own.is_null()).collect(),
        }
    });
    parts.collect()
}

/// Merges a patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    for (key, value) in fields {
        match value {
            Value::Null => drop(target.as_object_mut().map(|own| own.remove(key))),
            value => merge(&mut target[key], value),
        }
    }
}

impl World {
    fn healthy() -> Self {
        let request = json!({"vpc.amazonaws.com/PrivateIPv4Address": "1"});
        let container = json!({"resources": {"requests": request}});
        World {
            objects: documents(&read("healthy.yaml")),
            dry_run: json!({"pod": {"spec": {"containers": [container]}}}),
            answers: Some(network::tests::all_open()),
            ..World::default()
        }
    }

    fn index(&self, object: &Value) -> Option<usize> {
        self.objects.iter().position(|own| {
            own["kind"] == object["kind"]
                && name_of(own) == name_of(object)
                && namespace_of(own) == namespace_of(object)
        })
    }

    fn with(mut self, documents: &[Value]) -> Self {
        for document in documents {
            if document["kind"] == "Refused" {
                let lists = document["lists"].as_array().into_iter().flatten();
                self.refused
                    .extend(lists.filter_map(Value::as_str).map(str::to_owned));
                continue;
            }
            match document["kind"].as_str() {
                Some("DryRun") => {
                    self.dry_run = document.clone();
                    continue;
                }
                Some("Finding") => {
                    let text =
                        |field: &str| document[field].as_str().unwrap_or_default().to_owned();
                    self.findings.push(LiveFinding {
                        id: text("id"),
                        is_error: document["error"] == true,
                        object: text("object"),
                        text: text("text"),
                    });
                    continue;
                }
                Some("Unprobed") => {
                    self.answers = None;
                    continue;
                }
                Some("Way") => {
                    let answers = self.answers.as_mut().expect("probes");
                    let named = |way: &TrafficPath| {
                        way.to_string() == document["way"].as_str().expect("a way")
                    };
                    let text = |field: &str| document[field].as_str().map(str::to_owned);
                    let answer = match (text("failed"), text("untried")) {
                        (Some(why), _) => Answer::Failed(why),
                        (None, why) => Answer::Untried(why.expect("failed or untried")),
                    };
                    let own = answers.iter_mut().find(|(way, _)| named(way));
                    *own.unwrap_or_else(|| panic!("no such way: {document}")).1 = answer;
                    continue;
                }
                Some("Many") => {
                    let count = document["count"].as_u64().expect("a count");
                    self.objects.extend((0..count).map(|number| {
                        let mut object = document["object"].clone();
                        object["metadata"]["name"] = format!("many-{number}").into();
                        object
                    }));
                    continue;
                }
                _ => {}
            }
            match (self.index(document), &document["$delete"]) {
                (Some(index), Value::Bool(true)) => drop(self.objects.remove(index)),
                (Some(index), _) => merge(&mut self.objects[index], document),
                (None, _) => self.objects.push(document.clone()),
            }
        }
        self
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        snapshot.version = Some("v1.36.0".to_owned());
        snapshot.now = "2026-01-01T12:00:00Z".parse().expect("a time");
        snapshot.findings = Ok(self.findings.clone());
        if let Some(answers) = &self.answers {
            snapshot.probes = Probes::Tried(answers.clone());
        }
        snapshot.dry_run = match (&self.dry_run["pod"], self.dry_run["refused"].as_str()) {
            (_, Some(why)) => DryRun::Refused(why.to_owned()),
            (Value::Null, _) => DryRun::Forbidden,
            (pod, _) => DryRun::Admitted(pod.clone()),
        };
        if let Some(object) = self.account() {
            let account = account::simulated(object).expect("an account");
            let asked = account::ask(&account).now_or_never();
            snapshot.account = asked.expect("a simulated account answers at once");
        }
        for object in &self.objects {
            let known = KINDS.iter().any(|kind| object["kind"] == kind.name);
            assert!(known, "nobody reads {object}");
        }
        for kind in &KINDS {
            let is_read = |object: &&Value| match kind.scope {
                Scope::Cluster | Scope::Everywhere => true,
                Scope::KubeSystem => namespace_of(object) == "kube-system",
                Scope::One(name) => name_of(object) == name,
                Scope::Reason(reason) => object["reason"] == reason,
            };
            let items = self.objects.iter().filter(|own| own["kind"] == kind.name);
            snapshot.put(kind.name, items.filter(is_read).cloned().collect());
            if self.refused.iter().any(|own| own == kind.name) {
                snapshot.refuse(kind.name);
            }
        }
        snapshot
    }

    fn account(&self) -> Option<&Value> {
        let mut objects = self.objects.iter();
        objects.find(|own| own["kind"] == "SimulatedAccount")
    }

    fn found(&self, id: &str) -> Findings {
        let check = table::check(id).expect("a check");
        (check.run)(&self.snapshot()).unwrap_or_else(Findings::from)
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Create { object, .. } => self.objects.push(object.clone()),
            Change::Merge { object, patch } => {
                let index = self.index(object).expect("it is there");
                merge(&mut self.objects[index], patch);
            }
            Change::Delete { object } => {
                let index = self.index(object).expect("it is there");
                self.objects.remove(index);
            }
            Change::Account(change) => {
                let object = self.account().expect("an account").clone();
                let account = account::simulated(&object).expect("an account");
                let changed = mullion_cloud::Account::change(&account, change).now_or_never();
                changed.expect("at once").expect("it is possible");
                let index = self.index(&object).expect("it is there");
                self.objects[index]["spec"] = serde_json::to_value(account.spec()).expect("JSON");
            }
        }
    }
}

fn changes(found: &Findings) -> Vec<Change> {
    found.changes().into_iter().cloned().collect()
}

#[test]
fn every_check_has_the_results_of_its_examples() {
    let mut wrong = Vec::new();
    for check in table::all() {
        let sections = sections(check.id);
        for section in &sections {
            let found = World::healthy().with(&section.documents).found(check.id);
            if found.outcome().label() != section.expected {
                wrong.push(format!(
                    "{} ({}): not {} but {found:#?}",
                    check.id, section.remark, section.expected
                ));
            }
        }
        let has = |word: &str| sections.iter().any(|own| own.expected == word);
        if !has("failed") && !has("warning") {
            wrong.push(format!("{}: an example that fails is needed", check.id));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_healthy_cluster_has_no_problem() {
    let world = World::healthy();
    for check in table::all() {
        let found = world.found(check.id);
        let outcome = found.outcome();
        let calm = matches!(outcome, Outcome::Ok | Outcome::NotNeeded);
        assert!(calm, "{}: {found:#?}", check.id);
    }
}

#[test]
fn the_changes_of_a_check_mend_it_and_leave_nothing_to_change() {
    for check in table::all() {
        let mut mends = false;
        for section in sections(check.id) {
            let mut world = World::healthy().with(&section.documents);
            let found = world.found(check.id);
            let all = found.problems.iter().all(|own| !own.changes.is_empty());
            for change in changes(&found) {
                mends = true;
                world.change(&change);
            }
            let after = world.found(check.id);
            assert_eq!(changes(&after), [], "{} {}", check.id, section.remark);
            if all && !found.problems.is_empty() {
                let text = format!("{} {}: {after:#?}", check.id, section.remark);
                assert!(after.problems.is_empty(), "{text}");
            }
        }
        assert_eq!(mends, check.fix == FixKind::Made, "{}", check.id);
    }
}

#[test]
fn problems_without_a_change_say_what_to_do() {
    for check in table::all() {
        for section in sections(check.id) {
            let found = World::healthy().with(&section.documents).found(check.id);
            for problem in &found.problems {
                let helps = !problem.changes.is_empty() || !problem.advice.is_empty();
                assert!(helps, "{} {}: {problem:#?}", check.id, section.remark);
            }
        }
    }
}

#[test]
fn windows_pods_without_an_address_for_one_reason_are_listed_together() {
    let pod = |home: &str, name: &str| {
        json!({
            "kind": "Pod", "metadata": {"namespace": home, "name": name},
            "spec": {"nodeSelector": {"kubernetes.io/os": "windows"}, "containers": [{"name": "c"}]},
        })
    };
    let pods = [pod("a", "one"), pod("b", "two"), pod("a", "three")];
    let early = "it was created while Windows IP management was off or the webhook was down";
    let found = World::healthy().with(&pods[..1]).found("DOC05");
    let texts: Vec<_> = found.problems.iter().map(|own| &own.text).collect();
    let one = format!("pod a/one requests no address and gets none: {early}");
    assert_eq!(texts, [&one]);
    let found = World::healthy().with(&pods).found("DOC05");
    let texts: Vec<_> = found.problems.iter().map(|own| &own.text).collect();
    let all = "pods a/one, b/two, a/three request no address and get none: they were created while Windows IP management was off or the \
               webhook was down";
    assert_eq!(texts, [all]);
    assert_eq!(
        found.problems[0].advice,
        [
            "  kubectl -n a delete pod one three",
            "  kubectl -n b delete pod two"
        ]
    );
}

#[test]
fn the_command_about_many_pods_without_an_address_names_the_first_of_them() {
    let pod = |number: usize| {
        json!({
            "kind": "Pod", "metadata": {"namespace": "a", "name": format!("p{number}"), "uid": format!("u{number}"), "annotations": null},
            "spec": {
                "nodeName": "windows-1", "nodeSelector": {"kubernetes.io/os": "windows"},
                "containers": [{"name": "c", "resources": {"requests": {"vpc.amazonaws.com/PrivateIPv4Address": "1"}}}],
            },
            "status": {"startTime": "2026-01-01T11:00:00Z"},
        })
    };
    let pods: Vec<Value> = (0..75).map(pod).collect();
    let found = World::healthy().with(&pods).found("DOC05");
    assert_eq!(found.problems.len(), 1, "{found:#?}");
    let command = found.problems[0].advice.last().expect("a command");
    assert_eq!(command, "  kubectl -n a describe pod p0 p1 p2");
}

#[test]
fn the_page_of_checks_is_made_of_the_table() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let page = fs::read_to_string(&path).expect("docs/doctor.md");
    let mark = "<!-- checks -->\n\n";
    let (head, _) = page.split_once(mark).expect("the mark");
    let made = format!("{head}{mark}{}", explain::tables());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &made).expect("docs/doctor.md can be written");
    }
    assert!(
        page == made || std::env::var_os("UPDATE_DOCS").is_some(),
        "UPDATE_DOCS=1 writes docs/doctor.md anew"
    );
}
