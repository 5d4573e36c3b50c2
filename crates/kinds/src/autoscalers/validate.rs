//! Validates the spec of an autoscaler in the form of v2 (`pkg/apis/autoscaling/validation`).

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    quantity::Quantity,
    validation::{check, resources},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

const MAX_PERIOD_SECONDS: i64 = 1800;
const MAX_WINDOW_SECONDS: i64 = 3600;
/// The types of metrics and the fields that describe them, in the order in which kube-apiserver checks them.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];
const TYPES: [&str; 5] = [
    "ContainerResource",
    "External",
    "Object",
    "Pods",
    "Resource",
];

/// Requires `minReplicas` to be at least 1; callers skip this if the stored autoscaler allows 0.
pub(super) fn at_least_one(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    if let Some(count) = spec.integer("minReplicas").filter(|count| *count < 1) {
        let mut first = Errors::default();
        first.invalid(
            &path.child("minReplicas"),
            count,
            "must be greater than or equal to 1",
        );
        // kube-apiserver reports this error before all others in the spec.
        errors.0.splice(0..0, first.0);
    }
}

/// Validates the spec, except for the lower bound of `minReplicas`.
pub(super) fn spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let fewest = spec.integer("minReplicas");
    let most = spec.integer("maxReplicas").unwrap_or(0);
    let at = path.child("maxReplicas");
    match most {
        0 => errors.required(&at, "must be set and greater than 0"),
        ..0 => errors.invalid(&at, most, "must be greater than or equal to 1"),
        _ => {}
    }
    if fewest.is_some_and(|fewest| most < fewest) {
        errors.invalid(&at, most, "must be greater than or equal to `minReplicas`");
    }
    let target = &spec["scaleTargetRef"];
    // Of the kinds that scale, only this one is in the core group, whose version has no group.
    let in_core = target.text("kind") == "ReplicationController";
    reference(target, in_core, &path.child("scaleTargetRef"), errors);
    let metrics = spec.items("metrics");
    let at = path.child("metrics");
    for (index, item) in metrics.iter().enumerate() {
        metric(item, &at.index(index), errors);
    }
    // Metrics of pods do not exist without pods, so nothing would scale the target up again.
    let works_without_pods = |metric: &Value| matches!(metric.text("type"), "Object" | "External");
    if fewest == Some(0) && !metrics.iter().any(works_without_pods) {
        errors.forbidden(
            &at,
            "must specify at least one Object or External metric to support scaling to zero replicas",
        );
    }
    let at = path.child("behavior");
    for direction in ["scaleUp", "scaleDown"] {
        if let Some(rules) = spec["behavior"].field(direction) {
            scaling_rules(rules, &at.child(direction), errors);
        }
    }
}

fn reference(reference: &Value, may_be_core: bool, path: &Path<'_>, errors: &mut Errors) {
    for field in ["kind", "name"] {
        let (at, text) = (path.child(field), reference.text(field));
        if text.is_empty() {
            errors.required(&at, "");
        } else {
            check(errors, &at, text, names::path_segment(text));
        }
    }
    let version = reference.text("apiVersion");
    let at = path.child("apiVersion");
    match version.matches('/').count() {
        0 if may_be_core => {}
        1 if may_be_core || !version.starts_with('/') => {}
        0 | 1 => errors.invalid(&at, version, "apiVersion must specify API group"),
        _ => errors.invalid(
            &at,
            version,
            format!("unexpected GroupVersion string: {version}"),
        ),
    }
}

fn metric(metric: &Value, path: &Path<'_>, errors: &mut Errors) {
    let kind = metric.text("type");
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric source type");
    }
    if !TYPES.contains(&kind) {
        errors.not_supported(&path.child("type"), kind, &TYPES);
    }
    let present: Vec<&str> = SOURCES
        .iter()
        .map(|(_, field)| *field)
        .filter(|field| metric.has(field))
        .collect();
    if let Some(field) = present.first() {
        source(field, &metric[*field], &path.child(field), errors);
    }
    let expected = SOURCES
        .iter()
        .find(|(other, _)| *other == kind)
        .map(|(_, field)| *field);
    match expected {
        Some(field) if !metric.has(field) => errors.required(
            &path.child(field),
            "must populate information for the given metric source",
        ),
        Some(_) => {}
        None => errors.not_supported(&path.child("type"), kind, &TYPES),
    }
    if present.len() != 1 {
        for field in present.iter().filter(|field| Some(**field) != expected) {
            errors.forbidden(
                &path.child(field),
                "must populate the given metric source only",
            );
        }
    }
}

