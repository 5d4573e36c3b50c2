//! scheduling.k8s.io/v1 PriorityClass, and the two classes that every cluster has.

use jiff::Timestamp;
use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::{Tree, set_default};
use serde_json::{Value, json};

use super::{
    Check, Column, Kind,
    print::{AGE, NAME, age, column, name, typed},
};
use crate::{
    Deletion, Printing,
    fields::{self, Field, NonEmpty, OneOf, Rule, set},
    request::Ctx,
};

/// The highest value a class of users may have.
const HIGHEST_USER_VALUE: i64 = 1_000_000_000;
const SYSTEM_PREFIX: &str = "system-";
const SYSTEM_CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
];

/// Returns the classes that every cluster has, to be created when the cluster starts.
pub fn system_classes() -> impl Iterator<Item = Value> {
    SYSTEM_CLASSES.iter().map(|(name, value, description)| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value, "description": description,
        })
    })
}

/// scheduling.k8s.io/v1 PriorityClass.
pub(crate) struct PriorityClass;

/// Whether pods of a priority may evict others.
pub(crate) const PREEMPTION_POLICY: Rule = NonEmpty("", &OneOf(&["PreemptLowerPriority", "Never"]));
const CLASS: &[Field] = &[set("preemptionPolicy", PREEMPTION_POLICY)];

impl Kind for PriorityClass {
    fn default(&self, object: &mut Value) {
        if let Some(root) = object.as_object_mut() {
            set_default(root, "preemptionPolicy", "PreemptLowerPriority");
        }
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let name = object["metadata"].text("name");
        let value = object.integer("value").unwrap_or(0);
        if name.starts_with(SYSTEM_PREFIX) {
            system_class(errors, object, name, value);
        } else if value > HIGHEST_USER_VALUE {
            let detail =
                format!("maximum allowed value of a user defined priority is {HIGHEST_USER_VALUE}");
            errors.forbidden(&Path::new("value"), detail);
        }
        fields::validate(CLASS, object, Path::ROOT, errors);
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[Check::MetadataChange, Check::Change]
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        // Pods copy the value when they are created, so pods of one class would have different priorities.
        if object["value"] != old["value"] {
            errors.forbidden(&Path::new("value"), "may not be changed in an update.");
        }
        fields::immutable(&["preemptionPolicy"], object, old, Path::ROOT, errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn deletion(&self) -> Option<&dyn Deletion> {
        Some(self)
    }
}

impl Printing for PriorityClass {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            typed("Value", "integer"),
            typed("Global-Default", "boolean"),
            AGE,
            column("PreemptionPolicy"),
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            object.integer("value").unwrap_or(0).into(),
            object.flag("globalDefault").into(),
            age(object, now),
            object.text("preemptionPolicy").into(),
        ]
    }
}

impl Deletion for PriorityClass {
    fn refuses_deletion(&self, name: &str) -> Option<&'static str> {
        let is_system = SYSTEM_CLASSES.iter().any(|(known, ..)| *known == name);
        is_system.then_some("this is a system priority class and cannot be deleted")
    }
}

/// Requires a class with a reserved name to equal a system class.
fn system_class(errors: &mut Errors, class: &Value, name: &str, value: i64) {
    let Some((_, expected, _)) = SYSTEM_CLASSES.iter().find(|(known, ..)| *known == name) else {
        return refuse_reserved(
            errors,
            &format!("{name} is not a known system priority class"),
        );
    };
    if value != *expected {
        refuse_reserved(
            errors,
            &format!("value of {name} PriorityClass must be {expected}"),
        );
    } else if class.flag("globalDefault") {
        refuse_reserved(
            errors,
            &format!("globalDefault of {name} PriorityClass must be false"),
        );
    }
}

fn refuse_reserved(errors: &mut Errors, why: &str) {
    let path = Path::new("metadata");
    let detail = format!(
        "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {why}"
    );
    errors.forbidden(&path.child("name"), detail);
}
