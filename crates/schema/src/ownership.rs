//! `metadata.managedFields`: records which manager set which field, like kube-apiserver's field manager for creates, updates and patches.
//!
//! A write is compared with the stored object according to the schema ([`mod@compare`]): the writer's manager becomes the owner of the
//! fields that it adds or changes, and other managers lose them. Sets of fields are [`FieldSet`]s. More than ten update managers are
//! merged into `ancient-changes`. Server-side apply uses the same entries.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{Arena, ListKind, Node, Type, TypeId, time, zero};

mod apply;
mod compare;
mod folded;
mod scale;
mod set;

pub use apply::{Misfit, MisfitReason, Misfits, UnownedError, apply, described, merge_unowned};
use compare::fields_of;
pub use compare::{Comparison, compare};
use folded::StoredEntry;
pub use folded::{fold, unfold};
pub use scale::{owners_after_scale, owners_of_scale};
pub use set::FieldSet;

/// The most update managers before the oldest are merged (kube-apiserver: `DefaultMaxUpdateManagers`).
const MAX_UPDATE_MANAGERS: usize = 10;
const ANCIENT_CHANGES: &str = "ancient-changes";
/// The fields that have no owner: identity and metadata that the server sets.
const NOBODYS: &[&[&str]] = &[
    &["f:apiVersion"],
    &["f:kind"],
    &["f:metadata"],
    &["f:metadata", "f:name"],
    &["f:metadata", "f:namespace"],
    &["f:metadata", "f:creationTimestamp"],
    &["f:metadata", "f:selfLink"],
    &["f:metadata", "f:uid"],
    &["f:metadata", "f:clusterName"],
    &["f:metadata", "f:generation"],
    &["f:metadata", "f:managedFields"],
    &["f:metadata", "f:resourceVersion"],
];

/// The writer of an object.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The manager's name: `fieldManager`, or the first part of the User-Agent.
    pub manager: &'a str,
    /// The apiVersion in which the object is written.
    pub api_version: &'a str,
    /// The subresource that is written, for example `status` or `scale`.
    pub subresource: Option<&'a str>,
    /// Whether the kind has a status subresource, so that its main endpoint does not change the status and `/status` changes little else.
    pub resets_status: bool,
    /// Further fields that the endpoint resets, each as the elements of its path (kube-apiserver: GetResetFields).
    pub resets: &'static [&'static [&'static str]],
    /// The current time.
    pub now: Timestamp,
}

impl Writer<'_> {
    /// Returns the key of the entry for the writer's updates.
    fn as_manager(&self) -> Manager {
        let name = match self.manager {
            "" => "unknown",
            name => name,
        };
        Manager {
            operation: "Update".to_owned(),
            name: name.to_owned(),
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.unwrap_or_default().to_owned(),
        }
    }
}

/// The key of an entry in managedFields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Manager {
    operation: String,
    name: String,
    api_version: String,
    subresource: String,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    fields: FieldSet,
    time: Option<String>,
}

type Managers = BTreeMap<Manager, Entry>;

