//! Taints of a node group, in eksctl's map form (`os: "windows:NoSchedule"`) and list form.
//!
//! Invariant: effects are a closed enum. As in eksctl, a map value is `value:Effect`, `:Effect` or just `Effect`; two colons are invalid.

use std::str::FromStr;

use serde_json::Value;

use super::{ConfigError, reader::Field};
use serde::{Deserialize, Serialize};

/// A taint with which nodes register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value; may be empty.
    pub value: String,
    /// Effect.
    pub effect: TaintEffect,
}

/// Effect of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaintEffect {
    /// New pods are not scheduled.
    NoSchedule,
    /// New pods are scheduled on other nodes if possible.
    PreferNoSchedule,
    /// Running pods are evicted too.
    NoExecute,
}

impl TaintEffect {
    const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// Returns Kubernetes' name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

impl FromStr for TaintEffect {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|effect| effect.as_str() == text)
            .ok_or(())
    }
}

const FORMS: &str =
    "taints are a map (os: \"windows:NoSchedule\") or a list ({key, value, effect})";

/// Parses `taints` in either form.
pub(super) fn read(group: &Field<'_>) -> Result<Vec<Taint>, ConfigError> {
    let Some(taints) = group.get("taints") else {
        return Ok(Vec::new());
    };
    match taints.value() {
        Value::Object(map) => map
            .keys()
            .filter_map(|key| taints.get(key).map(|field| from_map(key, &field)))
            .collect(),
        Value::Array(_) => taints.elements()?.iter().map(from_list).collect(),
        _ => Err(taints.wrong_type("a map or a list").hint(FORMS)),
    }
}

fn from_map(key: &str, field: &Field<'_>) -> Result<Taint, ConfigError> {
    let text = field
        .string()
        .map_err(|error| error.hint(format!("{key}: \"windows:NoSchedule\"")))?;
    check_key(field, key)?;
    let parts: Vec<_> = text.split(':').collect();
    let (value, effect) = match parts.as_slice() {
        [effect] => ("", *effect),
        [value, effect] => (*value, *effect),
        _ => {
            return Err(field
                .error(format!("{text:?} has more than one colon"))
                .hint(format!("{key}: \"windows:NoSchedule\"")));
        }
    };
    let hint = || {
        let value = if value.is_empty() { "" } else { value };
        format!("{key}: \"{value}:NoSchedule\"")
    };
    check_value(field, value)?;
    Ok(Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect_of(field, effect).map_err(|error| error.hint(hint()))?,
    })
}

fn from_list(field: &Field<'_>) -> Result<Taint, ConfigError> {
    field.check_fields(&["key", "value", "effect"], &[], &mut Vec::new())?;
    let key = field.required("key")?;
    let effect = field.required("effect")?;
    let taint = Taint {
        key: key.string()?,
        value: match field.get("value") {
            Some(value) => value.string()?,
            None => String::new(),
        },
        effect: effect_of(&effect, &effect.string()?)?,
    };
    check_key(&key, &taint.key)?;
    check_value(field, &taint.value)?;
    Ok(taint)
}

fn effect_of(field: &Field<'_>, text: &str) -> Result<TaintEffect, ConfigError> {
    text.parse().map_err(|()| {
        let all: Vec<_> = TaintEffect::ALL
            .iter()
            .map(|effect| effect.as_str())
            .collect();
        field.error(format!("effect {text:?} is not one of {}", all.join(", ")))
    })
}

fn check_key(field: &Field<'_>, key: &str) -> Result<(), ConfigError> {
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
    let prefix_fits = prefix.is_empty() != key.contains('/')
        && prefix.len() <= 253
        && prefix
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.');
    if prefix_fits && !name.is_empty() && is_name(name) {
        Ok(())
    } else {
        Err(field.error(format!(
            "{key:?} is not a taint key: [prefix/]name of letters, digits, '-', '_' and '.', at most 63 long"
        )))
    }
}

fn check_value(field: &Field<'_>, value: &str) -> Result<(), ConfigError> {
    if value.is_empty() || is_name(value) {
        Ok(())
    } else {
        Err(field.error(format!(
            "{value:?} is not a taint value: letters, digits, '-', '_' and '.', at most 63 long"
        )))
    }
}

/// Returns whether a text is a qualified name without prefix, by Kubernetes' rule, which label values follow too.
pub(super) fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    text.len() <= 63
        && ends
            .iter()
            .all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}
