//! A structural schema, parsed from the `openAPIV3Schema` of a definition.
//!
//! The same struct serves structural and value validation. The API server checks which keywords a definition may combine, so this
//! parser accepts any combination. [`Schema::to_type`] makes the type that decoding, pruning and field ownership use.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use mullion_kube_text::{formats, golang::regexp};
use regex::Regex;
use serde_json::Value;

use crate::{Arena, Field, List, ListKind, Name, Node, Presence, Scalar, Struct, Type, TypeId};

const OBJECT_META: &str = "apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The value of `additionalProperties` or `additionalItems`: a schema or a boolean.
#[derive(Clone, Debug)]
pub enum Additional {
    /// Whether any value is valid.
    Allowed(bool),
    /// The schema of the values.
    Schema(Box<Schema>),
}

/// A JSON schema with the extensions of custom resource definitions.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// The JSON type; empty if the schema has none.
    pub kind: String,
    /// The string format, for example `date-time`; empty if the schema has none.
    pub format: String,
    /// Whether null is valid.
    pub nullable: bool,
    /// The default of an absent value.
    pub default: Option<Value>,
    /// The schemas of the properties.
    pub properties: BTreeMap<String, Schema>,
    /// What other properties may be; `None` if the schema does not say.
    pub additional: Option<Additional>,
    /// The schema of the items of a list.
    pub items: Option<Box<Schema>>,
    /// Whether unknown fields are kept (`x-kubernetes-preserve-unknown-fields`).
    pub preserve: bool,
    /// Whether the object is an embedded resource (`x-kubernetes-embedded-resource`).
    pub embedded: bool,
    /// Whether integers and strings are valid (`x-kubernetes-int-or-string`).
    pub int_or_string: bool,
    /// The list type for server-side apply (`x-kubernetes-list-type`).
    pub list_type: Option<String>,
    /// The key fields of items (`x-kubernetes-list-map-keys`).
    pub list_keys: Vec<String>,
    /// The map type for server-side apply (`x-kubernetes-map-type`).
    pub map_type: Option<String>,
    /// The properties that must be present.
    pub required: Vec<String>,
    /// The valid values; empty if all are.
    pub enumeration: Vec<Value>,
    /// The least number.
    pub minimum: Option<f64>,
    /// Whether `minimum` itself is invalid.
    pub exclusive_minimum: bool,
    /// The largest number.
    pub maximum: Option<f64>,
    /// Whether `maximum` itself is invalid.
    pub exclusive_maximum: bool,
    /// The number of which a value must be a multiple.
    pub multiple_of: Option<f64>,
    /// The fewest characters of a string.
    pub min_length: Option<u64>,
    /// The most characters of a string.
    pub max_length: Option<u64>,
    /// The regular expression that a string must match.
    pub pattern: Option<Pattern>,
    /// The fewest items of a list.
    pub min_items: Option<u64>,
    /// The most items of a list.
    pub max_items: Option<u64>,
    /// Whether all items of a list must differ.
    pub unique_items: bool,
    /// The fewest properties of an object.
    pub min_properties: Option<u64>,
    /// The most properties of an object.
    pub max_properties: Option<u64>,
    /// The schemas that must all accept a value.
    pub all_of: Vec<Schema>,
    /// The schemas of which one or more must accept a value.
    pub any_of: Vec<Schema>,
    /// The schemas of which exactly one must accept a value.
    pub one_of: Vec<Schema>,
    /// The schema that must not accept a value.
    pub not: Option<Box<Schema>>,
    /// Whether this schema, or one below it, has CEL rules.
    pub has_rules: bool,
    /// Whether this schema, or one below it, is a list of type set or map.
    pub has_keys: bool,
    /// Whether this schema, or one below it, is an embedded resource.
    pub has_embedded: bool,
}

/// A regular expression with its source, which error messages show.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The expression as the definition has it.
    pub source: String,
    /// The compiled expression; `None` if the source is invalid, which every definition is refused for. It then matches everything.
    pub regex: Option<Regex>,
}

