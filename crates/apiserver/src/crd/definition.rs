//! What the schema of a custom resource definition must look like: structural, and within the limits upstream sets.
//!
//! A schema that passes here is what [`super::structural`] expects. Paths and sentences are upstream's.

use kube_cel::cel::Program;
use serde_json::{Map, Value};

use super::{structural::Schema, validation};
use crate::field::{Errors, Path};

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];

/// Where a schema stands, which decides what it must say about its type.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Root,
    Property,
    Items,
    /// Inside `allOf`, `anyOf`, `oneOf` or `not`.
    Junction,
}

/// Checks the schema of one version.
pub(crate) fn check_schema(schema: &Value, path: &Path<'_>, errors: &mut Errors) {
    let before = errors.0.len();
    check(schema, path, Place::Root, errors);
    if errors.0.len() == before {
        check_defaults_and_rules(schema, path, errors);
    }
}

fn text<'v>(schema: &'v Value, field: &str) -> &'v str {
    schema
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn flag(schema: &Value, field: &str) -> bool {
    schema.get(field).and_then(Value::as_bool).unwrap_or(false)
}

fn entries<'v>(schema: &'v Value, field: &str) -> impl Iterator<Item = (&'v String, &'v Value)> {
    schema
        .get(field)
        .and_then(Value::as_object)
        .map(Map::iter)
        .into_iter()
        .flatten()
}

fn check(schema: &Value, path: &Path<'_>, place: Place, errors: &mut Errors) {
    let kind = text(schema, "type");
    let free = flag(schema, "x-kubernetes-int-or-string")
        || flag(schema, "x-kubernetes-preserve-unknown-fields");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.not_supported(&path.child("type"), kind, TYPES);
    }
    if place == Place::Junction {
        check_junction(schema, path, errors);
    } else if kind.is_empty() && (!free || place == Place::Root) {
        let why = match place {
            Place::Root => "must not be empty at the root",
            Place::Items => "must not be empty for specified array items",
            _ => "must not be empty for specified object fields",
        };
        errors.required(&path.child("type"), why);
    }
    if place == Place::Root && !kind.is_empty() && kind != "object" {
        errors.invalid(&path.child("type"), kind, "must be object at the root");
    }
    if kind == "array"
        && place != Place::Junction
        && !schema.get("items").is_some_and(Value::is_object)
    {
        errors.required(&path.child("items"), "must be specified");
    }
    if flag(schema, "uniqueItems") {
        errors.forbidden(
            &path.child("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        );
    }
    let has_properties = entries(schema, "properties").next().is_some();
    if has_properties
        && schema
            .get("additionalProperties")
            .is_some_and(|additional| *additional != Value::Bool(false) && !additional.is_null())
    {
        errors.forbidden(
            &path.child("additionalProperties"),
            "additionalProperties and properties are mutual exclusive",
        );
    }
    check_list(schema, path, errors);
    check_rule_texts(schema, path, errors);
    let properties = path.child("properties");
    for (name, property) in entries(schema, "properties") {
        let place = if place == Place::Junction {
            place
        } else {
            Place::Property
        };
        check(property, &properties.key(name), place, errors);
    }
    if let Some(additional) = schema
        .get("additionalProperties")
        .filter(|additional| additional.is_object())
    {
        check(
            additional,
            &path.child("additionalProperties"),
            Place::Property,
            errors,
        );
    }
    if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
        let place = if place == Place::Junction {
            place
        } else {
            Place::Items
        };
        check(items, &path.child("items"), place, errors);
    }
    for field in ["allOf", "anyOf", "oneOf"] {
        let at = path.child(field);
        for (index, option) in schema
            .get(field)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .enumerate()
        {
            check(option, &at.index(index), Place::Junction, errors);
        }
    }
    if let Some(not) = schema.get("not").filter(|not| not.is_object()) {
        check(not, &path.child("not"), Place::Junction, errors);
    }
}

/// Junctions validate values, they do not describe structure.
fn check_junction(schema: &Value, path: &Path<'_>, errors: &mut Errors) {
    let union_of_int_and_string = matches!(text(schema, "type"), "integer" | "string");
    for field in [
        "type",
        "description",
        "title",
        "default",
        "additionalProperties",
        "nullable",
    ] {
        let given = schema.get(field).is_some_and(|value| {
            !value.is_null() && *value != Value::Bool(false) && value.as_str() != Some("")
        });
        if given && !(field == "type" && union_of_int_and_string) {
            errors.forbidden(&path.child(field), "must be empty to be structural");
        }
    }
}

