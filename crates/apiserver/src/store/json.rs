//! Trees into JSON and back, for the store: the bytes `serde_json` would write, in one buffer, and reading that leaves the field sets of
//! `metadata.managedFields` as the text they are.
//!
//! Half of a stored pod's structure is in those sets, and most writes change none of them. A tree in which every `fieldsV1` is a string
//! that holds the JSON of the set is *folded* ([`crate::schema::ownership`]); writing a tree unfolds it.

use std::fmt;

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

/// Reads stored bytes as a folded tree.
pub(super) fn read_folded(bytes: &[u8]) -> serde_json::Result<Value> {
    Place::Object.deserialize(&mut serde_json::Deserializer::from_slice(bytes))
}

/// What is being read on the way to a field set.
#[derive(Clone, Copy)]
enum Place {
    Object,
    Metadata,
    Owners,
    Owner,
}

impl Place {
    /// What a field of this place is; `None` for what is read like any other value.
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
}
