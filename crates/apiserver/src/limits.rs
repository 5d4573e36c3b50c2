//! Limits on the work for clients on the network, and the refusal of requests beyond them.
//!
//! A request needs a seat: a limited number of requests is answered at a time, some more wait, and the rest get 429. A request takes its
//! seat when its body has arrived; all bodies together have a limit in bytes; and each request must be answered within a minute.
//! Long-running requests (watches, followed logs, streams into pods) need no seat, but each user may have only so many. Clients in this
//! process are not limited, and administrators need no seat.

use std::{
    collections::hash_map::Entry,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use rustc_hash::FxHashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes that a body may have: a request's, or that of a webhook's answer.
pub(crate) const BODY_BYTES: usize = 3 * 1024 * 1024;

/// The limits of a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Requests that are answered at a time (kube-apiserver: max-requests-inflight and max-mutating-requests-inflight together).
    pub requests: usize,
    /// Requests that may wait for a seat.
    pub waiting: usize,
    /// How long a request waits for a seat (kube-apiserver: a quarter of the request timeout).
    pub patience: Duration,
    /// How long a request may take, from its head to the last byte of its response (kube-apiserver: request-timeout).
    pub request: Duration,
    /// How long a client may pause while it sends a body.
    pub body_idle: Duration,
    /// Bytes of bodies in memory, not counting the first 64 KiB of each.
    pub body_bytes: usize,
    /// Bytes of large responses that are not sent as stored bytes: a response counts in full, or as one mebibyte if it is streamed as
    /// JSON.
    pub answer_bytes: usize,
    /// Large requests (by body or by list) that are worked on at a time, each on a thread of its own.
    pub workers: usize,
    /// Watches, followed logs and streams into pods that one user may have open.
    pub streams_per_user: usize,
    /// Limits on connections.
    pub connections: ConnectionLimits,
}

/// Limits on the number of connections and on their idle time.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Connections whose TLS handshake is not finished. One more closes the oldest.
    pub handshakes: usize,
    /// Connections of users who are not administrators. One more closes the one that has been idle longest.
    pub users: usize,
    /// Connections of clients with an administrator's certificate, counted separately.
    pub administrators: usize,
    /// How long the TLS handshake may take.
    pub handshake: Duration,
    /// How long the first request may take to arrive after the handshake, including HTTP/2's preface (Go: prefaceTimeout).
    pub first_request: Duration,
    /// How long a connection may be idle after that (kube-apiserver: IdleTimeout).
    pub idle: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        ConnectionLimits {
            handshakes: 256,
            users: 4000,
            administrators: 256,
            handshake: Duration::from_secs(10),
            first_request: Duration::from_secs(10),
            idle: Duration::from_secs(90),
        }
    }
}

impl ConnectionLimits {
    /// Reduces the limits to what a process with so many file descriptors can have; a quarter of the descriptors stays free for other
    /// uses.
    #[must_use]
    pub fn within_open_files(self, open_files: u64) -> Self {
        let most = usize::try_from(open_files / 4 * 3).unwrap_or(usize::MAX);
        let (handshakes, administrators) = (
            self.handshakes.min(most / 8),
            self.administrators.min(most / 8),
        );
        ConnectionLimits {
            handshakes,
            administrators,
            users: self.users.min(most - handshakes - administrators),
            ..self
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            requests: 600,
            waiting: 10_000,
            patience: Duration::from_secs(15),
            request: Duration::from_secs(60),
            body_idle: Duration::from_secs(10),
            body_bytes: 256 << 20,
            answer_bytes: 64 << 20,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            streams_per_user: 10_000,
            connections: ConnectionLimits::default(),
        }
    }
}

/// The unit of the semaphores that count bytes.
const UNIT: usize = 1024;

/// The error of a request beyond the limits; becomes a 429.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// The semaphores and counters that enforce [`Limits`].
pub(crate) struct Gate {
    limits: Limits,
    turns: Arc<Semaphore>,
    /// In units of [`UNIT`] bytes; `answers` as well.
    bodies: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    workers: Arc<Semaphore>,
    waiting: AtomicUsize,
    streams: Mutex<FxHashMap<String, usize>>,
}

/// A request's seat; dropping it frees the seat.
pub(crate) type SeatPermit = OwnedSemaphorePermit;

/// A large request's permit to occupy a thread, until it is dropped.
pub(crate) type Worker = OwnedSemaphorePermit;

/// A permit for the bytes of one body or response, until it is dropped.
pub(crate) type MemoryPermit = OwnedSemaphorePermit;

/// A counted long-running request of a user, until it is dropped.
pub(crate) struct Stream {
    gate: Arc<Gate>,
    user: String,
}

