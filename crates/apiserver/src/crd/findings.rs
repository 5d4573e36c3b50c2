//! The errors of the validators: each [`Finding`] becomes one field error.

use mullion_kube_text::field::{BadValue, ErrorType, Errors, FieldError, Path};
use serde_json::Value;

/// One error of a validator.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) path: String,
    pub(super) kind: FindingKind,
    /// The offending value; `None` prints as the empty string.
    pub(super) value: Option<Value>,
    pub(super) message: String,
}

/// The kind of an error, which decides the reason and the text of its field error.
#[derive(Clone, Debug)]
pub(super) enum FindingKind {
    /// The message is about the value.
    Invalid,
    /// A wrong JSON type or format.
    Type,
    Required,
    Enum(Vec<Value>),
    TooLong(u64),
    TooMany {
        actual: usize,
        max: u64,
    },
    /// The message is about the object as a whole, not about a field.
    Nowhere,
}

impl Finding {
    pub(super) fn record(self, errors: &mut Errors) {
        // The path of the whole object is empty; kube-apiserver prints `<nil>` for it.
        let field = match self.path.as_str() {
            "" => "<nil>",
            path => path,
        };
        let path = Path::new(field);
        match self.kind {
            FindingKind::Required => errors.required(&path, ""),
            FindingKind::Enum(allowed) => {
                let texts: Vec<String> = allowed
                    .iter()
                    .map(|value| {
                        value
                            .as_str()
                            .map_or_else(|| value.to_string(), str::to_owned)
                    })
                    .collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                errors.not_supported_text(&path, self.value.unwrap_or_default(), &texts);
            }
            FindingKind::TooLong(max) => {
                errors.too_long(&path, usize::try_from(max).unwrap_or(usize::MAX))
            }
            FindingKind::TooMany { actual, max } => {
                errors.too_many(&path, actual, usize::try_from(max).unwrap_or(usize::MAX))
            }
            FindingKind::Invalid => {
                errors.invalid(&path, self.value.unwrap_or_else(|| "".into()), self.message)
            }
            FindingKind::Nowhere => errors.invalid(&Path::new("<nil>"), "", self.message),
            FindingKind::Type => errors.0.push(FieldError {
                error_type: ErrorType::TypeInvalid,
                field: field.to_owned(),
                bad_value: Some(BadValue::Json(self.value.unwrap_or_else(|| "".into()))),
                detail: self.message,
            }),
        }
    }
}

/// The errors of one validator, and the number of its checks that passed.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) errors: Vec<Finding>,
    pub(super) passed: u32,
}

impl Outcome {
    pub(super) fn failed(
        path: &str,
        kind: FindingKind,
        value: Option<Value>,
        message: String,
    ) -> Outcome {
        Outcome {
            errors: vec![Finding {
                path: path.to_owned(),
                kind,
                value,
                message,
            }],
            passed: 0,
        }
    }

    pub(super) fn add(
        &mut self,
        path: &str,
        kind: FindingKind,
        value: Option<Value>,
        message: String,
    ) {
        self.errors.push(Finding {
            path: path.to_owned(),
            kind,
            value,
            message,
        });
    }

    pub(super) fn merge(&mut self, other: Outcome) {
        self.errors.extend(other.errors);
        self.passed += other.passed;
    }
}
