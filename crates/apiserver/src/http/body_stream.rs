//! Response bodies that are produced piece by piece while they are sent: compressed or indented ones, and lists that are serialized
//! object by object.
//!
//! Such a body holds one piece in memory, whatever the size of the response, and yields to other tasks after each piece, so that a small
//! response never waits for the whole of a large one.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http_body::{Frame, SizeHint};
use mullion_store::Object;
use tokio::{task::JoinHandle, time::Instant};

use super::arrival::timed_out;

/// The bytes that are produced, or transformed, before the task yields.
const PIECE: usize = 32 * 1024;

/// Marks a response of unknown length that ends by itself, unlike a watch.
#[derive(Clone, Copy)]
pub(crate) struct EndsByItself;

/// Returns whether a response ends by itself and may have at least `bytes` bytes.
pub(crate) fn may_have(response: &Response<Body>, bytes: u64) -> bool {
    // A watch has no exact size and no mark, so it is never taken for a large response.
    let exact = http_body::Body::size_hint(response.body()).exact();
    let ends = || response.extensions().get::<EndsByItself>().is_some();
    exact.map_or_else(ends, |exact| exact >= bytes)
}

/// A streaming transformation of bytes (compression, indentation).
pub(crate) trait Change: Send + 'static {
    /// Transforms the next bytes and appends the result to `out`.
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>);

    /// Appends the rest of the output after the last bytes.
    fn finish(&mut self, out: &mut Vec<u8>);
}

/// A producer of pieces: appends one piece to `out`, and returns false after the last one.
trait Source: Send + 'static {
    fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<Result<bool, axum::Error>>;
}

/// A body made of a source's pieces.
struct SourceBody<S> {
    source: S,
    /// Whether the last poll returned a piece, so that the next one yields to other tasks.
    rests: bool,
    ended: bool,
}

