//! Preserves number literals where they matter: Go parses integers from the literal, quantities keep its form, and errors quote it.
//!
//! Serde passes only the number's value to a visitor. So such literals are replaced in the body by strings that begin with a character
//! that no other string of the body contains, and the walk recognises them.

use std::borrow::Cow;

use serde_json::{Number, Value};

/// The marker; it never appears unescaped in a JSON string.
const MARK: u8 = 1;
const ESCAPED: &[u8] = b"\\u0001";

/// Returns the body with its literals marked, or unchanged if it has none or already contains the marker.
pub(super) fn marked(body: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let (mut at, mut copied) = (0, 0);
    while at < body.len() {
        match body[at] {
            b'"' => at = end_of_text(body, at),
            b'-' | b'0'..=b'9' => {
                let end = end_of_number(body, at);
                if is_special(&body[at..end]) && ends_a_value(&body[end..]) {
                    // Only now, because it reads the whole body and few bodies have such literals.
                    if copied == 0 && contains(body, ESCAPED) {
                        return body.into();
                    }
                    out.extend_from_slice(&body[copied..at]);
                    out.push(b'"');
                    out.extend_from_slice(ESCAPED);
                    out.extend_from_slice(&body[at..end]);
                    out.push(b'"');
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    if out.is_empty() {
        return body.into();
    }
    out.extend_from_slice(&body[copied..]);
    out.into()
}

/// Returns the literal in a string of a marked body, or `None` for other strings.
pub(super) fn literal(text: &str) -> Option<&str> {
    text.strip_prefix(char::from(MARK))
}

/// Restores the numbers in an untyped value; a literal that no number can hold becomes null.
pub(super) fn restore(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(literal) = literal(text) {
                *value = number(literal).map_or(Value::Null, Value::Number);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(restore),
        Value::Object(map) => map.values_mut().for_each(restore),
        _ => {}
    }
}

/// Returns the number of a literal: an integer if it is written as one and fits, else a float.
pub(super) fn number(literal: &str) -> Option<Number> {
    match literal.parse::<i64>() {
        Ok(whole) => Some(whole.into()),
        Err(_) => Number::from_f64(literal.parse().ok()?),
    }
}

fn end_of_text(body: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < body.len() {
        match body[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    body.len()
}

fn end_of_number(body: &[u8], start: usize) -> usize {
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let length = body[start..]
        .iter()
        .take_while(|byte| is_part(byte))
        .count();
    start + length
}

/// Returns whether serde would lose the literal's form. Text that is not a number is left to serde's error.
fn is_special(literal: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(literal) else {
        return false;
    };
    // `-0` parses as an integer, but would lose its sign.
    let is_plain = text != "-0" && text.parse::<i64>().is_ok();
    !is_plain && super::syntax::is_number(literal)
}

/// Returns whether `rest` continues as it may after a value, that is, whether the number is complete.
fn ends_a_value(rest: &[u8]) -> bool {
    matches!(
        rest.trim_ascii_start().first(),
        None | Some(b',' | b']' | b'}')
    )
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_literals_that_serde_would_not_tell_are_marked() {
        let shown = |body: &str| String::from_utf8_lossy(&marked(body.as_bytes())).into_owned();
        for same in [
            r#"{"a":1,"b":[-2,"1.5"],"1.5":"\"2.5"}"#,
            r#"{1.5:2}"#,
            r#"{"a":01.5}"#,
            r#"{"a":1.5,"b":"\u0001"}"#,
            "",
        ] {
            assert_eq!(shown(same), same);
        }
        assert_eq!(
            shown(r#"{"a":[1.50 ,-0],"b":1e400}"#),
            r#"{"a":["\u00011.50" ,"\u0001-0"],"b":"\u00011e400"}"#
        );
        assert_eq!(literal("\u{1}1e3"), Some("1e3"));
        assert_eq!(number("-0"), Some(0.into()));
        assert_eq!(number("1e400"), None);
    }
}
