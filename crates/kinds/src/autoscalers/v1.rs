//! autoscaling/v1: the same autoscalers, with CPU usage as the only target (`pkg/apis/autoscaling/v1/conversion.go`).
//!
//! Other metrics, measured values, conditions and behavior are in annotations, which only this version shows. The annotations have
//! kube-apiserver's form, with its names and order of fields.

use jiff::Timestamp;
use mullion_kube_text::field::Errors;
use mullion_schema::tree::{Tree, object_at, set_default};
use serde_json::{Map, Value, json};

use super::{Autoscalers, CPU_TARGET, cpu_metric};
use crate::{Column, Conversion, Kind, Printing, podspec::internal, request::Ctx};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
/// Annotations that v2beta2 wrote, which are removed like the others.
const TOLERANCES: [&str; 2] = [
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

/// The behaviour of autoscaling/v1 horizontalpodautoscalers.
pub(crate) struct AutoscalersV1;

impl Kind for AutoscalersV1 {
    fn annotations_of_fields(&self) -> &'static [&'static str] {
        &[METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR]
    }

    fn default(&self, object: &mut Value) {
        if let Some(root) = object.as_object_mut() {
            set_default(object_at(root, "spec"), "minReplicas", 1);
        }
        // kube-apiserver decodes v1 into its internal version, so the defaults of that conversion are visible too.
        to_v2(object);
        to_v1(object);
    }

    /// Removes the parts of the status that are in annotations; the handler removes the rest.
    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        let annotations = object["metadata"].get_mut("annotations");
        if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
            annotations.remove(CURRENT_METRICS);
            annotations.remove(CONDITIONS);
        }
    }

    fn validate(&self, ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        Autoscalers.validate(ctx, &in_v2(object), errors);
    }

    fn validate_creation(&self, ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        Autoscalers.validate_creation(ctx, object, errors);
    }

    fn validate_update(&self, ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        Autoscalers.validate_update(ctx, object, old, errors);
    }

    fn validate_status(&self, ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        Autoscalers.validate_status(ctx, object, old, errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn conversion(&self) -> Option<&dyn Conversion> {
        Some(self)
    }
}

impl Printing for AutoscalersV1 {
    fn columns(&self) -> &[Column] {
        Autoscalers.columns()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        Autoscalers.cells(&in_v2(object), now)
    }
}

impl Conversion for AutoscalersV1 {
    fn to_storage(&self, object: &mut Value) {
        to_v2(object);
    }

    fn to_served(&self, object: &mut Value) {
        to_v1(object);
    }
}

/// Removes the annotations of v1, which no other version shows.
pub(super) fn drop_annotations(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let Some(annotations) = metadata
        .get_mut("annotations")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    let before = annotations.len();
    for annotation in [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR]
        .into_iter()
        .chain(TOLERANCES)
    {
        annotations.remove(annotation);
    }
    if annotations.is_empty() && before > 0 {
        metadata.remove("annotations");
    }
}

fn in_v2(object: &Value) -> Value {
    let mut copy = object.clone();
    to_v2(&mut copy);
    copy
}

fn is_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource" && metric["resource"]["name"] == "cpu"
}

fn to_v1(object: &mut Value) {
    let (metrics, behavior) = (
        take(object, "spec", "metrics"),
        take(object, "spec", "behavior"),
    );
    let (measured, conditions) = (
        take(object, "status", "currentMetrics"),
        take(object, "status", "conditions"),
    );
    let metrics = metrics.as_array().map_or(&[][..], Vec::as_slice);
    let percents = metrics
        .iter()
        .filter(|metric| is_cpu(metric))
        .filter_map(|metric| metric["resource"]["target"].integer("averageUtilization"));
    // kube-apiserver's conversion takes the first target, but the last measured value.
    if let Some(percent) = percents.into_iter().next() {
        object["spec"]["targetCPUUtilizationPercentage"] = percent.into();
    }
    let others: Vec<String> = metrics
        .iter()
        .filter(|metric| {
            !(is_cpu(metric) && metric["resource"]["target"].has("averageUtilization"))
        })
        .map(|metric| metric_text(metric, &SPEC))
        .collect();
    let measured = measured.as_array().map_or(&[][..], Vec::as_slice);
    let used = measured
        .iter()
        .filter(|metric| is_cpu(metric))
        .filter_map(|metric| metric["resource"]["current"].integer("averageUtilization"))
        .next_back();
    if let Some(percent) = used {
        object["status"]["currentCPUUtilizationPercentage"] = percent.into();
    }
    let status = object["status"].as_object_mut();
    // v1 always has these two numbers.
    if let Some(status) = status {
        set_default(status, "currentReplicas", 0);
        set_default(status, "desiredReplicas", 0);
    }
    annotate(object, METRICS, others);
    let measured = measured
        .iter()
        .map(|metric| metric_text(metric, &STATUS))
        .collect();
    annotate(object, CURRENT_METRICS, measured);
    let conditions = conditions.as_array().map_or(&[][..], Vec::as_slice);
    annotate(
        object,
        CONDITIONS,
        conditions.iter().map(condition_text).collect(),
    );
    if behavior.is_object() {
        object["metadata"]["annotations"][BEHAVIOR] =
            internal::compact("HorizontalPodAutoscalerBehavior", &behavior).into();
    }
}

