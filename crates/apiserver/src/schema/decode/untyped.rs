//! The walk over a body without a schema: any value, its duplicate keys reported with their paths.
//!
//! For what has no type of its own: patches, and bodies whose kind is still to be found out. See [`super::walk`] for typed bodies.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{MAX_PROBLEMS, Problem};

/// Reads any value and reports duplicate keys with their paths.
pub(super) struct Untyped<'p> {
    problems: &'p mut Vec<Problem>,
    path: String,
}

impl<'p> Untyped<'p> {
    pub(super) fn new(problems: &'p mut Vec<Problem>) -> Self {
        Untyped {
            problems,
            path: String::new(),
        }
    }

    fn at(&mut self, path: String) -> Untyped<'_> {
        Untyped {
            problems: self.problems,
            path,
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

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        loop {
            let path = format!("{}[{}]", self.path, read.len());
            match items.next_element_seed(self.at(path))? {
                Some(item) => read.push(item),
                None => return Ok(Value::Array(read)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let path = if self.path.is_empty() {
                key.clone()
            } else {
                format!("{}.{key}", self.path)
            };
            if map.contains_key(&key) && self.problems.len() < MAX_PROBLEMS {
                self.problems.push(Problem::Duplicate(path.clone()));
            }
            let value = entries.next_value_seed(self.at(path))?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
