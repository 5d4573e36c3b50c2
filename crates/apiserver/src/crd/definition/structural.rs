//! Checks that a schema is structural: every field has a type, and the branches of `allOf`, `anyOf`, `oneOf` and `not` only restrict
//! values. Source: k8s.io/apiextensions-apiserver/pkg/apiserver/schema: ValidateStructural.

use mullion_kube_text::{
    field::{Errors, Path},
    golang::regexp,
};
use serde_json::{Value, json};

use super::{below, entries, flag, items, text};

const JUNCTIONS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// The keywords that are forbidden below `allOf`, `anyOf`, `oneOf` and `not`, with the message for each.
const FORBIDDEN: &[(&str, &str)] = &[
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    ("externalDocs", "must be undefined to be structural"),
    (
        "x-kubernetes-preserve-unknown-fields",
        "must be false to be structural",
    ),
    (
        "x-kubernetes-embedded-resource",
        "must be false to be structural",
    ),
    (
        "x-kubernetes-int-or-string",
        "must be false to be structural",
    ),
    (
        "x-kubernetes-list-map-keys",
        "must be empty to be structural",
    ),
    (
        "x-kubernetes-list-type",
        "must be undefined to be structural",
    ),
    (
        "x-kubernetes-map-type",
        "must be undefined to be structural",
    ),
    ("x-kubernetes-validations", "must be empty to be structural"),
];

/// The position of a schema, which decides what its `type` must be.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Items,
    Field,
}

/// Returns the reasons why a schema is not structural, sorted.
pub(super) fn check(schema: &Value, path: &Path<'_>) -> Errors {
    let mut errors = Errors::default();
    invariants(schema, Level::Root, path, &mut errors);
    covered_junctions(schema, schema, path, path, &mut errors);
    errors
        .0
        .sort_by_key(|error| format!("{}: {}", error.field, error.body()));
    errors
}

fn invariants(schema: &Value, level: Level, path: &Path<'_>, errors: &mut Errors) {
    let kind = text(schema, "type");
    if kind == "array" && below(schema, "items").is_none() {
        errors.required(&path.child("items"), "must be specified");
    }
    if let Some(items) = below(schema, "items") {
        invariants(items, Level::Items, &path.child("items"), errors);
    }
    let properties = path.child("properties");
    for (name, property) in entries(schema, "properties") {
        invariants(property, Level::Field, &properties.key(name), errors);
    }
    let additional = path.child("additionalProperties");
    let has_additional = schema
        .get("additionalProperties")
        .is_some_and(|given| !given.is_null());
    if has_additional && level == Level::Root {
        errors.forbidden(&additional, "must not be used at the root");
    }
    if let Some(given) = below(schema, "additionalProperties") {
        invariants(given, Level::Field, &additional, errors);
    }
    let (free, embedded, int_or_string) = (
        flag(schema, "x-kubernetes-preserve-unknown-fields"),
        flag(schema, "x-kubernetes-embedded-resource"),
        flag(schema, "x-kubernetes-int-or-string"),
    );
    let only = "must be false if x-kubernetes-int-or-string is true";
    for (name, given) in [
        ("x-kubernetes-preserve-unknown-fields", free),
        ("x-kubernetes-embedded-resource", embedded),
    ] {
        if int_or_string && given {
            errors.invalid(&path.child(name), true, only);
        }
    }
    junctions(
        schema,
        is_union(schema),
        first_is_union(schema),
        path,
        errors,
    );
    let at = path.child("type");
    if embedded && kind != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        match kind {
            "" => errors.required(&at, why),
            kind => errors.invalid(&at, kind, why),
        }
    } else if kind.is_empty() && !int_or_string && !free {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Items => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.required(&at, why);
    }
    if embedded && has_additional {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        errors.forbidden(&additional, why);
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.invalid(&at, kind, "must be object at the root");
    }
    if level == Level::Root || embedded {
        resource(schema, level, &properties, errors);
    }
    if embedded && !free && entries(schema, "properties").next().is_none() {
        let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.required(&properties, why);
    }
}

