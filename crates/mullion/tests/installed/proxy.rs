//! A server between a program and an API server that notes each request and its answer, and changes neither.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::{Request, StatusCode, header},
    response::{IntoResponse, Response},
};
use kube::{
    Client,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use tokio::{net::TcpListener, runtime::Runtime};

/// A request, and the status it was answered with.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) uri: String,
    pub(crate) status: u16,
}

#[derive(Clone)]
struct Passing {
    client: Client,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// The server; it ends when this is dropped.
pub(crate) struct Proxy {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    _runtime: Runtime,
}

impl Proxy {
    /// Starts one in front of the API server of a kubeconfig. Who asks proves itself: nothing of the kubeconfig's user is used.
    pub(crate) fn start(kubeconfig: &Path) -> Proxy {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let url = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
            let options = KubeConfigOptions::default();
            let mut config = kube::Config::from_custom_kubeconfig(file, &options)
                .await
                .expect("it leads to a cluster");
            config.auth_info = AuthInfo::default();
            let passing = Passing {
                client: Client::try_from(config).expect("a client"),
                asked: asked.clone(),
            };
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let url = format!("http://{}", listener.local_addr().expect("an address"));
            let routes = Router::new().fallback(pass).with_state(passing);
            tokio::spawn(async move { axum::serve(listener, routes).await });
            url
        });
        Proxy {
            url,
            asked,
            _runtime: runtime,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        let asked = self.asked.lock();
        asked.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn pass(State(passing): State<Passing>, request: Request<Body>) -> Response {
    let (mut parts, body) = request.into_parts();
    let uri = parts.uri.path_and_query().map_or("/", |uri| uri.as_str());
    let uri = uri.to_owned();
    let method = parts.method.to_string();
    parts.uri = uri.parse().expect("it was one");
    parts.headers.remove(header::HOST);
    // Answers may go on for ever, requests are whole.
    let body = to_bytes(body, usize::MAX).await.expect("a whole request");
    let request = Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    let (status, response) = match passing.client.send(request).await {
        Ok(answer) => {
            let (parts, body) = answer.into_parts();
            let status = parts.status.as_u16();
            (status, Response::from_parts(parts, Body::new(body)))
        }
        Err(error) => {
            let response = (StatusCode::BAD_GATEWAY, error.to_string()).into_response();
            (502, response)
        }
    };
    let asked = Asked {
        method,
        uri,
        status,
    };
    let all = passing.asked.lock();
    all.unwrap_or_else(PoisonError::into_inner).push(asked);
    response
}
