//! Decodes custom resources: they are kept as sent, except that unknown fields are pruned and metadata is decoded as ObjectMeta.
//!
//! The rules are those of structural pruning: `x-kubernetes-preserve-unknown-fields` keeps everything that no property describes, and
//! embedded resources keep apiVersion, kind and metadata. Embedded metadata is decoded as ObjectMeta too, and refused if it is invalid
//! (k8s.io/apiextensions-apiserver/pkg/apiserver/schema: pruning, objectmeta).

use mullion_kube_text::field::{Emptied, Errors, Path};
use serde::de::DeserializeSeed;
use serde_json::Value;

use super::{
    DecodeError, Decoded, Problem, json_kind,
    walk::{MAX_PATH_BYTES, Walker},
};
use crate::{Arena, Node, Presence, Scalar, Struct, Type, TypeId};

const OBJECT_META: &str = "apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Decodes and prunes the tree of a custom resource.
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
        // Metadata is a Go struct in custom resources too, so it is decoded like one.
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
    let mut pruning = Pruning::new(kind.arena(), Metadata::Read);
    let misfit = pruning.value(kind.id(), &mut tree).err();
    // kube-apiserver reports pruned fields sorted, and those of embedded metadata after them.
    pruning.unknown.sort_unstable();
    let unknown = pruning.unknown.into_iter().chain(pruning.in_metadata);
    problems.extend(unknown.map(Problem::Unknown));
    match misfit {
        Some(misfit) => Err(misfit.into()),
        None => Ok(Decoded {
            value: tree,
            problems,
            emptied: Emptied::default(),
        }),
    }
}

/// Prunes the fields that a schema does not know; invalid types and metadata of embedded resources stay.
pub(super) fn prune(kind: &Type, value: &mut Value, metadata: Metadata) {
    let pruned = Pruning::new(kind.arena(), metadata).value(kind.id(), value);
    debug_assert!(pruned.is_ok() || metadata == Metadata::Read);
}

/// How the metadata of embedded resources is treated.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Metadata {
    /// Decoded as ObjectMeta, and refused if it is invalid.
    Read,
    /// Pruned of the fields that ObjectMeta does not have.
    Pruned,
    /// Kept unchanged.
    Kept,
}

/// A walk over a custom resource.
struct Pruning<'s> {
    arena: &'s Arena,
    metadata: Metadata,
    /// The current path, as strict errors write it.
    path: String,
    /// The total length in bytes of the paths recorded so far.
    path_bytes: usize,
    /// The paths of the fields that were dropped.
    unknown: Vec<String>,
    /// The paths of the fields that were dropped from embedded metadata.
    in_metadata: Vec<String>,
}

/// An invalid type or invalid metadata of an embedded resource. The path is built while the walk returns.
struct EmbeddedError {
    path: String,
    value: Value,
    why: String,
}

impl EmbeddedError {
    fn below(mut self, step: impl std::fmt::Display) -> EmbeddedError {
        let dot = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path = format!("{step}{dot}{}", self.path);
        self
    }
}

impl From<EmbeddedError> for DecodeError {
    fn from(misfit: EmbeddedError) -> Self {
        let mut errors = Errors::default();
        errors.invalid(&Path::new(&misfit.path), misfit.value, misfit.why);
        DecodeError::Embedded(errors.aggregate())
    }
}

type PruneResult = Result<(), EmbeddedError>;

impl<'s> Pruning<'s> {
    fn new(arena: &'s Arena, metadata: Metadata) -> Self {
        Pruning {
            arena,
            metadata,
            path: String::new(),
            path_bytes: 0,
            unknown: Vec::new(),
            in_metadata: Vec::new(),
        }
    }

