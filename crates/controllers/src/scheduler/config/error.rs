//! Why a configuration is refused, in the words of apimachinery's `field.Error`.

use std::fmt;

use serde_json::Value;
use thiserror::Error;

/// What is wrong and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {fault}")]
pub struct ConfigError {
    /// The field, as in `profiles[0].plugins.score.enabled[1].name`.
    pub path: String,
    /// What is wrong with it.
    pub fault: Fault,
}

/// Everything that is wrong with a configuration, in the order in which it was found.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ConfigErrors(pub Vec<ConfigError>);

/// What was found wrong so far: reading goes on, so that all of it is told at once.
#[derive(Default)]
pub(super) struct Faults(Vec<ConfigError>);

impl Faults {
    pub(super) fn refuse(&mut self, path: impl Into<String>, fault: Fault) {
        self.0.push(refuse(path, fault));
    }

    /// What was read, or nothing where that is wrong.
    pub(super) fn note<T>(&mut self, read: Result<T, ConfigError>) -> Option<T> {
        read.map_err(|error| self.0.push(error)).ok()
    }

    pub(super) fn extend(&mut self, more: Faults) {
        self.0.extend(more.0);
    }

    pub(super) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// What was read, if nothing is wrong.
    pub(super) fn end<T>(self, read: T) -> Result<T, ConfigErrors> {
        match self.0.is_empty() {
            true => Ok(read),
            false => Err(ConfigErrors(self.0)),
        }
    }
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no such field.
    Unknown {
        /// Those there are.
        allowed: Vec<&'static str>,
    },
    /// The value is not what it must be.
    Invalid {
        /// As JSON.
        value: String,
        /// What it must be.
        why: String,
    },
    /// None of the values there are.
    Unsupported {
        /// As JSON.
        value: String,
        /// Those there are.
        supported: Vec<String>,
    },
    /// It is not there.
    Required(String),
    /// It is there already.
    Duplicate(String),
    /// It may not be there.
    Forbidden(String),
    /// The scheduler cannot start with it.
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
