//! Which site a request believes to talk to, and which site sent it: a browser's pages are not to reach a cluster on the same machine.
//!
//! A page of another site that has its name point at this machine (DNS rebinding) sends that name as `Host`; any page that sends a request
//! elsewhere says where it is from as `Origin`. Programs send neither a foreign name nor an origin: `kubectl proxy` keeps the
//! browser's origin, which is on loopback.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, Uri,
    header::{HOST, ORIGIN},
};

use crate::status::Status;

/// Refuses requests to or from sites that are not this server's.
///
/// # Errors
/// 403.
pub(crate) fn check(headers: &HeaderMap, uri: &Uri, names: &[String]) -> Result<(), Status> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = match uri.authority() {
        Some(authority) => Some(host_of(authority.as_str())),
        None => text(HOST).map(host_of),
    };
    if let Some(host) = host
        && !(host.is_empty() || address(host).is_some() || is_ours(host, names))
    {
        return Err(Status::new(
            403,
            "Forbidden",
            format!(
                "forbidden: {host:?} is not a name of this server: use localhost, an IP address, or a name in its certificate"
            ),
        ));
    }
    let Some(origin) = text(ORIGIN) else {
        return Ok(());
    };
    let site = origin.split_once("://").map(|(_, site)| host_of(site));
    let is_known = site.is_some_and(|site| {
        let on_loopback = address(site).is_some_and(|address| address.is_loopback());
        on_loopback || is_ours(site, names) || host == Some(site)
    });
    match is_known {
        true => Ok(()),
        false => Err(Status::new(
            403,
            "Forbidden",
            format!("forbidden: pages of {origin:?} may not send requests to this server"),
        )),
    }
}

/// A host without its port.
fn host_of(authority: &str) -> &str {
    let end = authority.find(']').map_or(0, |bracket| bracket + 1);
    match authority[end..].find(':') {
        Some(colon) => &authority[..end + colon],
        None => authority,
    }
}

fn address(host: &str) -> Option<IpAddr> {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host).parse().ok()
}

fn is_ours(host: &str, names: &[String]) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_local = |name: &str| name.eq_ignore_ascii_case("localhost");
    let under_local = host
        .rsplit_once('.')
        .is_some_and(|(_, last)| is_local(last));
    is_local(host)
        || under_local
        || names.iter().any(|name| match name.strip_prefix("*.") {
            Some(parent) => host
                .split_once('.')
                .is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(parent)),
            None => host.eq_ignore_ascii_case(name),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(host: &str, origin: Option<&str>) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().expect("a value"));
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().expect("a value"));
        }
        let names = [
            "kubernetes.default.svc".to_owned(),
            "*.example.com".to_owned(),
        ];
        check(&headers, &Uri::from_static("/api"), &names)
            .err()
            .map(|status| status.message)
    }

    #[test]
    fn only_names_of_the_server_are_talked_to() {
        for host in [
            "localhost:6443",
            "127.0.0.1:6443",
            "[::1]:6443",
            "192.0.2.7",
            "a.localhost",
            "Kubernetes.default.svc",
            "kubernetes.default.svc.:443",
            "api.example.com",
        ] {
            assert_eq!(refused(host, None), None, "{host}");
        }
        for host in [
            "evil.test",
            "example.com",
            "a.b.example.com",
            "localhost.evil.test",
            "127.0.0.1.evil.test",
        ] {
            assert!(refused(host, None).is_some(), "{host}");
        }
        assert_eq!(
            refused("evil.test:6443", None).as_deref(),
            Some(
                "forbidden: \"evil.test\" is not a name of this server: use localhost, an IP address, or a name in its certificate"
            )
        );
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        for origin in [
            "http://localhost:8001",
            "http://127.0.0.1",
            "https://[::1]:9",
            "https://192.0.2.7:6443",
            "https://api.example.com",
        ] {
            assert_eq!(refused("192.0.2.7:6443", Some(origin)), None, "{origin}");
        }
        for origin in [
            "https://evil.test",
            "null",
            "http://192.0.2.8",
            "http://localhost.evil.test",
            "http://",
        ] {
            assert_eq!(
                refused("localhost", Some(origin)),
                Some(format!(
                    "forbidden: pages of {origin:?} may not send requests to this server"
                ))
            );
        }
    }
}
