//! The errors of calls that match no overload. cel-go's message names the function and the argument types for functions that check
//! types before they are called.

use kube_cel::cel::Value;

use crate::{
    error::EvalError,
    functions::FUNCTIONS,
    keyed::plain,
    maps::as_map,
    types::Type,
    values::{optional, type_name},
};

/// The types whose values find their methods themselves in cel-go, so that the message does not name the function.
const RECEIVERS: [&str; 3] = [
    "string",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
];

/// Returns whether an overload accepts values of these types. Of lists and maps only the first item is checked.
pub(super) fn fits(function: &str, target: Option<&Value>, values: &[Value]) -> bool {
    let Some(overloads) = FUNCTIONS.get(function) else {
        return false;
    };
    overloads.iter().any(|overload| {
        let given = target.iter().copied().chain(values);
        let wanted = &overload.parameters;
        overload.is_method == target.is_some()
            && wanted.len() == values.len() + usize::from(target.is_some())
            && given.zip(wanted).all(|(value, kind)| is_of(value, kind))
    })
}

fn is_of(value: &Value, kind: &Type) -> bool {
    match (kind, plain(value)) {
        (Type::Dyn | Type::Open | Type::Parameter(_), _) => true,
        (Type::List(item), Value::List(items)) => {
            // Only the first item, as in cel-go: looking at all would cost what the list holds.
            items.first().is_none_or(|first| is_of(first, item))
        }
        (Type::Map(key_kind, value_kind), value) => {
            match as_map(value).map(|map| map.iter().next()) {
                None => false,
                Some(first) => first
                    .is_none_or(|(key, value)| is_of(&key, key_kind) && is_of(value, value_kind)),
            }
        }
        (Type::List(_), _) => false,
        (Type::Optional(inner), value) => match optional(value) {
            Some(held) => held.is_none_or(|held| is_of(held, inner)),
            None => false,
        },
        (Type::Meta(_), value) => type_name(value) == "type",
        (kind, value) => kind.own_name() == type_name(value),
    }
}

/// Returns the error of a call that matches no overload.
pub(super) fn message(function: &str, target: Option<&Value>, values: &[Value]) -> EvalError {
    let mut given = target.into_iter().chain(values);
    let mut types = given.clone().map(|value| type_name(plain(value)));
    let first = given.next().map_or("", |first| type_name(plain(first)));
    let has_trait = match function {
        "startsWith" | "endsWith" | "contains" | "or" | "orValue" | "!_" | "@in" | "_[_]"
        | "_[?_]" | "_&&_" | "_||_" | "_?_:_" => true,
        "matches" => first == "string",
        "_+_" => matches!(first, "bytes" | "double" | "int" | "list" | "uint"),
        "_-_" | "_*_" | "_/_" => matches!(first, "double" | "int" | "uint"),
        "_%_" => matches!(first, "int" | "uint"),
        "_<_" | "_<=_" | "_>_" | "_>=_" => {
            matches!(first, "bool" | "bytes" | "double" | "int" | "uint")
        }
        "-_" => first == "bool",
        "size" => false,
        _ => {
            let types: Vec<&str> = types.by_ref().collect();
            let call = format!("{function}({})", types.join(", "));
            return EvalError::NoOverload(Some(call));
        }
    };
    let is_unnamed = has_trait || RECEIVERS.contains(&first);
    EvalError::NoOverload((!is_unnamed).then(|| function.to_owned()))
}
