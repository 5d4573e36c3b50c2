//! Reads fields of a ClusterConfig together with their paths.
//!
//! Invariant: every error names the path of its value and says what would be valid.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::ConfigError;

/// The regions of EC2; those of separate partitions are last.
const REGIONS: [&str; 38] = [
    "af-south-1",
    "ap-east-1",
    "ap-east-2",
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-northeast-3",
    "ap-south-1",
    "ap-south-2",
    "ap-southeast-1",
    "ap-southeast-2",
    "ap-southeast-3",
    "ap-southeast-4",
    "ap-southeast-5",
    "ap-southeast-6",
    "ap-southeast-7",
    "ca-central-1",
    "ca-west-1",
    "eu-central-1",
    "eu-central-2",
    "eu-north-1",
    "eu-south-1",
    "eu-south-2",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "il-central-1",
    "me-central-1",
    "me-south-1",
    "mx-central-1",
    "sa-east-1",
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
    "us-gov-east-1",
    "us-gov-west-1",
    "cn-north-1",
    "cn-northwest-1",
];

/// The hint for a file with other objects.
pub(super) const MANIFESTS: &str = "--config takes an eksctl ClusterConfig; manifests go in with kubectl apply -f once the cluster runs";

/// A value, and its path in the file.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    path: String,
    value: &'a Value,
}

impl<'a> Field<'a> {
    pub(super) fn root(value: &'a Value) -> Self {
        Self {
            path: String::new(),
            value,
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    pub(super) fn error(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::new(self.path.clone(), message)
    }

    /// Refuses everything except a ClusterConfig of the supported version.
    pub(super) fn check_kind(&self) -> Result<(), ConfigError> {
        // A Kubernetes manifest is the most likely mistake, and for one the hint is another than for a wrong version.
        let text = |name| self.get(name).and_then(|field| field.string().ok());
        let elsewhere = text("apiVersion").is_none_or(|version| !version.starts_with("eksctl.io/"));
        if let Some(other) = text("kind").filter(|kind| elsewhere && kind != "ClusterConfig") {
            return Err(self
                .error(format!("it is a {other}, not a ClusterConfig"))
                .hint(MANIFESTS));
        }
        for (name, expected) in [
            ("apiVersion", "eksctl.io/v1alpha5"),
            ("kind", "ClusterConfig"),
        ] {
            let field = self.required(name)?;
            let found = field.string()?;
            if found != expected {
                return Err(field
                    .error(format!("{found:?} is not {expected}"))
                    .hint(format!("{name}: {expected}")));
            }
        }
        Ok(())
    }

    /// Refuses unknown fields, and collects those without an effect.
    pub(super) fn check_fields(
        &self,
        used: &[&str],
        unused: &[&str],
        ignored: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        for name in self.object()?.keys() {
            let name = name.as_str();
            if unused.contains(&name) {
                ignored.push(self.child_path(name));
            } else if !used.contains(&name) {
                return Err(unknown_field(self.child_path(name), name, used, unused));
            }
        }
        Ok(())
    }

    pub(super) fn object(&self) -> Result<&'a Map<String, Value>, ConfigError> {
        self.value
            .as_object()
            .ok_or_else(|| self.wrong_type("a map of fields"))
    }

    /// Returns the field of this name; `null` counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<Field<'a>> {
        let value = self.value.as_object()?.get(name)?;
        (!value.is_null()).then(|| Field {
            path: self.child_path(name),
            value,
        })
    }

