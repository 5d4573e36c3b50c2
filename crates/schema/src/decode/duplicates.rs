//! Finds duplicate keys of a YAML body in the order of Go's YAML parser: inner ones first, at the line where the value begins.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

/// Returns the lines and keys of the duplicates.
pub(super) fn of(body: &[u8]) -> Vec<(u64, String)> {
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    serde_saphyr::from_slice_with_options::<Node>(body, options)
        .map(|node| node.duplicates)
        .unwrap_or_default()
}

/// A parsed value of which only the duplicates are kept.
#[derive(Default)]
struct Node {
    duplicates: Vec<(u64, String)>,
    is_null: bool,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(Nodes)
    }
}

struct Nodes;

impl<'de> Visitor<'de> for Nodes {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node {
            is_null: true,
            ..Node::default()
        })
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut node = Node::default();
        while let Some(item) = items.next_element::<Node>()? {
            node.duplicates.extend(item.duplicates);
        }
        Ok(node)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let (mut node, mut seen) = (Node::default(), HashSet::new());
        while let Some((key, value)) = entries.next_entry::<Spanned<String>, Spanned<Node>>()? {
            node.duplicates.extend(value.value.duplicates);
            if seen.contains(&key.value) {
                // A null value has no position, so take that of the key.
                let line = if value.value.is_null {
                    key.referenced.line()
                } else {
                    value.referenced.line()
                };
                node.duplicates.push((line, key.value));
            } else {
                seen.insert(key.value);
            }
        }
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_keys_come_first_and_lines_are_those_of_the_values() {
        let body = "a: 1\nspec:\n  b: {c: 1, c: 2}\n  b:\n    d: 1\na:\nspec:\n  e:\n  - f: 1\n    f: 2\na: 3\n";
        let found = of(body.as_bytes());
        let found: Vec<(u64, &str)> = found
            .iter()
            .map(|(line, key)| (*line, key.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                (3, "c"),
                (5, "b"),
                (6, "a"),
                (10, "f"),
                (8, "spec"),
                (11, "a")
            ]
        );
        assert_eq!(of(b"a: 1\n"), []);
    }
}
