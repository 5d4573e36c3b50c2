//! `GET /snapshot`: streams a consistent copy of everything that a durable server stores. The copy contains signing keys, so only
//! administrators get it.
//!
//! The copy is made while writes go on, at the speed of the reader. It ends with a checksum, so that a truncated copy is noticed.

use std::{io, sync::Arc};

use axum::body::{Body, Bytes};
use http::{Method, Response};
use mullion_kinds::request::User;
use mullion_kube_text::status::Status;
use mullion_store::Store;
use tokio::sync::mpsc;

use super::reply;
use crate::state::ApiServer;

/// How many pieces are buffered for a slow reader.
const PIECES: usize = 8;

/// Answers a request for `/snapshot`; `None` for another path or method.
pub(crate) fn serve(
    server: &Arc<ApiServer>,
    user: &User,
    method: &Method,
    path: &str,
) -> Option<Result<Response<Body>, Status>> {
    if path != "/snapshot" || *method != Method::GET {
        return None;
    }
    if !user.is_master() {
        let why = format!(
            "forbidden: User {:?} cannot get path \"/snapshot\"",
            user.name
        );
        return Some(Err(Status::new(403, "Forbidden", why)));
    }
    if !server.store().is_durable() {
        let why = "this server keeps its objects in memory only: start it with a data directory";
        return Some(Err(Status::bad_request(why)));
    }
    let store = server.store().clone();
    Some(Ok(reply::respond(
        200,
        "application/octet-stream",
        Body::from_stream(stream(store)),
    )))
}

fn stream(store: Arc<Store>) -> impl futures::Stream<Item = io::Result<Bytes>> {
    let (pieces, mut ready) = mpsc::channel(PIECES);
    // A thread of its own: the copy waits for a slow reader, and must not occupy a thread of the runtime meanwhile.
    tokio::task::spawn_blocking(move || {
        let mut out = Pieces(pieces);
        if let Err(error) = store.copy_to(&mut out) {
            tracing::warn!(%error, "a snapshot was not finished");
            // The error may be that the reader has disconnected; then this fails as well.
            let _ = out.0.blocking_send(Err(io::Error::other(error)));
        }
    });
    futures::stream::poll_fn(move |context| ready.poll_recv(context))
}

/// A writer that sends each piece to the stream, and blocks while the stream's buffer is full.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        let sent = self.0.blocking_send(Ok(piece));
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