/// Checks the schemas of `apiVersion`, `kind` and `metadata`.
fn resource(schema: &Value, level: Level, properties: &Path<'_>, errors: &mut Errors) {
    for (name, wanted) in [
        ("kind", "string"),
        ("apiVersion", "string"),
        ("metadata", "object"),
    ] {
        let Some(given) = schema.get("properties").and_then(|given| given.get(name)) else {
            continue;
        };
        let kind = text(given, "type");
        if kind != wanted {
            let at = properties.key(name);
            errors.invalid(&at.child("type"), kind, format!("must be {wanted}"));
        }
    }
    let metadata = schema.pointer("/properties/metadata");
    let Some(metadata) = metadata.filter(|_| level == Level::Root) else {
        return;
    };
    let only_names = entries(metadata, "properties")
        .all(|(name, _)| matches!(name.as_str(), "name" | "generateName"));
    // Defaults are checked by another check. Examples and documentation are not checked.
    let may_have = ["default", "example", "externalDocs", "properties", "type"];
    let is_set =
        |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && *value != json!("");
    let mut words = metadata.as_object().into_iter().flatten();
    if !only_names || words.any(|(name, value)| !may_have.contains(&name.as_str()) && is_set(value))
    {
        let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.forbidden(&properties.key("metadata"), why);
    }
}

fn union() -> Value {
    json!([{"type": "integer"}, {"type": "string"}])
}

/// Returns whether the schema's `anyOf` allows an integer or a string, the usual form of an int-or-string.
fn is_union(schema: &Value) -> bool {
    schema.get("anyOf") == Some(&union())
}

/// Returns whether the first branch of `allOf` allows an integer or a string in the same form.
fn first_is_union(schema: &Value) -> bool {
    schema.pointer("/allOf/0/anyOf") == Some(&union())
}

fn junctions(
    schema: &Value,
    skip_any_of: bool,
    skip_first: bool,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    for field in JUNCTIONS {
        // The usual form of an int-or-string is the one place where a branch may name types.
        if field == "anyOf" && skip_any_of {
            continue;
        }
        let at = path.child(field);
        for (index, branch) in items(schema, field).enumerate() {
            let skip = skip_first && field == "allOf" && index == 0;
            nested(branch, skip, &at.index(index), errors);
        }
    }
    if let Some(branch) = below(schema, "not") {
        nested(branch, false, &path.child("not"), errors);
    }
    let given = text(schema, "pattern");
    if let Err(error) = regexp::compile(given) {
        let why = format!("must be a valid regular expression, but isn't: {error}");
        errors.invalid(&path.child("pattern"), given, why);
    }
}

/// Checks a branch of `allOf`, `anyOf`, `oneOf` or `not`, and the schemas below it.
fn nested(schema: &Value, skip_any_of: bool, path: &Path<'_>, errors: &mut Errors) {
    junctions(schema, skip_any_of, false, path, errors);
    if let Some(items) = below(schema, "items") {
        nested(items, false, &path.child("items"), errors);
    }
    let properties = path.child("properties");
    for (name, property) in entries(schema, "properties") {
        nested(property, false, &properties.key(name), errors);
    }
    for (field, why) in FORBIDDEN {
        let given = schema.get(*field).is_some_and(|value| match value {
            Value::Null | Value::Bool(false) => {
                *field == "additionalProperties" && !value.is_null()
            }
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => true,
        });
        if given {
            errors.forbidden(&path.child(field), *why);
        }
    }
    if schema.pointer("/properties/metadata").is_some() {
        let why = "must not be specified in a nested context";
        errors.forbidden(&properties.key("metadata"), why);
    }
}

/// Checks that every field in the branches at the root is also specified outside of them. kube-apiserver checks only the branches at the
/// root.
fn covered_junctions(
    restricting: &Value,
    schema: &Value,
    path: &Path<'_>,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    if let Some(branch) = below(restricting, "not") {
        covered(branch, schema, path, &at.child("not"), errors);
    }
    for field in JUNCTIONS {
        let at = at.child(field);
        for (index, branch) in items(restricting, field).enumerate() {
            covered(branch, schema, path, &at.index(index), errors);
        }
    }
}

fn covered(
    restricting: &Value,
    schema: &Value,
    path: &Path<'_>,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    covered_junctions(restricting, schema, path, at, errors);
    let missing = |at: &Path<'_>| format!("because it is defined in {at}");
    if let Some(items) = below(restricting, "items") {
        let (path, at) = (path.child("items"), at.child("items"));
        match below(schema, "items") {
            Some(schema) => covered(items, schema, &path, &at, errors),
            None => errors.required(&path, missing(&at)),
        }
    }
    let (path, at) = (path.child("properties"), at.child("properties"));
    for (name, property) in entries(restricting, "properties") {
        let (path, at) = (path.key(name), at.key(name));
        match schema.get("properties").and_then(|given| given.get(name)) {
            Some(schema) => covered(property, schema, &path, &at, errors),
            None => errors.required(&path, missing(&at)),
        }
    }
}
