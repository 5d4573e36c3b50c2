//! The schema table: the type information that decoding, pruning, patches, protobuf and field ownership share.
//!
//! Built-in types come from `table.tsv`, which `scripts/generate-schema.py` generates from `data/`; [`descriptions`] says what their fields
//! mean. Structural schemas of custom resources ([`structural`]) are converted to the same structures at run time. A [`Type`] is a cheap
//! handle to a node of either.
//!
//! [`decode`] and [`proto`] decode bodies into trees as Go would encode them again; [`merge`] patches trees; [`ownership`] maintains
//! `metadata.managedFields`.
//!
//! Layer: above `mullion-kube-text`, which is the only crate of Mullion that it imports. It knows the fields of kinds, but no defaults and
//! no rules of theirs.
//!
//! Architecture invariant: no clock, environment, files, network or threads. A result depends on the arguments and the table alone.

// Each `expect` names the invariant that holds; tests may use `unwrap`.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use serde_json::Value;

#[cfg(test)]
pub(crate) mod choices;
pub mod decode;
pub mod descriptions;
pub mod merge;
pub mod ownership;
pub mod proto;
pub mod raw_field;
pub mod structural;
mod table;
pub mod time;
pub mod tree;
mod zero;

pub use zero::normalise;

type Text = Cow<'static, str>;

/// A handle to a type's schema; cloning it copies two words.
#[derive(Clone)]
pub struct Type {
    arena: Arc<Arena>,
    id: TypeId,
}

/// The index of a node in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeId(pub(crate) u32);

/// The types of one table. They refer to each other by index, so types may be recursive.
#[derive(Debug, Default)]
pub struct Arena {
    nodes: Vec<Node>,
    /// For each type, whether it [`Arena::holds_keyed_lists`]; computed on first use.
    keyed: OnceLock<Vec<bool>>,
}

/// A type.
#[derive(Clone, Debug)]
pub enum Node {
    /// An object with named fields.
    Struct(Struct),
    /// An object with arbitrary keys and values of one type.
    Map {
        /// The type of the values.
        value: TypeId,
        /// Whether server-side apply owns the map as one value.
        atomic: bool,
    },
    /// A list.
    List(List),
    /// A value without inner structure.
    Scalar(Scalar),
}

/// A type with named fields.
#[derive(Clone, Debug, Default)]
pub struct Struct {
    /// The full name, for example `api.core.v1.PodSpec`; empty for types of custom resources.
    pub name: Text,
    /// The fields, sorted by name.
    pub fields: Vec<Field>,
    /// Whether server-side apply owns the object as one value.
    pub atomic: bool,
    /// Whether unknown fields are kept (`x-kubernetes-preserve-unknown-fields`).
    pub preserve: bool,
    /// Whether nothing is known about the values of unknown fields: `additionalProperties` is a boolean.
    pub shallow: bool,
    /// Whether the object is an embedded resource (`x-kubernetes-embedded-resource`).
    pub embedded: bool,
    /// Whether values of other types than objects are valid too.
    pub any: bool,
    /// The type of the values of unknown fields, where the schema has both properties and `additionalProperties`.
    pub rest: Option<TypeId>,
    /// Whether values belong to a custom resource: they are kept as sent, not as Go structs would be written.
    pub custom: bool,
}

/// The name of a field with its first eight bytes as a number, which decide most comparisons of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    start: u64,
    text: Text,
}

impl Name {
    /// Creates a name.
    pub fn new(text: impl Into<Text>) -> Self {
        let text = text.into();
        Name {
            start: start(&text),
            text,
        }
    }
}

impl std::ops::Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// Returns a name's first eight bytes as a number that sorts like the name; shorter names are padded with zeros.
fn start(name: &str) -> u64 {
    let mut bytes = [0; 8];
    let length = name.len().min(8);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    u64::from_be_bytes(bytes)
}

/// A field of a [`Struct`].
#[derive(Clone, Debug)]
pub struct Field {
    /// The JSON name.
    pub name: Name,
    /// The type of its value.
    pub id: TypeId,
    /// How absent and zero values are written.
    pub presence: Presence,
    /// The Go type as reflection prints it, for error messages: `*v1.PodSpec`, `[]v1.Container`.
    pub go: Text,
    /// The protobuf tags from the outer message inwards (more than one for inlined structs); empty if protobuf lacks the field.
    pub tags: Vec<u32>,
    /// Whether OpenAPI documents list the field as required.
    pub required: bool,
    /// Whether strategic merge patch respects `$retainKeys` in this struct.
    pub retain_keys: bool,
    /// Whether strategic merge patch replaces the value, even if it is an object.
    pub replace: bool,
    /// The list or map type that the field declares (`atomic`, `granular`, `set`, `map`); empty if none.
    pub declared: Text,
    /// The field's position in the Go struct, which is the order in which Go writes fields; 0 in custom resources, which are sorted by
    /// name.
    pub place: u16,
}

