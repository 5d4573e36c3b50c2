//! Judges the objects of recorded creations without a server, and compares the errors with kube-apiserver's.

use jiff::Timestamp;
use mullion_apiserver::trial::Trial;
use serde_json::Value;

use super::{EPOCH, lines};

/// A POST to a collection.
struct Creation {
    id: String,
    object: Value,
    status: u64,
    answer: Value,
}

fn creations() -> Vec<Creation> {
    let mut found = Vec::new();
    for line in lines() {
        let scenario: Value = serde_json::from_str(&line).expect("a scenario is JSON");
        for step in scenario["steps"].as_array().into_iter().flatten() {
            let path = step["path"].as_str().unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default();
            if step["method"] == "POST" && is_collection(path) && step["body"].is_object() {
                found.push(Creation {
                    id: scenario["id"].as_str().unwrap_or_default().to_owned(),
                    object: step["body"].clone(),
                    status: step["status"].as_u64().unwrap_or_default(),
                    answer: step["answer"].clone(),
                });
            }
        }
    }
    found
}

/// Returns whether a path has no name of an object after the plural of the kind.
fn is_collection(path: &str) -> bool {
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let rest = match parts.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => return false,
    };
    matches!(rest, [_] | ["namespaces", _, _])
}

fn errors(trial: &Trial, object: &Value, now: Timestamp) -> Option<Vec<String>> {
    let errors = trial.errors(object, now)?;
    let shown = errors
        .iter()
        .map(|error| format!("{}: {}", error.field, error.body()));
    Some(shown.collect())
}

#[test]
fn what_kube_apiserver_has_created_has_no_errors() {
    let trial = Trial::of_builtins();
    let mut judged = 0;
    for own in creations().iter().filter(|own| own.status == 201) {
        if let Some(errors) = errors(&trial, &own.object, EPOCH) {
            assert_eq!(errors, [""; 0], "{}: {}", own.id, own.object);
            judged += 1;
        }
    }
    assert!(judged > 1000, "{judged} objects are judged");
}

#[test]
fn what_kube_apiserver_has_refused_as_invalid_has_its_causes() {
    /// How many of the refused objects have the same causes; those of the others depend on other objects or on admission.
    const SAME: usize = 167;
    let trial = Trial::of_builtins();
    let mut same = 0;
    for own in creations().iter().filter(|own| own.status == 422) {
        let causes = own.answer["details"]["causes"].as_array();
        let causes = causes.into_iter().flatten().map(|cause| {
            let text = |field: &str| cause[field].as_str().unwrap_or_default().to_owned();
            format!("{}: {}", text("field"), text("message"))
        });
        let mut causes: Vec<_> = causes.collect();
        let mut found = errors(&trial, &own.object, EPOCH).unwrap_or_default();
        causes.sort();
        causes.dedup();
        found.sort();
        same += usize::from(found == causes);
    }
    assert!(same >= SAME, "{same} objects have the same causes");
}
