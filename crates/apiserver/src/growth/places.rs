//! Finds the lists and maps of a type, and builds objects with many items in them.

use std::collections::HashSet;

use mullion_schema::{Arena, Node, Scalar, Type, TypeId};
use serde_json::{Map, Value, json};

/// A step from a value to one inside it.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// The value of a field of a struct.
    Field(String),
    /// An item of a list.
    Item,
    /// The value of an entry of a map.
    Entry,
}

/// The path of a list or map in an object.
#[derive(Clone, Debug)]
pub(super) struct Place {
    steps: Vec<Step>,
}

/// How items are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filling {
    /// Without any fields.
    Empty,
    /// With values in all fields, equal in all items.
    Equal,
    /// With values in all fields, different in each item.
    Distinct,
}

pub(super) const FILLINGS: [Filling; 3] = [Filling::Empty, Filling::Equal, Filling::Distinct];

/// Structs that are checked in one kind only, because all kinds share their code.
const SHARED: [&str; 3] = [
    "apimachinery.pkg.apis.meta.v1.ObjectMeta",
    "api.core.v1.PodSpec",
    "api.core.v1.PersistentVolumeClaimSpec",
];

impl Place {
    /// Returns all lists and maps of a type. `seen` holds the shared structs of types before it.
    pub(super) fn all(kind: &Type, seen: &mut HashSet<String>) -> Vec<Place> {
        let mut walk = Walk {
            arena: kind.arena(),
            seen,
            steps: Vec::new(),
            ids: Vec::new(),
            found: Vec::new(),
        };
        walk.visit(kind.id());
        walk.found
    }

    /// Returns the path in the form that clients write.
    pub(super) fn text(&self) -> String {
        let steps = self.steps.iter().map(|step| match step {
            Step::Field(name) => format!(".{name}"),
            Step::Item => "[0]".to_owned(),
            Step::Entry => "[k]".to_owned(),
        });
        steps.collect()
    }

    /// Puts `count` items into the list or map of an object.
    pub(super) fn fill(&self, kind: &Type, object: &mut Value, count: usize, filling: Filling) {
        let (arena, mut id, mut at) = (kind.arena(), kind.id(), object);
        for step in &self.steps {
            (id, at) = match (step, arena.node(id)) {
                (Step::Field(name), Node::Struct(fields)) => {
                    let field = fields.field(name).expect("places are made of the type");
                    // If the parent struct is absent, fill its other fields: they decide how the list is treated.
                    if !at.is_object() {
                        *at = sample(arena, id, 0, Filling::Equal, 1);
                    }
                    (field.id, &mut at[name])
                }
                (Step::Item, Node::List(list)) => {
                    if at.as_array().is_none_or(Vec::is_empty) {
                        *at = json!([null]);
                    }
                    (list.item, &mut at[0])
                }
                (Step::Entry, Node::Map { value, .. }) => {
                    if !at.is_object() {
                        *at = json!({});
                    }
                    (*value, &mut at["k"])
                }
                (step, _) => unreachable!("{step:?} is no step of the type"),
            };
        }
        *at = match arena.node(id) {
            Node::List(list) => {
                let items = (0..count).map(|index| sample(arena, list.item, index, filling, DEPTH));
                items.collect()
            }
            Node::Map { value, .. } => {
                let entries = (0..count).map(|index| {
                    (
                        format!("k{index}"),
                        sample(arena, *value, index, filling, DEPTH),
                    )
                });
                Value::Object(entries.collect())
            }
            _ => unreachable!("places are lists and maps"),
        };
    }
}

struct Walk<'a> {
    arena: &'a Arena,
    seen: &'a mut HashSet<String>,
    steps: Vec<Step>,
    ids: Vec<TypeId>,
    found: Vec<Place>,
}