fn take(object: &mut Value, part: &str, field: &str) -> Value {
    object
        .get_mut(part)
        .and_then(Value::as_object_mut)
        .and_then(|part| part.remove(field))
        .unwrap_or_default()
}

fn annotate(object: &mut Value, annotation: &str, items: Vec<String>) {
    if !items.is_empty() {
        object["metadata"]["annotations"][annotation] = format!("[{}]", items.join(",")).into();
    }
}

fn to_v2(object: &mut Value) {
    let read = |annotation: &str| {
        let text = object["metadata"]["annotations"].text(annotation);
        serde_json::from_str::<Value>(text).ok()
    };
    let (others, measured) = (read(METRICS), read(CURRENT_METRICS));
    let (conditions, behavior) = (read(CONDITIONS), read(BEHAVIOR));
    drop_annotations(object);
    let mut metrics = Vec::new();
    if let Some(percent) = take(object, "spec", "targetCPUUtilizationPercentage").as_i64() {
        metrics.push(cpu_metric(percent));
    }
    metrics.extend(list(others).iter().map(|metric| metric_tree(metric, &SPEC)));
    if metrics.is_empty() {
        metrics.push(cpu_metric(CPU_TARGET));
    }
    object["spec"]["metrics"] = metrics.into();
    if let Some(behavior) = behavior.filter(Value::is_object) {
        object["spec"]["behavior"] = lower_names(&behavior);
    }
    let used = take(object, "status", "currentCPUUtilizationPercentage");
    let measured = list(measured);
    if !measured.is_empty() {
        let items: Vec<Value> = measured
            .iter()
            .map(|metric| metric_tree(metric, &STATUS))
            .collect();
        object["status"]["currentMetrics"] = items.into();
    } else if let Some(percent) = used.as_i64() {
        object["status"]["currentMetrics"] = json!([{
            // v1 has no amount, and v2 prints an amount that is not set as 0.
            "type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent, "averageValue": "0"}},
        }]);
    }
    let conditions = list(conditions);
    if !conditions.is_empty() {
        object["status"]["conditions"] = conditions.into();
    }
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// Converts field names of Go's internal type, such as `ScaleUp`, to those of the API.
fn lower_names(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let lower = |key: &str| key[..1].to_lowercase() + &key[1..];
            let fields: Map<String, Value> = map
                .iter()
                // The annotation is a client's text, so a key may be empty or begin with a letter of several bytes.
                .filter(|(key, value)| !value.is_null() && key.is_char_boundary(1))
                .map(|(key, value)| (lower(key), lower_names(value)))
                .collect();
            fields.into()
        }
        Value::Array(items) => items.iter().map(lower_names).collect(),
        scalar => scalar.clone(),
    }
}

