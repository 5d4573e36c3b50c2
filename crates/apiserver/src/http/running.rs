//! When and where a request is worked on: in its turn, and a large one on a thread of its own, so that it keeps nobody waiting who shares a thread
//! with its connection.

use axum::body::Body;
use http::{Method, Response};
use http_body::Body as _;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{
    arrival::{self, Arrived, FREE, Missing},
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
    let _waits = goes_on_alone.then(|| call.patience.watch());
    // Boxed here, and so not copied into this future and into the task: it has 6 kB.
    let work = Box::pin(objects(call, watch, method, body));
    if !goes_on_alone {
        return work.await;
    }
    let answer = if is_large {
        let here = Handle::current();
        tokio::task::spawn_blocking(move || here.block_on(work)).await
    } else {
        tokio::spawn(work).await
    };
    match answer.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(answer) => answer,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Err(Status::internal("the server is shutting down")),
    }
}
