//! DaemonSets: defaults, validation, table columns, and the template generation, which is kept in an annotation (`pkg/apis/apps`).

use std::num::IntErrorKind;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    golang::quote,
    status::Status,
    validation::selector::{Selector, label_selector},
};
use mullion_schema::tree::{Tree, object_at, set_default, set_zero};
use serde_json::{Map, Value};

use super::{
    Column,
    podspec::internal,
    print,
    workloads::{self, Owner, Workload},
};
use crate::fields::{self, Code, Field, NOT_NEGATIVE, always, set};

/// The behaviour of apps/v1 daemonsets.
pub(super) struct DaemonSets;

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
const SPEC: &[Field] = &[
    set("minReadySeconds", NOT_NEGATIVE),
    always("updateStrategy", Code(update_strategy)),
    set("revisionHistoryLimit", NOT_NEGATIVE),
];
const ROLLING_UPDATE: &[Field] = &[
    always("maxUnavailable", Code(workloads::int_or_percent)),
    always("maxSurge", Code(workloads::int_or_percent)),
    always("maxUnavailable", Code(workloads::at_most_all)),
    always("maxSurge", Code(workloads::at_most_all)),
];
const COLUMNS: [Column; 11] = [
    print::NAME,
    print::typed("Desired", "integer"),
    print::typed("Current", "integer"),
    print::typed("Ready", "integer"),
    print::typed("Up-to-date", "integer"),
    print::typed("Available", "integer"),
    print::column("Node Selector"),
    print::AGE,
    print::wide("Containers"),
    print::wide("Images"),
    print::wide("Selector"),
];

impl Workload for DaemonSets {
    fn default_spec(&self, spec: &mut Map<String, Value>) {
        let strategy = object_at(spec, "updateStrategy");
        set_zero(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = object_at(strategy, "rollingUpdate");
            set_default(rolling, "maxUnavailable", 1);
            set_default(rolling, "maxSurge", 0);
        } else if let Some(rolling) = strategy
            .get_mut("rollingUpdate")
            .and_then(Value::as_object_mut)
        {
            // kube-apiserver's internal type has both numbers wherever it has the object.
            set_default(rolling, "maxUnavailable", 0);
            set_default(rolling, "maxSurge", 0);
        }
        set_default(spec, "revisionHistoryLimit", 10);
    }

    /// Adds the annotation with the template generation, which is a field in kube-apiserver's internal type: every object has it, whatever
    /// the client sent.
    fn default_metadata(&self, object: &mut Value) {
        if self.readable(object).is_ok() {
            let generation = template_generation(object);
            set_template_generation(object, generation);
        }
    }

    fn annotations_of_fields(&self) -> &'static [&'static str] {
        &[TEMPLATE_GENERATION]
    }

    fn readable(&self, object: &Value) -> Result<(), Status> {
        let given = object["metadata"]["annotations"].field(TEMPLATE_GENERATION);
        let Some(Err(error)) = given.and_then(Value::as_str).map(str::parse::<i64>) else {
            return Ok(());
        };
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        let text = quote(object["metadata"]["annotations"].text(TEMPLATE_GENERATION));
        Err(Status::bad_request(format!(
            "DaemonSet in version \"v1\" cannot be handled as a DaemonSet: strconv.ParseInt: parsing {text}: {why}"
        )))
    }

    fn prepare(&self, object: &mut Value, old: Option<&Value>) {
        let generation = match old {
            None => template_generation(object).max(1),
            Some(old) => {
                let changed = object["spec"]["template"] != old["spec"]["template"];
                template_generation(old).wrapping_add(i64::from(changed))
            }
        };
        set_template_generation(object, generation);
    }

    /// Restores the template generation, which belongs to the spec in kube-apiserver's internal type.
    fn prepare_status(&self, object: &mut Value, old: &Value) {
        set_template_generation(object, template_generation(old));
    }

    fn validate_spec(&self, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
        const OWNER: Owner = Owner {
            selector_of: "daemonset",
            deadline_in: "DaemonSet",
        };
        let (selector, template) = (&spec["selector"], &spec["template"]);
        let (selector_path, template_path) = (path.child("selector"), path.child("template"));
        label_selector(errors, &selector_path, selector);
        if let Ok(selector) = Selector::from_label_selector(selector) {
            workloads::selected(template, &selector, &template_path, errors);
        }
        if !selector.is_null() {
            workloads::not_empty(selector, &OWNER, &selector_path, errors);
        }
        workloads::template_of(template, &OWNER, &template_path, errors);
        fields::validate(SPEC, spec, path, errors);
    }

    fn validate_status(&self, object: &Value, old: &Value, errors: &mut Errors) {
        let counts = [
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ];
        workloads::counts(&object["status"], &counts, &Path::new("status"), errors);
        workloads::not_decremented(object, old, "collisionCount", errors);
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let count = |field: &str| Value::from(status.integer(field).unwrap_or(0));
        vec![
            print::name(object),
            count("desiredNumberScheduled"),
            count("currentNumberScheduled"),
            count("numberReady"),
            count("updatedNumberScheduled"),
            count("numberAvailable"),
            print::labels(spec["template"]["spec"]["nodeSelector"].as_object()).into(),
            print::age(object, now),
        ]
    }
}

fn template_generation(object: &Value) -> i64 {
    object["metadata"]["annotations"]
        .text(TEMPLATE_GENERATION)
        .parse()
        .unwrap_or(0)
}

fn set_template_generation(object: &mut Value, generation: i64) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let annotations: &mut Map<String, Value> = object_at(metadata, "annotations");
    annotations.insert(TEMPLATE_GENERATION.into(), generation.to_string().into());
}

fn update_strategy(strategy: &Value, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("rollingUpdate");
    match (strategy.text("type"), strategy.field("rollingUpdate")) {
        // kube-apiserver does not look at the other fields of this strategy.
        ("OnDelete", _) => {}
        ("RollingUpdate", None) => errors.required(&at, ""),
        ("RollingUpdate", Some(rolling)) => rolling_update(rolling, &at, errors),
        _ => {
            let text = internal::compact("DaemonSetUpdateStrategy", strategy);
            errors.with_text(
                ErrorType::NotSupported,
                path,
                text,
                r#"supported values: "RollingUpdate", "OnDelete""#,
            );
        }
    }
}

fn rolling_update(rolling: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
    let (unavailable_path, surge_path) = (path.child("maxUnavailable"), path.child("maxSurge"));
    fields::validate(ROLLING_UPDATE, rolling, path, errors);
    match (
        workloads::number(unavailable) != 0,
        workloads::number(surge) != 0,
    ) {
        // The pod of a node is replaced either after the old one ends or before, so only one of the two may be set.
        (true, true) => errors.invalid(
            &surge_path,
            surge.clone(),
            "may not be set when maxUnavailable is non-zero",
        ),
        (false, false) => errors.required(&unavailable_path, "cannot be 0 when maxSurge is 0"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_generation_is_a_number() {
        for (given, why) in [
            ("7", None),
            ("x", Some("invalid syntax")),
            ("", Some("invalid syntax")),
            ("9223372036854775808", Some("value out of range")),
        ] {
            let set = json!({"metadata": {"annotations": {TEMPLATE_GENERATION: given}}});
            let refused = DaemonSets.readable(&set).err();
            let message = refused.map(|status| status.message);
            assert_eq!(message.is_some(), why.is_some(), "{given}: {message:?}");
            if let (Some(message), Some(why)) = (message, why) {
                assert!(
                    message.ends_with(&format!("parsing {given:?}: {why}")),
                    "{message}"
                );
            }
        }
    }
}
