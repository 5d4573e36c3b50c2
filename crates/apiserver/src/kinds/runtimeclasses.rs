//! node.k8s.io RuntimeClass, v1 and v1beta1 (one shape): handler, overhead and where its pods may run. Admission applies it to pods.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Column, Kind,
    print::{AGE, NAME, age, column, name},
    tree::Tree,
};
use crate::{
    admission::Ctx,
    field::{ErrorType, Errors, Path, go_struct},
    quantity,
    validation::{self, check, metadata, names, resources},
};

/// node.k8s.io RuntimeClass.
pub(crate) struct RuntimeClass;

impl Kind for RuntimeClass {
    fn default(&self, object: &mut Value) {
        if let Some(fixed) = object
            .get_mut("overhead")
            .and_then(|overhead| overhead.get_mut("podFixed"))
        {
            quantity::round_list(fixed);
        }
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let handler = object.text("handler");
        if handler.is_empty() {
            errors.required(&Path::new("handler"), "");
        } else {
            check(
                errors,
                &Path::new("handler"),
                handler,
                names::dns_label(handler),
            );
        }
        // Upstream checks the amounts as the limits of a container and says so in the path.
        let path = Path::new("overhead");
        let path = path.child("limits");
        for (resource, amount) in object["overhead"].entries("podFixed") {
            resources::container_name(errors, &path.key(resource), resource);
            resources::amount(
                errors,
                &path.key(resource),
                resource,
                amount.as_str().unwrap_or(""),
            );
        }
        let path = Path::new("scheduling");
        metadata::labels(
            errors,
            &path.child("nodeSelector"),
            object["scheduling"].get("nodeSelector"),
        );
        tolerations(
            errors,
            &path.child("tolerations"),
            object["scheduling"].items("tolerations"),
        );
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        validation::immutable(
            errors,
            &Path::new("handler"),
            &object["handler"],
            &old["handler"],
        );
    }

    fn columns(&self) -> Option<&[Column]> {
        const COLUMNS: &[Column] = &[NAME, column("Handler"), AGE];
        Some(COLUMNS)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            object.text("handler").into(),
            age(object, now),
        ]
    }
}

fn tolerations(errors: &mut Errors, path: &Path<'_>, tolerations: &[Value]) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = path.index(index);
        let (key, value, effect) = (
            toleration.text("key"),
            toleration.text("value"),
            toleration.text("effect"),
        );
        if !key.is_empty() {
            metadata::label_name(errors, &path.child("key"), key);
        } else if toleration["operator"] != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(&path.child("operator"), toleration.text("operator"), detail);
        }
        if toleration.has("tolerationSeconds") && effect != "NoExecute" {
            errors.invalid(
                &path.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
        match toleration.text("operator") {
            "Equal" | "" => {
                let sentences = names::label_value(value);
                if !sentences.is_empty() {
                    errors.invalid(&path.child("operator"), value, sentences.join(";"));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.with_text(
                    ErrorType::Invalid,
                    &path.child("operator"),
                    internal(toleration),
                    detail,
                );
            }
            other => errors.not_supported(&path.child("operator"), other, &["Equal", "Exists"]),
        }
        if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            errors.not_supported(
                &path.child("effect"),
                effect,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            );
        }
        if tolerations[..index].contains(toleration) {
            errors.with_text(ErrorType::Duplicate, &path, internal(toleration), "");
        }
    }
}

fn internal(toleration: &Value) -> String {
    go_struct(&[
        ("Key", toleration.text("key").into()),
        ("Operator", toleration.text("operator").into()),
        ("Value", toleration.text("value").into()),
        ("Effect", toleration.text("effect").into()),
        ("TolerationSeconds", toleration["tolerationSeconds"].clone()),
    ])
}
