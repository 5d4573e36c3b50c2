//! core/v1 ReplicationController: like a ReplicaSet, with a plain map as its selector (`pkg/apis/core/validation`).

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    validation::selector::Selector,
};
use mullion_schema::tree::{Tree, object_at, set_default};
use serde_json::Value;

use super::{
    Column, Kind, podspec, print,
    workloads::{self, Owner},
};
use crate::{FieldSelection, Printing, request::Ctx};

/// core/v1 ReplicationController.
pub(super) struct ReplicationController;

const OWNER: Owner = Owner {
    selector_of: "replication controller",
    deadline_in: "ReplicationController",
};
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

impl Kind for ReplicationController {
    /// Sets the defaults; selector and labels default to the labels of the template.
    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        let spec = object_at(root, "spec");
        set_default(spec, "replicas", 1);
        // Without a template there are no labels that selector and labels could default to.
        if !spec.get("template").is_some_and(Value::is_object) {
            return;
        }
        podspec::defaults::template(&mut spec["template"]);
        let labels = spec["template"]["metadata"]["labels"].clone();
        if labels.as_object().is_none_or(serde_json::Map::is_empty) {
            return;
        }
        let unset = |owner: &Value, field: &str| owner.entries(field).next().is_none();
        if unset(&object["spec"], "selector") {
            object["spec"]["selector"] = labels.clone();
        }
        if unset(&object["metadata"], "labels") {
            object["metadata"]["labels"] = labels;
        }
    }

    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        if let Some(spec) = object.pointer_mut("/spec/template/spec") {
            podspec::prepare::drop_disabled_spec(spec);
        }
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, _: &Value) {
        if let Some(spec) = object.pointer_mut("/spec/template/spec") {
            podspec::prepare::drop_disabled_spec(spec);
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        workloads::counts(spec, &["minReadySeconds"], &path, errors);
        let selector = spec["selector"].as_object().filter(|map| !map.is_empty());
        if selector.is_none() {
            errors.required(&path.child("selector"), "");
        }
        workloads::counts(spec, &["replicas"], &path, errors);
        let at = path.child("template");
        let Some(template) = spec.field("template") else {
            return errors.required(&at, "");
        };
        if let Some(selector) = selector {
            workloads::selected(template, &Selector::from_labels(selector), &at, errors);
        }
        workloads::template_of(template, &OWNER, &at, errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, _: &Value, errors: &mut Errors) {
        let (status, path) = (&object["status"], Path::new("status"));
        let counts = [
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
        ];
        workloads::counts(status, &counts, &path, errors);
        let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
        workloads::parts_of_replicas(status, &parts, "readyReplicas", errors);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        if workloads::is_new_generation(object, old) {
            // For an update kube-apiserver swaps the two, and warns about the template that was stored.
            podspec::warnings::of_workload(old.unwrap_or(object), old.is_none())
        } else {
            Vec::new()
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }
}

impl Printing for ReplicationController {
    fn columns(&self) -> &[Column] {
        &COLUMNS
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
        cells.extend(workloads::container_cells(&spec["template"]["spec"]));
        cells.push(print::labels(spec["selector"].as_object()).into());
        cells
    }
}

impl FieldSelection for ReplicationController {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_update_warns_about_the_template_before() {
        let controller = |generation: i64, secrets: Value| json!({"metadata": {"name": "a", "generation": generation}, "spec": {"template": {"spec": {"imagePullSecrets": secrets}}}});
        let (wrong, right) = (controller(1, json!([{}])), controller(2, json!([])));
        let warning = r#"spec.template.spec.imagePullSecrets[0].name: invalid empty name """#;
        let warnings = |new: &Value, old: &Value| ReplicationController.warnings(new, Some(old));
        assert_eq!(warnings(&right, &wrong), [warning]);
        assert_eq!(warnings(&wrong, &right), [""; 0]);
        assert_eq!(warnings(&wrong, &wrong), [""; 0]);
    }
}
