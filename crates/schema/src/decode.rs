//! Decodes JSON, YAML, or the tree that a patch results in, according to a type.
//!
//! The result is what Go would write after decoding the body into its struct: unknown fields are dropped, null means absent, quantities
//! and times are canonical, and zero values stand where Go writes them. [`Decoded::problems`] lists what strict field validation reports;
//! a body that cannot be decoded gives a [`DecodeError`] with the message of `sigs.k8s.io/json`. `decode/walk.rs` has the walk itself.

use std::{borrow::Cow, fmt};

use mullion_kube_text::{field::Emptied, golang::quote, quantity::QuantityError, status::Status};
use serde::de::DeserializeSeed;
use serde_json::Value;

use super::Type;
use crate::time::TimeError;

pub mod base64;
mod convert;
mod custom;
mod depth;
mod duplicates;
mod literals;
mod syntax;
mod texts;
mod untyped;
mod walk;
mod yaml;

pub use convert::{convert_numbers, unconvertible};
pub(crate) use depth::check as check_depth;
pub use yaml::read as untyped_yaml;

/// The most objects in a decoded object of a built-in kind. Each takes about 700 bytes of memory, however short it is in the body, and an
/// object with this many would hardly fit into etcd.
pub(crate) const MAX_OBJECTS: usize = 250_000;

/// The most problems that are collected.
const MAX_PROBLEMS: usize = 100;

/// A decoded body.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The object.
    pub value: Value,
    /// The problems that field validation reports or refuses.
    pub problems: Vec<Problem>,
    /// The lists and maps that were sent empty; the decoded object does not contain them.
    pub emptied: Emptied,
}

/// A problem that strict decoding reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A field that the type does not have.
    Unknown(String),
    /// A field that appears twice.
    Duplicate(String),
    /// The duplicate keys of a YAML body, with their lines.
    YamlDuplicates(Vec<(u64, String)>),
    /// A problem in the JSON patch itself.
    InPatch(Box<Problem>),
}

impl Problem {
    /// Returns the warnings for the problem, one line each.
    pub fn warnings(&self) -> Vec<String> {
        match self {
            Problem::YamlDuplicates(keys) => keys
                .iter()
                .map(|(line, key)| format!("line {line}: key {key:?} already set in map"))
                .collect(),
            other => vec![other.to_string()],
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Unknown(path) => write!(f, "unknown field {path:?}"),
            Problem::Duplicate(path) => write!(f, "duplicate field {path:?}"),
            Problem::YamlDuplicates(_) => {
                write!(
                    f,
                    "yaml: unmarshal errors:\n  {}",
                    self.warnings().join("\n  ")
                )
            }
            Problem::InPatch(problem) => write!(f, "json patch {problem}"),
        }
    }
}

impl Decoded {
    /// Returns the error for `fieldValidation=Strict`, or `None` if there are no problems.
    pub fn strict_error(&self) -> Option<String> {
        if self.problems.is_empty() {
            return None;
        }
        let texts: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        Some(format!("strict decoding error: {}", texts.join(", ")))
    }
}

/// The reason why a body cannot be decoded; the messages are those of Go's decoders.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// The body is not JSON.
    #[error("{0}")]
    Syntax(String),
    /// The body is not YAML.
    #[error("{0}")]
    Yaml(String),
    /// A value has another JSON type than its field.
    #[error("json: cannot unmarshal {value} into {place}{go}")]
    Type {
        /// The value, for example `string` or `number 1.5`.
        value: String,
        /// `Go struct field PodSpec.spec.hostname of type ` or `Go value of type `.
        place: String,
        /// The Go type of the field.
        go: String,
    },
    /// A quantity is invalid.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// A value is not base64.
    #[error("illegal base64 data at input byte {0}")]
    Base64(usize),
    /// A time is invalid.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// The apiVersion, kind or metadata of an embedded resource is invalid.
    #[error("{0}")]
    Embedded(String),
    /// The value is nested too deeply to be read again once it is stored.
    #[error("the value is nested more than {} levels deep", depth::LIMIT)]
    Depth,
    /// The value has more than [`MAX_OBJECTS`] objects. The message is etcd's, which refuses objects of such a size.
    #[error("etcdserver: request is too large")]
    TooLarge,
}

