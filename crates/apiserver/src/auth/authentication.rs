//! Authenticates requests: by the user that TLS or the embedding program has put into the request, or by the request's token.
//!
//! Tokens come as `Authorization: Bearer` or, from browsers, as a WebSocket protocol. They never get into a log or an answer.

use std::borrow::Cow;

use base64::{
    Engine as _,
    alphabet::URL_SAFE,
    engine::general_purpose::{GeneralPurpose, NO_PAD},
};
use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL},
    request::Parts,
};
use jiff::Timestamp;
use mullion_kinds::request::{AUTHENTICATED, User};
use mullion_kube_text::status::Status;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Name};

use super::{Authenticator, service_account};
use crate::request::upgrade::is_websocket;

const WEBSOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";
/// How tokens are written there; as Go does, the reader passes over bits that are no whole byte.
const IN_PROTOCOL: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));
/// The key of the credential's id among a user's extra fields.
pub(super) const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// The part of a certificate's subject that is the user's uid (kube-apiserver: AllowParsingUserUIDFromCertAuth).
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// Authenticates a request, and returns `None` if the request carries no credentials.
///
/// # Errors
/// 401 for a token that is unknown or invalid, also where anonymous requests are allowed.
pub(super) fn user(
    authenticator: &Authenticator,
    parts: &mut Parts,
    now: Timestamp,
) -> Result<Option<User>, Status> {
    if let Some(user) = parts.extensions.remove::<User>() {
        return Ok(Some(user));
    }
    let who = |token: &str| match authenticate_token(
        authenticator,
        token,
        authenticator.audiences(),
        now,
    ) {
        Ok(identified) => identified.map(|identified| identified.user),
        Err(error) => {
            tracing::debug!(%error, "a token is refused");
            None
        }
    };
    let bearer = bearer_token(&parts.headers);
    if let Some(user) = bearer.and_then(who) {
        return Ok(Some(user));
    }
    // Not refused at once: kube-apiserver tries every authenticator before it answers 401.
    let is_refused = bearer.is_some();
    let Some((token, rest)) = protocol_token(&parts.headers) else {
        return if is_refused {
            Err(unauthorized())
        } else {
            Ok(None)
        };
    };
    let user = who(&token).ok_or_else(unauthorized)?;
    // The token is taken out of the offered protocols, so that the server cannot agree to it and send it back to the client.
    if let Ok(rest) = HeaderValue::from_str(&rest) {
        parts.headers.insert(SEC_WEBSOCKET_PROTOCOL, rest);
    }
    Ok(Some(user))
}

/// Returns the 401 for a request without valid credentials.
pub(super) fn unauthorized() -> Status {
    Status::new(401, "Unauthorized", "Unauthorized")
}

/// The user that a token authenticates, and the audiences that it is valid for.
pub(crate) struct AuthenticatedUser {
    /// The user.
    pub(crate) user: User,
    /// Which of the wanted audiences the token is for.
    pub(crate) audiences: Vec<String>,
}

/// Authenticates a token for the wanted audiences, and returns `None` for a token that is unknown.
///
/// # Errors
/// The token was issued by this server, but is not valid (any more).
pub(crate) fn authenticate_token(
    authenticator: &Authenticator,
    token: &str,
    audiences: &[String],
    now: Timestamp,
) -> Result<Option<AuthenticatedUser>, service_account::TokenError> {
    let ours = authenticator.audiences();
    // Static tokens first: they are compared by digest, while a service account's token needs its signature verified.
    if let Some(user) = authenticator.static_tokens().find(token) {
        let meant: Vec<String> = audiences
            .iter()
            .filter(|audience| ours.contains(audience))
            .cloned()
            .collect();
        return Ok((!meant.is_empty()).then(|| AuthenticatedUser {
            user: authenticated(user.clone()),
            audiences: meant,
        }));
    }
    service_account::authenticate(authenticator, token, audiences, now)
}

