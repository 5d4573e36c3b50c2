//! Sets of field paths, and their JSON form `FieldsV1`.
//!
//! A path is a list of elements as FieldsV1 writes them: `f:name`, `k:{"name":"a"}`, `v:"x"`. A path can be in the set without its
//! children, and children without their parent. Every write builds and combines several sets, so each level is a sorted vector, and there
//! are operations that change a set in place.

use std::fmt::{self, Write as _};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Up to this many elements are merged one by one; more are merged like sorted lists.
const FEW: usize = 64;

/// A set of field paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// The elements, sorted by name. Each is a member or has members below it.
    elements: Vec<Element>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Element {
    name: String,
    /// Whether the path that ends here is in the set.
    member: bool,
    below: FieldSet,
}

impl Element {
    fn is_needed(&self) -> bool {
        self.member || !self.below.is_empty()
    }
}

impl FieldSet {
    /// Returns whether the set has no paths.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Adds a path; the empty path is ignored.
    pub fn insert(&mut self, path: &[String]) {
        match path {
            [] => {}
            [last] => self.add(last.clone(), true, FieldSet::default()),
            [first, rest @ ..] => {
                let at = match self.find(first) {
                    Ok(at) => at,
                    Err(at) => {
                        let element = Element {
                            name: first.clone(),
                            member: false,
                            below: FieldSet::default(),
                        };
                        self.elements.insert(at, element);
                        at
                    }
                };
                self.elements[at].below.insert(rest);
            }
        }
    }

    /// Adds an element of this level together with the set below it.
    pub(super) fn add(&mut self, name: String, member: bool, below: FieldSet) {
        match self.find(&name) {
            Ok(at) => {
                let element = &mut self.elements[at];
                element.member |= member;
                element.below.merge(below);
            }
            Err(at) => {
                let element = Element {
                    name,
                    member,
                    below,
                };
                if element.is_needed() {
                    self.elements.insert(at, element);
                }
            }
        }
    }

    /// Removes a path; the paths below it stay.
    pub(super) fn remove(&mut self, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let Ok(at) = self.find(first) else {
            return;
        };
        let element = &mut self.elements[at];
        if rest.is_empty() {
            element.member = false;
        } else {
            element.below.remove(rest);
        }
        if !element.is_needed() {
            self.elements.remove(at);
        }
    }

    /// Returns whether a path is in the set.
    pub fn contains(&self, path: &[String]) -> bool {
        match path {
            [] => false,
            [last] => self.has(last),
            [first, rest @ ..] => self.below(first).is_some_and(|below| below.contains(rest)),
        }
    }

    /// Adds the paths of another set.
    pub(super) fn merge(&mut self, other: FieldSet) {
        if self.is_empty() {
            *self = other;
            return;
        }
        // Inserting many elements one by one would move the rest of the vector each time.
        if other.elements.len() > FEW {
            return self.merge_many(other);
        }
        for element in other.elements {
            self.add(element.name, element.member, element.below);
        }
    }

    fn merge_many(&mut self, other: FieldSet) {
        let mut merged = Vec::with_capacity(self.elements.len() + other.elements.len());
        let mut mine = std::mem::take(&mut self.elements).into_iter().peekable();
        for mut element in other.elements {
            while let Some(own) = mine.next_if(|own| own.name < element.name) {
                merged.push(own);
            }
            if let Some(mut own) = mine.next_if(|own| own.name == element.name) {
                own.below.merge(element.below);
                element.member |= own.member;
                element.below = own.below;
            }
            merged.push(element);
        }
        merged.extend(mine);
        self.elements = merged;
    }

    /// Removes the paths that are in the other set.
    pub(super) fn subtract(&mut self, other: &FieldSet) {
        if other.is_empty() {
            return;
        }
        self.elements.retain_mut(|element| {
            if let Some(gone) = other.get(&element.name) {
                element.member &= !gone.member;
                element.below.subtract(&gone.below);
            }
            element.is_needed()
        });
    }

