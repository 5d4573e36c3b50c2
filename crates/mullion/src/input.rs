//! Reads the files that flags name; `-` is stdin, and messages call it so.

use std::{fmt, io::Read, path::Path};

use serde::de::{DeserializeOwned, Error as _};
use serde_json::Value;

use crate::failure::{Failure, document_error, file_error};

/// Returns the name of a file for messages.
pub(crate) fn named(path: &Path) -> String {
    if is_stdin(path) {
        "stdin".to_owned()
    } else {
        path.display().to_string()
    }
}

/// Returns whether a path stands for stdin.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads the text of a file, or of stdin to its end.
///
/// # Errors
/// It cannot be read, or is not text.
pub(crate) fn text_of(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if is_stdin(path) {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(path).map(|read| text = read)
    };
    let refuse = |error| {
        let why = file_error(&error);
        Failure::input(format!("{} cannot be read: {why}", named(path)))
    };
    read.map(|()| text).map_err(refuse)
}

/// Returns the elements of a list in an object that was read; none if the value is no list.
pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The reason why a YAML text is not a map of fields; its text is a line.
#[derive(Debug)]
pub(crate) enum FieldsError {
    /// The text is not YAML, or a field is unknown or has another type; this is the first line of the parser's error.
    Syntax(String),
    /// The text is empty.
    Empty,
    /// The text is something else.
    Shape(Value),
}

impl fmt::Display for FieldsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldsError::Syntax(line) => f.write_str(line),
            FieldsError::Empty => f.write_str("the file is empty"),
            FieldsError::Shape(value) => {
                write!(f, "the file is {}, not a map of fields", shape(value))
            }
        }
    }
}

/// Parses a YAML text as a map of fields.
pub(crate) fn fields<T: DeserializeOwned>(text: &str) -> Result<T, FieldsError> {
    let wrong = |error| FieldsError::Syntax(document_error(&error));
    let whole: Value = serde_saphyr::from_str(text).map_err(wrong)?;
    match whole {
        Value::Object(_) => serde_saphyr::from_str(text).map_err(wrong),
        Value::Null => Err(FieldsError::Empty),
        other => Err(FieldsError::Shape(other)),
    }
}

/// Parses a JSON text.
///
/// Types are always read from a `str`, because code that reads them from bytes is compiled again, and is slower where texts are many.
///
/// # Errors
/// The text is not UTF-8, not JSON, or has not the fields of the type.
pub(crate) fn json<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    match std::str::from_utf8(text) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => Err(not_utf8(text)),
    }
}

/// Returns the JSON parser's error for a text that is not UTF-8, which says at which line and column.
pub(crate) fn not_utf8(text: &[u8]) -> serde_json::Error {
    let read = serde_json::from_slice::<Value>(text).map(drop);
    read.err()
        .unwrap_or_else(|| serde_json::Error::custom("the text is not UTF-8"))
}

/// Describes a YAML value that has the wrong type: `the text "hello"`.
pub(crate) fn shape(value: &Value) -> String {
    /// The longest text that is shown; more of it does not help to find it.
    const SHOWN: usize = 40;
    match value {
        Value::Null => "empty".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map of fields".to_owned(),
        Value::String(text) if text.chars().count() > SHOWN => {
            let begin: String = text.chars().take(SHOWN).collect();
            format!("a text that begins with {begin:?}")
        }
        Value::String(text) => format!("the text {text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_file_that_is_no_map_of_fields_is_named_for_what_it_is() {
        let read = |text: &str| {
            let read = fields::<BTreeMap<String, u8>>(text);
            read.map_err(|error| error.to_string())
        };
        assert_eq!(read("{a: 1}"), Ok(BTreeMap::from([("a".to_owned(), 1)])));
        let long = "word ".repeat(20);
        for (text, expected) in [
            ("", "the file is empty"),
            (
                "hello",
                "the file is the text \"hello\", not a map of fields",
            ),
            ("[a]", "the file is a list, not a map of fields"),
            ("12", "the file is 12, not a map of fields"),
            (
                &long,
                "the file is a text that begins with \"word word word word word word word word \", not a map of fields",
            ),
            (
                "a: b: c",
                "line 1 column 5: mapping values are not allowed in this context",
            ),
            (
                "a: 1\n---\na: 2\n",
                "line 3: another document begins after `---`, but the file must be one",
            ),
        ] {
            assert_eq!(read(text), Err(expected.to_owned()));
        }
    }
}
