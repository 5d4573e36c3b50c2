//! Changes single fields in the text of a YAML document; comments, order and notation of everything else stay as they are.
//!
//! Invariant: the changed text parses to the old value with exactly this change ([`Edit::apply_to`]), or there is no changed text. So if a
//! text has something that this code does not expect (anchors, tags, tabs), at worst the user must make the fix by hand.

use serde_json::{Map, Value};

use super::{editor::Editor, tree};
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
    let root = roots.get(document)?;
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
    fn empty_documents_are_passed_over() {
        let edit = Edit::Set(Path::of(&["a"]), json!(2));
        let changed = |text: &str, document| apply(text, document, &edit);
        let text = "---\n---\na: 1\n---\n# none\n---\na: 1\n";
        let first = "---\n---\na: 2\n---\n# none\n---\na: 1\n";
        let second = "---\n---\na: 1\n---\n# none\n---\na: 2\n";
        assert_eq!(changed(text, 0).as_deref(), Some(first));
        assert_eq!(changed(text, 1).as_deref(), Some(second));
        assert_eq!(changed(text, 2), None);
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