    /// Removes the paths that are in the other set, or below one that is.
    pub(super) fn subtract_below(&mut self, other: &FieldSet) {
        if other.is_empty() {
            return;
        }
        self.elements
            .retain_mut(|element| match other.get(&element.name) {
                Some(gone) if gone.member => false,
                Some(gone) => {
                    element.below.subtract_below(&gone.below);
                    element.is_needed()
                }
                None => true,
            });
    }

    /// Returns the paths that are in either set.
    pub fn union(&self, other: &FieldSet) -> FieldSet {
        let mut united = self.clone();
        united.merge(other.clone());
        united
    }

    /// Returns the paths that are in both sets.
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        let common = self.elements.iter().filter_map(|element| {
            let both = other.get(&element.name)?;
            let common = Element {
                name: element.name.clone(),
                member: element.member && both.member,
                below: element.below.intersection(&both.below),
            };
            common.is_needed().then_some(common)
        });
        FieldSet {
            elements: common.collect(),
        }
    }

    /// Returns the paths of this set that are not in the other.
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        let mut left = self.clone();
        left.subtract(other);
        left
    }

    /// Returns the paths of this set that are neither in the other nor below one of its paths.
    pub fn without_below(&self, other: &FieldSet) -> FieldSet {
        let mut left = self.clone();
        left.subtract_below(other);
        left
    }

    /// Returns whether an element of this level is in the set.
    pub(super) fn has(&self, element: &str) -> bool {
        self.get(element).is_some_and(|found| found.member)
    }

    /// Returns the set below an element of this level.
    pub(super) fn below(&self, element: &str) -> Option<&FieldSet> {
        self.get(element)
            .map(|found| &found.below)
            .filter(|below| !below.is_empty())
    }

    /// Returns a copy in which `change` has replaced the set below each element; if it returns `true`, the element itself is added too.
    pub(super) fn map_children(
        &self,
        change: impl Fn(&str, &FieldSet) -> (bool, FieldSet),
    ) -> FieldSet {
        let mut changed = self.clone();
        for element in &mut changed.elements {
            if !element.below.is_empty() {
                let (member, below) = change(&element.name, &element.below);
                element.member |= member;
                element.below = below;
            }
        }
        changed.elements.retain(Element::is_needed);
        changed
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        // Sets are mostly built in order, so try the end first.
        match self.elements.last() {
            Some(last) if *last.name < *name => Err(self.elements.len()),
            _ => self
                .elements
                .binary_search_by(|element| (*element.name).cmp(name)),
        }
    }

    fn get(&self, name: &str) -> Option<&Element> {
        self.find(name).ok().map(|at| &self.elements[at])
    }

    /// Returns the paths as error messages print them: `.spec.containers[name="a"].image`. Members of a level precede the paths below
    /// them.
    pub fn paths(&self) -> Vec<String> {
        let members = self.elements.iter().filter(|element| element.member);
        let mut paths: Vec<String> = members.map(|element| readable(&element.name)).collect();
        for element in &self.elements {
            let below = element.below.paths().into_iter();
            paths.extend(below.map(|rest| format!("{}{rest}", readable(&element.name))));
        }
        paths
    }

    /// Parses FieldsV1 from a client; `None` if an element is malformed.
    pub fn from_json(value: &Value) -> Option<FieldSet> {
        let mut set = FieldSet::default();
        for (name, below) in value.as_object()? {
            // It belongs to the element that has this level below it.
            if name == "." {
                continue;
            }
            if !is_known(name)? {
                continue;
            }
            // Both a dot and `{}` mean that the element itself is in the set.
            let dotted = below.as_object()?.contains_key(".");
            let below = FieldSet::from_json(below)?;
            set.add(name.clone(), dotted || below.is_empty(), below);
        }
        Some(set)
    }

    /// Parses FieldsV1 from the text of [`FieldSet::to_text`]; `None` if it is not JSON or an element is malformed.
    pub fn from_text(text: &str) -> Option<FieldSet> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let read = Level.deserialize(&mut deserializer).ok()?;
        deserializer.end().ok().map(|()| read.set)
    }

    /// Returns the set as the text of FieldsV1.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(256);
        self.write(false, &mut text);
        text
    }

    fn write(&self, member: bool, text: &mut String) {
        text.push('{');
        // An element without anything below it is always a member, so it needs no `.`.
        if member && !self.elements.is_empty() {
            text.push_str("\".\":{}");
        }
        for element in &self.elements {
            if text.ends_with('}') {
                text.push(',');
            }
            if element
                .name
                .contains(|c: char| c < ' ' || c == '"' || c == '\\')
            {
                let quoted = Value::from(element.name.as_str());
                write!(text, "{quoted}").expect("writing to a string does not fail");
            } else {
                text.push('"');
                text.push_str(&element.name);
                text.push('"');
            }
            text.push(':');
            element.below.write(element.member, text);
        }
        text.push('}');
    }

    /// Returns whether a set in text form can have paths in common with this one; only false is certain. A path is in the text only if
    /// all its elements are.
    pub(super) fn may_meet(&self, text: &str) -> bool {
        // Parsing the text is faster than searching it for many elements.
        if self.elements.len() > FEW {
            return true;
        }
        self.elements.iter().any(|element| {
            // A name with escapes looks different in the text, so it counts as found.
            let escaped = element.name.contains(['"', '\\']);
            (escaped || text.contains(&*format!("\"{}\"", element.name)))
                && (element.member || element.below.may_meet(text))
        })
    }

    /// Returns the set as FieldsV1.
    pub fn into_json(self) -> Value {
        let written = self.elements.into_iter().map(|element| {
            let mut below = element.below.into_json();
            if let Some(map) = below
                .as_object_mut()
                .filter(|map| element.member && !map.is_empty())
            {
                map.insert(".".to_owned(), Value::Object(Map::new()));
            }
            (element.name, below)
        });
        Value::Object(written.collect())
    }
}

