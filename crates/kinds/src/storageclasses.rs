//! storage.k8s.io/v1 StorageClass: the provisioner of volumes for claims, and its parameters; all of it is immutable.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{self, check, metadata},
};
use mullion_schema::tree::{Tree, set_default};
use serde_json::Value;

use super::{
    Check, Column, Kind,
    podspec::warnings::deprecated_node_label,
    print::{AGE, NAME, age, column},
};
use crate::{
    Printing,
    fields::{self, Code, Field, OneOf, Text, always, filled, present, required},
    request::Ctx,
};

const DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETER_BYTES: usize = 256 * 1024;

const CLASS: &[Field] = &[
    required("provisioner", Text(provisioner)),
    always("parameters", Code(parameters)),
    filled("reclaimPolicy", OneOf(&["Delete", "Retain"])),
    present(
        "volumeBindingMode",
        OneOf(&["Immediate", "WaitForFirstConsumer"]),
    ),
];

/// storage.k8s.io/v1 StorageClass.
pub(crate) struct StorageClass;

/// Returns whether the class is the default for claims without a class.
pub fn is_default(class: &Value) -> bool {
    DEFAULT
        .iter()
        .any(|annotation| class["metadata"]["annotations"][annotation] == "true")
}

impl Kind for StorageClass {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn default(&self, object: &mut Value) {
        if let Some(root) = object.as_object_mut() {
            set_default(root, "reclaimPolicy", "Delete");
            set_default(root, "volumeBindingMode", "Immediate");
        }
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        fields::validate(CLASS, object, Path::ROOT, errors);
        topologies(
            object.items("allowedTopologies"),
            &Path::new("allowedTopologies"),
            errors,
        );
    }

    fn warnings(&self, object: &Value, _: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        let path = Path::new("allowedTopologies");
        for (index, term) in object.items("allowedTopologies").iter().enumerate() {
            let at = path.index(index);
            let at = at.child("matchLabelExpressions");
            for (index, expression) in term.items("matchLabelExpressions").iter().enumerate() {
                if let Some(message) = deprecated_node_label(expression.text("key")) {
                    let at = at.index(index);
                    warnings.push(format!("{}: {message}", at.child("key")));
                }
            }
        }
        warnings
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        for field in ["parameters", "provisioner", "reclaimPolicy"] {
            let path = Path::new(field);
            if object[field] != old[field] {
                let shown = match field {
                    "parameters" => errors.map_as_sent(&path, &object[field]),
                    _ => object.text(field).into(),
                };
                errors.invalid(&path, shown, validation::IMMUTABLE);
            }
        }
        fields::immutable(&["volumeBindingMode"], object, old, Path::ROOT, errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for StorageClass {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Provisioner"),
            column("ReclaimPolicy"),
            column("VolumeBindingMode"),
            column("AllowVolumeExpansion"),
            AGE,
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let mut name = object["metadata"].text("name").to_owned();
        if is_default(object) {
            name.push_str(" (default)");
        }
        vec![
            name.into(),
            object.text("provisioner").into(),
            object.text("reclaimPolicy").into(),
            object.text("volumeBindingMode").into(),
            object.flag("allowVolumeExpansion").into(),
            age(object, now),
        ]
    }
}

/// Validates the name of a provisioner: a qualified name in any case. As in kube-apiserver, the error shows the name in small letters.
pub(super) fn provisioner(errors: &mut Errors, path: &Path<'_>, name: &str) {
    let name = name.to_lowercase();
    check(errors, path, &name, names::qualified_name(&name));
}

/// The most duplicate terms that are reported. kube-apiserver reports each as often as there are terms, which takes more memory than there
/// is for a large body.
const MOST_DUPLICATES: usize = 10_000;

fn topologies(terms: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let mut seen: BTreeMap<_, usize> = BTreeMap::new();
    let mut told = 0;
    for (index, term) in terms.iter().enumerate() {
        let at = path.index(index);
        let at = at.child("matchLabelExpressions");
        let expressions = term.items("matchLabelExpressions");
        let mut keys = BTreeSet::new();
        for (index, expression) in expressions.iter().enumerate() {
            let at = at.index(index);
            let values_path = at.child("values");
            let values = expression.items("values");
            if values.is_empty() {
                errors.required(&values_path, "");
            }
            let mut told_values = BTreeSet::new();
            for (index, value) in values.iter().enumerate() {
                if !told_values.insert(value.as_str()) {
                    errors.duplicate(&values_path.index(index), value.clone());
                }
            }
            let key = expression.text("key");
            metadata::label_name(errors, &at.child("key"), key);
            if !keys.insert(key) {
                errors.duplicate(&at.child("key"), key);
            }
        }
        // kube-apiserver's list of earlier terms begins with an empty entry for each term, which an empty term equals.
        let blanks = if expressions.is_empty() {
            terms.len()
        } else {
            0
        };
        let earlier = seen.entry(sets(term)).or_default();
        let count = (blanks + *earlier).min(MOST_DUPLICATES - told);
        *earlier += 1;
        told += count;
        for _ in 0..count {
            errors.duplicate(&at, "");
        }
    }
}

/// Returns the values of each key of a topology term, independent of their order.
fn sets(term: &Value) -> BTreeMap<&str, BTreeSet<&str>> {
    let values = |expression| {
        Tree::items(expression, "values")
            .iter()
            .filter_map(Value::as_str)
    };
    let expressions = term.items("matchLabelExpressions").iter();
    expressions
        .map(|expression| (expression.text("key"), values(expression).collect()))
        .collect()
}

/// Validates the parameters for a driver; only their number and size are limited.
pub(super) fn parameters(parameters: &Value, path: &Path<'_>, errors: &mut Errors) {
    let entries = || parameters.as_object().into_iter().flatten();
    if entries().count() > MAX_PARAMETERS {
        // kube-apiserver reports too many parameters like too long ones.
        return errors.too_long(path, MAX_PARAMETERS);
    }
    let mut bytes = 0;
    for (key, value) in entries() {
        if key.is_empty() {
            errors.invalid(path, key.as_str(), "field can not be empty.");
        }
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > MAX_PARAMETER_BYTES {
        errors.too_long(path, MAX_PARAMETER_BYTES);
    }
}
