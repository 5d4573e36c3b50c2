//! Round trips of random objects, and bytes as real clients send them.

use base64::{Engine, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::schema::{Arena, Node, Presence, Scalar, TypeId, normalise};

/// The kinds this slice serves.
const KINDS: &[&str] = &[
    "api.core.v1.Namespace",
    "api.core.v1.Node",
    "api.core.v1.Pod",
    "api.core.v1.Binding",
    "api.core.v1.Service",
    "api.core.v1.Endpoints",
    "api.core.v1.ConfigMap",
    "api.core.v1.Secret",
    "api.core.v1.ServiceAccount",
    "api.core.v1.Event",
    "api.core.v1.PersistentVolume",
    "api.core.v1.PersistentVolumeClaim",
    "api.apps.v1.Deployment",
    "api.apps.v1.ReplicaSet",
    "api.apps.v1.DaemonSet",
    "api.autoscaling.v1.Scale",
    "api.discovery.v1.EndpointSlice",
    "api.node.v1.RuntimeClass",
    "api.node.v1beta1.RuntimeClass",
    "api.coordination.v1.Lease",
    "api.scheduling.v1.PriorityClass",
    "api.events.v1.Event",
    "api.policy.v1.PodDisruptionBudget",
    "api.policy.v1.Eviction",
    "api.storage.v1.StorageClass",
    "api.authentication.v1.SelfSubjectReview",
    "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
    "apimachinery.pkg.apis.meta.v1.DeleteOptions",
];

/// A source of choices that a seed determines.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

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
        for name in KINDS {
            let kind = Type::builtin(name).expect(name);
            let mut object = Choices(seed).value(kind.arena(), kind.id(), 0);
            normalise(&kind, &mut object);
            let read = decode_message(&kind, &encode_message(&kind, &object)).expect("what we wrote, we read");
            prop_assert_eq!(&read, &object, "{}", name);
        }
    }
}

#[test]
fn bodies_that_kubectl_sends_are_read() {
    let lines = include_str!("../../../testdata/kubectl-1.33-protobuf.jsonl").lines();
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
        let sent = crate::schema::decode::value(&kind, case["object"].clone())
            .expect("kubectl prints the object");
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
