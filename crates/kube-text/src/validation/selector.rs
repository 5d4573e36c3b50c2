//! Label selectors: the text form of requests (`app in (a,b),!x`) and the structured `metav1.LabelSelector` of specs.
//!
//! Both become a [`Selector`], which matches labels without allocating. Parse errors have the text of
//! `apimachinery/pkg/labels/selector.go`, because clients show them unchanged.

mod parse;

use std::fmt;

use serde_json::{Map, Value};

use super::{entries, items, metadata, text};
use crate::{
    field::{Errors, Path},
    golang::quote,
    names,
};

/// The reason why a text or a `metav1.LabelSelector` is not a selector, with apimachinery's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A token stands where others were expected.
    #[error("found '{found}', expected: {expected}")]
    Token {
        /// The token.
        found: String,
        /// The tokens that may stand there.
        expected: &'static str,
    },
    /// No list follows `in` or `notin`, but this token.
    #[error("found '{0}' expected: '('")]
    NoList(String),
    /// An expression of a `metav1.LabelSelector` has an unknown operator.
    #[error("{} is not a valid label selector operator", quote(.0))]
    Operator(String),
    /// A key or values are invalid.
    #[error("{}", aggregated(.0))]
    Invalid(Vec<RequirementFault>),
    /// A requirement within a text is none.
    #[error("unable to parse requirement: {0}")]
    Requirement(Box<SelectorError>),
}

/// What is wrong with the key or the values of a requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequirementFault {
    /// A key or value has a wrong form.
    #[error("{path}: Invalid value: {}: {}", quote(.text), sentences.join("; "))]
    Text {
        /// The place of the text.
        path: String,
        /// The key or value.
        text: String,
        /// What is wrong with its form.
        sentences: Vec<String>,
    },
    /// `in` or `notin` has no values.
    #[error("values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty")]
    NoValues,
    /// A test for existence has values.
    #[error(
        "values: Invalid value: {}: values set must be empty for exists and does not exist",
        Value::from(.0.as_slice())
    )]
    Values(Vec<String>),
    /// A bound is not a number.
    #[error(
        "values[{index}]: Invalid value: {}: for 'Gt', 'Lt' operators, the value must be an integer",
        quote(.text)
    )]
    NotAnInteger {
        /// The index of the value.
        index: usize,
        /// The value.
        text: String,
    },
}

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `=`
    Equals,
    /// `==`
    DoubleEquals,
    /// `!=`
    NotEquals,
    /// `in`
    In,
    /// `notin`
    NotIn,
    /// The key alone: the label exists.
    Exists,
    /// `!key`
    DoesNotExist,
    /// `>`
    GreaterThan,
    /// `<`
    LessThan,
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// The comparison.
    pub operator: Operator,
    /// The values to compare with, sorted.
    pub values: Vec<String>,
}

/// A conjunction of requirements, or a selector that matches nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Option<Vec<Requirement>>);

impl Selector {
    /// Returns a selector that matches everything.
    pub fn everything() -> Selector {
        Selector(Some(Vec::new()))
    }

    /// Returns a selector that matches nothing, as an absent one does.
    pub fn nothing() -> Selector {
        Selector(None)
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// The text is not a selector; the message names the position.
    pub fn parse(text: &str) -> Result<Selector, SelectorError> {
        let mut requirements = parse::requirements(text)?;
        // apimachinery sorts them too, which shows where a selector is printed.
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Selector(Some(requirements)))
    }

    /// Converts a `metav1.LabelSelector`: null selects nothing, an empty one everything.
    ///
    /// # Errors
    /// An operator, key or value that [`label_selector`] refuses.
    pub fn from_label_selector(selector: &Value) -> Result<Selector, SelectorError> {
        if selector.is_null() {
            return Ok(Selector::nothing());
        }
        let mut requirements = Vec::new();
        for (key, value) in entries(selector, "matchLabels") {
            let values = vec![value.as_str().unwrap_or("").to_owned()];
            requirements.push(requirement(key, Operator::In, values)?);
        }
        for expression in items(selector, "matchExpressions") {
            let operator = match text(expression, "operator") {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(SelectorError::Operator(other.to_owned()));
                }
            };
            let values = items(expression, "values")
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            requirements.push(requirement(text(expression, "key"), operator, values)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Selector(Some(requirements)))
    }