impl<S: Source + Unpin> http_body::Body for SourceBody<S> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if std::mem::take(&mut self.rests) {
            context.waker().wake_by_ref();
            // Yield: wake up at once, but after the other tasks that are ready.
            return Poll::Pending;
        }
        let mut out = Vec::new();
        let goes_on = match ready!(self.source.poll_piece(context, &mut out)) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                self.ended = true;
                return Poll::Ready(Some(Err(error)));
            }
        };
        self.rests = true;
        self.ended = !goes_on;
        // No empty frame: in HTTP/1.1 an empty chunk means the end of the body.
        if out.is_empty() && goes_on {
            // The task yields here already, so the next poll must not yield again.
            self.rests = false;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = (!out.is_empty()).then(|| Ok(Frame::data(out.into())));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// Returns a body that applies a transformation to another body.
pub(crate) fn changed(body: Body, change: impl Change + Unpin) -> Body {
    Body::new(SourceBody {
        source: ChangeSource {
            body,
            change,
            left: Bytes::new(),
        },
        rests: false,
        ended: false,
    })
}

struct ChangeSource<C> {
    body: Body,
    change: C,
    /// The bytes that were received and not transformed yet.
    left: Bytes,
}

impl<C: Change + Unpin> Source for ChangeSource<C> {
    fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<Result<bool, axum::Error>> {
        let mut taken = 0;
        while taken < PIECE {
            if self.left.is_empty() {
                let frame = match http_body::Body::poll_frame(Pin::new(&mut self.body), context) {
                    Poll::Ready(Some(frame)) => frame?,
                    Poll::Ready(None) => {
                        self.change.finish(out);
                        return Poll::Ready(Ok(false));
                    }
                    // Send what has been produced; the inner body has registered the waker for the rest.
                    Poll::Pending if taken > 0 => break,
                    Poll::Pending => return Poll::Pending,
                };
                self.left = frame.into_data().unwrap_or_default();
            }
            let piece = self.left.split_to(self.left.len().min(PIECE - taken));
            taken += piece.len();
            self.change.feed(&piece, out);
        }
        Poll::Ready(Ok(true))
    }
}

/// Returns a body of `head`, the objects separated by commas, and `tail`; `write` appends one object's text.
pub(crate) fn listed(
    (head, tail): (&str, &str),
    objects: Vec<Arc<Object>>,
    write: impl FnMut(&Object, &mut Vec<u8>) + Send + Unpin + 'static,
) -> Body {
    Body::new(SourceBody {
        source: ListSource {
            head: Some(head.to_owned()),
            tail: tail.to_owned(),
            objects: objects.into_iter(),
            write,
        },
        rests: false,
        ended: false,
    })
}

struct ListSource<W> {
    /// The text before the objects, until the first piece is made.
    head: Option<String>,
    tail: String,
    objects: std::vec::IntoIter<Arc<Object>>,
    write: W,
}

impl<W: FnMut(&Object, &mut Vec<u8>) + Send + Unpin + 'static> Source for ListSource<W> {
    fn poll_piece(
        &mut self,
        _: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<Result<bool, axum::Error>> {
        let mut is_first = false;
        if let Some(head) = self.head.take() {
            out.extend_from_slice(head.as_bytes());
            is_first = true;
        }
        // Bytes read count as well as bytes written: a Table row is short even for a large object.
        let mut read = 0;
        while out.len().max(read) < PIECE {
            let Some(object) = self.objects.next() else {
                out.extend_from_slice(self.tail.as_bytes());
                return Poll::Ready(Ok(false));
            };
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
            read += object.size_bytes();
            (self.write)(&object, out);
        }
        Poll::Ready(Ok(true))
    }
}

/// A body together with a value that is held until the body is sent (a permit, for example).
pub(crate) struct GuardedBody<T> {
    pub(crate) body: Body,
    #[expect(dead_code, reason = "it counts while it is there")]
    pub(crate) held: T,
}

impl<T: Unpin> http_body::Body for GuardedBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that is dropped at its deadline, also when the client has stopped reading and nobody polls it.
pub(crate) struct ExpiringBody {
    body: Arc<Mutex<Option<Body>>>,
    timer: JoinHandle<()>,
}

impl ExpiringBody {
    pub(crate) fn new(body: Body, deadline: Instant) -> Self {
        let body = Arc::new(Mutex::new(Some(body)));
        let expires = body.clone();
        // A task of its own, because nobody polls the body of a client that has stopped reading.
        let timer = tokio::spawn(async move {
            tokio::time::sleep_until(deadline).await;
            lock(&expires).take();
        });
        ExpiringBody { body, timer }
    }
}

fn lock(body: &Mutex<Option<Body>>) -> MutexGuard<'_, Option<Body>> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ExpiringBody {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

impl http_body::Body for ExpiringBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match &mut *lock(&self.body) {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(Some(Err(axum::Error::new(timed_out())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.body).as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.body)
            .as_ref()
            .map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use http_body_util::BodyExt;

    use super::*;

    /// Doubles every byte.
    struct Twice;

    impl Change for Twice {
        fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
            out.extend(bytes.iter().flat_map(|byte| [*byte; 2]));
        }

        fn finish(&mut self, out: &mut Vec<u8>) {
            out.push(b'.');
        }
    }

    #[test]
    fn a_changed_body_comes_in_pieces_between_which_others_go_first() {
        let sent = vec![b'a'; 10 * PIECE + 1];
        let mut body = changed(Body::from(sent.clone()), Twice);
        let (mut pieces, mut rests, mut all) = (0, 0, Vec::new());
        loop {
            match body.frame().now_or_never() {
                None => rests += 1,
                Some(Some(frame)) => {
                    let piece = frame.expect("no error").into_data().expect("data");
                    assert!(piece.len() <= 2 * PIECE + 1);
                    pieces += 1;
                    all.extend(piece);
                }
                Some(None) => break,
            }
        }
        assert_eq!((pieces, rests), (11, 10));
        assert_eq!(all.len(), 2 * sent.len() + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_not_sent_in_time_is_let_go() {
        let held = Arc::new(());
        let kept = GuardedBody {
            body: Body::from("x"),
            held: held.clone(),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut body = ExpiringBody::new(Body::new(kept), deadline);
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert_eq!(Arc::strong_count(&held), 2);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(body.frame().await.is_some_and(|frame| frame.is_err()));
    }
}
