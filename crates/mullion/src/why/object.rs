//! Reads an object from JSON text into a [`State`], with the lists it may be in, and words the errors.
//!
//! The kind may be anywhere in the object. If it comes first, as clients write it, the rest is read only once.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
        value::MapAccessDeserializer,
    },
};
use serde_json::{Map, Value, value::RawValue};

use super::state::State;

/// Deserializes one object into a state.
pub(super) struct Object<'s> {
    pub(super) state: &'s mut State,
    /// The kind of an object that has no `kind` field.
    pub(super) usual: &'s str,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        // Clients write apiVersion and kind first; then the other fields can be read straight into the kind's type.
        let mut before = Map::new();
        let kind = loop {
            match map.next_key::<Text<'de>>()?.as_ref().map(|key| &*key.0) {
                Some("apiVersion") => drop(map.next_value::<IgnoredAny>()?),
                Some("kind") => break map.next_value::<Text<'de>>()?.0,
                // The kind is still to come, so the field is kept until its type is known.
                Some(other) if self.usual.is_empty() => {
                    before.insert(other.to_owned(), map.next_value()?);
                }
                Some(other) => {
                    before.insert(other.to_owned(), map.next_value()?);
                    break Cow::Borrowed(self.usual);
                }
                None => break Cow::Borrowed(self.usual),
            }
        };
        if before.is_empty() {
            return self.state.take(&kind, MapAccessDeserializer::new(map));
        }
        while let Some((key, value)) = map.next_entry()? {
            before.insert(key, value);
        }
        let own = before.get("kind").and_then(Value::as_str);
        let kind = own.map_or_else(|| kind.into_owned(), str::to_owned);
        let whole = Value::Object(before);
        self.state.take(&kind, &whole).map_err(A::Error::custom)
    }
}

/// Reads an object into `T` and checks that it has a name.
pub(super) fn named<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    rest: D,
    name: impl Fn(&T) -> &String,
) -> Result<T, D::Error> {
    let object = T::deserialize(rest)?;
    if name(&object).is_empty() {
        Err(D::Error::custom("an object without a name"))
    } else {
        Ok(object)
    }
}

/// Reads an object as JSON and checks that it has a name.
pub(super) fn whole<'de, D: Deserializer<'de>>(rest: D) -> Result<Value, D::Error> {
    let object = Value::deserialize(rest)?;
    match object["metadata"]["name"].as_str() {
        Some(name) if !name.is_empty() => Ok(object),
        _ => Err(D::Error::custom("an object without a name")),
    }
}

/// Returns whether a text is a list.
pub(super) fn is_list(object: &str, usual: &str) -> bool {
    #[derive(Deserialize)]
    struct Kind {
        kind: Option<String>,
    }
    let own = serde_json::from_str(object).map(|Kind { kind }| kind);
    own.ok()
        .flatten()
        .unwrap_or_else(|| usual.to_owned())
        .ends_with("List")
}

/// Returns an object's kind, namespace and name for error messages, as in `Pod shop/web`.
pub(super) fn title(object: &RawValue, usual: &str) -> String {
    let object: Value = serde_json::from_str(object.get()).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = Some(text(&object["kind"])).filter(|kind| !kind.is_empty());
    let meta = &object["metadata"];
    let name = match (text(&meta["namespace"]), text(&meta["name"])) {
        (home, name) if home.is_empty() => name,
        (home, name) => format!("{home}/{name}"),
    };
    let words = [kind.unwrap_or_else(|| usual.to_owned()), name];
    let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// Returns what is wrong with an object, without line and column, which mean nothing to the user here.
pub(super) fn fault(error: &serde_json::Error) -> String {
    let mut text = error.to_string();
    text.truncate(text.rfind(" at line ").unwrap_or(text.len()));
    text
}

/// Deserializes a list inside a list.
pub(super) struct Nested<'s> {
    pub(super) state: &'s mut State,
    pub(super) usual: &'s str,
}

impl<'de> Visitor<'de> for Nested<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Text<'de>>()? {
            match &*key.0 {
                "items" => map.next_value_seed(Items {
                    state: &mut *self.state,
                    usual: self.usual,
                })?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// A string of the input; it is copied only if it has escape sequences.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Deserializes the items of a list into a state.
pub(super) struct Items<'s> {
    pub(super) state: &'s mut State,
    /// The kind of items that have no `kind` field.
    pub(super) usual: &'s str,
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0;
        loop {
            let object = Object {
                state: &mut *self.state,
                usual: self.usual,
            };
            let at = |error| A::Error::custom(format!("items[{index}]: {error}"));
            if list.next_element_seed(object).map_err(at)?.is_none() {
                return Ok(());
            }
            index += 1;
        }
    }
}
