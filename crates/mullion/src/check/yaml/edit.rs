//! Changes single fields in the text of a YAML document; comments, order and notation of everything else stay as they are.
//!
//! Invariant: the changed text parses to the old value with exactly this change ([`Edit::apply_to`]), or there is no changed text. So if a
//! text has something that this code does not expect (anchors, tags, tabs), at worst the user must make the fix by hand.

use granit_parser::ScalarStyle;
use serde_json::{Map, Value};

use super::{
    render,
    tree::{self, Node, Shape},
};
use crate::check::path::{Path, Step};

/// A change of one field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Edit {
    /// Sets a field to a value; missing maps above the field are created.
    Set(Path, Value),
    /// Removes a field, and the maps above it that are empty then.
    Remove(Path),
    /// Appends an element to a list, which is created if it is missing.
    Push(Path, Value),
    /// Renames a field.
    Rename(Path, String),
}

impl Edit {
    /// Returns the path of the field that is changed.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Edit::Set(path, _)
            | Edit::Remove(path)
            | Edit::Push(path, _)
            | Edit::Rename(path, _) => path,
        }
    }

    /// Returns the same change for a document in which the object is at `root`.
    pub(crate) fn below(&self, root: &Path) -> Edit {
        match self {
            Edit::Set(path, value) => Edit::Set(root.join(path), value.clone()),
            Edit::Remove(path) => Edit::Remove(root.join(path)),
            Edit::Push(path, value) => Edit::Push(root.join(path), value.clone()),
            Edit::Rename(path, key) => Edit::Rename(root.join(path), key.clone()),
        }
    }

    /// Changes a value; returns false if the value does not have the right shape.
    pub(crate) fn apply_to(&self, value: &mut Value) -> bool {
        match self {
            Edit::Set(path, new) => set(value, &path.0, new),
            Edit::Remove(path) => remove(value, &path.0),
            Edit::Push(path, new) => match path.get(value).filter(|found| !found.is_null()) {
                None => set(value, &path.0, &Value::Array(vec![new.clone()])),
                Some(Value::Array(items)) => {
                    let mut items = items.clone();
                    items.push(new.clone());
                    set(value, &path.0, &Value::Array(items))
                }
                Some(_) => false,
            },
            Edit::Rename(path, key) => {
                let Some((Step::Key(old), above)) = path.0.split_last() else {
                    return false;
                };
                let Some(fields) = find(value, above).and_then(Value::as_object_mut) else {
                    return false;
                };
                if fields.contains_key(key) {
                    return false;
                }
                match fields.remove(old) {
                    Some(moved) => fields.insert(key.clone(), moved).is_none(),
                    None => false,
                }
            }
        }
    }
}

/// Returns the text with one document changed; `None` if that is not possible.
pub(crate) fn apply(text: &str, document: usize, edit: &Edit) -> Option<String> {
    let values = read(text)?;
    let mut expected = values.clone();
    if !edit.apply_to(expected.get_mut(document)?) || expected == values {
        return None;
    }
    let roots = tree::documents(text).ok()?;
    let root = roots.get(document)?.as_ref()?;
    let changed = Editor { text }.change(root, edit)?;
    // The proof that the text edit did what was meant and nothing else.
    (read(&changed)? == expected).then_some(changed)
}

/// Parses all documents of a text.
fn read(text: &str) -> Option<Vec<Value>> {
    serde_saphyr::from_multiple(text).ok()
}

fn find<'v>(value: &'v mut Value, steps: &[Step]) -> Option<&'v mut Value> {
    steps.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    })
}

fn set(value: &mut Value, steps: &[Step], new: &Value) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        *value = new.clone();
        return true;
    };
    if value.is_null() && matches!(step, Step::Key(_)) {
        *value = Value::Object(Map::new());
    }
    match (step, value) {
        (Step::Key(key), Value::Object(fields)) => {
            set(fields.entry(key.clone()).or_insert(Value::Null), rest, new)
        }
        (Step::Index(index), Value::Array(items)) => items
            .get_mut(*index)
            .is_some_and(|item| set(item, rest, new)),
        _ => false,
    }
}

fn remove(value: &mut Value, steps: &[Step]) -> bool {
    let Some((last, above)) = steps.split_last() else {
        return false;
    };
    let Some(parent) = find(value, above) else {
        return false;
    };
    match (last, parent) {
        (Step::Key(key), Value::Object(fields)) => {
            if fields.remove(key).is_none() {
                return false;
            }
            if fields.is_empty() && matches!(above.last(), Some(Step::Key(_))) {
                remove(value, above)
            } else {
                true
            }
        }
        (Step::Index(index), Value::Array(items)) if *index < items.len() && items.len() > 1 => {
            items.remove(*index);
            true
        }
        _ => false,
    }
}