fn check_list(schema: &Value, path: &Path<'_>, errors: &mut Errors) {
    let list_type = text(schema, "x-kubernetes-list-type");
    let keys: Vec<&str> = schema
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if list_type.is_empty() {
        if !keys.is_empty() {
            errors.required(
                &path.child("x-kubernetes-list-type"),
                "must be map if x-kubernetes-list-map-keys is non-empty",
            );
        }
        return;
    }
    if !["atomic", "map", "set"].contains(&list_type) {
        errors.not_supported(
            &path.child("x-kubernetes-list-type"),
            list_type,
            &["atomic", "map", "set"],
        );
    }
    let items = schema.get("items").cloned().unwrap_or_default();
    let items_path = path.child("items");
    if list_type == "map" {
        if keys.is_empty() {
            errors.required(
                &path.child("x-kubernetes-list-map-keys"),
                "must not be empty if x-kubernetes-list-type is map",
            );
        }
        if text(&items, "type") != "object" {
            errors.invalid(
                &items_path.child("type"),
                text(&items, "type"),
                "must be object if parent array's x-kubernetes-list-type is map",
            );
        }
        let properties = items_path.child("properties");
        for (index, key) in keys.iter().enumerate() {
            let Some(property) = items
                .get("properties")
                .and_then(|properties| properties.get(key))
            else {
                let at = path.child("x-kubernetes-list-map-keys");
                errors.invalid(
                    &at.index(index),
                    *key,
                    "entries must all be names of item properties",
                );
                continue;
            };
            let required = items
                .get("required")
                .and_then(Value::as_array)
                .is_some_and(|required| required.iter().any(|name| name == key));
            if !required && property.get("default").is_none() {
                let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                errors.required(&properties.key(key).child("default"), why);
            }
        }
    } else if list_type == "set" {
        let why = "as item of a list with x-kubernetes-list-type=set";
        match text(&items, "type") {
            "object" if text(&items, "x-kubernetes-map-type") != "atomic" => {
                let given = items
                    .get("x-kubernetes-map-type")
                    .cloned()
                    .unwrap_or(Value::Null);
                errors.invalid(
                    &items_path.child("x-kubernetes-map-type"),
                    given,
                    format!("must be atomic {why}"),
                );
            }
            "array" if text(&items, "x-kubernetes-list-type") != "atomic" => {
                let given = items
                    .get("x-kubernetes-list-type")
                    .cloned()
                    .unwrap_or(Value::Null);
                errors.invalid(
                    &items_path.child("x-kubernetes-list-type"),
                    given,
                    format!("must be atomic {why}"),
                );
            }
            _ => {}
        }
        if flag(&items, "nullable") {
            errors.forbidden(
                &items_path.child("nullable"),
                "cannot be nullable when x-kubernetes-list-type is set",
            );
        }
    }
}

fn check_rule_texts(schema: &Value, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("x-kubernetes-validations");
    for (index, rule) in schema
        .get("x-kubernetes-validations")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
    {
        let at = at.index(index);
        if text(rule, "rule").trim().is_empty() {
            errors.required(&at.child("rule"), "rule is not specified");
        }
        let message = text(rule, "message");
        if !message.is_empty() && message.trim().is_empty() {
            errors.invalid(
                &at.child("message"),
                message,
                "must be non-empty if specified",
            );
        } else if message.contains(['\n', '\r']) {
            errors.invalid(
                &at.child("message"),
                message,
                "message must not contain line breaks",
            );
        }
    }
}

/// Defaults must be valid themselves, rules must parse.
fn check_defaults_and_rules(schema: &Value, path: &Path<'_>, errors: &mut Errors) {
    if let Some(default) = schema.get("default") {
        let mut found = Errors::default();
        validation::check(&Schema::parse(schema), default, None, &mut found);
        let at = path.child("default").to_string();
        for mut error in found.0 {
            error.field = if error.field.is_empty() || error.field == "<nil>" {
                at.clone()
            } else {
                format!("{at}.{}", error.field)
            };
            errors.0.push(error);
        }
    }
    let rules = path.child("x-kubernetes-validations");
    for (index, rule) in schema
        .get("x-kubernetes-validations")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
    {
        if let Err(error) = Program::compile(text(rule, "rule")) {
            errors.invalid(
                &rules.index(index).child("rule"),
                text(rule, "rule"),
                format!("compilation failed: {error}"),
            );
        }
    }
    let properties = path.child("properties");
    for (name, property) in entries(schema, "properties") {
        check_defaults_and_rules(property, &properties.key(name), errors);
    }
    for field in ["additionalProperties", "items"] {
        if let Some(below) = schema.get(field).filter(|below| below.is_object()) {
            check_defaults_and_rules(below, &path.child(field), errors);
        }
    }
}