/// Updates the object's managedFields and folds them. `old` is the stored object, folded or not, or `None` at creation.
pub fn track(kind: &Type, writer: &Writer<'_>, object: &mut Value, old: Option<&Value>) {
    // Only the main endpoint takes managedFields from a client.
    let sent = take_entries(object).filter(|_| writer.subresource.is_none());
    let stored = old.and_then(|old| old.pointer("/metadata/managedFields"));
    let mut managers = Managers::new();
    let mut kept = Vec::new();
    if !sent.as_ref().is_some_and(is_reset) {
        managers = sent.as_ref().and_then(parse).unwrap_or_default();
        // Without valid entries from the client, the stored ones count.
        if managers.is_empty() {
            kept = stored.and_then(StoredEntry::all).unwrap_or_default();
        }
    }
    // An object without managedFields is tracked only from its creation on, or from its first apply.
    if managers.is_empty() && kept.is_empty() && old.is_some() {
        return;
    }
    managers.retain(|manager, _| !manager.is_obsolete(kind, writer, object));
    kept.retain(|kept| !kept.manager.is_obsolete(kind, writer, object));
    let blank;
    let before = match old {
        Some(old) => old,
        // A new object is compared with the zero value of its Go type, so that only what it sets gets an owner.
        None => {
            blank = zero::zero(kind.arena(), kind.id());
            &blank
        }
    };
    let ignored = ignored_fields(writer, object);
    // kube-apiserver's field manager drops all entries where an object does not fit its type or a list cannot be keyed.
    if kind.is_custom() && !(apply::fits(kind, object) && apply::fits(kind, before)) {
        return;
    }
    let Some(comparison) = compare(kind, before, object) else {
        return;
    };
    let changes = Changes::new(comparison, &ignored);
    let me = writer.as_manager();
    // The schema of a custom resource may have changed since the last write, so every set must be parsed.
    let many = kept.len() >= MAX_UPDATE_MANAGERS || kind.is_custom();
    let meets = |kept: &mut StoredEntry| many || kept.manager == me || changes.may_meet(kept);
    for met in kept.extract_if(.., meets) {
        met.read(&mut managers);
    }
    reconcile(kind, &mut managers);
    update(&mut managers, writer, changes);
    // The sets left unparsed are fewer than the limit, so nothing has to be merged.
    if kept.is_empty() {
        merge_ancient(&mut managers);
    }
    let read = managers.into_iter();
    let read = read.map(|(manager, entry)| (manager, entry.time, entry.fields.to_text().into()));
    write_down(
        object,
        read.chain(kept.into_iter().map(StoredEntry::written))
            .collect(),
    );
}

/// The reason why managedFields cannot be parsed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ManagedFieldsError {
    /// They are not a list.
    #[error("managedFields is no list")]
    NotAList,
    /// An entry is invalid.
    #[error("invalid entry: {0}")]
    Entry(Value),
}

/// Checks that managedFields, if present, can be parsed.
///
/// # Errors
/// They are not a list, or have an invalid entry.
pub fn check(entries: &Value) -> Result<(), ManagedFieldsError> {
    if entries.is_null() {
        return Ok(());
    }
    let list = entries.as_array().ok_or(ManagedFieldsError::NotAList)?;
    let unreadable =
        |entry: &&Value| StoredEntry::all(&Value::Array(vec![(*entry).clone()])).is_none();
    match list.iter().find(unreadable) {
        Some(entry) => Err(ManagedFieldsError::Entry(entry.clone())),
        None => Ok(()),
    }
}

/// Restores the stored times if only times in managedFields differ, so that the write counts as unchanged.
pub fn settle_times(object: &mut Value, old: &Value) {
    let (Some(new_entries), Some(old_entries)) = (
        object.pointer("/metadata/managedFields"),
        old.pointer("/metadata/managedFields"),
    ) else {
        return;
    };
    if new_entries == old_entries || !same_but_times(new_entries, old_entries) {
        return;
    }
    let before = old_entries.clone();
    // Restored for the comparison below, and put back if anything else differs.
    let after = std::mem::replace(&mut object["metadata"]["managedFields"], before);
    if object != old {
        object["metadata"]["managedFields"] = after;
    }
}

fn same_but_times(left: &Value, right: &Value) -> bool {
    let (Some(left), Some(right)) = (left.as_array(), right.as_array()) else {
        return false;
    };
    let right: HashSet<_> = right.iter().map(timeless).collect();
    left.len() == right.len() && left.iter().all(|entry| right.contains(&timeless(entry)))
}

/// Returns the fields of a managedFields entry except its time.
fn timeless(entry: &Value) -> Vec<(&String, &Value)> {
    let fields = entry.as_object().into_iter().flatten();
    fields.filter(|(key, _)| *key != "time").collect()
}

fn take_entries(object: &mut Value) -> Option<Value> {
    object
        .get_mut("metadata")?
        .as_object_mut()?
        .remove("managedFields")
}

/// Returns whether the entries are `[]` or `[{}]`, which clear managedFields.
fn is_reset(entries: &Value) -> bool {
    entries
        .as_array()
        .is_some_and(|entries| match entries.as_slice() {
            [] => true,
            [Value::Object(only)] => only.is_empty(),
            _ => false,
        })
}

