//! The fields of a ClusterConfig with their types, as eksctl reads them: which fields of a file it does not have, and which values are of
//! another type.
//!
//! Invariant: all faults of a file are found, not the first one alone. Values of the right type are not judged. [`Cluster::from_yaml`](super::Cluster)
//! reads what a simulation needs and refuses the first mistake.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::Value;

use super::reader::near_field;

/// The structs and their fields.
static STRUCTS: LazyLock<BTreeMap<&'static str, Struct>> =
    LazyLock::new(|| structs(include_str!("fields.txt")));

/// The fields of a struct with the texts of their types.
type Struct = BTreeMap<&'static str, &'static str>;

/// A step of a path in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldStep {
    /// The step to a field of a map.
    Field(String),
    /// The step to an item of a list.
    Item(usize),
}

/// A field that eksctl refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldFault {
    /// The path of the field.
    pub path: Vec<FieldStep>,
    /// What is wrong with the field.
    pub kind: FieldFaultKind,
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldFaultKind {
    /// eksctl has no such field; `near` is the one that may have been meant.
    Unknown {
        /// A field that eksctl has there.
        near: Option<&'static str>,
    },
    /// The value is not what the field takes, such as `a whole number`.
    Type {
        /// What the field takes.
        expected: &'static str,
    },
}

/// Returns the fields of a ClusterConfig that eksctl refuses, in the order of the file's fields.
pub fn faults(config: &Value) -> Vec<FieldFault> {
    let mut walk = Walk::default();
    walk.value("ClusterConfig", config);
    walk.faults
}

/// Reads the table: the name of a struct in the first column, and its fields with their types below it.
fn structs(table: &'static str) -> BTreeMap<&'static str, Struct> {
    let mut all = BTreeMap::new();
    let mut last = "";
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        match line.trim_start().split_once(' ') {
            None => last = line,
            Some((field, kind)) => {
                let fields: &mut Struct = all.entry(last).or_default();
                fields.insert(field, kind);
            }
        }
    }
    all
}

/// A walk over a file.
#[derive(Default)]
struct Walk {
    path: Vec<FieldStep>,
    faults: Vec<FieldFault>,
}

impl Walk {
    /// Holds a value against a type. As in Go, null fits every type.
    fn value(&mut self, kind: &str, value: &Value) {
        if value.is_null() {
            return;
        }
        if let Some(item) = kind.strip_prefix("[]") {
            return match value.as_array() {
                Some(items) => self.items(item, items),
                None => self.misfit("a list"),
            };
        }
        if let Some(item) = kind.strip_prefix("{}") {
            return match value.as_object() {
                Some(map) => {
                    for (name, value) in map {
                        self.below(FieldStep::Field(name.clone()), item, value);
                    }
                }
                None => self.misfit("a map"),
            };
        }
        match kind {
            "any" => {}
            "string" if !value.is_string() => self.misfit("a text"),
            "bool" if !value.is_boolean() => self.misfit("true or false"),
            "number" if !value.is_number() => self.misfit("a number"),
            // YAML's 3.0 is the same number as 3.
            "int" if value.as_f64().is_none_or(|number| number.fract() != 0.0) => {
                self.misfit("a whole number");
            }
            "string" | "bool" | "number" | "int" => {}
            "taints" => match value {
                Value::Object(_) => self.value("{}string", value),
                Value::Array(_) => self.value("[]NodeGroupTaint", value),
                _ => self.misfit("a map or a list"),
            },
            name => match (STRUCTS.get(name), value.as_object()) {
                (Some(fields), Some(map)) => self.fields(fields, map),
                (_, None) => self.misfit("a map of fields"),
                (None, _) => {}
            },
        }
    }

    fn items(&mut self, kind: &str, items: &[Value]) {
        for (index, value) in items.iter().enumerate() {
            self.below(FieldStep::Item(index), kind, value);
        }
    }