impl Schema {
    /// Parses a JSON schema; keywords of the wrong type are ignored.
    pub fn parse(value: &Value) -> Schema {
        let text = |field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
        let flag = |field: &str| value.get(field).and_then(Value::as_bool).unwrap_or(false);
        let number = |field: &str| value.get(field).and_then(Value::as_f64);
        let count = |field: &str| value.get(field).and_then(Value::as_u64);
        let texts = |field: &str| -> Vec<String> {
            let items = value
                .get(field)
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let many = |field: &str| -> Vec<Schema> {
            value
                .get(field)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(Schema::parse)
                .collect()
        };
        let one = |field: &str| {
            value
                .get(field)
                .filter(|schema| schema.is_object())
                .map(|schema| Box::new(Schema::parse(schema)))
        };
        let properties: BTreeMap<String, Schema> = value
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(name, schema)| (name.clone(), Schema::parse(schema)))
            .collect();
        let additional = match value.get("additionalProperties") {
            Some(Value::Bool(allowed)) => Some(Additional::Allowed(*allowed)),
            Some(schema @ Value::Object(_)) => {
                Some(Additional::Schema(Box::new(Schema::parse(schema))))
            }
            _ => None,
        };
        let items = one("items");
        // The structural check forbids these extensions in the branches of `allOf`, `anyOf`, `oneOf` and `not`, so only these schemas
        // matter.
        let below = properties
            .values()
            .chain(items.as_deref())
            .chain(match &additional {
                Some(Additional::Schema(schema)) => Some(&**schema),
                _ => None,
            });
        let below: Vec<&Schema> = below.into_iter().collect();
        let has_rules = value
            .get("x-kubernetes-validations")
            .is_some_and(|rules| !rules.is_null())
            || below.iter().any(|schema| schema.has_rules);
        let list_type = text("x-kubernetes-list-type");
        let has_keys = matches!(list_type.as_deref(), Some("map" | "set"))
            || below.iter().any(|schema| schema.has_keys);
        let embedded = flag("x-kubernetes-embedded-resource");
        let has_embedded = embedded || below.iter().any(|schema| schema.has_embedded);
        let kind = text("type").unwrap_or_default();
        // kube-apiserver takes formats out that it does not know for the type.
        let format = text("format").filter(|format| formats::is_known_of(&kind, format));
        Schema {
            kind,
            format: format.unwrap_or_default(),
            nullable: flag("nullable"),
            default: value.get("default").cloned(),
            additional,
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            embedded,
            int_or_string: flag("x-kubernetes-int-or-string"),
            list_type,
            list_keys: texts("x-kubernetes-list-map-keys"),
            map_type: text("x-kubernetes-map-type"),
            required: texts("required"),
            enumeration: value
                .get("enum")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
            minimum: number("minimum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            maximum: number("maximum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            multiple_of: number("multipleOf"),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            pattern: text("pattern")
                .filter(|source| !source.is_empty())
                .map(|source| Pattern {
                    regex: regexp::compile(&source).ok(),
                    source,
                }),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            unique_items: flag("uniqueItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            all_of: many("allOf"),
            any_of: many("anyOf"),
            one_of: many("oneOf"),
            not: one("not"),
            properties,
            items,
            has_rules,
            has_keys,
            has_embedded,
        }
    }

    /// Returns the schema of the properties that `properties` does not list.
    pub fn additional_schema(&self) -> Option<&Schema> {
        match &self.additional {
            Some(Additional::Schema(schema)) => Some(schema),
            _ => None,
        }
    }

    /// Returns the type of a value with this schema inside a custom resource.
    pub fn to_value_type(&self) -> Type {
        let mut builder = Builder::new();
        let id = builder.value(self);
        Type::of(Arc::new(builder.arena), id)
    }

    /// Returns the type of a custom resource with this schema.
    pub fn to_type(&self) -> Type {
        let mut builder = Builder::new();
        let mut root = builder.object(self);
        // Every resource has these fields, whatever its schema says of them.
        for name in ["apiVersion", "kind"] {
            let json = builder.json;
            upsert(&mut root, field(name, json, Presence::Verbatim));
        }
        upsert(
            &mut root,
            field("metadata", builder.metadata, Presence::Optional),
        );
        let id = builder.arena.push(Node::Struct(root));
        Type::of(Arc::new(builder.arena), id)
    }
}

fn field(name: &str, id: TypeId, presence: Presence) -> Field {
    Field {
        name: Name::new(name.to_owned()),
        id,
        presence,
        go: Cow::Borrowed(""),
        tags: Vec::new(),
        required: false,
        retain_keys: false,
        replace: false,
        declared: "".into(),
        place: 0,
    }
}

fn upsert(fields: &mut Struct, field: Field) {
    match fields
        .fields
        .binary_search_by(|present| present.name.cmp(&field.name))
    {
        Ok(at) => fields.fields[at] = field,
        Err(at) => fields.fields.insert(at, field),
    }
}

struct Builder {
    arena: Arena,
    /// The node of values without structure.
    json: TypeId,
    /// The node of ObjectMeta.
    metadata: TypeId,
}

impl Builder {
    fn new() -> Self {
        let mut builder = Builder {
            arena: Arena::default(),
            json: TypeId(0),
            metadata: TypeId(0),
        };
        builder.json = builder.arena.push(Node::Scalar(Scalar::Json));
        let builtin = Type::builtin(OBJECT_META).expect("the table has ObjectMeta");
        builder.metadata = builder.copy(&builtin);
        builder
    }

    fn value(&mut self, schema: &Schema) -> TypeId {
        if schema.int_or_string {
            return self.scalar(Scalar::IntOrString);
        }
        match schema.kind.as_str() {
            "string" => self.scalar(Scalar::String),
            "boolean" => self.scalar(Scalar::Bool),
            "integer" => self.scalar(Scalar::Int64),
            "number" => self.scalar(Scalar::Double),
            "array" => {
                let item = match schema.items.as_deref() {
                    // A list that preserves unknown fields preserves those of its items too.
                    Some(items) if schema.preserve => self.value(&Schema {
                        preserve: true,
                        ..items.clone()
                    }),
                    Some(items) => self.value(items),
                    None => self.json,
                };
                let kind = match schema.list_type.as_deref() {
                    Some("map") => ListKind::Map,
                    Some("set") => ListKind::Set,
                    _ => ListKind::Atomic,
                };
                let default_of = |key: &String| {
                    schema
                        .items
                        .as_deref()?
                        .properties
                        .get(key)?
                        .default
                        .clone()
                };
                let key_defaults = schema
                    .list_keys
                    .iter()
                    .filter_map(|key| Some((Cow::Owned(key.clone()), default_of(key)?)))
                    .collect();
                let keys = schema
                    .list_keys
                    .iter()
                    .map(|key| Cow::Owned(key.clone()))
                    .collect();
                self.arena.push(Node::List(List {
                    item,
                    kind,
                    declared: schema.list_type.is_some(),
                    keys,
                    key_defaults,
                    merge_key: None,
                    merge: false,
                    retain_keys: false,
                }))
            }
            "object" => {
                // An object that has properties too is a struct; `additionalProperties` is then the type of its `rest`.
                let plain_map =
                    schema.properties.is_empty() && !schema.preserve && !schema.embedded;
                match schema.additional_schema().filter(|_| plain_map) {
                    Some(values) => {
                        let value = self.value(values);
                        self.arena.push(Node::Map {
                            value,
                            atomic: schema.map_type.as_deref() == Some("atomic"),
                        })
                    }
                    None => {
                        let object = self.object(schema);
                        self.arena.push(Node::Struct(object))
                    }
                }
            }
            _ if schema.preserve => {
                let object = Struct {
                    any: true,
                    ..self.object(schema)
                };
                self.arena.push(Node::Struct(object))
            }
            _ => self.json,
        }
    }

    fn scalar(&mut self, scalar: Scalar) -> TypeId {
        self.arena.push(Node::Scalar(scalar))
    }

    fn object(&mut self, schema: &Schema) -> Struct {
        let mut fields = Struct {
            atomic: schema.map_type.as_deref() == Some("atomic"),
            preserve: schema.preserve
                || matches!(schema.additional, Some(Additional::Allowed(true))),
            shallow: matches!(schema.additional, Some(Additional::Allowed(_))),
            embedded: schema.embedded,
            rest: schema.additional_schema().map(|rest| self.value(rest)),
            custom: true,
            ..Struct::default()
        };
        for (name, schema) in &schema.properties {
            let id = self.value(schema);
            upsert(&mut fields, field(name, id, Presence::Verbatim));
        }
        if schema.embedded {
            for name in ["apiVersion", "kind"] {
                upsert(&mut fields, field(name, self.json, Presence::Verbatim));
            }
            upsert(
                &mut fields,
                field("metadata", self.metadata, Presence::Verbatim),
            );
        }
        fields
    }

    /// Copies a built-in type, which is not recursive, into this arena.
    fn copy(&mut self, kind: &Type) -> TypeId {
        self.copy_node(kind.arena(), kind.id())
    }

    fn copy_node(&mut self, from: &Arena, id: TypeId) -> TypeId {
        let node = match from.node(id).clone() {
            Node::Struct(mut fields) => {
                for field in &mut fields.fields {
                    field.id = self.copy_node(from, field.id);
                }
                Node::Struct(fields)
            }
            Node::Map { value, atomic } => Node::Map {
                value: self.copy_node(from, value),
                atomic,
            },
            Node::List(list) => Node::List(List {
                item: self.copy_node(from, list.item),
                ..list
            }),
            scalar @ Node::Scalar(_) => scalar,
        };
        self.arena.push(node)
    }
}