    fn value(&mut self, id: TypeId, value: &mut Value) -> PruneResult {
        match (self.arena.node(id), value) {
            (Node::Struct(fields), Value::Object(map)) => self.object(fields, map)?,
            (Node::Map { value: item, .. }, Value::Object(map)) => {
                for (key, value) in map.iter_mut() {
                    let below = self.field(*item, key, value);
                    below.map_err(|misfit| misfit.below(format_args!("[{key}]")))?;
                }
            }
            (Node::List(list), Value::Array(items)) => {
                for (index, value) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.path.push_str(&format!("[{index}]"));
                    let below = self.value(list.item, value);
                    self.path.truncate(length);
                    below.map_err(|misfit| misfit.below(format_args!("[{index}]")))?;
                }
            }
            (Node::Struct(fields), _) if fields.preserve => {}
            (Node::Scalar(Scalar::Json), _) => {}
            // Where the schema has a scalar, an object has no known fields.
            (_, value) => self.nothing_known(value),
        }
        Ok(())
    }

    fn object(&mut self, fields: &Struct, map: &mut serde_json::Map<String, Value>) -> PruneResult {
        if !(fields.preserve || fields.shallow || fields.rest.is_some()) {
            let (path, unknown) = (&self.path, &mut self.unknown);
            let path_bytes = &mut self.path_bytes;
            map.retain(|key, _| {
                let known = fields.field(key).is_some();
                if !known && *path_bytes < MAX_PATH_BYTES {
                    *path_bytes += path.len() + key.len();
                    unknown.push(joined(path, key));
                }
                known
            });
        }
        for (key, value) in map.iter_mut() {
            let field = fields.field(key);
            // A field of a built-in type, such as the metadata, has been decoded already.
            if field.is_some_and(|field| field.presence != Presence::Verbatim) {
                continue;
            }
            let below = match (field, fields.rest) {
                (Some(field), _) if fields.embedded && is_meta(key) => {
                    self.meta(field.id, key, value)
                }
                (Some(field), _) => self.field(field.id, key, value),
                (None, Some(rest)) => {
                    let below = self.field(rest, key, value);
                    below.map_err(|misfit| misfit.below(format_args!("[{key}]")))?;
                    continue;
                }
                (None, None) if fields.shallow => {
                    let length = self.enter(key);
                    self.nothing_known(value);
                    self.path.truncate(length);
                    continue;
                }
                (None, None) => continue,
            };
            below.map_err(|misfit| misfit.below(key))?;
        }
        Ok(())
    }

    /// Checks the apiVersion, kind or metadata of an embedded resource.
    fn meta(&mut self, id: TypeId, key: &str, value: &mut Value) -> PruneResult {
        let misfit = |value: &Value, why: String| EmbeddedError {
            path: String::new(),
            value: value.clone(),
            why,
        };
        match (key, self.metadata) {
            ("metadata", Metadata::Read) => {}
            ("metadata", Metadata::Pruned) => return self.field(id, key, value),
            (_, Metadata::Read) if !value.is_string() => {
                return Err(misfit(value, "must be a string".to_owned()));
            }
            _ => return Ok(()),
        }
        let kind = Type::builtin(OBJECT_META).expect("the table has ObjectMeta");
        match super::value(&kind, value.clone()) {
            Err(error) => Err(misfit(value, error.to_string())),
            Ok(read) => {
                let path = joined(&self.path, key);
                for problem in read.problems {
                    if let Problem::Unknown(field) = problem {
                        self.in_metadata.push(joined(&path, &field));
                    }
                }
                *value = match read.value {
                    Value::Null => Value::Object(serde_json::Map::new()),
                    read => read,
                };
                Ok(())
            }
        }
    }

    fn field(&mut self, id: TypeId, key: &str, value: &mut Value) -> PruneResult {
        let length = self.enter(key);
        let below = self.value(id, value);
        self.path.truncate(length);
        below
    }

    /// Drops all fields of objects for which the schema has no description.
    fn nothing_known(&mut self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                let fields = map.keys().map(|key| joined(&self.path, key));
                self.unknown.extend(fields);
                map.clear();
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.path.push_str(&format!("[{index}]"));
                    self.nothing_known(item);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    /// Appends a field to the current path and returns the path's length before.
    fn enter(&mut self, key: &str) -> usize {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        length
    }
}

/// Returns whether every resource has this field.
fn is_meta(key: &str) -> bool {
    matches!(key, "apiVersion" | "kind" | "metadata")
}

fn joined(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}
