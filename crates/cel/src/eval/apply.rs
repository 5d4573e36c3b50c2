//! Applies functions and operators to evaluated arguments.

use std::{cmp::Ordering, sync::Arc};

use kube_cel::cel::Value;
use mullion_kube_text::golang::regexp::{self, PatternError};

use super::{
    Evaluated, Failure, Run, count, failed, found, index, missing, no_overload, of_type, shown,
};
use crate::{
    complaints, conversions,
    error::EvalError,
    formats, host,
    keyed::{all_plain, plain},
    library, lists,
    maps::as_map,
    quantities, texts, times, urls,
    values::{
        VisitLimit, arithmetic, compare, equal_within, is_zero, none, optional, some, text,
        type_name,
    },
    versions,
};

impl Run<'_> {
    pub(super) fn apply(
        &mut self,
        function: &str,
        target: Option<Value>,
        values: Vec<Value>,
    ) -> Evaluated {
        // Access to one element and counting cost nothing extra; every other function may look at all of its arguments.
        if !matches!(function, "_[_]" | "_[?_]" | "size" | "type" | "dyn") {
            self.budget
                .take(work(function, target.as_ref(), &values) / 10)?;
        }
        // Charged before the work, which may grow with the square of the arguments' size.
        if let Some(cost) = lists::cost(function, target.as_ref(), &values) {
            self.budget.take(cost)?;
        }
        let bool = |truth: bool| Ok(Value::Bool(truth));
        match (function, target.as_ref().map(plain), values.as_slice()) {
            ("_==_", None, [left, right]) => bool(self.same(left, right)?),
            ("_!=_", None, [left, right]) => bool(!self.same(left, right)?),
            ("_<_" | "_<=_" | "_>_" | "_>=_", None, [left, right]) => {
                let Some(order) = compare(left, right) else {
                    let is_number = |value: &Value| {
                        matches!(value, Value::Float(_) | Value::Int(_) | Value::UInt(_))
                    };
                    return failed(if is_number(left) && is_number(right) {
                        EvalError::NanOrder
                    } else {
                        missing::message(function, None, &values)
                    });
                };
                bool(match function {
                    "_<_" => order.is_lt(),
                    "_<=_" => order.is_le(),
                    "_>_" => order.is_gt(),
                    _ => order.is_ge(),
                })
            }
            ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", None, [left, right]) => {
                let result = arithmetic(function, left, right);
                result.map_err(|why| match why {
                    EvalError::NoOverload(None) => missing::message(function, None, &values).into(),
                    why => why.into(),
                })
            }
            ("!_", None, [Value::Bool(truth)]) => bool(!truth),
            ("-_", None, [Value::Int(number)]) => match number.checked_neg() {
                Some(number) => Ok(Value::Int(number)),
                None => failed(EvalError::IntOverflow),
            },
            ("-_", None, [Value::Float(number)]) => Ok(Value::Float(-number)),
            ("@in", None, [item, all]) => match plain(all) {
                Value::List(items) => self.is_among(item, items),
                all => match as_map(all) {
                    Some(map) => bool(map.get(item).is_some()),
                    None => no_overload(),
                },
            },
            ("_[_]", None, [operand, at]) => match optional(operand) {
                None => index(operand, at),
                Some(inner) => {
                    let item = inner.map(|inner| found(inner, at)).transpose()?;
                    Ok(item.flatten().map_or_else(none, some))
                }
            },
            ("_[?_]", None, [operand, at]) => {
                let inner = optional(operand).unwrap_or(Some(operand));
                let item = inner.map(|inner| found(inner, at)).transpose()?;
                Ok(item.flatten().map_or_else(none, some))
            }
            ("size", None, [value]) | ("size", Some(value), []) => match plain(value) {
                Value::String(text) => Ok(count(text.chars().count())),
                Value::Bytes(bytes) => Ok(count(bytes.len())),
                Value::List(items) => Ok(count(items.len())),
                other if let Some(map) = as_map(other) => Ok(count(map.len())),
                _ => failed(missing::message(
                    function,
                    None,
                    std::slice::from_ref(value),
                )),
            },
            ("type", None, [value]) => Ok(of_type(type_name(value))),
            ("dyn", None, [value]) => Ok(value.clone()),
            (
                "bool" | "bytes" | "double" | "duration" | "int" | "string" | "timestamp" | "uint",
                None,
                [value],
            ) if let Some(converted) = conversions::converted(function, value) => {
                converted.map_err(Failure::Error)
            }
            ("startsWith", Some(Value::String(text)), [Value::String(part)]) => {
                bool(text.starts_with(part.as_str()))
            }
            ("endsWith", Some(Value::String(text)), [Value::String(part)]) => {
                bool(text.ends_with(part.as_str()))
            }
            ("contains", Some(Value::String(text)), [Value::String(part)]) => {
                bool(text.contains(part.as_str()))
            }
            ("matches", Some(Value::String(text)), [Value::String(source)])
            | ("matches", None, [Value::String(text), Value::String(source)]) => {
                let held = regexp::with(source, |regex| regex.is_match(text));
                held.map(Value::Bool)
                    .map_err(|why| EvalError::Pattern(Box::new(why)).into())
            }
            ("find", Some(Value::String(given)), [Value::String(source)]) => {
                let found = regexp::with(source, |regex| {
                    let found = regex.find(given);
                    text(found.map_or("", |found| found.as_str()))
                });
                found.map_err(illegal)
            }
            ("findAll", Some(Value::String(given)), [Value::String(source), rest @ ..]) => {
                let most = match rest {
                    [Value::Int(most)] => usize::try_from(*most).unwrap_or(usize::MAX),
                    _ => usize::MAX,
                };
                let found = regexp::with(source, |regex| {
                    let found = regex.find_iter(given).take(most);
                    found.map(|found| text(found.as_str())).collect()
                });
                found
                    .map(|found| Value::List(Arc::new(found)))
                    .map_err(illegal)
            }
            ("jsonpatch.escapeKey", None, [Value::String(key)]) => {
                Ok(text(key.replace('~', "~0").replace('/', "~1")))
            }
            ("min" | "max", Some(Value::List(items)), []) if items.is_empty() => {
                failed(EvalError::EmptyList(function.to_owned()))
            }
            ("min" | "max", Some(Value::List(items)), [])
                if missing::fits(function, target.as_ref(), &values) =>
            {
                let wanted = if function == "min" {
                    Ordering::Greater
                } else {
                    Ordering::Less
                };
                // Values that cannot be compared are skipped.
                let best = items.iter().reduce(|best, next| match compare(best, next) {
                    Some(order) if order == wanted => next,
                    _ => best,
                });
                Ok(best.cloned().unwrap_or(Value::Null))
            }
            ("sum", Some(Value::List(items)), [])
                if matches!(
                    items.first(),
                    Some(Value::Duration(_) | Value::Int(_) | Value::UInt(_) | Value::Float(_))
                ) =>
            {
                let mut items = items.iter().cloned();
                let first = items.next().expect("there is one");
                let sum = items.try_fold(first, |sum, item| arithmetic("_+_", &sum, &item));
                sum.map_err(Failure::Error)
            }
            // A negative count replaces all occurrences.
            ("replace", Some(_), [part, with, Value::Int(times)]) if *times < 0 => {
                let arguments = vec![part.clone(), with.clone()];
                library::call(function, target.clone(), arguments).map_err(Failure::Error)
            }
            ("optional.none", None, []) => Ok(none()),
            ("optional.of", None, [value]) => Ok(some(value.clone())),
            ("optional.ofNonZeroValue", None, [value]) => Ok(if is_zero(value) {
                none()
            } else {
                some(value.clone())
            }),
            ("first", Some(Value::List(items)), []) => {
                Ok(items.first().cloned().map_or_else(none, some))
            }
            ("last", Some(Value::List(items)), []) => {
                Ok(items.last().cloned().map_or_else(none, some))
            }
            ("optional.unwrap", None, [list]) | ("unwrapOpt", Some(list), []) => {
                let Value::List(items) = plain(list) else {
                    return failed(missing::message(function, target.as_ref(), &values));
                };
                if !missing::fits(function, target.as_ref(), &values) {
                    return failed(missing::message(function, target.as_ref(), &values));
                }
                let mut held = Vec::with_capacity(items.len());
                for item in items.iter() {
                    let Some(inner) = optional(item) else {
                        return failed(EvalError::NotOptional(shown(item)));
                    };
                    held.extend(inner.cloned());
                }
                Ok(Value::List(Arc::new(held)))
            }
            ("hasValue" | "value" | "or" | "orValue", Some(target), rest) => {
                let Some(inner) = optional(target) else {
                    return failed(missing::message(function, Some(target), &values));
                };
                match (function, inner, rest) {
                    ("hasValue", inner, []) => bool(inner.is_some()),
                    ("value", Some(inner), []) | ("orValue", Some(inner), [_]) => Ok(inner.clone()),
                    ("value", None, []) => failed(EvalError::NoValue),
                    ("or", Some(_), [_]) => Ok(target.clone()),
                    ("or" | "orValue", None, [other]) => Ok(other.clone()),
                    _ => no_overload(),
                }
            }
            _ => {
                let part = target.as_ref();
                let part = part.and_then(|target| times::part(function, target, &values));
                if let Some(part) = part {
                    return part.map(Value::Int).map_err(Failure::Error);
                }
                // Values that the caller brought along (see `host`) find their functions themselves.
                if let Some(host) = target.as_ref().and_then(host::of) {
                    let called = host.call(function, &values);
                    let missing = || failed(missing::message(function, target.as_ref(), &values));
                    let refused = |why| failed(EvalError::Host(why));
                    return called.map_or_else(missing, |called| called.or_else(refused));
                }
                if let Some(value) = formats::call(function, target.as_ref(), &values) {
                    return Ok(value);
                }
                if let Some(called) =
                    self.looking(|looks| lists::call(function, target.as_ref(), &values, looks))?
                {
                    return called.map_err(Failure::Error);
                }
                // The functions below trust the types of their arguments.
                if !missing::fits(function, target.as_ref(), &values) {
                    return failed(missing::message(function, target.as_ref(), &values));
                }
                if let Some(called) =
                    self.looking(|looks| texts::call(function, target.as_ref(), &values, looks))?
                {
                    return called.map_err(Failure::Error);
                }
                if let Some(called) = quantities::call(function, target.as_ref(), &values) {
                    return called.map_err(Failure::Error);
                }
                if let Some(called) = versions::call(function, target.as_ref(), &values) {
                    return called.map_err(Failure::Error);
                }
                if let Some(called) = urls::call(function, target.as_ref(), &values) {
                    return called.map_err(Failure::Error);
                }
                // The kube-cel crate knows neither keyed lists nor total maps.
                let values: Vec<Value> = values.into_iter().map(all_plain).collect();
                let called = library::call(function, target.map(all_plain), values.clone());
                called.map_err(|why| {
                    let complaint = complaints::of(function, &values);
                    complaint.map_or(why, EvalError::Library).into()
                })
            }
        }
    }

    fn same(&mut self, left: &Value, right: &Value) -> Evaluated<bool> {
        self.looking(|looks| equal_within(left, right, looks))?
            .map_err(Failure::Error)
    }

    /// Returns whether a list contains an item. An item that cannot be compared is an error unless another one matches.
    fn is_among(&mut self, item: &Value, items: &[Value]) -> Evaluated {
        let mut failure = None;
        for other in items {
            match self.same(other, item) {
                Ok(true) => return Ok(Value::Bool(true)),
                Ok(false) => {}
                Err(Failure::Error(why)) => failure = Some(why),
                Err(out) => return Err(out),
            }
        }
        failure.map_or(Ok(Value::Bool(false)), failed)
    }

    /// Runs a function that may look at many values; each ten of them cost a step.
    fn looking<T>(&mut self, look: impl FnOnce(&mut VisitLimit) -> T) -> Evaluated<T> {
        // The limit is what the call has left, so that comparing nested values cannot run longer than the budget
        // allows.
        let most = self.budget.of_call.saturating_mul(10);
        let mut looks = VisitLimit(most);
        let seen = look(&mut looks);
        self.budget.take((most - looks.0) / 10)?;
        match looks.0 {
            0 => Err(Failure::TooLong),
            _ => Ok(seen),
        }
    }
}

