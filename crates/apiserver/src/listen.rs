//! Serves the server on a socket: TLS, HTTP/1.1 and HTTP/2, and the user of a client certificate.
//!
//! Requests on a connection without a client certificate are anonymous unless they carry a token; anonymous requests get 401 for
//! everything but the probes. A certificate that the client CA did not sign fails the handshake. Idle connections are closed, and
//! their number is limited ([`crate::connections`]). A shutdown gives requests a moment to finish, then ends the watches.

mod tls;
mod unread;

use std::{io, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::{
    auth,
    connections::{ActivityGuard, Kind, Place, Places},
    http::{OnNetwork, body_stream::GuardedBody},
    state::ApiServer,
};

pub use self::tls::{Tls, TlsError};

/// How long requests may continue after the shutdown has begun.
const LAST_REQUESTS: Duration = Duration::from_millis(300);
/// How long a client may take to close a connection that the server wants to close.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often the server pings an HTTP/2 client, and how long the client may take to answer (as Kubernetes sets ReadIdleTimeout and
/// PingTimeout in Go's client).
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(15);
/// The most concurrent requests on an HTTP/2 connection, watches included.
const STREAMS_PER_CONNECTION: u32 = 1000;
/// The most bytes of headers, including the path, of a request over HTTP/2 (Go: DefaultMaxHeaderBytes). Over HTTP/1.1 the limit is about
/// 400 KiB; a path has 64 KiB at most in either.
const HEADERS: u32 = 1024 * 1024;

impl ApiServer {
    /// Serves connections until `shutdown` completes.
    ///
    /// # Errors
    /// The listener fails permanently. Failures of single connections are only logged.
    pub async fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        tls: Tls,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let acceptor = TlsAcceptor::from(tls.config);
        let router = self.router();
        let places = Places::new(self.gate().limits());
        let (close, closing) = watch::channel(false);
        let mut connections = JoinSet::new();
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let listener = Listener {
                            acceptor: acceptor.clone(),
                            router: router.clone(),
                            names: tls.names.clone(),
                            closing: closing.clone(),
                        };
                        let connection = listener.answer(stream, places.begin());
                        connections.spawn(async move {
                            if let Err(error) = connection.await {
                                tracing::debug!(%peer, %error, "connection failed");
                            }
                        });
                    }
                    Err(error) if is_passing(&error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        // Without the pause this loop would spin: `accept` fails again at once until a connection is closed.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    Err(error) => return Err(error),
                },
                Some(_) = connections.join_next() => {}
            }
        }
        // First, so that new clients are refused while the others finish.
        drop(listener);
        // Sending fails only if no connection is left to receive it.
        let _ = close.send(true);
        let finish = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_REQUESTS, finish).await;
        Ok(())
    }
}

/// Returns whether accepting may succeed again: the error was one client's, or file descriptors ran out.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    const TOO_MANY_FILES: [Option<i32>; 2] = [Some(23), Some(24)];
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted
    ) || TOO_MANY_FILES.contains(&error.raw_os_error())
}

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// The parts of the server that every connection needs.
struct Listener {
    acceptor: TlsAcceptor,
    router: Router,
    names: Arc<[String]>,
    closing: watch::Receiver<bool>,
}

impl Listener {
    /// Serves the requests of one connection until it ends.
    async fn answer(self, stream: TcpStream, mut place: Place) -> Result<(), ConnectionError> {
        // Watch events are small and nothing follows them, so Nagle's algorithm would hold them back.
        stream.set_nodelay(true)?;
        let stream = tokio::select! {
            accepted = self.acceptor.accept(stream) => accepted?,
            () = place.over() => return Err("no TLS handshake in time".into()),
        };
        let user = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(<[_]>::first)
            .and_then(|der| auth::of_certificate(der));
        let kind = match &user {
            Some(user) if user.is_master() => Kind::Administrator,
            _ => Kind::User,
        };
        // Only the certificate tells whose connection it is, so the final place is taken after the handshake.
        if !place.settle(kind) {
            return Err("too many connections are open, and all are in use".into());
        }
        let place = Arc::new(place);
        let (mut closing, counts) = (self.closing.clone(), place.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            // Held until the response's last byte, so that a connection with a watch does not count as idle.
            let busy = ActivityGuard::new(&counts);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(OnNetwork {
                names: self.names.clone(),
                closing: self.closing.clone(),
                busy: busy.clone(),
            });
            // The certificate speaks for every request of the connection.
            if let Some(user) = &user {
                request.extensions_mut().insert(user.clone());
            }
            let router = self.router.clone();
            async move {
                let answer =
                    unread::answered(request, async |request| router.oneshot(request).await);
                let answer = answer.await;
                answer.map(|answer| answer.map(|body| Body::new(GuardedBody { body, held: busy })))
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // `Place::over` limits the time for a request's head, for both protocols.
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(None);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_PATIENCE)
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .max_header_list_size(HEADERS)
            .adaptive_window(true);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let is_over = tokio::select! {
            done = connection.as_mut() => return done,
            () = place.over() => true,
            _ = closing.wait_for(|closing| *closing) => false,
        };
        // Answer the requests that have begun, accept no more, then close.
        connection.as_mut().graceful_shutdown();
        if is_over {
            tokio::time::timeout(LAST_WORDS, connection).await?
        } else {
            connection.await
        }
    }
}
