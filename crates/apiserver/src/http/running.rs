//! Schedules requests: each waits for a seat, and a large one runs on a thread of its own, so that it does not delay other connections of
//! the same thread.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use futures::future::BoxFuture;
use http::{Method, Response};
use http_body::Body as _;
use mullion_kube_text::status::Status;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{
    arrival::{self, DisconnectGuard, FREE, Missing, ReadBody},
    call::Call,
    dispatch::{self, finish},
    reply,
};
use crate::limits::TooMany;

/// A list of more objects than this counts as large.
const MANY: usize = 2000;

/// Runs blocking work, and lets the other tasks of this thread move to another thread meanwhile.
pub(super) fn aside<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        // `block_in_place` panics on a single-threaded runtime, hence the question.
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // A single-threaded runtime has no other thread to move them to.
        _ => work(),
    }
}

/// Returns whether a request may take long enough to delay others: judged by the size of its body, of the stored object, or of the list.
fn is_large(call: &Call, method: &Method, body: &Body) -> bool {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let large_body = body.size_hint().lower() > FREE as u64;
    large_body
        || match (reads, call.name.is_empty()) {
            (true, true) => call.row.collection.len() > MANY,
            (true, false) | (false, true) => false,
            (false, false) => call.stored().is_ok_and(|object| object.size_bytes() > FREE),
        }
}

/// Reads the body of a request, waits for a seat, and answers the request. Exempt requests wait only for their own bodies.
pub(super) async fn in_turn(
    mut call: Call,
    watch: bool,
    method: Method,
    body: Body,
) -> Result<Response<Body>, Status> {
    let server = call.server.clone();
    let gate = server.gate();
    let arrived = match arrival::arrival(gate, call.is_exempt, body).await {
        Ok(arrived) => arrived,
        Err(Missing::TooMany) => return Ok(reply::too_many_requests()),
        Err(Missing::Refused(status)) => return Ok(finish(&call, Err(status))),
    };
    let ReadBody { body, room } = arrived;
    call.room = room;
    let is_large = is_large(&call, &method, &body);
    if !call.is_exempt {
        // The body is in memory already, so from here on the client's speed does not matter to a seat.
        let taken = async {
            // A large request takes no seat while it waits for other large ones.
            if is_large {
                let _place = gate.place()?;
                call.take_worker().await;
            }
            gate.turn().await
        };
        match taken.await {
            Ok(turn) => call.take_turn(turn),
            Err(TooMany) => return Ok(reply::too_many_requests()),
        }
    }
    to_its_end(call, watch, method, body, is_large).await
}

/// Answers a request about objects. A write to a durable store continues when its client disconnects, because the steps after the commit
/// (releasing addresses, for example) must still run; a write that has not reached the store stops.
///
/// Requests of clients in this process are never large: their clock may stand still while a thread works.
pub(super) async fn to_its_end(
    mut call: Call,
    watch: bool,
    method: Method,
    body: Body,
    is_large: bool,
) -> Result<Response<Body>, Status> {
    let reads = matches!(method, Method::GET | Method::HEAD);
    let goes_on_alone = is_large || (!reads && call.server.store().is_durable());
    let waits = goes_on_alone.then(|| call.patience.watch());
    // Boxed here so that its 6 kB are copied neither into this future nor into a task.
    let work = Box::pin(dispatch::answer(call, watch, method, body));
    if !is_large {
        return match waits {
            None => work.await,
            Some(waits) => FinishOnDrop::new(work, waits).await,
        };
    }
    let here = Handle::current();
    // `spawn_blocking` drops no work when this future is dropped, so a large write also finishes without its client.
    let answer = tokio::task::spawn_blocking(move || here.block_on(work)).await;
    match answer.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(answer) => answer,
        // Passed on to the handler's own recovery, which answers with 500 and logs it.
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Err(Status::internal("the server is shutting down")),
    }
}

/// A future that continues in a task of its own if it is dropped before it is done. Most futures finish first and need no task, which
/// would wake another thread twice.
struct FinishOnDrop<T: Send + 'static> {
    /// The future; absent while it is polled, so that work that panics does not continue.
    work: Option<BoxFuture<'static, T>>,
    waits: Option<DisconnectGuard>,
}

impl<T: Send + 'static> FinishOnDrop<T> {
    fn new(work: BoxFuture<'static, T>, waits: DisconnectGuard) -> Self {
        FinishOnDrop {
            work: Some(work),
            waits: Some(waits),
        }
    }
}

impl<T: Send + 'static> Future for FinishOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut work = self.work.take().expect("nobody polls what has ended");
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for FinishOnDrop<T> {
    fn drop(&mut self) {
        // Dropped before the task starts, so that the work sees that its client has left.
        self.waits = None;
        // Without a runtime the server has shut down.
        if let (Some(work), Ok(runtime)) = (self.work.take(), Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    };

    use super::{super::arrival::Patience, *};

    /// Returns a future that yields once, and flags that tell whether it finished and whether its client still waited then.
    fn work(patience: &mut Patience) -> (FinishOnDrop<()>, Arc<AtomicBool>, Arc<AtomicBool>) {
        let (ended, awaited) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let waits = patience.watch();
        let work = {
            let (ended, awaited, patience) = (ended.clone(), awaited.clone(), patience.clone());
            async move {
                tokio::task::yield_now().await;
                ended.store(true, Relaxed);
                awaited.store(patience.check().is_ok(), Relaxed);
            }
        };
        (FinishOnDrop::new(Box::pin(work), waits), ended, awaited)
    }

    #[tokio::test]
    async fn work_goes_on_when_nobody_waits_for_it_and_knows_it() {
        let (mut work, ended, awaited) = work(&mut Patience::default());
        assert!(futures::poll!(&mut work).is_pending());
        drop(work);
        while !ended.load(Relaxed) {
            tokio::task::yield_now().await;
        }
        assert!(!awaited.load(Relaxed));
    }

    #[tokio::test]
    async fn work_that_is_waited_for_comes_to_its_end_once() {
        let (work, ended, awaited) = work(&mut Patience::default());
        work.await;
        assert!(ended.load(Relaxed) && awaited.load(Relaxed));
    }
}
