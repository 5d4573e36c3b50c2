//! Runs rules on a value and on the values in it, and reports the rules that fail.

use mullion_cel::{Budget, EvalError, Failure, Value, none, some};
use mullion_kube_text::{
    field::{BadValue, ErrorType, Errors, FieldError},
    golang::quote,
};
use mullion_schema::structural::Schema;
use serde_json::Value as Json;

use super::{Node, Rule, values};
use crate::crd::correlation::{Before, Correlation};

/// The longest text of a messageExpression that is used, in bytes.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

/// The reason why no further rule is evaluated after a `messageExpression`.
#[derive(Debug, thiserror::Error)]
enum MessageError {
    /// This expression takes more steps than one expression may.
    #[error(
        "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
        quote(.0)
    )]
    TooLong(String),
    /// The expressions for the object together take more steps than allowed.
    #[error(
        "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run"
    )]
    Exhausted,
}

/// A value that the traversal has reached.
#[derive(Clone, Copy)]
pub(super) struct Place<'v> {
    pub(super) schema: &'v Schema,
    pub(super) value: &'v Json,
    /// The value of `oldSelf`.
    pub(super) old: Option<&'v Json>,
    pub(super) correlation: Option<Correlation<'v>>,
    pub(super) is_resource: bool,
}

impl Place<'_> {
    /// Returns whether the write leaves the value unchanged.
    fn is_unchanged(&self) -> bool {
        let correlation = self.correlation;
        correlation.is_some_and(|correlation| correlation.is_unchanged())
    }
}

/// Runs the rules of a node and of the nodes below it. Errors that ratcheting forgives are recorded as warnings ([`Errors::forgive`]).
pub(super) fn run(node: &Node, place: Place<'_>, path: &str, errors: &mut Errors) {
    let mut run = Run {
        budget: Budget::default(),
        errors,
    };
    // `Stop` only ends the evaluation; its error is already recorded.
    let _ = run.node(node, place, path);
}

/// The signal that no further rule is evaluated.
struct Stop;

struct Run<'e> {
    budget: Budget,
    errors: &'e mut Errors,
}

