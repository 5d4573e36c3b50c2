//! The server on a loopback socket: certificates, users, protocols.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{SinkExt, channel::mpsc};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mullion_apiserver::{ApiServer, Config, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};
use tokio_rustls::client::TlsStream;

use crate::api::Api;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const OVER_1: &[u8] = b"http/1.1";
pub(crate) const OVER_2: &[u8] = b"h2";

/// Signs certificates.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
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
    fn sign(&self, names: &[&str], common_name: &str, organization: &str) -> Identity {
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

/// A user's certificate and its key.
pub(crate) type Identity = (String, String);

/// A server on a loopback socket, until it is dropped.
pub(crate) struct Served {
    pub(crate) admin: Identity,
    authority: Authority,
    pub(crate) address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
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
        let (stop, stopped) = oneshot::channel::<()>();
        let server = server.clone();
        let serving = tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            server.serve(listener, tls, shutdown).await
        });
        Served {
            admin: authority.sign(&[], "admin", "system:masters"),
            authority,
            address,
            stop,
            serving,
        }
    }

    /// A user with a certificate.
    pub(crate) fn user(&self, name: &str, group: &str) -> Identity {
        self.authority.sign(&[], name, group)
    }

    /// A connection that speaks a protocol, as a user or as nobody.
    pub(crate) async fn connect(
        &self,
        client: Option<&Identity>,
        protocol: &[u8],
    ) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.authority.certificate.as_bytes());
        roots.add(root.unwrap()).unwrap();
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
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = connector
            .connect(ServerName::try_from("localhost").unwrap(), stream)
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
        stream
    }

    /// The answer to a request on a connection of its own.
    pub(crate) async fn send(
        &self,
        client: Option<&Identity>,
        protocol: &[u8],
        request: http::Request<Vec<u8>>,
    ) -> Answer {
        let mut client = Client::new(self.connect(client, protocol).await, protocol).await;
        let (head, body) = client.send(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            text: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    /// Stops serving, and waits until it has.
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.serving.await.unwrap().unwrap();
    }
}

/// What came back, all of it.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

/// A client on one connection.
pub(crate) enum Client {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub(crate) async fn new(stream: TlsStream<TcpStream>, protocol: &[u8]) -> Self {
        let io = TokioIo::new(stream);
        if protocol == OVER_2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            Client::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            Client::Http1(sender)
        }
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn send(
        &mut self,
        request: http::Request<Vec<u8>>,
    ) -> http::Response<Incoming> {
        let request = request.map(|body| Full::new(Bytes::from(body)));
        let answer = match self {
            Client::Http1(sender) => sender.send_request(request).await,
            Client::Http2(sender) => sender.send_request(request).await,
        };
        answer.expect("every request is answered")
    }
}

/// A GET for both protocols.
pub(crate) fn get(path: &str) -> http::request::Builder {
    http::Request::get(format!("https://localhost{path}")).header("host", "localhost")
}

/// A request that says nothing more.
pub(crate) fn empty(request: http::request::Builder) -> http::Request<Vec<u8>> {
    request.body(Vec::new()).unwrap()
}

#[tokio::test]
async fn a_client_certificate_names_the_user_and_nobody_else_gets_in() {
    let served = Served::new(&ApiServer::new(Config::default())).await;
    let ask = async |client: Option<&Identity>, protocol: &[u8], path: &str| {
        let answer = served.send(client, protocol, empty(get(path))).await;
        (answer.status, answer.text)
    };
    let namespace = "/api/v1/namespaces/default";
    for protocol in [OVER_1, OVER_2] {
        let (status, body) = ask(Some(&served.admin), protocol, namespace).await;
        assert_eq!(
            (status, body.contains("\"name\":\"default\"")),
            (200, true),
            "{body}"
        );
        let (status, body) = ask(None, protocol, namespace).await;
        let refusal: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (status, &refusal["reason"]),
            (401, &Value::from("Unauthorized"))
        );
        let probe = ask(None, protocol, "/readyz").await;
        assert_eq!(probe, (200, "ok".to_owned()));
    }
    let address = served.address;
    served.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_connection_goes_on_after_a_body_that_nobody_wanted() {
    let served = Served::new(&ApiServer::new(Config::default())).await;
    let mut stream = served.connect(Some(&served.admin), OVER_1).await;
    let head = "POST /api/v1/configmaps HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n";
    let next = "GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    for part in [head, "{}", next] {
        stream.write_all(part.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).await.unwrap();
    let answers = String::from_utf8(answers).unwrap();
    assert!(answers.starts_with("HTTP/1.1 405"), "{answers}");
    assert!(answers.contains("HTTP/1.1 200"), "{answers}");
}

