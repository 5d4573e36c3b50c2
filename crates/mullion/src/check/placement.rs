//! Determines where a pod may run, from its own fields: node selector, RuntimeClass, required affinity and tolerations.

use std::collections::BTreeMap;

use mullion_api::labels;
use mullion_engine::images::System;
use serde_json::Value;

use super::subject::Object;
pub(super) use crate::input::list;

/// The operating system that a pod selects for its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The pod selects none, or allows both.
    Open,
    /// The pod selects this operating system.
    One(System),
    /// The pod names a RuntimeClass that is not known, or an operating system that is neither Linux nor Windows.
    Unknown,
}

/// The field that selects the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelectingField {
    Selector,
    Class,
    Affinity,
    /// The label of a Windows build, which only Windows nodes have.
    Build,
}

/// Where a pod may run.
pub(super) struct Placement {
    pub(super) os: Choice,
    pub(super) by: Option<SelectingField>,
    /// The selected Windows builds as they are written; `None` if any will do.
    pub(super) builds: Option<Vec<String>>,
    /// The selected architectures; `None` if any will do.
    pub(super) architectures: Option<Vec<String>>,
    /// The pod's tolerations, including those of its RuntimeClass.
    pub(super) tolerations: Vec<Value>,
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Taint {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) effect: String,
}

impl Taint {
    /// Returns the taint that EKS's guides give to Windows nodes.
    pub(super) fn usual() -> Self {
        Taint {
            key: "os".to_owned(),
            value: "windows".to_owned(),
            effect: "NoSchedule".to_owned(),
        }
    }

    /// Returns whether the taint excludes pods; `PreferNoSchedule` does not.
    pub(super) fn is_hard(&self) -> bool {
        matches!(self.effect.as_str(), "NoSchedule" | "NoExecute")
    }
}

impl std::fmt::Display for Taint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.value.is_empty() {
            write!(f, "{}:{}", self.key, self.effect)
        } else {
            write!(f, "{}={}:{}", self.key, self.value, self.effect)
        }
    }
}

impl Placement {
    /// Reads a pod's spec; its RuntimeClass is looked up among the objects.
    pub(super) fn of(spec: &Value, objects: &[Object]) -> Self {
        let mut selector = texts(&spec["nodeSelector"]);
        let own = selector.clone();
        let mut tolerations = list(&spec["tolerations"]).cloned().collect::<Vec<_>>();
        let class = spec["runtimeClassName"].as_str();
        let mut unknown = false;
        if let Some(name) = class {
            let found = objects
                .iter()
                .find(|object| object.is("RuntimeClass", "node.k8s.io") && object.name() == name);
            match found {
                Some(class) => {
                    let scheduling = &class.value["scheduling"];
                    // The pod's own value wins here; rule MUL032 reports the contradiction.
                    for (key, value) in texts(&scheduling["nodeSelector"]) {
                        selector.entry(key).or_insert(value);
                    }
                    tolerations.extend(list(&scheduling["tolerations"]).cloned());
                }
                None => unknown = true,
            }
        }
        let terms: Vec<&Value> =
            list(
                &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                    ["nodeSelectorTerms"],
            )
            .collect();
        let os_labels = [labels::OS, labels::BETA_OS];
        let chosen = |keys: &[&str]| {
            let selected = keys.iter().find_map(|key| selector.get(*key).cloned());
            match selected {
                Some(value) => Some(vec![value]),
                None => values(&terms, keys),
            }
        };
        let builds = chosen(&[labels::WINDOWS_BUILD]);
        let architectures = chosen(&[labels::ARCH, labels::BETA_ARCH]);
        let (os, by) = match chosen(&os_labels) {
            Some(values) => {
                let by = match os_labels.iter().find(|key| selector.contains_key(**key)) {
                    Some(key) if own.contains_key(*key) => SelectingField::Selector,
                    Some(_) => SelectingField::Class,
                    None => SelectingField::Affinity,
                };
                let mut systems: Vec<_> =
                    values.iter().map(|value| System::of_label(value)).collect();
                systems.sort();
                systems.dedup();
                match systems.as_slice() {
                    [Some(system)] => (Choice::One(*system), Some(by)),
                    [None, ..] => (Choice::Unknown, None),
                    _ => (Choice::Open, None),
                }
            }
            // The class may select an operating system, so neither a choice nor its absence can be reported.
            None if unknown => (Choice::Unknown, None),
            None if builds.is_some() => (Choice::One(System::Windows), Some(SelectingField::Build)),
            None => (Choice::Open, None),
        };
        Placement {
            os,
            by,
            builds,
            architectures,
            tolerations,
        }
    }

    /// Returns whether the pod tolerates a taint.
    pub(super) fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| {
            let text = |field: &str| toleration[field].as_str().unwrap_or_default();
            let same_effect = text("effect").is_empty() || text("effect") == taint.effect;
            let same_key = text("key") == taint.key
                || (text("key").is_empty() && text("operator") == "Exists");
            same_effect
                && same_key
                && (text("operator") == "Exists" || text("value") == taint.value)
        })
    }

    /// Returns whether the pod tolerates every taint that keeps pods from being scheduled.
    pub(super) fn tolerates_everything(&self) -> bool {
        self.tolerations.iter().any(|toleration| {
            let text = |field: &str| toleration[field].as_str().unwrap_or_default();
            text("operator") == "Exists"
                && text("key").is_empty()
                && matches!(text("effect"), "" | "NoSchedule")
        })
    }
}

/// Returns the values that the terms allow for a label, of which each is enough; `None` if a term allows any value.
fn values(terms: &[&Value], keys: &[&str]) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for term in terms {
        let mut expressions = list(&term["matchExpressions"])
            .filter(|own| own["key"].as_str().is_some_and(|key| keys.contains(&key)));
        // Terms are alternatives: one without the label allows any value.
        let expression = expressions.next()?;
        let named = list(&expression["values"])
            .filter_map(Value::as_str)
            .map(str::to_owned);
        match expression["operator"].as_str()? {
            "In" => all.extend(named),
            // There are only two operating systems, so excluding one selects the other.
            "NotIn" if keys.contains(&labels::OS) => {
                let named: Vec<_> = named.filter_map(|name| System::of_label(&name)).collect();
                let [system] = named.as_slice() else {
                    return None;
                };
                all.push(system.other().as_str().to_owned());
            }
            _ => return None,
        }
    }
    (!all.is_empty()).then_some(all)
}

/// Returns the string values of a map.
pub(super) fn texts(value: &Value) -> BTreeMap<String, String> {
    let fields = value.as_object().into_iter().flatten();
    fields
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}
