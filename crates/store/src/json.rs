//! Serialization of objects for the store: writes the bytes that `serde_json` would write into one buffer, and parses objects while keeping
//! as text the field that most writes do not change.
//!
//! A tree in which every `fieldsV1` of `metadata.managedFields` is a string that holds the JSON of the set is *folded*
//! ([`mullion_schema::ownership`]); writing a tree unfolds it. A *raw* field is parsed only in part ([`mullion_schema::raw_field::ParsedParts`]); its unparsed text
//! ([`RawFieldText`]) is what is stored again.

use std::{borrow::Cow, fmt};

use mullion_schema as schema;
use mullion_schema::raw_field::{ParsedParts, RawField};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, value::RawValue};

/// Appends a value as `serde_json` would write it.
pub(super) fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(_) => serde_json::to_writer(out, value).expect("numbers serialize"),
        Value::String(text) => write_text(out, text),
        Value::Array(items) => write_list(out, items, write),
        Value::Object(map) => {
            out.push(b'{');
            for (index, (key, value)) in map.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_entry(out, key, value);
            }
            out.push(b'}');
        }
    }
}

/// Appends `"key":value`.
pub(super) fn write_entry(out: &mut Vec<u8>, key: &str, value: &Value) {
    write_text(out, key);
    out.push(b':');
    write(out, value);
}

/// Appends the entries of managedFields, folded or not.
pub(super) fn write_owners(out: &mut Vec<u8>, entries: &Value) {
    let Value::Array(entries) = entries else {
        return write(out, entries);
    };
    write_list(out, entries, |out, entry| {
        let Value::Object(entry) = entry else {
            return write(out, entry);
        };
        out.push(b'{');
        for (index, (key, value)) in entry.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            match value {
                Value::String(set) if key == FIELDS => {
                    write_text(out, key);
                    out.push(b':');
                    out.extend_from_slice(set.as_bytes());
                }
                value => write_entry(out, key, value),
            }
        }
        out.push(b'}');
    });
}

fn write_list(out: &mut Vec<u8>, items: &[Value], one: impl Fn(&mut Vec<u8>, &Value)) {
    out.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        one(out, item);
    }
    out.push(b']');
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    // Without a way out of the loop it is done many bytes at a time.
    // These are all characters that serde_json escapes; everything else is copied as it is.
    let special = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    if bytes.iter().fold(false, |any, &byte| any | special(byte)) {
        return serde_json::to_writer(out, text).expect("strings serialize");
    }
    out.reserve(bytes.len() + 2);
    out.push(b'"');
    out.extend_from_slice(bytes);
    out.push(b'"');
}

const FIELDS: &str = "fieldsV1";

/// The unparsed text of a raw field.
#[derive(Debug)]
pub struct RawFieldText<'a> {
    field: &'static str,
    text: Cow<'a, str>,
}

impl RawFieldText<'_> {
    pub(super) fn field(&self) -> &'static str {
        self.field
    }

    pub(super) fn write_entry(&self, out: &mut Vec<u8>) {
        write_text(out, self.field);
        out.push(b':');
        out.extend_from_slice(self.text.as_bytes());
    }

    /// Sets a field of the object in the text.
    pub fn set(&mut self, field: &str, value: &Value) {
        let mut out = Vec::with_capacity(self.text.len() + field.len() + 64);
        out.push(b'{');
        let mut add = |key: &str, text: &dyn Fn(&mut Vec<u8>)| {
            if out.len() > 1 {
                out.push(b',');
            }
            write_text(&mut out, key);
            out.push(b':');
            text(&mut out);
        };
        let new = |out: &mut Vec<u8>| write(out, value);
        let mut is_set = false;
        for (key, text) in entries(&self.text) {
            // Fields stay in the order of their names, as serde_json's sorted map writes them.
            if !is_set && key >= field {
                add(field, &new);
                is_set = true;
            }
            if key != field {
                add(key, &|out| out.extend_from_slice(text.as_bytes()));
            }
        }
        if !is_set {
            add(field, &new);
        }
        out.push(b'}');
        self.text = String::from_utf8(out)
            .expect("it was made of strings")
            .into();
    }

    /// Applies [`schema::normalise`] to all of a tree except the raw field, whose text is normal already.
    pub fn normalise_around(&self, kind: &schema::Type, object: &mut Value) {
        let value = object
            .as_object_mut()
            .and_then(|object| object.remove(self.field));
        schema::normalise(kind, object);
        if let Some(value) = value {
            object[self.field] = value;
        }
    }

    /// Parses the field's text and puts the value into the object.
    pub fn restore(&self, object: &mut Value) {
        object[self.field] = parsed(&self.text);
    }
}