fn source(kind: &str, source: &Value, path: &Path<'_>, errors: &mut Errors) {
    match kind {
        "resource" | "containerResource" => {
            if source.text("name").is_empty() {
                errors.required(&path.child("name"), "must specify a resource name");
            } else if kind == "containerResource" {
                let name = source.text("name");
                resources::container_name(errors, &path.child("name"), name);
            }
            if kind == "containerResource" {
                let (at, container) = (path.child("container"), source.text("container"));
                if container.is_empty() {
                    errors.required(&at, "must specify a container");
                } else {
                    check(errors, &at, container, names::dns_label(container));
                }
            }
        }
        _ => {
            if kind == "object" {
                let object = &source["describedObject"];
                reference(object, true, &path.child("describedObject"), errors);
            }
            let (at, name) = (path.child("metric"), source["metric"].text("name"));
            if name.is_empty() {
                errors.required(&at.child("name"), "must specify a metric name");
            } else {
                check(errors, &at.child("name"), name, names::path_segment(name));
            }
        }
    }
    let (wanted, at) = (&source["target"], path.child("target"));
    target(wanted, &at, errors);
    let has = |field: &str| wanted.has(field);
    match kind {
        "object" if !has("value") && !has("averageValue") => errors.required(
            &at.child("averageValue"),
            "must set either a target value or averageValue",
        ),
        "external" if !has("value") && !has("averageValue") => errors.required(
            &at.child("averageValue"),
            "must set either a target value for metric or a per-pod target",
        ),
        "external" if has("value") && has("averageValue") => errors.forbidden(
            &at.child("value"),
            "may not set both a target value for metric and a per-pod target",
        ),
        "pods" if !has("averageValue") => errors.required(
            &at.child("averageValue"),
            "must specify a positive target averageValue",
        ),
        "resource" | "containerResource" => {
            match (has("averageUtilization"), has("averageValue")) {
                (false, false) => errors.required(
                    &at.child("averageUtilization"),
                    "must set either a target raw value or a target utilization",
                ),
                (true, true) => errors.forbidden(
                    &at.child("averageValue"),
                    "may not set both a target raw value and a target utilization",
                ),
                _ => {}
            }
        }
        _ => {}
    }
}

fn target(target: &Value, path: &Path<'_>, errors: &mut Errors) {
    let kind = target.text("type");
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric target type");
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        errors.invalid(
            &path.child("type"),
            kind,
            "must be either Utilization, Value, or AverageValue",
        );
    }
    for field in ["value", "averageValue"] {
        let text = target.text(field);
        if Quantity::parse(text).is_ok_and(|amount| amount.nano() <= 0) {
            errors.invalid(&path.child(field), text, "must be positive");
        }
    }
    if let Some(percent) = target.integer("averageUtilization").filter(|p| *p < 1) {
        errors.invalid(
            &path.child("averageUtilization"),
            percent,
            "must be greater than 0",
        );
    }
}

fn scaling_rules(rules: &Value, path: &Path<'_>, errors: &mut Errors) {
    const SELECT: [&str; 3] = ["Disabled", "Max", "Min"];
    if let Some(window) = rules.integer("stabilizationWindowSeconds") {
        let at = path.child("stabilizationWindowSeconds");
        if window < 0 {
            errors.invalid(&at, window, "must be greater than or equal to zero");
        }
        if window > MAX_WINDOW_SECONDS {
            errors.invalid(
                &at,
                window,
                format!("must be less than or equal to {MAX_WINDOW_SECONDS}"),
            );
        }
    }
    let select = rules.text("selectPolicy");
    if rules.has("selectPolicy") && !SELECT.contains(&select) {
        errors.not_supported(&path.child("selectPolicy"), select, &SELECT);
    }
    let at = path.child("policies");
    let policies = rules.items("policies");
    // Defaults replace a missing list, but a list that the client sent empty is an error.
    if policies.is_empty() || errors.sent_empty(&at) {
        errors.required(&at, "must specify at least one Policy");
    }
    for (index, item) in policies.iter().enumerate() {
        policy(item, &at.index(index), errors);
    }
    let tolerance = rules.text("tolerance");
    if Quantity::parse(tolerance).is_ok_and(|tolerance| tolerance.is_negative()) {
        errors.invalid(
            &path.child("tolerance"),
            tolerance,
            "must be greater or equal to zero",
        );
    }
}

fn policy(policy: &Value, path: &Path<'_>, errors: &mut Errors) {
    const KINDS: [&str; 2] = ["Percent", "Pods"];
    let kind = policy.text("type");
    if !KINDS.contains(&kind) {
        errors.not_supported(&path.child("type"), kind, &KINDS);
    }
    for field in ["value", "periodSeconds"] {
        let number = policy.integer(field).unwrap_or(0);
        if number <= 0 {
            errors.invalid(&path.child(field), number, "must be greater than zero");
        }
    }
    let period = policy.integer("periodSeconds").unwrap_or(0);
    if period > MAX_PERIOD_SECONDS {
        errors.invalid(
            &path.child("periodSeconds"),
            period,
            format!("must be less than or equal to {MAX_PERIOD_SECONDS}"),
        );
    }
}
