//! Decodes a typed body: one serde visitor for every type of the schema.
//!
//! As in Go's decoder, the first value of a wrong type is remembered and decoding continues; an invalid value with a syntax of its own
//! (quantity, time) ends it; unknown and duplicate fields are collected, at most 100 and each once.

mod object;

use std::fmt::{self, Write as _};

use ::base64::{Engine, engine::general_purpose::STANDARD};
use mullion_kube_text::{golang::number, quantity};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use self::object::{read_map, read_struct};
use super::{
    DecodeError, Decoded, MAX_OBJECTS, MAX_PROBLEMS, Problem, base64, json_kind, literals,
};
use crate::{Arena, Node, Scalar, Type, TypeId, time, zero};

/// The total bytes beyond which no more paths are recorded: with long keys, the paths could be many times as long as the body.
pub(super) const MAX_PATH_BYTES: usize = 16 << 20;

/// The state of decoding one body.
pub(super) struct Walker<'s> {
    arena: &'s Arena,
    /// The current path, as strict errors write it: `spec.containers[0]`.
    path: String,
    /// The fields on the current path, as type errors write them: without indexes and map keys.
    fields: Vec<&'s str>,
    /// The Go struct whose field is being decoded.
    owner: &'s str,
    problems: Vec<Problem>,
    /// The paths of lists, maps and byte strings that were sent empty.
    emptied: Vec<String>,
    /// The total length in bytes of the paths recorded so far.
    path_bytes: usize,
    /// The number of objects decoded so far.
    objects: usize,
    /// Whether this walk decodes a schema inside a union, where nothing is reported.
    in_union: bool,
    /// Whether some strings may be marked number literals ([`literals`]).
    is_marked: bool,
    /// Whether a number that is not an integer was found.
    pub(super) met_float: bool,
    /// The first value of a wrong type.
    wrong: Option<DecodeError>,
    /// The error that ended decoding.
    fatal: Option<DecodeError>,
}

impl<'s> Walker<'s> {
    pub(super) fn new(kind: &'s Type) -> Self {
        Walker {
            arena: kind.arena(),
            path: String::new(),
            fields: Vec::new(),
            owner: "",
            problems: Vec::new(),
            emptied: Vec::new(),
            path_bytes: 0,
            objects: 0,
            in_union: false,
            is_marked: false,
            met_float: false,
            wrong: None,
            fatal: None,
        }
    }

    /// Creates a walker for a body in which literals may be marked.
    pub(super) fn of_marked(kind: &'s Type, is_marked: bool) -> Self {
        Walker {
            is_marked,
            ..Walker::new(kind)
        }
    }

    /// Creates a walker that starts below a field of a custom resource's root.
    pub(super) fn below(kind: &'s Type, field: &'s str) -> Self {
        let mut walker = Walker::new(kind);
        walker.path.push_str(field);
        walker
    }

