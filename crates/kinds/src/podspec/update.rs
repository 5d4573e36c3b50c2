//! Validates updates of pods. Images may change, the deadline may become shorter, tolerations may be added, scheduling gates may be
//! removed, and the placement of a gated pod may be narrowed. Every other change is refused with the diff of the two specs.

use std::collections::HashSet;

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    golang::quote,
    names,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Scope, annotations, difference, internal, scheduling};

const ONLY: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Validates an update on the main endpoint; the new pod itself is valid.
pub(crate) fn validate(pod: &Value, old: &Value, errors: &mut Errors) {
    let none = Value::Null;
    let (new_spec, old_spec) = (
        pod.get("spec").unwrap_or(&none),
        old.get("spec").unwrap_or(&none),
    );
    metadata_annotations(pod, old, errors);
    let path = Path::new("spec");
    for list in ["containers", "initContainers"] {
        let at = path.child(list);
        let containers = new_spec.items(list);
        if containers.len() != old_spec.items(list).len() {
            // ValidateContainerUpdates stops here: the containers cannot be paired, so a diff of the specs would only repeat this.
            return errors.forbidden(&at, "pod updates may not add or remove containers");
        }
        for (index, container) in containers.iter().enumerate() {
            let (at, image) = (at.index(index), container.text("image"));
            if image.is_empty() {
                errors.required(&at.child("image"), "");
            }
            super::containers::only_in_pods(container, &at, errors);
        }
    }
    if !deadline(
        new_spec,
        old_spec,
        &path.child("activeDeadlineSeconds"),
        errors,
    ) {
        return;
    }
    tolerations(
        new_spec.items("tolerations"),
        old_spec.items("tolerations"),
        &path.child("tolerations"),
        errors,
    );
    gates(
        new_spec.items("schedulingGates"),
        old_spec.items("schedulingGates"),
        &path.child("schedulingGates"),
        errors,
    );
    // Most updates touch only metadata, and need neither the copy nor the two printed specs.
    if new_spec == old_spec {
        return;
    }
    // Fields that may change get their stored values; any difference that remains is not allowed.
    let mut munged = new_spec.clone();
    for list in ["containers", "initContainers"] {
        let images = old_spec
            .items(list)
            .iter()
            .map(|container| container.get("image").cloned().unwrap_or_default());
        let containers = munged
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten();
        containers
            .zip(images)
            .for_each(|(container, image)| container["image"] = image);
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        take_over(&mut munged, old_spec, field);
    }
    if !old_spec.items("schedulingGates").is_empty() {
        // The scheduler has not placed a gated pod yet, so its placement may still be narrowed.
        gated(&mut munged, old_spec, &path, errors);
    }
    let (before, after) = (printed(old_spec), printed(&munged));
    if before != after {
        errors.forbidden(
            &path,
            format!("{ONLY}\n{}", difference::unified(&before, &after)),
        );
    }
}

/// Validates a change of the ephemeral containers, which may only be added.
pub(crate) fn validate_ephemeral(pod: &Value, old: &Value, errors: &mut Errors) {
    if annotations::is_mirror(old) {
        // ValidatePodEphemeralContainersUpdate returns this error alone and discards those found before.
        errors.0.clear();
        return errors.forbidden(
            &Path::new(""),
            "static pods do not support ephemeral containers",
        );
    }
    metadata_annotations(pod, old, errors);
    let path = Path::new("spec");
    let path = path.child("ephemeralContainers");
    let none = Value::Null;
    let added = pod
        .get("spec")
        .unwrap_or(&none)
        .items("ephemeralContainers");
    for before in old
        .get("spec")
        .unwrap_or(&none)
        .items("ephemeralContainers")
    {
        let name = before.text("name");
        // If a name occurs more than once, kube-apiserver compares the last container.
        match added
            .iter()
            .rfind(|container| container.text("name") == name)
        {
            None => errors.forbidden(
                &path,
                format!(
                    "existing ephemeral containers {} may not be removed\n",
                    quote(name)
                ),
            ),
            Some(after) if after != before => {
                let texts = [before, after]
                    .map(|container| internal::indented("EphemeralContainer", container));
                let difference = difference::unified(&texts[0], &texts[1]);
                errors.forbidden(
                    &path,
                    format!(
                        "existing ephemeral containers {} may not be changed\n{difference}",
                        quote(name)
                    ),
                );
            }
            Some(_) => {}
        }
    }
}

