//! The objects that mutating policies build: `Object{...}` with nested `Object.spec{...}`, and `JSONPatch{...}`.
//!
//! An object may have any fields of any type. Whether its type name matches the fields around it is checked once it has a value (source:
//! apiserver/pkg/cel/mutation).

use std::{collections::BTreeMap, fmt, sync::Arc};

use kube_cel::cel::{Value, objects::Opaque};

use super::types::{Object, Type};

/// The type of an object that is merged into the target.
pub const OBJECT: &str = "Object";
/// The type of an operation of a JSON patch.
pub const JSON_PATCH: &str = "JSONPatch";

/// An object that an expression of a mutating policy builds.
#[derive(Debug, PartialEq)]
pub struct Message {
    /// The type's name, for example `Object.spec`.
    pub name: String,
    /// The fields that the expression sets.
    pub fields: BTreeMap<String, Value>,
}

// Doubles are compared as numbers: messages are never map keys.
impl Eq for Message {}

impl Opaque for Message {
    fn runtime_type_name(&self) -> &str {
        &self.name
    }
}

/// The types of objects that are not spelled by the fields around them; each with the name that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongNames(Vec<(String, String)>);

impl fmt::Display for WrongNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, path)) in self.0.iter().enumerate() {
            let line = if index == 0 { "" } else { "\n" };
            write!(
                f,
                "{line}unexpected type name {name:?}, expected {path:?}, which matches field name path from root Object type"
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for WrongNames {}

/// Returns the type of that name.
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

/// Returns a value as a message, if it is one.
pub fn message(value: &Value) -> Option<&Message> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref(),
        _ => None,
    }
}

impl Message {
    /// Checks that the type of every nested object is spelled by the fields around it.
    ///
    /// # Errors
    /// The objects with another type.
    pub fn check_names(&self) -> Result<(), WrongNames> {
        let mut found = Vec::new();
        self.check(&self.name, &mut found);
        if found.is_empty() {
            Ok(())
        } else {
            Err(WrongNames(found))
        }
    }

    fn check(&self, path: &str, found: &mut Vec<(String, String)>) {
        let name = &self.name;
        if name != path {
            found.push((name.clone(), path.to_owned()));
        }
        for (field, value) in &self.fields {
            check_in(value, &format!("{path}.{field}"), found);
        }
    }
}

/// Checks the objects in lists and maps, which add nothing to the type's name.
fn check_in(value: &Value, path: &str, found: &mut Vec<(String, String)>) {
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
