//! How much the server does at once for clients on the network, and the refusal of more.
//!
//! Requests take turns: so many are answered at a time, some wait, the rest are sent away with 429. A request takes its turn when its body is
//! there, of which all together hold so many bytes, and is answered within a minute or not at all. What goes on for long (watches, logs
//! that are followed, streams into pods) does not take a turn, but each user may have only so many. Clients in this process are not limited;
//! administrators need no turn.

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

/// How much at once.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Requests that are answered at a time (kube-apiserver: max-requests-inflight and max-mutating-requests-inflight together).
    pub requests: usize,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// How long one waits (kube-apiserver: a quarter of the request timeout).
    pub patience: Duration,
    /// How long a request may take, from its head to the last byte of its answer (kube-apiserver: request-timeout).
    pub request: Duration,
    /// How long a client may send nothing of a body that it has announced.
    pub body_idle: Duration,
    /// Bytes of bodies that are held for requests that wait or are answered, beside the first 64 KiB of each.
    pub body_bytes: usize,
    /// Bytes of large answers to users that are not what is stored: they are held while they are sent, whole or (JSON) a mebibyte of each.
    pub answer_bytes: usize,
    /// Requests with large bodies, and lists of large collections, that are worked on at a time, each on a thread of its own.
    pub workers: usize,
    /// Watches, followed logs and streams into pods that one user has open.
    pub streams_per_user: usize,
    /// Connections, and how long one may go without a request.
    pub connections: ConnectionLimits,
}

/// How many connections there are at a time, and how long they may be silent.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Connections whose TLS handshake is not done. The oldest ends where there would be more.
    pub handshakes: usize,
    /// Connections of all but administrators. Where there would be more, the one without a request for the longest time ends.
    pub users: usize,
    /// Connections of clients with an administrator's certificate, beside those of others.
    pub administrators: usize,
    /// How long the TLS handshake may take.
    pub handshake: Duration,
    /// How long the first request may take to come after that, HTTP/2's preface included (Go: prefaceTimeout).
    pub first_request: Duration,
    /// How long a connection may be without a request after that (kube-apiserver: IdleTimeout).
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
    /// Returns fewer connections, where a process that may open so many files could not have as many: a quarter of the files is left for
    /// other things.
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

/// The grain in which bytes are counted.
const UNIT: usize = 1024;

/// There is too much to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Where requests take turns.
pub(crate) struct Gate {
    limits: Limits,
    turns: Arc<Semaphore>,
    /// Of [`UNIT`] bytes each.
    bodies: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    workers: Arc<Semaphore>,
    waiting: AtomicUsize,
    streams: Mutex<FxHashMap<String, usize>>,
}

/// One request's turn, until it is dropped.
pub(crate) type Turn = OwnedSemaphorePermit;

/// One large request's right to a thread, until it is dropped.
pub(crate) type Worker = OwnedSemaphorePermit;

/// Room for bytes of one body or answer, until it is dropped.
pub(crate) type Room = OwnedSemaphorePermit;

/// One of a user's streams, until it is dropped.
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

    /// What it lets through.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A turn for a request, at once or after some waiting.
    pub(crate) async fn turn(&self) -> Result<Turn, TooMany> {
        if let Ok(turn) = self.turns.clone().try_acquire_owned() {
            return Ok(turn);
        }
        let _place = self.place()?;
        let turn = self.turns.clone().acquire_owned();
        let turn = tokio::time::timeout(self.limits.patience, turn).await;
        match turn {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(TooMany),
        }
    }

    /// Waits until a large request may be worked on.
    pub(crate) async fn worker(&self) -> Option<Worker> {
        // The semaphore is never closed.
        self.workers.clone().acquire_owned().await.ok()
    }

    /// Waits for room for so many bytes of a body, and adds it to what the body has.
    pub(crate) async fn body_room(&self, room: &mut Option<Room>, bytes: usize) {
        let units = bytes.div_ceil(UNIT).min(self.limits.body_bytes / UNIT);
        let more = self.bodies.clone().acquire_many_owned(units as u32).await;
        match (room, more) {
            (Some(room), Ok(more)) => room.merge(more),
            (none, more) => *none = more.ok(),
        }
    }

    /// Waits for room for so many bytes of a large answer; for all there is if it has more.
    pub(crate) async fn answer_room(&self, bytes: usize) -> Option<Room> {
        let units = bytes.div_ceil(UNIT).min(self.limits.answer_bytes / UNIT);
        let room = self.answers.clone().acquire_many_owned(units as u32).await;
        // The semaphore is never closed.
        room.ok()
    }

    /// A place among those who wait, for a turn or for somebody else.
    pub(crate) fn place(&self) -> Result<Place<'_>, TooMany> {
        Place::take(&self.waiting, self.limits.waiting)
    }

    /// A stream for a user.
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
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// A place among those who wait; given back also when a client goes away meanwhile.
pub(crate) struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize, most: usize) -> Result<Self, TooMany> {
        let place = Place(waiting);
        if waiting.fetch_add(1, Relaxed) >= most {
            return Err(TooMany);
        }
        Ok(place)
    }
}

impl Drop for Place<'_> {
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