/// Returns the fields that this endpoint resets, so that a write does not become their owner.
fn ignored_fields(writer: &Writer<'_>, object: &Value) -> FieldSet {
    let mut ignored = FieldSet::default();
    for path in writer.resets {
        let path: Vec<String> = path.iter().map(|&element| element.to_owned()).collect();
        ignored.insert(&path);
    }
    if !writer.resets_status {
        return ignored;
    }
    match writer.subresource {
        // A namespace's `finalize` writes its spec and resets what the main endpoint resets.
        None | Some("finalize") => ignored.insert(&["f:status".to_owned()]),
        Some("status") => {
            let others = object
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, _)| name.as_str());
            for name in
                others.filter(|name| !["apiVersion", "kind", "metadata", "status"].contains(name))
            {
                ignored.insert(&[format!("f:{name}")]);
            }
        }
        Some(_) => {}
    }
    ignored
}

/// Moves ownership to the whole value where the owned fields are inside a value that has become atomic (structured-merge-diff:
/// ReconcileFieldSetWithSchema). Only the schemas of custom resources change.
fn reconcile(kind: &Type, managers: &mut Managers) {
    if kind.is_custom() {
        for entry in managers.values_mut() {
            entry.fields = closed(kind.arena(), kind.id(), &entry.fields);
        }
    }
}

fn closed(arena: &Arena, id: TypeId, set: &FieldSet) -> FieldSet {
    let child = |at: &str| match arena.node(id) {
        Node::Struct(fields) => {
            let name = at.strip_prefix("f:")?;
            fields.field(name).map(|field| field.id).or(fields.rest)
        }
        Node::Map { value, .. } => Some(*value),
        Node::List(list) => Some(list.item),
        Node::Scalar(_) => None,
    };
    set.map_children(|at, below| {
        let Some(id) = child(at) else {
            return (false, below.clone());
        };
        let is_one = match arena.node(id) {
            Node::Struct(fields) => fields.atomic,
            Node::Map { atomic, .. } => *atomic,
            Node::List(list) => list.kind == ListKind::Atomic,
            Node::Scalar(_) => false,
        };
        if is_one {
            (true, FieldSet::default())
        } else {
            (false, closed(arena, id, below))
        }
    })
}

/// The changes of a write to fields that can have owners.
struct Changes {
    /// Added or changed fields.
    set: FieldSet,
    removed: FieldSet,
}

impl Changes {
    fn new(comparison: Comparison, ignored: &FieldSet) -> Self {
        let Comparison {
            added: mut set,
            mut modified,
            mut removed,
        } = comparison;
        for found in [&mut set, &mut modified, &mut removed] {
            found.subtract_below(ignored);
        }
        set.merge(modified);
        Changes { set, removed }
    }

    fn may_meet(&self, kept: &StoredEntry) -> bool {
        kept.may_meet(&self.set) || kept.may_meet(&self.removed)
    }
}

fn update(managers: &mut Managers, writer: &Writer<'_>, changes: Changes) {
    let Changes { set, removed } = changes;
    for entry in managers.values_mut() {
        entry.fields.subtract(&set);
        entry.fields.subtract(&removed);
    }
    managers.retain(|_, entry| !entry.fields.is_empty());
    let taken = without_nobodys(set);
    if taken.is_empty() {
        return;
    }
    let entry = managers
        .entry(writer.as_manager())
        .or_insert_with(|| Entry {
            fields: FieldSet::default(),
            time: None,
        });
    entry.fields.merge(taken);
    entry.time = Some(time::format_seconds(&writer.now));
}

fn without_nobodys(mut fields: FieldSet) -> FieldSet {
    for path in NOBODYS {
        fields.remove(path);
    }
    fields
}

