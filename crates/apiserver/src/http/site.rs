//! Checks `Host` and `Origin` of a request, so that web pages in a browser cannot reach a cluster on the same machine.
//!
//! A page whose name is made to resolve to this machine (DNS rebinding) sends that name as `Host`, and a page that sends requests to
//! another site names itself in `Origin`. Programs send neither a foreign `Host` nor an `Origin`; `kubectl proxy` passes on the browser's
//! origin, which is on loopback.
//!
//! Both headers are parsed strictly, as an RFC 3986 authority without a user: a value that two parsers could read differently is refused.

use std::net::{IpAddr, Ipv6Addr};

use http::{
    HeaderMap, HeaderName, Uri, Version,
    header::{HOST, ORIGIN},
};
use mullion_kube_text::status::Status;

/// Refuses requests whose `Host` or `Origin` is not a name of this server.
///
/// # Errors
/// 400 for a `Host` that is missing, repeated or malformed (with the messages of Go's server), 403 for a foreign host or origin.
pub(crate) fn check(
    version: Version,
    headers: &HeaderMap,
    uri: &Uri,
    names: &[String],
) -> Result<(), Status> {
    let sent = only(headers, HOST).ok_or_else(|| Status::bad_request("too many Host headers"))?;
    let authority = uri.authority().map(|authority| authority.as_str());
    if sent.is_none() && authority.is_none() && version == Version::HTTP_11 {
        return Err(Status::bad_request("missing required Host header"));
    }
    // An HTTP/2 request may have both a `Host` header and an authority.
    let mut host = None;
    for text in [sent, authority].into_iter().flatten() {
        let Some(named) = host_of(text) else {
            return Err(Status::bad_request("malformed Host header"));
        };
        // An IP address cannot be rebound by DNS, so only names are compared.
        if address(named).is_none() && !is_ours(named, names) {
            return Err(forbidden(format!(
                "{named:?} is not a name of this server: use localhost, an IP address, or a name in its certificate"
            )));
        }
        host = Some(named);
    }
    let origin = only(headers, ORIGIN)
        .ok_or_else(|| forbidden("a request has one Origin header at most".to_owned()))?;
    let Some(origin) = origin else {
        return Ok(());
    };
    let is_known = site_of(origin).is_some_and(|site| {
        // Pages of this machine's own servers, above all of `kubectl proxy`.
        let on_loopback = address(site).is_some_and(|address| address.is_loopback());
        on_loopback || is_ours(site, names) || host == Some(site)
    });
    if is_known {
        Ok(())
    } else {
        Err(forbidden(format!(
            "pages of {origin:?} may not send requests to this server"
        )))
    }
}

fn forbidden(why: String) -> Status {
    Status::new(403, "Forbidden", format!("forbidden: {why}"))
}

/// Returns the value of a header, `Some(None)` if it was not sent, and `None` if it was sent more than once. A value that is not text
/// becomes `?`, which is neither a host nor an origin.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<Option<&str>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        Some(_) => None,
        None => Some(first.map(|value| value.to_str().unwrap_or("?"))),
    }
}

/// Returns the host of `host` or `host:port`; `None` for anything else, such as `user@host` or an invalid port.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = match authority.find(']') {
        Some(bracket) => {
            let (host, rest) = authority.split_at(bracket + 1);
            let inner = host.strip_prefix('[')?.strip_suffix(']')?;
            inner.parse::<Ipv6Addr>().ok()?;
            match rest {
                "" => (host, None),
                rest => (host, Some(rest.strip_prefix(':')?)),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_part_of_a_name =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_name = !host.is_empty() && host.bytes().all(is_part_of_a_name);
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    ((is_name || host.starts_with('[')) && port.is_none_or(is_port)).then_some(host)
}

/// Returns the host of an origin `scheme://host` or `scheme://host:port`; `None` for `null` and anything longer.
fn site_of(origin: &str) -> Option<&str> {
    let (scheme, authority) = origin.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    is_scheme.then(|| host_of(authority))?
}

fn address(host: &str) -> Option<IpAddr> {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host).parse().ok()
}

fn is_ours(host: &str, names: &[String]) -> bool {
    // `localhost.` is the same name in its absolute form.
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
        let uri = Uri::from_static("/api");
        let refusal = check(Version::HTTP_11, &headers, &uri, &names).err();
        refusal.map(|status| status.message)
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
    fn what_is_no_host_is_refused() {
        for host in [
            "",
            ":80",
            "localhost:80@evil.test",
            "user@localhost",
            "localhost:",
            "localhost:x",
            "localhost:65536",
            "localhost:+1",
            "localhost:80:80",
            "localhost/",
            "localhost, evil.test",
            "[::1",
            "::1]",
            "[::1]x",
            "[localhost]",
            "[::1]:8]",
        ] {
            assert_eq!(
                refused(host, None).as_deref(),
                Some("malformed Host header"),
                "{host}"
            );
        }
    }

    #[test]
    fn there_is_one_host_and_one_origin_at_most() {
        let refused = |version, headers: &[(HeaderName, &'static str)], uri: &'static str| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(name, http::HeaderValue::from_static(value));
            }
            let refusal = check(version, &map, &Uri::from_static(uri), &[]).err()?;
            Some((refusal.code, refusal.message))
        };
        let (one, two, zero) = (Version::HTTP_11, Version::HTTP_2, Version::HTTP_10);
        let twice = [(HOST, "localhost"), (HOST, "localhost")];
        let too_many = Some((400, "too many Host headers".to_owned()));
        assert_eq!(refused(one, &twice, "/"), too_many);
        assert_eq!(refused(two, &twice, "https://localhost/"), too_many);
        let missing = Some((400, "missing required Host header".to_owned()));
        assert_eq!(refused(one, &[], "/"), missing);
        assert_eq!(refused(zero, &[], "/"), None);
        assert_eq!(refused(two, &[], "https://localhost/"), None);
        let foreign = refused(two, &[(HOST, "evil.test")], "https://localhost/");
        assert_eq!(foreign.map(|(code, _)| code), Some(403));
        let hidden = refused(
            one,
            &[(HOST, "localhost")],
            "https://localhost:80@evil.test/",
        );
        assert_eq!(hidden, Some((400, "malformed Host header".to_owned())));
        let pages = [
            (HOST, "localhost"),
            (ORIGIN, "http://localhost"),
            (ORIGIN, "http://evil.test"),
        ];
        let why = "forbidden: a request has one Origin header at most".to_owned();
        assert_eq!(refused(one, &pages, "/"), Some((403, why)));
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
            "http://localhost:x.evil.test",
            "http://localhost:80@evil.test",
            "http://localhost/",
            "http://localhost http://evil.test",
            "http//localhost",
            "://localhost",
            "localhost",
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
