//! HorizontalPodAutoscalers: defaults and table columns (`pkg/apis/autoscaling`, `pkg/registry/autoscaling`).
//!
//! They are stored as autoscaling/v2. [`v1`] serves the same objects, and keeps in annotations what it has no field for. [`validate`]
//! validates the form of v2.

pub(super) mod v1;
mod validate;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    validation::nonnegative,
};
use mullion_schema::tree::{Tree, object_at, set_default};
use serde_json::{Map, Value, json};

use super::{Column, Kind, print};
use crate::{Printing, request::Ctx};

/// The behaviour of autoscaling/v2 horizontalpodautoscalers.
pub(super) struct Autoscalers;

/// The default target: the percentage of the CPU requests that is used.
const CPU_TARGET: i64 = 80;
/// The number of metrics that the table shows.
const SHOWN: usize = 2;
const COLUMNS: [Column; 7] = [
    print::NAME,
    print::column("Reference"),
    print::column("Targets"),
    print::column("MinPods"),
    print::column("MaxPods"),
    print::column("Replicas"),
    print::AGE,
];

impl Kind for Autoscalers {
    fn default(&self, object: &mut Value) {
        v1::drop_annotations(object);
        let Some(root) = object.as_object_mut() else {
            return;
        };
        let spec = object_at(root, "spec");
        set_default(spec, "minReplicas", 1);
        let no_metrics = spec
            .get("metrics")
            .and_then(Value::as_array)
            .is_none_or(Vec::is_empty);
        if no_metrics {
            spec.insert("metrics".into(), json!([cpu_metric(CPU_TARGET)]));
        }
        if spec.get("behavior").is_some_and(Value::is_object) {
            default_behavior(object_at(spec, "behavior"));
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        validate::spec(&object["spec"], &Path::new("spec"), errors);
    }

    fn validate_creation(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        validate::at_least_one(&object["spec"], &Path::new("spec"), errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        // Scaling to zero is off by default, but autoscalers that were stored with it stay writable.
        if old["spec"].integer("minReplicas") != Some(0) {
            validate::at_least_one(&object["spec"], &Path::new("spec"), errors);
        }
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, _: &Value, errors: &mut Errors) {
        let path = Path::new("status");
        for field in ["currentReplicas", "desiredReplicas"] {
            let count = object["status"].integer(field).unwrap_or(0);
            nonnegative(errors, &path.child(field), count);
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for Autoscalers {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let target = &spec["scaleTargetRef"];
        let fewest = match spec.integer("minReplicas") {
            Some(count) => count.to_string(),
            None => "<unset>".to_owned(),
        };
        vec![
            print::name(object),
            format!("{}/{}", target.text("kind"), target.text("name")).into(),
            targets(spec.items("metrics"), status.items("currentMetrics")).into(),
            fewest.into(),
            spec.integer("maxReplicas").unwrap_or(0).into(),
            status.integer("currentReplicas").unwrap_or(0).into(),
            print::age(object, now),
        ]
    }
}

fn cpu_metric(utilization: i64) -> Value {
    json!({
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": utilization}},
    })
}

/// Sets the defaults for both directions: scaling up doubles or adds 4 pods in 15 seconds, scaling down may remove all pods.
fn default_behavior(behavior: &mut Map<String, Value>) {
    let policy =
        |kind: &str, value: i64| json!({"type": kind, "value": value, "periodSeconds": 15});
    let up = object_at(behavior, "scaleUp");
    set_default(up, "stabilizationWindowSeconds", 0);
    set_default(up, "selectPolicy", "Max");
    set_default(
        up,
        "policies",
        json!([policy("Pods", 4), policy("Percent", 100)]),
    );
    // A missing window of scaling down stays unset, because the controller then uses the one of its flag.
    let down = object_at(behavior, "scaleDown");
    set_default(down, "selectPolicy", "Max");
    set_default(down, "policies", json!([policy("Percent", 100)]));
}

/// Formats the Targets cell: the measured and the wanted values of at most two metrics.
fn targets(metrics: &[Value], measured: &[Value]) -> String {
    if metrics.is_empty() {
        return "<none>".to_owned();
    }
    let shown: Vec<String> = metrics
        .iter()
        .take(SHOWN)
        .enumerate()
        .map(|(index, metric)| target(metric, measured.get(index).unwrap_or(&Value::Null)))
        .collect();
    let text = shown.join(", ");
    match metrics.len().saturating_sub(SHOWN) {
        0 => text,
        more => format!("{text} + {more} more..."),
    }
}

fn target(metric: &Value, measured: &Value) -> String {
    let source = match metric.text("type") {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let (wanted, current) = (&metric[source]["target"], &measured[source]["current"]);
    // A value that is measured in another unit prints as Go's nil.
    let missing = if measured.has(source) {
        "<nil>"
    } else {
        "<unknown>"
    };
    let amount = |of: &Value, field: &str| of[field].as_str().unwrap_or(missing).to_owned();
    let percent = |of: &Value, otherwise: &str| match of.integer("averageUtilization") {
        Some(percent) => format!("{percent}%"),
        None => otherwise.to_owned(),
    };
    let average = wanted.has("averageValue");
    match source {
        "resource" | "containerResource" => {
            let name = metric[source].text("name");
            if average {
                let current = amount(current, "averageValue");
                format!("{name}: {current}/{}", wanted.text("averageValue"))
            } else {
                let current = percent(current, "<unknown>");
                format!("{name}: {current}/{}", percent(wanted, "<auto>"))
            }
        }
        "pods" => format!(
            "{}/{}",
            amount(current, "averageValue"),
            wanted.text("averageValue")
        ),
        _ if average => format!(
            "{}/{} (avg)",
            current["averageValue"].as_str().unwrap_or("<unknown>"),
            wanted.text("averageValue")
        ),
        _ => format!("{}/{}", amount(current, "value"), wanted.text("value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_shows_what_is_measured_and_what_is_wanted() {
        let external = json!({"type": "External", "external": {"target": {"averageValue": "5"}}});
        assert_eq!(target(&external, &Value::Null), "<unknown>/5 (avg)");
        let object = json!({"type": "Object", "object": {"target": {"value": "5"}}});
        let measured = json!({"object": {"current": {"value": "3"}}});
        assert_eq!(target(&object, &measured), "3/5");
        let average = json!({"object": {"current": {"averageValue": "3"}}});
        assert_eq!(target(&object, &average), "<nil>/5");
        assert_eq!(targets(&[], &[]), "<none>");
    }
}
