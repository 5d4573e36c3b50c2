//! One version of one object: its serialized bytes, and the little that reading it back would be too slow for.
//!
//! The bytes are kept once, as the watch line of the write that made this version (`{"type":"MODIFIED","object":{...}}\n`);
//! the object, and the object as a list item (without apiVersion and kind), are slices of that line. The revision is
//! known only under the collection's lock, so a [`Draft`] leaves a slot of the expected width for it: nothing is
//! serialized while a lock is held.

use std::{borrow::Borrow, cell::RefCell, fmt, ops::Range, sync::Arc};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use mullion_schema::raw_field::RawField;
use serde_json::{Map, Value};

use super::json::{self, RawFieldText};

/// `namespace/name`, or `name` for cluster-scoped objects; ordered as those strings are, which is the order of lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Creates the key of an object.
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        match namespace {
            Some(namespace) => Key([namespace, "/", name].concat().into()),
            None => Key(name.into()),
        }
    }

    /// Parses the text that [`Key::as_str`] returns.
    pub(super) fn parse(text: &str) -> Self {
        Key(text.into())
    }

    /// Returns the key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the namespace; `None` for cluster-scoped objects.
    pub fn namespace(&self) -> Option<&str> {
        self.0.split_once('/').map(|(namespace, _)| namespace)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The kind of a write; its name begins the watch line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The object is new.
    Added,
    /// The object has a new version.
    Modified,
    /// The object is gone; the event carries its last content under the revision of the deletion.
    Deleted,
}

impl EventType {
    /// Returns the event type's name in watch events.
    pub fn as_str(self) -> &'static str {
        match self {
            EventType::Added => "ADDED",
            EventType::Modified => "MODIFIED",
            EventType::Deleted => "DELETED",
        }
    }
}