    /// Returns a selector for exactly these labels (a Service's selector); an empty set matches everything.
    pub fn from_labels(labels: &Map<String, Value>) -> Selector {
        let equals = |(key, value): (&String, &Value)| Requirement {
            key: key.clone(),
            operator: Operator::Equals,
            values: vec![value.as_str().unwrap_or("").to_owned()],
        };
        Selector(Some(labels.iter().map(equals).collect()))
    }

    /// Returns whether the selector matches everything.
    pub fn is_everything(&self) -> bool {
        self.0.as_ref().is_some_and(Vec::is_empty)
    }

    /// Returns the requirements, or `None` if the selector matches nothing.
    pub fn requirements(&self) -> Option<&[Requirement]> {
        self.0.as_deref()
    }

    /// Returns whether an object's labels, if it has any, match.
    pub fn matches(&self, labels: Option<&Value>) -> bool {
        let labels = labels.and_then(Value::as_object);
        self.0.as_ref().is_some_and(|requirements| {
            requirements
                .iter()
                .all(|requirement| requirement.matches(labels))
        })
    }
}

impl Requirement {
    fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.allows(
            labels
                .and_then(|labels| labels.get(&self.key))
                .and_then(Value::as_str),
        )
    }

    /// Returns whether an object matches if its label has this value; `None` means that it lacks the label.
    pub fn allows(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|v| v == value);
        match self.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In => value.is_some_and(listed),
            // An absent label satisfies these operators too.
            Operator::NotEquals | Operator::NotIn => value.is_none_or(|value| !listed(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                // As in apimachinery, what is not an integer never matches.
                let number = |text: &str| text.parse::<i64>().ok();
                let (Some(value), Some(bound)) = (
                    value.and_then(number),
                    self.values.first().and_then(|v| number(v)),
                ) else {
                    return false;
                };
                if self.operator == Operator::GreaterThan {
                    value > bound
                } else {
                    value < bound
                }
            }
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.iter().flatten().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

/// Formats a structured selector like `metav1.FormatLabelSelector`: `<none>` for an empty or absent one, `app=web` for `matchLabels`.
pub fn format_label_selector(selector: &Value) -> String {
    match Selector::from_label_selector(selector) {
        Err(_) => "<error>".to_owned(),
        Ok(Selector(mut requirements)) => {
            for requirement in requirements.iter_mut().flatten() {
                // `matchLabels` became `In` requirements; `FormatLabelSelector` prints them as `key=value`.
                if requirement.operator == Operator::In
                    && selector["matchLabels"].get(&requirement.key).is_some()
                {
                    requirement.operator = Operator::Equals;
                }
            }
            let text = Selector(requirements).to_string();
            if text.is_empty() {
                "<none>".to_owned()
            } else {
                text
            }
        }
    }
}

/// Returns the texts of the faults as apimachinery aggregates errors: one alone, several within brackets.
fn aggregated(faults: &[RequirementFault]) -> String {
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [text] => text.clone(),
        texts => format!("[{}]", texts.join(", ")),
    }
}

impl RequirementFault {
    /// Returns the fault of a text with a wrong form; `None` if no sentence says what is wrong.
    fn text(path: impl Into<String>, text: &str, sentences: Vec<String>) -> Option<Self> {
        (!sentences.is_empty()).then(|| RequirementFault::Text {
            path: path.into(),
            text: text.to_owned(),
            sentences,
        })
    }
}

