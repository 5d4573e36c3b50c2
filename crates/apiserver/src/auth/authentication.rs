//! Who asks: the user that TLS or the embedding program has put into the request, or the one whose token the request carries.
//!
//! Tokens come as `Authorization: Bearer` or, from browsers, as a WebSocket protocol. They never get into a log or an answer.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    HeaderMap,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL},
    request::Parts,
};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Name};

use super::{AUTHENTICATED, service_account};
use crate::{admission::User, server::ApiServer, status::Status};

const WEBSOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";
/// The key of the credential's id among a user's extra fields.
pub(super) const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// The part of a certificate's subject that is the user's uid (kube-apiserver: AllowParsingUserUIDFromCertAuth).
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// The user of a request; 401 if it has none.
pub(super) fn user(server: &ApiServer, parts: &mut Parts) -> Result<User, Status> {
    if let Some(user) = parts.extensions.remove::<User>() {
        return Ok(user);
    }
    let unauthorized = || Status::new(401, "Unauthorized", "Unauthorized");
    let token = token(&parts.headers).ok_or_else(unauthorized)?;
    match authenticate_token(server, &token, server.audiences()) {
        Ok(Some(identified)) => Ok(identified.user),
        Ok(None) => Err(unauthorized()),
        Err(error) => {
            tracing::debug!(%error, "a token is refused");
            Err(unauthorized())
        }
    }
}

/// Whom a token stands for.
pub(crate) struct Identified {
    /// The user.
    pub(crate) user: User,
    /// Which of the wanted audiences the token is for.
    pub(crate) audiences: Vec<String>,
}

/// Looks a token up for the wanted audiences: `None` if nobody knows it.
///
/// # Errors
/// It is a token of this server's that does not hold (any more).
pub(crate) fn authenticate_token(
    server: &ApiServer,
    token: &str,
    audiences: &[String],
) -> Result<Option<Identified>, service_account::TokenError> {
    let ours = server.audiences();
    if let Some(user) = server.tokens().find(token) {
        let meant: Vec<String> = audiences
            .iter()
            .filter(|audience| ours.contains(audience))
            .cloned()
            .collect();
        return Ok((!meant.is_empty()).then(|| Identified {
            user: authenticated(user.clone()),
            audiences: meant,
        }));
    }
    service_account::authenticate(server, token, audiences)
}

/// Makes a user a member of `system:authenticated`.
pub(super) fn authenticated(mut user: User) -> User {
    if !user.groups.iter().any(|group| group == AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

fn token(headers: &HeaderMap) -> Option<String> {
    let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
    if let Some(value) = headers.get(AUTHORIZATION).and_then(text) {
        let mut words = value.trim().splitn(3, ' ');
        let scheme = words.next().unwrap_or_default();
        let token = words.next().filter(|token| !token.is_empty())?;
        return scheme
            .eq_ignore_ascii_case("bearer")
            .then(|| token.to_owned());
    }
    let protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let offered = protocols.filter_map(text).collect::<Vec<_>>().join(",");
    let encoded = offered
        .split(',')
        .find_map(|protocol| protocol.trim().strip_prefix(WEBSOCKET_TOKEN))?;
    let token = URL_SAFE_NO_PAD.decode(encoded).ok()?;
    String::from_utf8(token)
        .ok()
        .filter(|token| !token.is_empty())
}

/// The user a client certificate stands for: its common name, its organizations as groups.
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

/// The names that a server's certificate is for.
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

    fn with(name: http::HeaderName, value: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        token(&headers)
    }

    #[test]
    fn a_token_is_found_in_the_header_and_in_the_websocket_protocol() {
        assert_eq!(with(AUTHORIZATION, "Bearer abc"), Some("abc".into()));
        assert_eq!(with(AUTHORIZATION, "bearer  abc"), None);
        assert_eq!(with(AUTHORIZATION, "Basic abc"), None);
        let offered = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj";
        assert_eq!(with(SEC_WEBSOCKET_PROTOCOL, offered), Some("abc".into()));
        assert_eq!(with(SEC_WEBSOCKET_PROTOCOL, "v5.channel.k8s.io"), None);
    }
}
