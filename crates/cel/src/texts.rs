//! The string functions of cel-go's extension (`ext/strings.go`, version 2) where the kube-cel crate behaves differently. Indexes count
//! characters.

use std::sync::Arc;

use kube_cel::cel::Value;

use super::{
    conversions::as_text,
    error::EvalError,
    interpolation,
    keyed::plain,
    values::{VisitLimit, text, type_name},
};

/// Calls a string function; `None` if the function is not one of these.
pub(super) fn call(
    function: &str,
    target: Option<&Value>,
    arguments: &[Value],
    looks: &mut VisitLimit,
) -> Option<Result<Value, EvalError>> {
    let target = plain(target?);
    if let ("join", Value::List(parts)) = (function, target) {
        let separator = match arguments {
            [] => "",
            [Value::String(separator)] => separator,
            _ => return None,
        };
        return Some(joined(parts, separator, looks).map(text));
    }
    let Value::String(given) = target else {
        return None;
    };
    Some(match (function, arguments) {
        ("charAt", [Value::Int(at)]) => char_at(given, *at).map(text),
        ("substring", [Value::Int(from)]) => match index(given, *from) {
            Some(from) => Ok(text(&given[from..])),
            None => Err(EvalError::OutOfRange(*from)),
        },
        ("substring", [Value::Int(from), Value::Int(to)]) => between(given, *from, *to).map(text),
        ("indexOf", [Value::String(wanted)]) => index_of(given, wanted, 0),
        ("indexOf", [Value::String(wanted), Value::Int(from)]) => index_of(given, wanted, *from),
        ("lastIndexOf", [Value::String(wanted), rest @ ..]) => match rest {
            [] => Ok(Value::Int(last_before(given, wanted, usize::MAX))),
            [Value::Int(from)] => last_index_of(given, wanted, *from),
            _ => return None,
        },
        ("split", [Value::String(separator), rest @ ..]) => {
            let most = match rest {
                [] => None,
                // As in Go, a negative number means no limit.
                [Value::Int(most)] => usize::try_from(*most).ok(),
                _ => return None,
            };
            let parts = parts(given, separator, most)
                .into_iter()
                .map(text)
                .collect();
            Ok(Value::List(Arc::new(parts)))
        }
        ("format", [values]) => match plain(values) {
            Value::List(values) => interpolation::filled(given, values, looks).map(text),
            _ => return None,
        },
        _ => return None,
    })
}

/// Returns the byte offset of a character index; the end of the text is a valid index.
fn index(given: &str, at: i64) -> Option<usize> {
    let at = usize::try_from(at).ok()?;
    let ends = given.char_indices().map(|(byte, _)| byte);
    ends.chain([given.len()]).nth(at)
}

fn char_at(given: &str, at: i64) -> Result<String, EvalError> {
    match index(given, at) {
        // At the end of the text this is an empty text, as in cel-go.
        Some(byte) => Ok(given[byte..].chars().take(1).collect()),
        None => Err(EvalError::OutOfRange(at)),
    }
}

fn between(given: &str, from: i64, to: i64) -> Result<&str, EvalError> {
    if from > to {
        return Err(EvalError::Substring(from, to));
    }
    let first = index(given, from).ok_or(EvalError::OutOfRange(from))?;
    let end = index(given, to).ok_or(EvalError::OutOfRange(to))?;
    Ok(&given[first..end])
}

fn index_of(given: &str, wanted: &str, from: i64) -> Result<Value, EvalError> {
    // cel-go returns the index itself for an empty text, without checking it.
    if wanted.is_empty() {
        return Ok(Value::Int(from));
    }
    if from < 0 {
        return Err(EvalError::OutOfRange(from));
    }
    let found = index(given, from).and_then(|start| {
        let before = given[start..].find(wanted)?;
        i64::try_from(given[..start + before].chars().count()).ok()
    });
    Ok(Value::Int(found.unwrap_or(-1)))
}

fn last_index_of(given: &str, wanted: &str, from: i64) -> Result<Value, EvalError> {
    if wanted.is_empty() {
        return Ok(Value::Int(from));
    }
    let Ok(from_index) = usize::try_from(from) else {
        return Err(EvalError::OutOfRange(from));
    };
    // Beyond the end nothing is found, but it is not an error, unlike a negative index.
    let is_within = from_index < given.chars().count();
    Ok(Value::Int(if is_within {
        last_before(given, wanted, from_index)
    } else {
        -1
    }))
}

/// Returns the last index, at or before `place`, at which `wanted` begins.
fn last_before(given: &str, wanted: &str, place: usize) -> i64 {
    let start = given
        .char_indices()
        .nth(place)
        .map_or(given.len(), |(byte, _)| byte);
    // A match that begins at the place may end after it.
    let mut end = start.saturating_add(wanted.len()).min(given.len());
    while !given.is_char_boundary(end) {
        end -= 1;
    }
    let found = given[..end].rfind(wanted);
    let index = found.and_then(|byte| i64::try_from(given[..byte].chars().count()).ok());
    index.unwrap_or(-1)
}

/// Splits a text like Go's `strings.SplitN`; an empty separator splits between all characters.
fn parts<'g>(given: &'g str, separator: &str, most: Option<usize>) -> Vec<&'g str> {
    let most = most.unwrap_or(usize::MAX);
    if !separator.is_empty() {
        return given.splitn(most, separator).collect();
    }
    let mut parts = Vec::new();
    // As in Go, a limit of zero means no parts at all.
    let mut rest = if most == 0 { "" } else { given };
    while let Some(first) = rest.chars().next() {
        let length = if parts.len() + 1 >= most {
            rest.len()
        } else {
            first.len_utf8()
        };
        let (part, after) = rest.split_at(length);
        parts.push(part);
        rest = after;
    }
    parts
}

fn joined(parts: &[Value], separator: &str, looks: &mut VisitLimit) -> Result<String, EvalError> {
    let mut texts = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Value::String(part) => {
                // The same text may occur many times.
                looks.take((part.len() + separator.len()) as u64 + 1)?;
                texts.push(part.as_str());
            }
            other => {
                let shown = as_text(other).and_then(Result::ok);
                let shown = shown.unwrap_or_else(|| type_name(other).to_owned());
                return Err(EvalError::Join(shown));
            }
        }
    }
    Ok(texts.join(separator))
}