/// Returns a requirement if its key and values are valid.
fn requirement(
    key: &str,
    operator: Operator,
    mut values: Vec<String>,
) -> Result<Requirement, SelectorError> {
    let mut faults = Vec::new();
    faults.extend(RequirementFault::text(
        "key",
        key,
        names::qualified_name(key),
    ));
    match operator {
        Operator::In | Operator::NotIn if values.is_empty() => {
            faults.push(RequirementFault::NoValues);
        }
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
            faults.push(RequirementFault::Values(values.clone()));
        }
        Operator::GreaterThan | Operator::LessThan => {
            for (index, value) in values
                .iter()
                .enumerate()
                .filter(|(_, value)| value.parse::<i64>().is_err())
            {
                faults.push(RequirementFault::NotAnInteger {
                    index,
                    text: value.clone(),
                });
            }
        }
        _ => {}
    }
    for (index, value) in values.iter().enumerate() {
        let sentences = names::label_value(value);
        if !sentences.is_empty() {
            let path = format!("values[{index}][{key}]");
            faults.extend(RequirementFault::text(path, value, sentences));
        }
    }
    if !faults.is_empty() {
        return Err(SelectorError::Invalid(faults));
    }
    // apimachinery keeps the values as a set and prints them sorted.
    values.sort();
    values.dedup();
    Ok(Requirement {
        key: key.to_owned(),
        operator,
        values,
    })
}

/// Validates a structured selector in a spec; null is valid.
pub fn label_selector(errors: &mut Errors, path: &Path<'_>, selector: &Value) {
    metadata::labels(
        errors,
        &path.child("matchLabels"),
        selector.get("matchLabels"),
    );
    for (index, expression) in items(selector, "matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions");
        let path = path.index(index);
        let empty = items(expression, "values").is_empty();
        match text(expression, "operator") {
            "In" | "NotIn" if empty => {
                errors.required(
                    &path.child("values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                );
            }
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !empty => {
                errors.forbidden(
                    &path.child("values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                );
            }
            "Exists" | "DoesNotExist" => {}
            other => errors.invalid(
                &path.child("operator"),
                other,
                "not a valid selector operator",
            ),
        }
        metadata::label_name(errors, &path.child("key"), text(expression, "key"));
        for (value_index, value) in items(expression, "values")
            .iter()
            .filter_map(Value::as_str)
            .enumerate()
        {
            super::check(
                errors,
                &path.child("values").index(value_index),
                value,
                names::label_value(value),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(selector: &str, labels: Value) -> bool {
        Selector::parse(selector)
            .expect(selector)
            .matches(Some(&labels))
    }

    #[test]
    fn the_string_form_matches_as_upstream_does() {
        let labels = || json!({"app": "web", "n": "5", "in": "x"});
        for good in [
            "",
            "app",
            "app=web",
            "app==web",
            "app!=db",
            "!x",
            "app in (web, db)",
            "x notin (a)",
            "n>4,n<6",
            "in=x",
            " app in (,web) ",
        ] {
            assert!(matches(good, labels()), "{good}");
        }
        for bad in ["x", "app=db", "!app", "app notin (web)", "n>5", "x>1"] {
            assert!(!matches(bad, labels()), "{bad}");
        }
    }

    #[test]
    fn errors_read_as_upstream_s() {
        let error = |text| Selector::parse(text).expect_err(text).to_string();
        assert_eq!(error("a,"), "found '', expected: identifier after ','");
        assert_eq!(
            error("a b"),
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"
        );
        assert_eq!(
            error("a in (b"),
            "unable to parse requirement: found '', expected: ',' or ')'"
        );
        assert_eq!(
            error("!"),
            "unable to parse requirement: found '', expected: identifier"
        );
        assert!(error("A/B/C").starts_with(
            r#"unable to parse requirement: <nil>: Invalid value: "A/B/C": a valid label key must"#
        ));
    }

    #[test]
    fn an_absent_selector_matches_nothing_and_an_empty_one_everything() {
        let selector = |value| Selector::from_label_selector(&value).expect("valid");
        assert!(!selector(Value::Null).matches(None));
        assert!(selector(json!({})).matches(None));
        let both = json!({"matchLabels": {"b": "1"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x"]}]});
        assert_eq!(selector(both.clone()).to_string(), "a in (x,y),b in (1)");
        assert_eq!(format_label_selector(&both), "a in (x,y),b=1");
        assert_eq!(format_label_selector(&json!({})), "<none>");
    }
}
