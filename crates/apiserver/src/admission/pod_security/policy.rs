//! The pod security policy in a namespace's labels: for each mode a level and the Kubernetes version whose rules apply.

use mullion_kube_text::{
    field::{Errors, Path},
    golang::quote,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Pod, Violation,
    checks::{BASELINE, RESTRICTED},
};

const LABEL: &str = "pod-security.kubernetes.io/";
const MODES: [&str; 3] = ["enforce", "audit", "warn"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Privileged,
    Baseline,
    Restricted,
}

/// A level and the version of its rules, as a label pair says them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) level: Level,
    /// The minor version; `None` for the latest.
    pub(super) minor: Option<u32>,
}

/// The policies that have an effect; `audit` has none, because there is no audit log.
pub(super) struct Policies {
    pub(super) enforce: Policy,
    pub(super) warn: Policy,
}

impl Level {
    fn parse(text: &str) -> Option<Level> {
        Some(match text {
            "privileged" => Level::Privileged,
            "baseline" => Level::Baseline,
            "restricted" => Level::Restricted,
            _ => return None,
        })
    }
}

impl Policies {
    /// Reads the labels of a namespace. An invalid level enforces `restricted` and warns of nothing. A namespace without a `warn` label is
    /// warned by its `enforce` level.
    pub(super) fn of(namespace: &Value) -> Policies {
        let labels = &namespace["metadata"]["labels"];
        let level = |mode: &str| labels.field(&[LABEL, mode].concat()).map(parse_level);
        let minor = |mode: &str| {
            let version = labels.field(&[LABEL, mode, "-version"].concat());
            version.map(|text| parse_version(text).unwrap_or_default())
        };
        let (enforced, warned) = (level("enforce"), level("warn"));
        let enforce = Policy {
            level: enforced.map_or(Level::Privileged, |level| {
                // As pod-security-admission: a typo must not open the namespace.
                level.unwrap_or(Level::Restricted)
            }),
            minor: minor("enforce").unwrap_or_default(),
        };
        let mut warn = Policy {
            level: warned.flatten().unwrap_or(Level::Privileged),
            minor: minor("warn").unwrap_or_default(),
        };
        if warned.is_none() && enforced.flatten().is_some_and(|level| level > warn.level) {
            warn = Policy {
                level: enforce.level,
                minor: minor("warn").unwrap_or(enforce.minor),
            };
        }
        Policies { enforce, warn }
    }
}

impl Policy {
    /// Formats the policy for messages, such as `"baseline:v1.24"`.
    pub(super) fn quoted(&self) -> String {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.minor {
            Some(minor) => quote(&format!("{level}:v1.{minor}")),
            None => quote(&format!("{level}:latest")),
        }
    }

    /// Returns whether pods that the other policy admitted may violate this one.
    pub(super) fn is_stricter_than(&self, before: &Policy) -> bool {
        self.level != Level::Privileged && (self.minor != before.minor || self.level > before.level)
    }

    /// Returns the pod's violations of the policy, in the order of upstream's ids, baseline first.
    pub(super) fn violations(&self, pod: &Pod<'_>) -> Vec<Violation> {
        let minor = self.minor.unwrap_or(u32::MAX);
        let restricted = self.level == Level::Restricted;
        let (first, second) = match self.level {
            Level::Privileged => (&[][..], &[][..]),
            Level::Baseline => (BASELINE, &[][..]),
            Level::Restricted => (BASELINE, RESTRICTED),
        };
        let first = first
            .iter()
            .filter(|check| !(restricted && check.is_overridden(minor)));
        let checks = first.chain(second);
        checks
            .filter_map(|check| check.at(minor))
            .filter_map(|rule| rule(pod))
            .collect()
    }
}

fn parse_level(text: &Value) -> Option<Level> {
    Level::parse(text.as_str()?)
}

/// Parses a version as its minor number, `None` for the latest. Returns `None` for an invalid one.
fn parse_version(text: &Value) -> Option<Option<u32>> {
    let text = text.as_str()?;
    if text == "latest" {
        return Some(None);
    }
    let minor = text.strip_prefix("v1.")?;
    let is_number = minor.bytes().all(|byte| byte.is_ascii_digit());
    let is_padded = minor.len() > 1 && minor.starts_with('0');
    let minor = minor.parse().ok().filter(|_| is_number && !is_padded)?;
    Some(Some(minor))
}

/// Returns the errors in a namespace's pod security labels.
pub(super) fn label_errors(namespace: &Value) -> Errors {
    let mut errors = Errors::default();
    let path = Path::new("metadata");
    let path = path.child("labels");
    let labels = &namespace["metadata"]["labels"];
    for mode in MODES {
        let (level, version) = (format!("{LABEL}{mode}"), format!("{LABEL}{mode}-version"));
        let wrong = labels
            .field(&level)
            .filter(|text| parse_level(text).is_none());
        if wrong.is_some() {
            let why = "must be one of privileged, baseline, restricted";
            errors.invalid(&path.key(&level), labels.text(&level), why);
        }
        let wrong = labels
            .field(&version)
            .filter(|text| parse_version(text).is_none());
        if wrong.is_some() {
            let why = r#"must be "latest" or "v1.x""#;
            errors.invalid(&path.key(&version), labels.text(&version), why);
        }
    }
    errors
}
