//! core/v1 ConfigMap: its keys are valid file names, its size is limited, and it can be declared immutable.

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Check, Column, Kind,
    print::{AGE, NAME, age, column, name},
};
use crate::{Printing, request::Ctx};

/// The largest size of the data of a ConfigMap or Secret, in bytes.
pub(crate) const MAX_DATA_BYTES: usize = 1024 * 1024;
/// kube-apiserver's message for a change of immutable data.
pub(crate) const IMMUTABLE: &str = "field is immutable when `immutable` is set";

/// core/v1 ConfigMap.
pub(crate) struct ConfigMap;

impl Kind for ConfigMap {
    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let mut bytes = 0;
        for (field, other) in [("data", "binaryData"), ("binaryData", "")] {
            let path = Path::new(field);
            for (key, value) in object.entries(field) {
                check(errors, &path.key(key), key, names::config_key(key));
                if object[other].get(key).is_some() {
                    errors.invalid(
                        &path.key(key),
                        key,
                        "duplicate of key present in binaryData",
                    );
                }
                let length = value.as_str().map_or(0, str::len);
                bytes += if field == "binaryData" {
                    decoded_length(value)
                } else {
                    length
                };
            }
        }
        if bytes > MAX_DATA_BYTES {
            // The limit is about both fields together, so kube-apiserver's path is empty.
            errors.too_long(&Path::new(""), MAX_DATA_BYTES);
        }
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[
            Check::MetadataChange,
            Check::Change,
            Check::Metadata,
            Check::Object,
        ]
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        immutable(errors, object, old, &["data", "binaryData"]);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for ConfigMap {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Data"), AGE];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let count = object.entries("data").count() + object.entries("binaryData").count();
        vec![name(object), count.into(), age(object, now)]
    }
}

/// Returns the number of bytes that a base64 string decodes to.
pub(crate) fn decoded_length(value: &Value) -> usize {
    let text = value.as_str().unwrap_or("");
    text.len() / 4 * 3
        - text
            .bytes()
            .rev()
            .take(2)
            .filter(|&byte| byte == b'=')
            .count()
}

/// Records changes of an object that was declared immutable. As in Go's comparison, an empty field differs from an absent one.
pub(crate) fn immutable(errors: &mut Errors, object: &Value, old: &Value, fields: &[&str]) {
    if !old.flag("immutable") {
        return;
    }
    if !object.flag("immutable") {
        errors.forbidden(&Path::new("immutable"), IMMUTABLE);
    }
    for &field in fields {
        let path = Path::new(field);
        if object[field] != old[field] || errors.sent_empty(&path) {
            errors.forbidden(&path, IMMUTABLE);
        }
    }
}
