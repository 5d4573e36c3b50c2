//! Validates the schemas of a CustomResourceDefinition: they must be structural, with valid defaults and with rules that compile.
//!
//! [`mullion_schema::structural`] expects a schema that passes these checks. The order of checks and the messages are those of
//! k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation.

mod costs;
mod defaults;
mod openapi;
mod relaxed_rules;
mod rules;
mod structural;

use std::collections::HashSet;

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    formats,
};
use mullion_schema::structural::Schema;
use serde_json::{Map, Value};

pub(crate) use relaxed_rules::RelaxedRules;

use super::rules::field_path;

/// The Go names of the fields that the root of a schema may have if the version has a status subresource.
const ROOT_FIELDS: &str = "Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations";
/// The keywords of JSON schema that are not supported.
const UNSUPPORTED: &[&str] = &[
    "id",
    "additionalItems",
    "patternProperties",
    "definitions",
    "dependencies",
    "$ref",
];
/// The largest number of selectable fields in one version.
const MAX_SELECTABLE_FIELDS: usize = 8;

/// Checks the schema of one version; `has_status` says whether there is a status subresource.
pub(crate) fn check_schema(
    schema: &Value,
    has_status: bool,
    relaxed: RelaxedRules,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let before = errors.0.len();
    if has_status {
        check_root(schema, path, errors);
    }
    if flag(schema, "nullable") {
        errors.forbidden(
            &path.child("nullable"),
            "nullable cannot be true at the root",
        );
    }
    let mut may_have_rules = false;
    // A schema that cannot be converted to a structural one is reported by the other checks.
    let is_convertible = !any(schema, &is_unconvertible);
    if is_convertible {
        let found = structural::check(schema, path);
        may_have_rules = found.0.is_empty();
        errors.0.extend(found.0);
        if may_have_rules {
            let before = errors.0.len();
            defaults::check(schema, relaxed, path, errors);
            may_have_rules = errors.0.len() == before;
        }
    }
    let sound = openapi::check(schema, relaxed, path, errors);
    // kube-apiserver compiles rules only where the schema is sound, because their types come from it.
    if may_have_rules {
        rules::check(schema, &sound, relaxed, path, errors);
    }
    if !is_convertible && errors.0.len() == before {
        errors.invalid(path, "", "OpenAPIV3Schema 'schema' is not supported");
    }
}

/// Returns whether a schema has keywords that structural schemas cannot have.
fn is_unconvertible(schema: &Value) -> bool {
    let is_filled = |field: &str| match schema.get(field) {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Object(map)) => field == "additionalItems" || !map.is_empty(),
        Some(_) => true,
    };
    let keeps_unknown = schema.get("x-kubernetes-preserve-unknown-fields");
    let has_list = schema.get("items").and_then(Value::as_array);
    UNSUPPORTED.iter().any(|word| is_filled(word))
        || is_filled("$schema")
        || keeps_unknown == Some(&Value::Bool(false))
        || has_list.is_some_and(|list| !list.is_empty())
}

/// Returns whether a schema, or one below it, has a default.
pub(crate) fn has_defaults(schema: &Value) -> bool {
    any(schema, &|schema| {
        schema
            .get("default")
            .is_some_and(|default| !default.is_null())
    })
}

/// Returns the string formats in a schema that are not checked, because they are not known.
pub(crate) fn unknown_formats(schema: &Value) -> Vec<String> {
    let found = std::cell::RefCell::new(Vec::new());
    any(schema, &|schema| {
        let format = text(schema, "format");
        if !format.is_empty() && !formats::is_known_of(text(schema, "type"), format) {
            found.borrow_mut().push(format.to_owned());
        }
        false
    });
    found.into_inner()
}

/// Returns whether `holds` is true for a schema or one below it.
fn any(schema: &Value, holds: &dyn Fn(&Value) -> bool) -> bool {
    let single = ["items", "not", "additionalProperties"];
    let several = ["items", "allOf", "anyOf", "oneOf"];
    holds(schema)
        || single
            .iter()
            .filter_map(|field| below(schema, field))
            .any(|below| any(below, holds))
        || several
            .iter()
            .flat_map(|field| items(schema, field))
            .any(|below| any(below, holds))
        || entries(schema, "properties").any(|(_, property)| any(property, holds))
}

fn check_root(schema: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut all: Vec<(&String, &Value)> = schema.as_object().into_iter().flatten().collect();
    // These fields precede `type` in the order of Go's struct.
    all.sort_by_key(|(name, _)| match name.as_str() {
        "id" | "$schema" | "$ref" => 0,
        "type" => 1,
        _ => 2,
    });
    for (name, value) in all {
        let go_name = match name.strip_prefix("x-kubernetes-") {
            Some(rest) => format!("X{}", rest.split('-').map(capital).collect::<String>()),
            None => capital(name),
        };
        if name == "type" && value != "object" {
            let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            errors.invalid(&path.child("type"), value.clone(), why);
            return;
        }
        let is_set = !value.is_null() && *value != Value::Bool(false);
        if is_set && !ROOT_FIELDS.split(' ').any(|allowed| allowed == go_name) {
            let why = format!(
                "only [{ROOT_FIELDS}] fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.with_text(ErrorType::Invalid, path, schema.to_string(), why);
            return;
        }
    }
}

fn capital(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Checks the selectable fields of a version.
pub(crate) fn check_selectable_fields(
    fields: &Value,
    schema: &Value,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let fields = fields.as_array().map(Vec::as_slice).unwrap_or_default();
    if fields.is_empty() {
        return;
    }
    let schema = Schema::parse(schema);
    let mut seen = HashSet::new();
    for (index, field) in fields.iter().enumerate() {
        let at = path.index(index);
        let at = at.child("jsonPath");
        let given = text(field, "jsonPath");
        if given.is_empty() {
            errors.required(&at, "");
            continue;
        }
        let found = match field_path::without_brackets(given, &schema) {
            Ok(found) => found,
            Err(why) => {
                errors.invalid(&at, given, format!("is an invalid path: {why}"));
                continue;
            }
        };
        if found.text.split('.').next() == Some("metadata") {
            errors.invalid(&at, given, "must not point to fields in metadata");
        }
        if !matches!(found.schema.kind.as_str(), "string" | "boolean" | "integer") {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.invalid(&at, given, why);
        }
        if !seen.insert(found.text) {
            errors.duplicate(&at, given);
        }
    }
    if seen.len() > MAX_SELECTABLE_FIELDS {
        errors.too_many(path, seen.len(), MAX_SELECTABLE_FIELDS);
    }
}

fn text<'v>(schema: &'v Value, field: &str) -> &'v str {
    let value = schema.get(field);
    value.and_then(Value::as_str).unwrap_or_default()
}

fn flag(schema: &Value, field: &str) -> bool {
    schema.get(field).and_then(Value::as_bool).unwrap_or(false)
}

fn items<'v>(schema: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> {
    let items = schema.get(field).and_then(Value::as_array);
    items.into_iter().flatten()
}

fn entries<'v>(schema: &'v Value, field: &str) -> impl Iterator<Item = (&'v String, &'v Value)> {
    let entries = schema.get(field).and_then(Value::as_object);
    entries.map(Map::iter).into_iter().flatten()
}

/// Returns the schema in a field, or `None` if the field is not an object.
fn below<'v>(schema: &'v Value, field: &str) -> Option<&'v Value> {
    schema.get(field).filter(|below| below.is_object())
}