impl DecodeError {
    /// Returns the 400 for a body with this error.
    pub fn refusal(&self, kind: &str, version: &str) -> Status {
        cannot_be_handled(kind, version, self)
    }
}

/// Returns the 400 `Pod in version "v1" cannot be handled as a Pod: why`.
pub fn cannot_be_handled(kind: &str, version: &str, why: &impl fmt::Display) -> Status {
    Status::bad_request(format!(
        "{kind} in version {} cannot be handled as a {kind}: {why}",
        quote(version)
    ))
}

/// Decodes a JSON body.
///
/// # Errors
/// The body is not JSON, or a value does not fit its type.
pub fn json(kind: &Type, body: &[u8]) -> Result<Decoded, DecodeError> {
    match json_as_it_is(kind, body) {
        // Invalid Unicode is rare, so it is looked for only after a failure.
        Err(DecodeError::Syntax(why)) => match texts::mended(body) {
            Some(mended) => json_as_it_is(kind, &mended),
            None => Err(DecodeError::Syntax(why)),
        },
        read => read,
    }
}

fn json_as_it_is(kind: &Type, body: &[u8]) -> Result<Decoded, DecodeError> {
    if kind.is_custom() {
        let (value, duplicates) = untyped_json(body)?;
        depth::check(&value)?;
        return custom::decode(kind, value, duplicates);
    }
    let (read, met_float) = typed(kind, body, false);
    if read.is_ok() && !met_float {
        return read;
    }
    // Only few bodies have numbers whose literal matters, so decode again for those.
    match literals::marked(body) {
        Cow::Owned(marked) => match typed(kind, &marked, true).0 {
            // Marking the literals must not cause errors of its own.
            Err(DecodeError::Syntax(_)) => read,
            read => read,
        },
        Cow::Borrowed(_) => read,
    }
}

/// Decodes a body of a built-in type, and returns whether it had a number that is not an integer.
fn typed(kind: &Type, body: &[u8], is_marked: bool) -> (Result<Decoded, DecodeError>, bool) {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let mut walker = walk::Walker::of_marked(kind, is_marked);
    let read = walker
        .seed(kind)
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    let met_float = walker.met_float;
    let read = match read {
        Ok(value) => depth::check(&value).and_then(|()| walker.finish(value)),
        Err(error) => Err(walker.failed().unwrap_or_else(|| json_error(body, &error))),
    };
    (read, met_float)
}

/// Decodes JSON without a type, and reports duplicate keys.
///
/// # Errors
/// The body is not JSON.
pub fn untyped_json(body: &[u8]) -> Result<(Value, Vec<Problem>), DecodeError> {
    let read = |body: &[u8]| {
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let mut problems = Vec::new();
        let read = untyped::Untyped::new(&mut problems).deserialize(&mut deserializer);
        let value = read.and_then(|value| deserializer.end().map(|()| value))?;
        Ok((value, problems))
    };
    read(body).or_else(|error| match texts::mended(body) {
        Some(mended) => read(&mended).map_err(|error| json_error(&mended, &error)),
        None => Err(json_error(body, &error)),
    })
}

/// Returns Go's name of a value's JSON type.
pub fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the error that Go gives for a body that `serde_json` refused.
pub fn json_error(body: &[u8], error: &serde_json::Error) -> DecodeError {
    DecodeError::Syntax(syntax::complaint(body).unwrap_or_else(|| error.to_string()))
}

/// Returns Go's error for JSON that does not fit the Go type `wanted`, for example `[]core.Toleration`.
pub fn json_of_another_type(value: &Value, wanted: &str) -> DecodeError {
    DecodeError::Type {
        value: json_kind(value).to_owned(),
        place: "Go value of type ".to_owned(),
        go: wanted.to_owned(),
    }
}

