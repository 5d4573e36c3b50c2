//! A watch over WebSocket, as browsers ask for one: each event is a message (kube-apiserver: WatchServer.HandleWS).
//!
//! JSON events are text messages; protobuf events are binary messages without the length prefix that they have in a stream. Messages from
//! the client are read and dropped, so that its pings are answered and its disconnect is noticed. The end of the watch bounds every
//! write.

use axum::body::Body;
use bytes::Bytes;
use futures::{SinkExt, Stream, StreamExt};
use http::{
    HeaderMap, Response, StatusCode, Uri,
    header::{
        CONNECTION, ORIGIN, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    },
};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::http::{
    negotiate::Media,
    subresource::streams::{self, Connection, SessionError, Upgrade},
};

/// The bytes of the length prefix of a protobuf frame.
const LENGTH: usize = 4;

/// Accepts the WebSocket and sends the events over it.
pub(super) fn serve<E>(
    headers: &HeaderMap,
    upgrade: Upgrade,
    media: Media,
    ends: Instant,
    events: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
) -> Response<Body>
where
    E: Send + 'static,
{
    match agree(headers) {
        Ok(agreed) => {
            streams::hand_over(upgrade, move |connection| {
                session(connection, media, ends, events)
            });
            agreed
        }
        Err(refusal) => *refusal,
    }
}

/// Checks the handshake like the library that kube-apiserver uses for watches: it requires an Origin and accepts any single subprotocol.
fn agree(headers: &HeaderMap) -> Result<Response<Body>, Box<Response<Body>>> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if text(SEC_WEBSOCKET_KEY).unwrap_or_default().is_empty() {
        return Err(refusal(
            StatusCode::BAD_REQUEST,
            "mismatch challenge/response",
        ));
    }
    if text(SEC_WEBSOCKET_VERSION) != Some("13") {
        let mut refusal = refusal(StatusCode::BAD_REQUEST, "missing or bad WebSocket Version");
        let versions = http::HeaderValue::from_static("13");
        refusal
            .headers_mut()
            .insert(SEC_WEBSOCKET_VERSION, versions);
        return Err(refusal);
    }
    let is_page = |origin: &str| {
        origin
            .parse::<Uri>()
            .is_ok_and(|uri| uri.scheme().is_some() || origin.starts_with('/'))
    };
    if !text(ORIGIN).is_some_and(is_page) {
        return Err(refusal(StatusCode::FORBIDDEN, ""));
    }
    let protocol = text(SEC_WEBSOCKET_PROTOCOL)
        .map(str::trim)
        .filter(|protocol| !protocol.is_empty());
    // golang.org/x/net/websocket refuses a handshake that leaves the choice to the server.
    if protocol.is_some_and(|protocol| protocol.contains(',')) {
        return Err(refusal(StatusCode::BAD_REQUEST, ""));
    }
    streams::agree_to_websocket(headers, protocol)
}

/// Returns an error without a Status body that also closes the connection.
fn refusal(code: StatusCode, why: &'static str) -> Box<Response<Body>> {
    let mut refusal = Response::new(Body::from(why));
    *refusal.status_mut() = code;
    let close = http::HeaderValue::from_static("close");
    refusal.headers_mut().insert(CONNECTION, close);
    Box::new(refusal)
}

async fn session<E>(
    connection: Connection,
    media: Media,
    ends: Instant,
    events: impl Stream<Item = Result<Bytes, E>>,
) -> Result<(), SessionError> {
    let mut socket = streams::accept(connection).await;
    let mut events = std::pin::pin!(events);
    loop {
        tokio::select! {
            // The end of the watch first, then the client's messages: a busy watch must not outlive either.
            biased;
            () = tokio::time::sleep_until(ends) => break,
            said = socket.next() => match said {
                Some(Ok(message)) if !message.is_close() => {}
                _ => break,
            },
            event = events.next() => match event {
                Some(Ok(event)) => tokio::time::timeout_at(ends, socket.send(message(media, event))).await??,
                _ => break,
            },
        }
    }
    streams::close(socket).await
}

fn message(media: Media, event: Bytes) -> Message {
    if media == Media::Protobuf {
        // A WebSocket message has a length of its own.
        return Message::binary(event.slice(LENGTH.min(event.len())..));
    }
    match Utf8Bytes::try_from(event.clone()) {
        Ok(text) => Message::Text(text),
        Err(_) => Message::binary(event),
    }
}