/// Clients that are told to stop sending before they have read the answer may never show it.
#[tokio::test]
async fn over_http_2_a_client_that_is_refused_early_may_send_its_whole_body() {
    const PIECE: Bytes = Bytes::from_static(&[b'a'; 15_000]);
    let served = Served::new(&ApiServer::new(Config::default())).await;
    let io = TokioIo::new(served.connect(None, OVER_2).await);
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let (mut sender, pieces) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(0);
    let request = http::Request::post("https://localhost/api/v1/namespaces/default/configmaps");
    let request = request.body(StreamBody::new(pieces)).unwrap();
    let answer = client.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 401);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"{"), "{body:?}");
    // Many times what a stream's window has room for.
    for piece in 0..40 {
        let sent = tokio::time::timeout(PATIENCE, sender.send(Ok(Frame::data(PIECE)))).await;
        assert!(matches!(sent, Ok(Ok(()))), "piece {piece}: {sent:?}");
    }
    drop((sender, client));
    let ended = tokio::time::timeout(PATIENCE, connection).await;
    ended.expect("it ends").unwrap().unwrap();
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

#[tokio::test(start_paused = true)]
async fn who_signs_clients_certificates_is_told_beside_what_others_have_told() {
    const MAP: &str =
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = ApiServer::new(Config {
        client_authority: Some(ours.certificate.clone()),
        ..Config::default()
    });
    let api = Api::of(&server);
    let told = json!({"client-ca-file": ours.certificate});
    let map = api.get(MAP).await.ok();
    assert_eq!(map["data"], told);
    assert_eq!(
        map["metadata"]["managedFields"][0]["manager"],
        "kube-apiserver"
    );
    let change = json!({"data": {"client-ca-file": theirs.certificate, "requestheader-allowed-names": "[]"}});
    api.merge(MAP, change).await.ok();
    let both = format!("{}{}", theirs.certificate, ours.certificate);
    let wanted = json!({"client-ca-file": both, "requestheader-allowed-names": "[]"});
    api.until(MAP, |map| map["data"] == wanted).await;
    api.delete(MAP).await.ok();
    api.until(MAP, |map| map["data"] == told).await;
    let quiet = Api::new(Config::default());
    quiet.get(MAP).await.refused(404);
}

#[tokio::test(start_paused = true)]
async fn who_signs_front_proxies_certificates_is_told_with_their_names_and_headers() {
    const MAP: &str =
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let (ours, proxies, theirs) = (Authority::new(), Authority::new(), Authority::new());
    let server = ApiServer::new(Config {
        client_authority: Some(ours.certificate.clone()),
        front_proxy_authority: Some(proxies.certificate.clone()),
        ..Config::default()
    });
    let api = Api::of(&server);
    let told = |names: &str, authorities: String| {
        json!({
            "client-ca-file": ours.certificate,
            "requestheader-allowed-names": names,
            "requestheader-client-ca-file": authorities,
            "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
            "requestheader-group-headers": r#"["X-Remote-Group"]"#,
            "requestheader-username-headers": r#"["X-Remote-User"]"#,
        })
    };
    let first = told(r#"["front-proxy-client"]"#, proxies.certificate.clone());
    assert_eq!(api.get(MAP).await.ok()["data"], first);
    let change = json!({"data": {
        "requestheader-allowed-names": r#"["other"]"#, "requestheader-client-ca-file": theirs.certificate,
    }});
    api.merge(MAP, change).await.ok();
    let both = format!("{}{}", theirs.certificate, proxies.certificate);
    let both = told(r#"["other","front-proxy-client"]"#, both);
    api.until(MAP, |map| map["data"] == both).await;
    // As in kube-apiserver, a list that nobody can read stops this.
    let broken = json!({"data": {"requestheader-allowed-names": "other", "client-ca-file": ""}});
    let broken = api.merge(MAP, broken).await.ok()["data"].clone();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(api.get(MAP).await.ok()["data"], broken);
    api.delete(MAP).await.ok();
    api.until(MAP, |map| map["data"] == first).await;
}
