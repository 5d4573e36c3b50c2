//! HTTPS to webhooks: one pool of connections per address and certificate authority, HTTP/1.1 as upstream speaks it.
//!
//! Everything is bounded: a call by its hook's timeout, an answer by [`body::LIMIT`], the connections that wait by [`MAX_IDLE`] and
//! [`IDLE`]. Errors read as Go's client words them.

use std::{
    borrow::Cow,
    collections::HashMap,
    error::Error,
    io,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, Method, Request, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE, USER_AGENT},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{endpoint, trust};
use crate::{http::body, server::ApiServer};

/// How long a connection may wait for its next request.
const IDLE: Duration = Duration::from_secs(90);
/// How many connections to one webhook may wait.
const MAX_IDLE: usize = 25;
/// The media types of texts.
const TEXT: &[u8] = b"text/";
/// So much of a text is repeated to the client.
const MOST_TEXT: usize = 2048;
const AGENT: &str = "kube-apiserver-admission";

/// Where a webhook is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// A host, by name or by address.
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
    /// The name its certificate must be for.
    fn server_name(&self) -> String {
        match self {
            Place::Host { host, .. } => host.clone(),
            Place::Service {
                namespace, name, ..
            } => format!("{name}.{namespace}.svc"),
        }
    }
}

/// Where a webhook is and who vouches for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) place: Place,
    /// PEM; empty for the authorities this machine trusts.
    pub(super) authority: Vec<u8>,
}

type Pool = legacy::Client<Connector, Full<Bytes>>;

/// The clients in use.
#[derive(Default)]
pub(super) struct Clients(Mutex<HashMap<Address, Result<Arc<Pool>, String>>>);

impl Clients {
    /// The client of an address, made at its first use.
    fn of(&self, server: &Arc<ApiServer>, address: &Address) -> Result<Arc<Pool>, String> {
        let mut clients = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(client) = clients.get(address) {
            return client.clone();
        }
        let made = pool(server, address);
        clients.insert(address.clone(), made.clone());
        made
    }

    /// Closes what no configuration names any more.
    pub(super) fn retain(&self, is_used: impl Fn(&Address) -> bool) {
        let mut clients = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        clients.retain(|address, _| is_used(address));
    }
}

fn pool(server: &Arc<ApiServer>, address: &Address) -> Result<Arc<Pool>, String> {
    let name = address.place.server_name();
    let connector = Connector {
        tls: Arc::new(trust::client_config(&address.authority)?),
        name: ServerName::try_from(name)
            .map_err(|error| format!("the webhook's host is no name: {error}"))?,
        place: Arc::new(address.place.clone()),
        server: Arc::downgrade(server),
    };
    let pool = legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MAX_IDLE)
        .build(connector);
    Ok(Arc::new(pool))
}

