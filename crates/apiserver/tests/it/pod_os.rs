//! What is refused of Windows pods, for pods and for every kind that holds a template: fields by `spec.os.name` (`testdata/pod-os-fields.jsonl`) and
//! what the Pod Security levels forbid (`testdata/pod-levels.jsonl`).
//!
//! The answers are those of `validateWindows` and `validateLinux` in kube-apiserver's pkg/apis/core/validation/validation.go, and of the checks in
//! pod-security-admission's policy package.

use serde_json::{Value, json};

use crate::api::{Answer, Api};

const FIELDS: &str = include_str!("../../testdata/pod-os-fields.jsonl");
const LEVELS: &str = include_str!("../../testdata/pod-levels.jsonl");

/// The kinds: the collection, and where the pod's spec is in an object.
const KINDS: [(&str, &str); 9] = [
    ("/api/v1/namespaces/default/pods", "spec"),
    ("/api/v1/namespaces/default/podtemplates", "template.spec"),
    (
        "/api/v1/namespaces/default/replicationcontrollers",
        "spec.template.spec",
    ),
    (
        "/apis/apps/v1/namespaces/default/replicasets",
        "spec.template.spec",
    ),
    (
        "/apis/apps/v1/namespaces/default/deployments",
        "spec.template.spec",
    ),
    (
        "/apis/apps/v1/namespaces/default/statefulsets",
        "spec.template.spec",
    ),
    (
        "/apis/apps/v1/namespaces/default/daemonsets",
        "spec.template.spec",
    ),
    (
        "/apis/batch/v1/namespaces/default/jobs",
        "spec.template.spec",
    ),
    (
        "/apis/batch/v1/namespaces/default/cronjobs",
        "spec.jobTemplate.spec.template.spec",
    ),
];

/// The spec of a scenario, and the path of its field in there.
fn spec_of(scenario: &Value) -> (Value, String) {
    let text = |key: &str| scenario[key].as_str().expect(key);
    let field = text("field");
    let mut spec = json!({
        "os": {"name": text("os")},
        "containers": [{"name": "c", "image": "i"}],
        "initContainers": [{"name": "d", "image": "i"}],
    });
    let (owner, path) = match text("place") {
        "spec" => {
            spec[field] = scenario["value"].clone();
            return (spec, field.to_owned());
        }
        "pod" => (&mut spec, "securityContext".to_owned()),
        place => {
            let list = format!("{place}s");
            let path = format!("{list}[0].securityContext");
            (&mut spec[list][0], path)
        }
    };
    owner["securityContext"][field] = scenario["value"].clone();
    (spec, format!("{path}.{field}"))
}

/// An object of the collection with that spec for its pods.
fn object(collection: &str, mut spec: Value) -> Value {
    let (_, plural) = collection.rsplit_once('/').expect("a path");
    if matches!(plural, "jobs" | "cronjobs") {
        spec["restartPolicy"] = "Never".into();
    }
    let labels = json!({"app": "a"});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let mut object = json!({"metadata": {"name": "x"}});
    match plural {
        "pods" => object["spec"] = spec,
        "podtemplates" => object["template"] = template,
        "replicationcontrollers" => {
            object["spec"] = json!({"selector": labels, "template": template});
        }
        "jobs" => object["spec"] = json!({"template": template}),
        "cronjobs" => {
            let job = json!({"spec": {"template": template}});
            object["spec"] = json!({"schedule": "* * * * *", "jobTemplate": job});
        }
        _ => {
            object["spec"] = json!({"selector": {"matchLabels": labels}, "template": template});
        }
    }
    object
}

fn causes(answer: &Answer) -> Vec<(String, String)> {
    let causes = answer.body["details"]["causes"].as_array();
    let text = |cause: &Value, key: &str| cause[key].as_str().unwrap_or_default().to_owned();
    let causes = causes.into_iter().flatten();
    causes
        .map(|cause| (text(cause, "field"), text(cause, "message")))
        .collect()
}

#[tokio::test]
async fn each_system_refuses_the_other_one_s_fields_in_pods_and_in_all_templates() {
    let api = Api::with_account().await;
    for line in FIELDS.lines() {
        let scenario: Value = serde_json::from_str(line).expect("a scenario is JSON");
        let (spec, path) = spec_of(&scenario);
        let why = if scenario["os"] == "windows" {
            "Forbidden: cannot be set for a windows pod"
        } else {
            "Forbidden: windows options cannot be set for a linux pod"
        };
        for (collection, at) in KINDS {
            let url = format!("{collection}?dryRun=All");
            let answer = api.post(&url, object(collection, spec.clone())).await;
            if scenario["allowed"] == true {
                assert_eq!(answer.status, 201, "{collection} {line}: {}", answer.body);
            } else {
                let expected = [(format!("{at}.{path}"), why.to_owned())];
                assert_eq!(answer.status, 422, "{collection} {line}: {}", answer.body);
                assert_eq!(causes(&answer), expected, "{collection} {line}");
            }
        }
    }
}

#[tokio::test]
async fn levels_refuse_windows_pods_and_warn_of_templates_that_make_them() {
    let api = Api::with_account().await;
    for line in LEVELS.lines() {
        let scenario: Value = serde_json::from_str(line).expect("a scenario is JSON");
        let text = |key: &str| scenario[key].as_str().expect(key);
        let (level, says) = (text("level"), text("says"));
        let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
        api.merge("/api/v1/namespaces/default", labels).await.ok();
        for (collection, _) in KINDS {
            let url = format!("{collection}?dryRun=All");
            let answer = api
                .post(&url, object(collection, scenario["spec"].clone()))
                .await;
            let sentence = format!("violate PodSecurity \"{level}:latest\": {says}");
            let sentence = sentence.replace('\\', "\\\\").replace('"', "\\\"");
            let warned = format!("299 - \"would {sentence}\"");
            if says.is_empty() {
                assert_eq!(answer.status, 201, "{collection} {line}: {}", answer.body);
                assert_eq!(answer.warnings, [""; 0], "{collection} {line}");
            } else if collection.ends_with("/pods") {
                let why = format!(
                    "pods \"x\" is forbidden: violates PodSecurity \"{level}:latest\": {says}"
                );
                assert_eq!(answer.refused(403), why, "{line}");
            } else {
                assert_eq!(answer.status, 201, "{collection} {line}: {}", answer.body);
                assert_eq!(answer.warnings, [warned], "{collection} {line}");
            }
        }
    }
}
