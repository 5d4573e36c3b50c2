//! Responses that agree to a protocol upgrade or refuse it.
//!
//! kube-apiserver leaves most of this to the kubelet; the error messages are those of the kubelet's handlers.

use axum::body::Body;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{
        CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
        SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use ring::digest;

use crate::{http::reply, request::upgrade::STREAM_PROTOCOL};

const ACCEPTED_PROTOCOLS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");
/// The text that WebSocket servers append to the client's key (RFC 6455, 1.3).
const WEBSOCKET_SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Returns the first offered protocol that is served, `Some(None)` if none was offered, and `None` if none of them is served.
pub(super) fn choose<'a>(
    offered: &[&'a str],
    served: impl Fn(&str) -> bool,
) -> Option<Option<&'a str>> {
    if offered.is_empty() {
        return Some(None);
    }
    offered
        .iter()
        .find(|protocol| served(protocol))
        .map(|protocol| Some(*protocol))
}

/// Returns the 101 response that agrees to a WebSocket.
///
/// # Errors
/// The 400 for an invalid handshake.
pub(crate) fn websocket(
    headers: &HeaderMap,
    protocol: Option<&str>,
) -> Result<Response<Body>, Box<Response<Body>>> {
    let version = headers.get(SEC_WEBSOCKET_VERSION);
    if version.is_none_or(|version| version != "13") {
        // RFC 6455, 4.4: the refusal names the version that the server speaks.
        let mut refusal = reply::text(400, "missing or bad WebSocket Version\n");
        let versions = HeaderValue::from_static("13");
        refusal
            .headers_mut()
            .insert(SEC_WEBSOCKET_VERSION, versions);
        return Err(Box::new(refusal));
    }
    let Some(key) = headers.get(SEC_WEBSOCKET_KEY) else {
        return Err(Box::new(reply::text(400, "missing or bad WebSocket-Key\n")));
    };
    let mut sum = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    sum.update(key.as_bytes());
    sum.update(WEBSOCKET_SALT);
    let accept = STANDARD.encode(sum.finish());
    Ok(switch(
        "websocket",
        [
            (SEC_WEBSOCKET_ACCEPT, Some(accept.as_str())),
            (SEC_WEBSOCKET_PROTOCOL, protocol),
        ],
    ))
}

/// Returns the 101 response that agrees to SPDY.
pub(super) fn spdy(protocol: Option<&str>) -> Response<Body> {
    switch("SPDY/3.1", [(STREAM_PROTOCOL, protocol)])
}

fn switch<const N: usize>(
    protocol: &'static str,
    more: [(HeaderName, Option<&str>); N],
) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(protocol));
    for (name, value) in more {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
            headers.insert(name, value);
        }
    }
    response
}

/// Returns the 403 for a client none of whose protocols is served.
pub(super) fn no_common_protocol(offered: &[&str], served: &[&'static str]) -> Response<Body> {
    let mut refusal = reply::text(
        403,
        format!(
            "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]\n",
            offered.join(" "),
            served.join(" ")
        ),
    );
    // So that the client can offer one of them in its next request (apimachinery: httpstream.Handshake).
    for protocol in served {
        let value = HeaderValue::from_static(protocol);
        refusal.headers_mut().append(ACCEPTED_PROTOCOLS, value);
    }
    refusal
}

/// Returns the 400 for an upgrade to an unknown protocol.
pub(super) fn unknown() -> Response<Body> {
    let why = "unable to upgrade: missing upgrade headers in request: Upgrade must be \"websocket\" or \"SPDY/3.1\"\n";
    reply::text(400, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_standard_gets_the_answer_of_the_standard() {
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        let version = HeaderValue::from_static("13");
        let asked = [(SEC_WEBSOCKET_VERSION, version), (SEC_WEBSOCKET_KEY, key)];
        let asked = HeaderMap::from_iter(asked);
        let answer = websocket(&asked, Some("v5.channel.k8s.io")).expect("agreed");
        assert_eq!(answer.status(), 101);
        let accept = &answer.headers()["sec-websocket-accept"];
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let protocol = &answer.headers()["sec-websocket-protocol"];
        assert_eq!(protocol, "v5.channel.k8s.io");
        let refused = websocket(&HeaderMap::new(), None).expect_err("refused");
        assert_eq!(refused.status(), 400);
    }

    #[test]
    fn the_clients_order_of_protocols_counts() {
        let served = |protocol: &str| ["a", "b"].contains(&protocol);
        assert_eq!(choose(&["c", "b", "a"], served), Some(Some("b")));
        assert_eq!(choose(&[], served), Some(None));
        assert_eq!(choose(&["c"], served), None);
    }
}
