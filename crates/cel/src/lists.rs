//! The list functions of cel-go's extension (`ext/lists.go`, version 3), which Kubernetes has since 1.34. Sorting is stable; cel-go
//! guarantees that only for up to twelve items.

use std::sync::Arc;

use kube_cel::cel::Value;

use super::{
    Problem,
    error::{EvalError, SliceError},
    expr::{Expr, Fold, FoldKind, Node},
    keyed::plain,
    syntax::Parsed,
    values::{VisitLimit, compare, equal_within, type_name},
};

/// The function that `sortBy` expands to: sorts a list by a list of keys of the same length.
const SORT_BY: &str = "@sortByAssociatedKeys";
/// The variable for the list while its keys are computed. No expression can spell it.
const INPUT: &str = "@__sortBy_input__";
/// The price of creating a list, as in the estimate.
const NEW_LIST: u64 = 10;

/// Expands `target.sortBy(variable, body)`.
pub(super) fn sort_by(at: usize, target: Expr, variable: String, body: Expr) -> Parsed<Node> {
    // cel-go's macro looks at the form of the target, not at its type.
    if matches!(
        target.node,
        Node::Literal(_) | Node::Map(_) | Node::Message { .. }
    ) {
        let message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
        return Err(Problem {
            at: target.at,
            message: message.to_owned(),
        });
    }
    // The target is used twice, for the keys and for the sorting, so it is bound to a variable.
    let input = || Expr {
        at,
        node: Node::Name(INPUT.to_owned()),
    };
    let keys = Node::Fold(Box::new(Fold {
        kind: FoldKind::Map,
        range: input(),
        variable,
        second: None,
        filter: None,
        body,
    }));
    let sorted = Node::Call {
        function: SORT_BY.to_owned(),
        target: Some(Box::new(input())),
        arguments: vec![Expr { at, node: keys }],
    };
    Ok(Node::Bind {
        variable: INPUT.to_owned(),
        value: Box::new(target),
        body: Box::new(Expr { at, node: sorted }),
    })
}

/// Returns the run-time cost of a call; `None` if the function is not a list function.
pub(super) fn cost(function: &str, target: Option<&Value>, arguments: &[Value]) -> Option<u64> {
    let own = match target.map(plain) {
        Some(Value::List(items)) => items.as_slice(),
        _ => &[],
    };
    let length = |items: &[Value]| items.len() as u64;
    // Priced as if each item met each other one, at two steps a pair; texts cost a little more.
    let squared = |items: &[Value]| {
        let pairs = length(items).saturating_mul(length(items));
        let is_text = matches!(items.first(), Some(Value::String(_) | Value::Bytes(_)));
        let texts = if is_text { pairs / 10 } else { 0 };
        pairs.saturating_mul(2).saturating_add(texts)
    };
    let size = match (function, target, arguments) {
        ("lists.range", None, [Value::Int(count)]) => u64::try_from(*count).unwrap_or(0),
        ("slice", Some(_), [Value::Int(from), Value::Int(to)]) => {
            u64::try_from(to.saturating_sub(*from)).unwrap_or(0)
        }
        ("reverse", Some(_), []) => length(own),
        ("flatten", Some(_), []) => length(own),
        ("flatten", Some(_), [Value::Int(depth)]) => {
            let depth = u64::try_from(*depth).unwrap_or(0);
            length(own).saturating_mul(depth)
        }
        ("distinct" | "sort", Some(_), []) => squared(own),
        (SORT_BY, Some(_), [Value::List(keys)]) => squared(keys),
        _ => return None,
    };
    Some(size.saturating_add(NEW_LIST))
}

/// Calls a list function; `None` if the function is not one. Items may be shared, so a call may look at far more values than [`cost`]
/// estimates.
pub(super) fn call(
    function: &str,
    target: Option<&Value>,
    arguments: &[Value],
    looks: &mut VisitLimit,
) -> Option<Result<Value, EvalError>> {
    let target = target.map(plain);
    let made = match (function, target, arguments) {
        ("lists.range", None, [Value::Int(count)]) => Ok((0..*count).map(Value::Int).collect()),
        ("slice", Some(Value::List(items)), [Value::Int(from), Value::Int(to)]) => {
            slice(items, *from, *to)
        }
        ("flatten", Some(Value::List(items)), []) => flat(items, 1, looks),
        ("flatten", Some(Value::List(items)), [Value::Int(depth)]) => match *depth {
            ..0 => Err(EvalError::NegativeLevel),
            depth => flat(items, depth, looks),
        },
        ("reverse", Some(Value::List(items)), []) => Ok(items.iter().rev().cloned().collect()),
        ("distinct", Some(Value::List(items)), []) => distinct(items, looks),
        ("sort", Some(Value::List(items)), []) => sorted(items, items),
        (SORT_BY, Some(Value::List(items)), [Value::List(keys)]) => sorted(items, keys),
        _ => return None,
    };
    Some(made.map(|items| Value::List(Arc::new(items))))
}

fn slice(items: &[Value], from: i64, to: i64) -> Result<Vec<Value>, EvalError> {
    let why = match (usize::try_from(from), usize::try_from(to)) {
        (Ok(first), Ok(end)) if first <= end => match items.get(first..end) {
            Some(some) => return Ok(some.to_vec()),
            None => SliceError::Length(items.len()),
        },
        (Ok(_), Ok(_)) => SliceError::Order,
        _ => SliceError::Negative,
    };
    Err(EvalError::Slice(Box::new((from, to, why))))
}

fn flat(items: &[Value], depth: i64, looks: &mut VisitLimit) -> Result<Vec<Value>, EvalError> {
    let mut all = Vec::new();
    for item in items {
        // Each item that is kept costs a whole step.
        looks.take(10)?;
        match plain(item) {
            Value::List(inner) if depth > 0 => all.extend(flat(inner, depth - 1, looks)?),
            _ => all.push(item.clone()),
        }
    }
    Ok(all)
}

fn distinct(items: &[Value], looks: &mut VisitLimit) -> Result<Vec<Value>, EvalError> {
    let mut all: Vec<Value> = Vec::new();
    for item in items {
        let mut is_new = true;
        for other in &all {
            // Values that cannot be compared are not equal.
            is_new = equal_within(item, other, looks) != Ok(true);
            if !is_new {
                break;
            }
        }
        if is_new {
            all.push(item.clone());
        }
    }
    Ok(all)
}

/// Sorts items by their keys.
fn sorted(items: &[Value], keys: &[Value]) -> Result<Vec<Value>, EvalError> {
    let Some(first) = keys.first() else {
        return Ok(items.to_vec());
    };
    // NaN does not compare with itself, although doubles can be sorted.
    if compare(first, first).is_none() && !matches!(first, Value::Float(_)) {
        return Err(EvalError::Incomparable);
    }
    if keys.iter().any(|key| type_name(key) != type_name(first)) {
        return Err(EvalError::MixedTypes);
    }
    let mut pairs: Vec<_> = keys.iter().zip(items).collect();
    // NaN has no order in CEL, but a sort needs a total order.
    let is_nan = |key: &Value| matches!(key, Value::Float(number) if number.is_nan());
    pairs.sort_by(|(a, _), (b, _)| compare(a, b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b))));
    Ok(pairs.into_iter().map(|(_, item)| item.clone()).collect())
}