/// Returns the entries of an object in stored text, with the text of their values. Names of fields are written without
/// escapes.
fn entries(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text.get(1..).unwrap_or_default();
    std::iter::from_fn(move || {
        let key = rest.get(..string_len(rest.as_bytes()))?;
        let value = rest.get(key.len() + 1..)?;
        let value = &value[..value_len(value.as_bytes())];
        rest = rest.get(key.len() + value.len() + 2..).unwrap_or_default();
        Some((key.trim_matches('"'), value)).filter(|_| key.len() >= 2)
    })
}

/// Returns the items of a list in stored text.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.get(1..).unwrap_or_default();
    std::iter::from_fn(move || {
        let item = &rest[..value_len(rest.as_bytes())];
        rest = rest.get(item.len() + 1..).unwrap_or_default();
        // Only behind the last item is there no text before the closing bracket.
        Some(item).filter(|item| !item.is_empty())
    })
}

/// Returns the length of the value at the start of `text`. Stored text is well-formed and has no spaces, so counting brackets is enough.
fn value_len(text: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at += string_len(&text[at..]),
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' if depth > 0 => {
                depth -= 1;
                at += 1;
            }
            b',' | b'}' | b']' if depth == 0 => return at,
            _ => {
                at += 1;
                continue;
            }
        }
        if depth == 0 {
            return at;
        }
    }
    at
}

/// Returns the length of the string at the start of `text`, quotes included, or 0 if `text` starts with no string.
fn string_len(text: &[u8]) -> usize {
    if text.first() != Some(&b'"') {
        return 0;
    }
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("stored texts were serialized from trees")
}

/// Parses these parts of an object's text.
fn parse_parts(text: &str, parts: &ParsedParts) -> Value {
    let mut map = Map::new();
    for (key, text) in entries(text) {
        let list = parts.lists.iter().find(|(name, _)| *name == key);
        let value = match (list, text.as_bytes().first()) {
            (Some((_, parts)), Some(b'[')) => {
                items(text).map(|item| parse_parts(item, parts)).collect()
            }
            // Structured fields that were not asked for are the expensive part; their text stays in the raw
            // field.
            (_, Some(b'{' | b'[')) if !parts.whole.contains(&key) => continue,
            _ => parsed(text),
        };
        map.insert(key.to_owned(), value);
    }
    Value::Object(map)
}

/// Reads stored bytes as a folded tree.
pub(super) fn read_folded(bytes: &[u8]) -> serde_json::Result<Value> {
    Place::Object.deserialize(&mut serde_json::Deserializer::from_slice(bytes))
}

/// Reads stored bytes as a folded tree with only some parts of the raw field, and returns the text of that field as well.
pub(super) fn read_with_raw_field<'a>(
    bytes: &'a [u8],
    raw_field: &'static RawField,
) -> serde_json::Result<(Value, RawFieldText<'a>)> {
    let text = std::str::from_utf8(bytes).map_err(serde::de::Error::custom)?;
    let mut object = Map::new();
    let mut field_text = "{}";
    for (key, text) in entries(text) {
        let value = if key == raw_field.field {
            field_text = text;
            parse_parts(text, &raw_field.parts)
        } else if key == "metadata" {
            Place::Metadata.deserialize(&mut serde_json::Deserializer::from_str(text))?
        } else {
            serde_json::from_str(text)?
        };
        object.insert(key.to_owned(), value);
    }
    let raw = RawFieldText {
        field: raw_field.field,
        text: field_text.into(),
    };
    Ok((Value::Object(object), raw))
}

/// The position of the parser on the way to a field set.
#[derive(Clone, Copy)]
enum Place {
    Object,
    Metadata,
    Owners,
    Owner,
}