/// One level of FieldsV1 while it is parsed.
struct Level;

struct ReadLevel {
    set: FieldSet,
    /// Whether the level is `{}` or has a `.`, which means that its parent element is in the set itself.
    member: bool,
}

impl<'de> DeserializeSeed<'de> for Level {
    type Value = ReadLevel;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ReadLevel, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = ReadLevel;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a set of fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<ReadLevel, A::Error> {
        let mut set = FieldSet::default();
        let mut dotted = false;
        while let Some(name) = entries.next_key::<String>()? {
            if name == "." {
                entries.next_value::<IgnoredAny>()?;
                dotted = true;
                continue;
            }
            if !matches!(name.split_once(':'), Some(("f" | "k" | "v" | "i", _))) {
                return Err(serde::de::Error::custom("an element of no known kind"));
            }
            let below = entries.next_value_seed(Level)?;
            set.add(name, below.member, below.set);
        }
        Ok(ReadLevel {
            member: dotted || set.elements.is_empty(),
            set,
        })
    }
}

/// Returns whether the kind of an element is known; elements of unknown kinds, from a later version, are ignored. `None` if it is
/// malformed.
fn is_known(element: &str) -> Option<bool> {
    let (kind, rest) = element.split_once(':')?;
    let is_json = || serde_json::from_str::<IgnoredAny>(rest).is_ok();
    let is_whole = match kind {
        "f" => true,
        "k" => rest.starts_with('{') && is_json(),
        "v" => is_json(),
        "i" => rest.parse::<i64>().is_ok(),
        unknown => return (unknown.len() == 1).then_some(false),
    };
    is_whole.then_some(true)
}

/// Returns an element as error messages print it.
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
                .map(|(key, value)| format!("{key}={}", readable_value(value)))
                .collect();
            format!("[{}]", pairs.join(","))
        }
        _ => format!("[{rest}]"),
    }
}

/// Returns a value as structured-merge-diff's `value.ToString` prints it: the entries of a map stand without braces and commas.
fn readable_value(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(readable_value).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| format!("{key}={}", readable_value(value)))
            .collect(),
        scalar => scalar.to_string(),
    }
}
