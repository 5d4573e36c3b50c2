//! The functions in `functions.txt`, and the types that have names.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use super::{
    expr::{Expr, qualified, root},
    types::{Bindings, Type},
};

/// One overload of a function.
pub(super) struct Overload {
    pub(super) is_method: bool,
    pub(super) parameters: Vec<Type>,
    pub(super) result: Type,
}

/// All functions and operators by name.
pub(super) static FUNCTIONS: LazyLock<HashMap<String, Vec<Overload>>> = LazyLock::new(|| {
    let mut functions: HashMap<String, Vec<Overload>> = HashMap::new();
    let lines = include_str!("functions.txt").lines();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (names, overload) = signature(line);
        for name in names {
            let overload = Overload {
                is_method: overload.is_method,
                parameters: overload.parameters.clone(),
                result: overload.result.clone(),
            };
            functions.entry(name).or_default().push(overload);
        }
    }
    functions
});

/// Parses a line of the table into the function's names and an overload.
fn signature(line: &'static str) -> (Vec<String>, Overload) {
    let (target, rest) = match line
        .strip_prefix('<')
        .and_then(|rest| rest.split_once("> "))
    {
        Some((target, rest)) => (Some(target), rest),
        None => (None, line),
    };
    let (call, result) = rest
        .rsplit_once("): ")
        .expect("every line says what a function results in");
    // Names of operators contain only square brackets, so the first parenthesis opens the parameters.
    let (name, parameters) = call.split_once('(').expect("every line has parameters");
    // A method's target counts as its first parameter, so that methods and functions are resolved alike.
    let mut types: Vec<Type> = target.map(parse_type).into_iter().collect();
    types.extend(split(parameters).into_iter().map(parse_type));
    // One line stands for the four comparisons, which have the same overloads.
    let names = match name {
        "_<_" => ["_<_", "_<=_", "_>_", "_>=_"].map(str::to_owned).to_vec(),
        name => vec![name.to_owned()],
    };
    let overload = Overload {
        is_method: target.is_some(),
        parameters: types,
        result: parse_type(result),
    };
    (names, overload)
}

/// Splits a text at the commas outside brackets.
fn split(text: &'static str) -> Vec<&'static str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (index, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    if !text.is_empty() {
        parts.push(text[start..].trim());
    }
    parts
}

fn parse_type(text: &'static str) -> Type {
    if let Some((outer, inner)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let mut inner = split(inner).into_iter().map(parse_type);
        let mut next = || Arc::new(inner.next().expect("the type has what it is made of"));
        return match outer {
            "list" => Type::List(next()),
            "map" => Type::Map(next(), next()),
            "optional" => Type::Optional(next()),
            "type" => Type::Meta(next()),
            other => panic!("functions.txt has no type {other}"),
        };
    }
    match text {
        "A" | "B" | "C" => Type::Parameter(text.chars().next().expect("it is a letter")),
        text => named_type(text).unwrap_or(Type::Opaque(text)),
    }
}

/// Returns the type that a name stands for in expressions.
pub(super) fn named_type(name: &str) -> Option<Type> {
    Some(match name {
        "dyn" => Type::Dyn,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "null_type" => Type::Null,
        "timestamp" | "google.protobuf.Timestamp" => Type::Timestamp,
        "duration" | "google.protobuf.Duration" => Type::Duration,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "optional_type" => Type::optional(Type::Dyn),
        "type" => Type::Meta(Arc::new(Type::Dyn)),
        "net.IP" => Type::Opaque("net.IP"),
        "net.CIDR" => Type::Opaque("net.CIDR"),
        "kubernetes.URL" => Type::Opaque("kubernetes.URL"),
        "kubernetes.Quantity" => Type::Opaque("kubernetes.Quantity"),
        "kubernetes.Semver" => Type::Opaque("kubernetes.Semver"),
        _ => return None,
    })
}

/// Returns whether a name stands for a type, unless a variable has that name.
pub(super) fn is_type_name(name: &str) -> bool {
    // In expressions these three names are functions, not types.
    !matches!(name, "dyn" | "timestamp" | "duration") && named_type(name).is_some()
}

/// Returns the namespaced function of a call whose target spells a namespace, as in `sets.contains(...)`, and not a variable.
pub(super) fn namespaced(
    target: &Expr,
    function: &str,
    is_variable: impl Fn(&str) -> bool,
) -> Option<String> {
    if is_variable(root(target)?) {
        return None;
    }
    let name = format!("{}.{function}", qualified(target)?);
    FUNCTIONS.contains_key(&name).then_some(name)
}

/// Returns the result type of a call. If several overloads fit, because argument types are dynamic, the result is dynamic too.
pub(super) fn resolve(overloads: &[Overload], is_method: bool, types: &[Type]) -> Option<Type> {
    let mut result: Option<Type> = None;
    for overload in overloads {
        if overload.is_method != is_method || overload.parameters.len() != types.len() {
            continue;
        }
        // Type parameters are bound anew for each overload; a failed one leaves nothing behind.
        let mut bindings = Bindings::default();
        let pairs = types.iter().zip(&overload.parameters);
        let mut fits = pairs.map(|(given, wanted)| bindings.accept(given, wanted));
        if !fits.all(|fits| fits) {
            continue;
        }
        let found = overload.result.bound(&bindings);
        result = Some(match result {
            None => found,
            Some(before) if before == found => before,
            Some(_) => Type::Dyn,
        });
    }
    result
}
