//! The port of the API server: the usual one, the one of the last start, or the one that the user names.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

use crate::failure::{Failure, without_number};

/// The usual port of a Kubernetes API server, which is tried first.
const FIRST_PORT: u16 = 6443;
/// The number of further ports that are tried.
const MORE_PORTS: u16 = 100;

/// The choice of the port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PortChoice {
    /// 6443, or the next free one.
    Usual,
    /// The port of the last start; if it is taken, like [`PortChoice::Usual`].
    Again(u16),
    /// This port; 0 is any free one.
    Exactly(u16),
}

impl PortChoice {
    /// Takes the port on loopback.
    pub(crate) async fn bind(self) -> Result<(TcpListener, SocketAddr), Failure> {
        let listener = match self {
            PortChoice::Exactly(port) => bind_exactly(port, "--port").await?,
            PortChoice::Again(port) => match listen(port).await {
                Ok(listener) => listener,
                // The kubeconfig is written anew with the port, so another one does no harm.
                Err(_) => usual().await?,
            },
            PortChoice::Usual => usual().await?,
        };
        let address = listener
            .local_addr()
            .map_err(|error| Failure::run(format!("the listener has no address: {error}")))?;
        Ok((listener, address))
    }
}

/// Takes a port on loopback that a flag names; 0 is any free one.
pub(crate) async fn bind_exactly(port: u16, flag: &str) -> Result<TcpListener, Failure> {
    listen(port).await.map_err(|error| {
        Failure::input(format!(
            "port {port} on 127.0.0.1 cannot be taken: {}",
            cause(&error)
        ))
        .hint(format!(
            "choose another one with {flag} N; {flag} 0 takes any free one"
        ))
    })
}

async fn usual() -> Result<TcpListener, Failure> {
    let last = FIRST_PORT + MORE_PORTS;
    for port in FIRST_PORT..=last {
        match listen(port).await {
            Ok(listener) => return Ok(listener),
            // Several clusters on one machine are usual: each takes the next port.
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(error) => {
                return Err(Failure::input(format!(
                    "port {port} on 127.0.0.1 cannot be taken: {}",
                    cause(&error)
                )));
            }
        }
    }
    Err(Failure::input(format!(
        "ports {FIRST_PORT} to {last} on 127.0.0.1 are all in use"
    ))
    .hint("--port 0 takes any free one"))
}

async fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await
}

/// Describes why a port cannot be taken.
pub(crate) fn cause(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "it is in use".to_owned(),
        std::io::ErrorKind::PermissionDenied => {
            "you may not (ports below 1024 need privileges)".to_owned()
        }
        _ => without_number(error),
    }
}
