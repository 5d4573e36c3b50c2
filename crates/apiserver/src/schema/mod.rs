//! The schema table: the type information that decoding, pruning, patches, protobuf and field ownership share.
//!
//! Built-in types come from `table.tsv`, which `scripts/generate-schema.py` generates. Structural schemas of custom resources are
//! converted to the same structures at run time. A [`Type`] is a cheap handle to a node of either.
//!
//! [`decode`] and [`proto`] decode bodies into trees as Go would encode them again; [`merge`] patches trees; [`ownership`] maintains
//! `metadata.managedFields`.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use serde_json::Value;

#[cfg(test)]
pub(crate) mod choices;
pub mod decode;
pub(crate) mod descriptions;
pub mod merge;
pub mod ownership;
pub mod proto;
mod table;
pub mod time;
mod zero;

pub use zero::normalise;

type Text = Cow<'static, str>;

/// A handle to one type's schema: cloning it copies two words.
#[derive(Clone)]
pub struct Type {
    arena: Arc<Arena>,
    id: TypeId,
}

/// The index of a node in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeId(pub(crate) u32);

/// The types of one table; they refer to each other by index, so types may be recursive.
#[derive(Debug, Default)]
pub struct Arena {
    nodes: Vec<Node>,
    /// Which types [`Arena::holds_keyed_lists`]; found when first asked for.
    keyed: OnceLock<Vec<bool>>,
}

/// One type.
#[derive(Clone, Debug)]
pub enum Node {
    /// A fixed set of fields.
    Struct(Struct),
    /// String keys, one type of value.
    Map {
        /// The type of the values.
        value: TypeId,
        /// Server-side apply owns the map as one value.
        atomic: bool,
    },
    /// A list.
    List(List),
    /// A value without structure of its own.
    Scalar(Scalar),
}

/// A type with named fields.
#[derive(Clone, Debug, Default)]
pub struct Struct {
    /// The full name, as `api.core.v1.PodSpec`; empty for types of custom resources.
    pub name: Text,
    /// The fields, sorted by name.
    pub fields: Vec<Field>,
    /// Server-side apply owns it as one value.
    pub atomic: bool,
    /// Unknown fields are kept (`x-kubernetes-preserve-unknown-fields`).
    pub preserve: bool,
    /// Of what unknown fields hold nothing is known: `additionalProperties` is a truth value.
    pub shallow: bool,
    /// A resource inside of another one (`x-kubernetes-embedded-resource`).
    pub embedded: bool,
    /// Values of other types than objects are fine too.
    pub any: bool,
    /// The type of unknown fields' values, where `additionalProperties` gives one beside properties.
    pub rest: Option<TypeId>,
    /// Its values came from a custom resource: kept as sent, not as Go structs would write them.
    pub custom: bool,
}

/// The name of a field, with its first eight bytes at hand: most comparisons of a search need no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    start: u64,
    text: Text,
}

impl Name {
    /// A name.
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

/// A name's first eight bytes, zeros behind a shorter one, ordered as names are.
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
    /// What happens to absent and zero values.
    pub presence: Presence,
    /// The Go type as reflection prints it, for error texts: `*v1.PodSpec`, `[]v1.Container`.
    pub go: Text,
    /// Protobuf tags from the outer message inwards (more than one for inlined structs); empty when it does not travel.
    pub tags: Vec<u32>,
    /// OpenAPI calls it required.
    pub required: bool,
    /// A strategic merge honours `$retainKeys` in this struct.
    pub retain_keys: bool,
    /// A strategic merge replaces the value, also where it is an object.
    pub replace: bool,
    /// How server-side apply sees the value, in the words of documents (`atomic`, `granular`, `set`, `map`); empty where nothing is said.
    pub declared: Text,
    /// Its place in the Go struct, which is where Go writes it; 0 for all fields of custom resources, which go by name.
    pub place: u16,
}

/// What happens to a field's absent and zero values when an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// `omitempty` on a value: a zero value is dropped.
    DropZero,
    /// `omitempty` on a pointer: dropped only when absent.
    Optional,
    /// Always written.
    Always,
    /// Always written, as null when absent or empty.
    Null,
    /// Always written, as null when absent; an empty list stays.
    NullIfAbsent,
    /// A custom resource's field: exactly as sent.
    Verbatim,
}

/// A list and how its items are told apart.
#[derive(Clone, Debug)]
pub struct List {
    /// The type of the items.
    pub item: TypeId,
    /// How server-side apply sees it.
    pub kind: ListKind,
    /// Its kind is said, not only what lists are by default.
    pub declared: bool,
    /// The key fields of a [`ListKind::Map`].
    pub keys: Vec<Text>,
    /// What keys are when an item leaves them out.
    pub key_defaults: Vec<(Text, Value)>,
    /// The key of a strategic merge; `None` for lists of scalars and lists that are replaced.
    pub merge_key: Option<Text>,
    /// A strategic merge merges the list instead of replacing it.
    pub merge: bool,
    /// A strategic merge honours `$retainKeys` in the items.
    pub retain_keys: bool,
}

