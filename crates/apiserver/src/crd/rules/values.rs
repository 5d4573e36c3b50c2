//! Converts custom resources to CEL values: numbers as their schema says, times and bytes as such, and properties under their escaped
//! names.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use mullion_cel::{Key, Map, Value, call, list_by, of_json as plain, set_of};
use mullion_schema::structural::Schema;
use serde_json::Value as Json;

use super::types::escape;

/// Converts a value with its schema. The type and metadata of a resource have no schema.
pub(super) fn of_json(schema: &Schema, value: &Json, is_resource: bool) -> Value {
    match value {
        Json::Array(items) => {
            let items = items.iter().map(|item| match schema.items.as_deref() {
                Some(schema) => of_json(schema, item, schema.embedded),
                None => plain(item),
            });
            let items: Vec<Value> = items.collect();
            match schema.list_type.as_deref() {
                Some("set") => set_of(items),
                Some("map") => {
                    // kube-apiserver looks up keys by their escaped names in unescaped items, so only a name without special characters is
                    // found.
                    let fields = schema.list_keys.iter();
                    list_by(
                        items,
                        fields.map(|key| match escape(key) {
                            None => unseen(key),
                            Some(escaped) if escaped == *key => escaped,
                            Some(_) => String::new(),
                        }),
                    )
                }
                _ => Value::List(Arc::new(items)),
            }
        }
        Json::Object(map) => {
            let mut fields = HashMap::with_capacity(map.len());
            for (name, value) in map {
                let is_meta = matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                let (name, value) = match (schema.properties.get(name), schema.additional_schema())
                {
                    _ if is_resource && is_meta => (name.clone(), plain(value)),
                    // A null field counts as absent.
                    (Some(_), _) if value.is_null() => continue,
                    (Some(schema), _) => (
                        escape(name).unwrap_or_else(|| unseen(name)),
                        of_json(schema, value, schema.embedded),
                    ),
                    (None, Some(schema)) => (name.clone(), of_json(schema, value, schema.embedded)),
                    (None, None) => (unseen(name), Value::String(Arc::new(value.to_string()))),
                };
                fields.insert(Key::String(Arc::new(name)), value);
            }
            Value::Map(Map {
                map: Arc::new(fields),
            })
        }
        Json::Number(number) if schema.kind == "number" && !schema.int_or_string => {
            Value::Float(number.as_f64().unwrap_or(f64::NAN))
        }
        Json::String(text) if schema.kind == "string" => with_format(&schema.format, text),
        other => plain(other),
    }
}

/// Returns a field name that no rule can refer to. Fields of that name still count when objects are compared.
fn unseen(name: &str) -> String {
    format!("\0{name}")
}

/// Converts a string to the value that its format describes; if that fails, it stays a string.
fn with_format(format: &str, given: &str) -> Value {
    let text = Value::String(Arc::new(given.to_owned()));
    let read = match format {
        "byte" => {
            return STANDARD
                .decode(given)
                .map_or(text, |b| Value::Bytes(Arc::new(b)));
        }
        "duration" => call("duration", vec![text.clone()]),
        "date-time" => call("timestamp", vec![text.clone()]),
        "date" => call(
            "timestamp",
            vec![Value::String(Arc::new(format!("{given}T00:00:00Z")))],
        ),
        _ => return text,
    };
    read.unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use mullion_cel::{Budget, Failure};
    use serde_json::json;

    use super::*;
    use crate::crd::rules::{Rule, types};

    fn holds(schema: Json, object: Json, rule: &str) -> Result<Value, Failure> {
        let schema = Schema::parse(&schema);
        let kind = types::of_schema(&schema, false, "selfType").expect("rules can see it");
        let rule = Rule::compile(&schema, &kind, &json!({ "rule": rule }));
        let program = rule.program.expect("there is a rule");
        let program = program.expect("the rule compiles");
        let value = of_json(&schema, &object, false);
        program.evaluate(&[("self", value)], &mut Budget::default())
    }

    #[test]
    fn null_fields_are_not_there_and_unseen_ones_make_a_difference() {
        let text = json!({"type": "string", "nullable": true});
        let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": text, "un!seen": text}});
        let schema = json!({"type": "object", "properties": {
            "a": text, "m": {"type": "object", "additionalProperties": text}, "l": {"type": "array", "items": free}}});
        let object = json!({"a": null, "m": {"x": null}, "l": [
            {"known": "a"}, {"known": "a", "other": 1}, {"known": "a", "other": 1}, {"known": "a", "un!seen": "b"}, {"known": "a", "other": null}]});
        for rule in [
            "!has(self.a)",
            "'x' in self.m && type(self.m['x']) == null_type",
            "self.l[0] != self.l[1]",
            "self.l[1] == self.l[2]",
            "self.l[0] != self.l[3]",
        ] {
            let result = holds(schema.clone(), object.clone(), rule);
            assert_eq!(result, Ok(Value::Bool(true)), "{rule}");
        }
        assert_eq!(
            holds(schema, object, "self.a == 'x'").map_err(|error| error.to_string()),
            Err("no such key: a".to_owned())
        );
    }
}
