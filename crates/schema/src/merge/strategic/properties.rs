//! Property tests: a patch that describes the difference of two objects with all directives turns one into the other.
//!
//! The patch is built slowly from the meaning of the directives, like kubectl's; applying it is what is tested.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::apply;
use crate::{Arena, Field, List, Node, Scalar, Type, TypeId, choices::Choices};

impl Choices {
    fn tree(&mut self, arena: &Arena, id: TypeId, depth: u32) -> Value {
        match arena.node(id) {
            Node::Struct(fields) => {
                let mut map = Map::new();
                for field in &fields.fields {
                    // Only merged lists are of interest here.
                    let merges = matches!(arena.node(field.id), Node::List(list) if list.merge);
                    let likely = if merges { 2 } else { 5 };
                    if depth < 5 && self.below(likely) == 0 {
                        map.insert(
                            field.name.to_string(),
                            self.tree(arena, field.id, depth + 1),
                        );
                    }
                }
                map.into()
            }
            Node::Map { value, .. } => {
                let mut map = Map::new();
                for name in ["a", "b", "c"] {
                    if self.below(2) == 0 {
                        map.insert(name.to_owned(), self.tree(arena, *value, depth + 1));
                    }
                }
                map.into()
            }
            Node::List(list) => self.list(arena, list, depth),
            Node::Scalar(scalar) => self.leaf(*scalar),
        }
    }

    fn list(&mut self, arena: &Arena, list: &List, depth: u32) -> Value {
        let mut items: Vec<Value> = Vec::new();
        for name in 0..4 {
            if self.below(2) == 0 {
                continue;
            }
            let mut item = self.tree(arena, list.item, depth + 1);
            if let Some(key) = &list.merge_key {
                let Node::Struct(fields) = arena.node(list.item) else {
                    panic!("items with keys are structs");
                };
                let kind = fields.field(key).map(|field| arena.node(field.id));
                let is_text = matches!(kind, Some(Node::Scalar(Scalar::String)));
                item[&**key] = if is_text {
                    format!("n{name}").into()
                } else {
                    name.into()
                };
            } else if list.merge && item.is_string() {
                item = format!("s{name}").into();
            }
            items.insert(self.below(items.len() as u64 + 1) as usize, item);
        }
        items.into()
    }

    fn leaf(&mut self, scalar: Scalar) -> Value {
        match scalar {
            Scalar::Bool => (self.below(2) == 1).into(),
            Scalar::Int32 | Scalar::Int64 | Scalar::Double | Scalar::IntOrString => {
                self.below(3).into()
            }
            _ => ["x", "y", "z"][self.below(3) as usize].into(),
        }
    }
}

/// Builds a patch.
struct Patcher<'a> {
    arena: &'a Arena,
    choices: Choices,
}