impl Walk<'_> {
    fn visit(&mut self, id: TypeId) {
        // A recursive type is visited once.
        if self.ids.contains(&id) {
            return;
        }
        self.ids.push(id);
        match self.arena.node(id) {
            Node::Struct(fields) => {
                let is_shared = SHARED.contains(&&*fields.name);
                if !is_shared || self.seen.insert(fields.name.to_string()) {
                    for field in &fields.fields {
                        self.below(Step::Field(field.name.to_string()), field.id);
                    }
                }
            }
            Node::List(list) => {
                self.note();
                self.below(Step::Item, list.item);
            }
            Node::Map { value, .. } => {
                self.note();
                self.below(Step::Entry, *value);
            }
            Node::Scalar(_) => {}
        }
        self.ids.pop();
    }

    fn below(&mut self, step: Step, id: TypeId) {
        self.steps.push(step);
        self.visit(id);
        self.steps.pop();
    }

    fn note(&mut self) {
        self.found.push(Place {
            steps: self.steps.clone(),
        });
    }
}

/// How many levels deep the structs in items are filled.
const DEPTH: usize = 3;

/// Returns a sample value of a type.
fn sample(arena: &Arena, id: TypeId, index: usize, filling: Filling, depth: usize) -> Value {
    let index = if filling == Filling::Distinct {
        index
    } else {
        0
    };
    match arena.node(id) {
        Node::Struct(fields) => {
            let mut map = Map::new();
            if filling == Filling::Empty || depth == 0 {
                return Value::Object(map);
            }
            for field in &fields.fields {
                let value = match known(&field.name, index) {
                    Some(value) if is_text(arena, field.id) => value,
                    _ => sample(arena, field.id, index, filling, depth - 1),
                };
                map.insert(field.name.to_string(), value);
            }
            Value::Object(map)
        }
        Node::List(list) => match depth {
            0 => json!([]),
            _ => json!([sample(arena, list.item, index, filling, depth - 1)]),
        },
        Node::Map { value, .. } => match depth {
            0 => json!({}),
            _ => json!({format!("k{index}"): sample(arena, *value, index, filling, depth - 1)}),
        },
        Node::Scalar(scalar) => scalar_sample(*scalar, index),
    }
}

fn is_text(arena: &Arena, id: TypeId) -> bool {
    matches!(arena.node(id), Node::Scalar(Scalar::String))
}

/// Returns a valid value for well-known fields, because checks go further with valid values than with arbitrary text.
fn known(field: &str, index: usize) -> Option<Value> {
    let ip = || {
        format!(
            "10.{}.{}.{}",
            index >> 16 & 255,
            index >> 8 & 255,
            index & 255
        )
    };
    Some(match field {
        "protocol" => json!("TCP"),
        "operator" => json!("In"),
        "effect" => json!("NoSchedule"),
        "ip" | "hostIP" | "podIP" | "address" => ip().into(),
        "cidr" => format!("{}/32", ip()).into(),
        "mountPath" | "devicePath" | "hostPath" => format!("/m{index}").into(),
        "apiVersion" => json!("v1"),
        "resourceVersion" => json!("1"),
        _ => return None,
    })
}

fn scalar_sample(scalar: Scalar, index: usize) -> Value {
    match scalar {
        Scalar::String => format!("n{index}").into(),
        // Only the first owner reference may be the controller: each error about another one shows all of them, as in kube-apiserver.
        Scalar::Bool => json!(index == 0),
        Scalar::Int32 | Scalar::Int64 | Scalar::Double => json!(index % 60_000 + 1),
        Scalar::IntOrString => json!(index % 60_000 + 1),
        Scalar::Bytes => json!("YQ=="),
        Scalar::Quantity => json!("1"),
        Scalar::Time => json!("2020-01-01T00:00:00Z"),
        Scalar::MicroTime => json!("2020-01-01T00:00:00.000000Z"),
        Scalar::RawExtension | Scalar::FieldsV1 | Scalar::Json => json!({}),
        Scalar::SchemaOrBool => json!(true),
        Scalar::SchemaOrArray => json!({"type": "string"}),
        Scalar::SchemaOrStrings => json!(["a"]),
    }
}
