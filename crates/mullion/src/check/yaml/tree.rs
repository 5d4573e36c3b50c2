//! Parses YAML documents into trees of nodes with their positions in the text.
//!
//! The values are read by the parser that all commands share; this tree only says where they are.

use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StructureStyle};

use crate::check::path::{Path, Step};

/// A node of a document.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The node's bytes in the text; a block collection starts at its first key or dash, and ends with its last leaf.
    pub(crate) bytes: Range<usize>,
    /// The column of the first byte, from 0.
    pub(crate) column: usize,
    /// The line of the first byte, from 1.
    pub(crate) line: usize,
    pub(crate) shape: Shape,
}

/// The kind of a node, with its children.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Scalar {
        text: String,
        style: ScalarStyle,
    },
    Map {
        entries: Vec<(Node, Node)>,
        flow: bool,
    },
    List {
        items: Vec<Node>,
        flow: bool,
    },
    /// An alias for a node elsewhere in the document.
    Alias,
}

impl Node {
    /// Returns the key and the value of a map's entry.
    pub(crate) fn entry(&self, key: &str) -> Option<&(Node, Node)> {
        let Shape::Map { entries, .. } = &self.shape else {
            return None;
        };
        entries.iter().find(|(own, _)| own.is_text(key))
    }

    /// Returns whether the node is a scalar with this text.
    pub(crate) fn is_text(&self, wanted: &str) -> bool {
        matches!(&self.shape, Shape::Scalar { text, .. } if text == wanted)
    }

    /// Returns the child node that a step leads to.
    pub(crate) fn step(&self, step: &Step) -> Option<&Node> {
        match (step, &self.shape) {
            (Step::Key(key), _) => self.entry(key).map(|(_, value)| value),
            (Step::Index(index), Shape::List { items, .. }) => items.get(*index),
            _ => None,
        }
    }

    /// Returns the line and column, from 1, of the last existing part of a path, and the lines of all existing parts.
    pub(crate) fn locate(&self, path: &Path) -> Location {
        let mut node = self;
        let mut found = Location {
            line: self.line,
            column: self.column + 1,
            lines: vec![self.line],
        };
        for step in &path.0 {
            let (mark, next) = match step {
                Step::Key(key) => match node.entry(key) {
                    Some((key, value)) => (key, value),
                    None => break,
                },
                Step::Index(_) => match node.step(step) {
                    Some(item) => (item, item),
                    None => break,
                },
            };
            found.line = mark.line;
            found.column = mark.column + 1;
            found.lines.push(mark.line);
            node = next;
        }
        found
    }
}

/// The position of a path in the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) line: usize,
    pub(crate) column: usize,
    /// The lines of the document's start and of all parts of the path.
    pub(crate) lines: Vec<usize>,
}

/// A comment in a text.
#[derive(Clone, Debug)]
pub(crate) struct Comment {
    pub(crate) line: usize,
    /// Whether the line has nothing else.
    pub(crate) alone: bool,
    /// The text after the `#`.
    pub(crate) text: String,
}

/// Returns the root of each document of a text but for the empty ones, as the parser of values counts them.
///
/// # Errors
/// The text is not YAML.
pub(crate) fn documents(text: &str) -> Result<Vec<Node>, ScanError> {
    parse(text).map(|(roots, _)| roots)
}

