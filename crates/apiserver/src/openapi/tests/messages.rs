//! Tests that the v2 document as protobuf, decoded with gnostic's field numbers, equals the JSON.

use std::collections::BTreeMap;

use super::*;

/// The fields of a message by number, in their order.
#[derive(Default)]
struct Message(BTreeMap<u64, Vec<Wire>>);

enum Wire {
    Number(u64),
    Double(f64),
    Bytes(Vec<u8>),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

impl Message {
    fn read(mut bytes: &[u8]) -> Self {
        let mut message = Message::default();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let value = match key & 7 {
                0 => Wire::Number(varint(&mut bytes)),
                1 => {
                    let (double, rest) = bytes.split_first_chunk().unwrap();
                    bytes = rest;
                    Wire::Double(f64::from_le_bytes(*double))
                }
                _ => {
                    let length = usize::try_from(varint(&mut bytes)).unwrap();
                    let (inner, rest) = bytes.split_at(length);
                    bytes = rest;
                    Wire::Bytes(inner.to_vec())
                }
            };
            message.0.entry(key >> 3).or_default().push(value);
        }
        message
    }

    fn all(&self, tag: u64) -> impl Iterator<Item = &Wire> {
        self.0.get(&tag).into_iter().flatten()
    }

    fn messages(&self, tag: u64) -> Vec<Message> {
        let bytes = self.all(tag).map(|value| match value {
            Wire::Bytes(bytes) => Message::read(bytes),
            _ => panic!("field {tag} is no message"),
        });
        bytes.collect()
    }

    fn message(&self, tag: u64) -> Option<Message> {
        self.messages(tag).pop()
    }

    fn texts(&self, tag: u64) -> Vec<String> {
        let texts = self.all(tag).map(|value| match value {
            Wire::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
            _ => panic!("field {tag} is no text"),
        });
        texts.collect()
    }

    fn text(&self, tag: u64) -> Option<Value> {
        self.texts(tag).pop().map(Value::from)
    }

    fn flag(&self, tag: u64) -> Option<Value> {
        self.all(tag).next().map(|_| true.into())
    }

    fn number(&self, tag: u64) -> Option<Value> {
        self.all(tag).next().map(|value| match value {
            Wire::Number(number) => (*number).into(),
            Wire::Double(number) if number.fract() == 0.0 => (*number as i64).into(),
            Wire::Double(number) => (*number).into(),
            Wire::Bytes(_) => panic!("field {tag} is no number"),
        })
    }

    fn named(&self, tag: u64, value: impl Fn(&Message) -> Value) -> Value {
        let entries = self.messages(tag).into_iter();
        entries
            .map(|entry| {
                let inner = entry.message(2).unwrap_or_default();
                (entry.texts(1).remove(0), value(&inner))
            })
            .collect()
    }

    fn yaml(&self) -> Value {
        serde_json::from_str(&self.texts(2)[0]).unwrap()
    }
}

/// Builds an object from the fields that are present.
fn object<const N: usize>(fields: [(&str, Option<Value>); N], extensions: Value) -> Value {
    let fields = fields.into_iter();
    let mut object: Map<String, Value> = fields
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
    object.extend(extensions.as_object().cloned().unwrap_or_default());
    object.into()
}

fn list(values: Vec<Value>) -> Option<Value> {
    (!values.is_empty()).then(|| values.into())
}

fn words(texts: Vec<String>) -> Option<Value> {
    list(texts.into_iter().map(Value::from).collect())
}

fn schema(message: &Message) -> Value {
    let additional = message.message(21).map(|item| match item.message(1) {
        Some(inner) => schema(&inner),
        None => (item.number(2) == Some(1.into())).into(),
    });
    let kind = message.message(22).and_then(|kind| kind.text(1));
    let items = message.message(23).and_then(|items| items.message(1));
    let properties = message.message(25);
    object(
        [
            ("$ref", message.text(1)),
            ("format", message.text(2)),
            ("title", message.text(3)),
            ("description", message.text(4)),
            ("default", message.message(5).map(|any| any.yaml())),
            ("multipleOf", message.number(6)),
            ("maximum", message.number(7)),
            ("exclusiveMaximum", message.flag(8)),
            ("minimum", message.number(9)),
            ("exclusiveMinimum", message.flag(10)),
            ("maxLength", message.number(11)),
            ("minLength", message.number(12)),
            ("pattern", message.text(13)),
            ("maxItems", message.number(14)),
            ("minItems", message.number(15)),
            ("uniqueItems", message.flag(16)),
            ("maxProperties", message.number(17)),
            ("minProperties", message.number(18)),
            ("required", words(message.texts(19))),
            (
                "enum",
                list(message.messages(20).iter().map(Message::yaml).collect()),
            ),
            ("additionalProperties", additional),
            ("type", kind),
            ("items", items.map(|items| schema(&items))),
            (
                "properties",
                properties.map(|properties| properties.named(1, schema)),
            ),
        ],
        message.named(31, Message::yaml),
    )
}

