//! The objects that expressions of patches make: `Object{...}` with `Object.spec{...}` in it, and `JSONPatch{...}`.
//!
//! An object may have any fields of any type; that its type is spelled by the fields around it is checked when it has a value (upstream:
//! apiserver/pkg/cel/mutation).

use std::{collections::BTreeMap, sync::Arc};

use kube_cel::cel::{Value, objects::Opaque};

use super::types::{Object, Type};

/// The type of an object that a patch is merged into.
pub(crate) const OBJECT: &str = "Object";
/// The type of an operation of a JSON patch.
pub(crate) const JSON_PATCH: &str = "JSONPatch";

/// A value of such a type.
#[derive(Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) name: String,
    pub(crate) fields: BTreeMap<String, Value>,
}

// Doubles are compared as they are: nothing here is a key.
impl Eq for Message {}

impl Opaque for Message {
    fn runtime_type_name(&self) -> &str {
        &self.name
    }
}

/// The type of that name.
pub(super) fn named(name: &str) -> Option<Type> {
    let is_object = name == OBJECT || name.starts_with("Object.");
    let fields = match name {
        JSON_PATCH => {
            let texts = ["op", "path", "from"].map(|field| (field.to_owned(), Type::String));
            let value = [("value".to_owned(), Type::Dyn)];
            texts.into_iter().chain(value).collect()
        }
        _ if is_object => BTreeMap::new(),
        _ => return None,
    };
    Some(Type::Object(Arc::new(Object {
        name: name.to_owned(),
        fields,
        open: is_object,
    })))
}

/// The object that a value is, if it is one.
pub(crate) fn message(value: &Value) -> Option<&Message> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref(),
        _ => None,
    }
}

impl Message {
    /// That every object in it is of the type that the fields around it spell.
    ///
    /// # Errors
    /// A line for each that is not.
    pub(crate) fn check_names(&self) -> Result<(), String> {
        let mut found = Vec::new();
        self.check(&self.name, &mut found);
        match found.is_empty() {
            true => Ok(()),
            false => Err(found.join("\n")),
        }
    }

    fn check(&self, path: &str, found: &mut Vec<String>) {
        let name = &self.name;
        if name != path {
            found.push(format!(
                "unexpected type name {name:?}, expected {path:?}, which matches field name path from root Object type"
            ));
        }
        for (field, value) in &self.fields {
            check_in(value, &format!("{path}.{field}"), found);
        }
    }
}

/// Lists and maps have no names of their own.
fn check_in(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::List(items) => items.iter().for_each(|item| check_in(item, path, found)),
        Value::Map(map) => {
            let values = map.map.values();
            values.for_each(|value| check_in(value, path, found));
        }
        value => {
            if let Some(message) = message(value) {
                message.check(path, found);
            }
        }
    }
}
