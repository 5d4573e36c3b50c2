//! Label and field selectors of a query string, matched against the labels and fields that the store keeps parsed.
//!
//! [`mullion_kube_text::validation::selector`] parses label selectors; field selectors are parsed here, with the errors of
//! `k8s.io/apimachinery/pkg/fields`.

use mullion_kube_text::{
    status::Status,
    validation::selector::{Requirement, Selector as LabelSelector},
};
use mullion_store::Object;

use super::call::Call;
use crate::{registry::Row, request::query::Query};

/// The selectors that restrict a list or watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Term>,
}

/// A term of a field selector.
#[derive(Clone, Debug, PartialEq)]
struct Term {
    field: Field,
    value: String,
    equal: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Field {
    Name,
    Namespace,
    /// A field by its index among the kind's selectable fields.
    Selectable(usize),
}

/// Returns 400 unless the label selector and the field selector of a query can be parsed. Whether the kind has the fields is not checked.
pub(crate) fn check_syntax(query: &Query) -> Result<(), Status> {
    let text = |key: &str| query.get(key).unwrap_or_default();
    LabelSelector::parse(text("labelSelector"))
        .map_err(|error| Status::bad_request(error.to_string()))?;
    parse_fields(text("fieldSelector"))?;
    Ok(())
}

impl Selector {
    /// Parses both selectors of a request.
    pub(crate) fn of(call: &Call) -> Result<Self, Status> {
        let (labels, fields) = (
            call.query.get("labelSelector"),
            call.query.get("fieldSelector"),
        );
        Self::parse(labels, fields, &call.row)
    }

    fn parse(labels: Option<&str>, fields: Option<&str>, row: &Row) -> Result<Self, Status> {
        let labels = LabelSelector::parse(labels.unwrap_or_default())
            .map_err(|error| Status::bad_request(error.to_string()))?;
        let labels = labels.requirements().unwrap_or_default().to_vec();
        let mut terms = Vec::new();
        for (name, value, equal) in parse_fields(fields.unwrap_or_default())? {
            terms.push(Term {
                field: resolve(row, &name)?,
                value,
                equal,
            });
        }
        Ok(Selector {
            labels,
            fields: terms,
        })
    }

    /// Returns whether every object matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns the name that the field selector requires, if any.
    pub(crate) fn name(&self) -> Option<&str> {
        let mut names = self
            .fields
            .iter()
            .filter(|term| term.equal && term.field == Field::Name);
        names.next().map(|term| term.value.as_str())
    }

    /// Returns whether there is no field selector.
    pub(crate) fn takes_any_field(&self) -> bool {
        self.fields.is_empty()
    }

    /// Adds the requirement that the object has this name.
    pub(crate) fn restrict_to_name(&mut self, name: &str) {
        self.fields.push(Term {
            field: Field::Name,
            value: name.to_owned(),
            equal: true,
        });
    }

    /// Returns whether a stored object matches. `row` must be the row that the selector was parsed for.
    pub(crate) fn matches(&self, row: &Row, object: &Object) -> bool {
        self.labels
            .iter()
            // Labels before fields: the store keeps them parsed, while fields may need a conversion of the whole object.
            .all(|requirement| requirement.allows(object.meta().label(&requirement.key)))
            && (self.fields.is_empty() || self.matches_fields(row, object))
    }

    /// Returns whether an object that is not stored matches; its only selectable fields are name and namespace.
    pub(crate) fn takes<'l>(
        &self,
        namespace: &str,
        name: &str,
        label: impl Fn(&str) -> Option<&'l str>,
    ) -> bool {
        let fields = self.fields.iter().all(|term| {
            let value = match term.field {
                Field::Name => name,
                Field::Namespace => namespace,
                Field::Selectable(_) => "",
            };
            (value == term.value) == term.equal
        });
        fields
            && self
                .labels
                .iter()
                .all(|requirement| requirement.allows(label(&requirement.key)))
    }

