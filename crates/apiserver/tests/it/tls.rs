//! The server on a loopback socket: certificates, users, protocols.

use std::sync::Arc;

use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mullion_apiserver::{ApiServer, Config, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

/// Signs certificates.
pub(crate) struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate and its key.
    pub(crate) fn sign(
        &self,
        names: &[&str],
        common_name: &str,
        organization: &str,
    ) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params
            .distinguished_name
            .push(DnType::OrganizationName, organization);
        (
            params.signed_by(&key, &self.issuer).unwrap().pem(),
            key.serialize_pem(),
        )
    }
}

/// A connection to a server, as the owner of a certificate and its key or as nobody.
pub(crate) async fn connect(
    authority: &Authority,
    address: std::net::SocketAddr,
    client: Option<&(String, String)>,
    protocol: &[u8],
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client {
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector
        .connect(ServerName::try_from("localhost").unwrap(), stream)
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
    stream
}

/// A server on a loopback socket, until it is dropped.
pub(crate) struct Served {
    pub(crate) authority: Authority,
    pub(crate) address: std::net::SocketAddr,
    pub(crate) admin: (String, String),
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Served {
    pub(crate) async fn new(server: &Arc<ApiServer>) -> Self {
        let authority = Authority::new();
        let (certificate, key) = authority.sign(&["localhost"], "server", "mullion");
        let tls = Tls::from_pem(
            certificate.as_bytes(),
            key.as_bytes(),
            authority.certificate.as_bytes(),
        )
        .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = server.clone();
        tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            server.serve(listener, tls, shutdown).await
        });
        Served {
            admin: authority.sign(&[], "admin", "system:masters"),
            authority,
            address,
            _stop: stop,
        }
    }

    /// A connection that speaks HTTP/1.1.
    pub(crate) async fn connect(&self, client: Option<&(String, String)>) -> TlsStream<TcpStream> {
        connect(&self.authority, self.address, client, b"http/1.1").await
    }
}

async fn get(
    authority: &Authority,
    address: std::net::SocketAddr,
    client: Option<&(String, String)>,
    protocol: &[u8],
    path: &str,
) -> (u16, String) {
    let stream = connect(authority, address, client, protocol).await;
    let request = http::Request::get(format!("https://localhost{path}"))
        .header("host", "localhost")
        .body(Empty::<bytes::Bytes>::new())
        .unwrap();
    let io = TokioIo::new(stream);
    let response = if protocol == b"h2" {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                .await
                .unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    };
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_client_certificate_names_the_user_and_nobody_else_gets_in() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&["localhost"], "server", "mullion");
    let tls = Tls::from_pem(
        certificate.as_bytes(),
        key.as_bytes(),
        authority.certificate.as_bytes(),
    )
    .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = ApiServer::new(Config::default());
    let serving = tokio::spawn(async move {
        let shutdown = async { drop(stopped.await) };
        server.serve(listener, tls, shutdown).await
    });
    let admin = authority.sign(&[], "admin", "system:masters");
    for protocol in [b"http/1.1".as_slice(), b"h2"] {
        let (status, body) = get(
            &authority,
            address,
            Some(&admin),
            protocol,
            "/api/v1/namespaces/default",
        )
        .await;
        assert_eq!(
            (status, body.contains("\"name\":\"default\"")),
            (200, true),
            "{body}"
        );
        let (status, body) = get(
            &authority,
            address,
            None,
            protocol,
            "/api/v1/namespaces/default",
        )
        .await;
        let refusal: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (status, &refusal["reason"]),
            (401, &Value::from("Unauthorized"))
        );
        assert_eq!(
            get(&authority, address, None, protocol, "/readyz").await,
            (200, "ok".to_owned())
        );
    }
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[test]
fn a_key_that_is_none_is_named_in_the_error() {
    let authority = Authority::new();
    let (certificate, _) = authority.sign(&["localhost"], "server", "mullion");
    let error = Tls::from_pem(
        certificate.as_bytes(),
        b"nothing",
        authority.certificate.as_bytes(),
    )
    .err()
    .unwrap();
    assert!(
        error.to_string().starts_with("cannot read the server key"),
        "{error}"
    );
}
