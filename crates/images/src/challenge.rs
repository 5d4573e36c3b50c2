//! Parses how a registry asks for credentials (`WWW-Authenticate`), and the token that a token
//! service returns.

use http::HeaderMap;
use serde::Deserialize;

/// The authentication that a registry demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User and password in every request.
    Basic,
    /// A token from a token service.
    Bearer {
        /// The URL of the token service.
        realm: String,
        /// The service that the token is for, if given.
        service: Option<String>,
        /// The scope of the token, if given.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Parses the challenges of a response; a token is preferred to a password.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Challenge> {
        let all = headers.get_all(http::header::WWW_AUTHENTICATE);
        let all = all.iter().filter_map(|value| value.to_str().ok());
        let mut found: Vec<_> = all.filter_map(Challenge::parse).collect();
        // A token is valid for one repository and a short time; a password is not.
        let bearer = found.iter().position(|one| *one != Challenge::Basic);
        match bearer {
            Some(index) => Some(found.swap_remove(index)),
            None => found.pop(),
        }
    }

    fn parse(text: &str) -> Option<Challenge> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        for (key, value) in parameters(rest) {
            match key.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
        }
        Some(Challenge::Bearer {
            realm: realm?,
            service,
            scope,
        })
    }
}

/// Parses `key="value",key=value`; a quoted value may contain commas.
fn parameters(text: &str) -> Vec<(String, String)> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim_matches([' ', ',']).to_owned();
        let (value, tail) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.push((key, value.trim().to_owned()));
        rest = tail;
    }
    found
}

/// The response of a token service.
#[derive(Deserialize)]
pub(crate) struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl TokenAnswer {
    /// Returns the token, which services send under either of two names.
    pub(crate) fn token(self) -> Option<String> {
        self.token
            .or(self.access_token)
            .filter(|token| !token.is_empty())
    }
}

/// Returns the path of a token request with its query.
pub(crate) fn token_target(target: &str, service: Option<&str>, scope: &str) -> String {
    let separator = if target.contains('?') { '&' } else { '?' };
    let mut target = format!("{target}{separator}scope={}", encoded(scope));
    if let Some(service) = service {
        target += &format!("&service={}", encoded(service));
    }
    target
}

fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(text: &str) -> Option<Challenge> {
        Challenge::parse(text)
    }

    #[test]
    fn challenges_are_read_with_commas_in_quotes() {
        let bearer = challenge(
            r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#,
        );
        assert_eq!(
            bearer,
            Some(Challenge::Bearer {
                realm: "https://auth.docker.io/token".to_owned(),
                service: Some("registry.docker.io".to_owned()),
                scope: Some("repository:a/b:pull,push".to_owned()),
            })
        );
        assert_eq!(
            challenge(r#"Basic realm="Registry""#),
            Some(Challenge::Basic)
        );
        assert_eq!(challenge("Bearer"), None);
        assert_eq!(challenge("Negotiate"), None);
    }

    #[test]
    fn a_token_is_asked_for_with_service_and_scope() {
        assert_eq!(
            token_target(
                "/token?a=1",
                Some("registry.docker.io"),
                "repository:a/b:pull"
            ),
            "/token?a=1&scope=repository%3Aa%2Fb%3Apull&service=registry.docker.io"
        );
    }
}