impl Place {
    /// Returns the place of a field below this one, or `None` for fields that are parsed like any other value.
    fn below(self, field: &str) -> Option<Place> {
        match (self, field) {
            (Place::Object, "metadata") => Some(Place::Metadata),
            (Place::Metadata, "managedFields") => Some(Place::Owners),
            _ => None,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Place {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a stored object")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        while let Some(item) = items.next_element_seed(Place::Owner)? {
            read.push(item);
        }
        Ok(Value::Array(read))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = match self.below(&key) {
                Some(below) => entries.next_value_seed(below)?,
                None if matches!(self, Place::Owner) && key == FIELDS => {
                    // Only whoever owns a field set reads it, so its JSON is kept as text instead of building
                    // a tree.
                    entries.next_value::<&RawValue>()?.get().into()
                }
                None => entries.next_value()?,
            };
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn trees() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[a-z\"\\\\\n\u{1}é]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_entries_and_items_of_a_text_are_those_of_its_tree(trees in prop::collection::vec(trees(), 0..4)) {
            let texts: Vec<String> = trees.iter().map(Value::to_string).collect();
            let list = Value::from(trees.clone()).to_string();
            prop_assert_eq!(items(&list).collect::<Vec<_>>(), texts.clone());
            let names = ["a", "b", "c", "d"];
            let map: Map<String, Value> = names.map(str::to_owned).into_iter().zip(trees).collect();
            let object = Value::Object(map).to_string();
            let expected: Vec<(&str, &str)> = names.into_iter().zip(texts.iter().map(String::as_str)).collect();
            prop_assert_eq!(entries(&object).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn a_tree_is_written_as_serde_json_writes_it(tree in trees()) {
            let mut written = Vec::new();
            write(&mut written, &tree);
            prop_assert_eq!(String::from_utf8(written).unwrap(), tree.to_string());
        }
    }

    #[test]
    fn a_folded_tree_is_written_as_the_one_it_was_read_from() {
        let object = json!({"metadata": {"name": "a", "managedFields": [
            {"manager": "m", "fieldsV1": {"f:spec": {".": {}, "k:{\"name\":\"a\"}": {}}}}, {"manager": "n"},
        ]}, "fieldsV1": {"a": 1}});
        let text = object.to_string();
        let folded = read_folded(text.as_bytes()).unwrap();
        let set = &folded["metadata"]["managedFields"][0]["fieldsV1"];
        assert_eq!(set, r#"{"f:spec":{".":{},"k:{\"name\":\"a\"}":{}}}"#);
        assert_eq!(folded["fieldsV1"], json!({"a": 1}));
        let mut owners = Vec::new();
        write_owners(&mut owners, &folded["metadata"]["managedFields"]);
        let expected = object["metadata"]["managedFields"].to_string();
        assert_eq!(String::from_utf8(owners).unwrap(), expected);
    }

    #[test]
    fn a_raw_field_is_stored_again_as_it_was() {
        static RAW_FIELD: RawField = RawField {
            field: "spec",
            parts: ParsedParts {
                whole: &["os"],
                lists: &[(
                    "containers",
                    &ParsedParts {
                        whole: &[],
                        lists: &[],
                    },
                )],
            },
        };
        let object = json!({"kind": "Pod", "metadata": {"name": "a"}, "status": {"x": [1]}, "spec": {
            "a": {"b": 1}, "containers": [{"name": "c", "env": []}], "flag": true, "os": {"name": "linux"}, "z": [],
        }});
        let text = object.to_string();
        let (mut tree, mut raw) = read_with_raw_field(text.as_bytes(), &RAW_FIELD).unwrap();
        let spec = json!({"containers": [{"name": "c"}], "flag": true, "os": {"name": "linux"}});
        assert_eq!((&tree["spec"], &tree["status"]), (&spec, &object["status"]));
        let mut written = Vec::new();
        raw.write_entry(&mut written);
        let expected = format!("\"spec\":{}", object["spec"]);
        assert_eq!(String::from_utf8(written).unwrap(), expected);
        let mut changed = object.clone();
        for field in ["0", "flag", "node", "zz"] {
            raw.set(field, &json!("n"));
            changed["spec"][field] = json!("n");
        }
        assert_eq!(raw.text, changed["spec"].to_string());
        raw.restore(&mut tree);
        assert_eq!(tree, changed);
    }
}