impl Run<'_> {
    fn node(&mut self, node: &Node, place: Place<'_>, path: &str) -> Result<(), Stop> {
        // As in kube-apiserver, a null has no rules: its type is not the one that they were compiled for.
        if place.value.is_null() {
            return Ok(());
        }
        // The rules of a value come before those of the values in it: the budget is spent in this order, and the errors appear in it.
        self.rules(&node.rules, &place, path)?;
        match place.value {
            Json::Array(items) => {
                let (Some(node), Some(schema)) = (&node.items, place.schema.items.as_deref())
                else {
                    return Ok(());
                };
                let before = place.old.and_then(|old| Before::of(place.schema, old));
                let correlations = place.correlation.map(|list| list.items());
                for (index, value) in items.iter().enumerate() {
                    let below = Place {
                        schema,
                        value,
                        old: before.as_ref().and_then(|before| before.item(value, index)),
                        correlation: correlations.as_ref().map(|items| items.at(index)),
                        is_resource: schema.embedded,
                    };
                    self.node(node, below, &format!("{path}[{index}]"))?;
                }
            }
            Json::Object(map) => {
                for (name, value) in map {
                    let property = node.properties.get(name);
                    let (node, schema, path) = match property.zip(place.schema.properties.get(name))
                    {
                        Some((node, schema)) => (node, schema, child(path, name)),
                        None => match node
                            .additional
                            .as_deref()
                            .zip(place.schema.additional_schema())
                        {
                            Some((node, schema)) => (node, schema, format!("{path}[{name}]")),
                            None => continue,
                        },
                    };
                    let below = Place {
                        schema,
                        value,
                        old: place.old.and_then(|old| old.get(name)),
                        correlation: place.correlation.map(|correlation| correlation.key(name)),
                        is_resource: schema.embedded,
                    };
                    self.node(node, below, &path)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn rules(&mut self, rules: &[Rule], place: &Place<'_>, path: &str) -> Result<(), Stop> {
        let mut wanted = rules
            .iter()
            .filter(|rule| !rule.uses_old || place.old.is_some() || rule.optional_old);
        let Some(first) = wanted.next() else {
            return Ok(());
        };
        let value = |value| values::of_json(place.schema, value, place.is_resource);
        // `old` is not needed if no rule uses `oldSelf`, and converting it takes time.
        let old = place.old.filter(|_| rules.iter().any(|rule| rule.uses_old));
        let subject = Subject {
            place,
            path,
            me: value(place.value),
            old: old.map(value),
        };
        for rule in [first].into_iter().chain(wanted) {
            self.rule(rule, &subject)?;
        }
        Ok(())
    }

    fn rule(&mut self, rule: &Rule, subject: &Subject<'_>) -> Result<(), Stop> {
        let program = match &rule.program {
            None => return Ok(()),
            Some(Ok(program)) => program,
            Some(Err(message)) => {
                self.refuse(subject, format!("rule compile error: {message}"));
                return Ok(());
            }
        };
        let name = rule.name();
        let variables = subject.variables(rule.optional_old);
        match program.evaluate(&variables, &mut self.budget) {
            Ok(Value::Bool(true)) => return Ok(()),
            Ok(_) => {}
            Err(Failure::Error(why @ EvalError::NoOverload(_))) => {
                let detail = format!(
                    "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
                );
                self.refuse(subject, detail);
                return Ok(());
            }
            Err(Failure::Error(why)) => {
                self.refuse(subject, format!("{why} evaluating rule: {name}"));
                return Ok(());
            }
            Err(failure @ Failure::TooLong) => {
                let detail = format!(
                    "'{failure}': no further validation rules will be run due to call cost exceeds limit for rule: {name}"
                );
                self.refuse(subject, detail);
                // kube-apiserver stops here, since a rule that costs too much once would cost as much for every further value.
                return Err(Stop);
            }
            Err(Failure::Exhausted) => {
                let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
                self.refuse(subject, detail.to_owned());
                return Err(Stop);
            }
        }
        // This is checked only for failed rules, because comparing values can take longer than evaluating the rule.
        let is_forgiven = !rule.uses_old && subject.place.is_unchanged();
        let (schema, path) = (subject.place.schema, subject.path);
        let at = match &rule.field_path {
            Some(below) => child(path, below),
            None => path.to_owned(),
        };
        let detail = match self.message(rule, subject) {
            Ok(Some(text)) => text,
            Ok(None) => match rule.message.as_str() {
                "" => format!("failed rule: {name}"),
                message => message.to_owned(),
            },
            Err(why) => {
                self.record(is_forgiven, unevaluated(schema, at, why.to_string()));
                return Err(Stop);
            }
        };
        let error_type = match rule.reason.as_deref() {
            Some("FieldValueRequired") => ErrorType::Required,
            Some("FieldValueForbidden") => ErrorType::Forbidden,
            Some("FieldValueDuplicate") => ErrorType::Duplicate,
            _ => ErrorType::Invalid,
        };
        let shows_value = matches!(error_type, ErrorType::Invalid | ErrorType::Duplicate)
            && !matches!(schema.kind.as_str(), "object" | "array");
        let error = FieldError {
            error_type,
            field: at_root(at),
            bad_value: shows_value.then(|| BadValue::Json(subject.place.value.clone())),
            detail: if error_type == ErrorType::Duplicate {
                String::new()
            } else {
                detail
            },
        };
        self.record(is_forgiven, error);
        Ok(())
    }

    /// Evaluates the `messageExpression`, and returns `None` if it gives no usable text. Unlike the rule, it sees the stored value itself
    /// and not an optional.
    ///
    /// # Errors
    /// The budget is exhausted, so no further rule is evaluated.
    fn message(
        &mut self,
        rule: &Rule,
        subject: &Subject<'_>,
    ) -> Result<Option<String>, MessageError> {
        let Some(Ok(program)) = &rule.message_program else {
            return Ok(None);
        };
        let text = match program.evaluate(&subject.variables(false), &mut self.budget) {
            Ok(Value::String(text)) => text,
            Ok(_) | Err(Failure::Error(_)) => return Ok(None),
            Err(Failure::TooLong) => {
                return Err(MessageError::TooLong(rule.message_source.clone()));
            }
            Err(Failure::Exhausted) => return Err(MessageError::Exhausted),
        };
        let text = text.trim();
        let is_shown = !text.is_empty() && text.len() <= MAX_MESSAGE_BYTES && !text.contains('\n');
        Ok(is_shown.then(|| text.to_owned()))
    }

    /// Adds the error for a rule that could not be evaluated.
    fn refuse(&mut self, subject: &Subject<'_>, why: String) {
        let error = unevaluated(subject.place.schema, subject.path.to_owned(), why);
        self.record(false, error);
    }

    fn record(&mut self, is_forgiven: bool, error: FieldError) {
        if is_forgiven {
            self.errors.forgive(error)
        } else {
            self.errors.0.push(error)
        }
    }
}

/// Returns the error for a rule that could not be evaluated. The error shows the type of the value instead of the value.
fn unevaluated(schema: &Schema, path: String, why: String) -> FieldError {
    FieldError {
        error_type: ErrorType::Invalid,
        field: at_root(path),
        bad_value: Some(BadValue::Json(schema.kind.as_str().into())),
        detail: why,
    }
}

/// A value with the variables and the path that rules use.
struct Subject<'s> {
    place: &'s Place<'s>,
    path: &'s str,
    me: Value,
    old: Option<Value>,
}

impl Subject<'_> {
    fn variables(&self, optional_old: bool) -> Vec<(&'static str, Value)> {
        let mut variables = vec![("self", self.me.clone())];
        match (&self.old, optional_old) {
            (Some(old), true) => variables.push(("oldSelf", some(old.clone()))),
            (None, true) => variables.push(("oldSelf", none())),
            (Some(old), false) => variables.push(("oldSelf", old.clone())),
            (None, false) => {}
        }
        variables
    }
}

fn child(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

/// Returns the path, or `<nil>` for the whole object, whose path is empty.
fn at_root(path: String) -> String {
    match path.as_str() {
        "" => "<nil>".to_owned(),
        _ => path,
    }
}
