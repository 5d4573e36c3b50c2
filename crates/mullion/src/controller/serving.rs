//! Serves `/metrics`, `/healthz` and `/readyz` of `mullion controller`.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use axum::{Router, http::StatusCode, routing::get};
use tokio::{net::TcpListener, sync::watch};

use crate::{failure::Failure, up::port};

/// The readiness of the process: `None` if it is ready, or else the reason why it is not.
#[derive(Clone, Debug)]
pub(super) struct Readiness(Arc<watch::Sender<Option<String>>>);

impl Readiness {
    /// Creates the state of a process that is not ready, because of `why`.
    pub(super) fn waiting(why: &str) -> Self {
        Readiness(Arc::new(watch::Sender::new(Some(why.to_owned()))))
    }

    /// Marks the process as ready.
    pub(super) fn reached(&self) {
        self.0.send_replace(None);
    }

    /// Marks the process as not ready any more, because of `why`.
    pub(super) fn mark_not_ready(&self, why: &str) {
        self.0.send_replace(Some(why.to_owned()));
    }
}

/// Returns the routes of the probes. The process is alive as long as it answers. A replica that waits for the Lease is ready, because its
/// webhooks work.
pub(super) fn probes(readiness: Readiness) -> Router {
    let ready = move || {
        let why = readiness.0.borrow().clone();
        async move {
            match why {
                None => (StatusCode::OK, "ok".to_owned()),
                Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
            }
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
}

/// Returns the route of the metrics; `text` creates the answer to each request.
pub(super) fn metrics(text: impl Fn() -> String + Clone + Send + Sync + 'static) -> Router {
    let answer = move || {
        let text = text();
        async move { ([("content-type", "text/plain; version=0.0.4")], text) }
    };
    Router::new().route("/metrics", get(answer))
}

/// Serves routes without TLS until the process ends; nothing is served on port 0.
///
/// # Errors
/// The port is in use, or the process may not listen on it.
pub(super) async fn serve(address: SocketAddr, routes: Router, what: &str) -> Result<(), Failure> {
    if address.port() == 0 {
        return Ok(());
    }
    let listener = listen(address, what).await?;
    tracing::info!("{what} on http://{address}");
    let what = what.to_owned();
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!("{what} are not served any more: {error}");
        }
    });
    Ok(())
}

/// Listens on a port. If the address means all interfaces and the machine has no IPv6, it listens on all IPv4 addresses.
///
/// # Errors
/// The port is in use, or the process may not listen on it.
pub(super) async fn listen(address: SocketAddr, what: &str) -> Result<TcpListener, Failure> {
    let mut bound = TcpListener::bind(address).await;
    let is_all = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    if is_all
        && bound
            .as_ref()
            .is_err_and(|error| error.kind() != ErrorKind::AddrInUse)
    {
        bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await;
    }
    bound.map_err(|error| {
        let why = port::cause(&error);
        Failure::input(format!("{what} cannot be served on {address}: {why}"))
            .hint("another process may listen there: give another port")
    })
}
