//! The CEL types of a kind's objects, from the schema table or from a CustomResourceDefinition.
//!
//! A field without a single type in an OpenAPI document (a quantity is a string or a number there) has no field in CEL either. Source:
//! k8s.io/apiserver: pkg/cel/common: SchemaDeclType; a recursive type is an object without fields (pkg/cel/openapi/resolver).

use std::{collections::BTreeMap, sync::Arc};

use mullion_cel::{Object, Type};
use mullion_kinds::request::Lookup;
use mullion_schema::{self as schema, Node, Scalar, structural::Schema};

use crate::{
    crd::rules::types,
    registry::{Registry, Row},
};

const OBJECT_META: &str = "apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Returns the CEL type of a row's objects, or `None` if it is not known.
pub(super) fn of_kind(registry: &Registry, row: &Row, name: &str) -> Option<Type> {
    if row.custom {
        of_custom(registry, row, name)
    } else {
        of_table(&row.resource.schema, name, &mut Vec::new())
    }
}

/// Returns the CEL type of a custom resource: the fields of its schema, and the metadata of every object.
fn of_custom(registry: &Registry, row: &Row, name: &str) -> Option<Type> {
    let resource = &row.resource;
    let definition = format!("{}.{}", resource.plural, resource.group);
    let (group, plural) = ("apiextensions.k8s.io", "customresourcedefinitions");
    let definition = registry.find(group, plural, None, &definition)?;
    let versions = definition["spec"]["versions"].as_array()?;
    let version = versions
        .iter()
        .find(|version| version["name"] == *resource.version)?;
    let schema = Schema::parse(&version["schema"]["openAPIV3Schema"]);
    let Type::Object(object) = types::of_schema(&schema, true, name)? else {
        return None;
    };
    let mut fields = object.fields.clone();
    let metadata = schema::Type::builtin(OBJECT_META)?;
    let metadata = of_table(&metadata, &format!("{name}.metadata"), &mut Vec::new())?;
    fields.insert("metadata".to_owned(), metadata);
    Some(named(name, fields))
}

fn of_table(kind: &schema::Type, name: &str, around: &mut Vec<String>) -> Option<Type> {
    match kind.node() {
        Node::Struct(fields) => {
            let own = fields.name.to_string();
            if !own.is_empty() && around.contains(&own) {
                return Some(named(name, BTreeMap::new()));
            }
            around.push(own);
            let mut known = BTreeMap::new();
            for field in &fields.fields {
                let below = format!("{name}.{}", &*field.name);
                let below = of_table(&kind.sibling(field.id), &below, around);
                if let Some((field, below)) = types::escape(&field.name).zip(below) {
                    known.insert(field, below);
                }
            }
            around.pop();
            Some(named(name, known))
        }
        Node::Map { value, .. } => {
            let values = of_table(&kind.sibling(*value), &format!("{name}.@elem"), around)?;
            Some(Type::map(Type::String, values))
        }
        Node::List(list) => {
            let items = of_table(&kind.sibling(list.item), &format!("{name}.@idx"), around)?;
            Some(Type::list(items))
        }
        Node::Scalar(scalar) => of_scalar(*scalar, name),
    }
}

fn of_scalar(scalar: Scalar, name: &str) -> Option<Type> {
    Some(match scalar {
        Scalar::String => Type::String,
        Scalar::Bool => Type::Bool,
        Scalar::Int32 | Scalar::Int64 => Type::Int,
        Scalar::Double => Type::Double,
        Scalar::Bytes => Type::Bytes,
        Scalar::IntOrString => Type::Dyn,
        Scalar::Time | Scalar::MicroTime => Type::Timestamp,
        Scalar::RawExtension | Scalar::FieldsV1 => named(name, BTreeMap::new()),
        Scalar::Quantity
        | Scalar::Json
        | Scalar::SchemaOrBool
        | Scalar::SchemaOrArray
        | Scalar::SchemaOrStrings => return None,
    })
}

fn named(name: &str, fields: BTreeMap<String, Type>) -> Type {
    Type::Object(Arc::new(Object {
        name: name.to_owned(),
        fields,
        open: false,
    }))
}