/// The values that selectors use, kept so that lists and watches need not parse the object.
#[derive(Debug, Default, PartialEq)]
pub struct Meta {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.labels`, ordered by key.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// The values of the kind's selectable fields, in the kind's order.
    pub fields: Box<[Box<str>]>,
}

impl Meta {
    /// Reads the selectable metadata of an object.
    pub fn of(object: &Value, fields: Box<[Box<str>]>) -> Self {
        let metadata = &object["metadata"];
        let labels = match metadata["labels"].as_object() {
            Some(labels) => labels
                .iter()
                .filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())))
                .collect(),
            None => Box::default(),
        };
        Meta {
            uid: metadata["uid"].as_str().unwrap_or_default().into(),
            labels,
            fields,
        }
    }

    /// Returns the value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let at = self
            .labels
            .binary_search_by(|(label, _)| (**label).cmp(key))
            .ok()?;
        Some(&self.labels[at].1)
    }
}

/// An object that is serialized but for its revision.
#[derive(Debug)]
pub struct Draft {
    line: Vec<u8>,
    layout: Layout,
    meta: Arc<Meta>,
}

/// The offsets of the parts of a watch line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layout {
    pub(super) object: u32,
    pub(super) body: u32,
    pub(super) revision: u32,
    pub(super) revision_len: u32,
}

const LINE_END: &[u8] = b"}\n";

thread_local! {
    /// The buffer in which lines are built before they are copied to one of their exact size. It grows to the largest object, at most 3
    /// MiB.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Draft {
    /// Serializes an object for a write that makes the given event, leaving room for a revision as long as `expected`.
    /// The object may be folded ([`Object::parse_folded`]).
    pub fn new(event: EventType, object: &Value, fields: Box<[Box<str>]>, expected: u64) -> Self {
        Draft::with_raw_field(event, object, None, fields, expected)
    }

    /// Does the same as [`Draft::new`], but writes the text of the raw field instead of the parts of it that the object has.
    pub fn with_raw_field(
        event: EventType,
        object: &Value,
        raw: Option<&RawFieldText<'_>>,
        fields: Box<[Box<str>]>,
        expected: u64,
    ) -> Self {
        // The length is known only after serialization. Copying from a reused buffer is cheaper than growing
        // a new one.
        SCRATCH.with_borrow_mut(|line| {
            line.clear();
            open_line(line, event);
            let start = line.len();
            let (body, slot) = write_object(line, object, raw, expected);
            line.extend_from_slice(LINE_END);
            let layout = Layout {
                object: start as u32,
                body: body as u32,
                revision: slot.start as u32,
                revision_len: slot.len() as u32,
            };
            Draft {
                line: line.to_vec(),
                layout,
                meta: Arc::new(Meta::of(object, fields)),
            }
        })
    }

    /// Returns the serialized object; its revision is not known yet.
    pub fn object(&self) -> &[u8] {
        &self.line[self.layout.object as usize..self.line.len() - LINE_END.len()]
    }

    /// Fills in the revision. Copies nothing unless the number of digits has changed since [`Draft::new`].
    pub fn seal(mut self, key: Key, revision: u64) -> Object {
        let digits = revision.to_string();
        let slot = self.layout.revision as usize
            ..(self.layout.revision + self.layout.revision_len) as usize;
        if digits.len() == slot.len() {
            self.line[slot].copy_from_slice(digits.as_bytes());
        } else {
            // Behind the revision there are only bytes without recorded offsets, so the others stay right.
            self.line.splice(slot, digits.bytes());
            self.layout.revision_len = digits.len() as u32;
        }
        Object {
            key,
            revision,
            line: self.line.into(),
            layout: self.layout,
            meta: self.meta,
            tree: ArcSwapOption::empty(),
        }
    }
}

/// One stored version of an object; immutable and shared by the index, the event log and every reader.
pub struct Object {
    key: Key,
    revision: u64,
    line: Bytes,
    layout: Layout,
    meta: Arc<Meta>,
    tree: ArcSwapOption<Value>,
}

impl Object {
    /// Restores a version that a journal has kept.
    pub(super) fn restored(
        key: Key,
        revision: u64,
        line: Bytes,
        layout: Layout,
        meta: Meta,
    ) -> Self {
        Object {
            key,
            revision,
            line,
            layout,
            meta: Arc::new(meta),
            tree: ArcSwapOption::empty(),
        }
    }

    /// Returns the same version with other values of its selectable fields.
    pub(super) fn with_fields(&self, fields: Box<[Box<str>]>) -> Object {
        let meta = Meta {
            uid: self.meta.uid.clone(),
            labels: self.meta.labels.clone(),
            fields,
        };
        Object::restored(
            self.key.clone(),
            self.revision,
            self.line.clone(),
            self.layout,
            meta,
        )
    }

    /// Returns the offsets of the parts of [`Object::line`].
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the key under which the object is stored.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the resourceVersion.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the values that selectors use.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns about how many bytes of memory this version takes.
    pub fn size(&self) -> usize {
        self.line.len() + size_of::<Self>() + size_of::<Meta>()
    }

    /// Returns the JSON object.
    pub fn bytes(&self) -> Bytes {
        self.line
            .slice(self.layout.object as usize..self.line.len() - LINE_END.len())
    }

    /// Returns the JSON object after `{"apiVersion":..,"kind":..,`: put a `{` before it to have what lists show of
    /// built-in kinds.
    pub fn untyped_tail(&self) -> Bytes {
        self.line
            .slice(self.layout.body as usize..self.line.len() - LINE_END.len())
    }

    /// Returns the number of bytes that the object's text takes.
    pub fn size_bytes(&self) -> usize {
        self.line.len()
    }

    /// Returns the object as a tree.
    pub fn parse(&self) -> Value {
        let bytes = &self.line[self.layout.object as usize..self.line.len() - LINE_END.len()];
        serde_json::from_slice(bytes).expect("stored objects were serialized from trees")
    }

    /// Returns the object as a folded tree with only some parts of the raw field, and the text of that field.
    pub fn parse_with_raw_field(&self, raw_field: &'static RawField) -> (Value, RawFieldText<'_>) {
        let bytes = &self.line[self.layout.object as usize..self.line.len() - LINE_END.len()];
        json::read_with_raw_field(bytes, raw_field)
            .expect("stored objects were serialized from trees")
    }

    /// Returns the object as a folded tree: every `fieldsV1` of its managedFields is a string that holds the set's JSON. For those who
    /// write the object again and look at no other set than their own.
    pub fn parse_folded(&self) -> Value {
        let bytes = &self.line[self.layout.object as usize..self.line.len() - LINE_END.len()];
        json::read_folded(bytes).expect("stored objects were serialized from trees")
    }

    /// Returns the object as a tree that is kept as long as this version is the current one: for objects that are looked up at
    /// many writes of others, as namespaces are.
    pub fn tree(&self) -> Arc<Value> {
        if let Some(tree) = self.tree.load_full() {
            return tree;
        }
        let tree = Arc::new(self.parse());
        self.tree.store(Some(tree.clone()));
        tree
    }

    /// Drops the kept tree of a version that is not current any more.
    pub(super) fn forget_tree(&self) {
        self.tree.store(None);
    }

    /// Returns the watch line of the write that made this version.
    pub fn line(&self) -> Bytes {
        self.line.clone()
    }

    /// Returns a watch line about this version with another first word.
    pub fn line_as(&self, event: EventType) -> Bytes {
        let object = &self.line[self.layout.object as usize..];
        let mut line = Vec::with_capacity(object.len() + 32);
        open_line(&mut line, event);
        line.extend_from_slice(object);
        line.into()
    }

    /// Returns the same content at another revision, as a deletion shows it.
    pub fn deleted_at(&self, revision: u64) -> Object {
        let old = &self.layout;
        let digits = revision.to_string();
        let mut line = Vec::with_capacity(self.line.len() + 8);
        open_line(&mut line, EventType::Deleted);
        let object = line.len() as u32;
        let (slot, after) = (
            old.revision as usize,
            (old.revision + old.revision_len) as usize,
        );
        line.extend_from_slice(&self.line[old.object as usize..slot]);
        line.extend_from_slice(digits.as_bytes());
        line.extend_from_slice(&self.line[after..]);
        let moved = |at: u32| at - old.object + object;
        let layout = Layout {
            object,
            body: moved(old.body),
            revision: moved(old.revision),
            revision_len: digits.len() as u32,
        };
        Object {
            key: self.key.clone(),
            revision,
            line: line.into(),
            layout,
            meta: self.meta.clone(),
            tree: ArcSwapOption::empty(),
        }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key.as_str(), self.revision)
    }
}

fn open_line(line: &mut Vec<u8>, event: EventType) {
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(event.as_str().as_bytes());
    line.extend_from_slice(b"\",\"object\":");
}

/// Writes the object with apiVersion and kind first. Returns where the rest begins, and the slot for the revision.
fn write_object(
    out: &mut Vec<u8>,
    object: &Value,
    raw: Option<&RawFieldText<'_>>,
    expected: u64,
) -> (usize, Range<usize>) {
    let empty = Map::new();
    let object = object.as_object().unwrap_or(&empty);
    let metadata = object
        .get("metadata")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    out.push(b'{');
    for key in ["apiVersion", "kind"] {
        if let Some(value) = object.get(key) {
            json::write_entry(out, key, value);
            out.push(b',');
        }
    }
    let body = out.len();
    out.extend_from_slice(b"\"metadata\":{");
    for (key, value) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
        if key == "managedFields" {
            out.extend_from_slice(b"\"managedFields\":");
            json::write_owners(out, value);
        } else {
            json::write_entry(out, key, value);
        }
        out.push(b',');
    }
    out.extend_from_slice(b"\"resourceVersion\":\"");
    let start = out.len();
    out.extend_from_slice(expected.to_string().as_bytes());
    let slot = start..out.len();
    out.extend_from_slice(b"\"}");
    for (key, value) in object
        .iter()
        .filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata"))
    {
        out.push(b',');
        match raw.filter(|raw| raw.field() == key) {
            Some(raw) => raw.write_entry(out),
            None => json::write_entry(out, key, value),
        }
    }
    out.push(b'}');
    (body, slot)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config_map() -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
               "metadata": {"name": "x", "namespace": "n", "uid": "u", "labels": {"b": "2", "a": "1"}}})
    }

    #[test]
    fn a_revision_of_another_width_than_expected_still_fits() {
        for (expected, revision) in [(9, 9), (9, 10), (1000, 7)] {
            let draft = Draft::new(EventType::Added, &config_map(), Box::default(), expected);
            let object = draft.seal(Key::new(Some("n"), "x"), revision);
            assert_eq!(
                object.parse()["metadata"]["resourceVersion"],
                revision.to_string()
            );
            assert_eq!(object.parse()["data"]["a"], "b");
        }
    }

    #[test]
    fn the_line_the_object_and_the_list_item_are_views_of_one_buffer() {
        let object = Draft::new(EventType::Added, &config_map(), Box::default(), 1)
            .seal(Key::new(Some("n"), "x"), 1);
        let line: Value = serde_json::from_slice(&object.line()).unwrap();
        assert_eq!(line["type"], "ADDED");
        assert_eq!(line["object"], object.parse());
        let item = [b"{".as_slice(), &object.untyped_tail()].concat();
        let item: Value = serde_json::from_slice(&item).unwrap();
        assert_eq!(item.get("kind"), None);
        assert_eq!(item["metadata"], object.parse()["metadata"]);
        assert!(
            object
                .line()
                .as_ptr_range()
                .contains(&object.untyped_tail().as_ptr())
        );
    }

    #[test]
    fn a_deletion_shows_the_last_content_under_its_own_revision() {
        let object = Draft::new(EventType::Added, &config_map(), Box::default(), 1)
            .seal(Key::new(Some("n"), "x"), 9);
        let deleted = object.deleted_at(10);
        let line: Value = serde_json::from_slice(&deleted.line()).unwrap();
        assert_eq!(
            (
                &line["type"],
                &line["object"]["metadata"]["resourceVersion"]
            ),
            (&json!("DELETED"), &json!("10"))
        );
        assert_eq!(deleted.parse()["data"], object.parse()["data"]);
        let again = deleted.deleted_at(1234);
        assert_eq!(again.parse()["metadata"]["resourceVersion"], "1234");
        assert_eq!(
            object.line_as(EventType::Modified)[..20],
            *b"{\"type\":\"MODIFIED\",\""
        );
    }

    #[test]
    fn labels_are_found_without_parsing() {
        let meta = Meta::of(&config_map(), Box::default());
        assert_eq!(
            (meta.label("a"), meta.label("b"), meta.label("c")),
            (Some("1"), Some("2"), None)
        );
    }
}
