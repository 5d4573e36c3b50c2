//! Publishes the schema of a CustomResourceDefinition, rewritten as kube-apiserver does it: for v2 without what its readers
//! misunderstand. Source: k8s.io/apiextensions-apiserver: pkg/controller/openapi/builder and v2, pkg/apiserver/schema: Unfold.

use serde_json::{Map, Value, json};

use super::Dialect;

/// The keywords that combine other schemas.
const JUNCTIONS: [&str; 4] = ["allOf", "anyOf", "oneOf", "not"];

/// Rewrites a schema for publication. `meta` holds the apiVersion, kind and metadata properties, which embedded resources get as well.
pub(super) fn publish(schema: &mut Map<String, Value>, dialect: Dialect, meta: &[(&str, Value)]) {
    for word in ["example", "externalDocs"] {
        schema.remove(word);
    }
    match dialect {
        Dialect::V2 => simplify(schema),
        Dialect::V3 if is_set(schema, "x-kubernetes-int-or-string") => unfold(schema),
        Dialect::V3 => {}
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    let below = properties.into_iter().flat_map(Map::values_mut);
    below.for_each(|schema| publish_value(schema, dialect, meta));
    for word in ["items", "additionalProperties"] {
        if let Some(schema) = schema.get_mut(word) {
            publish_value(schema, dialect, meta);
        }
    }
    let hides_nothing =
        dialect == Dialect::V3 || !is_set(schema, "x-kubernetes-preserve-unknown-fields");
    if hides_nothing && is_set(schema, "x-kubernetes-embedded-resource") {
        add_meta(schema, meta);
    }
}

fn publish_value(schema: &mut Value, dialect: Dialect, meta: &[(&str, Value)]) {
    if let Some(schema) = schema.as_object_mut() {
        publish(schema, dialect, meta);
    }
}

fn is_set(schema: &Map<String, Value>, word: &str) -> bool {
    schema.get(word) == Some(&Value::Bool(true))
}

/// Adds the `anyOf` of integer and string to an int-or-string schema, unless it has one.
fn unfold(schema: &mut Map<String, Value>) {
    let union = json!([{"type": "integer"}, {"type": "string"}]);
    let first = schema.get("allOf").and_then(|all| all.pointer("/0/anyOf"));
    if first == Some(&union) || schema.get("anyOf") == Some(&union) {
        return;
    }
    if !schema.contains_key("anyOf") {
        schema.insert("anyOf".into(), union);
        return;
    }
    let all = schema.entry("allOf").or_insert_with(|| json!([]));
    if let Some(all) = all.as_array_mut() {
        // A schema has one `anyOf`, so the second one goes into an `allOf`.
        all.insert(0, json!({ "anyOf": union }));
    }
}

/// Removes what v2 lacks: defaults, junctors, and the types and properties of nullable and free-form values, which kubectl would reject.
fn simplify(schema: &mut Map<String, Value>) {
    schema.remove("default");
    JUNCTIONS.iter().for_each(|word| {
        schema.remove(*word);
    });
    let is_free = is_set(schema, "x-kubernetes-preserve-unknown-fields");
    if is_set(schema, "nullable") {
        schema.remove("type");
        schema.remove("nullable");
        schema.remove("items");
        schema.remove("properties");
    }
    if is_free {
        schema.remove("items");
        schema.remove("properties");
    }
    let kind = schema.get("type").and_then(Value::as_str);
    let is_bare_list = kind == Some("array") && !schema.contains_key("items");
    if is_bare_list || (is_free && kind == Some("object")) {
        schema.remove("type");
    }
    let may_be_null = |value: &Value| value["nullable"] == true;
    let nullable = schema.get("properties").and_then(Value::as_object);
    let nullable = nullable.into_iter().flatten();
    let nullable = nullable.filter(|(_, property)| may_be_null(property));
    let nullable: Vec<String> = nullable.map(|(name, _)| name.clone()).collect();
    // kubectl takes null for an absent field and would report a required one as missing.
    let drops_all = schema.get("additionalProperties").is_some_and(may_be_null);
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !drops_all && !nullable.iter().any(|other| name == other.as_str()));
        if required.is_empty() {
            schema.remove("required");
        }
    }
}

fn add_meta(schema: &mut Map<String, Value>, meta: &[(&str, Value)]) {
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    if let Some(properties) = properties.as_object_mut() {
        for (name, property) in meta {
            properties.insert((*name).to_owned(), property.clone());
        }
    }
    let required = schema.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|other| other == name) {
                required.push(name.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(schema: Value, dialect: Dialect) -> Value {
        let mut schema = schema;
        publish_value(&mut schema, dialect, &[("kind", json!({"type": "string"}))]);
        schema
    }

    #[test]
    fn a_number_or_a_text_is_one_of_both() {
        let either = json!({"x-kubernetes-int-or-string": true});
        let union = json!([{"type": "integer"}, {"type": "string"}]);
        let mut restricted = either.clone();
        restricted["anyOf"] = json!([{"minimum": 1}]);
        let told = published(either.clone(), Dialect::V3);
        assert_eq!(told["anyOf"], union);
        assert_eq!(published(told.clone(), Dialect::V3), told);
        assert_eq!(published(told, Dialect::V2), either);
        let told = published(restricted, Dialect::V3);
        assert_eq!(told["allOf"], json!([{ "anyOf": union }]));
    }

    #[test]
    fn version_2_says_nothing_of_what_may_be_anything() {
        for (schema, told) in [
            (
                json!({"type": "string", "nullable": true, "pattern": "a"}),
                json!({"pattern": "a"}),
            ),
            (
                json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}}),
                json!({"x-kubernetes-preserve-unknown-fields": true}),
            ),
            (
                json!({"type": "object", "required": ["a", "b"], "properties": {
                    "a": {"type": "string", "nullable": true}, "b": {"type": "string", "example": "x", "default": "y"}}}),
                json!({"type": "object", "required": ["b"], "properties": {"a": {}, "b": {"type": "string"}}}),
            ),
            (
                json!({"type": "object", "not": {"required": ["a"]}, "additionalProperties": {"type": "string", "nullable": true}}),
                json!({"type": "object", "additionalProperties": {}}),
            ),
        ] {
            assert_eq!(published(schema.clone(), Dialect::V2), told, "{schema}");
        }
    }

    #[test]
    fn a_resource_inside_has_a_type() {
        let inside = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
        let told = published(inside.clone(), Dialect::V3);
        assert_eq!(told["required"], json!(["kind", "apiVersion"]));
        assert_eq!(told["properties"], json!({"kind": {"type": "string"}}));
        assert_eq!(published(inside, Dialect::V2).get("properties"), None);
    }
}
