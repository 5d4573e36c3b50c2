//! Finds where an unknown field stands in its object, and which field may have been meant.

use mullion_kinds::schema::{Node, Type};
use serde_json::Value;

use super::UnknownField;
use crate::check::path::{Path, Step};

/// The largest edit distance at which a field is suggested in place of an unknown one.
const NEAR: usize = 2;

/// Describes a field that the type of an object does not have, by the name that API servers give to it.
pub(super) fn unknown_field(schema: &Type, object: &Value, name: &str) -> UnknownField {
    let mut steps = Vec::new();
    if !find(name, object, &mut steps) {
        steps.clear();
    }
    let near = steps.split_last().and_then(|(last, parents)| {
        let Step::Key(last) = last else { return None };
        nearest(&below(schema, parents)?, last)
    });
    UnknownField {
        name: name.to_owned(),
        path: Path(steps),
        near,
    }
}

/// Returns the path of a field by the name that API servers give to it, or of the innermost field around it that the object has.
pub(in crate::check) fn place(object: &Value, name: &str) -> Path {
    let mut rest = name;
    loop {
        let mut steps = Vec::new();
        if find(rest, object, &mut steps) {
            return Path(steps);
        }
        match rest.rfind(['.', '[']) {
            Some(end) => rest = &rest[..end],
            None => return Path::default(),
        }
    }
}

/// Finds the steps of a field in an object by the field's name, as in `spec.containers[0].imag`. Keys may have dots too, so each key that the
/// name may begin with is tried.
fn find(rest: &str, value: &Value, steps: &mut Vec<Step>) -> bool {
    if rest.is_empty() {
        return true;
    }
    if let Some((inside, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        // A key of a map may stand in brackets too.
        let (step, item) = match inside.parse::<usize>() {
            Ok(index) if value.is_array() => (Step::Index(index), value.get(index)),
            _ => (Step::Key(inside.to_owned()), value.get(inside)),
        };
        let Some(item) = item else {
            return false;
        };
        steps.push(step);
        let found = find(after.strip_prefix('.').unwrap_or(after), item, steps);
        if !found {
            steps.pop();
        }
        return found;
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        let Some(after) = rest.strip_prefix(key.as_str()) else {
            continue;
        };
        let after = match after.strip_prefix('.') {
            Some(after) => after,
            None if after.is_empty() || after.starts_with('[') => after,
            None => continue,
        };
        steps.push(Step::Key(key.clone()));
        if find(after, inner, steps) {
            return true;
        }
        steps.pop();
    }
    false
}

/// Returns the type of the value at a path.
fn below(schema: &Type, steps: &[Step]) -> Option<Type> {
    let Some((first, rest)) = steps.split_first() else {
        return Some(schema.clone());
    };
    let inner = match (schema.node(), first) {
        (Node::Struct(_), Step::Key(key)) => schema.field(key)?,
        (Node::Map { value, .. }, Step::Key(_)) => schema.sibling(*value),
        (Node::List(list), Step::Index(_)) => schema.sibling(list.item),
        _ => return None,
    };
    below(&inner, rest)
}

/// Returns the field of a type whose name is most like another one.
fn nearest(schema: &Type, name: &str) -> Option<String> {
    let Node::Struct(fields) = schema.node() else {
        return None;
    };
    let names: Vec<String> = fields
        .fields
        .iter()
        .map(|field| field.name.to_string())
        .collect();
    let names = names.iter().map(String::as_str);
    crate::near::nearest(name, names, NEAR).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_with_dots_lead_to_their_fields() {
        let object = json!({"a": {"b.c/d": [{"e": {"f": 1}}], "b": {}}});
        let mut steps = Vec::new();
        assert!(find("a.b.c/d[0].e.f", &object, &mut steps));
        assert_eq!(Path(steps).to_string(), "a[b.c/d][0].e.f");
        let mut none = Vec::new();
        assert!(!find("a.b.c", &object, &mut none));
        assert_eq!(none, []);
    }

    #[test]
    fn a_field_that_is_not_there_stands_in_the_innermost_one_around_it() {
        let object = json!({"spec": {"labels": {"a.b/c": "?"}, "items": [{"x": 1}]}});
        let at = |name: &str| place(&object, name).to_string();
        assert_eq!(at("spec.labels[a.b/c]"), "spec.labels[a.b/c]");
        assert_eq!(at("spec.items[0].y.z"), "spec.items[0]");
        assert_eq!(at("spec.items[1]"), "spec.items");
        assert_eq!(at("metadata.name"), "");
        assert_eq!(at("<nil>"), "");
    }
}
