//! `/metrics`, `/healthz` and `/readyz` of `mullion controller`.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use axum::{Router, http::StatusCode, routing::get};
use tokio::{net::TcpListener, sync::watch};

use crate::failure::Failure;

/// Where the process is on its way, for its probes.
#[derive(Clone, Debug)]
pub(super) struct Readiness(Arc<watch::Sender<Option<String>>>);

impl Readiness {
    /// Not ready, because of `why`.
    pub(super) fn waiting(why: &str) -> Self {
        Readiness(Arc::new(watch::Sender::new(Some(why.to_owned()))))
    }

    /// From now on it is ready.
    pub(super) fn reached(&self) {
        self.0.send_replace(None);
    }

    /// It is not ready any more, because of `why`.
    pub(super) fn lost(&self, why: &str) {
        self.0.send_replace(Some(why.to_owned()));
    }
}

/// The routes of the probes. The process lives as long as it answers; a replica that waits for the lease is ready, since its webhooks work.
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

/// The route of the metrics, which `text` writes anew for each request.
pub(super) fn metrics(text: impl Fn() -> String + Clone + Send + Sync + 'static) -> Router {
    let answer = move || {
        let text = text();
        async move { ([("content-type", "text/plain; version=0.0.4")], text) }
    };
    Router::new().route("/metrics", get(answer))
}

/// Serves routes without TLS until the process ends; port 0 serves nothing.
///
/// # Errors
/// The port is taken or may not be listened on.
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

/// Takes a port. Where all addresses are meant and the machine has no IPv6, those of IPv4.
///
/// # Errors
/// The port is taken or may not be listened on.
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
        Failure::input(format!("{what} cannot be served on {address}: {error}"))
            .hint("another process may listen there: give another port")
    })
}