    fn matches_fields(&self, row: &Row, object: &Object) -> bool {
        // The store keeps the fields of the stored version, so convert the object where the served version differs.
        let converted = if row.serves_stored_bytes() {
            None
        } else {
            Some(row.selectable_values(&row.served(object)))
        };
        let values = converted.as_deref().unwrap_or(&object.meta().fields);
        self.fields.iter().all(|term| {
            let value = match term.field {
                Field::Name => object.key().name(),
                Field::Namespace => object.key().namespace().unwrap_or_default(),
                Field::Selectable(at) => values.get(at).map_or("", |value| value),
            };
            (value == term.value) == term.equal
        })
    }
}

fn resolve(row: &Row, name: &str) -> Result<Field, Status> {
    let resource = &row.resource;
    let selectable = resource.selectable_fields();
    if let Some(at) = selectable.iter().position(|field| *field == name) {
        return Ok(Field::Selectable(at));
    }
    // kube-apiserver's DefaultMetaV1FieldSelectorConversion knows the namespace for every kind, even for cluster-scoped ones.
    let namespace_known = resource.namespaced || (!row.custom && selectable.is_empty());
    match name {
        "metadata.name" => Ok(Field::Name),
        "metadata.namespace" if namespace_known => Ok(Field::Namespace),
        _ if row.custom || !selectable.is_empty() => {
            let selection = resource.behaviour.field_selection();
            let why = selection.and_then(|selection| selection.unselectable(name));
            let why = why.unwrap_or_else(|| format!("field label not supported: {name}"));
            Err(Status::bad_request(why))
        }
        _ => Err(Status::bad_request(format!(
            "{name:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        ))),
    }
}

/// The reason why a text is not a field selector.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldSelectorError {
    /// A term has no operator.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term {
        /// The selector.
        selector: String,
        /// The term.
        term: String,
    },
    /// A backslash escapes nothing that has to be escaped.
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// A value has this character without a backslash. The message has the number of the character, and two beginnings, as upstream.
    #[error(
        "invalid field selector: invalid escape sequence: invalid field selector: unescaped character in value: {}",
        u32::from(*.0)
    )]
    Unescaped(char),
}

impl From<FieldSelectorError> for Status {
    fn from(error: FieldSelectorError) -> Self {
        Status::bad_request(error.to_string())
    }
}

/// Parses a field selector such as `a=b,c!=d` into name, value and "is equal". Empty terms are skipped; `\` escapes a comma, an equals
/// sign or a backslash.
pub(crate) fn parse_fields(text: &str) -> Result<Vec<(String, String, bool)>, FieldSelectorError> {
    let mut terms = Vec::new();
    for term in split_terms(text) {
        if term.is_empty() {
            continue;
        }
        let Some((name, operator, value)) = split_operator(term) else {
            return Err(FieldSelectorError::Term {
                selector: text.to_owned(),
                term: term.to_owned(),
            });
        };
        let value = unescape(value)?;
        // The term `=` restricts nothing.
        if !(name.is_empty() && value.is_empty()) {
            terms.push((name.to_owned(), value, operator != "!="));
        }
    }
    Ok(terms)
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_operator(term: &str) -> Option<(&str, &str, &str)> {
    (0..term.len())
        .filter(|at| term.is_char_boundary(*at))
        .find_map(|at| {
            let operator = ["!=", "==", "="]
                .into_iter()
                .find(|operator| term[at..].starts_with(operator))?;
            Some((&term[..at], operator, &term[at + operator.len()..]))
        })
}

fn unescape(value: &str) -> Result<String, FieldSelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                Some(other) => return Err(FieldSelectorError::Escape(format!("\\{other}"))),
                None => return Err(FieldSelectorError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(FieldSelectorError::Unescaped(character)),
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_selector_may_end_in_a_comma() {
        let terms = parse_fields("metadata.name=a,").unwrap();
        assert_eq!(terms, [("metadata.name".to_owned(), "a".to_owned(), true)]);
        assert_eq!(parse_fields("a!=b,c==d").unwrap().len(), 2);
        assert_eq!(parse_fields("a=x\\,y").unwrap()[0].1, "x,y");
        assert_eq!(
            parse_fields("foo").map_err(|error| error.to_string()),
            Err("invalid selector: 'foo'; can't understand 'foo'".to_owned())
        );
    }
}