/// Returns the number of characters and items that a function may read or write: usually the total size of its arguments, more where it
/// scans one argument for each part of another.
fn work(function: &str, target: Option<&Value>, values: &[Value]) -> u64 {
    let of = |at: usize| values.get(at).map_or(0, size_of);
    let me = target.map_or(0, size_of);
    match function {
        "replace" => {
            // The most places at which the text may be found.
            let found = me / of(0).max(1) + 1;
            me.saturating_add(found.saturating_mul(of(1)))
        }
        "matches" => {
            let (text, pattern) = match target {
                Some(_) => (me, of(0)),
                None => (of(0), of(1)),
            };
            (text / 10 + 1)
                .saturating_mul(pattern / 4 + 1)
                .saturating_mul(10)
        }
        name if name.starts_with("sets.") => (of(0) / 10).saturating_mul(of(1)),
        _ => me.saturating_add(values.iter().map(size_of).sum()),
    }
}

/// Returns the error for an invalid pattern of `find`.
fn illegal(why: PatternError) -> Failure {
    EvalError::FindPattern(Box::new(why)).into()
}

/// Returns the size of a value in characters, with ten for each item.
fn size_of(value: &Value) -> u64 {
    let length = match plain(value) {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(items) => items.len() * 10,
        other => as_map(other).map_or(0, |map| map.len() * 10),
    };
    length as u64
}
