//! Validates each schema on its own. Source: k8s.io/apiextensions-apiserver: ValidateCustomResourceDefinitionOpenAPISchema.

use std::collections::HashSet;

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::structural::Schema;
use serde_json::Value;

use super::{RelaxedRules, UNSUPPORTED, below, entries, flag, items, text};
use crate::crd::rules::field_path;

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
const REASONS: &[&str] = &[
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];
const SET_ITEMS: &str = "must be atomic as item of a list with x-kubernetes-list-type=set";

/// The paths of schemas without errors in them or below them, so that their rules can be compiled.
pub(super) struct SoundSchemas(HashSet<String>);

impl SoundSchemas {
    pub(super) fn has(&self, path: &Path<'_>) -> bool {
        self.0.contains(&path.to_string())
    }
}

/// The facts about the surrounding schemas that a schema's checks need.
#[derive(Clone, Copy, Default)]
struct SchemaContext<'a> {
    relaxed: RelaxedRules,
    is_root: bool,
    in_metadata: bool,
    /// The reason why a default is forbidden here, if it is.
    no_default: Option<&'a str>,
}

pub(super) fn check(
    schema: &Value,
    relaxed: RelaxedRules,
    path: &Path<'_>,
    errors: &mut Errors,
) -> SoundSchemas {
    let mut sound = SoundSchemas(HashSet::new());
    let context = SchemaContext {
        relaxed,
        is_root: true,
        ..SchemaContext::default()
    };
    walk(schema, path, context, &mut sound, errors);
    sound
}

fn walk(
    schema: &Value,
    path: &Path<'_>,
    context: SchemaContext<'_>,
    sound: &mut SoundSchemas,
    errors: &mut Errors,
) {
    let before = errors.0.len();
    words(schema, path, context, errors);
    if flag(schema, "uniqueItems") {
        let why =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(&path.child("uniqueItems"), why);
    }
    let inner = SchemaContext {
        is_root: false,
        ..context
    };
    let additional = path.child("additionalProperties");
    let given = schema.get("additionalProperties");
    // `true` allows every further field, so it does not contradict the properties.
    let excludes = given.is_some_and(|given| given.is_object() || *given == Value::Bool(false));
    if excludes && entries(schema, "properties").next().is_some() {
        let why = "additionalProperties and properties are mutual exclusive";
        errors.forbidden(&additional, why);
    }
    if let Some(values) = below(schema, "additionalProperties") {
        let no_default = "inside additionalProperties applying to object metadata";
        let no_default = if context.in_metadata {
            Some(no_default)
        } else {
            context.no_default
        };
        let inner = SchemaContext {
            no_default,
            ..inner
        };
        walk(values, &additional, inner, sound, errors);
    }
    let properties = path.child("properties");
    let is_resource = context.is_root || flag(schema, "x-kubernetes-embedded-resource");
    for (name, property) in entries(schema, "properties") {
        let mut inner = inner;
        let no_default = format!("in top-level {name}");
        if is_resource && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
            inner.in_metadata = true;
            if context.is_root {
                inner.no_default = Some(&no_default);
            }
        }
        walk(property, &properties.key(name), inner, sound, errors);
    }
    if let Some(branch) = below(schema, "not") {
        walk(branch, &path.child("not"), inner, sound, errors);
    }
    for field in ["allOf", "oneOf", "anyOf"] {
        let at = path.child(field);
        for (index, branch) in items(schema, field).enumerate() {
            walk(branch, &at.index(index), inner, sound, errors);
        }
    }
    let definitions = path.child("definitions");
    for (name, definition) in entries(schema, "definitions") {
        walk(definition, &definitions.key(name), inner, sound, errors);
    }
    let at = path.child("items");
    if let Some(items) = below(schema, "items") {
        walk(items, &at, inner, sound, errors);
    }
    for (index, item) in items(schema, "items").enumerate() {
        walk(item, &at.index(index), inner, sound, errors);
    }
    let dependencies = path.child("dependencies");
    let schemas = entries(schema, "dependencies").filter(|(_, given)| given.is_object());
    for (name, dependency) in schemas {
        walk(dependency, &dependencies.key(name), inner, sound, errors);
    }
    extensions(schema, context.relaxed, path, errors);
    for (index, rule) in items(schema, "x-kubernetes-validations").enumerate() {
        let at = path.child("x-kubernetes-validations");
        rule_texts(schema, rule, &at.index(index), errors);
    }
    // Errors below count too, because a rule's type comprises the schemas below it.
    if errors.0.len() == before {
        sound.0.insert(path.to_string());
    }
}

