//! Validates resources inside of resources (`x-kubernetes-embedded-resource`): their type and metadata follow the rules for any object.
//! Source: k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta.

use mullion_kube_text::{
    field::{Errors, Path},
    names::{self, NameRule},
    validation::metadata,
};
use mullion_schema::{
    Type,
    decode::{self, DecodeError},
    structural::Schema,
};
use serde_json::Value;

use super::each_below;

const OBJECT_META: &str = "apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Checks the embedded resources in a value. The path of the whole object is `None`; it is checked itself only if its schema is embedded.
pub(crate) fn check(schema: &Schema, value: &Value, path: Option<&Path<'_>>, errors: &mut Errors) {
    if !schema.has_embedded {
        return;
    }
    if schema.embedded && value.is_object() {
        resource(value, path, errors);
    }
    each_below(schema, value, path, |schema, value, path| {
        check(schema, value, Some(path), errors);
    });
}

/// Checks the type and the metadata of one resource.
pub(crate) fn resource(value: &Value, path: Option<&Path<'_>>, errors: &mut Errors) {
    let child = |name| path.map_or(Path::new(name), |path| path.child(name));
    let (version, kind) = (value.get("apiVersion"), value.get("kind"));
    for (name, given) in [("apiVersion", version), ("kind", kind)] {
        if given.is_none() {
            errors.required(&child(name), "");
        }
    }
    let mut text = |name, given: Option<&Value>, wrong: &dyn Fn(&str) -> Option<String>| {
        let why = match given {
            None => return,
            Some(Value::String(text)) if text.is_empty() => Some("must not be empty".to_owned()),
            Some(Value::String(text)) => wrong(text),
            Some(_) => Some("must be a string".to_owned()),
        };
        if let Some((why, given)) = why.zip(given) {
            errors.invalid(&child(name), given.clone(), why);
        }
    };
    text("apiVersion", version, &|version| {
        let has_parts = version.matches('/').count() > 1;
        has_parts.then(|| format!("unexpected GroupVersion string: {version}"))
    });
    text("kind", kind, &|kind| {
        let sentences = names::dns1035_label(&kind.to_lowercase());
        let why = || {
            format!(
                "may have mixed case, but should otherwise match: {}",
                sentences.join(",")
            )
        };
        (!sentences.is_empty()).then(why)
    });
    if let Some(given) = value.get("metadata") {
        let at = child("metadata");
        match read_metadata(given) {
            Err(why) => errors.invalid(&at, given.clone(), why.to_string()),
            Ok(mut read) => {
                // An embedded resource needs no name, but the validation of ObjectMeta requires one.
                if metadata_text(&read, "name").is_empty() {
                    read["name"] = "fakename".into();
                }
                let namespaced = !metadata_text(&read, "namespace").is_empty();
                metadata::object_meta(errors, &at, &read, namespaced, NameRule::PathSegment);
            }
        }
    }
}

/// Decodes the metadata as an ObjectMeta.
pub(crate) fn read_metadata(given: &Value) -> Result<Value, DecodeError> {
    let kind = Type::builtin(OBJECT_META).expect("the table has ObjectMeta");
    match decode::value(&kind, given.clone())?.value {
        Value::Object(map) => Ok(Value::Object(map)),
        _ => Ok(Value::Object(serde_json::Map::new())),
    }
}

fn metadata_text<'v>(metadata: &'v Value, field: &str) -> &'v str {
    metadata
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_embedded_resource_has_the_type_and_metadata_of_an_object() {
        let schema = json!({"type": "object", "additionalProperties": {
            "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}});
        let schema = Schema::parse(&schema);
        let found = |value: Value| {
            let value = json!({ "a": value });
            causes(|errors| check(&schema, &value, Some(&Path::new("spec")), errors))
        };
        let empty: [&str; 0] = [];
        assert_eq!(found(json!({"apiVersion": "v1", "kind": "Pod"})), empty);
        assert_eq!(
            found(json!({"metadata": {}})),
            [
                "spec[a].apiVersion: Required value",
                "spec[a].kind: Required value"
            ]
        );
        assert_eq!(
            found(json!({"apiVersion": "", "kind": 1})),
            [
                "spec[a].apiVersion: Invalid value: \"\": must not be empty",
                "spec[a].kind: Invalid value: 1: must be a string"
            ]
        );
        assert_eq!(
            found(json!({"apiVersion": "a/b/c", "kind": "Pod", "metadata": {"name": ".."}})),
            [
                "spec[a].apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                "spec[a].metadata.name: Invalid value: \"..\": may not be '..'"
            ]
        );
        assert_eq!(
            found(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 1}})),
            [
                "spec[a].metadata: Invalid value: {\"name\":1}: json: cannot unmarshal number into Go struct field ObjectMeta.name of type string"
            ]
        );
    }
}
