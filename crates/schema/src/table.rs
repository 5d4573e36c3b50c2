//! The built-in types, parsed once from the generated `table.tsv`.
//!
//! The text is part of the binary, and its strings are borrowed. `scripts/generate-schema.py` writes the file and documents its format; a
//! line that this parser does not understand is a bug in one of the two and panics.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use rustc_hash::FxHashMap;

use super::{Arena, Field, List, ListKind, Name, Node, Presence, Scalar, Struct, TypeId, zero};

static TEXT: &str = include_str!("table.tsv");

/// The built-in types and their names.
pub(super) struct Table {
    pub(super) arena: Arc<Arena>,
    pub(super) names: FxHashMap<&'static str, TypeId>,
}

/// Returns the table, which is parsed on first use.
pub(super) fn builtin() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| read(TEXT));
    &TABLE
}

struct Reader {
    arena: Arena,
    names: FxHashMap<&'static str, TypeId>,
    scalars: FxHashMap<u8, TypeId>,
    /// Nodes that copy another struct but are granular: each of their fields has its own owners.
    granular: Vec<(TypeId, TypeId)>,
}

fn read(text: &'static str) -> Table {
    let mut reader = Reader {
        arena: Arena::default(),
        names: FxHashMap::default(),
        scalars: FxHashMap::default(),
        granular: Vec::new(),
    };
    // First give every struct an index, because fields refer to structs that come later in the table.
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('=') {
            let (name, atomic) = name
                .split_once('\t')
                .map_or((name, false), |(name, _)| (name, true));
            let fields = Struct {
                name: Cow::Borrowed(name),
                atomic,
                ..Struct::default()
            };
            let id = reader.arena.push(Node::Struct(fields));
            reader.names.insert(name, id);
        }
    }
    let mut owner = None;
    let mut fields = Vec::new();
    // One more line, which completes the last struct.
    for line in text.lines().chain(["="]) {
        let Some(name) = line.strip_prefix('=') else {
            let place = fields.len() as u16;
            fields.push(reader.field(line, place));
            continue;
        };
        if let Some(id) = owner
            .replace(name.split('\t').next().unwrap_or_default())
            .and_then(|name| reader.names.get(name).copied())
        {
            let Node::Struct(opened) = reader.arena.node(id) else {
                unreachable!("names only point to structs")
            };
            // Fields are found by binary search; `place` preserves the order of the Go struct.
            fields.sort_unstable_by(|one: &Field, other| one.name.cmp(&other.name));
            let filled = Struct {
                fields: std::mem::take(&mut fields),
                ..opened.clone()
            };
            reader.arena.set(id, Node::Struct(filled));
        }
    }
    // Now that all structs are filled, make their granular copies.
    for (copy, original) in std::mem::take(&mut reader.granular) {
        if let Node::Struct(fields) = reader.arena.node(original).clone() {
            reader.arena.set(
                copy,
                Node::Struct(Struct {
                    atomic: false,
                    ..fields
                }),
            );
        }
    }
    default_keys(&mut reader.arena);
    Table {
        arena: Arc::new(reader.arena),
        names: reader.names,
    }
}

/// Adds defaults for the list keys that Go always writes: the zero value of the key's type. kube-apiserver's OpenAPI
/// documents have the same defaults, and server-side apply identifies an item without its key by them.
fn default_keys(arena: &mut Arena) {
    for index in 0..arena.nodes.len() {
        let Node::List(list) = &arena.nodes[index] else {
            continue;
        };
        let Node::Struct(item) = arena.node(list.item) else {
            continue;
        };
        let has_default = |key: &str| list.key_defaults.iter().any(|(own, _)| own == key);
        let missing = list.keys.iter().filter(|key| !has_default(key));
        let zeros: Vec<_> = missing
            .filter_map(|key| item.field(key))
            .filter(|field| field.presence == Presence::Always)
            .map(|field| (field.name.text.clone(), zero::zero(arena, field.id)))
            .collect();
        if let Node::List(list) = &mut arena.nodes[index] {
            list.key_defaults.extend(zeros);
        }
    }
}

impl Reader {
    fn field(&mut self, line: &'static str, place: u16) -> Field {
        let mut cells = line.split('\t');
        let mut next = || cells.next().unwrap_or_default();
        let (name, expression, presence, go) = (next(), next(), next(), next());
        let (tags, flags, listing, keys, merge_key, strategy) =
            (next(), next(), next(), next(), next(), next());
        let traits = Traits {
            listing,
            keys,
            merge_key,
            strategy,
        };
        Field {
            name: Name::new(name),
            id: self.expression(expression, &traits),
            presence: match presence {
                "o" => Presence::DropZero,
                "p" => Presence::Optional,
                "v" => Presence::Always,
                "n" => Presence::Null,
                "e" => Presence::NullIfAbsent,
                other => unreachable!("table.tsv: presence {other:?}"),
            },
            go: Cow::Borrowed(go),
            tags: tags.split('.').filter_map(|tag| tag.parse().ok()).collect(),
            required: flags.contains('r'),
            retain_keys: strategy == "retainKeys",
            replace: strategy == "replace",
            declared: Cow::Borrowed(listing),
            place,
        }
    }

