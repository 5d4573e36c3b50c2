//! ReplicaSets: defaults, validation, table (`pkg/apis/apps`, `pkg/registry/apps/replicaset`).

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Column, Kind, podspec, print,
    tree::{Tree, object_at, set_default},
    workloads::{self, Owner},
};
use crate::{
    admission::Ctx,
    field::{Errors, Path},
};

/// The behaviour of apps/v1 replicasets.
pub(super) struct ReplicaSets;

const COLUMNS: [Column; 8] = [
    print::NAME,
    print::typed("Desired", "integer"),
    print::typed("Current", "integer"),
    print::typed("Ready", "integer"),
    print::AGE,
    print::wide("Containers"),
    print::wide("Images"),
    print::wide("Selector"),
];

impl Kind for ReplicaSets {
    fn default(&self, object: &mut Value) {
        let Some(object) = object.as_object_mut() else {
            return;
        };
        let spec = object_at(object, "spec");
        set_default(spec, "replicas", 1);
        object_at(spec, "template");
        podspec::defaults::template(&mut spec["template"]);
    }

    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        podspec::prepare::drop_disabled_spec(&mut object["spec"]["template"]["spec"]);
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, _: &Value) {
        podspec::prepare::drop_disabled_spec(&mut object["spec"]["template"]["spec"]);
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        const OWNER: Owner = Owner {
            selector_of: "deployment",
            deadline_in: "ReplicaSet",
        };
        let (spec, path) = (&object["spec"], Path::new("spec"));
        workloads::counts(spec, &["replicas", "minReadySeconds"], &path, errors);
        workloads::selector_and_template(spec, &OWNER, &path, errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        workloads::same_selector(object, old, errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, _: &Value, errors: &mut Errors) {
        let (status, path) = (&object["status"], Path::new("status"));
        let counts = [
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
            "terminatingReplicas",
        ];
        workloads::counts(status, &counts, &path, errors);
        let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
        workloads::at_most(status, &parts, "replicas", "status.replicas", &path, errors);
        workloads::at_most(
            status,
            &["availableReplicas"],
            "readyReplicas",
            "readyReplicas",
            &path,
            errors,
        );
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
        let mut cells = vec![
            print::name(object),
            spec.integer("replicas").unwrap_or(0).into(),
            status.integer("replicas").unwrap_or(0).into(),
            status.integer("readyReplicas").unwrap_or(0).into(),
            print::age(object, now),
        ];
        cells.extend(workloads::wide_cells(spec));
        cells
    }

    fn selectable_fields(&self) -> &[&'static str] {
        &["status.replicas"]
    }

    fn selectable_value(&self, object: &Value, _: &str) -> String {
        object["status"]
            .integer("replicas")
            .unwrap_or(0)
            .to_string()
    }
}
