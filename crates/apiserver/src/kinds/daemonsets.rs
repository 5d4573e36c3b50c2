//! DaemonSets: defaults, validation, table, the template generation that lives in an annotation (`pkg/apis/apps`).

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    Column, Kind, podspec,
    podspec::internal,
    print,
    tree::{Tree, object_at, set_default, set_zero},
    workloads,
};
use crate::{
    admission::Ctx,
    field::{ErrorType, Errors, Path},
    validation::selector::{Selector, label_selector},
};

/// The behaviour of apps/v1 daemonsets.
pub(super) struct DaemonSets;

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
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

impl Kind for DaemonSets {
    fn default(&self, object: &mut Value) {
        // The annotation stands for a field of upstream's internal type: it is there in whatever a client sends.
        let generation = template_generation(object);
        set_template_generation(object, generation);
        let Some(object) = object.as_object_mut() else {
            return;
        };
        let spec = object_at(object, "spec");
        let strategy = object_at(spec, "updateStrategy");
        set_zero(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = object_at(strategy, "rollingUpdate");
            set_default(rolling, "maxUnavailable", 1);
            set_default(rolling, "maxSurge", 0);
        }
        set_default(spec, "revisionHistoryLimit", 10);
        object_at(spec, "template");
        podspec::defaults::template(&mut spec["template"]);
    }

    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        let generation = template_generation(object).max(1);
        set_template_generation(object, generation);
        podspec::prepare::drop_disabled_spec(&mut object["spec"]["template"]["spec"]);
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, old: &Value) {
        podspec::prepare::drop_disabled_spec(&mut object["spec"]["template"]["spec"]);
        let changed = object["spec"]["template"] != old["spec"]["template"];
        set_template_generation(object, template_generation(old) + i64::from(changed));
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        let (selector, template) = (&spec["selector"], &spec["template"]);
        let selector_path = path.child("selector");
        label_selector(errors, &selector_path, selector);
        let template_path = path.child("template");
        let labels = template["metadata"].get("labels");
        if Selector::from_label_selector(selector).is_ok_and(|selector| !selector.matches(labels)) {
            let labels = labels.cloned().unwrap_or_default();
            errors.invalid(
                &template_path.child("metadata").child("labels"),
                labels,
                "`selector` does not match template `labels`",
            );
        }
        if !selector.is_null()
            && selector.entries("matchLabels").next().is_none()
            && selector.items("matchExpressions").is_empty()
        {
            let text = internal::label_selector(selector);
            errors.with_text(
                ErrorType::Invalid,
                &selector_path,
                text,
                "empty selector is invalid for daemonset",
            );
        }
        podspec::validate_template(template, &template_path, errors);
        let at = template_path.child("spec");
        if template["spec"].text("restartPolicy") != "Always" {
            errors.not_supported(
                &at.child("restartPolicy"),
                template["spec"].text("restartPolicy"),
                &["Always"],
            );
        }
        if template["spec"].has("activeDeadlineSeconds") {
            errors.forbidden(
                &at.child("activeDeadlineSeconds"),
                "activeDeadlineSeconds in DaemonSet is not Supported",
            );
        }
        workloads::counts(spec, &["minReadySeconds"], &path, errors);
        update_strategy(
            &spec["updateStrategy"],
            &path.child("updateStrategy"),
            errors,
        );
        workloads::counts(spec, &["revisionHistoryLimit"], &path, errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        workloads::same_selector(object, old, errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
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

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        if workloads::template_changed(object, old) {
            podspec::warnings::of_workload(object, old.is_none())
        } else {
            Vec::new()
        }
    }

    fn columns(&self) -> Option<&[Column]> {
        Some(&COLUMNS)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let count = |field: &str| Value::from(status.integer(field).unwrap_or(0));
        let mut cells = vec![
            print::name(object),
            count("desiredNumberScheduled"),
            count("currentNumberScheduled"),
            count("numberReady"),
            count("updatedNumberScheduled"),
            count("numberAvailable"),
            print::labels(spec["template"]["spec"]["nodeSelector"].as_object()).into(),
            print::age(object, now),
        ];
        cells.extend(workloads::wide_cells(spec));
        cells
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
    workloads::int_or_percent(unavailable, &unavailable_path, errors);
    workloads::int_or_percent(surge, &surge_path, errors);
    workloads::at_most_all(unavailable, &unavailable_path, errors);
    workloads::at_most_all(surge, &surge_path, errors);
    match (
        workloads::number(Some(unavailable)) != 0,
        workloads::number(Some(surge)) != 0,
    ) {
        (true, true) => errors.invalid(
            &surge_path,
            surge.clone(),
            "may not be set when maxUnavailable is non-zero",
        ),
        (false, false) => errors.required(&unavailable_path, "cannot be 0 when maxSurge is 0"),
        _ => {}
    }
}
