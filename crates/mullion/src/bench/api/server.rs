//! Implements the server: only an API server on a loopback port with its own certificates, as `mullion up` starts it.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use mullion_apiserver::{ApiServer, Config, Tls, admission::User};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tokio_rustls::TlsConnector;

use super::client::{Connection, Request};
use crate::{
    certs::Certs,
    failure::{Failure, file_error},
};

/// The address of the `kubernetes` Service, which is in the server's certificate.
const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The timeout for stopping.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// A running API server.
pub(in crate::bench) struct Server {
    api: Arc<ApiServer>,
    address: SocketAddr,
    connector: TlsConnector,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
    directory: Option<PathBuf>,
}

impl Server {
    /// Starts a server that has only its own objects and a service account for pods.
    pub(in crate::bench) async fn with_account(disk: Option<&Path>) -> Result<Server, Failure> {
        let server = Server::start(disk).await?;
        let account = br#"{"metadata":{"name":"default"}}"#;
        let path = "/api/v1/namespaces/default/serviceaccounts";
        let create = Request::post(path, account);
        server.connect().await?.expect(&create, 201).await?;
        Ok(server)
    }

    /// Starts a server that stores its objects in a new directory in `disk`, or in memory.
    pub(in crate::bench) async fn start(disk: Option<&Path>) -> Result<Server, Failure> {
        Server::open(disk.map(new_directory)).await
    }

    /// Starts a server with the objects of a directory, or one in memory.
    pub(in crate::bench) async fn open(directory: Option<PathBuf>) -> Result<Server, Failure> {
        let failed = |what: &str, why: String| Failure::run(format!("the server's {what}: {why}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(|error| failed("port", error.to_string()))?;
        let address = listener
            .local_addr()
            .map_err(|error| failed("port", error.to_string()))?;
        let certs = Certs::generate(Timestamp::now(), SERVICE_IP)
            .map_err(|error| failed("certificates", error.to_string()))?;
        let tls = Tls::from_pem(
            certs.server.cert.as_bytes(),
            certs.server.key.as_bytes(),
            certs.ca.as_bytes(),
        )
        .map_err(|error| failed("certificates", error.to_string()))?;
        let connector =
            connector(&certs).map_err(|why| failed("client certificate", why.to_string()))?;
        let api = match &directory {
            Some(directory) => ApiServer::open(Config::default(), directory)
                .await
                .map_err(|error| {
                    Failure::run(error).hint("--data-dir takes a directory to write in")
                })?,
            None => ApiServer::new(Config::default()),
        };
        let server = Arc::clone(&api);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            // The server also stops if the sender is dropped with the benchmark.
            let stopped = async { drop(stopped.await) };
            server.serve(listener, tls, stopped).await
        });
        Ok(Server {
            api,
            address,
            connector,
            stop,
            serving,
            directory,
        })
    }

    /// Opens a connection as the administrator.
    pub(in crate::bench) async fn connect(&self) -> Result<Connection, Failure> {
        Connection::open(self.address, &self.connector).await
    }

    /// Returns a client for a controller, which calls the server without a socket.
    pub(in crate::bench) fn client(&self, controller: &str) -> Client {
        let user = User {
            name: controller.to_owned(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
            ..User::default()
        };
        Client::new(self.api.router_as(user), "default")
    }

    /// Opens `clients` connections.
    pub(in crate::bench) async fn connect_all(
        &self,
        clients: usize,
    ) -> Result<Vec<Connection>, Failure> {
        let mut connections = Vec::with_capacity(clients);
        for _ in 0..clients {
            connections.push(self.connect().await?);
        }
        Ok(connections)
    }

    /// Stops the server and removes its directory.
    pub(in crate::bench) async fn stop(self) -> Result<(), Failure> {
        let Some(directory) = self.keep().await? else {
            return Ok(());
        };
        std::fs::remove_dir_all(&directory).map_err(|error| {
            let why = file_error(&error);
            Failure::run(format!("cannot remove {}: {why}", directory.display()))
        })
    }

    /// Stops the server and returns its directory.
    pub(in crate::bench) async fn keep(self) -> Result<Option<PathBuf>, Failure> {
        // Sending fails only if the server has ended already.
        let _ = self.stop.send(());
        match tokio::time::timeout(STOP_PATIENCE, self.serving).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => {
                return Err(Failure::run(format!("the server failed: {error}")));
            }
            Ok(Err(error)) => return Err(Failure::run(format!("the server panicked: {error}"))),
            Err(_) => {
                let seconds = STOP_PATIENCE.as_secs();
                let why = format!("the server did not stop within {seconds} s");
                return Err(Failure::run(why));
            }
        }
        self.api.close().await;
        Ok(self.directory)
    }
}

/// Returns a path that no other server of this or another process uses.
pub(super) fn new_directory(below: &Path) -> PathBuf {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    below.join(format!("mullion-bench-{}-{number}", std::process::id()))
}

/// The reason why certificates are unusable.
#[derive(Debug)]
enum CertsError {
    Pem(pem::Error),
    Tls(rustls::Error),
}

impl fmt::Display for CertsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertsError::Pem(error) => write!(f, "{error}"),
            CertsError::Tls(error) => write!(f, "{error}"),
        }
    }
}

impl From<pem::Error> for CertsError {
    fn from(error: pem::Error) -> Self {
        CertsError::Pem(error)
    }
}

impl From<rustls::Error> for CertsError {
    fn from(error: rustls::Error) -> Self {
        CertsError::Tls(error)
    }
}

fn connector(certs: &Certs) -> Result<TlsConnector, CertsError> {
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes());
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&certs.ca)?)?;
    let key = PrivateKeyDer::from_pem_slice(certs.admin.key.as_bytes())?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate(&certs.admin.cert)?], key)?;
    Ok(TlsConnector::from(Arc::new(config)))
}