/// Restores everything except the ephemeral containers, for a write to their subresource.
pub(crate) fn prepare_ephemeral(pod: &mut Value, old: &Value) {
    let containers = pod["spec"]["ephemeralContainers"].take();
    pod["spec"] = old["spec"].clone();
    pod["status"] = old["status"].clone();
    if let Some(spec) = pod["spec"].as_object_mut() {
        match containers {
            Value::Null => spec.remove("ephemeralContainers"),
            containers => spec.insert("ephemeralContainers".into(), containers),
        };
    }
}

fn metadata_annotations(pod: &Value, old: &Value, errors: &mut Errors) {
    let none = Value::Null;
    let (metadata, old) = (
        pod.get("metadata").unwrap_or(&none),
        old.get("metadata").unwrap_or(&none),
    );
    let path = Path::new("metadata");
    let path = path.child("annotations");
    annotations::validate_update(metadata, old, &path, errors);
    // kube-apiserver validates the annotations a second time here.
    let scope = Scope::of_pod(pod.get("spec").unwrap_or(&none));
    annotations::validate(metadata, &scope, &path, errors);
}

/// Formats the spec as kube-apiserver's internal type prints it, where fields about host namespaces are part of the security context.
fn printed(spec: &Value) -> String {
    let mut spec = spec.clone();
    for field in [
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "shareProcessNamespace",
        "hostUsers",
    ] {
        if let Some(value) = spec.as_object_mut().and_then(|spec| spec.remove(field)) {
            spec["securityContext"][field] = value;
        }
    }
    internal::indented("PodSpec", &spec)
}

fn take_over(spec: &mut Value, old: &Value, field: &str) {
    let Some(spec) = spec.as_object_mut() else {
        return;
    };
    match old.get(field) {
        Some(value) => spec.insert(field.to_owned(), value.clone()),
        None => spec.remove(field),
    };
}

/// Validates the change of `activeDeadlineSeconds`. Returns false if it is invalid, and no further check is worth making.
fn deadline(spec: &Value, old: &Value, path: &Path<'_>, errors: &mut Errors) -> bool {
    match (
        spec.integer("activeDeadlineSeconds"),
        old.integer("activeDeadlineSeconds"),
    ) {
        (Some(deadline), _) if !(0..=i64::from(i32::MAX)).contains(&deadline) => {
            errors.invalid(path, deadline, names::outside(0, i64::from(i32::MAX)));
            false
        }
        (Some(deadline), Some(before)) if before < deadline => {
            errors.invalid(
                path,
                deadline,
                "must be less than or equal to previous value",
            );
            false
        }
        (None, Some(_)) => {
            errors.invalid(
                path,
                Value::Null,
                "must not update from a positive integer to nil value",
            );
            // Only a wrong number ends ValidatePodUpdate; a removed deadline is reported together with the other errors.
            true
        }
        _ => true,
    }
}