/// Returns the root of each document of a text but for the empty ones, and the comments.
///
/// # Errors
/// The text is not YAML.
pub(crate) fn parse(text: &str) -> Result<(Vec<Node>, Vec<Comment>), ScanError> {
    let mut roots = Vec::new();
    let mut comments = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for next in Parser::new_from_str(text) {
        let (event, span) = next?;
        let node = match event {
            Event::Comment(content, _) => {
                let at = bytes(span).start;
                let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
                comments.push(Comment {
                    line: span.start.line(),
                    alone: text[line..at].trim().is_empty(),
                    text: content.into_owned(),
                });
                continue;
            }
            Event::MappingStart(style, ..) => {
                open.push(Open::new(span, style, true));
                continue;
            }
            Event::SequenceStart(style, ..) => {
                open.push(Open::new(span, style, false));
                continue;
            }
            Event::MappingEnd | Event::SequenceEnd => match open.pop() {
                Some(collection) => collection.close(text, span),
                None => continue,
            },
            // An empty document, which has no value.
            Event::Scalar(content, ScalarStyle::Plain, _, None)
                if open.is_empty() && is_null(&content) =>
            {
                continue;
            }
            Event::Scalar(content, style, ..) => {
                let mut bytes = bytes(span);
                // The parser ends a block scalar at the next token; trailing blank lines are not part of its text.
                let own = text.get(bytes.clone()).unwrap_or_default();
                bytes.end = bytes.start + own.trim_end().len();
                leaf(
                    span,
                    bytes,
                    Shape::Scalar {
                        text: content.into_owned(),
                        style,
                    },
                )
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => leaf(span, bytes(span), Shape::Alias),
            _ => continue,
        };
        match open.last_mut() {
            Some(parent) => parent.children.push(node),
            None => roots.push(node),
        }
    }
    Ok((roots, comments))
}

/// Returns whether an unquoted scalar is null.
fn is_null(text: &str) -> bool {
    text.is_empty() || text == "~" || text.eq_ignore_ascii_case("null")
}

/// A collection whose end is not read yet.
struct Open {
    span: Span,
    flow: bool,
    map: bool,
    children: Vec<Node>,
}

impl Open {
    fn new(span: Span, style: StructureStyle, map: bool) -> Self {
        Open {
            span,
            flow: style == StructureStyle::Flow,
            map,
            children: Vec::new(),
        }
    }

    fn close(self, text: &str, end: Span) -> Node {
        let mut range = bytes(self.span);
        let (mut line, mut column) = (self.span.start.line(), self.span.start.col());
        range.end = match (self.flow, self.children.last()) {
            (false, Some(last)) => last.bytes.end,
            _ => bytes(end).end,
        };
        // The parser may start a block map at its anchor or tag; the map is taken to start at its first key.
        if let (true, false, Some(first)) = (self.map, self.flow, self.children.first()) {
            (line, column) = (first.line, first.column);
            range.start = first.bytes.start;
        }
        // The parser does not report the first dash of a list that is not indented, so it is searched in the text.
        if let (false, false, Some(first)) = (self.map, self.flow, self.children.first())
            && let Some(dash) = text[..first.bytes.start].rfind('-')
        {
            range.start = dash;
            let start = text[..dash].rfind('\n').map_or(0, |at| at + 1);
            column = text[start..dash].chars().count();
        }
        let shape = if self.map {
            let mut entries = Vec::with_capacity(self.children.len() / 2);
            let mut children = self.children.into_iter();
            while let (Some(key), Some(mut value)) = (children.next(), children.next()) {
                // For `key:` without a value, the parser puts the value at the next token; it belongs after the colon.
                if value.bytes.is_empty() && matches!(value.shape, Shape::Scalar { .. }) {
                    let colon = text[key.bytes.end..].find(':').unwrap_or_default();
                    let end = key.bytes.end + colon + 1;
                    value.bytes = end..end;
                }
                entries.push((key, value));
            }
            Shape::Map {
                entries,
                flow: self.flow,
            }
        } else {
            Shape::List {
                items: self.children,
                flow: self.flow,
            }
        };
        Node {
            bytes: range,
            column,
            line,
            shape,
        }
    }
}

fn leaf(span: Span, bytes: Range<usize>, shape: Shape) -> Node {
    Node {
        bytes,
        column: span.start.col(),
        line: span.start.line(),
        shape,
    }
}

fn bytes(span: Span) -> Range<usize> {
    span.byte_range().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_where_they_stand() {
        let text = "# head\na:\n  b: [1, {c: d}]\n  e: |\n    text\n\n---\n- x\n";
        let roots = documents(text).expect("YAML");
        let root = &roots[0];
        let path = Path::of(&["a", "b"]).index(1).key("c");
        let found = root.locate(&path);
        assert_eq!(
            (found.line, found.column, found.lines.as_slice()),
            (3, 11, &[2, 2, 3, 3, 3][..])
        );
        let (_, block) = root
            .entry("a")
            .and_then(|(_, a)| a.entry("e"))
            .expect("there");
        assert!(text[block.bytes.clone()].ends_with("text"));
        let list = &roots[1];
        assert_eq!((list.line, list.column), (8, 0));
    }

    #[test]
    fn empty_documents_do_not_count_as_for_the_parser_of_values() {
        for text in [
            "---\n---\na: 1\n",
            "---\n# nothing\n---\na: 1\n---\n",
            "null\n---\n~\n---\na: 1\n...\n---\n''\n",
            "a: 1\n---\nb: 2\n",
            "!!str\n---\na: 1\n",
            "",
        ] {
            let values: Vec<serde_json::Value> = serde_saphyr::from_multiple(text).expect("YAML");
            let roots = documents(text).expect("YAML");
            assert_eq!(roots.len(), values.len(), "{text}");
            let is_map = |root: &Node| matches!(root.shape, Shape::Map { .. });
            let maps: Vec<_> = roots.iter().map(is_map).collect();
            let expected: Vec<_> = values.iter().map(serde_json::Value::is_object).collect();
            assert_eq!(maps, expected, "{text}");
        }
    }
}
