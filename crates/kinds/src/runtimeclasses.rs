//! node.k8s.io RuntimeClass, v1 and v1beta1 with the same fields: handler, overhead, and nodes that can run its pods. Admission applies it
//! to pods.

use std::collections::HashSet;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path, go_struct},
    names, quantity,
    validation::{self, check, metadata},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Check, Column, Kind, podspec,
    print::{AGE, NAME, age, column, name},
};
use crate::{Printing, request::Ctx};

/// node.k8s.io RuntimeClass.
pub(crate) struct RuntimeClass;

impl Kind for RuntimeClass {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

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
        // kube-apiserver validates the amounts like the limits of a container, and reports that path.
        if let Some(fixed) = object["overhead"].field("podFixed") {
            podspec::validate_overhead(fixed, &Path::new("overhead"), errors);
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

    fn warnings(&self, object: &Value, _: Option<&Value>) -> Vec<String> {
        let labels = object["scheduling"].entries("nodeSelector");
        labels
            .filter_map(|(label, _)| podspec::warnings::deprecated_node_label(label))
            .map(|message| format!("scheduling.nodeSelector: {message}"))
            .collect()
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        validation::immutable(
            errors,
            &Path::new("handler"),
            &object["handler"],
            &old["handler"],
        );
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for RuntimeClass {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Handler"), AGE];
        COLUMNS
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
    podspec::validate_tolerations(tolerations, path, errors);
    let key = |toleration: &Value| {
        ["key", "operator", "value", "effect"].map(|field| toleration.text(field).to_owned())
    };
    let mut seen = HashSet::new();
    for (index, toleration) in tolerations.iter().enumerate() {
        if !seen.insert(key(toleration)) {
            let text = internal(toleration);
            errors.with_text(ErrorType::Duplicate, &path.index(index), text, "");
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