    /// Returns the seed that decodes a whole body.
    pub(super) fn seed<'w>(&'w mut self, kind: &'s Type) -> Seed<'w, 's> {
        let go = match kind.node() {
            Node::Struct(fields) => fields.go_type(),
            _ => "",
        };
        Seed {
            walker: self,
            id: kind.id(),
            go,
        }
    }

    /// Returns the result after the body was decoded to its end.
    pub(super) fn finish(self, value: Value) -> Result<Decoded, DecodeError> {
        match self.wrong {
            Some(error) => Err(error),
            None => Ok(Decoded {
                value,
                problems: self.problems,
                emptied: self.emptied.into(),
            }),
        }
    }

    /// Returns the error that ended decoding, unless it was the body's syntax.
    pub(super) fn failed(self) -> Option<DecodeError> {
        self.fatal
    }

    /// Reports a problem with a field of the current value; its path is formatted only if there is room for it.
    fn report(&mut self, name: &str, problem: impl FnOnce(String) -> Problem) {
        if self.problems.len() < MAX_PROBLEMS && self.path_bytes < MAX_PATH_BYTES {
            let problem = problem(self.path_to(name));
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
    }

    /// Counts a decoded object, and ends decoding if there are too many.
    fn count_object<E: serde::de::Error>(&mut self) -> Result<(), E> {
        self.objects += 1;
        if self.objects > MAX_OBJECTS {
            self.fatal = Some(DecodeError::TooLarge);
            return Err(E::custom("too many objects"));
        }
        Ok(())
    }

    /// Records that a field of the current value was sent empty.
    fn note_emptied(&mut self, name: &str) {
        if self.path_bytes < MAX_PATH_BYTES {
            let path = self.path_to(name);
            self.emptied.push(path);
        }
    }

    fn path_to(&mut self, name: &str) -> String {
        self.path_bytes += self.path.len() + name.len();
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    fn enter(&mut self, name: &str) -> usize {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        length
    }

    fn type_error(&self, found: &str, go: &str) -> DecodeError {
        let place = if self.fields.is_empty() {
            "Go value of type ".to_owned()
        } else {
            format!(
                "Go struct field {}.{} of type ",
                self.owner,
                self.fields.join(".")
            )
        };
        DecodeError::Type {
            value: found.to_owned(),
            place,
            go: go.trim_start_matches('*').to_owned(),
        }
    }
}

/// Returns the Go type of a list's items or a map's values.
fn go_element(go: &str) -> &str {
    let go = go.trim_start_matches('*');
    go.strip_prefix("[]")
        .or_else(|| {
            go.strip_prefix("map[")
                .and_then(|rest| rest.split_once(']'))
                .map(|(_, value)| value)
        })
        .unwrap_or(go)
}

/// Decodes one value of one type. Null becomes `Value::Null` and means absent.
pub(super) struct Seed<'w, 's> {
    walker: &'w mut Walker<'s>,
    id: TypeId,
    go: &'s str,
}

impl<'s> Seed<'_, 's> {
    fn node(&self) -> &'s Node {
        self.walker.arena.node(self.id)
    }

    /// Handles a value of the wrong JSON type: remembers the error and continues, or ends decoding for types that parse themselves.
    fn mismatch<E: serde::de::Error>(self, found: &str) -> Result<Value, E> {
        match self.node() {
            Node::Scalar(Scalar::Quantity) => {
                self.walker.fatal = Some(quantity::QuantityError::Format.into());
                return Err(E::custom("quantity"));
            }
            Node::Scalar(Scalar::Time | Scalar::MicroTime) => {
                self.walker.fatal = Some(self.walker.type_error(found, "string"));
                return Err(E::custom("time"));
            }
            Node::Scalar(Scalar::IntOrString) => {
                self.walker.fatal = Some(self.walker.type_error(found, "int32"));
                return Err(E::custom("int or string"));
            }
            Node::Scalar(Scalar::SchemaOrBool) => {
                let why = "boolean or JSON schema expected".to_owned();
                return self.fatal(DecodeError::Embedded(why));
            }
            // These types parse themselves, too, and leave out what they do not know.
            Node::Scalar(Scalar::SchemaOrArray | Scalar::SchemaOrStrings) => {}
            _ if self.walker.wrong.is_some() => {}
            _ => self.walker.wrong = Some(self.walker.type_error(found, self.go)),
        }
        Ok(Value::Null)
    }

    fn fatal<E: serde::de::Error>(self, error: DecodeError) -> Result<Value, E> {
        self.walker.fatal = Some(error);
        Err(E::custom("unreadable value"))
    }

    /// Decodes a number given as its literal.
    fn literal<E: serde::de::Error>(self, literal: &str) -> Result<Value, E> {
        match (self.node(), literals::number(literal)) {
            (Node::Scalar(Scalar::Quantity), _) => match quantity::canonical(literal) {
                Ok(text) => Ok(text.into()),
                Err(error) => self.fatal(error.into()),
            },
            (Node::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::IntOrString), Some(number))
                if number.is_i64() =>
            {
                self.number(number)
            }
            // Go parses integers from the literal, so `1.0` and `1e3` are errors.
            (Node::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::IntOrString), _) => {
                self.mismatch(&format!("number {literal}"))
            }
            (_, Some(number)) => self.number(number),
            (Node::Scalar(Scalar::Double), None) => self.mismatch(&format!("number {literal}")),
            (_, None) => self.mismatch("number"),
        }
    }

    fn number<E: serde::de::Error>(self, number: Number) -> Result<Value, E> {
        let Node::Scalar(scalar) = self.node() else {
            return self.mismatch("number");
        };
        match scalar {
            Scalar::Int32 | Scalar::IntOrString
                if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) =>
            {
                Ok(number.into())
            }
            Scalar::Int64 if number.is_i64() => Ok(number.into()),
            Scalar::Int32 | Scalar::IntOrString | Scalar::Int64 => {
                self.mismatch(&format!("number {number}"))
            }
            Scalar::Double => {
                // Go writes a whole float without a decimal point, and of a large one the digits that a float has.
                let float = number.as_f64();
                Ok(float.map_or(number.into(), number::encoded))
            }
            Scalar::Json | Scalar::RawExtension | Scalar::FieldsV1 => Ok(number.into()),
            Scalar::Quantity => match quantity::canonical(&number.to_string()) {
                Ok(text) => Ok(text.into()),
                Err(error) => self.fatal(error.into()),
            },
            _ => self.mismatch("number"),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        match self.node() {
            Node::Scalar(
                Scalar::Bool
                | Scalar::Json
                | Scalar::RawExtension
                | Scalar::FieldsV1
                | Scalar::SchemaOrBool,
            ) => Ok(value.into()),
            _ => self.mismatch("bool"),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.number(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        // Beyond `int64` the literal may matter, as for floats.
        self.walker.met_float |= i64::try_from(value).is_err();
        self.number(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        self.walker.met_float = true;
        match Number::from_f64(value) {
            Some(number) => self.number(number),
            None => self.mismatch("number"),
        }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        if self.walker.is_marked
            && let Some(literal) = literals::literal(text)
        {
            return self.literal(literal);
        }
        let Node::Scalar(scalar) = self.node() else {
            return self.mismatch("string");
        };
        match scalar {
            Scalar::String
            | Scalar::IntOrString
            | Scalar::Json
            | Scalar::RawExtension
            | Scalar::FieldsV1 => Ok(text.into()),
            Scalar::Bytes => match base64::canonical(text) {
                Ok(text) => Ok(text.into()),
                Err(at) => {
                    self.walker.wrong.get_or_insert(DecodeError::Base64(at));
                    Ok(Value::Null)
                }
            },
            Scalar::Quantity => match quantity::canonical(text) {
                Ok(text) => Ok(text.into()),
                Err(error) => self.fatal(error.into()),
            },
            Scalar::Time => match time::seconds(text) {
                Ok(text) => Ok(text.into()),
                Err(error) => self.fatal(error.into()),
            },
            Scalar::MicroTime => match time::micros(text) {
                Ok(text) => Ok(text.into()),
                Err(error) => self.fatal(error.into()),
            },
            _ => self.mismatch("string"),
        }
    }

    /// Decodes an owned string, as a tree passes it, without a copy.
    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Value, E> {
        match self.node() {
            Node::Scalar(Scalar::String) if !self.walker.is_marked => Ok(text.into()),
            _ => self.visit_str(&text),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        match self.node() {
            Node::List(list) => {
                let mut read = Vec::with_capacity(items.size_hint().unwrap_or(0).min(1024));
                let go = go_element(self.go);
                loop {
                    let length = self.walker.path.len();
                    push_index(&mut self.walker.path, read.len());
                    let item = items.next_element_seed(Seed {
                        walker: self.walker,
                        id: list.item,
                        go,
                    })?;
                    self.walker.path.truncate(length);
                    match item {
                        // In a Go slice, null becomes the zero value of the type.
                        Some(Value::Null) => read.push(zero::zero(self.walker.arena, list.item)),
                        Some(value) => read.push(value),
                        None => return Ok(Value::Array(read)),
                    }
                }
            }
            Node::Scalar(Scalar::Json | Scalar::RawExtension | Scalar::FieldsV1) => {
                collect(self.walker, items)
            }
            Node::Scalar(Scalar::SchemaOrStrings) => collect(self.walker, items),
            Node::Scalar(Scalar::Bytes) => listed_bytes(self.walker, items),
            Node::Scalar(Scalar::SchemaOrArray) => {
                let Value::Array(schemas) = collect(self.walker, items)? else {
                    unreachable!("a sequence is an array")
                };
                let known = |schema| known_schema_fields(self.walker, schema);
                Ok(schemas.into_iter().map(known).collect())
            }
            _ => {
                // Go skips the value and goes on, so it has to be read to its end.
                while items.next_element::<IgnoredAny>()?.is_some() {}
                self.mismatch("array")
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        match self.node() {
            Node::Struct(fields) => read_struct(self.walker, fields, entries),
            Node::Map { value, .. } => read_map(self.walker, *value, go_element(self.go), entries),
            Node::Scalar(Scalar::Json | Scalar::RawExtension | Scalar::FieldsV1) => {
                collect_map(self.walker, entries)
            }
            Node::Scalar(
                Scalar::SchemaOrBool | Scalar::SchemaOrArray | Scalar::SchemaOrStrings,
            ) => {
                let schema = collect_map(self.walker, entries)?;
                Ok(known_schema_fields(self.walker, schema))
            }
            _ => {
                // As above, the value is skipped.
                while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                self.mismatch("object")
            }
        }
    }
}

/// Decodes a byte string that was sent as a list of numbers, as Go's decoder does.
fn listed_bytes<'de, A: SeqAccess<'de>>(
    walker: &mut Walker<'_>,
    mut items: A,
) -> Result<Value, A::Error> {
    let mut bytes = Vec::new();
    while let Some(item) = items.next_element::<Value>()? {
        let item = restored(walker, item);
        let byte = item.as_u64().and_then(|number| u8::try_from(number).ok());
        if byte.is_none() && !item.is_null() && walker.wrong.is_none() {
            let found = match &item {
                Value::Number(number) => format!("number {number}"),
                other => json_kind(other).to_owned(),
            };
            walker.wrong = Some(walker.type_error(&found, "uint8"));
        }
        bytes.push(byte.unwrap_or_default());
    }
    Ok(STANDARD.encode(bytes).into())
}

fn collect<'de, A: SeqAccess<'de>>(walker: &Walker<'_>, mut items: A) -> Result<Value, A::Error> {
    let mut read = Vec::new();
    while let Some(item) = items.next_element::<Value>()? {
        read.push(item);
    }
    Ok(restored(walker, Value::Array(read)))
}

fn collect_map<'de, A: MapAccess<'de>>(
    walker: &Walker<'_>,
    mut entries: A,
) -> Result<Value, A::Error> {
    let mut map = Map::new();
    while let Some((key, value)) = entries.next_entry::<String, Value>()? {
        map.insert(key, value);
    }
    Ok(restored(walker, Value::Object(map)))
}

fn restored(walker: &Walker<'_>, mut value: Value) -> Value {
    if walker.is_marked {
        literals::restore(&mut value);
    }
    value
}

/// Decodes a schema inside a union. kube-apiserver decodes those with a plain decoder: unknown fields are dropped and nothing is
/// reported. A schema with values of wrong types stays unchanged.
fn known_schema_fields(outer: &mut Walker<'_>, schema: Value) -> Value {
    let kind = Type::builtin("apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps");
    let Some(kind) = kind else { return schema };
    // One copy at the outermost union suffices; copies at each level would multiply the memory.
    let original = (!outer.in_union).then(|| schema.clone());
    let mut walker = Walker::new(&kind);
    walker.in_union = true;
    let read = walker.seed(&kind).deserialize(schema);
    let decoded = match read {
        Ok(value) => walker.finish(value),
        Err(error) => Err(walker
            .failed()
            .unwrap_or_else(|| DecodeError::Syntax(error.to_string()))),
    };
    decoded.map_or_else(
        |error| {
            outer.wrong = outer.wrong.take().or(original.is_none().then_some(error));
            original.unwrap_or_default()
        },
        |decoded| decoded.value,
    )
}

/// Appends `[index]` to a path.
fn push_index(path: &mut String, index: usize) {
    path.push('[');
    match u8::try_from(index) {
        Ok(digit @ 0..=9) => path.push((b'0' + digit) as char),
        _ => write!(path, "{index}").expect("writing to a string does not fail"),
    }
    path.push(']');
}