/// Returns whether a schema has a `type` that JSON schema does not have.
pub(super) fn has_unknown_type(schema: &Value) -> bool {
    let kind = text(schema, "type");
    !kind.is_empty() && !TYPES.contains(&kind)
}

/// Checks the keywords of JSON schema itself.
fn words(schema: &Value, path: &Path<'_>, context: SchemaContext<'_>, errors: &mut Errors) {
    let kind = text(schema, "type");
    if has_unknown_type(schema) && !context.relaxed.unknown_types {
        errors.not_supported_text(&path.child("type"), kind, TYPES);
    }
    let is_set = |field: &str| {
        schema.get(field).is_some_and(|value| match value {
            Value::Null => false,
            Value::String(text) => !text.is_empty(),
            Value::Object(map) => field == "additionalItems" || !map.is_empty(),
            _ => true,
        })
    };
    if let Some(reason) = context.no_default.filter(|_| is_set("default")) {
        errors.forbidden(&path.child("default"), format!("must not be set {reason}"));
    }
    for word in UNSUPPORTED {
        let at = path.child(word);
        // kube-apiserver refuses `dependencies` even if it is empty, but other maps only if they have entries.
        let is_there = *word == "dependencies" && errors.sent_empty_in_schema(&at);
        if is_set(word) || is_there {
            errors.forbidden(&at, format!("{word} is not supported"));
        }
    }
    if kind == "null" {
        let why = "type cannot be set to null, use nullable as an alternative";
        errors.forbidden(&path.child("type"), why);
    }
    if items(schema, "items").next().is_some() {
        let why = "items must be a schema object and not an array";
        errors.forbidden(&path.child("items"), why);
    }
    if context.in_metadata && flag(schema, "x-kubernetes-embedded-resource") {
        let at = path.child("x-kubernetes-embedded-resource");
        errors.forbidden(&at, "must not be used inside of resource meta");
    }
}

/// Checks the `x-kubernetes-` extensions.
fn extensions(schema: &Value, relaxed: RelaxedRules, path: &Path<'_>, errors: &mut Errors) {
    let kind = text(schema, "type");
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let at = path.child("x-kubernetes-preserve-unknown-fields");
        errors.invalid(&at, false, "must be true or undefined");
    }
    let wrong_type = |errors: &mut Errors, wanted: &str, word: &str| {
        let why = format!("must be {wanted} if {word} is specified");
        match kind {
            "" => errors.required(&path.child("type"), why),
            kind => errors.invalid(&path.child("type"), kind, why),
        }
    };
    let map_type = text(schema, "x-kubernetes-map-type");
    if !map_type.is_empty() {
        if kind != "object" {
            wrong_type(errors, "object", "x-kubernetes-map-type");
        }
        if !["atomic", "granular"].contains(&map_type) {
            let at = path.child("x-kubernetes-map-type");
            errors.not_supported_text(&at, map_type, &["atomic", "granular"]);
        }
    }
    let list_type = text(schema, "x-kubernetes-list-type");
    let at = path.child("x-kubernetes-list-type");
    if !list_type.is_empty() && kind != "array" {
        wrong_type(errors, "array", "x-kubernetes-list-type");
    } else if !relaxed.divisible_set_items {
        set_items(schema, path, errors);
    }
    if !["", "atomic", "set", "map"].contains(&list_type) {
        errors.not_supported_text(&at, list_type, &["atomic", "set", "map"]);
    }
    let keys: Vec<&str> = items(schema, "x-kubernetes-list-map-keys")
        .filter_map(Value::as_str)
        .collect();
    if !keys.is_empty() && list_type != "map" {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            "" => errors.required(&at, why),
            list_type => errors.invalid(&at, list_type, why),
        }
    }
    if list_type == "map" {
        keyed(schema, &keys, path, errors);
    }
    if !relaxed.optional_keys {
        keys_and_items(schema, path, errors);
    }
}

/// Requires the items of a set to be scalars or atomic, because they are compared as a whole.
pub(super) fn set_items(schema: &Value, path: &Path<'_>, errors: &mut Errors) {
    let item = below(schema, "items");
    let Some(item) = item.filter(|_| text(schema, "x-kubernetes-list-type") == "set") else {
        return;
    };
    let divisible = match text(item, "type") {
        "array" if !["", "atomic"].contains(&text(item, "x-kubernetes-list-type")) => {
            "x-kubernetes-list-type"
        }
        "object" if text(item, "x-kubernetes-map-type") != "atomic" => "x-kubernetes-map-type",
        _ => return,
    };
    // kube-apiserver shows the list type in both cases.
    let shown = item.get("x-kubernetes-list-type").cloned();
    let at = path.child("items");
    errors.invalid(&at.child(divisible), shown.unwrap_or_default(), SET_ITEMS);
}

