//! A slow model of field ownership: an object is a tree of maps, and a set of fields is a plain set of whole paths. It follows
//! structured-merge-diff's rules (typed/ and merge/), not the tested code.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::{List, ListKind, Node, Type};

pub(super) type Path = Vec<String>;
pub(super) type Paths = BTreeSet<Path>;

/// A value whose keyed lists are maps; the order of items is ignored.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    /// A value that is owned as a whole: scalars, atomic lists and maps, null, and empty values.
    Leaf(Value),
    /// A keyed list without items. It has no owner, because only its items have.
    NoItems,
    /// The fields or items by path element, each with whether it is a field that the schema declares.
    Inner(BTreeMap<String, (bool, Tree)>),
}

/// Builds the tree of a value by its schema; `None` stands for unknown fields.
pub(super) fn tree(kind: Option<&Type>, value: &Value) -> Tree {
    match (kind.map(Type::node), value) {
        (Some(Node::Struct(fields)), Value::Object(map)) if !fields.atomic && !map.is_empty() => {
            inner(map.iter().map(|(name, value)| {
                let declared = fields.field(name);
                let id = declared.map(|field| field.id).or(fields.rest);
                let below = id.and_then(|id| Some(kind?.sibling(id)));
                (
                    format!("f:{name}"),
                    declared.is_some(),
                    tree(below.as_ref(), value),
                )
            }))
        }
        (
            Some(Node::Map {
                value: id,
                atomic: false,
            }),
            Value::Object(map),
        ) if !map.is_empty() => {
            let below = kind.map(|kind| kind.sibling(*id));
            inner(
                map.iter()
                    .map(|(name, value)| (format!("f:{name}"), false, tree(below.as_ref(), value))),
            )
        }
        (None, Value::Object(map)) if !map.is_empty() => inner(
            map.iter()
                .map(|(name, value)| (format!("f:{name}"), false, tree(None, value))),
        ),
        (Some(Node::List(list)), Value::Array(items))
            if list.kind != ListKind::Atomic && items.is_empty() =>
        {
            Tree::NoItems
        }
        (Some(Node::List(list)), Value::Array(items)) if list.kind != ListKind::Atomic => {
            let below = kind.map(|kind| kind.sibling(list.item));
            inner(
                items
                    .iter()
                    .map(|item| (name_of(list, item), false, tree(below.as_ref(), item))),
            )
        }
        _ => Tree::Leaf(value.clone()),
    }
}

fn inner(entries: impl Iterator<Item = (String, bool, Tree)>) -> Tree {
    Tree::Inner(
        entries
            .map(|(name, declared, below)| (name, (declared, below)))
            .collect(),
    )
}

/// Returns the path element of an item.
fn name_of(list: &List, item: &Value) -> String {
    if list.kind == ListKind::Set {
        return format!("v:{item}");
    }
    let mut keys = Map::new();
    for key in &list.keys {
        let default = list.key_defaults.iter().find(|(name, _)| name == key);
        if let Some(value) = item.get(&**key).or(default.map(|(_, value)| value)) {
            keys.insert(key.to_string(), value.clone());
        }
    }
    let sorted: BTreeMap<String, Value> = keys.into_iter().collect();
    format!(
        "k:{}",
        serde_json::to_string(&sorted).expect("a map is JSON")
    )
}

/// Removes empty parts from a value.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

impl Tree {
    fn nothing() -> Tree {
        Tree::Leaf(Value::Null)
    }

    fn entries(&self) -> impl Iterator<Item = (&String, &(bool, Tree))> {
        let entries = match self {
            Tree::Leaf(_) | Tree::NoItems => None,
            Tree::Inner(map) => Some(map),
        };
        entries.into_iter().flatten()
    }

    fn get(&self, name: &str) -> Option<&Tree> {
        match self {
            Tree::Leaf(_) | Tree::NoItems => None,
            Tree::Inner(map) => map.get(name).map(|(_, below)| below),
        }
    }

    /// Returns whether the value is compared and merged by its parts, not as a whole.
    fn is_walked(&self) -> bool {
        match self {
            Tree::Leaf(value) => is_empty(value),
            Tree::NoItems | Tree::Inner(_) => true,
        }
    }