/// How server-side apply sees a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// One value.
    Atomic,
    /// Each item is one value, and is there at most once.
    Set,
    /// Items are objects, told apart by their keys.
    Map,
}

/// Values without structure of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Text.
    String,
    /// A truth value.
    Bool,
    /// 32 bits.
    Int32,
    /// 64 bits.
    Int64,
    /// A floating-point number.
    Double,
    /// Base64 in JSON, bytes in protobuf.
    Bytes,
    /// `resource.Quantity`, in its canonical form.
    Quantity,
    /// A number or a string.
    IntOrString,
    /// RFC 3339 in UTC, whole seconds.
    Time,
    /// RFC 3339 in UTC, microseconds.
    MicroTime,
    /// Any object.
    RawExtension,
    /// A set of field paths.
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

/// Where the table has the kinds of an apiVersion, as in `api.core.v1`; `None` for groups of users.
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
            let own = other.strip_suffix(".k8s.io")?;
            let own = own.strip_suffix(".authorization").unwrap_or(own);
            let own = own.strip_suffix(".apiserver").unwrap_or(own);
            return (!own.contains('.')).then(|| format!("api.{own}.{version}"));
        }
    };
    Some(format!("{package}.{version}"))
}

impl Type {
    /// The built-in type of that name in the table, as in `api.core.v1.Pod`.
    pub fn builtin(name: &str) -> Option<Type> {
        let table = table::builtin();
        table.names.get(name).map(|&id| Type {
            arena: table.arena.clone(),
            id,
        })
    }

    /// The type of a kind under that apiVersion (`apps/v1`), if the table has it.
    pub fn builtin_kind(api_version: &str, kind: &str) -> Option<Type> {
        Type::builtin(&format!("{}.{kind}", package(api_version)?))
    }

    /// Whether the table has any kind of that apiVersion.
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

    /// All built-in types.
    #[cfg(test)]
    pub(crate) fn every_builtin() -> impl Iterator<Item = Type> {
        table::builtin()
            .names
            .keys()
            .filter_map(|name| Type::builtin(name))
    }

    /// A type of an arena that was made at run time.
    pub fn of(arena: Arc<Arena>, id: TypeId) -> Type {
        Type { arena, id }
    }

    /// What the type is.
    pub fn node(&self) -> &Node {
        self.arena.node(self.id)
    }

    /// The types beside it.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Its index in [`Type::arena`].
    pub fn id(&self) -> TypeId {
        self.id
    }

    /// The type behind an index of the same arena.
    pub fn sibling(&self, id: TypeId) -> Type {
        Type {
            arena: self.arena.clone(),
            id,
        }
    }

    /// The type of a field.
    pub fn field(&self, name: &str) -> Option<Type> {
        let Node::Struct(fields) = self.node() else {
            return None;
        };
        fields.field(name).map(|field| Type {
            arena: self.arena.clone(),
            id: field.id,
        })
    }

    /// Whether its objects are custom resources, kept as sent.
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
    /// The node behind an index.
    pub fn node(&self, id: TypeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Adds a node.
    pub fn push(&mut self, node: Node) -> TypeId {
        let id =
            TypeId(u32::try_from(self.nodes.len()).expect("an arena holds fewer than 2^32 types"));
        self.nodes.push(node);
        id
    }

    /// Whether values of a type can have lists in them whose items are told apart by keys. Asked once the arena is complete.
    fn holds_keyed_lists(&self, id: TypeId) -> bool {
        let keyed = self.keyed.get_or_init(|| {
            let mut keyed = vec![false; self.nodes.len()];
            // Types refer to each other in circles, so what is found is passed on until nothing new is.
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

    /// Replaces a node: how recursive types are tied.
    pub(crate) fn set(&mut self, id: TypeId, node: Node) {
        self.nodes[id.0 as usize] = node;
    }
}

impl Field {
    /// Whether objects have the field even where nothing was said.
    fn is_always_written(&self) -> bool {
        use Presence::{Always, Null, NullIfAbsent};
        matches!(self.presence, Always | Null | NullIfAbsent)
    }
}

impl Struct {
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let start = start(name);
        let order = |field: &Field| {
            let starts = field.name.start.cmp(&start);
            starts.then_with(|| (*field.name).cmp(name))
        };
        let at = self.fields.binary_search_by(order).ok()?;
        Some(&self.fields[at])
    }

    /// Go's name of the struct without its package: `PodSpec`.
    pub fn go_name(&self) -> &str {
        let start = self.name.bytes().rposition(|byte| byte == b'.');
        start.map_or(&*self.name, |dot| &self.name[dot + 1..])
    }

    /// Go's name of the struct as reflection prints it: `v1.PodSpec`.
    pub fn go_type(&self) -> &str {
        let mut dots = self.name.rmatch_indices('.');
        match (dots.next(), dots.next()) {
            (Some(_), Some((at, _))) => &self.name[at + 1..],
            _ => &self.name,
        }
    }
}