/// Requires the items of sets and maps, and the key fields of a map's items, to be always present: not nullable, and the keys required or
/// defaulted.
pub(super) fn keys_and_items(schema: &Value, path: &Path<'_>, errors: &mut Errors) {
    let list_type = text(schema, "x-kubernetes-list-type");
    let items_path = path.child("items");
    let item = below(schema, "items");
    let Some(item) = item.filter(|_| ["set", "map"].contains(&list_type)) else {
        return;
    };
    if flag(item, "nullable") {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.forbidden(&items_path.child("nullable"), why);
    }
    let properties = items_path.child("properties");
    let required: HashSet<&Value> = items(item, "required").collect();
    let keys = items(schema, "x-kubernetes-list-map-keys").filter_map(Value::as_str);
    for key in keys.filter(|_| list_type == "map") {
        let Some(property) = item.get("properties").and_then(|given| given.get(key)) else {
            continue;
        };
        let at = properties.key(key);
        if !required.contains(&Value::from(key))
            && property.get("default").is_none_or(Value::is_null)
        {
            let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.required(&at.child("default"), why);
        }
        if flag(property, "nullable") {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.forbidden(&at.child("nullable"), why);
        }
    }
}

/// Validates the keys of a list of type map, and the schema of its items.
fn keyed(schema: &Value, keys: &[&str], path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.required(&at, "must not be empty if x-kubernetes-list-type is map");
    }
    let items_path = path.child("items");
    let Some(item) = below(schema, "items") else {
        if schema.get("items").is_none_or(Value::is_null) {
            let why = "must have a schema if x-kubernetes-list-type is map";
            errors.required(&items_path, why);
        } else {
            let why = "must only have a single schema if x-kubernetes-list-type is map";
            errors.invalid(&items_path, schema["items"].clone(), why);
        }
        return;
    };
    let kind = text(item, "type");
    if kind != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        errors.invalid(&items_path.child("type"), kind, why);
        return;
    }
    let properties = items_path.child("properties");
    let mut seen = HashSet::new();
    for key in keys {
        match item.get("properties").and_then(|given| given.get(*key)) {
            Some(property) if ["array", "object"].contains(&text(property, "type")) => {
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                // kube-apiserver shows the type of the items.
                errors.invalid(&properties.key(key).child("type"), kind, why);
            }
            Some(_) => {}
            None => errors.invalid(&at, keys, "entries must all be names of item properties"),
        }
        if !seen.insert(key) {
            errors.invalid(&at, keys, "must not contain duplicate entries");
        }
    }
}

/// Checks the fields of a validation rule other than the expressions' own syntax.
fn rule_texts(schema: &Value, rule: &Value, at: &Path<'_>, errors: &mut Errors) {
    let has_breaks = |text: &str| text.contains(['\n', '\r']);
    let (expression, message) = (text(rule, "rule").trim(), text(rule, "message"));
    if expression.is_empty() {
        errors.required(&at.child("rule"), "rule is not specified");
    } else if !message.is_empty() && message.trim().is_empty() {
        let why = "must be non-empty if specified";
        errors.invalid(&at.child("message"), message, why);
    } else if has_breaks(message.trim()) {
        errors.invalid(
            &at.child("message"),
            message,
            "must not contain line breaks",
        );
    } else if has_breaks(expression) && message.trim().is_empty() {
        let why = "must be specified if rule contains line breaks";
        errors.required(&at.child("message"), why);
    }
    let given = text(rule, "messageExpression");
    if !given.is_empty() && given.trim().is_empty() {
        let why = "must be non-empty if specified";
        errors.required(&at.child("messageExpression"), why);
    }
    let reason = rule.get("reason").and_then(Value::as_str);
    if let Some(reason) = reason.filter(|reason| !REASONS.contains(reason)) {
        errors.not_supported(&at.child("reason"), reason, REASONS);
    }
    let given = text(rule, "fieldPath");
    if given.is_empty() {
        return;
    }
    let at = at.child("fieldPath");
    if given.trim().is_empty() {
        errors.invalid(&at, given, "must be non-empty if specified");
    }
    if has_breaks(given) {
        errors.invalid(&at, given, "must not contain line breaks");
    }
    if field_path::normal(given, &Schema::parse(schema)).is_err() {
        errors.invalid(&at, given, "must be a valid path");
    }
}