/// How a field's absent and zero values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// `omitempty` on a value: a zero value is omitted.
    DropZero,
    /// `omitempty` on a pointer: omitted only when absent.
    Optional,
    /// Always written.
    Always,
    /// Always written, as null when absent or empty.
    Null,
    /// Always written, as null when absent; an empty list stays.
    NullIfAbsent,
    /// A custom resource's field: written as sent.
    Verbatim,
}

/// A list, and how its items are identified.
#[derive(Clone, Debug)]
pub struct List {
    /// The type of the items.
    pub item: TypeId,
    /// The list type for server-side apply.
    pub kind: ListKind,
    /// Whether the list type is declared, and not just the default.
    pub declared: bool,
    /// The key fields of a [`ListKind::Map`].
    pub keys: Vec<Text>,
    /// The defaults of keys that an item omits.
    pub key_defaults: Vec<(Text, Value)>,
    /// The merge key of strategic merge patch; `None` for lists of scalars and lists that are replaced.
    pub merge_key: Option<Text>,
    /// Whether strategic merge patch merges the list instead of replacing it.
    pub merge: bool,
    /// Whether strategic merge patch respects `$retainKeys` in the items.
    pub retain_keys: bool,
}

/// The list type for server-side apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// The list is one value.
    Atomic,
    /// Each item is one value, which may appear once.
    Set,
    /// Items are objects, identified by their keys.
    Map,
}

/// The types without inner structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// A string.
    String,
    /// A boolean.
    Bool,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A floating-point number.
    Double,
    /// Base64 in JSON, raw bytes in protobuf.
    Bytes,
    /// A `resource.Quantity` in its canonical form.
    Quantity,
    /// An integer or a string.
    IntOrString,
    /// A time in RFC 3339, UTC, with whole seconds.
    Time,
    /// A time in RFC 3339, UTC, with microseconds.
    MicroTime,
    /// An arbitrary object.
    RawExtension,
    /// A set of field paths in `managedFields`.
    FieldsV1,
    /// Any JSON value.
    Json,
    /// A boolean or a JSON schema.
    SchemaOrBool,
    /// A JSON schema or a list of them.
    SchemaOrArray,
    /// A JSON schema or a list of property names.
    SchemaOrStrings,
}

/// Returns the prefix of an apiVersion's types in the table, for example `api.core.v1`; `None` for groups outside Kubernetes.
fn package(api_version: &str) -> Option<String> {
    const PLAIN: [&str; 5] = ["apps", "autoscaling", "batch", "extensions", "policy"];
    let Some((group, version)) = api_version.split_once('/') else {
        return Some(format!("api.core.{api_version}"));
    };
    let package = match group {
        "apiextensions.k8s.io" => "apiextensions-apiserver.pkg.apis.apiextensions",
        "apiregistration.k8s.io" => "kube-aggregator.pkg.apis.apiregistration",
        plain if PLAIN.contains(&plain) => return Some(format!("api.{plain}.{version}")),
        other => {
            // For example `rbac.authorization.k8s.io` is `api.rbac`, and `flowcontrol.apiserver.k8s.io` is
            // `api.flowcontrol`.
            let own = other.strip_suffix(".k8s.io")?;
            let own = own.strip_suffix(".authorization").unwrap_or(own);
            let own = own.strip_suffix(".apiserver").unwrap_or(own);
            // `autoscaling.k8s.io` is the group of the VerticalPodAutoscaler, not Kubernetes' own `autoscaling`.
            let is_own = !own.contains('.') && own != "core" && !PLAIN.contains(&own);
            return is_own.then(|| format!("api.{own}.{version}"));
        }
    };
    Some(format!("{package}.{version}"))
}

impl Type {
    /// Returns the built-in type of that name, for example `api.core.v1.Pod`.
    pub fn builtin(name: &str) -> Option<Type> {
        let table = table::builtin();
        table.names.get(name).map(|&id| Type {
            arena: table.arena.clone(),
            id,
        })
    }

    /// Returns the built-in type of a kind in an apiVersion such as `apps/v1`.
    pub fn builtin_kind(api_version: &str, kind: &str) -> Option<Type> {
        Type::builtin(&format!("{}.{kind}", package(api_version)?))
    }