/// Merges the oldest update managers of each version until few enough are left.
fn merge_ancient(managers: &mut Managers) {
    let mut updaters: Vec<(Option<String>, Manager)> = managers
        .iter()
        .filter(|(manager, _)| manager.operation == "Update")
        .map(|(manager, entry)| (entry.time.clone(), manager.clone()))
        .collect();
    let mut count = updaters.len();
    // Oldest first; entries without a time count as the oldest.
    updaters.sort();
    let mut first_of_version: BTreeMap<String, Manager> = BTreeMap::new();
    for (time, manager) in updaters {
        if count <= MAX_UPDATE_MANAGERS {
            return;
        }
        let version = manager.api_version.clone();
        // A version's oldest entry is renamed only once another one is merged into it.
        let Some(first) = first_of_version.get(&version) else {
            first_of_version.insert(version, manager);
            continue;
        };
        let bucket = Manager {
            operation: "Update".to_owned(),
            name: ANCIENT_CHANGES.to_owned(),
            api_version: version,
            subresource: String::new(),
        };
        if !managers.contains_key(&bucket)
            && let Some(entry) = managers.remove(first)
        {
            managers.insert(bucket.clone(), entry);
        }
        if let (Some(merged), Some(into)) = (managers.remove(&manager), managers.get_mut(&bucket)) {
            into.fields.merge(merged.fields);
            into.time = time;
            count -= 1;
        }
    }
}

/// Parses managedFields; `None` if an entry is invalid.
fn parse(entries: &Value) -> Option<Managers> {
    let mut managers = Managers::new();
    for entry in entries.as_array()? {
        let manager = Manager::of(entry)?;
        let fields = entry
            .get("fieldsV1")
            .map_or(Some(FieldSet::default()), FieldSet::from_json)?;
        let time = text_of(entry, "time");
        managers.insert(manager, Entry { fields, time });
    }
    Some(managers)
}

fn text_of(entry: &Value, field: &str) -> Option<String> {
    entry.get(field).and_then(Value::as_str).map(str::to_owned)
}

impl Manager {
    /// Returns the key of an entry; `None` if the entry is invalid.
    fn of(entry: &Value) -> Option<Manager> {
        let text = |field: &str| text_of(entry, field).unwrap_or_default();
        let manager = Manager {
            operation: text("operation"),
            name: text("manager"),
            api_version: text("apiVersion"),
            subresource: text("subresource"),
        };
        let known = ["Apply", "Update"].contains(&manager.operation.as_str())
            && !manager.api_version.is_empty()
            && entry
                .get("fieldsType")
                .is_some_and(|kind| kind == "FieldsV1");
        known.then_some(manager)
    }

    /// Returns whether the entry's version does not exist any more for the object's kind; such entries are dropped at the next write.
    fn is_obsolete(&self, kind: &Type, writer: &Writer<'_>, object: &Value) -> bool {
        let name = || {
            object
                .get("kind")
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        !kind.is_custom()
            && self.api_version != writer.api_version
            && Type::builtin_kind(&self.api_version, name()).is_none()
    }
}

fn store(object: &mut Value, managers: &Managers) {
    write_down(object, with_sets(managers.clone()).collect());
}

/// An entry's key and time, and its set as managedFields holds it, folded or not.
type Row = (Manager, Option<String>, Value);

fn with_sets(entries: impl IntoIterator<Item = (Manager, Entry)>) -> impl Iterator<Item = Row> {
    let entries = entries.into_iter();
    entries.map(|(manager, entry)| (manager, entry.time, entry.fields.into_json()))
}

fn write_down(object: &mut Value, rows: Vec<Row>) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    if !rows.is_empty() {
        metadata.insert("managedFields".to_owned(), written(rows));
    }
}

/// Returns the entries as managedFields holds them, sorted as kube-apiserver does.
fn written(mut sorted: Vec<Row>) -> Value {
    sorted.sort_by(|(manager, time, _), (other, other_time, _)| {
        let by_operation = manager.operation.cmp(&other.operation);
        by_operation
            .then_with(|| time.cmp(other_time))
            .then_with(|| manager.cmp(other))
    });
    let entries = sorted.into_iter().map(|(manager, time, fields)| {
        let mut written = Map::new();
        for (field, text) in [
            ("manager", manager.name),
            ("operation", manager.operation),
            ("apiVersion", manager.api_version),
            ("subresource", manager.subresource),
        ] {
            if !text.is_empty() {
                written.insert(field.to_owned(), text.into());
            }
        }
        if let Some(time) = time {
            written.insert("time".to_owned(), time.into());
        }
        written.insert("fieldsType".to_owned(), "FieldsV1".into());
        written.insert("fieldsV1".to_owned(), fields);
        Value::Object(written)
    });
    entries.collect()
}

#[cfg(test)]
mod tests;
