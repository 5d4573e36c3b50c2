//! The types of CEL, and which values are assignable to which type.

use std::{collections::BTreeMap, fmt, sync::Arc};

/// A type.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// The dynamic type; operations on it are checked at run time.
    Dyn,
    /// A type that is not determined yet, as the items of an empty list.
    Open,
    /// The type of an expression with an error; it fits everywhere, so that the error is reported once.
    Error,
    /// `null_type`.
    Null,
    /// `bool`.
    Bool,
    /// `int`, of 64 bits.
    Int,
    /// `uint`, of 64 bits.
    Uint,
    /// `double`.
    Double,
    /// `string`.
    String,
    /// `bytes`.
    Bytes,
    /// `timestamp`.
    Timestamp,
    /// `duration`.
    Duration,
    /// A list, with the type of its items.
    List(Arc<Type>),
    /// A map, with the types of its keys and values.
    Map(Arc<Type>, Arc<Type>),
    /// An optional value, with the type of what it may hold.
    Optional(Arc<Type>),
    /// An object with named fields.
    Object(Arc<Object>),
    /// A type of a library, for example `net.IP`.
    Opaque(&'static str),
    /// A type used as a value.
    Meta(Arc<Type>),
    /// A type parameter of a function.
    Parameter(char),
}

/// A type with named fields.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// The full name, by which types are told apart.
    pub name: String,
    /// The types of the known fields.
    pub fields: BTreeMap<String, Type>,
    /// Whether there may be other fields of any type.
    pub open: bool,
}

impl Object {
    /// Returns the type of a field.
    pub(crate) fn field(&self, name: &str) -> Option<Type> {
        let known = self.fields.get(name).cloned();
        known.or(self.open.then_some(Type::Dyn))
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Type::Dyn | Type::Open => "dyn",
            Type::Error => "!error!",
            Type::Null => "null",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "timestamp",
            Type::Duration => "duration",
            Type::Opaque(name) => name,
            Type::List(item) => return write!(f, "list({item})"),
            Type::Map(key, value) => return write!(f, "map({key}, {value})"),
            Type::Optional(inner) => return write!(f, "optional_type({inner})"),
            Type::Object(object) => return f.write_str(&object.name),
            Type::Meta(inner) => return write!(f, "type({inner})"),
            Type::Parameter(name) => return write!(f, "{name}"),
        };
        f.write_str(name)
    }
}

impl Type {
    /// Returns the type's run-time name in cel-go, where the checker uses a shorter one.
    pub fn own_name(&self) -> String {
        match self {
            Type::Null => "null_type".to_owned(),
            Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
            Type::Duration => "google.protobuf.Duration".to_owned(),
            other => other.to_string(),
        }
    }

    /// Returns the type of lists of that item type.
    pub fn list(item: Type) -> Type {
        Type::List(Arc::new(item))
    }

    /// Returns the type of maps with these types of keys and values.
    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new(key), Arc::new(value))
    }

    /// Returns the type of optional values of that type.
    pub fn optional(inner: Type) -> Type {
        Type::Optional(Arc::new(inner))
    }

    /// Returns the type, or the inner type of an optional, and whether it was one.
    pub(crate) fn unwrapped(&self) -> (&Type, bool) {
        match self {
            Type::Optional(inner) => (inner, true),
            other => (other, false),
        }
    }

    /// Returns whether null is a valid value.
    fn is_nullable(&self) -> bool {
        matches!(
            self,
            Type::Null
                | Type::Timestamp
                | Type::Duration
                | Type::Object(_)
                | Type::Opaque(_)
                | Type::Optional(_)
        )
    }

    /// Returns the type with its parameters replaced.
    pub(crate) fn bound(&self, bindings: &Bindings) -> Type {
        self.replaced(&|part| match part {
            Type::Parameter(name) => Some(bindings.0.get(name).cloned().unwrap_or(Type::Open)),
            _ => None,
        })
    }

    /// Returns the type in which all undetermined parts are dynamic.
    pub(crate) fn closed(&self) -> Type {
        self.replaced(&|part| (*part == Type::Open).then_some(Type::Dyn))
    }

    /// Returns the type with some of its parts replaced.
    fn replaced(&self, of: &impl Fn(&Type) -> Option<Type>) -> Type {
        match self {
            Type::List(item) => Type::list(item.replaced(of)),
            Type::Map(key, value) => Type::map(key.replaced(of), value.replaced(of)),
            Type::Optional(inner) => Type::optional(inner.replaced(of)),
            Type::Meta(inner) => Type::Meta(Arc::new(inner.replaced(of))),
            other => of(other).unwrap_or_else(|| other.clone()),
        }
    }
}

/// The type parameters of a function in one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bindings(BTreeMap<char, Type>);

impl Bindings {
    /// Returns whether a value of type `given` is assignable to `wanted`, and binds type parameters.
    pub(crate) fn accept(&mut self, given: &Type, wanted: &Type) -> bool {
        match (given, wanted) {
            (_, Type::Parameter(name)) => match self.0.get(name).cloned() {
                None => {
                    self.0.insert(*name, given.clone());
                    true
                }
                // A later argument may widen the parameter, or contradict the earlier ones.
                Some(bound) => match more_general(given, &bound) {
                    Some(general) => {
                        self.0.insert(*name, general);
                        true
                    }
                    None => false,
                },
            },
            (Type::Dyn | Type::Error | Type::Open, _)
            | (_, Type::Dyn | Type::Error | Type::Open) => true,
            (Type::Null, wanted) => wanted.is_nullable(),
            (Type::List(given), Type::List(wanted))
            | (Type::Optional(given), Type::Optional(wanted)) => self.accept(given, wanted),
            // Types as values are compared at run time, so each fits each.
            (Type::Meta(_), Type::Meta(_)) => true,
            (Type::Map(key, value), Type::Map(wanted_key, wanted_value)) => {
                self.accept(key, wanted_key) && self.accept(value, wanted_value)
            }
            (given, wanted) => given == wanted,
        }
    }
}

/// Returns the type that cel-go continues with where values of two types meet, or `None` if they are unrelated. For null or an error and
/// another type, that is the second type.
pub(crate) fn more_general(first: &Type, second: &Type) -> Option<Type> {
    let joined = joined(first, second)?;
    Some(match (first, second) {
        (Type::Dyn | Type::Open, _) | (_, Type::Dyn | Type::Open) => joined,
        (Type::Error | Type::Null, _) | (_, Type::Error | Type::Null) => second.clone(),
        _ => joined,
    })
}

/// Returns the type that holds values of both types; `None` if they are unrelated.
fn joined(left: &Type, right: &Type) -> Option<Type> {
    Some(match (left, right) {
        (Type::Open, other) | (other, Type::Open) => other.clone(),
        (Type::Dyn, _) | (_, Type::Dyn) => Type::Dyn,
        (Type::Error, other) | (other, Type::Error) => other.clone(),
        (Type::Null, other) | (other, Type::Null) if other.is_nullable() => other.clone(),
        (Type::List(left), Type::List(right)) => Type::list(joined(left, right)?),
        (Type::Optional(left), Type::Optional(right)) => Type::optional(joined(left, right)?),
        (Type::Map(left_key, left), Type::Map(right_key, right)) => {
            Type::map(joined(left_key, right_key)?, joined(left, right)?)
        }
        (Type::Meta(_), Type::Meta(_)) => Type::Meta(Arc::new(Type::Dyn)),
        (left, right) if left == right => left.clone(),
        _ => return None,
    })
}
