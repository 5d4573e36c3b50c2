//! The errors of the validators: each [`Finding`] becomes one field error.

use mullion_kube_text::field::{BadValue, ErrorType, Errors, FieldError, Path};
use serde_json::Value;

/// One error of a validator.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) path: String,
    pub(super) what: What,
    /// The offending value; `None` prints as the empty string.
    pub(super) value: Option<Value>,
    pub(super) message: String,
}

#[derive(Clone, Debug)]
pub(super) enum What {
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
        match self.what {
            What::Required => errors.required(&path, ""),
            What::Enum(allowed) => {
                let texts: Vec<String> = allowed
                    .iter()
                    .map(|value| {
                        value
                            .as_str()
                            .map_or_else(|| value.to_string(), str::to_owned)
                    })
                    .collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                errors.not_supported(&path, self.value.unwrap_or_default(), &texts);
            }
            What::TooLong(max) => {
                errors.too_long(&path, usize::try_from(max).unwrap_or(usize::MAX))
            }
            What::TooMany { actual, max } => {
                errors.too_many(&path, actual, usize::try_from(max).unwrap_or(usize::MAX))
            }
            What::Invalid => {
                errors.invalid(&path, self.value.unwrap_or_else(|| "".into()), self.message)
            }
            What::Nowhere => errors.invalid(&Path::new("<nil>"), "", self.message),
            What::Type => errors.0.push(FieldError {
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
    pub(super) fn failed(path: &str, what: What, value: Option<Value>, message: String) -> Outcome {
        Outcome {
            errors: vec![Finding {
                path: path.to_owned(),
                what,
                value,
                message,
            }],
            passed: 0,
        }
    }

    pub(super) fn add(&mut self, path: &str, what: What, value: Option<Value>, message: String) {
        self.errors.push(Finding {
            path: path.to_owned(),
            what,
            value,
            message,
        });
    }

    pub(super) fn merge(&mut self, other: Outcome) {
        self.errors.extend(other.errors);
        self.passed += other.passed;
    }
}
