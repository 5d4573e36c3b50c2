//! node.k8s.io RuntimeClass, v1 and v1beta1 with the same fields: handler, overhead, and nodes that can run its pods. Admission applies it
//! to pods.

use std::collections::HashSet;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path, go_struct},
    names, quantity,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Check, Column, Kind, podspec,
    print::{AGE, NAME, age, column, name},
};
use crate::{
    Printing,
    fields::{self, All, Code, Field, Fields, Format, Labels, always, required},
    request::Ctx,
};

/// node.k8s.io RuntimeClass.
pub(crate) struct RuntimeClass;

const SCHEDULING: &[Field] = &[always("scheduling", Fields(NODES))];
const NODES: &[Field] = &[
    always("nodeSelector", Labels),
    always(
        "tolerations",
        All(&[podspec::TOLERATIONS, Code(no_duplicates)]),
    ),
];
const CLASS: &[Field] = &[required("handler", Format(names::dns_label))];

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
        fields::validate(CLASS, object, Path::ROOT, errors);
        // kube-apiserver validates the amounts like the limits of a container, and reports that path.
        if let Some(fixed) = object["overhead"].field("podFixed") {
            podspec::validate_overhead(fixed, &Path::new("overhead"), errors);
        }
        fields::validate(SCHEDULING, object, Path::ROOT, errors);
    }

    fn warnings(&self, object: &Value, _: Option<&Value>) -> Vec<String> {
        let labels = object["scheduling"].entries("nodeSelector");
        labels
            .filter_map(|(label, _)| podspec::warnings::deprecated_node_label(label))
            .map(|message| format!("scheduling.nodeSelector: {message}"))
            .collect()
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        fields::immutable(&["handler"], object, old, Path::ROOT, errors);
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

fn no_duplicates(tolerations: &Value, path: &Path<'_>, errors: &mut Errors) {
    let key = |toleration: &Value| {
        ["key", "operator", "value", "effect"].map(|field| toleration.text(field).to_owned())
    };
    let mut seen = HashSet::new();
    let tolerations = tolerations.as_array().into_iter().flatten();
    for (index, toleration) in tolerations.enumerate() {
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
