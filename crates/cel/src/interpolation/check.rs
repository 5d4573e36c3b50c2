//! Checks format strings and their arguments before an expression runs.

use super::{Clause, Part, Parts, clause};
use crate::{
    Problem,
    error::EvalError,
    expr::{Expr, Node},
    types::Type,
};

/// Finds errors in a literal format and its literal arguments. `type_of` returns the types of all parts of the argument list.
pub(crate) fn check(
    at: usize,
    format: &str,
    values: &[(bool, Expr)],
    type_of: impl Fn(&Expr) -> Type,
) -> Option<Problem> {
    let wrong = |at: usize, message: String| Some(Problem { at, message });
    let mut wanted = 0;
    for part in Parts::of(format) {
        let Part::Clause { index, rest } = part else {
            continue;
        };
        wanted = index + 1;
        let value = values.get(index);
        // A percent sign at the end is reported as such, even if an argument is missing too.
        let (Some((_, value)), false) = (value, rest.is_empty()) else {
            let why = clause(rest).err().filter(|_| rest.is_empty());
            let why = why.map_or(EvalError::MissingArgument(index), EvalError::Clause);
            return wrong(at, why.to_string());
        };
        let clause = match clause(rest) {
            Ok(clause) => clause,
            Err(why) => return wrong(at, why.to_string()),
        };
        if let Some(refused) = refused(clause, value, &type_of) {
            let why = clause.refusal(&runtime_name(&type_of(refused)));
            return wrong(refused.at, EvalError::Format(Box::new(why)).to_string());
        }
    }
    let given = values.len();
    let too_many =
        format!("too many arguments supplied to string.format (expected {wanted}, got {given})");
    (given > wanted).then_some(Problem {
        at,
        message: too_many,
    })
}

/// Returns the part of a value that a clause cannot format: the value itself, or something in it.
fn refused<'e>(
    clause: Clause,
    value: &'e Expr,
    type_of: &impl Fn(&Expr) -> Type,
) -> Option<&'e Expr> {
    if !takes(clause, &type_of(value)) {
        return Some(value);
    }
    match (clause, &value.node) {
        (Clause::Text, Node::List(items)) => items
            .iter()
            .find_map(|(_, item)| refused(clause, item, type_of)),
        (Clause::Text, Node::Map(entries)) => {
            let mut parts = entries.iter().flat_map(|(_, key, value)| [key, value]);
            parts.find_map(|part| refused(clause, part, type_of))
        }
        _ => None,
    }
}

fn takes(clause: Clause, kind: &Type) -> bool {
    let is_whole = matches!(kind, Type::Int | Type::Uint);
    // Values of these types are judged at run time.
    if matches!(kind, Type::Dyn | Type::Error | Type::Open) {
        return true;
    }
    match clause {
        Clause::Text => !matches!(
            kind,
            Type::Optional(_) | Type::Object(_) | Type::Opaque(_) | Type::Parameter(_)
        ),
        Clause::Decimal | Clause::Octal => is_whole,
        // The strings `NaN`, `Infinity` and `-Infinity` are valid too.
        Clause::Fixed(_) | Clause::Scientific => matches!(kind, Type::Double | Type::String),
        Clause::Binary => is_whole || *kind == Type::Bool,
        Clause::Hexadecimal { .. } => is_whole || matches!(kind, Type::String | Type::Bytes),
    }
}

/// Returns the run-time name of a type's values.
fn runtime_name(kind: &Type) -> String {
    match kind {
        Type::List(_) => "list".to_owned(),
        Type::Map(..) => "map".to_owned(),
        Type::Optional(_) => "optional_type".to_owned(),
        Type::Meta(_) => "type".to_owned(),
        other => other.own_name(),
    }
}
