//! Whether the rules of a schema compile: names, fields and types are those of the schema, and `oldSelf` is only used where a stored value can
//! be told.

use serde_json::{Value, json};

use super::{below, entries, items, openapi::Sound, text};
use crate::{
    crd::{
        rules::{Rule, types},
        structural::Schema,
    },
    field::{ErrorType, Errors, Path, go_struct},
};

/// Compiles the rules of every schema that is sound.
pub(super) fn check(schema: &Value, sound: &Sound, path: &Path<'_>, errors: &mut Errors) {
    walk(schema, true, None, sound, path, errors);
}

fn walk(
    source: &Value,
    is_resource: bool,
    uncorrelatable: Option<&Path<'_>>,
    sound: &Sound,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    if let Some(values) = below(source, "additionalProperties") {
        let path = path.child("additionalProperties");
        walk(
            values,
            is_embedded(values),
            uncorrelatable,
            sound,
            &path,
            errors,
        );
    }
    let properties = path.child("properties");
    let atomic = text(source, "x-kubernetes-map-type") == "atomic";
    let inside = uncorrelatable.or(atomic.then_some(path));
    for (name, property) in entries(source, "properties") {
        let path = properties.key(name);
        walk(
            property,
            is_embedded(property),
            inside,
            sound,
            &path,
            errors,
        );
    }
    if let Some(items) = below(source, "items") {
        let keyed = text(source, "x-kubernetes-list-type") == "map";
        let inside = uncorrelatable.or((!keyed).then_some(path));
        let path = path.child("items");
        walk(items, is_embedded(items), inside, sound, &path, errors);
    }
    let mut rules = items(source, "x-kubernetes-validations")
        .enumerate()
        .peekable();
    if rules.peek().is_none() || !sound.has(path) {
        return;
    }
    let schema = Schema::parse(source);
    let at = path.child("x-kubernetes-validations");
    let Some(kind) = types::of_schema(&schema, is_resource, "selfType") else {
        errors.internal(
            &at,
            "internal error: failed to retrieve type information for x-kubernetes-validations",
        );
        return;
    };
    for (index, given) in rules {
        let at = at.index(index);
        let rule = Rule::compile(&schema, &kind, given);
        for (field, program) in [
            ("rule", &rule.program),
            ("messageExpression", &rule.message_program),
        ] {
            if let Some(Err(why)) = program {
                errors.with_text(
                    ErrorType::Invalid,
                    &at.child(field),
                    shown(given),
                    why.as_str(),
                );
            }
        }
        match (rule.uses_old, uncorrelatable, given.get("optionalOldSelf")) {
            (true, Some(within), _) => {
                let why = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"
                );
                errors.invalid(&at.child("rule"), text(given, "rule"), why);
            }
            (false, _, Some(Value::Bool(optional))) => {
                let why = "may not be set if oldSelf is not used in rule";
                errors.invalid(&at.child("optionalOldSelf"), *optional, why);
            }
            _ => {}
        }
    }
}

fn is_embedded(schema: &Value) -> bool {
    super::flag(schema, "x-kubernetes-embedded-resource")
}

/// A rule as upstream prints its internal struct.
fn shown(rule: &Value) -> String {
    let or_empty = |field: &str| json!(text(rule, field));
    let or_null = |field: &str| rule.get(field).cloned().unwrap_or_default();
    go_struct(&[
        ("Rule", or_empty("rule")),
        ("Message", or_empty("message")),
        ("MessageExpression", or_empty("messageExpression")),
        ("Reason", or_null("reason")),
        ("FieldPath", or_empty("fieldPath")),
        ("OptionalOldSelf", or_null("optionalOldSelf")),
    ])
}
