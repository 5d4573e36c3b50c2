//! Creates the text of a change: finds the bytes that stand for a field, and writes the new ones in the notation around them.

use granit_parser::ScalarStyle;
use serde_json::{Map, Value};

use super::{
    edit::Edit,
    render,
    tree::{Node, Shape},
};
use crate::check::path::Step;

/// Creates the changed text.
pub(super) struct Editor<'t> {
    pub(super) text: &'t str,
}

impl Editor<'_> {
    pub(super) fn change(&self, root: &Node, edit: &Edit) -> Option<String> {
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
