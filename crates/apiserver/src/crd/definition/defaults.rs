//! Defaults must themselves be what the schema allows. Source: k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting: ValidateDefaults.

use serde_json::Value;

use super::{below, entries};
use crate::{
    crd::{rules::Rules, structural::Schema, validation},
    field::{Errors, Path},
    schema::decode,
};

pub(super) fn check(schema: &Value, path: &Path<'_>, errors: &mut Errors) {
    if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
        check_default(schema, default, &path.child("default"), errors);
    }
    let properties = path.child("properties");
    for (name, property) in entries(schema, "properties") {
        check(property, &properties.key(name), errors);
    }
    for field in ["additionalProperties", "items"] {
        if let Some(below) = below(schema, field) {
            check(below, &path.child(field), errors);
        }
    }
}

fn check_default(source: &Value, default: &Value, path: &Path<'_>, errors: &mut Errors) {
    let schema = Schema::parse(source);
    let mut pruned = default.clone();
    decode::prune(&schema.to_value_type(), &mut pruned);
    if pruned != *default {
        errors.invalid(path, default.clone(), "must not have unknown fields");
    }
    let mut found = Errors::default();
    validation::check(&schema, default, None, &mut found);
    if found.is_empty() {
        Rules::compile(&schema, source).check(&schema, default, None, &mut found);
    }
    let at = path.to_string();
    for mut error in found.0 {
        error.field = match error.field.as_str() {
            "" | "<nil>" => at.clone(),
            below if below.starts_with('[') => format!("{at}{below}"),
            below => format!("{at}.{below}"),
        };
        errors.0.push(error);
    }
}
