//! Descriptions of types and fields for OpenAPI documents, and so for `kubectl explain`.
//!
//! Each line of `descriptions.tsv` is `type, field, text`, separated by tabs and sorted; a line without a field describes the type. A
//! field without a line takes the text from the type that the line `type, =, other` names, or else from the line `*, field, text` for all
//! types. Lines are found by binary search in the embedded text, so nothing is allocated.

use std::cmp::Ordering;

static TEXT: &str = include_str!("descriptions.tsv");

/// The field name in lines that refer to another type with the same descriptions.
const LIKE: &str = "=";
/// The type name in lines that apply to every type with such a field.
const ANY: &str = "*";

/// Returns the description of a type by its name in the table, for example `api.core.v1.Pod`.
pub fn of_type(name: &str) -> Option<&'static str> {
    find(name, "")
}

/// Returns the description of a field.
pub fn of_field(owner: &str, field: &str) -> Option<&'static str> {
    let like = || of_field(find(owner, LIKE)?, field);
    find(owner, field)
        .or_else(like)
        .or_else(|| find(ANY, field))
}

/// Finds the text of a line by binary search over byte offsets; both ends are always starts of lines.
fn find(owner: &str, field: &str) -> Option<&'static str> {
    let (mut low, mut high) = (0, TEXT.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let start = TEXT[low..middle].rfind('\n').map_or(low, |at| low + at + 1);
        let end = TEXT[start..].find('\n').map_or(TEXT.len(), |at| start + at);
        let (line_owner, line_field, text) = cells(&TEXT[start..end]);
        match (line_owner, line_field).cmp(&(owner, field)) {
            Ordering::Less => low = (end + 1).min(high),
            Ordering::Greater => high = start,
            Ordering::Equal => return Some(text),
        }
    }
    None
}

fn cells(line: &str) -> (&str, &str, &str) {
    let mut cells = line.splitn(3, '\t');
    let mut next = || cells.next().unwrap_or_default();
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, Type};

    fn lines() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        TEXT.lines().map(cells)
    }

    /// Types without fields that documents list nevertheless.
    const SCALARS: [&str; 11] = [
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
        "apimachinery.pkg.api.resource.Quantity",
        "apimachinery.pkg.apis.meta.v1.FieldsV1",
        "apimachinery.pkg.apis.meta.v1.MicroTime",
        "apimachinery.pkg.apis.meta.v1.Patch",
        "apimachinery.pkg.apis.meta.v1.Time",
        "apimachinery.pkg.runtime.RawExtension",
        "apimachinery.pkg.util.intstr.IntOrString",
    ];

    #[test]
    fn every_line_is_found_and_lines_are_ascii_sorted_and_unique() {
        assert!(TEXT.is_ascii() && TEXT.ends_with('\n'));
        let mut before = ("", "");
        for (owner, field, text) in lines() {
            assert!(
                before < (owner, field),
                "{owner} {field} comes after {before:?}"
            );
            before = (owner, field);
            assert_eq!(find(owner, field), Some(text), "{owner} {field}");
        }
        assert_eq!(find("a", ""), None);
        assert_eq!(find("zzz", "zzz"), None);
        assert_eq!(find("api.core.v1.Pod", "specs"), None);
    }

    #[test]
    fn texts_are_short_sentences() {
        for (owner, field, text) in lines().filter(|(_, field, _)| *field != LIKE) {
            let at = format!("{owner} {field}: {text:?}");
            assert!(text.starts_with(|c: char| c.is_ascii_uppercase()), "{at}");
            assert!(text.ends_with('.') && text.len() <= 300, "{at}");
            assert!(
                !text.contains("  ") && !text.contains('\t') && text.trim() == text,
                "{at}"
            );
        }
    }

    #[test]
    fn no_line_describes_what_is_not_there() {
        for (owner, field, text) in lines().filter(|(owner, ..)| *owner != ANY) {
            if SCALARS.contains(&owner) {
                assert_eq!(field, "", "{owner} has no fields");
                continue;
            }
            let kind = Type::builtin(owner).unwrap_or_else(|| panic!("no type {owner}"));
            let Node::Struct(fields) = kind.node() else {
                panic!("{owner} is no struct")
            };
            match field {
                "" => {}
                LIKE => assert!(Type::builtin(text).is_some(), "{owner} is like no type"),
                name => assert!(fields.field(name).is_some(), "no field {owner} {name}"),
            }
        }
    }

    #[test]
    fn a_line_that_says_what_the_fallback_says_is_left_out() {
        for (owner, field, text) in lines() {
            if let Some(other) =
                find(owner, LIKE).filter(|_| !matches!(field, "" | LIKE) && owner != ANY)
            {
                assert_ne!(of_field(other, field), Some(text), "{owner} {field}");
            }
        }
    }

    #[test]
    fn a_field_falls_back_to_the_similar_type_and_then_to_every_type() {
        let ephemeral = |field| of_field("api.core.v1.EphemeralContainer", field);
        assert_eq!(ephemeral("args"), find("api.core.v1.Container", "args"));
        assert_ne!(ephemeral("ports"), find("api.core.v1.Container", "ports"));
        assert_eq!(of_field("api.core.v1.Pod", "kind"), find("*", "kind"));
        assert_eq!(of_field("api.core.v1.Pod", "status.phase"), None);
    }
}
