//! Decodes a body without a schema, and reports duplicate keys with their paths.
//!
//! For patches, and for bodies whose kind is not known yet. [`super::walk`] decodes typed bodies.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{MAX_PROBLEMS, Problem};

/// Decodes any value and collects duplicate keys.
pub(super) struct Untyped<'p> {
    problems: &'p mut Vec<Problem>,
    place: Place<'p>,
}

/// The path of a value; formatted only for a problem.
#[derive(Clone, Copy)]
enum Place<'p> {
    Root,
    Key(&'p Place<'p>, &'p str),
    Index(&'p Place<'p>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Place::Root => Ok(()),
            Place::Key(Place::Root, key) => f.write_str(key),
            Place::Key(parent, key) => write!(f, "{parent}.{key}"),
            Place::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl<'p> Untyped<'p> {
    pub(super) fn new(problems: &'p mut Vec<Problem>) -> Self {
        Untyped {
            problems,
            place: Place::Root,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Untyped<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Untyped<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        // Go decodes integers beyond `int64` as floats.
        Ok(i64::try_from(value).map_or_else(|_| Value::from(value as f64), Value::from))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        Ok(number.into())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        loop {
            let item = items.next_element_seed(Untyped {
                problems: self.problems,
                place: Place::Index(&self.place, read.len()),
            })?;
            match item {
                Some(item) => read.push(item),
                None => return Ok(Value::Array(read)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let place = Place::Key(&self.place, &key);
            if map.contains_key(&key) && self.problems.len() < MAX_PROBLEMS {
                self.problems.push(Problem::Duplicate(place.to_string()));
            }
            let value = entries.next_value_seed(Untyped {
                problems: self.problems,
                place,
            })?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
