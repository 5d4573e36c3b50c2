//! Generates schemas from types: each named type that is reached becomes one component of the document.

use mullion_kinds::request::Lookup;
use mullion_schema::{Field, List, ListKind, Node, Scalar, Struct, Type, descriptions};
use serde_json::{Map, Value, json};

use super::{Dialect, custom, enums, reference, scheme, values, wire};
use crate::registry::Row;

const OBJECT_META: &str = "apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "apimachinery.pkg.apis.meta.v1.ListMeta";
const KIND_EXTENSION: &str = "x-kubernetes-group-version-kind";

/// The components of one document.
pub(super) struct Schemas<'a> {
    dialect: Dialect,
    lookup: &'a dyn Lookup,
    done: Map<String, Value>,
    waiting: Vec<Type>,
}

impl<'a> Schemas<'a> {
    pub(super) fn new(dialect: Dialect, lookup: &'a dyn Lookup) -> Self {
        Schemas {
            dialect,
            lookup,
            done: Map::new(),
            waiting: Vec::new(),
        }
    }

    /// Adds the schemas of a row's kind and of its list, and returns the name of the kind's component.
    pub(super) fn add_kind(&mut self, row: &Row) -> String {
        let name = if row.custom {
            self.add_custom(row)
        } else {
            self.add_builtin(row)
        };
        self.tag(&name, row, &row.resource.kind);
        if !row.resource.rules.transient {
            self.add_list(row, &name);
        }
        name
    }

    /// Adds the components that a path item refers to.
    pub(super) fn reach(&mut self, item: &Value) {
        match item {
            Value::Object(map) => match map.get("$ref").and_then(Value::as_str) {
                Some(reference) => self.add_referred(reference),
                None => map.values().for_each(|value| self.reach(value)),
            },
            Value::Array(items) => items.iter().for_each(|item| self.reach(item)),
            _ => {}
        }
    }

    fn add_referred(&mut self, reference: &str) {
        let component = reference.rsplit('/').next().unwrap_or_default();
        match component.strip_prefix(wire::PREFIX) {
            Some(wire::PATCH_BODY) => {
                self.named(wire::PATCH_BODY, json!({"type": "object"}));
            }
            Some(name) if !self.done.contains_key(component) => {
                if let Some(kind) = Type::builtin(name) {
                    self.of(&kind);
                }
            }
            _ => {}
        }
    }

    /// Generates the schemas that were reached and not generated yet, and returns all.
    pub(super) fn finish(mut self) -> Map<String, Value> {
        self.write_waiting();
        self.done
    }

    fn add_builtin(&mut self, row: &Row) -> String {
        self.of(&row.resource.schema);
        self.write_waiting();
        match row.resource.schema.node() {
            Node::Struct(fields) => wire::component_of(&fields.name),
            _ => row.resource.kind.to_string(),
        }
    }

