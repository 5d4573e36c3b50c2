//! The server on a socket: TLS, HTTP/1.1 and HTTP/2, and the user a client certificate stands for.
//!
//! A connection without a client certificate is anonymous but for the tokens that its requests carry; a request with neither gets 401 for
//! everything but the probes. A connection whose certificate was not signed by the client CA does not come to be. A connection that does not
//! speak ends ([`activity`]), and there are so many at most ([`places`]). Shutting down lets requests finish for a moment and then closes the
//! watches.

mod activity;
mod places;
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

use self::places::{Kind, Place, Places};
use crate::{
    auth,
    http::{OnNetwork, through::With},
    server::ApiServer,
};

pub(crate) use self::activity::Busy;
pub use self::tls::{Tls, TlsError};

/// How long requests may go on after the shutdown has begun.
const LAST_REQUESTS: Duration = Duration::from_millis(300);
/// How long a client may take to end a connection that the server wants to end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to answer (Go's client: ReadIdleTimeout and
/// PingTimeout as Kubernetes sets them).
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(15);
/// How many requests, watches included, one HTTP/2 connection may carry.
const STREAMS_PER_CONNECTION: u32 = 1000;
/// How many bytes of headers, the path included, a request over HTTP/2 may have (Go: DefaultMaxHeaderBytes). Over HTTP/1.1 it is about
/// 400 KiB; a path has 64 KiB at most in either.
const HEADERS: u32 = 1024 * 1024;

impl ApiServer {
    /// Answers connections until `shutdown` completes.
    ///
    /// # Errors
    /// The listener fails for good; single connections that fail are only logged.
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
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    Err(error) => return Err(error),
                },
                Some(_) = connections.join_next() => {}
            }
        }
        drop(listener);
        // Nobody listens only when no connection is left.
        let _ = close.send(true);
        let finish = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_REQUESTS, finish).await;
        Ok(())
    }
}

/// Whether accepting may succeed again: one client's fault, or a shortage of descriptors.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    const TOO_MANY_FILES: [Option<i32>; 2] = [Some(23), Some(24)];
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted
    ) || TOO_MANY_FILES.contains(&error.raw_os_error())
}

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// What every connection needs of the server.
struct Listener {
    acceptor: TlsAcceptor,
    router: Router,
    names: Arc<[String]>,
    closing: watch::Receiver<bool>,
}

impl Listener {
    /// Answers the requests of one connection until it ends.
    async fn answer(self, stream: TcpStream, mut place: Place) -> Result<(), ConnectionError> {
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
            Some(user) if auth::is_master(user) => Kind::Administrator,
            _ => Kind::User,
        };
        if !place.settle(kind) {
            return Err("too many connections are open, and all are in use".into());
        }
        let place = Arc::new(place);
        let (mut closing, counts) = (self.closing.clone(), place.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let busy = Busy::new(&counts);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(OnNetwork {
                names: self.names.clone(),
                closing: self.closing.clone(),
                busy: busy.clone(),
            });
            if let Some(user) = &user {
                request.extensions_mut().insert(user.clone());
            }
            let router = self.router.clone();
            async move {
                let answer =
                    unread::answered(request, async |request| router.oneshot(request).await);
                let answer = answer.await;
                answer.map(|answer| answer.map(|body| Body::new(With { body, held: busy })))
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // How long a request's head may take is watched by `Place::over`, for both protocols.
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
        connection.as_mut().graceful_shutdown();
        match is_over {
            true => tokio::time::timeout(LAST_WORDS, connection).await?,
            false => connection.await,
        }
    }
}
