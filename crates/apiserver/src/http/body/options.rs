//! Bodies that hold `DeleteOptions`.

use mullion_kube_text::{golang::quote, status::Status, validation::metadata::group_version};
use mullion_schema::{
    Type,
    decode::{self, DecodeError},
    proto,
};
use serde_json::Value;

use crate::{
    http::negotiate::Media,
    object::type_meta::{MetaError, NO_META, TypeMeta, is_json},
};

const KIND: &str = "DeleteOptions";
/// The version of options without an apiVersion.
const API_VERSION: &str = "meta.k8s.io/v1";
/// Go's name of the scheme that holds kube-apiserver's options, for error messages.
const SCHEME: &str = "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27";

/// Decodes DeleteOptions. Any group and version is accepted, but no other kind.
pub(crate) fn options(schema: &Type, media: Media, body: &[u8]) -> Result<Value, Status> {
    let refuse = |why: String| Status::bad_request(why);
    let meta = match media {
        Media::Json => TypeMeta::of_json(body),
        Media::Yaml => TypeMeta::of_yaml(body),
        Media::Protobuf => {
            let value = proto::decode(schema, body)
                .map_err(|error| Status::bad_request(error.to_string()))?;
            let meta = TypeMeta::of(&value).unwrap_or_default();
            return foreign(&meta).map_or(Ok(value), |why| Err(refuse(why)));
        }
    };
    let unfit = match &meta {
        Err(MetaError::Syntax) => None,
        Err(MetaError::Type(why)) => Some(format!("{NO_META}{why}")),
        Ok(meta) => foreign(meta),
    };
    if let Some(why) = unfit {
        return Err(refuse(why));
    }
    let decoded = match media {
        Media::Yaml => decode::yaml(schema, body),
        _ => decode::json(schema, body),
    };
    decoded.map(|decoded| decoded.value).map_err(|error| {
        let syntax = matches!(error, DecodeError::Syntax(_));
        let prefix = if syntax && !is_json(body) {
            NO_META
        } else {
            ""
        };
        refuse(format!("{prefix}{error}"))
    })
}

/// Returns the error for a body whose apiVersion or kind is not that of DeleteOptions.
fn foreign(meta: &TypeMeta) -> Option<String> {
    let (group, version) = group_version(&meta.api_version);
    let version = match (group, version) {
        ("", "") if meta.api_version.len() > 1 => {
            let given = &meta.api_version;
            return Some(format!("unexpected GroupVersion string: {given}"));
        }
        ("", "") => API_VERSION.to_owned(),
        ("", version) => version.to_owned(),
        (group, version) => format!("{group}/{version}"),
    };
    let kind = &meta.kind;
    (!kind.is_empty() && kind != KIND).then(|| {
        let (kind, version) = (quote(kind), quote(&version));
        format!("no kind {kind} is registered for version {version} in scheme {SCHEME:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_of_any_version_but_of_no_other_kind() {
        let schema = Type::builtin("apimachinery.pkg.apis.meta.v1.DeleteOptions").unwrap();
        let registered = |kind: &str, version: &str| {
            format!("no kind {kind:?} is registered for version {version:?} in scheme {SCHEME:?}")
        };
        for fine in [
            "{}",
            "null",
            r#"{"kind": "DeleteOptions"}"#,
            r#"{"kind": null, "apiVersion": "/"}"#,
            r#"{"kind": "DeleteOptions", "apiVersion": "apps/v1"}"#,
            r#"{"apiVersion": "no/such"}"#,
        ] {
            options(&schema, Media::Json, fine.as_bytes()).unwrap();
            options(&schema, Media::Yaml, fine.as_bytes()).unwrap();
        }
        for (body, message) in [
            (
                r#"{"kind": "Pod", "apiVersion": "v1"}"#,
                registered("Pod", "v1"),
            ),
            (
                r#"{"kind": "deleteOptions", "dryRun": "All"}"#,
                registered("deleteOptions", API_VERSION),
            ),
            (
                r#"{"kind": "Scale", "apiVersion": "apps/v1"}"#,
                registered("Scale", "apps/v1"),
            ),
            (
                r#"{"kind": "DeleteOptions", "apiVersion": "a/b/c"}"#,
                "unexpected GroupVersion string: a/b/c".to_owned(),
            ),
            (
                r#"{"kind": 5}"#,
                format!(
                    "{NO_META}json: cannot unmarshal number into Go struct field .kind of type string"
                ),
            ),
        ] {
            for media in [Media::Json, Media::Yaml] {
                let refusal = options(&schema, media, body.as_bytes()).unwrap_err();
                assert_eq!((refusal.code, refusal.message), (400, message.clone()));
            }
        }
    }
}