impl Gate {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Gate {
            turns: Arc::new(Semaphore::new(limits.requests)),
            bodies: Arc::new(Semaphore::new(limits.body_bytes / UNIT)),
            answers: Arc::new(Semaphore::new(limits.answer_bytes / UNIT)),
            workers: Arc::new(Semaphore::new(limits.workers.max(1))),
            waiting: AtomicUsize::new(0),
            streams: Mutex::default(),
            limits,
        })
    }

    /// Returns the limits.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns a seat, at once or after waiting.
    pub(crate) async fn turn(&self) -> Result<SeatPermit, TooMany> {
        if let Ok(turn) = self.turns.clone().try_acquire_owned() {
            return Ok(turn);
        }
        let _place = self.place()?;
        // Tokio's semaphore is fair: requests get their seats in the order of their arrival.
        let turn = self.turns.clone().acquire_owned();
        let turn = tokio::time::timeout(self.limits.patience, turn).await;
        match turn {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(TooMany),
        }
    }

    /// Waits for the permit to work on a large request.
    pub(crate) async fn worker(&self) -> Option<Worker> {
        // The semaphore is never closed.
        self.workers.clone().acquire_owned().await.ok()
    }

    /// Waits for a permit for `bytes` more bytes of a body, and adds it to the body's permit.
    pub(crate) async fn body_room(&self, room: &mut Option<MemoryPermit>, bytes: usize) {
        // Never more than there is, or the wait would have no end.
        let units = bytes.div_ceil(UNIT).min(self.limits.body_bytes / UNIT);
        let more = self.bodies.clone().acquire_many_owned(units as u32).await;
        match (room, more) {
            (Some(room), Ok(more)) => room.merge(more),
            (none, more) => *none = more.ok(),
        }
    }

    /// Waits for a permit for the bytes of a large response. A response above the limit takes the whole limit.
    pub(crate) async fn answer_room(&self, bytes: usize) -> Option<MemoryPermit> {
        let units = bytes.div_ceil(UNIT).min(self.limits.answer_bytes / UNIT);
        let room = self.answers.clone().acquire_many_owned(units as u32).await;
        // The semaphore is never closed.
        room.ok()
    }

    /// Returns a place among the requests that wait, for a seat or for another party.
    pub(crate) fn place(&self) -> Result<WaitingPlace<'_>, TooMany> {
        WaitingPlace::take(&self.waiting, self.limits.waiting)
    }

    /// Counts a long-running request of a user.
    pub(crate) fn stream(self: &Arc<Self>, user: &str) -> Result<Stream, TooMany> {
        let mut streams = self.streams();
        let count = streams.entry(user.to_owned()).or_default();
        if *count >= self.limits.streams_per_user {
            return Err(TooMany);
        }
        *count += 1;
        Ok(Stream {
            gate: self.clone(),
            user: user.to_owned(),
        })
    }

    fn streams(&self) -> MutexGuard<'_, FxHashMap<String, usize>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) =
            self.gate.streams().entry(std::mem::take(&mut self.user))
        {
            *count.get_mut() -= 1;
            // An entry for each user that ever watched would grow without bound.
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// A place among the waiting requests; dropping it frees the place, also if the client disconnects.
pub(crate) struct WaitingPlace<'a>(&'a AtomicUsize);

impl<'a> WaitingPlace<'a> {
    fn take(waiting: &'a AtomicUsize, most: usize) -> Result<Self, TooMany> {
        // Made before the count is compared: dropping it on refusal takes the increment back.
        let place = WaitingPlace(waiting);
        if waiting.fetch_add(1, Relaxed) >= most {
            return Err(TooMany);
        }
        Ok(place)
    }
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Arc<Gate> {
        Gate::new(Limits {
            requests: 1,
            waiting: 1,
            patience: Duration::from_secs(1),
            streams_per_user: 2,
            ..Limits::default()
        })
    }

    #[test]
    fn connections_leave_files_for_other_things() {
        let of = |open_files| {
            let limits = ConnectionLimits::default().within_open_files(open_files);
            [limits.handshakes, limits.users, limits.administrators]
        };
        assert_eq!(of(u64::MAX), [256, 4000, 256]);
        assert_eq!(of(1024), [96, 576, 96]);
        assert_eq!(of(0), [0, 0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_their_turn_and_not_for_ever() {
        let gate = gate();
        let turn = gate.turn().await.expect("the first");
        let second = tokio::spawn({
            let gate = gate.clone();
            async move { gate.turn().await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert_eq!(gate.turn().await.err(), Some(TooMany), "one waits already");
        drop(turn);
        assert_eq!(second.await.expect("it runs"), Ok(()));
        let _turn = gate.turn().await.expect("the next");
        assert_eq!(gate.turn().await.err(), Some(TooMany), "after a second");
        assert_eq!(gate.waiting.load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn large_answers_wait_for_room() {
        let gate = Gate::new(Limits {
            answer_bytes: 4 * UNIT,
            ..Limits::default()
        });
        let larger_than_all = gate.answer_room(100 * UNIT).await;
        let waits = tokio::time::timeout(Duration::from_secs(1), gate.answer_room(1));
        assert!(waits.await.is_err(), "one takes all");
        drop(larger_than_all);
        let _two = (gate.answer_room(3 * UNIT).await, gate.answer_room(1).await);
    }

    #[test]
    fn each_user_has_so_many_streams() {
        let gate = gate();
        let first = gate.stream("a").expect("one");
        let _second = gate.stream("a").expect("two");
        assert!(gate.stream("a").is_err());
        assert!(gate.stream("b").is_ok());
        drop(first);
        assert!(gate.stream("a").is_ok());
    }
}
