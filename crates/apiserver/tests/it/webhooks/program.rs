//! A webhook on loopback: a TLS server that remembers what it is asked and answers as the test says.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::hook;

/// What a webhook does with a review.
pub(crate) enum Reply {
    /// Answers with this AdmissionReview.
    Review(Value),
    /// Answers with this status and text.
    Text(u16, String),
    /// The same as JSON.
    Json(u16, String),
    /// Answers with this status and header, and the header's name as text.
    Header(u16, &'static str, String),
    /// Lets the caller wait.
    Never,
}

/// What it makes of a review, to which `target` and `port` tell where it was sent.
type Answer = dyn Fn(&Value) -> Reply + Send + Sync;

/// A running webhook; stops when it is dropped.
pub(crate) struct Program {
    pub(crate) address: SocketAddr,
    certificate: String,
    asked: Arc<Mutex<Vec<Value>>>,
    connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Program {
    /// A webhook that answers so.
    pub(crate) async fn start(answer: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        Self::named(&["127.0.0.1", "localhost"], answer).await
    }

    /// A webhook whose certificate is for these names. It is what `openssl req -x509` makes: its own authority.
    pub(crate) async fn named(
        names: &[&str],
        answer: impl Fn(&Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let connections: Arc<AtomicUsize> = Arc::default();
        let served = serve(
            listener,
            TlsAcceptor::from(Arc::new(config)),
            asked.clone(),
            connections.clone(),
            Arc::new(answer),
        );
        Program {
            address,
            certificate,
            asked,
            connections,
            task: tokio::spawn(served),
        }
    }

    /// The reviews it was sent so far, without their uids.
    pub(crate) fn asked(&self) -> Vec<Value> {
        let reviews = self.asked.lock().unwrap().clone().into_iter();
        let requests = reviews.map(|mut review| review["request"].take());
        requests.collect()
    }

    /// The methods and paths it was asked so far.
    pub(crate) fn targets(&self) -> Vec<String> {
        let reviews = self.asked.lock().unwrap();
        let targets = reviews.iter().map(|review| review["target"].as_str());
        targets
            .map(|target| target.unwrap_or_default().to_owned())
            .collect()
    }

    /// Forgets what it was asked.
    pub(crate) fn forget(&self) {
        self.asked.lock().unwrap().clear();
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// It as a webhook for writes of some resources of the core group.
    pub(crate) fn hook(&self, name: &str, resources: &[&str]) -> Value {
        hook(name, self.by_url(), resources)
    }

    /// Its `clientConfig`, by URL.
    pub(crate) fn by_url(&self) -> Value {
        json!({"url": format!("https://{}/review", self.address), "caBundle": self.bundle()})
    }

    /// Who vouches for it.
    pub(crate) fn bundle(&self) -> String {
        STANDARD.encode(&self.certificate)
    }
}

async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    asked: Arc<Mutex<Vec<Value>>>,
    connections: Arc<AtomicUsize>,
    answer: Arc<Answer>,
) {
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, asked, answer) = (acceptor.clone(), asked.clone(), answer.clone());
        let connections = connections.clone();
        tasks.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            connections.fetch_add(1, Ordering::SeqCst);
            let port = stream.get_ref().0.local_addr().unwrap().port();
            let service = service_fn(|request: Request<Incoming>| {
                let (asked, answer) = (asked.clone(), answer.clone());
                async move { Ok::<_, Infallible>(reply(request, port, &asked, &*answer).await) }
            });
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn reply(
    request: Request<Incoming>,
    port: u16,
    asked: &Mutex<Vec<Value>>,
    answer: &Answer,
) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    let body = body.collect().await.unwrap().to_bytes();
    // A redirect may have dropped the review.
    let mut review: Value = serde_json::from_slice(&body).unwrap_or(json!({"request": {}}));
    review["target"] = format!("{} {}", parts.method, parts.uri.path()).into();
    review["port"] = port.into();
    let reply = answer(&review);
    review["request"]["query"] = query.into();
    asked.lock().unwrap().push(review);
    let mut response = Response::builder();
    let (status, text, form) = match reply {
        Reply::Header(status, name, value) => {
            response = response.header(name, value);
            (status, name.to_owned(), "text/plain")
        }
        Reply::Review(review) => (200, review.to_string(), "application/json"),
        Reply::Text(status, text) => (status, text, "text/plain"),
        Reply::Json(status, text) => (status, text, "application/json"),
        Reply::Never => std::future::pending().await,
    };
    let response = response.status(status).header("content-type", form);
    response.body(Full::from(text)).unwrap()
}

fn answer_to(review: &Value, mut response: Value) -> Reply {
    response["uid"] = review["request"]["uid"].clone();
    Reply::Review(
        json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}),
    )
}

/// Lets the write through.
pub(crate) fn allow(review: &Value) -> Reply {
    answer_to(review, json!({"allowed": true}))
}

/// Refuses the write.
pub(crate) fn deny(review: &Value, status: Value) -> Reply {
    answer_to(review, json!({"allowed": false, "status": status}))
}

/// Lets the write through with changes.
pub(crate) fn patch(review: &Value, operations: Value) -> Reply {
    let patch = STANDARD.encode(operations.to_string());
    answer_to(
        review,
        json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}),
    )
}

/// Lets the write through with these words for the client.
pub(crate) fn warn(review: &Value, warnings: &[&str]) -> Reply {
    answer_to(review, json!({"allowed": true, "warnings": warnings}))
}