/// Posts a review; answers with the body of the answer, or says in Go's words why there is none.
pub(super) async fn post(
    clients: &Clients,
    server: &Arc<ApiServer>,
    address: &Address,
    url: &str,
    body: Vec<u8>,
    timeout: Duration,
) -> Result<Bytes, CallError> {
    let client = clients.of(server, address).map_err(CallError::NoClient)?;
    // A fraction counts as a whole second.
    let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
    let url = format!("{url}?timeout={seconds}s");
    let failed =
        |why: String| CallError::Failed(format!("Post {}: {why}", crate::field::quote(&url)));
    let uri: Uri = match url.parse() {
        Ok(uri) => uri,
        Err(error) => return Err(failed(format!("the URL cannot be requested: {error}"))),
    };
    let request = Request::builder()
        .method(Method::POST)
        .uri(uri)
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, */*")
        .header(USER_AGENT, AGENT)
        .body(Full::new(Bytes::from(body)));
    let request = request.map_err(|error| failed(error.to_string()))?;
    let exchange = async {
        let response = client.request(request).await;
        let response = response.map_err(|error| failed(words(&error)))?;
        let status = response.status();
        let is_text = is_text(response.headers());
        let body = Limited::new(response.into_body(), body::LIMIT)
            .collect()
            .await;
        match body {
            Ok(body) => Ok((status, is_text, body.to_bytes())),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                let limit = body::LIMIT;
                Err(CallError::Failed(format!(
                    "the answer has more than {limit} bytes"
                )))
            }
            Err(error) => Err(failed(words(&*error))),
        }
    };
    let (status, is_text, body) = match tokio::time::timeout(timeout, exchange).await {
        Ok(exchanged) => exchanged?,
        Err(_) => return Err(failed("context deadline exceeded".to_owned())),
    };
    if (200..=206).contains(&status.as_u16()) {
        return Ok(body);
    }
    Err(CallError::Failed(refusal(status, is_text, &body)))
}

/// Why a webhook has not answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// It cannot even be asked.
    NoClient(String),
    Failed(String),
}

/// Whether a body is meant to be read by people (client-go: isTextResponse).
fn is_text(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_none_or(|given| {
        let start = given.as_bytes().get(..TEXT.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(TEXT))
    })
}

/// What Go's REST client makes of an answer that is an error.
fn refusal(status: StatusCode, is_text: bool, body: &Bytes) -> String {
    let said = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    let is = |field: &str, wanted: &str| said.get(field).is_none_or(|given| given == wanted);
    if said["status"] == "Failure" && is("kind", "Status") && is("apiVersion", "v1") {
        return said["message"].as_str().unwrap_or_default().to_owned();
    }
    let text = match is_text {
        true => String::from_utf8_lossy(&body[..body.len().min(MOST_TEXT)]),
        false => Cow::Borrowed("unknown"),
    };
    let text = text.trim();
    let sentence = match status.as_u16() {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        403 | 415 => return text.to_owned(),
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 if !matches!(text, "" | "unknown") => return text.to_owned(),
        406 => "the server was unable to respond with a content type that the client supports",
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        code if code >= 500 => {
            let quoted = crate::field::quote(text);
            return format!(
                "an error on the server ({quoted}) has prevented the request from succeeding"
            );
        }
        code => {
            return format!(
                "the server responded with the status code {code} but did not return more information"
            );
        }
    };
    sentence.to_owned()
}

/// What went wrong, in the words of the innermost cause.
fn words(error: &(dyn Error + 'static)) -> String {
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

/// An error of the operating system as Go prints it.
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

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct DialError(String);

/// Connects to one webhook.
#[derive(Clone)]
struct Connector {
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
    place: Arc<Place>,
    server: Weak<ApiServer>,
}

impl Connector {
    async fn connect(self) -> Result<Secured, DialError> {
        let addresses = match &*self.place {
            Place::Host { host, port } => endpoint::look_up(host, *port).await,
            Place::Service {
                namespace,
                name,
                port,
            } => match self.server.upgrade() {
                Some(server) => endpoint::of_service(&*server, namespace, name, *port).await,
                None => Err("the API server is shutting down".to_owned()),
            },
        };
        let mut failure = DialError("no address to connect to".to_owned());
        for address in addresses.map_err(DialError)? {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    // Small messages go at once.
                    let _ = stream.set_nodelay(true);
                    return self.secure(stream).await;
                }
                Err(error) => {
                    let why = io_words(&error);
                    failure = DialError(format!("dial tcp {address}: connect: {why}"));
                }
            }
        }
        Err(failure)
    }

    async fn secure(self, stream: TcpStream) -> Result<Secured, DialError> {
        let secured = TlsConnector::from(self.tls)
            .connect(self.name, stream)
            .await;
        match secured {
            Ok(stream) => Ok(Secured(TokioIo::new(stream))),
            Err(error) => {
                let cause = error.get_ref().and_then(|inner| inner.downcast_ref());
                Err(DialError(match cause {
                    Some(cause) => trust::words(cause),
                    None => io_words(&error),
                }))
            }
        }
    }
}

impl tower::Service<Uri> for Connector {
    type Response = Secured;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Secured, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

/// A connection behind TLS.
struct Secured(TokioIo<TlsStream<TcpStream>>);

impl Connection for Secured {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Secured {
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
