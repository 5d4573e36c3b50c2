//! Decodes the body of a webhook's response as the tree of an AdmissionReview, with the errors of Go's decoders.
//!
//! kube-apiserver's client decodes the kind that the data names, and then converts it to the expected one; no version of a review converts
//! to another. A text that does not begin as a JSON object is YAML.

use mullion_kube_text::golang::quote;
use mullion_schema::decode::{self, DecodeError, base64};
use serde_json::{Map, Value};

use super::{hook::ReviewVersion, review::KIND};

/// The scheme of the clients of webhooks.
const SCHEME: &str = "k8s.io/apiserver/pkg/util/webhook/client.go:69";
const GROUP: &str = "admission.k8s.io";
const NO_META: &str = "couldn't get version/kind; json parse error: ";
/// The Go struct into which the type of an object is decoded, as decoding errors print it.
const META_ONLY: &str = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// A Go type.
enum Shape {
    /// `string`, or a named type of that kind.
    Text(&'static str),
    Bool,
    Number(&'static str),
    /// Bytes in base64.
    Bytes,
    List(&'static str, &'static Shape),
    Texts(&'static str),
    Struct(&'static str, &'static [(&'static str, Shape)]),
}

/// The fields of an AdmissionReview that are decoded; `V` in a type's name stands for the version of the review.
const REVIEW: Shape = Shape::Struct(
    "V.AdmissionReview",
    &[(
        "response",
        Shape::Struct(
            "V.AdmissionResponse",
            &[
                ("uid", Shape::Text("types.UID")),
                ("allowed", Shape::Bool),
                ("status", STATUS),
                ("patch", Shape::Bytes),
                ("patchType", Shape::Text("V.PatchType")),
                ("auditAnnotations", Shape::Texts("map[string]string")),
                ("warnings", Shape::List("[]string", &STRING)),
            ],
        ),
    )],
);
const STRING: Shape = Shape::Text("string");
const STATUS: Shape = Shape::Struct(
    "v1.Status",
    &[
        ("kind", STRING),
        ("apiVersion", STRING),
        (
            "metadata",
            Shape::Struct(
                "v1.ListMeta",
                &[
                    ("selfLink", STRING),
                    ("resourceVersion", STRING),
                    ("continue", STRING),
                    ("remainingItemCount", Shape::Number("int64")),
                ],
            ),
        ),
        ("status", STRING),
        ("message", STRING),
        ("reason", Shape::Text("v1.StatusReason")),
        (
            "details",
            Shape::Struct(
                "v1.StatusDetails",
                &[
                    ("name", STRING),
                    ("group", STRING),
                    ("kind", STRING),
                    ("uid", Shape::Text("types.UID")),
                    (
                        "causes",
                        Shape::List(
                            "[]v1.StatusCause",
                            &Shape::Struct(
                                "v1.StatusCause",
                                &[
                                    ("reason", Shape::Text("v1.CauseType")),
                                    ("message", STRING),
                                    ("field", STRING),
                                ],
                            ),
                        ),
                    ),
                    ("retryAfterSeconds", Shape::Number("int32")),
                ],
            ),
        ),
        ("code", Shape::Number("int32")),
    ],
);

/// The reason why a body is not the answer to a review.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum AnswerError {
    /// There is no body.
    #[error("0-length response with status code: 200 and content type: application/json")]
    Empty,
    /// The type of the object cannot be read.
    #[error("{NO_META}{0}")]
    Meta(DecodeError),
    /// The body is neither JSON nor YAML, or a field has another type.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The version of the object has several slashes.
    #[error("unexpected GroupVersion string: {0}")]
    GroupVersion(String),
    /// The decoder does not know the kind.
    #[error("no kind {} is registered for version {} in scheme {}", quote(.kind), quote(.version), quote(SCHEME))]
    UnknownKind {
        /// The kind.
        kind: String,
        /// The version of the kind.
        version: String,
    },
    /// The object has another kind or version than the answer.
    #[error("converting ({found}) to ({wanted}.{KIND}): unknown conversion")]
    Conversion {
        /// The version and the kind of the object.
        found: String,
        /// The version of the answer.
        wanted: String,
    },
}

/// Reads the answer to a review of that version.
///
/// # Errors
/// It is none.
pub(super) fn read(version: ReviewVersion, body: &[u8]) -> Result<Value, AnswerError> {
    if body.is_empty() {
        return Err(AnswerError::Empty);
    }
    // The kind is read before the fields, as in apimachinery's decoders, so an error in the kind wins.
    let tree = tree(body)?;
    let found = kind_of(&tree)?;
    let wanted = version.api_version();
    let (api_version, kind) = match found {
        // An absent type is the expected one (apimachinery: gvkWithDefaults).
        ("", kind) => (wanted, kind),
        found => found,
    };
    let kind = if kind.is_empty() { KIND } else { kind };
    let (_, short) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let (_, wanted_short) = wanted.rsplit_once('/').unwrap_or(("", wanted));
    let is_review = kind == KIND
        && [format!("{GROUP}/v1"), format!("{GROUP}/v1beta1")]
            .iter()
            .any(|known| known == api_version);
    if !is_review && (api_version, kind) != ("v1", "Status") {
        return Err(AnswerError::UnknownKind {
            kind: kind.to_owned(),
            version: api_version.to_owned(),
        });
    }
    // The fields are checked before the conversion, which finds fault with the version.
    if is_review {
        Reader { version: short }.check(&REVIEW, &tree, None, "")?;
    }
    if !is_review || api_version != wanted {
        return Err(AnswerError::Conversion {
            found: format!("{short}.{kind}"),
            wanted: wanted_short.to_owned(),
        });
    }
    Ok(tree)
}

fn tree(body: &[u8]) -> Result<Value, AnswerError> {
    let start = body.iter().find(|byte| !byte.is_ascii_whitespace());
    let read = match start {
        Some(b'{') => decode::untyped_json(body).map_err(AnswerError::Meta),
        _ => decode::untyped_yaml(body).map_err(AnswerError::Decode),
    };
    read.map(|(tree, _)| tree)
}

/// Returns the version and the kind of an object, which may be empty.
fn kind_of(tree: &Value) -> Result<(&str, &str), AnswerError> {
    let fields = match tree {
        Value::Null => return Ok(("", "")),
        Value::Object(fields) => fields,
        other => {
            let why = decode::json_of_another_type(other, META_ONLY);
            return Err(AnswerError::Meta(why));
        }
    };
    let text = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(other) => {
            let why = misfit(decode::json_kind(other), Some(("", name)), "string");
            Err(AnswerError::Meta(why))
        }
    };
    let api_version = text("apiVersion")?;
    if api_version.matches('/').count() > 1 {
        return Err(AnswerError::GroupVersion(api_version.to_owned()));
    }
    Ok((api_version, text("kind")?))
}

/// Returns the error for a value that does not fit the Go type; `field` is the struct and the path of the value, unless the value is the
/// whole.
fn misfit(found: &str, field: Option<(&str, &str)>, go: impl Into<String>) -> DecodeError {
    DecodeError::Type {
        value: found.to_owned(),
        place: match field {
            Some((holder, path)) => format!("Go struct field {holder}.{path} of type "),
            None => "Go value of type ".to_owned(),
        },
        go: go.into(),
    }
}

/// Compares a tree with Go's types.
struct Reader<'a> {
    version: &'a str,
}

impl Reader<'_> {
    /// Checks that a value has the shape. `holder` is the struct that contains the value, and `path` the field names that lead to it.
    fn check(
        &self,
        shape: &Shape,
        value: &Value,
        holder: Option<&str>,
        path: &str,
    ) -> Result<(), DecodeError> {
        let misfit = |found: &str, go: &str| {
            let field = holder.map(|holder| (holder.rsplit('.').next().unwrap_or_default(), path));
            Err(misfit(found, field, self.name(go)))
        };
        let found = decode::json_kind(value);
        match (shape, value) {
            // Go's decoder leaves a field alone that is null.
            (_, Value::Null)
            | (Shape::Text(_), Value::String(_))
            | (Shape::Bool, Value::Bool(_)) => Ok(()),
            (Shape::Text(go), _) => misfit(found, go),
            (Shape::Bool, _) => misfit(found, "bool"),
            (Shape::Number(go), Value::Number(number)) => {
                let bits = if *go == "int32" { 32 } else { 64 };
                let fits = number
                    .as_i64()
                    .is_some_and(|number| bits == 64 || i32::try_from(number).is_ok());
                if fits {
                    Ok(())
                } else {
                    misfit(&format!("number {number}"), go)
                }
            }
            (Shape::Number(go), _) => misfit(found, go),
            (Shape::Bytes, Value::String(text)) => match base64::canonical(text) {
                Ok(_) => Ok(()),
                Err(at) => Err(DecodeError::Base64(at)),
            },
            (Shape::Bytes, _) => misfit(found, "[]uint8"),
            (Shape::List(_, of), Value::Array(items)) => {
                let mut items = items.iter();
                items.try_for_each(|item| self.check(of, item, holder, path))
            }
            (Shape::Texts(_), Value::Object(fields)) => {
                let mut values = fields.values();
                values.try_for_each(|value| self.check(&STRING, value, holder, path))
            }
            (Shape::List(go, _) | Shape::Texts(go), _) => misfit(found, go),
            (Shape::Struct(go, fields), Value::Object(given)) => {
                self.fields(go, fields, given, path)
            }
            (Shape::Struct(go, _), _) => misfit(found, go),
        }
    }

    fn fields(
        &self,
        go: &str,
        fields: &[(&str, Shape)],
        given: &Map<String, Value>,
        path: &str,
    ) -> Result<(), DecodeError> {
        let mut known = given.iter().filter_map(|(name, value)| {
            let field = fields.iter().find(|(known, _)| known == name)?;
            Some((name, &field.1, value))
        });
        known.try_for_each(|(name, shape, value)| {
            let path = match path {
                "" => name.clone(),
                path => format!("{path}.{name}"),
            };
            self.check(shape, value, Some(go), &path)
        })
    }

    fn name(&self, go: &str) -> String {
        match go.strip_prefix("V.") {
            Some(name) => format!("{}.{name}", self.version),
            None => go.to_owned(),
        }
    }
}

/// Parses the operations of a patch; the error is that of Go's jsonpatch library.
pub(super) fn operations(patch: &[u8]) -> Result<Value, DecodeError> {
    let (tree, _) = decode::untyped_json(patch)?;
    let wrong = |value: &Value, wanted| Err(decode::json_of_another_type(value, wanted));
    match &tree {
        Value::Null => Ok(tree),
        Value::Array(operations) => {
            let mut operations = operations.iter();
            match operations.find(|operation| !operation.is_object() && !operation.is_null()) {
                Some(other) => wrong(other, "jsonpatch.Operation"),
                None => Ok(tree),
            }
        }
        other => wrong(other, "jsonpatch.Patch"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(body: &str) -> String {
        let refused = read(ReviewVersion::V1, body.as_bytes()).expect_err(body);
        refused.to_string()
    }

    #[test]
    fn a_body_that_is_no_review_is_refused_in_gos_words() {
        let not_meta = |found: &str| {
            format!("{NO_META}json: cannot unmarshal {found} into Go value of type {META_ONLY}")
        };
        for (body, sentence) in [
            (
                "",
                "0-length response with status code: 200 and content type: application/json"
                    .to_owned(),
            ),
            ("hello", not_meta("string")),
            ("<html>hi</html>", not_meta("string")),
            ("[]", not_meta("array")),
            (
                r#"{"kind":"#,
                format!("{NO_META}unexpected end of JSON input"),
            ),
            (
                "{} trailing",
                format!("{NO_META}invalid character 't' after top-level value"),
            ),
            (
                r#"{"kind":5}"#,
                format!(
                    "{NO_META}json: cannot unmarshal number into Go struct field .kind of type string"
                ),
            ),
            (
                r#"{"apiVersion":"a/b/c"}"#,
                "unexpected GroupVersion string: a/b/c".to_owned(),
            ),
        ] {
            assert_eq!(why(body), sentence, "{body}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_named_with_its_field() {
        for (response, sentence) in [
            (
                r#"{"allowed":"yes"}"#,
                "string into Go struct field AdmissionResponse.response.allowed of type bool",
            ),
            (
                r#"{"uid":5}"#,
                "number into Go struct field AdmissionResponse.response.uid of type types.UID",
            ),
            (
                r#"{"status":"x"}"#,
                "string into Go struct field AdmissionResponse.response.status of type v1.Status",
            ),
            (
                r#"{"status":{"message":5}}"#,
                "number into Go struct field Status.response.status.message of type string",
            ),
            (
                r#"{"status":{"code":"4"}}"#,
                "string into Go struct field Status.response.status.code of type int32",
            ),
            (
                r#"{"status":{"code":1.5}}"#,
                "number 1.5 into Go struct field Status.response.status.code of type int32",
            ),
            (
                r#"{"warnings":"x"}"#,
                "string into Go struct field AdmissionResponse.response.warnings of type []string",
            ),
            (
                r#"{"auditAnnotations":{"a":1}}"#,
                "number into Go struct field AdmissionResponse.response.auditAnnotations of type string",
            ),
            (
                r#"{"patchType":1}"#,
                "number into Go struct field AdmissionResponse.response.patchType of type v1.PatchType",
            ),
            (
                "true",
                "bool into Go struct field AdmissionReview.response of type v1.AdmissionResponse",
            ),
        ] {
            let body = format!(r#"{{"response":{response}}}"#);
            assert_eq!(why(&body), format!("json: cannot unmarshal {sentence}"));
        }
        assert_eq!(
            why(r#"{"response":{"patch":"%%%"}}"#),
            "illegal base64 data at input byte 0"
        );
    }

    #[test]
    fn nothing_converts_what_was_not_asked_for() {
        let review = |api_version: &str, kind: &str| {
            format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}","response":{{}}}}"#)
        };
        assert_eq!(
            why(&review("admission.k8s.io/v1beta1", KIND)),
            "converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion"
        );
        let other = read(
            ReviewVersion::V1Beta1,
            review("admission.k8s.io/v1", KIND).as_bytes(),
        );
        assert_eq!(
            other.expect_err("it is of another version").to_string(),
            "converting (v1.AdmissionReview) to (v1beta1.AdmissionReview): unknown conversion"
        );
        assert_eq!(
            why(&review("v1", "Status")),
            "converting (v1.Status) to (v1.AdmissionReview): unknown conversion"
        );
        assert!(why(&review("foo/v1", KIND)).starts_with(
            r#"no kind "AdmissionReview" is registered for version "foo/v1" in scheme "#
        ));
        let yaml =
            b"apiVersion: admission.k8s.io/v1\nkind: AdmissionReview\nresponse: {allowed: true}\n";
        let read = read(ReviewVersion::V1, yaml).expect("it is YAML");
        assert_eq!(read["response"]["allowed"], true);
    }

    #[test]
    fn a_patch_is_a_list_of_operations() {
        for (patch, sentence) in [
            (
                "hello",
                "invalid character 'h' looking for beginning of value",
            ),
            (r#"[{"op""#, "unexpected end of JSON input"),
            (
                "5",
                "json: cannot unmarshal number into Go value of type jsonpatch.Patch",
            ),
            (
                r#"["a"]"#,
                "json: cannot unmarshal string into Go value of type jsonpatch.Operation",
            ),
        ] {
            let refused = operations(patch.as_bytes()).map_err(|error| error.to_string());
            assert_eq!(refused, Err(sentence.to_owned()));
        }
        assert!(operations(b"[null]").is_ok() && operations(b"null").is_ok());
    }
}
