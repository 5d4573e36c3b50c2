//! Decodes objects: structs and maps.

use std::fmt;

use rustc_hash::FxHashSet;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::{Seed, Walker};
use crate::{Field, Struct, TypeId, decode::Problem, zero};

/// Decodes an object whose keys are the fields of a struct.
pub(super) fn read_struct<'de, 's, A: MapAccess<'de>>(
    walker: &mut Walker<'s>,
    fields: &'s Struct,
    mut entries: A,
) -> Result<Value, A::Error> {
    walker.count_object()?;
    let mut map = Map::new();
    // A null field leaves nothing in the map, so remember it to detect duplicates.
    let mut nulls: FxHashSet<&'s str> = FxHashSet::default();
    let outer = walker.owner;
    let owner = fields.go_name();
    while let Some(key) = entries.next_key_seed(FieldName(fields))? {
        let (field, name) = match key {
            Key::Known(field, name) => (field, name),
            Key::Unknown(unknown) => {
                entries.next_value::<IgnoredAny>()?;
                walker.report(&unknown, Problem::Unknown);
                continue;
            }
        };
        let again = map.contains_key(&*field.name);
        if again || nulls.contains(&*field.name) {
            walker.report(&field.name, Problem::Duplicate);
        }
        walker.owner = owner;
        let length = walker.enter(&field.name);
        let depth = walker.fields.len();
        // More than one tag means that Go embeds a struct here.
        if field.tags.len() > 1 {
            walker.fields.extend(embedded(owner, &field.name));
        }
        walker.fields.push(&field.name);
        let value = entries.next_value_seed(Seed {
            walker,
            id: field.id,
            go: &field.go,
        })?;
        walker.fields.truncate(depth);
        walker.path.truncate(length);
        if value.is_null() {
            nulls.insert(&field.name);
            continue;
        }
        let name = name.unwrap_or_else(|| field.name.to_string());
        if again {
            add(&mut map, name, value);
        } else {
            map.insert(name, value);
        }
    }
    walker.owner = outer;
    zero::complete_telling(walker.arena, fields, &mut map, |field| {
        walker.note_emptied(&field.name);
    });
    Ok(Value::Object(map))
}

/// Returns the Go structs that a struct embeds and that have one of its fields, from the outermost. Go's decoder names them in the path of
/// a value of a wrong type, although JSON does not have them.
fn embedded(owner: &str, field: &str) -> &'static [&'static str] {
    match owner {
        "ConfigMapEnvSource"
        | "ConfigMapKeySelector"
        | "ConfigMapProjection"
        | "ConfigMapVolumeSource"
        | "SecretEnvSource"
        | "SecretKeySelector"
        | "SecretProjection" => &["LocalObjectReference"],
        "DeviceAllocationConfiguration"
        | "DeviceClaimConfiguration"
        | "DeviceClassConfiguration" => &["DeviceConfiguration"],
        "EphemeralContainer" => &["EphemeralContainerCommon"],
        "IngressRule" => &["IngressRuleValue"],
        "NamedRuleWithOperations" if field == "operations" => &["RuleWithOperations"],
        "NamedRuleWithOperations" => &["RuleWithOperations", "Rule"],
        "PersistentVolumeSpec" => &["PersistentVolumeSource"],
        "Probe" => &["ProbeHandler"],
        "RuleWithOperations" => &["Rule"],
        "Volume" => &["VolumeSource"],
        _ => &[],
    }
}

/// Decodes a duplicate field into the same place, as Go does: objects are merged, other values are replaced.
fn add(map: &mut Map<String, Value>, key: String, value: Value) {
    match (map.get_mut(&key), value) {
        (Some(Value::Object(present)), Value::Object(more)) => {
            for (key, value) in more {
                add(present, key, value);
            }
        }
        (_, value) => {
            map.insert(key, value);
        }
    }
}

/// Decodes an object with arbitrary keys.
pub(super) fn read_map<'de, 's, A: MapAccess<'de>>(
    walker: &mut Walker<'s>,
    id: TypeId,
    go: &'s str,
    mut entries: A,
) -> Result<Value, A::Error> {
    walker.count_object()?;
    let mut map = Map::new();
    while let Some(key) = entries.next_key::<String>()? {
        if map.contains_key(&key) {
            walker.report(&key, Problem::Duplicate);
        }
        let length = walker.enter(&key);
        let value = entries.next_value_seed(Seed { walker, id, go })?;
        walker.path.truncate(length);
        // In a Go map, null becomes the zero value of the type.
        let value = if value.is_null() {
            zero::zero(walker.arena, id)
        } else {
            value
        };
        map.insert(key, value);
    }
    Ok(Value::Object(map))
}

/// A key of an object that is decoded as a struct.
enum Key<'s> {
    /// A field of the type, with the key's own string if the input gives it away.
    Known(&'s Field, Option<String>),
    Unknown(String),
}

/// Finds the field that a key names without copying the key; returns the text of an unknown key.
struct FieldName<'s>(&'s Struct);

impl<'de, 's> DeserializeSeed<'de> for FieldName<'s> {
    type Value = Key<'s>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_string(self)
    }
}

impl<'s> Visitor<'_> for FieldName<'s> {
    type Value = Key<'s>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(match self.0.field(name) {
            Some(field) => Key::Known(field, None),
            None => Key::Unknown(name.to_owned()),
        })
    }

    fn visit_string<E: serde::de::Error>(self, name: String) -> Result<Self::Value, E> {
        Ok(match self.0.field(&name) {
            Some(field) if *field.name == *name => Key::Known(field, Some(name)),
            Some(field) => Key::Known(field, None),
            None => Key::Unknown(name),
        })
    }
}