    fn fields(&mut self, fields: &Struct, map: &serde_json::Map<String, Value>) {
        for (name, value) in map {
            if let Some(kind) = fields.get(name.as_str()) {
                self.below(FieldStep::Field(name.clone()), kind, value);
                continue;
            }
            let mut path = self.path.clone();
            path.push(FieldStep::Field(name.clone()));
            let near = near_field(name, fields.keys().copied());
            let kind = FieldFaultKind::Unknown { near };
            self.faults.push(FieldFault { path, kind });
        }
    }

    fn below(&mut self, step: FieldStep, kind: &str, value: &Value) {
        self.path.push(step);
        self.value(kind, value);
        self.path.pop();
    }

    fn misfit(&mut self, expected: &'static str) {
        let kind = FieldFaultKind::Type { expected };
        let path = self.path.clone();
        self.faults.push(FieldFault { path, kind });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::eksctl::{IGNORED_TOP, group};

    #[test]
    fn every_type_of_the_table_is_known() {
        for (name, fields) in STRUCTS.iter() {
            for (field, kind) in fields {
                let item = kind.trim_start_matches(['[', ']', '{', '}']);
                let is_plain = ["string", "int", "number", "bool", "any", "taints"].contains(&item);
                assert!(
                    is_plain || STRUCTS.contains_key(item),
                    "{name}.{field} {kind}"
                );
            }
        }
    }

    #[test]
    fn fields_that_a_simulation_accepts_are_those_of_eksctl() {
        /// Fields that eksctl has no more, or never had in a file.
        const GONE: [&str; 7] = [
            "additionalEncryptedVolume",
            "autoScalingGroup",
            "autoZonalShiftConfig",
            "disableASGTagPropagation",
            "git",
            "id",
            "warmPool",
        ];
        let of = |name: &str| STRUCTS[name].keys().copied();
        let groups: Vec<_> = of("NodeGroup").chain(of("ManagedNodeGroup")).collect();
        let accepted = group::USED.iter().chain(group::UNUSED);
        let mut other: Vec<_> = accepted.filter(|name| !groups.contains(name)).collect();
        let top: Vec<_> = of("ClusterConfig").collect();
        other.extend(IGNORED_TOP.iter().filter(|name| !top.contains(name)));
        other.sort();
        assert_eq!(other, GONE.iter().collect::<Vec<_>>());
    }

    #[test]
    fn all_unknown_fields_and_wrong_types_are_found_where_they_stand() {
        let config = json!({
            "apiVersion": "eksctl.io/v1alpha5", "kind": "ClusterConfig",
            "metadata": {"name": "shop", "regoin": "eu-west-1", "version": 1.33, "tags": {"a": 1}},
            "iam": {"withOIDC": "yes"}, "nodeGroup": [],
            "nodeGroups": [{
                "name": "a", "desiredCapacity": "3", "minSize": 1.0, "kubeletExtraConfig": {"any": 1}, "taints": {"os": "windows:NoSchedule"},
            }],
            "managedNodeGroups": [
                {"name": "b", "instanceTypes": "m5.large", "taints": [{"key": "os", "efect": "NoSchedule"}], "labels": null}, 7,
            ],
        });
        let shown = faults(&config).into_iter().map(|fault| {
            let steps = fault.path.iter().map(|step| match step {
                FieldStep::Field(name) => name.clone(),
                FieldStep::Item(index) => index.to_string(),
            });
            let what = match fault.kind {
                FieldFaultKind::Unknown { near } => near.unwrap_or("unknown"),
                FieldFaultKind::Type { expected } => expected,
            };
            format!("{}: {what}", steps.collect::<Vec<_>>().join("."))
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort();
        assert_eq!(
            shown,
            [
                "iam.withOIDC: true or false",
                "managedNodeGroups.0.instanceTypes: a list",
                "managedNodeGroups.0.taints.0.efect: effect",
                "managedNodeGroups.1: a map of fields",
                "metadata.regoin: region",
                "metadata.tags.a: a text",
                "metadata.version: a text",
                "nodeGroup: nodeGroups",
                "nodeGroups.0.desiredCapacity: a whole number",
            ]
        );
    }
}
