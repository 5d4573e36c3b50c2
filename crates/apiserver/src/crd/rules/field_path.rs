//! Parses the field paths of rules and selectable fields: `.spec.list['a key']`, through properties and maps only.

use mullion_schema::structural::Schema;

/// A parsed path that leads to a schema.
pub(crate) struct ResolvedPath<'s> {
    /// The path as errors print it: `spec.list[a key]`.
    pub(crate) text: String,
    /// The schema at the path.
    pub(crate) schema: &'s Schema,
}

/// The reason why a field path is invalid, with kube-apiserver's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldPathError {
    /// A name or a bracket is missing at the end.
    #[error("unexpected end of JSON path")]
    End,
    /// Brackets may not be used here.
    #[error("array notation is not allowed")]
    Brackets,
    /// This stands within brackets instead of a name in quotes.
    #[error("expected single quoted string but got {0}")]
    Unquoted(String),
    /// This stands where a bracket should be closed.
    #[error("expected ] but got {0}")]
    OpenBracket(String),
    /// This stands where a name should begin.
    #[error("expected [ or . but got: {0}")]
    Token(String),
    /// The schema has no such field.
    #[error("does not refer to a valid field")]
    NoField,
    /// An escape of a name has this unknown character.
    #[error("invalid string literal: invalid escape char \\{0}")]
    Escape(char),
}

/// Parses a field path. Names in brackets and quotes may contain any character.
///
/// # Errors
/// The path is invalid (k8s.io/apiextensions-apiserver: ValidFieldPath).
pub(crate) fn normal<'s>(
    path: &str,
    schema: &'s Schema,
) -> Result<ResolvedPath<'s>, FieldPathError> {
    found(path, schema, true)
}

/// Parses a field path that consists of names between dots only.
///
/// # Errors
/// The path is invalid.
pub(crate) fn without_brackets<'s>(
    path: &str,
    schema: &'s Schema,
) -> Result<ResolvedPath<'s>, FieldPathError> {
    found(path, schema, false)
}

fn found<'s>(
    path: &str,
    schema: &'s Schema,
    brackets: bool,
) -> Result<ResolvedPath<'s>, FieldPathError> {
    let tokens = tokens(path);
    let mut tokens = tokens.iter().map(String::as_str);
    let mut found = ResolvedPath {
        text: String::new(),
        schema,
    };
    while let Some(token) = tokens.next() {
        match token {
            "." => found = found.below(tokens.next().ok_or(FieldPathError::End)?)?,
            "[" if !brackets => return Err(FieldPathError::Brackets),
            "[" => {
                let quoted = tokens.next().ok_or(FieldPathError::End)?;
                let inner = quoted
                    .strip_prefix('\'')
                    .and_then(|rest| rest.strip_suffix('\''))
                    .ok_or_else(|| FieldPathError::Unquoted(quoted.to_owned()))?;
                found = found.below(&unescaped(inner)?)?;
                match tokens.next() {
                    Some("]") => {}
                    Some(other) => return Err(FieldPathError::OpenBracket(other.to_owned())),
                    None => return Err(FieldPathError::End),
                }
            }
            other => return Err(FieldPathError::Token(other.to_owned())),
        }
    }
    Ok(found)
}

impl<'s> ResolvedPath<'s> {
    fn below(self, name: &str) -> Result<ResolvedPath<'s>, FieldPathError> {
        // A schema has properties or a map's values, never both.
        if !self.schema.properties.is_empty() {
            let schema = self
                .schema
                .properties
                .get(name)
                .ok_or(FieldPathError::NoField)?;
            let text = match self.text.as_str() {
                "" => name.to_owned(),
                text => format!("{text}.{name}"),
            };
            return Ok(ResolvedPath { text, schema });
        }
        Ok(ResolvedPath {
            schema: self
                .schema
                .additional_schema()
                .ok_or(FieldPathError::NoField)?,
            text: format!("{}[{name}]", self.text),
        })
    }
}

/// Splits a path into dots, brackets and names. Dots and brackets inside quotes are part of a name.
fn tokens(path: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut current = String::new();
    for c in path.chars() {
        let quoted = current.starts_with('\'');
        if !quoted && matches!(c, '.' | '[' | ']') {
            if !current.is_empty() {
                tokens.push(std::mem::take(&mut current));
            }
            tokens.push(c.to_string());
            continue;
        }
        let ends = quoted && c == '\'' && !current.ends_with('\\');
        current.push(c);
        if ends {
            tokens.push(std::mem::take(&mut current));
        }
    }
    if !current.is_empty() {
        tokens.push(current);
    }
    tokens
}

fn unescaped(text: &str) -> Result<String, FieldPathError> {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match letters.next() {
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(plain @ ('\'' | '\\')) => plain,
            Some(other) => return Err(FieldPathError::Escape(other)),
            None => '\\',
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_through_properties_and_maps() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"a.b": {"type": "string"}, "m": {"type": "object", "additionalProperties": {"type": "string"}}}},
            "list": {"type": "array", "items": {"type": "string"}},
        }}));
        let text = |path: &str| {
            let found = normal(path, &schema).map(|found| found.text);
            found.map_err(|error| error.to_string())
        };
        assert_eq!(text(".spec['a.b']"), Ok("spec.a.b".to_owned()));
        assert_eq!(text(".spec.m['x y']"), Ok("spec.m[x y]".to_owned()));
        assert_eq!(
            text(".spec.c"),
            Err("does not refer to a valid field".to_owned())
        );
        assert_eq!(
            text(".list[0]"),
            Err("expected single quoted string but got 0".to_owned())
        );
        assert_eq!(
            text("spec"),
            Err("expected [ or . but got: spec".to_owned())
        );
        assert_eq!(
            text(".spec."),
            Err("unexpected end of JSON path".to_owned())
        );
    }
}
