//! Validates the spec of an autoscaler in the form of v2 (`pkg/apis/autoscaling/validation`).

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    quantity::Quantity,
    validation::resources,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use crate::fields::{
    self, All, Among, Anything, AtLeast, AtMost, Code, Each, Field, Fields, Format, OneOf, Rule,
    Text, always, required, set,
};

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
const NO_RESOURCE: &str = "must specify a resource name";
const POSITIVE: Rule = AtLeast(1, "must be greater than zero");
const SPEC: &[Field] = &[required(
    "maxReplicas",
    AtLeast(1, "must be greater than or equal to 1"),
)
.because("must be set and greater than 0")];
const REFERENCE: &[Field] = &[
    required("kind", Format(names::path_segment)),
    required("name", Format(names::path_segment)),
];
const METRIC: &[Field] = &[
    required("type", Anything).because("must specify a metric source type"),
    always("type", OneOf(&TYPES)),
];
const RESOURCE: &[Field] = &[required("name", Anything).because(NO_RESOURCE)];
const CONTAINER_RESOURCE: &[Field] = &[
    required("name", Text(resources::container_name)).because(NO_RESOURCE),
    required("container", Format(names::dns_label)).because("must specify a container"),
];
const OTHER_SOURCE: &[Field] = &[always("metric", Fields(METRIC_IDENTIFIER))];
const METRIC_IDENTIFIER: &[Field] =
    &[required("name", Format(names::path_segment)).because("must specify a metric name")];
const TARGET: &[Field] = &[
    required("type", Anything).because("must specify a metric target type"),
    always(
        "type",
        Among(
            &["Utilization", "Value", "AverageValue"],
            "must be either Utilization, Value, or AverageValue",
        ),
    ),
    set("value", Text(positive)),
    set("averageValue", Text(positive)),
    set("averageUtilization", AtLeast(1, "must be greater than 0")),
];
const BEHAVIOR: &[Field] = &[
    set("scaleUp", Fields(SCALING_RULES)),
    set("scaleDown", Fields(SCALING_RULES)),
];
const SCALING_RULES: &[Field] = &[
    set(
        "stabilizationWindowSeconds",
        All(&[
            AtLeast(0, "must be greater than or equal to zero"),
            AtMost(3600, "must be less than or equal to 3600"),
        ]),
    ),
    set("selectPolicy", OneOf(&["Disabled", "Max", "Min"])),
    always("policies", All(&[Code(some_policy), Each(POLICY)])),
    set("tolerance", Text(tolerance)),
];
const POLICY: &[Field] = &[
    always("type", OneOf(&["Percent", "Pods"])),
    always("value", POSITIVE),
    always("periodSeconds", POSITIVE),
    always(
        "periodSeconds",
        AtMost(1800, "must be less than or equal to 1800"),
    ),
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
    fields::validate(SPEC, spec, path, errors);
    if fewest.is_some_and(|fewest| most < fewest) {
        let at = path.child("maxReplicas");
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
    fields::validate(BEHAVIOR, &spec["behavior"], &path.child("behavior"), errors);
}

fn reference(reference: &Value, may_be_core: bool, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(REFERENCE, reference, path, errors);
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
    fields::validate(METRIC, metric, path, errors);
    let kind = metric.text("type");
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
    if kind == "object" {
        let object = &source["describedObject"];
        reference(object, true, &path.child("describedObject"), errors);
    }
    let fields = match kind {
        "resource" => RESOURCE,
        "containerResource" => CONTAINER_RESOURCE,
        _ => OTHER_SOURCE,
    };
    fields::validate(fields, source, path, errors);
    let (wanted, at) = (&source["target"], path.child("target"));
    fields::validate(TARGET, wanted, &at, errors);
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

fn positive(errors: &mut Errors, path: &Path<'_>, amount: &str) {
    if Quantity::parse(amount).is_ok_and(|amount| amount.nano() <= 0) {
        errors.invalid(path, amount, "must be positive");
    }
}

fn tolerance(errors: &mut Errors, path: &Path<'_>, amount: &str) {
    if Quantity::parse(amount).is_ok_and(|amount| amount.is_negative()) {
        errors.invalid(path, amount, "must be greater or equal to zero");
    }
}

/// Requires a policy. Defaults replace a missing list, but a list that the client sent empty is an error.
fn some_policy(policies: &Value, path: &Path<'_>, errors: &mut Errors) {
    if policies.as_array().is_none_or(Vec::is_empty) || errors.sent_empty(path) {
        errors.required(path, "must specify at least one Policy");
    }
}
