//! Encodes the requests of AdmissionReviews, and decodes and verifies their responses (upstream: webhook/request/admissionreview.go).

use base64::{Engine, engine::general_purpose::STANDARD};
use mullion_kube_text::{
    golang::quote,
    status::{Cause, Details, Status},
};
use mullion_schema::decode::{DecodeError, base64 as texts};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    answer::{self, AnswerError},
    hook::ReviewVersion,
};

pub(super) const KIND: &str = "AdmissionReview";
/// The fields of a Status' metadata.
const LIST_META: [&str; 4] = [
    "selfLink",
    "resourceVersion",
    "continue",
    "remainingItemCount",
];
const JSON_PATCH: &str = "JSONPatch";

/// A kind in a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct GroupVersionKind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

/// A resource in a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct GroupVersionResource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
}

/// The question, without the objects it is about.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Question<'a> {
    pub(super) kind: &'a GroupVersionKind,
    pub(super) resource: &'a GroupVersionResource,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) sub_resource: &'a str,
    pub(super) request_kind: &'a GroupVersionKind,
    pub(super) request_resource: &'a GroupVersionResource,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) namespace: &'a str,
    pub(super) operation: &'static str,
    pub(super) user_info: &'a Value,
    pub(super) dry_run: bool,
    pub(super) options: &'a Value,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    kind: &'static str,
    api_version: &'static str,
    request: Request<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: &'a str,
    #[serde(flatten)]
    question: &'a Question<'a>,
    object: Option<&'a Value>,
    old_object: Option<&'a Value>,
}

/// Returns the body of a review.
pub(super) fn encode(
    version: ReviewVersion,
    uid: &str,
    question: &Question<'_>,
    object: Option<&Value>,
    old_object: Option<&Value>,
) -> Vec<u8> {
    let review = Review {
        kind: KIND,
        api_version: version.api_version(),
        request: Request {
            uid,
            question,
            object,
            old_object,
        },
    };
    serde_json::to_vec(&review).expect("trees and texts are JSON")
}