    /// Returns whether the table has any kind of that apiVersion.
    pub fn has_builtin_version(api_version: &str) -> bool {
        let Some(package) = package(api_version) else {
            return false;
        };
        let mut names = table::builtin().names.keys();
        names.any(|name| {
            let kind = name.strip_prefix(&package);
            kind.is_some_and(|kind| kind.starts_with('.'))
        })
    }

    /// Returns all built-in types.
    pub fn every_builtin() -> impl Iterator<Item = Type> {
        table::builtin()
            .names
            .keys()
            .filter_map(|name| Type::builtin(name))
    }

    /// Returns a type of an arena that was created at run time.
    pub fn of(arena: Arc<Arena>, id: TypeId) -> Type {
        Type { arena, id }
    }

    /// Returns the type's node.
    pub fn node(&self) -> &Node {
        self.arena.node(self.id)
    }

    /// Returns the arena that the type belongs to.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns the type's index in [`Type::arena`].
    pub fn id(&self) -> TypeId {
        self.id
    }

    /// Returns another type of the same arena.
    pub fn sibling(&self, id: TypeId) -> Type {
        Type {
            arena: self.arena.clone(),
            id,
        }
    }

    /// Returns the type of a field.
    pub fn field(&self, name: &str) -> Option<Type> {
        let Node::Struct(fields) = self.node() else {
            return None;
        };
        fields.field(name).map(|field| Type {
            arena: self.arena.clone(),
            id: field.id,
        })
    }

    /// Returns whether the type's objects are custom resources, which are kept as sent.
    pub fn is_custom(&self) -> bool {
        matches!(self.node(), Node::Struct(Struct { custom: true, .. }))
    }
}

impl std::fmt::Debug for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.node() {
            Node::Struct(fields) => write!(f, "Type({})", fields.name),
            node => write!(f, "Type({node:?})"),
        }
    }
}

impl Arena {
    /// Returns the node at an index.
    pub fn node(&self, id: TypeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Adds a node and returns its index.
    pub fn push(&mut self, node: Node) -> TypeId {
        let id =
            TypeId(u32::try_from(self.nodes.len()).expect("an arena holds fewer than 2^32 types"));
        self.nodes.push(node);
        id
    }

    /// Returns whether values of a type can contain keyed lists. Must not be called before the arena is complete.
    fn holds_keyed_lists(&self, id: TypeId) -> bool {
        let keyed = self.keyed.get_or_init(|| {
            let mut keyed = vec![false; self.nodes.len()];
            // Types may be recursive, so propagate the result until nothing changes.
            loop {
                let before = keyed.clone();
                for (at, node) in self.nodes.iter().enumerate() {
                    let below = |id: &TypeId| before[id.0 as usize];
                    keyed[at] = match node {
                        Node::Struct(fields) => {
                            let mut types = fields.fields.iter().map(|field| &field.id);
                            types.any(below) || fields.rest.as_ref().is_some_and(below)
                        }
                        Node::Map { value, .. } => below(value),
                        Node::List(list) => list.kind == ListKind::Map || below(&list.item),
                        Node::Scalar(_) => false,
                    };
                }
                if keyed == before {
                    return keyed;
                }
            }
        });
        keyed[id.0 as usize]
    }

    /// Replaces a node; used to close the cycle of a recursive type.
    pub(crate) fn set(&mut self, id: TypeId, node: Node) {
        self.nodes[id.0 as usize] = node;
    }
}

impl Field {
    /// Returns whether the field is written even if it is absent.
    fn is_always_written(&self) -> bool {
        use Presence::{Always, Null, NullIfAbsent};
        matches!(self.presence, Always | Null | NullIfAbsent)
    }
}

impl Struct {
    /// Returns the field of that name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let start = start(name);
        let order = |field: &Field| {
            let starts = field.name.start.cmp(&start);
            starts.then_with(|| (*field.name).cmp(name))
        };
        let at = self.fields.binary_search_by(order).ok()?;
        Some(&self.fields[at])
    }

    /// Returns Go's name of the struct without its package, for example `PodSpec`.
    pub fn go_name(&self) -> &str {
        let start = self.name.bytes().rposition(|byte| byte == b'.');
        start.map_or(&*self.name, |dot| &self.name[dot + 1..])
    }

    /// Returns Go's name of the struct as reflection prints it, for example `v1.PodSpec`.
    pub fn go_type(&self) -> &str {
        let mut dots = self.name.rmatch_indices('.');
        match (dots.next(), dots.next()) {
            (Some(_), Some((at, _))) => &self.name[at + 1..],
            _ => &self.name,
        }
    }
}