/// Decodes a YAML body. JSON is valid YAML.
///
/// # Errors
/// The errors of [`json`], and a body that is not YAML.
pub fn yaml(kind: &Type, body: &[u8]) -> Result<Decoded, DecodeError> {
    let (tree, duplicates) = untyped_yaml(body)?;
    let mut decoded = value(kind, tree)?;
    // Go's YAML parser runs first, so its problems come first.
    decoded.problems.splice(0..0, duplicates);
    Ok(decoded)
}

/// Drops the fields that the schema of a custom resource, or of a value in one, does not know.
pub fn prune(kind: &Type, value: &mut Value) {
    custom::prune(kind, value, custom::Metadata::Pruned);
}

/// Prunes a default value like [`prune`], except that embedded metadata may have any fields.
pub fn prune_default(kind: &Type, value: &mut Value) {
    custom::prune(kind, value, custom::Metadata::Kept);
}

/// Decodes a tree, for example the result of a patch.
///
/// # Errors
/// A value does not fit its type.
pub fn value(kind: &Type, tree: Value) -> Result<Decoded, DecodeError> {
    depth::check(&tree)?;
    if kind.is_custom() {
        return custom::decode(kind, tree, Vec::new());
    }
    let mut walker = walk::Walker::new(kind);
    match walker.seed(kind).deserialize(tree) {
        Ok(value) => walker.finish(value),
        Err(error) => Err(walker
            .failed()
            .unwrap_or_else(|| DecodeError::Syntax(error.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(kind: &str, body: &str) -> Result<Decoded, DecodeError> {
        json(
            &Type::builtin(kind).expect("the type is built in"),
            body.as_bytes(),
        )
    }

    fn error(kind: &str, body: &str) -> String {
        read(kind, body).expect_err("the body is wrong").to_string()
    }

    #[test]
    fn an_object_reads_as_go_would_write_it_back() {
        let body = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","labels":{}},"status":null,
            "spec":{"paused":false,"replicas":0,"template":{"spec":{"containers":[
            {"name":"c","stdin":false,"resources":{"limits":{"cpu":"1000m","memory":1024}},"securityContext":{}}]}}}}"#;
        let decoded = read("api.apps.v1.Deployment", body).expect("it is a deployment");
        assert_eq!(decoded.problems, []);
        assert_eq!(
            decoded.value,
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "status": {},
                "spec": {"replicas": 0, "selector": null, "strategy": {}, "template": {"metadata": {}, "spec": {"containers": [
                {"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1024"}}, "securityContext": {}}]}}}})
        );
    }

    #[test]
    fn numbers_are_read_from_their_literals() {
        let body = r#"{"spec":{"terminationGracePeriodSeconds":-0,"x":1.5,"containers":[{"name":"c","resources":{"limits":
            {"a":1e3,"b":1E3,"c":1e-3,"d":100000000000000000000,"e":1.50}}}]}}"#;
        let decoded = read("api.core.v1.Pod", body).expect("it is a pod");
        let spec = &decoded.value["spec"];
        assert_eq!(spec["terminationGracePeriodSeconds"], 0);
        assert_eq!(
            spec["containers"][0]["resources"]["limits"],
            json!({"a": "1e3", "b": "1E3", "c": "1e-3", "d": "100E", "e": "1500m"})
        );
    }

    #[test]
    fn unknown_and_duplicate_fields_are_named_with_their_paths() {
        let body = r#"{"spec":{"containers":[{"name":"a","imag":"x"}],"containers":[]},"Metadata":{},"metadata":{"labels":{"a":"b","a":"c"}}}"#;
        let decoded = read("api.core.v1.Pod", body).expect("it is a pod");
        let texts: Vec<String> = decoded.problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                r#"unknown field "spec.containers[0].imag""#,
                r#"duplicate field "spec.containers""#,
                r#"unknown field "Metadata""#,
                r#"duplicate field "metadata.labels.a""#
            ]
        );
    }

    #[test]
    fn a_schema_in_a_union_has_one_of_its_forms() {
        let kind = "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
        for body in [
            r#"{"additionalProperties":"x"}"#,
            r#"{"additionalProperties":[]}"#,
            r#"{"additionalItems":1}"#,
        ] {
            assert_eq!(
                error(kind, body),
                "boolean or JSON schema expected",
                "{body}"
            );
        }
        let decoded = read(kind, r#"{"items":true,"dependencies":{"a":"x"}}"#);
        assert!(decoded.expect("it is a schema").value["items"].is_null());
    }

    #[test]
    fn a_byte_string_may_be_a_list_of_numbers() {
        let decoded = read(
            "api.core.v1.Secret",
            r#"{"data":{"a":[104,105],"b":[],"c":[null]}}"#,
        );
        let data = &decoded.expect("it is a secret").value["data"];
        assert_eq!(data, &json!({"a": "aGk=", "b": "", "c": "AA=="}));
        for (list, found) in [
            ("[1,300]", "number 300"),
            (r#"["x"]"#, "string"),
            ("[[]]", "array"),
        ] {
            assert_eq!(
                error(
                    "api.core.v1.Secret",
                    &format!(r#"{{"data":{{"a":{list}}}}}"#)
                ),
                format!(
                    "json: cannot unmarshal {found} into Go struct field Secret.data of type uint8"
                )
            );
        }
    }

    #[test]
    fn a_wrong_type_is_refused_in_the_words_of_gos_decoder() {
        assert_eq!(
            error("api.apps.v1.Deployment", r#"{"spec":{"replicas":"3"}}"#),
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"
        );
        assert_eq!(
            error("api.core.v1.Pod", r#"{"spec":{"containers":[{"name":1}]}}"#),
            "json: cannot unmarshal number into Go struct field Container.spec.containers.name of type string"
        );
        assert_eq!(
            error("api.core.v1.Pod", r#"{"spec":{"containers":{}}}"#),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container"
        );
        assert_eq!(
            error("api.core.v1.Pod", "[]"),
            "json: cannot unmarshal array into Go value of type v1.Pod"
        );
        assert_eq!(
            error(
                "api.core.v1.Service",
                r#"{"spec":{"ports":[{"targetPort":true}]}}"#
            ),
            "json: cannot unmarshal bool into Go struct field ServicePort.spec.ports.targetPort of type int32"
        );
        for (sent, quoted) in [
            ("1e3", "1e3"),
            ("1.50", "1.50"),
            ("1E2", "1E2"),
            ("99999999999999999999", "99999999999999999999"),
            ("-1e400", "-1e400"),
            ("-0.0", "-0.0"),
            ("3000000000", "3000000000"),
        ] {
            assert_eq!(
                error(
                    "api.apps.v1.Deployment",
                    &format!(r#"{{"spec":{{"replicas":{sent}}}}}"#)
                ),
                format!(
                    "json: cannot unmarshal number {quoted} into Go struct field DeploymentSpec.spec.replicas of type int32"
                )
            );
        }
        assert_eq!(
            error("api.core.v1.Secret", r#"{"data":{"a":"?"}}"#),
            "illegal base64 data at input byte 0"
        );
    }

    #[test]
    fn broken_json_is_refused_in_the_words_of_gos_scanner() {
        assert_eq!(
            error("api.core.v1.Pod", r#"{"a""#),
            "unexpected end of JSON input"
        );
        assert_eq!(
            error("api.core.v1.Pod", "{a}"),
            "invalid character 'a' looking for beginning of object key string"
        );
    }

    #[test]
    fn yaml_reads_as_json_and_reports_a_key_that_is_there_twice() {
        let kind = Type::builtin("api.core.v1.ConfigMap").expect("config maps are built in");
        let decoded = yaml(&kind, b"data: {a: u, a: v}\nfoo: 1\n").expect("it is YAML");
        assert_eq!(decoded.value["data"], json!({"a": "v"}));
        assert_eq!(
            decoded.strict_error().as_deref(),
            Some(
                "strict decoding error: yaml: unmarshal errors:\n  line 1: key \"a\" already set in map, unknown field \"foo\""
            )
        );
    }
}
