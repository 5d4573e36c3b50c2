//! The errors of a configuration, with the messages of apimachinery's `field.Error`.

use std::fmt;

use serde_json::Value;
use thiserror::Error;

/// A fault in a configuration, with the path of the field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {fault}")]
pub struct ConfigError {
    /// The path of the field, such as `profiles[0].plugins.score.enabled[1].name`.
    pub path: String,
    /// The fault.
    pub fault: Fault,
}

/// All faults of a configuration, in the order in which they were found.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ConfigErrors(pub Vec<ConfigError>);

/// The faults found so far. Parsing continues after a fault, so that all of them are reported together.
#[derive(Default)]
pub(super) struct Faults(Vec<ConfigError>);

impl Faults {
    pub(super) fn refuse(&mut self, path: impl Into<String>, fault: Fault) {
        self.0.push(refuse(path, fault));
    }

    /// Returns the value, or records the error and returns `None`.
    pub(super) fn note<T>(&mut self, read: Result<T, ConfigError>) -> Option<T> {
        read.map_err(|error| self.0.push(error)).ok()
    }

    pub(super) fn extend(&mut self, more: Faults) {
        self.0.extend(more.0);
    }

    pub(super) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value if no fault was found.
    pub(super) fn end<T>(self, read: T) -> Result<T, ConfigErrors> {
        if self.0.is_empty() {
            Ok(read)
        } else {
            Err(ConfigErrors(self.0))
        }
    }
}

/// The fault of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The field does not exist.
    Unknown {
        /// The fields that exist.
        allowed: Vec<&'static str>,
    },
    /// The value is invalid.
    Invalid {
        /// The value as JSON.
        value: String,
        /// The condition that the value must satisfy.
        why: String,
    },
    /// The value is not one of the supported ones.
    Unsupported {
        /// The value as JSON.
        value: String,
        /// The supported values.
        supported: Vec<String>,
    },
    /// The field is required but missing.
    Required(String),
    /// The value occurs more than once.
    Duplicate(String),
    /// The field must not be set.
    Forbidden(String),
    /// The scheduler cannot start with the value.
    Unusable(String),
}

pub(super) fn refuse(path: impl Into<String>, fault: Fault) -> ConfigError {
    ConfigError {
        path: path.into(),
        fault,
    }
}

impl Fault {
    pub(super) fn invalid(value: impl Into<Value>, why: &str) -> Self {
        Fault::Invalid {
            value: value.into().to_string(),
            why: why.to_owned(),
        }
    }

    pub(super) fn unsupported(value: &Value, supported: &[&str]) -> Self {
        Fault::Unsupported {
            value: value.to_string(),
            supported: supported.iter().map(|own| (*own).to_owned()).collect(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let explained = |f: &mut fmt::Formatter<'_>, kind: &str, why: &str| match why {
            "" => f.write_str(kind),
            why => write!(f, "{kind}: {why}"),
        };
        match self {
            Fault::Unknown { allowed } => {
                write!(f, "unknown field, allowed here: {}", allowed.join(", "))
            }
            Fault::Invalid { value, why } => write!(f, "Invalid value: {value}: {why}"),
            Fault::Unsupported { value, supported } => {
                let supported: Vec<_> = supported.iter().map(|own| format!("\"{own}\"")).collect();
                write!(
                    f,
                    "Unsupported value: {value}: supported values: {}",
                    supported.join(", ")
                )
            }
            Fault::Required(why) => explained(f, "Required value", why),
            Fault::Duplicate(value) => write!(f, "Duplicate value: \"{value}\""),
            Fault::Forbidden(why) => explained(f, "Forbidden", why),
            Fault::Unusable(why) => f.write_str(why),
        }
    }
}
