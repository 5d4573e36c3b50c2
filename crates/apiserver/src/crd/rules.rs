//! CEL rules of custom resources (`x-kubernetes-validations`), evaluated by kube-cel.
//!
//! Rules run only on objects that their schema accepts, as upstream runs them; a failed rule becomes a field error with the rule's
//! path, reason and message.

use kube_cel::{CompiledSchema, ErrorKind, compile_schema};
use serde_json::Value;

use super::{structural::Schema, validation};
use crate::field::{BadValue, ErrorType, Errors, FieldError, Path};

/// The compiled rules of one version; `None` when it has none.
#[derive(Debug)]
pub(crate) struct Rules {
    compiled: Option<CompiledSchema>,
}

impl Rules {
    pub(crate) fn compile(schema: &Schema, source: &Value) -> Rules {
        Rules {
            compiled: schema.has_rules.then(|| compile_schema(source)),
        }
    }

    /// Evaluates the rules, unless the object has other errors.
    pub(crate) fn check(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let Some(compiled) = &self.compiled else {
            return;
        };
        if errors.0.iter().any(|error| is_blocking(error.error_type)) {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.invalid(&Path::new("<nil>"), Value::Null, detail);
            return;
        }
        let Err(failures) = kube_cel::validate_compiled(compiled, object, old) else {
            return;
        };
        for failure in failures.into_vec() {
            let path = if failure.field_path.is_empty() {
                "<nil>"
            } else {
                &failure.field_path
            };
            let value = validation::at(object, &failure.field_path)
                .filter(|value| !value.is_object() && !value.is_array());
            let error_type = match failure.reason.as_deref() {
                Some("FieldValueRequired") => ErrorType::Required,
                Some("FieldValueForbidden") => ErrorType::Forbidden,
                Some("FieldValueDuplicate") => ErrorType::Duplicate,
                _ => ErrorType::Invalid,
            };
            let shows_value = matches!(error_type, ErrorType::Invalid | ErrorType::Duplicate);
            errors.0.push(FieldError {
                error_type,
                field: path.to_owned(),
                bad_value: value.filter(|_| shows_value).cloned().map(BadValue::Json),
                detail: match failure.kind {
                    ErrorKind::ValidationFailure => failure.message,
                    _ => format!(
                        "{} evaluating rule: {}",
                        cause(&failure.message),
                        failure.rule
                    ),
                },
            });
        }
    }
}

/// Errors that make evaluating rules pointless.
fn is_blocking(error_type: ErrorType) -> bool {
    matches!(
        error_type,
        ErrorType::Required
            | ErrorType::TooLong
            | ErrorType::TooMany
            | ErrorType::TypeInvalid
            | ErrorType::NotSupported
            | ErrorType::Duplicate
    )
}

/// What went wrong, in the lower case that upstream's evaluator uses.
fn cause(message: &str) -> String {
    let text = message.trim_start_matches("rule evaluation error: ");
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(chars).collect()
    })
}
