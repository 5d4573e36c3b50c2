//! Maps with the semantics of cel-go (common/types/map.go): a key is any value that Go can compare, and a number finds the integer key
//! that equals it.
//!
//! The cel crate's maps have only integer, boolean and string keys. Maps with other keys are [`MixedKeyMap`].

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use kube_cel::cel::{
    Value,
    objects::{Key, KeyRef, Map, Opaque},
};
use mullion_kube_text::golang::number::whole;

use super::{
    error::EvalError,
    total::total,
    values::{TypeValue, go_type, of_key},
};

/// The identity of a key as a Go map key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    Null,
    /// The bits of a double.
    Double(u64),
    /// A NaN, which equals nothing, not even itself; the number of earlier entries distinguishes it.
    NotANumber(usize),
    /// Seconds and nanoseconds.
    Time(i64, u32),
    Duration(i64, i32),
    Type(String),
    /// Lists, maps and library values are pointers in Go.
    Place(usize),
}

/// A map with keys of any type.
#[derive(Debug)]
pub(super) struct MixedKeyMap {
    plain: Map,
    /// The entries with other keys, each with the key itself.
    others: BTreeMap<Identity, (Value, Value)>,
}

// Maps are compared with [`super::values::equal`] only.
impl PartialEq for MixedKeyMap {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for MixedKeyMap {}

impl Opaque for MixedKeyMap {
    fn runtime_type_name(&self) -> &str {
        "map"
    }
}

/// A map under construction.
#[derive(Default)]
pub(super) struct Entries {
    plain: HashMap<Key, Value>,
    others: BTreeMap<Identity, (Value, Value)>,
}

impl Entries {
    /// Sets the value of a key.
    ///
    /// # Errors
    /// Go cannot compare such keys.
    pub(super) fn insert(&mut self, key: Value, value: Value) -> Result<(), EvalError> {
        if let Some(key) = plain_key(&key) {
            self.plain.insert(key, value);
            return Ok(());
        }
        let identity = identity(&key, self.others.len())?;
        self.others.insert(identity, (key, value));
        Ok(())
    }

    /// Returns whether the map finds a key.
    pub(super) fn finds(&self, key: &Value) -> bool {
        if let Some(key) = plain_key(key) {
            let other = match key {
                Key::Int(number) => u64::try_from(number).ok().map(Key::Uint),
                Key::Uint(number) => i64::try_from(number).ok().map(Key::Int),
                _ => None,
            };
            let other = other.is_some_and(|other| self.plain.contains_key(&other));
            return other || self.plain.contains_key(&key);
        }
        // No entry has this number, so a NaN is never found.
        let same = identity(key, usize::MAX);
        let mut wholes = wholes(key);
        same.is_ok_and(|same| self.others.contains_key(&same))
            || wholes.any(|whole| self.plain.contains_key(&whole))
    }

    /// Removes a key and its value.
    pub(super) fn remove(&mut self, key: &Value) {
        match plain_key(key) {
            Some(key) => {
                self.plain.remove(&key);
            }
            None => {
                let identity = identity(key, self.others.len());
                identity.ok().map(|identity| self.others.remove(&identity));
            }
        }
    }

