//! When and where a request is worked on: in its turn, and a large one on a thread of its own, so that it keeps nobody waiting who shares a thread
//! with its connection.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use futures::future::BoxFuture;
use http::{Method, Response};
use http_body::Body as _;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{
    arrival::{self, Arrived, FREE, Leaves, Missing},
    call::Call,
    finish, objects, reply,
};
use crate::{limits::TooMany, status::Status};

/// A list of more objects than this is worked on as a large body is.
const MANY: usize = 2000;

/// Runs work without a wait in it that may take long, and lets other tasks of this thread run elsewhere meanwhile.
pub(super) fn aside<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // A runtime with one thread has no elsewhere.
        _ => work(),
    }
}

/// Whether answering a request may take longer than others should wait for it: by the size of what is sent, changed or listed.
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

/// Waits for the body of a request and for its turn, and answers it. Administrators wait for nothing but their own bodies.
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
    let Arrived { body, room } = arrived;
    call.room = room;
    let is_large = is_large(&call, &method, &body);
    if !call.is_exempt {
        let taken = async {
            // No turn is held while a large request waits for others like it.
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

/// Answers a request about objects. A write that waits for the disk goes on when its client goes away: what is done with it afterwards
/// belongs to it. One that has not come so far ends.
///
/// A client in this process may live under a clock that stands still while a thread works: its requests are never large.
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
    // Boxed here, and so copied neither into this future nor into a task: it has 6 kB.
    let work = Box::pin(objects(call, watch, method, body));
    if !is_large {
        return match waits {
            None => work.await,
            Some(waits) => Unabandoned::new(work, waits).await,
        };
    }
    let here = Handle::current();
    let answer = tokio::task::spawn_blocking(move || here.block_on(work)).await;
    match answer.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(answer) => answer,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Err(Status::internal("the server is shutting down")),
    }
}

/// Work that goes on in a task of its own when it is dropped before its end. Nearly all work comes to its end before that, and is spared the
/// task, which would wake up another thread when it begins and when it ends.
struct Unabandoned<T: Send + 'static> {
    /// Not there while it is polled: work that panics does not go on.
    work: Option<BoxFuture<'static, T>>,
    waits: Option<Leaves>,
}

impl<T: Send + 'static> Unabandoned<T> {
    fn new(work: BoxFuture<'static, T>, waits: Leaves) -> Self {
        Unabandoned {
            work: Some(work),
            waits: Some(waits),
        }
    }
}

impl<T: Send + 'static> Future for Unabandoned<T> {
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

impl<T: Send + 'static> Drop for Unabandoned<T> {
    fn drop(&mut self) {
        // First, so that the task knows it.
        self.waits = None;
        // Without a runtime, the server is gone.
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

    /// Work that waits for a turn, and says whether it came to its end and whether somebody waited for it then.
    fn work(patience: &mut Patience) -> (Unabandoned<()>, Arc<AtomicBool>, Arc<AtomicBool>) {
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
        (Unabandoned::new(Box::pin(work), waits), ended, awaited)
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
