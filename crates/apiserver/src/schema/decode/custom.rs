//! Custom resources: kept as sent, except that fields their schema does not know are pruned and metadata is read as ObjectMeta.
//!
//! Pruning follows upstream's structural pruning: `x-kubernetes-preserve-unknown-fields` keeps everything that no property describes,
//! embedded resources keep apiVersion, kind and metadata.

use serde::de::DeserializeSeed;
use serde_json::Value;

use super::{DecodeError, Decoded, Problem, json_kind, walk::Walker};
use crate::schema::{Arena, Node, Presence, Type, TypeId};

/// Checks and prunes the tree of a custom resource.
pub(super) fn decode(
    kind: &Type,
    mut tree: Value,
    mut problems: Vec<Problem>,
) -> Result<Decoded, DecodeError> {
    let Value::Object(map) = &mut tree else {
        let found = json_kind(&tree);
        let place = "Go value of type ".to_owned();
        return Err(DecodeError::Type {
            value: found.to_owned(),
            place,
            go: "map[string]interface {}".to_owned(),
        });
    };
    if let Some(meta) = kind.field("metadata") {
        let sent = map.remove("metadata").unwrap_or(Value::Null);
        let mut walker = Walker::below(&meta, "metadata");
        let read = walker.seed(&meta).deserialize(sent);
        let decoded = match read {
            Ok(value) => walker.finish(value)?,
            Err(error) => {
                return Err(walker
                    .failed()
                    .unwrap_or_else(|| DecodeError::Syntax(error.to_string())));
            }
        };
        problems.extend(decoded.problems);
        let value = if decoded.value.is_null() {
            Value::Object(serde_json::Map::new())
        } else {
            decoded.value
        };
        map.insert("metadata".to_owned(), value);
    }
    prune(
        kind.arena(),
        kind.id(),
        &mut tree,
        &mut String::new(),
        &mut problems,
    );
    Ok(Decoded {
        value: tree,
        problems,
    })
}

pub(super) fn prune(
    arena: &Arena,
    id: TypeId,
    value: &mut Value,
    path: &mut String,
    problems: &mut Vec<Problem>,
) {
    match (arena.node(id), value) {
        (Node::Struct(fields), Value::Object(map)) => {
            if !fields.preserve && fields.rest.is_none() {
                map.retain(|key, _| {
                    let known = fields.field(key).is_some();
                    if !known {
                        problems.push(Problem::Unknown(if path.is_empty() {
                            key.clone()
                        } else {
                            format!("{path}.{key}")
                        }));
                    }
                    known
                });
            }
            for (key, value) in map.iter_mut() {
                let field = fields.field(key);
                if field.is_some_and(|field| field.presence != Presence::Verbatim) {
                    continue;
                }
                if let Some(id) = field.map(|field| field.id).or(fields.rest) {
                    below(arena, id, value, key, path, problems);
                }
            }
        }
        (Node::Map { value: item, .. }, Value::Object(map)) => {
            for (key, value) in map.iter_mut() {
                below(arena, *item, value, key, path, problems);
            }
        }
        (Node::List(list), Value::Array(items)) => {
            for (index, value) in items.iter_mut().enumerate() {
                let length = path.len();
                path.push_str(&format!("[{index}]"));
                prune(arena, list.item, value, path, problems);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

fn below(
    arena: &Arena,
    id: TypeId,
    value: &mut Value,
    key: &str,
    path: &mut String,
    problems: &mut Vec<Problem>,
) {
    let length = path.len();
    if length > 0 {
        path.push('.');
    }
    path.push_str(key);
    prune(arena, id, value, path, problems);
    path.truncate(length);
}
