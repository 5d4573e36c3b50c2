//! Continue tokens of paged lists, in kube-apiserver's format.

use base64::{
    Engine,
    alphabet::URL_SAFE,
    engine::general_purpose::{GeneralPurpose, NO_PAD},
};
use mullion_kube_text::status::Status;
use mullion_schema::decode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The encoding of tokens: base64 without padding. Like Go's decoder, it ignores trailing bits that are no whole byte.
const TOKEN: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));
/// The content of a continue token: the place at which the next page starts.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Continue {
    v: String,
    /// The revision of the whole list; negative for the newest one.
    pub(super) rv: i64,
    /// The key at which the next page starts, below the list's prefix.
    pub(super) start: String,
}

impl Continue {
    pub(super) fn encode(revision: i64, start: &str) -> String {
        let token = Continue {
            v: "meta.k8s.io/v1".into(),
            rv: revision,
            start: start.into(),
        };
        TOKEN.encode(serde_json::to_vec(&token).expect("a token serializes"))
    }

    pub(super) fn decode(text: &str) -> Result<Self, Status> {
        let refuse = |why: &str| {
            Err(Status::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            )))
        };
        let bytes = match TOKEN.decode(text) {
            Ok(bytes) => bytes,
            Err(error) => {
                let at = match error {
                    base64::DecodeError::InvalidByte(at, _) => at,
                    _ => text.len().saturating_sub(1),
                };
                return refuse(&format!("illegal base64 data at input byte {at}"));
            }
        };
        let token: Continue = match serde_json::from_slice(&bytes) {
            Ok(token) => token,
            Err(error) => return refuse(&unfit(&bytes, &error)),
        };
        if token.v != "meta.k8s.io/v1" {
            return refuse(&format!(
                "server does not recognize this encoded version {}",
                token.v
            ));
        }
        if token.rv == 0 {
            return refuse("incorrect encoded start resourceVersion (version meta.k8s.io/v1)");
        }
        if token.start.is_empty() {
            return refuse("encoded start key empty (version meta.k8s.io/v1)");
        }
        // A token must not point outside the collection.
        let start = token.start.strip_prefix('/').unwrap_or(&token.start);
        if start
            .split('/')
            .any(|segment| matches!(segment, "" | "." | ".."))
        {
            return refuse(&token.start);
        }
        Ok(token)
    }
}

/// Returns the error that Go gives for token bytes that are not a valid token.
fn unfit(bytes: &[u8], error: &serde_json::Error) -> String {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else {
        return decode::json_error(bytes, error).to_string();
    };
    let wrong = |value: &Value, place: &str, go: &str| {
        let kind = decode::json_kind(value);
        format!("json: cannot unmarshal {kind} into Go {place} of type {go}")
    };
    if !value.is_object() {
        return wrong(&value, "value", "storage.continueToken");
    }
    let fields = [("v", "string"), ("rv", "int64"), ("start", "string")];
    let fits = |value: &Value, go: &str| match go {
        "int64" => value.is_i64(),
        _ => value.is_string(),
    };
    let misfit = fields.into_iter().find_map(|(field, go)| {
        let given = value.get(field)?;
        let place = format!("struct field continueToken.{field}");
        (!fits(given, go)).then(|| wrong(given, &place, go))
    });
    misfit.unwrap_or_else(|| error.to_string())
}