impl Patcher<'_> {
    fn child(&self, id: Option<TypeId>, name: &str) -> (Option<TypeId>, bool) {
        match id.map(|id| self.arena.node(id)) {
            Some(Node::Struct(fields)) => {
                fields.field(name).map_or((None, false), |field: &Field| {
                    (Some(field.id), field.retain_keys)
                })
            }
            Some(Node::Map { value, .. }) => (Some(*value), false),
            _ => (None, false),
        }
    }

    /// Returns the patch that turns `from` into `to`.
    fn map(
        &mut self,
        id: Option<TypeId>,
        from: &Map<String, Value>,
        to: &Map<String, Value>,
    ) -> Map<String, Value> {
        let mut patch = Map::new();
        for (name, _) in from.iter().filter(|(name, _)| !to.contains_key(*name)) {
            patch.insert(name.clone(), Value::Null);
        }
        for (name, value) in to {
            let (below, retains) = self.child(id, name);
            match (from.get(name), value) {
                (Some(before), after) if before == after => {}
                (Some(Value::Object(before)), Value::Object(after)) => {
                    let change = if self.choices.below(5) == 0 {
                        replaced(after)
                    } else {
                        let mut change = self.map(below, before, after);
                        if retains {
                            retain(&mut change, after);
                        }
                        change
                    };
                    patch.insert(name.clone(), change.into());
                }
                (Some(Value::Array(before)), Value::Array(after)) => {
                    self.list(below, name, before, after, &mut patch);
                }
                (_, after) => {
                    patch.insert(name.clone(), after.clone());
                }
            }
        }
        patch
    }

    fn list(
        &mut self,
        id: Option<TypeId>,
        name: &str,
        from: &[Value],
        to: &[Value],
        patch: &mut Map<String, Value>,
    ) {
        let Some(Node::List(list)) = id.map(|id| self.arena.node(id)) else {
            panic!("only lists of the table are compared");
        };
        let Some(key) = list.merge_key.as_deref() else {
            if !list.merge {
                patch.insert(name.to_owned(), to.into());
                return;
            }
            let only = |one: &[Value], other: &[Value]| -> Vec<Value> {
                one.iter()
                    .filter(|item| !other.contains(item))
                    .cloned()
                    .collect()
            };
            let (new, gone) = (only(to, from), only(from, to));
            if !new.is_empty() {
                patch.insert(name.to_owned(), new.into());
            }
            if !gone.is_empty() {
                patch.insert(format!("$deleteFromPrimitiveList/{name}"), gone.into());
            }
            patch.insert(format!("$setElementOrder/{name}"), to.into());
            return;
        };
        if self.choices.below(6) == 0 {
            let mut items = vec![json!({"$patch": "replace"})];
            items.extend(to.iter().cloned());
            patch.insert(name.to_owned(), items.into());
            return;
        }
        let same = |item: &Value, other: &&Value| other[key] == item[key];
        let mut items = Vec::new();
        for item in to {
            match from.iter().find(|other| same(item, other)) {
                None => items.push(item.clone()),
                Some(before) if before == item => {}
                Some(before) => {
                    let (before, after) = (before.as_object(), item.as_object());
                    let (Some(before), Some(after)) = (before, after) else {
                        panic!("items with keys are objects");
                    };
                    let mut change = self.map(Some(list.item), before, after);
                    change.insert(key.to_owned(), item[key].clone());
                    if list.retain_keys {
                        retain(&mut change, after);
                    }
                    items.push(change.into());
                }
            }
        }
        for gone in from
            .iter()
            .filter(|item| !to.iter().any(|other| same(item, &other)))
        {
            let at = self.choices.below(items.len() as u64 + 1) as usize;
            items.insert(at, json!({"$patch": "delete", key: gone[key]}));
        }
        if !items.is_empty() {
            patch.insert(name.to_owned(), items.into());
        }
        let order = to.iter().map(|item| json!({key: item[key]}));
        patch.insert(format!("$setElementOrder/{name}"), order.collect());
    }
}

fn replaced(value: &Map<String, Value>) -> Map<String, Value> {
    let mut change = value.clone();
    change.insert("$patch".to_owned(), "replace".into());
    change
}

fn retain(change: &mut Map<String, Value>, after: &Map<String, Value>) {
    let kept = after.keys().map(|name| Value::from(name.as_str()));
    change.insert("$retainKeys".to_owned(), kept.collect());
}

const KINDS: &[&str] = &[
    "api.core.v1.PodSpec",
    "api.core.v1.ServiceSpec",
    "api.core.v1.PodStatus",
    "api.apps.v1.DeploymentSpec",
    "api.core.v1.ServiceAccount",
    "apimachinery.pkg.apis.meta.v1.ObjectMeta",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_patch_with_every_directive_makes_one_object_the_other(seed: u64) {
        for name in KINDS {
            let kind = Type::builtin(name).expect(name);
            let mut choices = Choices(seed);
            let from = choices.tree(kind.arena(), kind.id(), 0);
            let to = choices.tree(kind.arena(), kind.id(), 0);
            let mut patcher = Patcher { arena: kind.arena(), choices };
            let (Some(before), Some(after)) = (from.as_object(), to.as_object()) else {
                panic!("{name} is a struct");
            };
            let patch = Value::Object(patcher.map(Some(kind.id()), before, after));
            let result = apply(&kind, from.clone(), &patch);
            prop_assert_eq!(result, Ok(to), "{}\nfrom {}\nby {}", name, from, patch);
        }
    }
}
