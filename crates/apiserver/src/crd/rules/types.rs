//! The CEL types of values with a structural schema. Source: k8s.io/apiserver/pkg/cel/common: SchemaDeclType.

use std::{collections::BTreeMap, sync::Arc};

use mullion_cel::{Object, RESERVED, Type};
use mullion_schema::structural::Schema;

/// Returns the type of values with a schema, or `None` if rules cannot see them. The root of a resource also has its type and name.
pub(crate) fn of_schema(schema: &Schema, is_resource: bool, name: &str) -> Option<Type> {
    if schema.int_or_string {
        return Some(Type::Dyn);
    }
    match schema.kind.as_str() {
        "array" => {
            let items = schema.items.as_deref()?;
            Some(Type::list(of_schema(
                items,
                items.embedded,
                &format!("{name}.@items"),
            )?))
        }
        "object" => {
            if let Some(values) = schema.additional_schema() {
                let values = of_schema(values, values.embedded, &format!("{name}.@values"))?;
                return Some(Type::map(Type::String, values));
            }
            let mut fields = BTreeMap::new();
            for (property, schema) in &schema.properties {
                let below = of_schema(schema, schema.embedded, &format!("{name}.{property}"));
                if let Some((field, kind)) = escape(property).zip(below) {
                    fields.insert(field, kind);
                }
            }
            // These replace what the schema declares: rules see only the names in a resource's metadata.
            if is_resource {
                let texts = |names: [&str; 2]| names.map(|name| (name.to_owned(), Type::String));
                fields.extend(texts(["apiVersion", "kind"]));
                let metadata = Object {
                    name: format!("{name}.metadata"),
                    fields: texts(["generateName", "name"]).into(),
                    open: false,
                };
                fields.insert("metadata".to_owned(), Type::Object(Arc::new(metadata)));
            }
            let object = Object {
                name: name.to_owned(),
                fields,
                open: false,
            };
            Some(Type::Object(Arc::new(object)))
        }
        "string" => Some(match schema.format.as_str() {
            "byte" => Type::Bytes,
            "duration" => Type::Duration,
            "date" | "date-time" => Type::Timestamp,
            _ => Type::String,
        }),
        "boolean" => Some(Type::Bool),
        "number" => Some(Type::Double),
        "integer" => Some(Type::Int),
        _ => None,
    }
}

/// Returns the name of a property in CEL, or `None` if CEL cannot refer to it.
pub(crate) fn escape(name: &str) -> Option<String> {
    let mut letters = name.chars();
    let may_begin = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '.' | '-' | '/');
    let may_follow = |c: char| may_begin(c) || c.is_ascii_digit();
    if !letters.next().is_some_and(may_begin) || !letters.all(may_follow) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let underscores = name.replace("__", "__underscores__");
    let mut escaped = String::with_capacity(underscores.len());
    for c in underscores.chars() {
        match c {
            '.' => escaped.push_str("__dot__"),
            '-' => escaped.push_str("__dash__"),
            '/' => escaped.push_str("__slash__"),
            c => escaped.push(c),
        }
    }
    Some(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_called_what_cel_can_say() {
        for (name, escaped) in [
            ("plain", Some("plain")),
            ("a__b", Some("a__underscores__b")),
            ("a-b.c/d", Some("a__dash__b__dot__c__slash__d")),
            ("namespace", Some("__namespace__")),
            ("int", Some("int")),
            ("1st", None),
            ("$ref", None),
        ] {
            assert_eq!(escape(name).as_deref(), escaped, "{name}");
        }
    }
}