    /// Adds the schema of a custom resource, from its definition, or of a provided one, from the embedding program.
    fn add_custom(&mut self, row: &Row) -> String {
        let resource = &row.resource;
        let given = resource
            .behaviour
            .unstored()
            .map(|kind| kind.openapi().clone());
        let definition = format!("{}.{}", resource.plural, resource.group);
        let definition = self.lookup.find(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            None,
            &definition,
        );
        let versions = definition
            .as_deref()
            .and_then(|definition| definition["spec"]["versions"].as_array().cloned());
        let version = versions
            .into_iter()
            .flatten()
            .find(|version| version["name"] == *resource.version);
        let selectable = version.as_ref().map(selectable_fields).unwrap_or_default();
        let sent = version.map(|mut version| version["schema"]["openAPIV3Schema"].take());
        let metadata =
            Type::builtin(OBJECT_META).map(|metadata| self.standard("metadata", &metadata));
        let mut meta: Vec<(&str, Value)> = Vec::new();
        for field in ["apiVersion", "kind"] {
            let mut property = json!({"type": "string"});
            describe(&mut property, descriptions::of_field("", field));
            meta.push((field, property));
        }
        meta.extend(metadata.map(|metadata| ("metadata", metadata)));
        let is_given = given.is_some();
        let schema = given.or(sent);
        let mut schema = schema
            .and_then(|schema| schema.as_object().cloned())
            .unwrap_or_default();
        let is_free = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&true.into());
        if self.dialect == Dialect::V2 && is_free && !is_given {
            // kubectl would take the listed properties for the only ones, so list none for a free-form schema.
            schema = Map::new();
        } else {
            if !is_given {
                custom::publish(&mut schema, self.dialect, &meta);
            }
            let properties = schema.entry("properties").or_insert_with(|| json!({}));
            if let Some(properties) = properties.as_object_mut() {
                for (field, property) in meta {
                    properties.insert(field.into(), property);
                }
            }
        }
        schema.insert("type".into(), "object".into());
        if !selectable.is_empty() {
            schema.insert("x-kubernetes-selectable-fields".into(), selectable.into());
        }
        let group: Vec<&str> = resource.group.split('.').rev().collect();
        let name = format!("{}.{}.{}", group.join("."), resource.version, resource.kind);
        self.done.insert(name.clone(), schema.into());
        name
    }

    fn add_list(&mut self, row: &Row, item: &str) {
        let (kind, list_kind) = (&row.resource.kind, row.list_kind());
        let text = |field| descriptions::of_field("", field);
        let metadata = Type::builtin(LIST_META).map_or_else(
            || json!({"type": "object"}),
            |metadata| self.standard("metadata", &metadata),
        );
        // kube-openapi publishes the empty default of items in v3 only, and none for custom resources.
        let default =
            (self.dialect == Dialect::V3 && !row.is_defined()).then(|| ("default", json!({})));
        let item_schema = self.with_keywords(reference(self.dialect, item), default);
        let name = wire::list_of(row, item);
        let list = json!({
            "description": format!("A list of {kind} objects."),
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string", "description": text("apiVersion")},
                "items": {
                    "description": "The objects, or one page of them.",
                    "type": "array",
                    "items": item_schema,
                },
                "kind": {"type": "string", "description": text("kind")},
                "metadata": metadata,
            },
        });
        // Two versions of a kind may share their schema.
        self.done.entry(name.clone()).or_insert(list);
        self.tag(&name, row, &list_kind);
    }

    /// Records in a component which kind it is the schema of.
    fn tag(&mut self, name: &str, row: &Row, kind: &str) {
        let resource = &row.resource;
        let tag = json!({"group": *resource.group, "version": *resource.version, "kind": kind});
        let Some(schema) = self.done.get_mut(name).and_then(Value::as_object_mut) else {
            return;
        };
        match schema.entry(KIND_EXTENSION).or_insert_with(|| json!([])) {
            Value::Array(tags) if !tags.contains(&tag) => tags.push(tag),
            _ => {}
        }
    }

    fn write_waiting(&mut self) {
        while let Some(next) = self.waiting.pop() {
            if let Node::Struct(fields) = next.node() {
                let schema = self.object(&next, fields);
                self.done.insert(wire::component_of(&fields.name), schema);
            }
        }
    }

    /// Returns the schema of a type, or a reference to it if the type has a name.
    fn of(&mut self, kind: &Type) -> Value {
        match kind.node() {
            Node::Struct(fields) if fields.name.is_empty() => self.object(kind, fields),
            Node::Struct(fields) => {
                let name = wire::component_of(&fields.name);
                if !self.done.contains_key(&name) {
                    // Marks the type as reached before its fields are visited: types such as JSONSchemaProps contain themselves.
                    self.done.insert(name.clone(), Value::Null);
                    // The field may declare other list and map types than the named type itself, so take the declared type.
                    let own = Type::builtin(&fields.name);
                    self.waiting.push(own.unwrap_or_else(|| kind.clone()));
                }
                reference(self.dialect, &name)
            }
            Node::Map { value, atomic } => {
                let values = self.item(&kind.sibling(*value));
                let mut schema = json!({"type": "object", "additionalProperties": values});
                if *atomic {
                    schema["x-kubernetes-map-type"] = "atomic".into();
                }
                schema
            }
            Node::List(list) => self.list(kind, list),
            Node::Scalar(scalar) => self.scalar(*scalar),
        }
    }

    fn object(&mut self, kind: &Type, fields: &Struct) -> Value {
        let mut properties = Map::new();
        for field in &fields.fields {
            let property = self.property(fields, field, &kind.sibling(field.id));
            properties.insert(field.name.to_string(), property);
        }
        // Client generators make constructors from the required fields, so they keep the order of Go's fields.
        let mut required: Vec<&Field> = fields
            .fields
            .iter()
            .filter(|field| field.required)
            .collect();
        required.sort_by_key(|field| field.place);
        let required: Vec<Value> = required
            .iter()
            .map(|field| Value::from(&*field.name))
            .collect();
        let mut schema = Map::new();
        if let Some(text) = descriptions::of_type(&fields.name) {
            schema.insert("description".into(), text.into());
        }
        schema.insert("type".into(), "object".into());
        if !properties.is_empty() {
            schema.insert("properties".into(), properties.into());
        }
        if !required.is_empty() {
            schema.insert("required".into(), required.into());
        }
        if fields.atomic {
            schema.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        if let Some(tags) = scheme::tags(&fields.name) {
            schema.insert(KIND_EXTENSION.into(), tags);
        }
        if let Some(unions) = values::unions(&fields.name) {
            schema.insert("x-kubernetes-unions".into(), unions);
        }
        if fields.preserve {
            schema.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
        }
        schema.into()
    }

    /// Returns the schema of a field: that of its type, and what holds only for the field.
    fn property(&mut self, owner: &Struct, field: &Field, kind: &Type) -> Value {
        let mut schema = self.of(kind);
        let text = descriptions::of_field(&owner.name, &field.name);
        let description = text.map(|text| ("description", Value::from(text)));
        let default = values::of_field(owner, field, kind.node())
            .filter(|_| self.dialect == Dialect::V3)
            .map(|default| ("default", default));
        if let Some(set) = enums::of(&owner.name, &field.go) {
            let holder = match kind.node() {
                Node::List(_) => &mut schema["items"],
                Node::Map { .. } => &mut schema["additionalProperties"],
                _ => &mut schema,
            };
            holder["enum"] = set.iter().copied().map(Value::from).collect();
        }
        let strategy = match kind.node() {
            Node::List(_) => None,
            _ if field.retain_keys => Some("retainKeys"),
            _ if field.replace => Some("replace"),
            _ => None,
        };
        let strategy = strategy.map(|strategy| ("x-kubernetes-patch-strategy", strategy.into()));
        // The schemas of lists and atomic maps carry this already. To Go, bytes are a list.
        let owned = match (kind.node(), &*field.declared) {
            (Node::Scalar(Scalar::Bytes), "atomic") => {
                Some(("x-kubernetes-list-type", "atomic".into()))
            }
            (Node::Struct(_) | Node::Map { .. }, "granular") => {
                Some(("x-kubernetes-map-type", "granular".into()))
            }
            _ => None,
        };
        schema = self.with_keywords(schema, strategy.into_iter().chain(owned));
        self.with_keywords(schema, description.into_iter().chain(default))
    }

    /// Returns the schema of a list's items or a map's values.
    fn item(&mut self, kind: &Type) -> Value {
        let schema = self.of(kind);
        let default = values::of_item(kind.node()).filter(|_| self.dialect == Dialect::V3);
        self.with_keywords(schema, default.map(|default| ("default", default)))
    }

    /// Returns the schema of a field that has the same meaning in every type.
    fn standard(&mut self, field: &str, kind: &Type) -> Value {
        let schema = self.of(kind);
        let text = descriptions::of_field("", field);
        self.with_keywords(schema, text.map(|text| ("description", text.into())))
    }

    /// Adds keywords to a schema. In v3 a reference hides the keywords beside it, so the reference goes into an `allOf`.
    fn with_keywords(
        &self,
        mut schema: Value,
        more: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Value {
        for (name, value) in more {
            if self.dialect == Dialect::V3 && schema.get("$ref").is_some() {
                schema = json!({"allOf": [schema]});
            }
            schema[name] = value;
        }
        schema
    }

    fn list(&mut self, kind: &Type, list: &List) -> Value {
        let mut schema = json!({"type": "array", "items": self.item(&kind.sibling(list.item))});
        match list.kind {
            ListKind::Atomic if !list.declared => {}
            ListKind::Atomic => schema["x-kubernetes-list-type"] = "atomic".into(),
            ListKind::Set => schema["x-kubernetes-list-type"] = "set".into(),
            ListKind::Map => {
                schema["x-kubernetes-list-type"] = "map".into();
                schema["x-kubernetes-list-map-keys"] =
                    list.keys.iter().map(|key| Value::from(&**key)).collect();
            }
        }
        if let Some(key) = &list.merge_key {
            schema["x-kubernetes-patch-merge-key"] = (**key).into();
        }
        if list.merge {
            let strategy = if list.retain_keys {
                "merge,retainKeys"
            } else {
                "merge"
            };
            schema["x-kubernetes-patch-strategy"] = strategy.into();
        }
        schema
    }

    fn scalar(&mut self, scalar: Scalar) -> Value {
        match scalar {
            Scalar::String => json!({"type": "string"}),
            Scalar::Bool => json!({"type": "boolean"}),
            Scalar::Int32 => json!({"type": "integer", "format": "int32"}),
            Scalar::Int64 => json!({"type": "integer", "format": "int64"}),
            Scalar::Double => json!({"type": "number", "format": "double"}),
            Scalar::Bytes => json!({"type": "string", "format": "byte"}),
            Scalar::Quantity => {
                let schema = match self.dialect {
                    Dialect::V2 => json!({"type": "string"}),
                    Dialect::V3 => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
                };
                self.named("apimachinery.pkg.api.resource.Quantity", schema)
            }
            Scalar::IntOrString => {
                let schema = match self.dialect {
                    Dialect::V2 => json!({"type": "string", "format": "int-or-string"}),
                    Dialect::V3 => {
                        json!({"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"})
                    }
                };
                self.named("apimachinery.pkg.util.intstr.IntOrString", schema)
            }
            Scalar::Time => self.named(
                "apimachinery.pkg.apis.meta.v1.Time",
                json!({"type": "string", "format": "date-time"}),
            ),
            Scalar::MicroTime => self.named(
                "apimachinery.pkg.apis.meta.v1.MicroTime",
                json!({"type": "string", "format": "date-time"}),
            ),
            Scalar::FieldsV1 => self.named(
                "apimachinery.pkg.apis.meta.v1.FieldsV1",
                json!({"type": "object"}),
            ),
            Scalar::RawExtension => self.named(
                "apimachinery.pkg.runtime.RawExtension",
                json!({"type": "object"}),
            ),
            Scalar::Json => self.any("JSON"),
            Scalar::SchemaOrBool => self.any("JSONSchemaPropsOrBool"),
            Scalar::SchemaOrArray => self.any("JSONSchemaPropsOrArray"),
            Scalar::SchemaOrStrings => self.any("JSONSchemaPropsOrStringArray"),
        }
    }

    /// Returns the reference to a type of CustomResourceDefinition schemas that has no single JSON type.
    fn any(&mut self, kind: &str) -> Value {
        let kind = format!("apiextensions-apiserver.pkg.apis.apiextensions.v1.{kind}");
        self.named(&kind, json!({}))
    }

    fn named(&mut self, kind: &str, mut schema: Value) -> Value {
        let name = wire::component_of(kind);
        if !self.done.contains_key(&name) {
            describe(&mut schema, descriptions::of_type(kind));
            self.done.insert(name.clone(), schema);
        }
        reference(self.dialect, &name)
    }
}

/// Returns a version's selectable fields as documents list them.
fn selectable_fields(version: &Value) -> Vec<Value> {
    let fields = version["selectableFields"].as_array().into_iter().flatten();
    let paths = fields.filter_map(|field| field["jsonPath"].as_str());
    paths
        .map(|path| json!({"fieldPath": path.strip_prefix('.').unwrap_or(path)}))
        .collect()
}

fn describe(schema: &mut Value, text: Option<&'static str>) {
    if let Some(text) = text {
        schema["description"] = text.into();
    }
}