    /// Merges the configuration `over` into this tree.
    pub(super) fn merged(&self, over: &Tree) -> Tree {
        let (Tree::Inner(mine), Tree::Inner(theirs)) = (self, over) else {
            // An empty list or map in the configuration removes nothing.
            return match (self, over) {
                (Tree::Inner(_), Tree::NoItems) => self.clone(),
                (Tree::Inner(_), Tree::Leaf(value)) if is_empty(value) && !value.is_null() => {
                    self.clone()
                }
                _ => over.clone(),
            };
        };
        let mut all = mine.clone();
        for (name, (declared, theirs)) in theirs {
            let merged = mine
                .get(name)
                .map_or_else(|| theirs.clone(), |(_, mine)| mine.merged(theirs));
            all.insert(name.clone(), (*declared, merged));
        }
        Tree::Inner(all)
    }

    /// Returns the fields that a configuration names.
    pub(super) fn fields(&self) -> Paths {
        let mut paths = Paths::new();
        self.collect_fields(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect_fields(&self, at: &mut Path, paths: &mut Paths) {
        if let Tree::Leaf(_) = self {
            paths.insert(at.clone());
        }
        for (name, (declared, below)) in self.entries() {
            at.push(name.clone());
            if !declared {
                paths.insert(at.clone());
            }
            below.collect_fields(at, paths);
            at.pop();
        }
    }

    /// Adds the declared fields that lead to the members of a set.
    pub(super) fn with_ways(&self, paths: &Paths) -> Paths {
        let mut all = paths.clone();
        for path in paths {
            let mut here = self;
            for (length, name) in path.iter().enumerate() {
                let Tree::Inner(map) = here else { break };
                let Some((declared, below)) = map.get(name) else {
                    break;
                };
                if *declared {
                    all.insert(path[..=length].to_vec());
                }
                here = below;
            }
        }
        all
    }

    /// Returns the tree without the fields of a set; `None` if nothing is left.
    pub(super) fn without(&self, gone: &Paths) -> Tree {
        self.remove(&mut Vec::new(), gone)
    }

    fn remove(&self, at: &mut Path, gone: &Paths) -> Tree {
        let Tree::Inner(map) = self else {
            return self.clone();
        };
        let mut left = BTreeMap::new();
        for (name, (declared, below)) in map {
            at.push(name.clone());
            if !gone.contains(at) {
                left.insert(name.clone(), (*declared, below.remove(at, gone)));
            }
            at.pop();
        }
        if left.is_empty() {
            return Tree::nothing();
        }
        Tree::Inner(left)
    }

    /// Returns the paths that are added, modified and removed in `new`.
    pub(super) fn difference(&self, new: &Tree) -> [Paths; 3] {
        let mut found = [Paths::new(), Paths::new(), Paths::new()];
        differ(Some(self), Some(new), &mut Vec::new(), &mut found);
        found
    }
}

fn differ(old: Option<&Tree>, new: Option<&Tree>, at: &mut Path, found: &mut [Paths; 3]) {
    let side = match (old, new) {
        (None, Some(_)) => Some(0),
        (Some(_), None) => Some(2),
        _ => None,
    };
    if let Some(side) = side
        && !at.is_empty()
    {
        found[side].insert(at.clone());
    }
    let some_inner = [old, new]
        .iter()
        .any(|tree| matches!(tree, Some(Tree::Inner(_))));
    let walked = |tree: Option<&Tree>| tree.is_none_or(Tree::is_walked);
    // An unknown field that was a map and is not any more counts as modified, and so do the fields of the map.
    let is_changed = !(some_inner && walked(old) && walked(new));
    if is_changed && old.is_some() && new.is_some() && old != new && !at.is_empty() {
        found[1].insert(at.clone());
    }
    let names: BTreeSet<&String> = [old, new]
        .into_iter()
        .flatten()
        .flat_map(|tree| tree.entries().map(|(name, _)| name))
        .collect();
    for name in names {
        at.push(name.clone());
        differ(
            old.and_then(|tree| tree.get(name)),
            new.and_then(|tree| tree.get(name)),
            at,
            found,
        );
        at.pop();
    }
}

/// The key of an entry: operation and manager.
pub(super) type Owner = (&'static str, String);

/// An object, and the owners of its fields.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) object: Option<Tree>,
    pub(super) owners: BTreeMap<Owner, Paths>,
}

/// The fields of metadata that have no owner.
fn is_ownable(path: &Path) -> bool {
    let nobodys = ["f:apiVersion", "f:kind", "f:metadata"];
    let in_metadata = [
        "f:name",
        "f:namespace",
        "f:creationTimestamp",
        "f:selfLink",
        "f:uid",
        "f:clusterName",
        "f:generation",
        "f:managedFields",
        "f:resourceVersion",
    ];
    match path.as_slice() {
        [first] => !nobodys.contains(&first.as_str()),
        [first, second] if first == "f:metadata" => !in_metadata.contains(&second.as_str()),
        _ => true,
    }
}

impl Model {
    /// Creates or updates the object.
    pub(super) fn update(&mut self, manager: &str, new: Tree) {
        if self.object.is_some() && self.owners.is_empty() {
            self.object = Some(new);
            return;
        }
        let old = self.object.take().unwrap_or_else(Tree::nothing);
        self.own(&old, manager, &new);
        self.object = Some(new);
    }

    fn own(&mut self, old: &Tree, manager: &str, new: &Tree) {
        let [added, changed, removed] = old.difference(new);
        for paths in self.owners.values_mut() {
            paths.retain(|path| {
                !added.contains(path) && !changed.contains(path) && !removed.contains(path)
            });
        }
        let mine = self
            .owners
            .entry(("Update", manager.to_owned()))
            .or_default();
        mine.extend(added.into_iter().chain(changed).filter(is_ownable));
        self.owners.retain(|_, paths| !paths.is_empty());
    }

    /// Applies a configuration. The conflicts are the fields that each other owner would lose.
    pub(super) fn apply(
        &mut self,
        manager: &str,
        config: &Tree,
        force: bool,
    ) -> Result<(), BTreeMap<Owner, Paths>> {
        let live = self.object.clone().unwrap_or_else(Tree::nothing);
        let mut next = self.clone();
        if next.owners.is_empty() && next.object.is_some() {
            next.own(&Tree::nothing(), "before-first-apply", &live);
        }
        let me: Owner = ("Apply", manager.to_owned());
        let merged = live.merged(config);
        let last = next.owners.insert(me.clone(), config.fields());
        let result = match last {
            Some(last) => next.pruned(&merged, &last),
            None => merged,
        };
        let [added, changed, removed] = live.difference(&result);
        let mut conflicts = BTreeMap::new();
        for (owner, paths) in next.owners.iter_mut().filter(|(owner, _)| **owner != me) {
            let lost = |path: &&Path| added.contains(*path) || changed.contains(*path);
            let lost: Paths = paths.iter().filter(lost).cloned().collect();
            paths.retain(|path| !lost.contains(path) && !removed.contains(path));
            if !lost.is_empty() {
                conflicts.insert(owner.clone(), lost);
            }
        }
        if !force && !conflicts.is_empty() {
            return Err(conflicts);
        }
        let mine = next.owners.get_mut(&me).expect("it was just set");
        mine.retain(is_ownable);
        next.owners.retain(|_, paths| !paths.is_empty());
        next.object = Some(result);
        *self = next;
        Ok(())
    }

    /// Removes the fields that the manager applied before and does not apply now, unless another manager owns them.
    fn pruned(&self, merged: &Tree, last: &Paths) -> Tree {
        let all = merged.with_ways(&merged.fields());
        let last = merged.with_ways(last);
        let without_last = merged.without(&last);
        let mut kept = merged.with_ways(&without_last.fields());
        for owned in self.owners.values() {
            kept.extend(merged.with_ways(owned));
        }
        let without_unowned = merged.without(&all.difference(&kept).cloned().collect());
        let left = merged.with_ways(&without_unowned.fields());
        let gone = all.difference(&left).filter(|path| last.contains(*path));
        merged.without(&gone.cloned().collect())
    }
}
