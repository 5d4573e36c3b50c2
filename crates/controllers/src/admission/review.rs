//! AdmissionReviews (`admission.k8s.io/v1`): parses an API server's request to a webhook, and builds the response
//! from a rule's [`Verdict`].

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Change, Verdict, Write};

/// The only supported version.
const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// The request of an API server about one write.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Review {
    uid: String,
    #[serde(default)]
    user_info: UserInfo,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    old_object: Value,
}

#[derive(Debug, Default, Deserialize)]
struct UserInfo {
    #[serde(default)]
    username: String,
}

/// The error that a request body is not a supported AdmissionReview, with the cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is no AdmissionReview of {API_VERSION}: {0}")]
pub struct NoReview(String);

impl Review {
    /// Parses the body of a webhook's request.
    ///
    /// # Errors
    /// Fails if the body is not JSON, has another kind or version, or contains no request.
    pub fn read(body: &[u8]) -> Result<Review, NoReview> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Body {
            #[serde(default)]
            api_version: String,
            #[serde(default)]
            kind: String,
            request: Option<Review>,
        }
        let body: Body =
            serde_json::from_slice(body).map_err(|error| NoReview(error.to_string()))?;
        if body.api_version != API_VERSION || body.kind != KIND {
            let what = format!("it is {:?} of {:?}", body.kind, body.api_version);
            return Err(NoReview(what));
        }
        body.request
            .ok_or_else(|| NoReview("it has no request".to_owned()))
    }

    /// Returns the write in the form that rules about pods take.
    pub fn write(&self) -> Write<'_> {
        Write {
            user: &self.user_info.username,
            namespace: &self.namespace,
            pod: &self.object,
            // The API server sends `null` for a creation.
            old: (!self.old_object.is_null()).then_some(&self.old_object),
        }
    }

    /// Returns the write of the pod template at `path` (a JSON pointer) in the object, as if it were a pod; `None`
    /// if there is none.
    pub fn write_of_template(&self, path: &str) -> Option<Write<'_>> {
        Some(Write {
            pod: self.object.pointer(path)?,
            old: self.old_object.pointer(path),
            ..self.write()
        })
    }

    /// Returns the response that allows the write unchanged.
    pub fn allowed(&self) -> Value {
        self.answer(&Verdict::default(), "")
    }

    /// Returns the response for a verdict. Its changes apply to the part of the object at `path` (a JSON pointer;
    /// empty for the whole object).
    pub fn answer(&self, verdict: &Verdict, path: &str) -> Value {
        let mut response = json!({"uid": self.uid, "allowed": verdict.refusal.is_none()});
        if !verdict.warnings.is_empty() {
            response["warnings"] = json!(verdict.warnings);
        }
        if let Some(refusal) = &verdict.refusal {
            response["status"] = json!({"code": refusal.code, "message": refusal.text});
            if !refusal.reason.is_empty() {
                response["status"]["reason"] = json!(refusal.reason);
            }
        } else if let Some(patch) = self.patch(&verdict.changes, path) {
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(BASE64_STANDARD.encode(patch));
        }
        json!({"apiVersion": API_VERSION, "kind": KIND, "response": response})
    }

    /// Returns the changes as a JSON Patch of the object; `None` if they change nothing.
    fn patch(&self, changes: &[Change], path: &str) -> Option<Vec<u8>> {
        let mut changed = self.object.clone();
        let part = changed.pointer_mut(path)?;
        for change in changes.iter().cloned() {
            change.apply(part);
        }
        // A diff of the whole object, because a JSON Patch must create missing parents, and changes may
        // overwrite each other.
        let patch = json_patch::diff(&self.object, &changed);
        (!patch.is_empty()).then(|| serde_json::to_vec(&patch).expect("a patch is JSON"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(request: Value) -> Review {
        let body = json!({"apiVersion": API_VERSION, "kind": KIND, "request": request});
        Review::read(&serde_json::to_vec(&body).expect("JSON")).expect("a review")
    }

    fn patch_of(answer: &Value) -> Value {
        let text = answer["response"]["patch"].as_str().expect("a patch");
        let bytes = BASE64_STANDARD.decode(text).expect("base64");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    #[test]
    fn changes_become_a_json_patch_of_the_whole_object() {
        let template = json!({"spec": {"containers": [{"name": "a"}]}});
        let own = review(json!({
            "uid": "1", "operation": "CREATE", "namespace": "shop", "userInfo": {"username": "jane"},
            "object": {"spec": {"template": template}},
        }));
        let mut verdict = Verdict::default();
        verdict.set(&["spec", "nodeSelector", "kubernetes.io/os"], "windows");
        verdict.set(&["spec", "containers", "0", "name"], "b");
        verdict.warnings.push("beware".to_owned());
        let answer = own.answer(&verdict, "/spec/template");
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(answer["response"]["uid"], "1");
        assert_eq!(answer["response"]["warnings"], json!(["beware"]));
        let mut object = json!({"spec": {"template": template}});
        let patch: json_patch::Patch = serde_json::from_value(patch_of(&answer)).expect("a patch");
        json_patch::patch(&mut object, &patch).expect("it fits");
        let expected = json!({
            "containers": [{"name": "b"}], "nodeSelector": {"kubernetes.io/os": "windows"},
        });
        assert_eq!(object["spec"]["template"]["spec"], expected);
        assert!(own.allowed()["response"].get("patch").is_none());
        let write = own
            .write_of_template("/spec/template")
            .expect("it is there");
        assert_eq!((write.user, write.namespace), ("jane", "shop"));
        assert!(write.old.is_none() && own.write_of_template("/none").is_none());
    }

    #[test]
    fn a_refusal_has_its_code_and_no_patch() {
        let own =
            review(json!({"uid": "2", "operation": "UPDATE", "object": {}, "oldObject": {"a": 1}}));
        let mut verdict = Verdict::forbidden("not so".to_owned());
        verdict.set(&["a"], 1);
        let response = &own.answer(&verdict, "")["response"];
        let status = json!({"code": 403, "reason": "Forbidden", "message": "not so"});
        assert_eq!(
            (&response["allowed"], &response["status"]),
            (&json!(false), &status)
        );
        assert!(response.get("patch").is_none());
        assert_eq!(own.write().old, Some(&json!({"a": 1})));
    }

    #[test]
    fn other_bodies_are_refused_with_the_reason() {
        let refused = |body: &str| Review::read(body.as_bytes()).expect_err("no review").0;
        assert!(refused("{").contains("EOF"));
        assert_eq!(
            refused(r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}"#),
            r#"it is "AdmissionReview" of "admission.k8s.io/v1beta1""#
        );
        assert_eq!(
            refused(r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#),
            "it has no request"
        );
    }
}
