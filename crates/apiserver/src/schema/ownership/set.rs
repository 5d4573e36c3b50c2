//! Sets of field paths, and their JSON form `FieldsV1`.
//!
//! A path is a list of elements as FieldsV1 writes them: `f:name`, `k:{"name":"a"}`, `v:"x"`. A path can be in the set without its
//! children being so, and the other way round.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// A set of field paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    members: BTreeSet<String>,
    children: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    /// Whether no path is in the set.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.is_empty()
    }

    /// Adds a path; the empty path is nothing.
    pub fn insert(&mut self, path: &[String]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// Whether a path is in the set.
    pub fn contains(&self, path: &[String]) -> bool {
        match path {
            [] => false,
            [last] => self.members.contains(last),
            [first, rest @ ..] => self
                .children
                .get(first)
                .is_some_and(|child| child.contains(rest)),
        }
    }

    /// The paths that are in either.
    pub fn union(&self, other: &FieldSet) -> FieldSet {
        let mut united = self.clone();
        united.members.extend(other.members.iter().cloned());
        for (element, child) in &other.children {
            let slot = united.children.entry(element.clone()).or_default();
            *slot = slot.union(child);
        }
        united
    }

    /// The paths that are in both.
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        let members = self.members.intersection(&other.members).cloned().collect();
        let children = self.children.iter().filter_map(|(element, child)| {
            let common = child.intersection(other.children.get(element)?);
            (!common.is_empty()).then(|| (element.clone(), common))
        });
        FieldSet {
            members,
            children: children.collect(),
        }
    }

    /// The paths of this set that are not in the other.
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        let members = self.members.difference(&other.members).cloned().collect();
        let children = self.children.iter().filter_map(|(element, child)| {
            let rest = other
                .children
                .get(element)
                .map_or_else(|| child.clone(), |gone| child.difference(gone));
            (!rest.is_empty()).then(|| (element.clone(), rest))
        });
        FieldSet {
            members,
            children: children.collect(),
        }
    }

    /// The paths of this set that are neither in the other nor below one that is.
    pub fn without_below(&self, other: &FieldSet) -> FieldSet {
        let members = self.members.difference(&other.members).cloned().collect();
        let children = self
            .children
            .iter()
            .filter(|(element, _)| !other.members.contains(*element))
            .filter_map(|(element, child)| {
                let rest = other
                    .children
                    .get(element)
                    .map_or_else(|| child.clone(), |gone| child.without_below(gone));
                (!rest.is_empty()).then(|| (element.clone(), rest))
            });
        FieldSet {
            members,
            children: children.collect(),
        }
    }

    /// Whether an element of this level is in the set.
    pub(super) fn has(&self, element: &str) -> bool {
        self.members.contains(element)
    }

    /// The set below an element of this level.
    pub(super) fn below(&self, element: &str) -> Option<&FieldSet> {
        self.children.get(element)
    }

    /// The set with other sets below its elements; `true` puts the element itself in too.
    pub(super) fn map_children(
        &self,
        change: impl Fn(&str, &FieldSet) -> (bool, FieldSet),
    ) -> FieldSet {
        let mut changed = FieldSet {
            members: self.members.clone(),
            children: BTreeMap::new(),
        };
        for (element, child) in &self.children {
            let (member, child) = change(element, child);
            if member {
                changed.members.insert(element.clone());
            }
            changed.children.insert(element.clone(), child);
        }
        changed
    }

    /// The paths as error texts write them: `.spec.containers[name="a"].image`. Members of a level come before what is below them.
    pub fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self
            .members
            .iter()
            .map(|element| readable(element))
            .collect();
        for (element, child) in &self.children {
            paths.extend(
                child
                    .paths()
                    .into_iter()
                    .map(|rest| format!("{}{rest}", readable(element))),
            );
        }
        paths
    }

    /// Reads FieldsV1; `None` when an element is malformed.
    pub fn from_json(value: &Value) -> Option<FieldSet> {
        let mut set = FieldSet::default();
        for (element, below) in value.as_object()? {
            if element == "." {
                continue;
            }
            let (kind, _) = element.split_once(':')?;
            if !["f", "k", "v", "i"].contains(&kind) {
                return None;
            }
            let below_object = below.as_object()?;
            if below_object.is_empty() || below_object.contains_key(".") {
                set.members.insert(element.clone());
            }
            let child = FieldSet::from_json(below)?;
            if !child.is_empty() {
                set.children.insert(element.clone(), child);
            }
        }
        Some(set)
    }

    /// The set as FieldsV1.
    pub fn to_json(&self) -> Value {
        let mut map: Map<String, Value> = self
            .members
            .iter()
            .map(|element| (element.clone(), Value::Object(Map::new())))
            .collect();
        for (element, child) in &self.children {
            let mut below = child.to_json();
            if let (true, Some(below)) = (self.members.contains(element), below.as_object_mut()) {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            map.insert(element.clone(), below);
        }
        Value::Object(map)
    }
}

/// An element as it stands in an error text.
fn readable(element: &str) -> String {
    let Some((kind, rest)) = element.split_once(':') else {
        return element.to_owned();
    };
    match kind {
        "f" => format!(".{rest}"),
        "v" => format!("[={rest}]"),
        "k" => {
            let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let pairs: Vec<String> = keys
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            format!("[{}]", pairs.join(","))
        }
        _ => format!("[{rest}]"),
    }
}
