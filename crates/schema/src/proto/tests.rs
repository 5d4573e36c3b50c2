//! Tests of the encoding: round trips of random objects, and bytes that real clients send.

use base64::{Engine, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::{Arena, Node, Presence, Scalar, TypeId, choices::Choices, normalise};

/// The types of requests and responses that are not resources.
const OTHERS: &[&str] = &[
    "api.autoscaling.v1.Scale",
    "api.policy.v1.Eviction",
    "api.authentication.v1.TokenRequest",
    "apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "apimachinery.pkg.apis.meta.v1.Status",
];

/// Returns the types of all kinds of the table, served or not, and of [`OTHERS`].
fn kinds() -> Vec<Type> {
    let is_kind = |kind: &Type| {
        let Node::Struct(fields) = kind.node() else {
            return false;
        };
        let has = |name: &str| fields.field(name).is_some();
        has("apiVersion") && has("kind") && has("metadata") && !has("items")
    };
    let others = OTHERS.iter().map(|name| Type::builtin(name).expect(name));
    Type::every_builtin()
        .filter(is_kind)
        .chain(others)
        .collect()
}

impl Choices {
    fn word(&mut self) -> String {
        ["a", "web", "x-1", "ünïcode", "kube-system/default"][self.below(5) as usize].to_owned()
    }

    fn value(&mut self, arena: &Arena, id: TypeId, depth: u32) -> Value {
        match arena.node(id) {
            Node::Struct(fields) => {
                let mut map = Map::new();
                for field in fields.fields.iter().filter(|field| !field.tags.is_empty()) {
                    let chosen = field.presence != Presence::Optional || depth < 2;
                    if depth < 9 && chosen && self.below(3) > 0 {
                        map.insert(
                            field.name.to_string(),
                            self.value(arena, field.id, depth + 1),
                        );
                    }
                }
                Value::Object(map)
            }
            Node::Map { value, .. } => {
                let count = self.below(3);
                Value::Object(
                    (0..count)
                        .map(|_| (self.word(), self.value(arena, *value, depth + 1)))
                        .collect(),
                )
            }
            Node::List(list) => {
                let count = 1 + self.below(2);
                Value::Array(
                    (0..count)
                        .map(|_| self.value(arena, list.item, depth + 1))
                        .collect(),
                )
            }
            Node::Scalar(scalar) => self.scalar(*scalar),
        }
    }

    fn scalar(&mut self, scalar: Scalar) -> Value {
        match scalar {
            Scalar::String => self.word().into(),
            Scalar::Bool => (self.below(2) == 1).into(),
            Scalar::Int32 => (self.below(1 << 31) as i32 - (1 << 30)).into(),
            Scalar::Int64 => (self.below(1 << 31) as i64 * -4_000_000_000).into(),
            Scalar::Double => (self.below(1000) as f64 / 8.0).into(),
            Scalar::Bytes => "AAEC/w==".into(),
            Scalar::Quantity => ["100m", "2Gi", "1e3", "0"][self.below(4) as usize].into(),
            Scalar::IntOrString => {
                [json!(8080), json!("25%"), json!(-1)][self.below(3) as usize].clone()
            }
            Scalar::Time => "2024-05-01T10:00:00Z".into(),
            Scalar::MicroTime => "1969-12-31T23:59:59.000075Z".into(),
            Scalar::RawExtension | Scalar::FieldsV1 | Scalar::Json => {
                json!({"f:a": {"k:{\"b\":1}": {}}})
            }
            Scalar::SchemaOrBool => [json!(true), json!(false), json!({"type": "string"})]
                [self.below(3) as usize]
                .clone(),
            Scalar::SchemaOrArray => [json!({"type": "string"}), json!([{"type": "object"}])]
                [self.below(2) as usize]
                .clone(),
            Scalar::SchemaOrStrings => {
                [json!({"type": "string"}), json!(["a", "b"])][self.below(2) as usize].clone()
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_object_of_every_kind_survives_the_way_through_protobuf(seed: u64) {
        for kind in kinds() {
            let mut object = Choices(seed).value(kind.arena(), kind.id(), 0);
            normalise(&kind, &mut object);
            let read = decode_message(&kind, &encode_message(&kind, &object)).expect("what we wrote, we read");
            prop_assert_eq!(&read, &object, "{:?}", kind);
        }
    }
}

#[test]
fn bodies_that_kubectl_sends_are_read() {
    let lines = include_str!("../../testdata/kubectl-1.33-protobuf.jsonl").lines();
    for line in lines {
        let case: Value = serde_json::from_str(line).expect("the test data is JSON");
        let text = |field: &str| case[field].as_str().expect("it is text");
        let body = STANDARD.decode(text("body")).expect("the body is base64");
        let envelope = Envelope::open(&body).expect("kubectl sends an envelope");
        let (group, version) = envelope
            .api_version
            .split_once('/')
            .unwrap_or(("core", &envelope.api_version));
        let name = format!(
            "api.{}.{version}.{}",
            group.split('.').next().unwrap_or_default(),
            envelope.kind
        );
        let kind = Type::builtin(&name).expect(&name);
        let sent =
            crate::decode::value(&kind, case["object"].clone()).expect("kubectl prints the object");
        let read = decode(&kind, &body).expect("kubectl sends an object of its kind");
        assert_eq!(read, sent.value, "{}", text("command"));
        assert_eq!(
            decode(&kind, &encode(&kind, &read)),
            Ok(read),
            "{}",
            text("command")
        );
    }
}

#[test]
fn the_members_of_an_embedded_struct_share_one_message() {
    let kind = Type::builtin("api.core.v1.Probe").expect("probes are built in");
    let probe = json!({"tcpSocket": {"port": 80}, "periodSeconds": 5});
    assert_eq!(
        encode_message(&kind, &probe),
        b"\n\n\x1a\x08\n\x06\x08\0\x10\x50\x1a\0\x20\x05"
    );
}

#[test]
fn an_envelope_opens_as_it_was_sealed_and_nothing_else_opens() {
    let sealed = Envelope {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        raw: b"raw",
    }
    .seal();
    assert_eq!(
        Envelope::open(&sealed).map(|envelope| (envelope.kind, envelope.raw)),
        Ok(("Pod".to_owned(), &b"raw"[..]))
    );
    assert_eq!(Envelope::open(b"{}"), Err(ProtoError::Prefix));
    assert_eq!(
        Envelope::open(&sealed[..sealed.len() - 5]).map(|_| ()),
        Err(ProtoError::Truncated)
    );
}

#[test]
fn what_is_answered_beside_the_kinds_has_messages_too() {
    let partial = |name: &str| json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": name, "uid": "u"}});
    let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "7"}, "items": [partial("a"), partial("b")]});
    let body = encode_answer(&list).expect("it has a message");
    let envelope = Envelope::open(&body).expect("it is in an envelope");
    assert_eq!(envelope.kind, "PartialObjectMetadataList");
    // Every list has its metadata in field 1 and its items in field 2, and every object its metadata in field 1.
    let kind = Type::builtin("api.core.v1.ConfigMap").expect("config maps are built in");
    let mut items = Vec::new();
    let mut reader = Reader::new(envelope.raw);
    while let Some((tag, field)) = reader.field().expect("it is a message") {
        let message = field.bytes("any").expect("all fields are messages");
        if tag == 2 {
            let item = decode_message(&kind, message).expect("it is an object");
            items.push(item["metadata"]["name"].clone());
        }
    }
    assert_eq!(items, ["a", "b"]);
    assert_eq!(encode_answer(&json!({"kind": "Table"})), None);
}
