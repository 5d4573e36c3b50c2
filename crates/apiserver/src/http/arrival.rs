//! Time limits of a request from the network: for its body to arrive, and for its response to be made and read.
//!
//! The body is read before its request takes a seat, so that clients that announce bodies and do not send them block no others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::body::Body;
use http::Response;
use http_body::Body as _;
use http_body_util::BodyExt;
use mullion_kube_text::status::Status;
use tokio::time::Instant;

use super::{
    body,
    body_stream::{self, ExpiringBody},
    reply::Pieces,
};
use crate::limits::{BODY_BYTES, Gate, MemoryPermit, TooMany};

/// The first bytes of each body that need no permit for memory; nearly all bodies are shorter.
pub(super) const FREE: usize = 64 * 1024;
/// Returns the 504 of a request that takes too long (kube-apiserver: WithTimeoutForNonLongRunningRequests).
pub(crate) fn timed_out() -> Status {
    let why = "Timeout: request did not complete within the allotted timeout";
    let mut status = Status::new(504, "Timeout", why);
    status.details = Some(Box::default());
    status
}

/// The deadline of a request, and whether its client still waits for the response. The default has no deadline.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience {
    deadline: Option<Instant>,
    left: Option<Arc<AtomicBool>>,
}

impl Patience {
    /// Sets the deadline to `limit` from now.
    pub(crate) fn of(limit: Duration) -> Self {
        Patience {
            deadline: Some(Instant::now() + limit),
            left: None,
        }
    }

    /// Returns a guard; dropping it records that the client no longer waits for the response.
    pub(crate) fn watch(&mut self) -> DisconnectGuard {
        let left = Arc::<AtomicBool>::default();
        self.left = Some(left.clone());
        DisconnectGuard(left)
    }

    /// Returns a 504 if the deadline has passed or the client has left.
    pub(crate) fn check(&self) -> Result<(), Status> {
        let has_left = self.left.as_ref().is_some_and(|left| left.load(Relaxed));
        let is_late = self.deadline.is_some_and(|until| until <= Instant::now());
        if has_left || is_late {
            Err(timed_out())
        } else {
            Ok(())
        }
    }

    /// Runs `work` until the deadline, and drops it then with a 504.
    pub(crate) async fn bound<T>(
        &self,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        match self.deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, work)
                .await
                .unwrap_or_else(|_| Err(timed_out())),
            None => work.await,
        }
    }

    /// Limits the time in which a large response must be read, as kube-apiserver does: its body fails at the deadline.
    pub(crate) fn bound_body(&self, answer: Response<Body>) -> Response<Body> {
        match self.deadline {
            Some(deadline) if body_stream::may_have(&answer, FREE as u64) => {
                answer.map(|body| Body::new(ExpiringBody::new(body, deadline)))
            }
            _ => answer,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

/// The guard that [`Patience::watch`] returns.
pub(crate) struct DisconnectGuard(Arc<AtomicBool>);

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The reason why a body could not be read.
pub(crate) enum Missing {
    /// The request is refused with this error.
    Refused(Status),
    /// Too many requests wait already (429).
    TooMany,
}

impl From<TooMany> for Missing {
    fn from(_: TooMany) -> Self {
        Missing::TooMany
    }
}

/// A body that was read to its end, and the permit for the memory that it takes.
pub(crate) struct ReadBody {
    pub(crate) body: Body,
    pub(crate) room: Option<MemoryPermit>,
}

/// Reads a body to its end. Exempt requests need no permits.
///
/// # Errors
/// 413 for a body that is too long, 408 if no byte of it comes for too long, 400 if the client ends it early.
pub(crate) async fn arrival(
    gate: &Gate,
    is_exempt: bool,
    mut sent: Body,
) -> Result<ReadBody, Missing> {
    let mut arrived = ReadBody {
        body: Body::empty(),
        room: None,
    };
    // Reads have no body and must not pay for the buffers below.
    if sent.is_end_stream() {
        return Ok(arrived);
    }
    let (mut pieces, mut length, mut place) = (Pieces::default(), 0, None);
    loop {
        let mut next = std::pin::pin!(sent.frame());
        let frame = match futures::poll!(next.as_mut()) {
            std::task::Poll::Ready(frame) => frame,
            std::task::Poll::Pending => {
                // Only a body that keeps the server waiting takes a place in the queue.
                if place.is_none() && !is_exempt {
                    place = Some(gate.place()?);
                }
                let limit = gate.limits().body_idle;
                let frame = tokio::time::timeout(limit, next).await;
                frame.map_err(|_| Missing::Refused(stopped(limit)))?
            }
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| {
            // A client that disconnects ends its body with an error.
            Missing::Refused(Status::bad_request(error.to_string()))
        })?;
        // Trailers carry no part of the object.
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        length += piece.len();
        if length > BODY_BYTES {
            return Err(Missing::Refused(body::too_large()));
        }
        // Only the bytes beyond the free ones, also for the piece in which the limit is passed.
        let counted = length.saturating_sub(FREE).min(piece.len());
        // Holding the read back here makes the client wait through TCP's or HTTP/2's flow control.
        if counted > 0 && !is_exempt {
            gate.body_room(&mut arrived.room, counted).await;
        }
        pieces.push(piece);
    }
    arrived.body = Body::new(pieces);
    Ok(arrived)
}

fn stopped(limit: Duration) -> Status {
    let seconds = limit.as_secs_f64();
    let why = format!("the request's body stopped: nothing of it came for {seconds} s");
    Status::new(408, "Timeout", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_ends_when_its_time_is_over_or_nobody_waits_for_it() {
        assert_eq!(Patience::default().check(), Ok(()));
        let mut patience = Patience::of(Duration::from_secs(1));
        let waits = patience.watch();
        assert_eq!(patience.check(), Ok(()));
        drop(waits);
        assert_eq!(patience.check(), Err(timed_out()));
        let patience = Patience::of(Duration::from_secs(1));
        let never = patience.bound(std::future::pending::<Result<(), Status>>());
        assert_eq!(never.await, Err(timed_out()));
        assert_eq!(patience.check(), Err(timed_out()));
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_for_room_beside_their_first_64_kib() {
        let gate = Gate::new(crate::limits::Limits {
            body_bytes: 64 * 1024,
            ..crate::limits::Limits::default()
        });
        let body = |kib: usize| Body::from(vec![b' '; kib * 1024]);
        let arrived = async |is_exempt, kib| arrival(&gate, is_exempt, body(kib)).await.ok();
        let large = arrived(false, 128).await.expect("there is room");
        assert!(large.room.is_some());
        let small = arrived(false, 64).await.expect("it needs no room");
        assert!(small.room.is_none());
        assert!(arrived(true, 128).await.is_some(), "an administrator's");
        let another = tokio::time::timeout(Duration::from_secs(1), arrived(false, 65)).await;
        assert!(another.is_err(), "all room is taken");
        drop(large);
        assert!(arrived(false, 65).await.is_some());
    }
}