    /// Returns the finished map.
    pub(super) fn finish(self) -> Value {
        let plain = Map {
            map: Arc::new(self.plain),
        };
        if self.others.is_empty() {
            Value::Map(plain)
        } else {
            Value::Opaque(Arc::new(MixedKeyMap {
                plain,
                others: self.others,
            }))
        }
    }
}

fn plain_key(value: &Value) -> Option<Key> {
    Some(match value {
        Value::Int(number) => Key::Int(*number),
        Value::UInt(number) => Key::Uint(*number),
        Value::Bool(truth) => Key::Bool(*truth),
        Value::String(text) => Key::String(text.clone()),
        _ => return None,
    })
}

/// Returns the integer keys that equal a double.
fn wholes(key: &Value) -> impl Iterator<Item = Key> + use<> {
    let number = match key {
        Value::Float(number) => *number,
        _ => f64::NAN,
    };
    // `u64::MAX as f64` is 2^64, which is not a uint, so the end is excluded.
    let fits = number.fract() == 0.0 && (0.0..u64::MAX as f64).contains(&number);
    let int = whole(number).map(Key::Int);
    int.into_iter()
        .chain(fits.then_some(Key::Uint(number as u64)))
}

fn identity(key: &Value, others: usize) -> Result<Identity, EvalError> {
    Ok(match key {
        Value::Null => Identity::Null,
        Value::Float(number) if number.is_nan() => Identity::NotANumber(others),
        // Positive and negative zero are the same key.
        Value::Float(number) => Identity::Double((number + 0.0).to_bits()),
        Value::Timestamp(time) => Identity::Time(time.timestamp(), time.timestamp_subsec_nanos()),
        Value::Duration(duration) => {
            Identity::Duration(duration.num_seconds(), duration.subsec_nanos())
        }
        // The entry keeps the key alive, so no other value gets its address.
        Value::List(items) => Identity::Place(Arc::as_ptr(items).addr()),
        Value::Map(map) => Identity::Place(Arc::as_ptr(&map.map).addr()),
        Value::Opaque(opaque) => match opaque.downcast_ref::<TypeValue>() {
            Some(TypeValue(name)) => Identity::Type(name.clone()),
            None => Identity::Place(Arc::as_ptr(opaque).addr()),
        },
        other => return Err(EvalError::Unhashable(go_type(other).to_owned())),
    })
}

/// A map of either representation.
#[derive(Clone, Copy)]
pub(super) enum AnyMap<'v> {
    Plain(&'v Map),
    Mixed(&'v MixedKeyMap),
}

/// Returns a value as a map, if it is one. Of a total map, these are the real entries.
pub(super) fn as_map(value: &Value) -> Option<AnyMap<'_>> {
    match value {
        Value::Map(map) => Some(AnyMap::Plain(map)),
        Value::Opaque(opaque) => match total(value) {
            Some(total) => as_map(&total.map),
            None => opaque.downcast_ref().map(AnyMap::Mixed),
        },
        _ => None,
    }
}

impl<'v> AnyMap<'v> {
    pub(super) fn len(self) -> usize {
        match self {
            AnyMap::Plain(map) => map.map.len(),
            AnyMap::Mixed(mixed) => mixed.plain.map.len() + mixed.others.len(),
        }
    }

    /// Returns the value of a key, or of an integer key of another type that equals it.
    pub(super) fn get(self, key: &Value) -> Option<&'v Value> {
        let plain = match self {
            AnyMap::Plain(map) => map,
            AnyMap::Mixed(mixed) => &mixed.plain,
        };
        if let Some(key) = plain_key(key) {
            return plain.get(&key);
        }
        // A double's own entry comes before the integer key that equals it.
        if let AnyMap::Mixed(mixed) = self
            && let Ok(identity) = identity(key, usize::MAX)
            && let Some((_, value)) = mixed.others.get(&identity)
        {
            return Some(value);
        }
        wholes(key).find_map(|key| plain.map.get(&key))
    }

    /// Iterates over keys and values.
    pub(super) fn iter(self) -> impl Iterator<Item = (Value, &'v Value)> {
        let (plain, others) = match self {
            AnyMap::Plain(map) => (map, None),
            AnyMap::Mixed(mixed) => (&mixed.plain, Some(&mixed.others)),
        };
        let entries = plain.map.iter().map(|(key, value)| (of_key(key), value));
        let others = others.into_iter().flat_map(BTreeMap::values);
        entries.chain(others.map(|(key, value)| (key.clone(), value)))
    }

    /// Returns the keys and values in a deterministic order.
    pub(super) fn entries(self) -> Vec<(Value, &'v Value)> {
        let mut entries: Vec<(Value, &Value)> = self.iter().collect();
        entries.sort_by_cached_key(|(key, _)| plain_key(key).ok_or(()));
        entries
    }

    /// Returns the value of a string key.
    pub(super) fn named(self, name: &str) -> Option<&'v Value> {
        let plain = match self {
            AnyMap::Plain(map) => map,
            AnyMap::Mixed(mixed) => &mixed.plain,
        };
        plain.get(&KeyRef::String(name))
    }
}