fn parameter(item: &Message) -> Value {
    let parameter = item.message(1).unwrap();
    if let Some(body) = parameter.message(1) {
        let fields = [
            ("description", body.text(1)),
            ("name", body.text(2)),
            ("in", body.text(3)),
            ("required", body.flag(4)),
            ("schema", body.message(5).map(|inner| schema(&inner))),
        ];
        return object(fields, Value::Null);
    }
    let other = parameter.message(2).unwrap();
    let (message, kind, unique) = match other.message(3) {
        Some(query) => (query, 6, 20),
        None => (other.message(4).unwrap(), 5, 19),
    };
    let fields = [
        ("required", message.flag(1)),
        ("in", message.text(2)),
        ("description", message.text(3)),
        ("name", message.text(4)),
        ("type", message.text(kind)),
        ("uniqueItems", message.flag(unique)),
    ];
    object(fields, Value::Null)
}

fn parameters(message: &Message, tag: u64) -> Option<Value> {
    list(message.messages(tag).iter().map(parameter).collect())
}

fn operation(message: &Message) -> Value {
    let responses = message.message(9).unwrap().named(1, |value| {
        let response = value.message(1).unwrap();
        let inner = response.message(2).and_then(|item| item.message(1));
        let fields = [
            ("description", response.text(1)),
            ("schema", inner.map(|inner| schema(&inner))),
        ];
        object(fields, Value::Null)
    });
    object(
        [
            ("tags", words(message.texts(1))),
            ("description", message.text(3)),
            ("operationId", message.text(5)),
            ("produces", words(message.texts(6))),
            ("consumes", words(message.texts(7))),
            ("parameters", parameters(message, 8)),
            ("responses", Some(responses)),
            ("schemes", words(message.texts(10))),
        ],
        message.named(13, Message::yaml),
    )
}

fn item(message: &Message) -> Value {
    let verb = |tag| message.message(tag).map(|verb| operation(&verb));
    let fields = [
        ("get", verb(2)),
        ("put", verb(3)),
        ("post", verb(4)),
        ("delete", verb(5)),
        ("options", verb(6)),
        ("head", verb(7)),
        ("patch", verb(8)),
        ("parameters", parameters(message, 9)),
    ];
    object(fields, Value::Null)
}

fn document(message: &Message) -> Value {
    let info = message.message(2).unwrap();
    let info = object(
        [("title", info.text(1)), ("version", info.text(2))],
        Value::Null,
    );
    let needed = message
        .messages(12)
        .iter()
        .map(|needed| needed.named(1, |_| json!([])))
        .collect();
    let schemes = message.message(13).unwrap().named(1, |scheme| {
        let key = scheme.message(2).unwrap();
        let fields = [
            ("type", key.text(1)),
            ("name", key.text(2)),
            ("in", key.text(3)),
            ("description", key.text(4)),
        ];
        object(fields, Value::Null)
    });
    let fields = [
        ("swagger", message.text(1)),
        ("info", Some(info)),
        (
            "paths",
            message.message(8).map(|paths| paths.named(2, item)),
        ),
        (
            "definitions",
            message
                .message(9)
                .map(|definitions| definitions.named(1, schema)),
        ),
        ("security", list(needed)),
        ("securityDefinitions", Some(schemes)),
    ];
    object(fields, Value::Null)
}

/// Returns the first place where two trees differ.
fn difference(one: &Value, other: &Value, at: &str) -> Option<String> {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            names.into_iter().find_map(|name| {
                let [a, b] = [&one[name], &other[name]];
                difference(a, b, &format!("{at}/{name}"))
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs
                .into_iter()
                .find_map(|(index, (a, b))| difference(a, b, &format!("{at}/{index}")))
        }
        _ => (one != other).then(|| format!("{at}: {one} / {other}")),
    }
}

#[test]
fn the_message_says_what_the_json_says() {
    let registry = registry();
    let made = v2(&registry.table(), &registry, None);
    let tree: Value = serde_json::from_slice(&made.json).unwrap();
    let read = document(&Message::read(&made.protobuf));
    assert_eq!(difference(&tree, &read, ""), None);
    // The parts that are copied from the previous document are the same byte by byte.
    let again = v2(&registry.table(), &registry, Some(&made));
    assert!(again.json == made.json && again.protobuf == made.protobuf);
}
