//! `/.well-known/openid-configuration` and `/openid/v1/jwks`: how others check the tokens of this server's service accounts.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Authenticator, public_key::VerifyingKey};

/// The path of the OpenID Connect discovery document.
pub(crate) const CONFIGURATION: &str = "/.well-known/openid-configuration";
/// The path of the JSON Web Key Set.
pub(crate) const KEYS: &str = "/openid/v1/jwks";

/// Returns the media type and the document of one of the two paths; `None` for others.
pub(crate) fn document(
    authenticator: &Authenticator,
    external_url: &str,
    path: &str,
) -> Option<(&'static str, Value)> {
    match path.trim_end_matches('/') {
        CONFIGURATION => Some((
            "application/json",
            configuration(authenticator, external_url),
        )),
        KEYS => {
            let keys: Vec<Value> = authenticator
                .token_keys()
                .map(VerifyingKey::to_json)
                .collect();
            Some(("application/jwk-set+json", json!({"keys": keys})))
        }
        _ => None,
    }
}

fn configuration(authenticator: &Authenticator, external_url: &str) -> Value {
    let algorithms: BTreeSet<&str> = authenticator
        .token_keys()
        .map(VerifyingKey::algorithm)
        .collect();
    json!({
        "issuer": authenticator.issuer(),
        "jwks_uri": format!("{external_url}{KEYS}"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": algorithms,
    })
}
