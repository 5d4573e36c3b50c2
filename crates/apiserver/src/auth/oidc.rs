//! `/.well-known/openid-configuration` and `/openid/v1/jwks`: how others check the tokens of this server's service accounts.

use std::collections::BTreeSet;

use axum::body::Body;
use http::{HeaderValue, Method, Response, header::CACHE_CONTROL};
use mullion_kube_text::status::Status;
use serde_json::{Value, json};

use super::public_key::VerifyingKey;
use crate::{
    http::{method_not_allowed, reply},
    server::ApiServer,
};

/// The path of the OpenID Connect discovery document.
pub(crate) const CONFIGURATION: &str = "/.well-known/openid-configuration";
/// The path of the JSON Web Key Set.
pub(crate) const KEYS: &str = "/openid/v1/jwks";

/// Answers one of the two paths; `None` for others.
pub(crate) fn serve(
    server: &ApiServer,
    method: &Method,
    path: &str,
) -> Option<Result<Response<Body>, Status>> {
    let (content_type, document) = match path.trim_end_matches('/') {
        CONFIGURATION => ("application/json", configuration(server)),
        KEYS => (
            "application/jwk-set+json",
            json!({"keys": server.token_keys().map(VerifyingKey::to_json).collect::<Vec<_>>()}),
        ),
        _ => return None,
    };
    if *method != Method::GET {
        return Some(Err(method_not_allowed()));
    }
    let mut response = reply::respond(200, content_type, Body::from(document.to_string()));
    response.headers_mut().insert(
        CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=3600"),
    );
    Some(Ok(response))
}

fn configuration(server: &ApiServer) -> Value {
    let algorithms: BTreeSet<&str> = server.token_keys().map(VerifyingKey::algorithm).collect();
    json!({
        "issuer": server.issuer(),
        "jwks_uri": format!("{}{KEYS}", server.external_url()),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": algorithms,
    })
}
