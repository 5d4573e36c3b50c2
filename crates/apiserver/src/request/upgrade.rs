//! The protocol that a request wants its connection to be switched to.

use http::{
    HeaderMap, HeaderName,
    header::{CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};

/// The header with the stream protocols of a SPDY connection.
pub(crate) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// The protocol that a request wants to switch to.
pub(crate) enum RequestedProtocol<'a> {
    /// WebSocket with one of these subprotocols.
    WebSocket(Vec<&'a str>),
    /// SPDY/3.1 with one of these stream protocols.
    Spdy(Vec<&'a str>),
    /// An unknown protocol.
    Unknown,
}

impl<'a> RequestedProtocol<'a> {
    /// Parses the headers of a request; `None` if it does not ask for an upgrade.
    pub(crate) fn of(headers: &'a HeaderMap) -> Option<RequestedProtocol<'a>> {
        if !words(headers, &CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade")) {
            return None;
        }
        let to = |protocol: &str| {
            words(headers, &UPGRADE).any(|word| word.eq_ignore_ascii_case(protocol))
        };
        // WebSocket first, as the kubelet's handlers look for it.
        Some(if to("websocket") {
            RequestedProtocol::WebSocket(words(headers, &SEC_WEBSOCKET_PROTOCOL).collect())
        } else if to("SPDY/3.1") {
            RequestedProtocol::Spdy(words(headers, &STREAM_PROTOCOL).collect())
        } else {
            RequestedProtocol::Unknown
        })
    }
}

/// Returns whether a request asks for a WebSocket (kube-apiserver: IsWebSocketRequest).
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    matches!(
        RequestedProtocol::of(headers),
        Some(RequestedProtocol::WebSocket(_))
    )
}

/// Returns the comma-separated values of a header.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn an_upgrade_is_asked_for_by_both_headers() {
        let spdy = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "spdy/3.1"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("x-stream-protocol-version", "v3.channel.k8s.io"),
        ]);
        let offered = ["v4.channel.k8s.io", "v3.channel.k8s.io"];
        assert!(
            matches!(RequestedProtocol::of(&spdy), Some(RequestedProtocol::Spdy(some)) if some == offered)
        );
        assert!(RequestedProtocol::of(&headers(&[("upgrade", "websocket")])).is_none());
        let other = headers(&[("connection", "upgrade"), ("upgrade", "h2c")]);
        assert!(matches!(
            RequestedProtocol::of(&other),
            Some(RequestedProtocol::Unknown)
        ));
    }
}