fn tolerations<'t>(new: &'t [Value], old: &'t [Value], path: &Path<'_>, errors: &mut Errors) {
    // `tolerationSeconds` is left out, because it is the one field of a toleration that may change.
    let what = |toleration: &'t Value| {
        ["key", "operator", "value", "effect"].map(|field| toleration.text(field))
    };
    let kept: HashSet<[&str; 4]> = new.iter().map(what).collect();
    if !old.iter().all(|before| kept.contains(&what(before))) {
        // validateOnlyAddedTolerations reports one missing toleration and checks nothing more.
        return errors.forbidden(
            path,
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
    scheduling::validate_tolerations(new, path, errors);
}

fn gates(new: &[Value], old: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let old: HashSet<&str> = old.iter().map(|gate| gate.text("name")).collect();
    for (index, gate) in new.iter().enumerate() {
        let name = gate.text("name");
        if !old.contains(name) {
            let detail =
                format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.forbidden(&path.index(index).child("name"), detail);
        }
    }
}

/// Validates changes of a gated pod: its node selector may grow, and its node affinity may be narrowed.
fn gated(munged: &mut Value, old: &Value, path: &Path<'_>, errors: &mut Errors) {
    let none = Value::Null;
    if munged.get("nodeSelector") != old.get("nodeSelector") {
        let selector = munged.get("nodeSelector").unwrap_or(&none);
        if old
            .entries("nodeSelector")
            .any(|(key, value)| selector.get(key) != Some(value))
        {
            let detail =
                "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.invalid(&path.child("nodeSelector"), selector.clone(), detail);
        }
        // The change was checked, so it must not count as a difference later.
        take_over(munged, old, "nodeSelector");
    }
    let affinity = |spec: &Value| {
        spec.get("affinity")
            .and_then(|affinity| affinity.field("nodeAffinity"))
            .cloned()
    };
    let (new_affinity, old_affinity) = (affinity(munged), affinity(old));
    if new_affinity == old_affinity {
        return;
    }
    let at = path.child("affinity");
    node_affinity(
        new_affinity.as_ref(),
        old_affinity.as_ref(),
        &at.child("nodeAffinity"),
        errors,
    );
    match old_affinity {
        Some(nodes) => munged["affinity"]["nodeAffinity"] = nodes,
        None => {
            let Some(spec) = munged.as_object_mut() else {
                return;
            };
            let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) else {
                return;
            };
            // If the old pod had no affinity at all, an object emptied here would count as a difference.
            affinity.remove("nodeAffinity");
            if affinity.is_empty() && !old.has("affinity") {
                spec.remove("affinity");
            }
        }
    }
}

fn node_affinity(new: Option<&Value>, old: Option<&Value>, path: &Path<'_>, errors: &mut Errors) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    // Any required terms narrow a placement that had none, so all of them are allowed.
    let Some(old) = old.and_then(|old| old.field(REQUIRED)) else {
        return;
    };
    let at = path.child(REQUIRED);
    let at = at.child("nodeSelectorTerms");
    let old_terms = old.items("nodeSelectorTerms");
    let new_terms = new
        .and_then(|new| new.get(REQUIRED))
        .map_or(&[][..], |new| new.items("nodeSelectorTerms"));
    if !old_terms.is_empty() && new_terms.len() != old_terms.len() {
        let texts: Vec<String> = new_terms
            .iter()
            .map(|term| internal::compact("NodeSelectorTerm", term))
            .collect();
        let text = if new_terms.is_empty() {
            "null".to_owned()
        } else {
            format!("[{}]", texts.join(","))
        };
        return errors.with_text(
            ErrorType::Invalid,
            &at,
            text,
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        );
    }
    for (index, (old_term, new_term)) in old_terms.iter().zip(new_terms).enumerate() {
        let starts_with = |list: &str| new_term.items(list).starts_with(old_term.items(list));
        // The terms are alternatives and an empty one selects no node, so adding to it would widen the choice.
        let empty = |term: &Value| {
            term.items("matchExpressions").is_empty() && term.items("matchFields").is_empty()
        };
        if !starts_with("matchExpressions")
            || !starts_with("matchFields")
            || (empty(old_term) && !empty(new_term))
        {
            let text = internal::compact("NodeSelectorTerm", new_term);
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.with_text(ErrorType::Invalid, &at.index(index), text, detail);
        }
    }
}