    fn expression(&mut self, text: &'static str, traits: &Traits) -> TypeId {
        if let Some(item) = text.strip_prefix("[]") {
            let keys = || traits.keys.split(',').filter(|key| !key.is_empty());
            let list = List {
                item: self.expression(item, &Traits::default()),
                kind: match traits.listing {
                    "map" => ListKind::Map,
                    "set" => ListKind::Set,
                    _ => ListKind::Atomic,
                },
                declared: !traits.listing.is_empty(),
                keys: keys()
                    .map(|key| Cow::Borrowed(key.split('=').next().unwrap_or(key)))
                    .collect(),
                key_defaults: keys()
                    .filter_map(|key| key.split_once('='))
                    .map(|(key, default)| (Cow::Borrowed(key), default.into()))
                    .collect(),
                merge_key: (!traits.merge_key.is_empty())
                    .then_some(Cow::Borrowed(traits.merge_key)),
                merge: traits
                    .strategy
                    .split(',')
                    .any(|strategy| strategy == "merge"),
                retain_keys: traits
                    .strategy
                    .split(',')
                    .any(|strategy| strategy == "retainKeys"),
            };
            return self.arena.push(Node::List(list));
        }
        if let Some(value) = text.strip_prefix("{}") {
            let value = self.expression(value, &Traits::default());
            return self.arena.push(Node::Map {
                value,
                atomic: traits.listing == "atomic",
            });
        }
        if let Some(name) = text.strip_prefix('@') {
            let original = self.names[name];
            // A field may be granular although its struct is atomic in other fields.
            if traits.listing != "granular" {
                return original;
            }
            let copy = self.arena.push(Node::Struct(Struct::default()));
            self.granular.push((copy, original));
            return copy;
        }
        let letter = text.as_bytes()[0];
        if let Some(&id) = self.scalars.get(&letter) {
            return id;
        }
        let id = self.arena.push(Node::Scalar(scalar(letter)));
        self.scalars.insert(letter, id);
        id
    }
}

#[derive(Default)]
struct Traits {
    listing: &'static str,
    keys: &'static str,
    merge_key: &'static str,
    strategy: &'static str,
}

fn scalar(letter: u8) -> Scalar {
    match letter {
        b's' => Scalar::String,
        b'b' => Scalar::Bool,
        b'i' => Scalar::Int32,
        b'l' => Scalar::Int64,
        b'd' => Scalar::Double,
        b'B' => Scalar::Bytes,
        b'Q' => Scalar::Quantity,
        b'I' => Scalar::IntOrString,
        b't' => Scalar::Time,
        b'm' => Scalar::MicroTime,
        b'r' => Scalar::RawExtension,
        b'f' => Scalar::FieldsV1,
        b'j' => Scalar::Json,
        b'x' => Scalar::SchemaOrBool,
        b'y' => Scalar::SchemaOrArray,
        b'z' => Scalar::SchemaOrStrings,
        other => unreachable!("table.tsv: type letter {:?}", other as char),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Type;

    #[test]
    fn a_pod_knows_its_merge_keys_list_types_and_inlined_protobuf_tags() {
        let pod = Type::builtin("api.core.v1.Pod").expect("pods are built in");
        let spec = pod.field("spec").expect("pods have a spec");
        let Node::Struct(fields) = spec.node() else {
            panic!("spec is a struct")
        };
        assert_eq!(fields.go_type(), "v1.PodSpec");
        let containers = fields.field("containers").expect("it has containers");
        assert!(containers.required && containers.presence == Presence::Null);
        let Node::List(list) = spec.arena().node(containers.id) else {
            panic!("containers is a list")
        };
        assert_eq!(
            (list.kind, list.merge_key.as_deref()),
            (ListKind::Map, Some("name"))
        );
        let volume = Type::builtin("api.core.v1.Volume").expect("volumes are built in");
        let Node::Struct(fields) = volume.node() else {
            panic!("a volume is a struct")
        };
        assert_eq!(
            fields
                .field("hostPath")
                .expect("volumes can be host paths")
                .tags,
            [2, 1]
        );
    }

    #[test]
    fn every_reference_in_the_table_resolves() {
        assert!(
            builtin().names.len() > 700,
            "only {} types",
            builtin().names.len()
        );
    }
}
