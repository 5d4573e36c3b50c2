//! PodDisruptionBudgets: validation and table columns (`pkg/apis/policy`). `http/subresource/eviction.rs` counts evictions against them.

use jiff::Timestamp;
use mullion_kube_text::field::{ErrorType, Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Check, Column, Kind, podspec::internal, print, workloads};
use crate::{
    Printing,
    fields::{
        self, All, Code, Conditions, Field, NOT_NEGATIVE, OneOf, Rule, Selector, always, set,
    },
    request::Ctx,
};

/// The behaviour of policy/v1 poddisruptionbudgets.
pub(super) struct PodDisruptionBudgets;

const BOUND: Rule = All(&[
    Code(workloads::int_or_percent),
    Code(workloads::at_most_all),
]);
const SPEC: &[Field] = &[
    set("minAvailable", BOUND),
    set("maxUnavailable", BOUND),
    always("selector", Selector),
    set(
        "unhealthyPodEvictionPolicy",
        OneOf(&["AlwaysAllow", "IfHealthyBudget"]),
    ),
];
const STATUS: &[Field] = &[
    always("conditions", Conditions),
    set("disruptionsAllowed", NOT_NEGATIVE),
    set("currentHealthy", NOT_NEGATIVE),
    set("desiredHealthy", NOT_NEGATIVE),
    set("expectedPods", NOT_NEGATIVE),
];
const COLUMNS: [Column; 5] = [
    print::NAME,
    print::column("Min Available"),
    print::column("Max Unavailable"),
    print::typed("Allowed Disruptions", "integer"),
    print::AGE,
];

impl Kind for PodDisruptionBudgets {
    fn creation_checks(&self) -> &'static [Check] {
        // ValidatePodDisruptionBudget does not look at metadata.
        &[Check::Object]
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[Check::Object, Check::Change]
    }

    fn status_checks(&self) -> &'static [Check] {
        &[Check::Change]
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        if spec.has("minAvailable") && spec.has("maxUnavailable") {
            let text = internal::compact("PodDisruptionBudgetSpec", spec);
            errors.with_text(
                ErrorType::Invalid,
                &path,
                text,
                "minAvailable and maxUnavailable cannot be both set",
            );
        }
        fields::validate(SPEC, spec, &path, errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, _: &Value, errors: &mut Errors) {
        fields::validate(STATUS, &object["status"], &Path::new("status"), errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for PodDisruptionBudgets {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let bound = |field: &str| match object["spec"].field(field) {
            Some(Value::String(text)) => text.clone(),
            Some(number) => number.to_string(),
            None => "N/A".to_owned(),
        };
        vec![
            print::name(object),
            bound("minAvailable").into(),
            bound("maxUnavailable").into(),
            object["status"]
                .integer("disruptionsAllowed")
                .unwrap_or(0)
                .into(),
            print::age(object, now),
        ]
    }
}