/// Adds the group `system:authenticated` to the user.
pub(super) fn authenticated(mut user: User) -> User {
    if !user.groups.iter().any(|group| group == AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

/// Returns whether a bearer token is ignored because of extra spaces before it, for which kube-apiserver sends a warning.
pub(crate) fn has_extra_space(headers: &HeaderMap) -> bool {
    let value = headers.get(AUTHORIZATION);
    let value = value.and_then(|value| value.to_str().ok());
    let mut words = value.unwrap_or_default().trim().splitn(3, ' ');
    let scheme = words.next().unwrap_or_default();
    scheme.eq_ignore_ascii_case("bearer") && words.next() == Some("") && words.next().is_some()
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let mut words = value.trim().splitn(3, ' ');
    let scheme = words.next().unwrap_or_default();
    let token = words.next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// Returns the token among the subprotocols of a request for a WebSocket, and the other protocols, of which there must be at least one.
/// Two tokens count as none.
fn protocol_token(headers: &HeaderMap) -> Option<(String, String)> {
    if !is_websocket(headers) {
        return None;
    }
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let values = values.map(|value| String::from_utf8_lossy(value.as_bytes()));
    let values: Vec<Cow<'_, str>> = values.collect();
    let offered = values.iter().flat_map(|value| value.split(','));
    let (tokens, rest): (Vec<&str>, Vec<&str>) = offered
        .map(str::trim)
        .partition(|protocol| protocol.starts_with(WEBSOCKET_TOKEN));
    let [encoded] = tokens[..] else {
        return None;
    };
    let token = IN_PROTOCOL.decode(&encoded[WEBSOCKET_TOKEN.len()..]).ok()?;
    let token = String::from_utf8(token).ok()?;
    (!token.is_empty() && !rest.is_empty()).then(|| (token, rest.join(",")))
}

/// Returns the user of a client certificate: its common name is the user name, and its organizations are the groups.
pub(crate) fn of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let organizations = subject
        .iter_organization()
        .filter_map(|organization| organization.as_str().ok());
    let digest = Sha256::digest(der);
    let fingerprint: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let id = format!("X509SHA256={fingerprint}");
    Some(authenticated(User {
        name,
        groups: organizations.map(str::to_owned).collect(),
        uid: uid(subject).unwrap_or_default(),
        extra: [(CREDENTIAL_ID.to_owned(), vec![id])].into(),
    }))
}

/// Returns the DNS names that a server's certificate is valid for.
pub(crate) fn names_of(der: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return Vec::new();
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

fn uid(subject: &X509Name<'_>) -> Option<String> {
    let mut attributes = subject.iter_attributes();
    let attribute = attributes.find(|attribute| attribute.attr_type().to_id_string() == UID_OID)?;
    attribute.as_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(value: &'static str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
        bearer_token(&headers).map(str::to_owned)
    }

    #[test]
    fn a_token_is_found_in_the_header() {
        assert_eq!(bearer("Bearer abc"), Some("abc".into()));
        assert_eq!(bearer("bearer  abc"), None);
        assert_eq!(bearer("Basic abc"), None);
        let spaced = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            has_extra_space(&HeaderMap::from_iter([(AUTHORIZATION, value)]))
        };
        assert!(spaced("bearer  abc"));
        assert!(!spaced("Bearer abc") && !spaced("Basic  abc") && !spaced("Bearer "));
    }

    #[test]
    fn a_token_is_found_among_the_protocols_of_a_websocket() {
        let mut headers = HeaderMap::new();
        let mut offered = |value: &'static str| {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(value));
            let plain = protocol_token(&headers);
            headers.insert("upgrade", HeaderValue::from_static("websocket"));
            headers.insert("connection", HeaderValue::from_static("Upgrade"));
            let found = protocol_token(&headers);
            headers.remove("upgrade");
            assert_eq!(plain, None, "it is no request for a WebSocket");
            found
        };
        assert_eq!(
            offered("a, base64url.bearer.authorization.k8s.io.YWJj, b"),
            Some(("abc".to_owned(), "a,b".to_owned()))
        );
        for nothing in [
            "v5.channel.k8s.io",
            "base64url.bearer.authorization.k8s.io.YWJj",
            "a, base64url.bearer.authorization.k8s.io.YWJj, base64url.bearer.authorization.k8s.io.YWJj",
            "a, base64url.bearer.authorization.k8s.io.",
            "a, base64url.bearer.authorization.k8s.io.!",
        ] {
            assert_eq!(offered(nothing), None, "{nothing}");
        }
    }
}
