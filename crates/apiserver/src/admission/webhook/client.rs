//! Connections to webhooks: one pool per address and certificate authority, HTTP/1.1 as upstream speaks it.
//!
//! [`MAX_IDLE`] and [`IDLE`] bound the idle connections; [`super::post`] decides what is sent over them and for how long. Errors
//! read as Go's client words them.

use std::{
    collections::HashMap,
    error::Error,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Uri, uri::Scheme};
use http_body_util::Full;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use rustls::{
    ClientConfig,
    pki_types::{InvalidDnsNameError, ServerName},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::{
    endpoint::{self, EndpointError},
    trust::{self, ClientError},
};
use crate::registry::Registry;

/// The time that an idle connection is kept for its next request.
const IDLE: Duration = Duration::from_secs(90);
/// The largest number of idle connections to one webhook.
const MAX_IDLE: usize = 25;
const HTTP: u16 = 80;
const HTTPS: u16 = 443;

/// The network location of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// A host, by DNS name or by IP address.
    Host {
        /// Without brackets.
        host: String,
        port: u16,
    },
    /// A port of a service.
    Service {
        namespace: String,
        name: String,
        port: u16,
    },
}

impl Place {
    /// Returns the name that the webhook's certificate must be valid for.
    fn server_name(&self) -> String {
        match self {
            Place::Host { host, .. } => host.clone(),
            Place::Service {
                namespace, name, ..
            } => format!("{name}.{namespace}.svc"),
        }
    }
}

/// A webhook's location and the certificates that it is verified with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) place: Place,
    /// PEM; empty for the authorities this machine trusts.
    pub(super) authority: Vec<u8>,
}

pub(super) type Pool = legacy::Client<Connector, Full<Bytes>>;

/// The clients in use.
#[derive(Default)]
pub(crate) struct Clients(Mutex<HashMap<Address, Result<Arc<Pool>, ClientError>>>);

impl Clients {
    /// Returns the client of an address, which is created at its first use.
    pub(super) fn of(
        &self,
        registry: &Arc<Registry>,
        address: &Address,
    ) -> Result<Arc<Pool>, ClientError> {
        let mut clients = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(client) = clients.get(address) {
            return client.clone();
        }
        let made = pool(registry, address);
        // Errors are kept too: a broken caBundle stays broken until the configuration changes, and then the address is another one.
        clients.insert(address.clone(), made.clone());
        made
    }

    /// Closes the connections to addresses that no configuration names any more.
    pub(super) fn retain(&self, is_used: impl Fn(&Address) -> bool) {
        let mut clients = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        clients.retain(|address, _| is_used(address));
    }
}

fn pool(registry: &Arc<Registry>, address: &Address) -> Result<Arc<Pool>, ClientError> {
    server_name(address.place.server_name())?;
    let connector = Connector {
        tls: Arc::new(trust::client_config(&address.authority)?),
        place: Arc::new(address.place.clone()),
        registry: registry.clone(),
    };
    let pool = legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MAX_IDLE)
        .build(connector);
    Ok(Arc::new(pool))
}

fn server_name(host: String) -> Result<ServerName<'static>, ClientError> {
    ServerName::try_from(host).map_err(|_: InvalidDnsNameError| ClientError::Host)
}

/// Formats the innermost cause of an error, with Go's text where it is known.
pub(super) fn words(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    loop {
        if let Some(hyper) = innermost.downcast_ref::<hyper::Error>()
            && (hyper.is_incomplete_message() || hyper.is_canceled())
        {
            return "EOF".to_owned();
        }
        if innermost.is::<DialError>() {
            return innermost.to_string();
        }
        match innermost.source() {
            Some(source) => innermost = source,
            None => break,
        }
    }
    match innermost.downcast_ref::<io::Error>() {
        Some(error) => format!("read: {}", io_words(error)),
        None => innermost.to_string(),
    }
}

/// Formats an error of the operating system as Go prints it.
fn io_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        io::ErrorKind::BrokenPipe => "broken pipe".to_owned(),
        io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        _ => error.to_string(),
    }
}

/// The error of a connection that was not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// The host has no address.
    #[error("no address to connect to")]
    NoAddress,
    /// The addresses of the webhook cannot be found.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// No address accepts connections; this is the last one.
    #[error("dial tcp {address}: connect: {}", io_words(.error))]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The host cannot have a certificate.
    #[error(transparent)]
    Host(#[from] ClientError),
    /// The TLS handshake failed.
    #[error("{}", trust::words(.0))]
    Tls(rustls::Error),
    /// The connection ended during the TLS handshake.
    #[error("{}", io_words(.0))]
    Handshake(io::Error),
}

/// Connects to one webhook, and to where it sends its callers.
#[derive(Clone)]
pub(super) struct Connector {
    tls: Arc<ClientConfig>,
    place: Arc<Place>,
    registry: Arc<Registry>,
}

impl Connector {
    async fn connect(self, uri: Uri) -> Result<Stream, DialError> {
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_plain = uri.scheme() == Some(&Scheme::HTTP);
        let default = if is_plain { HTTP } else { HTTPS };
        let port = uri.port_u16().unwrap_or(default);
        let mut failure = DialError::NoAddress;
        for address in self.addresses(host, port).await? {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    // Reviews are small and wait for their answers, so Nagle's algorithm would only add delay.
                    let _ = stream.set_nodelay(true);
                    return if is_plain {
                        Ok(Stream(TokioIo::new(Box::new(stream))))
                    } else {
                        self.secure(host, stream).await
                    };
                }
                Err(error) => failure = DialError::Connect { address, error },
            }
        }
        Err(failure)
    }

    /// Returns the addresses of a host: the endpoints of the webhook's own Service, or those that DNS gives for another host.
    async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, EndpointError> {
        let own = match &*self.place {
            Place::Service {
                namespace,
                name,
                port: own,
            } if *own == port && host == self.place.server_name() => (namespace, name),
            _ => return endpoint::look_up(host, port).await,
        };
        endpoint::of_service(&*self.registry, own.0, own.1, port).await
    }

    async fn secure(self, host: &str, stream: TcpStream) -> Result<Stream, DialError> {
        // A service's certificate is for the service wherever it sends its callers.
        let name = match &*self.place {
            Place::Service { .. } => self.place.server_name(),
            Place::Host { .. } => host.to_owned(),
        };
        let name = server_name(name)?;
        let secured = TlsConnector::from(self.tls).connect(name, stream).await;
        match secured {
            Ok(stream) => Ok(Stream(TokioIo::new(Box::new(stream)))),
            Err(error) => {
                let cause = error.get_ref().and_then(|inner| inner.downcast_ref());
                Err(match cause {
                    Some(cause) => DialError::Tls(rustls::Error::clone(cause)),
                    None => DialError::Handshake(error),
                })
            }
        }
    }
}

impl tower::Service<Uri> for Connector {
    type Response = Stream;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// A connection to a webhook, with TLS or without.
pub(super) struct Stream(TokioIo<Box<dyn Io>>);

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
