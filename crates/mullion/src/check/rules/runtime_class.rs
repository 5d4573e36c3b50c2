//! Checks RuntimeClasses: MUL030 to MUL033.

use mullion_api::labels;
use serde_json::json;

use super::{Context, builds, deprecated, label_values};
use crate::check::{
    finding::Findings,
    path::Path,
    placement::texts,
    problem::Problem,
    subject::{Object, Pod},
    table::Severity,
    yaml::edit::Edit,
};

pub(super) fn check(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    for pod in context.pods.iter().filter(|pod| pod.object == index) {
        named_class(context, pod, found);
    }
    if !object.is("RuntimeClass", "node.k8s.io") {
        return;
    }
    builds::object_forms(index, object, found);
    deprecated::class_labels(index, object, found);
    let selector = &object.value["scheduling"]["nodeSelector"];
    let at = Path::of(&["scheduling", "nodeSelector"]);
    label_values::check_selector(&at, selector, index, found);
    let version = object.api_version();
    if version != "node.k8s.io/v1" {
        let at = Path::of(&["apiVersion"]);
        let finding = found.add(
            "MUL030",
            index,
            at.clone(),
            Problem::GoneVersion {
                version: version.to_owned(),
            },
        );
        // v1alpha1 has the fields below `spec`, so changing the apiVersion alone is not enough.
        if object.value["spec"].is_null() {
            finding.safe([Edit::Set(at, json!("node.k8s.io/v1"))]);
        }
    }
    if object.text_at("/handler") == "docker" {
        found.add(
            "MUL031",
            index,
            Path::of(&["handler"]),
            Problem::HandlerDocker,
        );
    }
    incomplete(index, object, found);
}

/// Checks MUL032: a RuntimeClass that does not exist or that contradicts the pod.
fn named_class(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    let Some(name) = pod.spec["runtimeClassName"].as_str() else {
        return;
    };
    let is_it =
        |object: &&Object| object.is("RuntimeClass", "node.k8s.io") && object.name() == name;
    let at = pod.at(&["runtimeClassName"]);
    let Some(class) = context.objects.iter().find(is_it) else {
        if context.live {
            found.add(
                "MUL032",
                pod.object,
                at,
                Problem::NoSuchClass {
                    class: name.to_owned(),
                },
            );
        }
        return;
    };
    let own = texts(&pod.spec["nodeSelector"]);
    for (key, wanted) in texts(&class.value["scheduling"]["nodeSelector"]) {
        if let Some(value) = own.get(&key).filter(|value| **value != wanted) {
            let problem = Problem::ClassConflict {
                class: name.to_owned(),
                key,
                pod: value.clone(),
                wanted,
            };
            found.add("MUL032", pod.object, at.clone(), problem);
        }
    }
}

/// Checks MUL033: a RuntimeClass for Windows that does not select Windows nodes.
fn incomplete(index: usize, object: &Object, found: &mut Findings) {
    let scheduling = Path::of(&["scheduling", "nodeSelector"]);
    let selector = &object.value["scheduling"]["nodeSelector"];
    let name = object.name().to_ascii_lowercase();
    let handler = object.text_at("/handler");
    let is_windows = selector[labels::OS] == "windows"
        || (selector[labels::OS].is_null()
            && (handler.starts_with("runhcs-wcow")
                || name.contains("windows")
                || selector.get(labels::WINDOWS_BUILD).is_some()));
    if !is_windows {
        return;
    }
    // A beta label is reported by another rule, which says what replaces it.
    let lacks = |label: &str, beta: &str| selector[label].is_null() && selector[beta].is_null();
    let mut missing = Vec::new();
    let mut edits = Vec::new();
    if lacks(labels::OS, labels::BETA_OS) {
        missing.push(labels::OS);
        edits.push(Edit::Set(scheduling.key(labels::OS), json!("windows")));
    }
    if lacks(labels::ARCH, labels::BETA_ARCH) {
        missing.push(labels::ARCH);
        edits.push(Edit::Set(scheduling.key(labels::ARCH), json!("amd64")));
    }
    if !edits.is_empty() {
        let missing = missing.iter().map(|label| (*label).to_owned()).collect();
        found
            .add(
                "MUL033",
                index,
                scheduling.clone(),
                Problem::ClassLacks { missing },
            )
            .safe(edits);
    }
    if selector[labels::WINDOWS_BUILD].is_null() {
        let missing = vec![labels::WINDOWS_BUILD.to_owned()];
        found
            .add("MUL033", index, scheduling, Problem::ClassLacks { missing })
            .as_a(Severity::Info);
    }
}
