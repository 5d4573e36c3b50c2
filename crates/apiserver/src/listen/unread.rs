//! Reads the rest of a request body that the client is still sending after the request was answered.
//!
//! Over HTTP/1.1 the next request begins where this body ends. So an unread body is read to its end before the response, as Go's server
//! does; if it is too long or does not arrive, the response closes the connection.
//!
//! Over HTTP/2 a stream whose body is dropped is reset as soon as the response is sent. Clients that are still sending (curl) take that
//! for a failed request and never show the response. So the rest is read while the response is sent; only a client that sends too much is
//! reset.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, Version,
    header::{CONNECTION, EXPECT, UPGRADE},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;

/// The most bytes that are read over HTTP/1.1 (Go: maxPostHandlerReadBytes).
const MOST: usize = 256 * 1024;
/// The most bytes that are read over HTTP/2, where nothing waits for them: more than the largest body that is accepted.
const MOST_BESIDE: usize = 16 * 1024 * 1024;
/// How long the rest may take to arrive.
const PATIENCE: Duration = Duration::from_secs(1);

/// A body that can be read further after its reader was dropped.
#[derive(Clone)]
struct SharedBody(Arc<Mutex<Body>>);

impl SharedBody {
    fn body(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the rest and returns whether the end was reached.
    async fn read_to_end(&mut self, most: usize) -> bool {
        let read = async {
            let mut length = 0;
            while let Some(frame) = self.frame().await {
                let Ok(frame) = frame else { return false };
                length += frame.data_ref().map_or(0, Bytes::len);
                if length > most {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap_or(false)
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.body()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}

/// Answers a request and deals with the unread rest of its body.
pub(super) async fn answered<E>(
    request: Request<Body>,
    answer: impl AsyncFnOnce(Request<Body>) -> Result<Response<Body>, E>,
) -> Result<Response<Body>, E> {
    // A client that expects `100 Continue` sends nothing unless asked, and an upgrade has no body.
    let waits = request.headers().contains_key(EXPECT) || request.headers().contains_key(UPGRADE);
    if waits || request.body().is_end_stream() {
        return answer(request).await;
    }
    // Taken now, because the request moves into the handler.
    let beside = request.version() > Version::HTTP_11;
    let (parts, body) = request.into_parts();
    let mut rest = SharedBody(Arc::new(Mutex::new(body)));
    let mut answer = answer(Request::from_parts(parts, Body::new(rest.clone()))).await?;
    if beside {
        if !rest.is_end_stream() {
            tokio::spawn(async move { rest.read_to_end(MOST_BESIDE).await });
        }
    } else if !rest.read_to_end(MOST).await {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
    Ok(answer)
}
