//! core/v1 Namespace: created in phase Active with the finalizer `kubernetes`, which `/finalize` removes when the namespace is empty.

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{check, metadata},
};
use mullion_schema::tree::{Tree, object_at, set_zero};
use serde_json::{Value, json};

use super::{
    Check, Column, Kind,
    print::{AGE, NAME, age, column, name},
};
use crate::{Deletion, FieldSelection, Printing, request::Ctx};

/// The finalizer that every namespace gets when it is created.
pub(crate) const FINALIZER: &str = "kubernetes";
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// core/v1 Namespace.
pub(crate) struct Namespace;

impl Kind for Namespace {
    fn default(&self, object: &mut Value) {
        label_with_name(object);
        if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
            set_zero(status, "phase", "Active");
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        // The defaults were set before a name was generated, hence the label again. kube-apiserver sets it after validation, so an invalid
        // generated name is not also reported as the label's value.
        if names::dns_label(object["metadata"].text("name")).is_empty() {
            label_with_name(object);
        }
        object["status"] = json!({"phase": "Active"});
        let Some(root) = object.as_object_mut() else {
            return;
        };
        let finalizers = object_at(root, "spec")
            .entry("finalizers")
            .or_insert(Value::Null);
        match finalizers {
            Value::Array(list) if list.iter().any(|finalizer| finalizer == FINALIZER) => {}
            Value::Array(list) => list.push(FINALIZER.into()),
            absent => *absent = json!([FINALIZER]),
        }
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        // Only `/finalize` changes the finalizers.
        keep(object, old, "spec", "finalizers");
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        spec_finalizers(errors, object);
    }

    fn update_checks(&self, subresource: &str) -> &'static [Check] {
        if subresource == "finalize" {
            &[Check::MetadataChange, Check::Change]
        } else {
            &[Check::Metadata, Check::Object, Check::MetadataChange]
        }
    }

    fn validate_part(
        &self,
        _ctx: &Ctx<'_>,
        _subresource: &str,
        object: &Value,
        _old: &Value,
        errors: &mut Errors,
    ) {
        let path = Path::new("spec");
        let path = path.child("finalizers");
        for (index, finalizer) in finalizers(object).enumerate() {
            spec_finalizer(errors, &path.index(index), finalizer);
        }
    }

    fn validate_status(&self, _ctx: &Ctx<'_>, object: &Value, _old: &Value, errors: &mut Errors) {
        let path = Path::new("status");
        // kube-apiserver writes this path with a capital letter.
        let path = path.child("Phase");
        let phase = object["status"].text("phase");
        if object["metadata"].has("deletionTimestamp") {
            if phase != "Terminating" {
                errors.invalid(
                    &path,
                    phase,
                    "may only be 'Terminating' if `deletionTimestamp` is not empty",
                );
            }
        } else if phase != "Active" {
            errors.invalid(
                &path,
                phase,
                "may only be 'Active' if `deletionTimestamp` is empty",
            );
        }
    }

    fn prepare_part(&self, _ctx: &Ctx<'_>, _subresource: &str, object: &mut Value, old: &Value) {
        object["status"] = old["status"].clone();
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }

    fn deletion(&self) -> Option<&dyn Deletion> {
        Some(self)
    }
}

impl Printing for Namespace {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Status"), AGE];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            object["status"].text("phase").into(),
            age(object, now),
        ]
    }
}

impl FieldSelection for Namespace {
    fn selectable_fields(&self) -> &[&'static str] {
        &["status.phase"]
    }

    fn selectable_value(&self, object: &Value, _field: &str) -> String {
        object["status"].text("phase").to_owned()
    }
}

impl Deletion for Namespace {
    fn holds_deletion(&self, object: &Value) -> bool {
        !object["spec"].items("finalizers").is_empty()
    }

    fn prepare_delete(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        object["status"]["phase"] = "Terminating".into();
        // A namespace is deleted when its content is gone, not after a grace period.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("deletionGracePeriodSeconds");
        }
    }
}

fn label_with_name(object: &mut Value) {
    let name = object["metadata"].text("name").to_owned();
    if name.is_empty() {
        return;
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        object_at(metadata, "labels").insert(NAME_LABEL.to_owned(), name.into());
    }
}

/// Restores one field of the stored object, whatever the client sent.
fn keep(object: &mut Value, old: &Value, part: &str, field: &str) {
    match old[part].field(field) {
        Some(value) => object[part][field] = value.clone(),
        None => {
            object[part]
                .as_object_mut()
                .and_then(|part| part.remove(field));
        }
    }
}

/// Validates the finalizers in `spec`: each is the standard one, or has a domain.
pub(crate) fn spec_finalizers(errors: &mut Errors, object: &Value) {
    let path = Path::new("spec");
    let path = path.child("finalizers");
    for finalizer in finalizers(object) {
        spec_finalizer(errors, &path, finalizer);
    }
}

fn finalizers(namespace: &Value) -> impl Iterator<Item = &str> {
    let all = namespace["spec"].items("finalizers").iter();
    all.filter_map(Value::as_str)
}

fn spec_finalizer(errors: &mut Errors, path: &Path<'_>, finalizer: &str) {
    check(errors, path, finalizer, names::qualified_name(finalizer));
    metadata::kube_finalizer(errors, path, finalizer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finalizer_without_a_domain_must_be_a_standard_one() {
        let mut errors = Errors::default();
        spec_finalizers(
            &mut errors,
            &json!({"spec": {"finalizers": ["kubernetes", "example.com/f", "foo"]}}),
        );
        let bodies: Vec<String> = errors.0.iter().map(|error| error.body()).collect();
        assert_eq!(
            bodies,
            [
                r#"Invalid value: "foo": name is neither a standard finalizer name nor is it fully qualified"#
            ]
        );
    }

    #[test]
    fn the_name_label_cannot_be_changed() {
        let mut namespace =
            json!({"metadata": {"name": "a", "labels": {"kubernetes.io/metadata.name": "b"}}});
        Namespace.default(&mut namespace);
        assert_eq!(
            namespace["metadata"]["labels"],
            json!({"kubernetes.io/metadata.name": "a"})
        );
    }
}
