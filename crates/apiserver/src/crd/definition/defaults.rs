//! Defaults must themselves be what the schema allows. Source: k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting: ValidateDefaults.

use serde_json::Value;

use super::{Spared, below, entries};
use crate::{
    crd::{rules::Rules, structural::Schema, validation},
    field::{Errors, Path},
    schema::decode,
};

pub(super) fn check(schema: &Value, spared: Spared, path: &Path<'_>, errors: &mut Errors) {
    if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
        check_default(schema, default, spared, &path.child("default"), errors);
    }
    let properties = path.child("properties");
    for (name, property) in entries(schema, "properties") {
        check(property, spared, &properties.key(name), errors);
    }
    for field in ["additionalProperties", "items"] {
        if let Some(below) = below(schema, field) {
            check(below, spared, &path.child(field), errors);
        }
    }
}

/// Whether the default of a schema, if it has one, has fields that the schema does not know.
pub(super) fn is_unpruned(source: &Value) -> bool {
    let default = source.get("default").filter(|default| !default.is_null());
    default.is_some_and(|default| !is_pruned(&Schema::parse(source), default))
}

fn is_pruned(schema: &Schema, default: &Value) -> bool {
    let mut pruned = default.clone();
    decode::prune(&schema.to_value_type(), &mut pruned);
    pruned == *default
}

fn check_default(
    source: &Value,
    default: &Value,
    spared: Spared,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let schema = Schema::parse(source);
    if !spared.unpruned_defaults && !is_pruned(&schema, default) {
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