/// Creates the changed text.
struct Editor<'t> {
    text: &'t str,
}

impl Editor<'_> {
    fn change(&self, root: &Node, edit: &Edit) -> Option<String> {
        match edit {
            Edit::Set(path, value) => self.set(root, &path.0, value),
            Edit::Push(path, value) => self.push(root, &path.0, value),
            Edit::Remove(path) => self.remove(root, &path.0),
            Edit::Rename(path, key) => {
                let (Step::Key(old), above) = path.0.split_last()? else {
                    return None;
                };
                let parent = above.iter().try_fold(root, Node::step)?;
                let (own, _) = parent.entry(old)?;
                let Shape::Scalar { style, .. } = own.shape else {
                    return None;
                };
                let shown = render::like(&Value::from(key.as_str()), style, false);
                Some(self.replaced(own.bytes.start, own.bytes.end, &shown))
            }
        }
    }

    fn set(&self, node: &Node, steps: &[Step], value: &Value) -> Option<String> {
        let Some((step, rest)) = steps.split_first() else {
            return self.replace(node, value);
        };
        if let Some(below) = node.step(step) {
            return self.set(below, rest, value);
        }
        let mut made = value.clone();
        for step in rest.iter().rev() {
            let Step::Key(key) = step else {
                return None;
            };
            made = Value::Object(Map::from_iter([(key.clone(), made)]));
        }
        let Step::Key(key) = step else {
            return None;
        };
        self.insert(node, key, &made)
    }

    /// Replaces one value by another.
    fn replace(&self, node: &Node, value: &Value) -> Option<String> {
        let (style, old) = match &node.shape {
            Shape::Scalar { style, text } => (*style, text.as_str()),
            Shape::Alias => return None,
            Shape::Map { flow, .. } | Shape::List { flow, .. } => {
                let shown = if *flow {
                    render::flow(value, self.is_quoted(node))
                } else {
                    // A block collection can only replace another collection, which starts on its own line or after a dash.
                    match value {
                        Value::Object(_) | Value::Array(_) => render::block(value, node.column),
                        _ => return None,
                    }
                };
                return Some(self.replaced(node.bytes.start, node.bytes.end, &shown));
            }
        };
        if let (ScalarStyle::Literal, Value::String(new)) = (style, value) {
            return self.replace_literal(node, old, new);
        }
        let shown = match value {
            Value::String(_) => render::like(value, style, self.is_json()),
            _ => render::flow(value, self.is_json()),
        };
        // The field has no value (`key:`), so there is no space after the colon yet.
        let before = self.text[..node.bytes.start].ends_with(':');
        let shown = if before { format!(" {shown}") } else { shown };
        Some(self.replaced(node.bytes.start, node.bytes.end, &shown))
    }

    /// Replaces the lines of a literal block (`|`).
    fn replace_literal(&self, node: &Node, old: &str, new: &str) -> Option<String> {
        let own = &self.text[node.bytes.clone()];
        // The content starts on the line after the `|`.
        let below = if own.starts_with('|') {
            own.find('\n')? + 1
        } else {
            0
        };
        let at = node.bytes.start + below;
        let line = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        let whole = &self.text[line..];
        let indentation = &whole[..whole.len() - whole.trim_start_matches(' ').len()];
        // The indentation of such a block is given by a number, which this code does not handle.
        if old.starts_with(' ') {
            return None;
        }
        let lines = new.trim_end().lines().map(|line| {
            if line.is_empty() {
                String::new()
            } else {
                format!("{indentation}{line}")
            }
        });
        let shown = lines.collect::<Vec<_>>().join("\n");
        Some(self.replaced(line, node.bytes.end, &shown))
    }

    /// Adds a field at the end of a map.
    fn insert(&self, node: &Node, key: &str, value: &Value) -> Option<String> {
        match &node.shape {
            Shape::Map {
                entries,
                flow: true,
            } => {
                let quoted = self.is_quoted(node);
                let shown = format!(
                    "{}: {}",
                    render::key(key, quoted),
                    render::flow(value, quoted)
                );
                self.insert_flow(
                    node,
                    entries.last().map(|(key, value)| (key, value)),
                    &shown,
                )
            }
            Shape::Map {
                entries,
                flow: false,
            } => {
                let (_, last) = entries.last()?;
                let at = self.end_of_line(last.bytes.end);
                let lines = render::entry(key, value, node.column);
                Some(self.inserted(at, &format!("\n{}{lines}", render::spaces(node.column))))
            }
            // The field has no value yet, as in `nodeSelector:`.
            Shape::Scalar {
                style: ScalarStyle::Plain,
                text,
            } if matches!(text.as_str(), "" | "~" | "null") => {
                let made = Value::Object(Map::from_iter([(key.to_owned(), value.clone())]));
                self.replace(node, &made)
            }
            _ => None,
        }
    }

    /// Adds an entry at the end of a map or list in brackets.
    fn insert_flow(
        &self,
        node: &Node,
        last: Option<(&Node, &Node)>,
        shown: &str,
    ) -> Option<String> {
        match last {
            Some((first, last)) => {
                // If each entry has its own line, as in indented JSON, the new one gets its own line too.
                let own_line = first.line > node.line;
                let between = if own_line {
                    format!(",\n{}", render::spaces(first.column))
                } else {
                    ", ".to_owned()
                };
                Some(self.inserted(last.bytes.end, &format!("{between}{shown}")))
            }
            None => {
                let (open, close) = (node.bytes.start + 1, node.bytes.end - 1);
                Some(self.replaced(open, close, shown))
            }
        }
    }

    fn push(&self, root: &Node, steps: &[Step], value: &Value) -> Option<String> {
        let list = steps.iter().try_fold(root, Node::step);
        let Some(list) = list else {
            return self.set(root, steps, &Value::Array(vec![value.clone()]));
        };
        match &list.shape {
            Shape::List { items, flow: true } => {
                let shown = render::flow(value, self.is_json());
                self.insert_flow(list, items.last().map(|item| (item, item)), &shown)
            }
            Shape::List { items, flow: false } => {
                let at = self.end_of_line(items.last()?.bytes.end);
                let lines = render::block(&Value::Array(vec![value.clone()]), list.column);
                Some(self.inserted(at, &format!("\n{}{lines}", render::spaces(list.column))))
            }
            Shape::Scalar { .. } => self.replace(list, &Value::Array(vec![value.clone()])),
            _ => None,
        }
    }

    fn remove(&self, root: &Node, steps: &[Step]) -> Option<String> {
        let (last, above) = steps.split_last()?;
        let parent = above.iter().try_fold(root, Node::step)?;
        let (parts, flow): (Vec<(&Node, &Node)>, bool) = match &parent.shape {
            Shape::Map { entries, flow } => (
                entries.iter().map(|(key, value)| (key, value)).collect(),
                *flow,
            ),
            Shape::List { items, flow } => (items.iter().map(|item| (item, item)).collect(), *flow),
            _ => return None,
        };
        let index = match last {
            Step::Key(key) => parts.iter().position(|(own, _)| own.is_text(key))?,
            Step::Index(index) => *index,
        };
        // Removing the last field of a map removes the map.
        if parts.len() == 1 {
            return match (last, above.last()) {
                (Step::Key(_), Some(Step::Key(_))) => self.remove(root, above),
                _ => None,
            };
        }
        let (own, value) = *parts.get(index)?;
        let next = parts.get(index + 1).map(|(next, _)| next.bytes.start);
        if flow {
            return Some(match next {
                Some(next) => self.replaced(own.bytes.start, next, ""),
                // The comma before the last entry goes with it.
                None => self.replaced(parts[index - 1].1.bytes.end, value.bytes.end, ""),
            });
        }
        let line = self.text[..own.bytes.start]
            .rfind('\n')
            .map_or(0, |at| at + 1);
        let alone = self.text[line..own.bytes.start].trim().is_empty();
        match (last, alone, next) {
            // The first key of a list item stands behind the dash, which must stay.
            (Step::Key(_), false, Some(next)) => Some(self.replaced(own.bytes.start, next, "")),
            (Step::Key(_), false, None) => None,
            _ => {
                let end = self.end_of_line(value.bytes.end);
                let end = (end + 1).min(self.text.len());
                Some(self.replaced(line, end, ""))
            }
        }
    }

    fn is_quoted(&self, node: &Node) -> bool {
        let Shape::Map { entries, .. } = &node.shape else {
            return self.is_json();
        };
        match entries.first() {
            Some((key, _)) => matches!(
                key.shape,
                Shape::Scalar {
                    style: ScalarStyle::DoubleQuoted,
                    ..
                }
            ),
            None => self.is_json(),
        }
    }

    fn is_json(&self) -> bool {
        self.text.trim_start().starts_with('{')
    }

    /// Returns the end of the line, without its line break.
    fn end_of_line(&self, at: usize) -> usize {
        let end = self.text[at..]
            .find('\n')
            .map_or(self.text.len(), |end| at + end);
        if self.text[..end].ends_with('\r') {
            end - 1
        } else {
            end
        }
    }

    fn inserted(&self, at: usize, new: &str) -> String {
        self.replaced(at, at, new)
    }

    fn replaced(&self, from: usize, to: usize, new: &str) -> String {
        let ending = if self.text.contains("\r\n") {
            new.replace('\n', "\r\n")
        } else {
            new.to_owned()
        };
        format!("{}{ending}{}", &self.text[..from], &self.text[to..])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changed(text: &str, edit: Edit) -> String {
        apply(text, 0, &edit).unwrap_or_else(|| "unchanged".to_owned())
    }

    #[test]
    fn a_field_is_added_in_the_notation_of_its_map() {
        let at = Path::of(&["spec", "nodeSelector", "kubernetes.io/os"]);
        let set = || Edit::Set(at.clone(), json!("windows"));
        let cases = [
            (
                "spec:\n  a: 1 # one\n\n# end\n",
                "spec:\n  a: 1 # one\n  nodeSelector:\n    kubernetes.io/os: windows\n\n# end\n",
            ),
            (
                "spec: {a: 1}\n",
                "spec: {a: 1, nodeSelector: {kubernetes.io/os: windows}}\n",
            ),
            (
                "spec:\n  nodeSelector: {}\n  b: 2",
                "spec:\n  nodeSelector: {kubernetes.io/os: windows}\n  b: 2",
            ),
            (
                "spec:\n  nodeSelector:\n  b: 2",
                "spec:\n  nodeSelector: {kubernetes.io/os: windows}\n  b: 2",
            ),
            (
                "spec:\n  list:\n  - x: |\n      text\n",
                "spec:\n  list:\n  - x: |\n      text\n  nodeSelector:\n    kubernetes.io/os: windows\n",
            ),
            (
                "{\"spec\": {\n  \"a\": 1\n}}",
                "{\"spec\": {\n  \"a\": 1,\n  \"nodeSelector\": {\"kubernetes.io/os\": \"windows\"}\n}}",
            ),
            (
                "spec:\r\n  a: 1\r\n",
                "spec:\r\n  a: 1\r\n  nodeSelector:\r\n    kubernetes.io/os: windows\r\n",
            ),
            (
                "spec:\n  nodeSelector: {kubernetes.io/os: 'linux'} # here\n",
                "spec:\n  nodeSelector: {kubernetes.io/os: 'windows'} # here\n",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(changed(text, set()), expected);
        }
    }

    #[test]
    fn a_field_is_removed_with_the_maps_it_leaves_empty() {
        let cases = [
            ("a:\n  b:\n    c: 1\n  d: 2 # two\n", "a:\n  d: 2 # two\n"),
            ("a: {b: {c: 1}, d: 2}\n", "a: {d: 2}\n"),
            ("a: {d: 2, b: {c: 1}}\n", "a: {d: 2}\n"),
            ("a:\n  b: {c: 1, x: 2}\n", "a:\n  b: {x: 2}\n"),
        ];
        for (text, expected) in cases {
            assert_eq!(
                changed(text, Edit::Remove(Path::of(&["a", "b", "c"]))),
                expected
            );
        }
        let first = Path::of(&["a"]).index(0).key("b");
        assert_eq!(
            changed("a:\n- b: 1\n  c: 2\n", Edit::Remove(first)),
            "a:\n- c: 2\n"
        );
    }

    #[test]
    fn an_element_is_added_to_a_list() {
        let push = || Edit::Push(Path::of(&["a"]), json!({"key": "os", "value": "windows"}));
        let cases = [
            (
                "a:\n- b # c\nd: 1\n",
                "a:\n- b # c\n- key: os\n  value: windows\nd: 1\n",
            ),
            ("a: []\n", "a: [{key: os, value: windows}]\n"),
            (
                "a:\n  - b: 1\n",
                "a:\n  - b: 1\n  - key: os\n    value: windows\n",
            ),
            ("d: 1\n", "d: 1\na:\n- key: os\n  value: windows\n"),
        ];
        for (text, expected) in cases {
            assert_eq!(changed(text, push()), expected);
        }
    }

    #[test]
    fn what_would_change_something_else_is_not_changed() {
        let edit = Edit::Set(Path::of(&["a", "b"]), json!(2));
        assert_eq!(changed("a: &x {b: 1}\nc: *x\n", edit), "unchanged");
        let edit = Edit::Set(Path::of(&["c", "b"]), json!(2));
        assert_eq!(changed("a: &x {b: 1}\nc: *x\n", edit), "unchanged");
    }

    #[test]
    fn a_key_is_renamed_and_a_literal_replaced() {
        let edit = Edit::Rename(
            Path::of(&["a", "beta.kubernetes.io/os"]),
            "kubernetes.io/os".to_owned(),
        );
        assert_eq!(
            changed("a:\n  \"beta.kubernetes.io/os\": x # y\n", edit),
            "a:\n  \"kubernetes.io/os\": x # y\n"
        );
        let edit = Edit::Set(Path::of(&["a"]), json!("x\ny\n"));
        assert_eq!(changed("a: |\n  x\nb: 1\n", edit), "a: |\n  x\n  y\nb: 1\n");
    }
}
