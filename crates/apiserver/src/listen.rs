//! The server on a socket: TLS, HTTP/1.1 and HTTP/2, and the user a client certificate stands for.
//!
//! A connection without a client certificate is anonymous but for the tokens that its requests carry; a request with neither gets 401 for
//! everything but the probes. A connection whose certificate was not signed by the client CA does not come to be. Shutting down lets
//! requests finish for a moment and then closes the watches.

mod unread;

use std::{io, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::{auth, http::OnNetwork, server::ApiServer};

/// How long requests may go on after the shutdown has begun.
const LAST_REQUESTS: Duration = Duration::from_millis(300);
/// How many requests, watches included, one HTTP/2 connection may carry.
const STREAMS_PER_CONNECTION: u32 = 1000;
/// How many bytes of headers, the path included, a request over HTTP/2 may have (Go: DefaultMaxHeaderBytes). Over HTTP/1.1 it is about
/// 400 KiB; a path has 64 KiB at most in either.
const HEADERS: u32 = 1024 * 1024;
/// How long a client may take for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The server's certificate and the authority its clients' certificates come from.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    names: Arc<[String]>,
}

/// What is wrong with certificates or keys.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Not PEM, or not what is expected in it.
    #[error("cannot read {what}: {source}")]
    Pem {
        /// Which of the inputs.
        what: &'static str,
        /// What the parser says.
        source: pem::Error,
    },
    /// The certificate authority cannot be used.
    #[error("client CA: {0}")]
    ClientAuthority(#[from] rustls::client::VerifierBuilderError),
    /// Certificate and key do not go together, or cannot be used.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
}

impl Tls {
    /// From PEM texts: the server's certificate chain, its key, and the authority that signs client certificates.
    ///
    /// # Errors
    /// A text is not PEM, or what is in it does not go together.
    pub fn from_pem(
        certificates: &[u8],
        key: &[u8],
        client_authority: &[u8],
    ) -> Result<Self, TlsError> {
        let read = |what, text| {
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
            certificates.map_err(|source| TlsError::Pem { what, source })
        };
        let mut roots = RootCertStore::empty();
        for authority in read("the client CA", client_authority)? {
            roots.add(authority)?;
        }
        let chain = read("the server certificate", certificates)?;
        let names = chain.first().map(|leaf| auth::names_of(leaf));
        let names = names.unwrap_or_default().into();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|source| TlsError::Pem {
            what: "the server key",
            source,
        })?;
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls {
            config: Arc::new(config),
            names,
        })
    }
}

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
        let (close, closing) = watch::channel(false);
        let mut connections = JoinSet::new();
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let network = OnNetwork {
                            names: tls.names.clone(),
                            closing: closing.clone(),
                        };
                        let connection = answer(stream, acceptor.clone(), router.clone(), network);
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

async fn answer(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    network: OnNetwork,
) -> Result<(), ConnectionError> {
    stream.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
    let user = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first)
        .and_then(|der| auth::of_certificate(der));
    let mut closing = network.closing.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(network.clone());
        if let Some(user) = &user {
            request.extensions_mut().insert(user.clone());
        }
        let router = router.clone();
        unread::answered(request, async |request| router.oneshot(request).await)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .max_header_list_size(HEADERS)
        .adaptive_window(true);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        done = connection.as_mut() => return done,
        _ = closing.wait_for(|closing| *closing) => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}