    pub(super) fn required(&self, name: &str) -> Result<Field<'a>, ConfigError> {
        self.object()?;
        self.get(name)
            .ok_or_else(|| ConfigError::new(self.child_path(name), "is required"))
    }

    /// Returns the elements of a list; none if the field is absent.
    pub(super) fn items(&self, name: &str) -> Result<Vec<Field<'a>>, ConfigError> {
        match self.get(name) {
            Some(list) => list.elements(),
            None => Ok(Vec::new()),
        }
    }

    pub(super) fn elements(&self) -> Result<Vec<Field<'a>>, ConfigError> {
        let list = self
            .value
            .as_array()
            .ok_or_else(|| self.wrong_type("a list"))?;
        Ok(list
            .iter()
            .enumerate()
            .map(|(index, value)| Field {
                path: format!("{}[{index}]", self.path),
                value,
            })
            .collect())
    }

    pub(super) fn string(&self) -> Result<String, ConfigError> {
        match self.value {
            Value::String(text) => Ok(text.clone()),
            _ => Err(self.wrong_type("text")),
        }
    }

    pub(super) fn bool(&self) -> Result<bool, ConfigError> {
        self.value
            .as_bool()
            .ok_or_else(|| self.wrong_type("true or false"))
    }

    /// Returns a whole number in the range, both ends included.
    pub(super) fn number(&self, least: u32, most: u32) -> Result<u32, ConfigError> {
        let range = || format!("a whole number from {least} to {most}");
        let number = self
            .value
            .as_i64()
            .ok_or_else(|| self.wrong_type(&range()))?;
        u32::try_from(number)
            .ok()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.error(format!("{number} is not {}", range())))
    }

    pub(super) fn strings(&self, name: &str) -> Result<Vec<String>, ConfigError> {
        self.items(name)?.iter().map(Field::string).collect()
    }

    /// Returns a map of text to text. Numbers and booleans are refused, as Kubernetes does.
    pub(super) fn string_map(&self, name: &str) -> Result<BTreeMap<String, String>, ConfigError> {
        let Some(field) = self.get(name) else {
            return Ok(BTreeMap::new());
        };
        let mut map = BTreeMap::new();
        for (key, value) in field.object()? {
            let entry = Field {
                path: field.child_path(key),
                value,
            };
            let text = entry.string().map_err(|error| match value {
                Value::Number(_) | Value::Bool(_) => error.hint(format!("{key}: \"{value}\"")),
                _ => error,
            })?;
            map.insert(key.clone(), text);
        }
        Ok(map)
    }

    pub(super) fn region(&self) -> Result<String, ConfigError> {
        let text = self.string()?;
        if REGIONS.contains(&text.as_str()) {
            return Ok(text);
        }
        // A name with a typo is most likely one of the same part of the world: `eu-nort-1`.
        let part = text.split('-').next();
        let near = REGIONS.iter().filter(|name| name.split('-').next() == part);
        let near: Vec<_> = near.copied().collect();
        let hint = if near.is_empty() {
            "region: us-west-2".to_owned()
        } else {
            format!("one of {}", near.join(", "))
        };
        Err(self
            .error(format!("{text:?} is not a region of EC2"))
            .hint(hint))
    }

    /// Returns a valid cluster name by eksctl's rule: letters, digits and dashes, starting with a letter, at most 100.
    pub(super) fn cluster_name(&self) -> Result<String, ConfigError> {
        let text = self.string()?;
        let well_formed = text.len() <= 100
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if well_formed {
            Ok(text)
        } else {
            Err(self.error(format!(
                "{text:?} is not a name of letters, digits and dashes that starts with a letter and is at most 100 long"
            )))
        }
    }

    /// Returns zones of the region, each at most once.
    pub(super) fn zones(&self, name: &str, region: &str) -> Result<Vec<String>, ConfigError> {
        let mut zones = Vec::new();
        for field in self.items(name)? {
            let zone = field.string()?;
            // Ordinary zones are the region and one letter. Names of local zones (`us-west-2-lax-1a`) are longer; they are not simulated.
            let letter = zone.strip_prefix(region).unwrap_or_default();
            if !matches!(letter.as_bytes(), [b'a'..=b'f']) {
                return Err(field
                    .error(format!("{zone:?} is not a zone of region {region}"))
                    .hint(format!("{name}: [{region}a, {region}b]")));
            }
            if zones.contains(&zone) {
                return Err(field.error(format!("{zone:?} stands in the list twice")));
            }
            zones.push(zone);
        }
        Ok(zones)
    }

    pub(super) fn child_path(&self, name: &str) -> String {
        match self.path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        }
    }

    pub(super) fn wrong_type(&self, expected: &str) -> ConfigError {
        let found = match self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Number(number) => format!("the number {number}"),
            Value::String(text) => format!("the text {text:?}"),
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "a map".to_owned(),
        };
        match self.path.as_str() {
            "" => self.error(format!("the file is {found}, not {expected}")),
            _ => self.error(format!("{found} is not {expected}")),
        }
    }
}

fn unknown_field(path: String, name: &str, used: &[&str], unused: &[&str]) -> ConfigError {
    let error = ConfigError::new(path, "unknown field");
    match near_field(name, used.iter().chain(unused).copied()) {
        Some(known) => error.hint(format!("did you mean {known}?")),
        None => error.hint(format!("fields that count here: {}", used.join(", "))),
    }
}

/// Returns the field that may have been meant by a name that no field has.
pub(super) fn near_field<'k>(name: &str, fields: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    // One typo, and one more for every four letters; names further away are a coincidence.
    let most = 1 + name.len() / 4;
    // The distance costs the product of the lengths, and a name in a file may be of any length.
    let near = fields.filter(|known| known.len().abs_diff(name.len()) <= most);
    let near = near.map(|known| (distance(name, known), known)).min();
    let near = near.filter(|(steps, _)| *steps <= most);
    near.map(|(_, known)| known)
}

/// Returns the edit distance, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_ascii_lowercase(), b.to_ascii_lowercase());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.bytes().enumerate() {
            let step = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = step.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_near_where_few_letters_differ() {
        let near = |name: &str| near_field(name, ["region", "version"].into_iter());
        assert_eq!(near("regoin"), Some("region"));
        assert_eq!(near("name"), None);
        assert_eq!(near(&"region".repeat(1_000_000)), None);
    }
}