/// A webhook's decision and its patch, as decoded from its AdmissionReview.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Verdict {
    pub(super) allowed: bool,
    pub(super) warnings: Vec<String>,
    /// The patch's operations; `None` if it changes nothing.
    pub(super) patch: Option<Value>,
    /// The reason of a refusal, if the webhook gives one.
    pub(super) result: Refusal,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Answer {
    #[serde(deserialize_with = "nullable")]
    api_version: String,
    #[serde(deserialize_with = "nullable")]
    kind: String,
    response: Option<Response>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Response {
    #[serde(deserialize_with = "nullable")]
    uid: String,
    #[serde(deserialize_with = "nullable")]
    allowed: bool,
    status: Option<Refusal>,
    patch: Option<String>,
    patch_type: Option<String>,
    #[serde(deserialize_with = "nullable_items")]
    warnings: Vec<String>,
}

/// A `metav1.Status` as webhooks send it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Refusal {
    #[serde(deserialize_with = "nullable")]
    metadata: Map<String, Value>,
    #[serde(deserialize_with = "nullable")]
    message: String,
    #[serde(deserialize_with = "nullable")]
    reason: String,
    #[serde(deserialize_with = "nullable")]
    code: i32,
    details: Option<RefusalDetails>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RefusalDetails {
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[serde(deserialize_with = "nullable")]
    group: String,
    #[serde(deserialize_with = "nullable")]
    kind: String,
    #[serde(deserialize_with = "nullable")]
    uid: String,
    #[serde(deserialize_with = "nullable_items")]
    causes: Vec<RefusalCause>,
    #[serde(deserialize_with = "nullable")]
    retry_after_seconds: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RefusalCause {
    #[serde(deserialize_with = "nullable")]
    reason: String,
    #[serde(deserialize_with = "nullable")]
    message: String,
    #[serde(deserialize_with = "nullable")]
    field: String,
}

/// Reads null as the zero value, as Go does.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads a list like [`nullable`], and its items too.
fn nullable_items<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    let items: Vec<Option<T>> = nullable(deserializer)?;
    Ok(items.into_iter().map(Option::unwrap_or_default).collect())
}

/// The reason why a response is no decision; its text follows `failed calling webhook "...": `.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    /// The body is not the answer to a review.
    #[error("failed to call webhook: {0}")]
    Answer(#[from] AnswerError),
    /// The answer has a value that cannot be.
    #[error("failed to call webhook: {0}")]
    Form(#[from] serde_json::Error),
    /// The answer is not to the question.
    #[error("received invalid webhook response: {0}")]
    Invalid(#[from] ResponseError),
    /// The patch is not a list of operations.
    #[error("received undecodable patch in webhook response: {0}")]
    Patch(DecodeError),
    /// The patch has an unknown type.
    #[error("unsupported patch type {}", quote(.0))]
    PatchType(String),
}

/// The reason why an answer is not to the question.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResponseError {
    /// The answer has no response.
    #[error("webhook response was absent")]
    Absent,
    /// The answer is to another question.
    #[error("expected response.uid={}, got {}", quote(.wanted), quote(.given))]
    Uid {
        /// The question.
        wanted: String,
        /// The question that the answer names.
        given: String,
    },
    /// The answer has another kind or version.
    #[error("expected webhook response of {wanted}, Kind={KIND}, got {given}, Kind={kind}")]
    Kind {
        /// The version of the question.
        wanted: &'static str,
        /// The version of the answer; `/` if there is none.
        given: String,
        /// The kind of the answer.
        kind: String,
    },
    /// There is a patch without its type.
    #[error("webhook returned response.patch but not response.patchType")]
    NoPatchType,
    /// There is the type of a patch, but no patch.
    #[error("webhook returned response.patchType but not response.patch")]
    NoPatch,
    /// The type of the patch is empty.
    #[error("webhook returned invalid response.patchType of \"\"")]
    EmptyPatchType,
    /// A webhook that only judges has sent a patch.
    #[error("validating webhook may not return response.patch")]
    UnwantedPatch,
    /// A webhook that only judges has sent the type of a patch.
    #[error("validating webhook may not return response.patchType")]
    UnwantedPatchType,
}

/// Decodes a response.
pub(super) fn decode(
    version: ReviewVersion,
    uid: &str,
    changes: bool,
    body: &[u8],
) -> Result<Verdict, ReviewError> {
    let answer = answer::read(version, body)?;
    let answer = Option::<Answer>::deserialize(answer)?.unwrap_or_default();
    let response = answer.response.ok_or(ResponseError::Absent)?;
    let patch = response.patch.as_deref().unwrap_or_default();
    let patch_type = response.patch_type.as_deref();
    // kube-apiserver (VerifyAdmissionResponse) checks v1beta1 responses no further, for compatibility with old webhooks.
    if version == ReviewVersion::V1 {
        if response.uid != uid {
            let wanted = uid.to_owned();
            let given = response.uid;
            return Err(ResponseError::Uid { wanted, given }.into());
        }
        let wanted = version.api_version();
        if answer.kind != KIND || answer.api_version != wanted {
            let given = match answer.api_version.as_str() {
                "" => "/".to_owned(),
                _ => answer.api_version,
            };
            let kind = answer.kind;
            return Err(ResponseError::Kind {
                wanted,
                given,
                kind,
            }
            .into());
        }
        let wrong = match (changes, patch.is_empty(), patch_type) {
            (true, false, None) => Some(ResponseError::NoPatchType),
            (true, true, Some(_)) => Some(ResponseError::NoPatch),
            (true, false, Some("")) => Some(ResponseError::EmptyPatchType),
            (false, false, _) => Some(ResponseError::UnwantedPatch),
            (false, _, Some(_)) => Some(ResponseError::UnwantedPatchType),
            _ => None,
        };
        if let Some(wrong) = wrong {
            return Err(wrong.into());
        }
    }
    let mut verdict = Verdict {
        allowed: response.allowed,
        warnings: response.warnings,
        patch: None,
        result: response.status.unwrap_or_default(),
    };
    // A refusal needs no patch, so an undecodable one must not hide it.
    if !verdict.allowed || !changes || patch.is_empty() {
        return Ok(verdict);
    }
    let bytes = texts::canonical(patch).ok();
    let bytes = bytes
        .and_then(|patch| STANDARD.decode(patch).ok())
        .unwrap_or_default();
    let operations = answer::operations(&bytes).map_err(ReviewError::Patch)?;
    match &operations {
        Value::Array(items) if !items.is_empty() => match patch_type {
            Some(other) if version == ReviewVersion::V1 && other != JSON_PATCH => {
                return Err(ReviewError::PatchType(other.to_owned()));
            }
            _ => verdict.patch = Some(operations),
        },
        _ => {}
    }
    Ok(verdict)
}

impl Refusal {
    /// Returns the Status of a request that a webhook has denied.
    pub(super) fn status(self, webhook: &str) -> Status {
        let denied_by = format!("admission webhook {} denied the request", quote(webhook));
        let message = if !self.message.is_empty() {
            format!("{denied_by}: {}", self.message)
        } else if !self.reason.is_empty() {
            format!("{denied_by}: {}", self.reason)
        } else {
            format!("{denied_by} without explanation")
        };
        // A webhook may send any number: a success code would tell the client that its write was stored.
        let code = match self.code {
            code @ 400..=999 => code as u16,
            1000.. => 500,
            _ => 400,
        };
        let mut status = Status::new(code, self.reason, message);
        status.metadata = self.metadata;
        // Only the fields of Go's ListMeta survive its decoding and encoding.
        status.metadata.retain(|field, value| {
            let is_zero = value.is_null() || value == "";
            LIST_META.contains(&field.as_str()) && !is_zero
        });
        status.details = self.details.map(|details| {
            let causes = details.causes.into_iter().map(|cause| Cause {
                reason: cause.reason,
                message: cause.message,
                field: cause.field,
            });
            Box::new(Details {
                name: details.name,
                group: details.group,
                kind: details.kind,
                uid: details.uid,
                causes: causes.collect(),
                retry_after_seconds: details.retry_after_seconds.max(0).unsigned_abs(),
            })
        });
        status
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(version: ReviewVersion, changes: bool, answer: &Value) -> Result<Verdict, ReviewError> {
        decode(version, "u", changes, answer.to_string().as_bytes())
    }

    fn v1(response: Value) -> Value {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }

    #[test]
    fn an_answer_must_be_to_the_question() {
        let wrong = |changes, answer: Value| {
            let refused = read(ReviewVersion::V1, changes, &answer).unwrap_err();
            refused.to_string()
        };
        assert_eq!(
            wrong(true, json!({})),
            "received invalid webhook response: webhook response was absent"
        );
        assert_eq!(
            wrong(true, v1(json!({"uid": "v", "allowed": true}))),
            r#"received invalid webhook response: expected response.uid="u", got "v""#
        );
        assert_eq!(
            wrong(true, json!({"response": {"uid": "u"}})),
            "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="
        );
        assert_eq!(
            wrong(
                true,
                v1(json!({"uid": "u", "allowed": true, "patch": "W10="}))
            ),
            "received invalid webhook response: webhook returned response.patch but not response.patchType"
        );
        assert_eq!(
            wrong(
                false,
                v1(json!({"uid": "u", "patch": "W10=", "patchType": "JSONPatch"}))
            ),
            "received invalid webhook response: validating webhook may not return response.patch"
        );
        let strategic = v1(
            json!({"uid": "u", "allowed": true, "patch": STANDARD.encode("[{}]"), "patchType": "Merge"}),
        );
        assert_eq!(wrong(true, strategic), r#"unsupported patch type "Merge""#);
        let object = v1(
            json!({"uid": "u", "allowed": true, "patch": STANDARD.encode("{}"), "patchType": "JSONPatch"}),
        );
        assert!(
            wrong(true, object).starts_with("received undecodable patch in webhook response: ")
        );
        assert!(
            decode(ReviewVersion::V1, "u", true, b"<html>")
                .unwrap_err()
                .to_string()
                .starts_with(
                    "failed to call webhook: couldn't get version/kind; json parse error: "
                )
        );
    }

    #[test]
    fn the_old_version_is_trusted() {
        let patch = json!([{"op": "remove", "path": "/x"}]);
        let answer =
            json!({"response": {"allowed": true, "patch": STANDARD.encode(patch.to_string())}});
        let verdict = read(ReviewVersion::V1Beta1, true, &answer).unwrap();
        assert_eq!((verdict.allowed, verdict.patch), (true, Some(patch)));
        assert_eq!(
            read(ReviewVersion::V1Beta1, false, &answer).unwrap().patch,
            None
        );
    }

    #[test]
    fn a_refusal_keeps_what_the_webhook_says() {
        let status = |refusal: Value| {
            let refusal: Refusal = serde_json::from_value(refusal).unwrap();
            refusal.status("w.example.com").to_json()
        };
        assert_eq!(
            status(json!({}))["message"],
            r#"admission webhook "w.example.com" denied the request without explanation"#
        );
        assert_eq!(status(json!({"code": 200}))["code"], 400);
        // What Go reads as nothing, or does not mind, leaves a refusal one.
        let odd = status(
            json!({"message": "no", "details": {"causes": [null], "retryAfterSeconds": -1}}),
        );
        assert_eq!(
            odd["message"],
            r#"admission webhook "w.example.com" denied the request: no"#
        );
        let response: Response =
            serde_json::from_value(json!({"allowed": false, "warnings": [null, "a"]})).unwrap();
        assert_eq!(response.warnings, ["", "a"]);
        let full = status(
            json!({"metadata": {"resourceVersion": "7", "selfLink": "", "name": "n"}, "message": "no", "reason": "Odd", "code": 418,
                                 "details": {"name": "n", "causes": [{"field": "f", "message": "m"}]}}),
        );
        assert_eq!(
            full,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "status": "Failure", "code": 418, "reason": "Odd",
                   "message": "admission webhook \"w.example.com\" denied the request: no",
                   "details": {"name": "n", "causes": [{"field": "f", "message": "m"}]}})
        );
    }
}