/// A field of a metric in an annotation: its name, its path in v2, and its form if it is not set.
type Field = (&'static str, &'static [&'static str], Absent);

#[derive(Clone, Copy, PartialEq)]
enum Absent {
    Omitted,
    EmptyText,
    ZeroAmount,
}
use Absent::{EmptyText, Omitted, ZeroAmount};

/// The form of metrics in annotations: the metric sources in kube-apiserver's order, each with its fields.
struct Shape {
    sources: [(&'static str, &'static [Field]); 5],
    /// The field of v2 that contains the amounts.
    amounts: &'static str,
}

const SPEC: Shape = Shape {
    amounts: "target",
    sources: [
        (
            "object",
            &[
                ("target", &["describedObject"], Omitted),
                ("metricName", &["metric", "name"], EmptyText),
                ("targetValue", &["target", "value"], ZeroAmount),
                ("selector", &["metric", "selector"], Omitted),
                ("averageValue", &["target", "averageValue"], Omitted),
            ],
        ),
        (
            "pods",
            &[
                ("metricName", &["metric", "name"], EmptyText),
                (
                    "targetAverageValue",
                    &["target", "averageValue"],
                    ZeroAmount,
                ),
                ("selector", &["metric", "selector"], Omitted),
            ],
        ),
        (
            "resource",
            &[
                ("name", &["name"], EmptyText),
                (
                    "targetAverageUtilization",
                    &["target", "averageUtilization"],
                    Omitted,
                ),
                ("targetAverageValue", &["target", "averageValue"], Omitted),
            ],
        ),
        (
            "containerResource",
            &[
                ("name", &["name"], EmptyText),
                (
                    "targetAverageUtilization",
                    &["target", "averageUtilization"],
                    Omitted,
                ),
                ("targetAverageValue", &["target", "averageValue"], Omitted),
                ("container", &["container"], EmptyText),
            ],
        ),
        (
            "external",
            &[
                ("metricName", &["metric", "name"], EmptyText),
                ("metricSelector", &["metric", "selector"], Omitted),
                ("targetValue", &["target", "value"], Omitted),
                ("targetAverageValue", &["target", "averageValue"], Omitted),
            ],
        ),
    ],
};

const STATUS: Shape = Shape {
    amounts: "current",
    sources: [
        (
            "object",
            &[
                ("target", &["describedObject"], Omitted),
                ("metricName", &["metric", "name"], EmptyText),
                ("currentValue", &["current", "value"], ZeroAmount),
                ("selector", &["metric", "selector"], Omitted),
                ("averageValue", &["current", "averageValue"], Omitted),
            ],
        ),
        (
            "pods",
            &[
                ("metricName", &["metric", "name"], EmptyText),
                (
                    "currentAverageValue",
                    &["current", "averageValue"],
                    ZeroAmount,
                ),
                ("selector", &["metric", "selector"], Omitted),
            ],
        ),
        (
            "resource",
            &[
                ("name", &["name"], EmptyText),
                (
                    "currentAverageUtilization",
                    &["current", "averageUtilization"],
                    Omitted,
                ),
                (
                    "currentAverageValue",
                    &["current", "averageValue"],
                    ZeroAmount,
                ),
            ],
        ),
        (
            "containerResource",
            &[
                ("name", &["name"], EmptyText),
                (
                    "currentAverageUtilization",
                    &["current", "averageUtilization"],
                    Omitted,
                ),
                (
                    "currentAverageValue",
                    &["current", "averageValue"],
                    ZeroAmount,
                ),
                ("container", &["container"], EmptyText),
            ],
        ),
        (
            "external",
            &[
                ("metricName", &["metric", "name"], EmptyText),
                ("metricSelector", &["metric", "selector"], Omitted),
                ("currentValue", &["current", "value"], ZeroAmount),
                ("currentAverageValue", &["current", "averageValue"], Omitted),
            ],
        ),
    ],
};

/// Converts a metric from v2 to the text in the annotation.
fn metric_text(metric: &Value, shape: &Shape) -> String {
    let mut parts = vec![format!("\"type\":{}", metric["type"])];
    for (source, fields) in &shape.sources {
        if !metric.has(source) {
            continue;
        }
        let fields: Vec<String> = fields
            .iter()
            .filter_map(|(name, path, absent)| {
                let value = path
                    .iter()
                    .try_fold(&metric[*source], |value, step| value.field(step));
                let text = match (value, absent) {
                    (None, Omitted) => return None,
                    (None, EmptyText) => "\"\"".to_owned(),
                    (None, ZeroAmount) => "\"0\"".to_owned(),
                    (Some(value), _) if path.last() == Some(&"selector") => {
                        internal::label_selector(value)
                    }
                    (Some(value), _) if path == &["describedObject"] => reference_text(value),
                    (Some(value), _) => value.to_string(),
                };
                Some(format!("\"{name}\":{text}"))
            })
            .collect();
        parts.push(format!("\"{source}\":{{{}}}", fields.join(",")));
    }
    format!("{{{}}}", parts.join(","))
}

fn reference_text(reference: &Value) -> String {
    let mut fields = vec![
        format!("\"kind\":{}", Value::from(reference.text("kind"))),
        format!("\"name\":{}", Value::from(reference.text("name"))),
    ];
    if reference.has("apiVersion") {
        fields.push(format!("\"apiVersion\":{}", reference["apiVersion"]));
    }
    format!("{{{}}}", fields.join(","))
}

fn condition_text(condition: &Value) -> String {
    let mut fields = vec![
        format!("\"type\":{}", condition["type"]),
        format!("\"status\":{}", condition["status"]),
        format!("\"lastTransitionTime\":{}", condition["lastTransitionTime"]),
    ];
    for field in ["reason", "message"] {
        if !condition.text(field).is_empty() {
            fields.push(format!("\"{field}\":{}", condition[field]));
        }
    }
    format!("{{{}}}", fields.join(","))
}

/// Converts a metric from the annotation to v2.
fn metric_tree(metric: &Value, shape: &Shape) -> Value {
    let mut tree = json!({"type": metric["type"]});
    for (source, fields) in &shape.sources {
        let Some(written) = metric.field(source) else {
            continue;
        };
        let mut into = Value::Object(Map::new());
        for (name, path, _) in *fields {
            let Some(value) = written.field(name) else {
                continue;
            };
            let mut place = &mut into;
            for step in *path {
                if !place.is_object() {
                    *place = Value::Object(Map::new());
                }
                place = &mut place[*step];
            }
            *place = value.clone();
        }
        if shape.amounts == "target" {
            let target = &mut into["target"];
            let kind = match *source {
                "object" if !target.has("averageValue") => "Value",
                "external" if target.has("value") => "Value",
                "resource" | "containerResource" if target.has("averageUtilization") => {
                    "Utilization"
                }
                _ => "AverageValue",
            };
            target["type"] = kind.into();
        }
        tree[*source] = into;
    }
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Value {
        json!({
            "metadata": {"name": "x"},
            "spec": {
                "minReplicas": 1,
                "metrics": [
                    cpu_metric(60),
                    {"type": "Pods", "pods": {"metric": {"name": "m", "selector": {"matchLabels": {"a": "b"}}}, "target": {"type": "AverageValue", "averageValue": "5"}}},
                    {"type": "Object", "object": {"describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"}, "metric": {"name": "m"}, "target": {"type": "Value", "value": "3"}}},
                ],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 10, "selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}},
            },
            "status": {"currentReplicas": 0, "desiredReplicas": 0, "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z"}]},
        })
    }

    #[test]
    fn what_v1_has_no_field_for_survives_in_annotations() {
        let mut object = full();
        to_v1(&mut object);
        assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 60);
        assert_eq!(
            object["metadata"]["annotations"][METRICS],
            r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"5","selector":{"matchLabels":{"a":"b"}}}},{"type":"Object","object":{"target":{"kind":"Service","name":"s","apiVersion":"v1"},"metricName":"m","targetValue":"3"}}]"#
        );
        to_v2(&mut object);
        assert_eq!(object, full());
    }

    #[test]
    fn the_first_percentage_of_the_cpu_is_the_target() {
        let amount = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "300m"}}});
        let mut object = json!({"metadata": {}, "spec": {"metrics": [amount, cpu_metric(70), cpu_metric(80)]}, "status": {}});
        to_v1(&mut object);
        assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 70);
        assert_eq!(
            object["metadata"]["annotations"][METRICS],
            r#"[{"type":"Resource","resource":{"name":"cpu","targetAverageValue":"300m"}}]"#
        );
    }

    #[test]
    fn without_a_target_the_cpu_s_default_is_meant() {
        let mut object = json!({"metadata": {"annotations": {(METRICS): "no json"}}, "spec": {}});
        to_v2(&mut object);
        assert_eq!(object["spec"]["metrics"], json!([cpu_metric(80)]));
        assert!(object["metadata"].get("annotations").is_none());
    }
}
