//! The simulated EC2 of `mullion nodes` for controllers in other processes: calls of the cloud's traits over HTTP on loopback.
//!
//! A ConfigMap in the cluster with its nodes has the address, so that `mullion controller --cloud simulated` finds it.

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use mullion_cloud::{
    BoxFuture,
    remote::{Remote, Unreliable, Wire, WireError},
    sim::SimulatedEc2,
};
use serde_json::json;
use tokio::time::timeout;

use crate::{failure::Failure, up::port::bind_exactly};

const NAME: &str = "mullion-simulated-cloud";
const NAMESPACE: &str = "kube-system";
const ENDPOINT: &str = "endpoint";
const PATH: &str = "/v1/call";
/// The largest call or response, in bytes: all offers have two megabytes.
const MOST_BYTES: usize = 32 * 1024 * 1024;
/// The time that a call may take. Receiving messages takes 20 s if there are none.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers calls on loopback until the process ends, and publishes the address in the cluster.
///
/// # Errors
/// No port is available, or the ConfigMap cannot be written.
pub(crate) async fn serve(
    cloud: Unreliable<SimulatedEc2>,
    client: &Client,
    port: u16,
) -> Result<String, Failure> {
    // Loopback only: whoever reaches the port may launch and terminate instances.
    let listener = bind_exactly(port, "--cloud-port").await?;
    let address = listener.local_addr().map_err(Failure::run)?;
    let routes = Router::new()
        .route(PATH, post(call))
        .with_state(Arc::new(cloud));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!("the simulated EC2 is not served any more: {error}");
        }
    });
    let endpoint = format!("http://{address}");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME},
        "data": {ENDPOINT: endpoint},
    });
    // By force: the address in the ConfigMap has to be this process's, whoever wrote the ConfigMap before.
    let params = PatchParams::apply("mullion").force();
    let applied = timeout(PATIENCE, api.patch(NAME, &params, &Patch::Apply(map))).await;
    let unwritten = |why: String| {
        Failure::run(format!(
            "ConfigMap {NAMESPACE}/{NAME} cannot be written: {why}"
        ))
    };
    applied
        .map_err(|_| unwritten("no answer".to_owned()))?
        .map_err(|error| unwritten(error.to_string()))?;
    Ok(endpoint)
}

/// Deletes the ConfigMap that [`serve`] has written.
pub(crate) async fn withdraw(client: &Client) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    match timeout(PATIENCE, api.delete(NAME, &DeleteParams::default())).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!("ConfigMap {NAMESPACE}/{NAME} stays: {error}"),
        Err(_) => tracing::warn!("ConfigMap {NAMESPACE}/{NAME} stays: no answer"),
    }
}

async fn call(
    State(cloud): State<Arc<Unreliable<SimulatedEc2>>>,
    request: Request<Body>,
) -> Response {
    let refused = |why: String| (StatusCode::BAD_REQUEST, why).into_response();
    let body = match to_bytes(request.into_body(), MOST_BYTES).await {
        Ok(body) => body,
        Err(error) => return refused(error.to_string()),
    };
    match cloud.answer(&body).await {
        Ok(Some(bytes)) => bytes.into_response(),
        Ok(None) => {
            let why = "the answer is lost (--cloud-faults): the call may have been carried out";
            (StatusCode::GATEWAY_TIMEOUT, why).into_response()
        }
        Err(error) => refused(format!(
            "the call cannot be understood, both processes have to be of one version: {error}"
        )),
    }
}

/// Calls over HTTP.
struct Http {
    client: Client,
    endpoint: String,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl Wire for Http {
    fn send(&self, call: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, WireError>> {
        let request = http::Request::post(PATH).body(kube::client::Body::from(call));
        Box::pin(async move {
            let request = request.map_err(|error| WireError::Cut(error.to_string()))?;
            let asked = async {
                let answer = self.client.send(request).await;
                let answer = answer.map_err(|error| error.to_string())?;
                let status = answer.status();
                let body = to_bytes(Body::new(answer.into_body()), MOST_BYTES).await;
                let body = body.map_err(|error| error.to_string())?;
                if status.is_success() {
                    Ok(body.to_vec())
                } else {
                    Err(String::from_utf8_lossy(&body).into_owned())
                }
            };
            let answer = timeout(PATIENCE, asked).await;
            let silent = || format!("{} s went by", PATIENCE.as_secs());
            let answer = answer.unwrap_or_else(|_| Err(silent()));
            answer.map_err(|why| WireError::Cut(format!("{}: {why}", self.endpoint)))
        })
    }
}

/// Connects to the simulated EC2 at `endpoint`, or to the one that the cluster names.
///
/// # Errors
/// There is none, or it does not respond.
pub(crate) async fn connect(client: &Client, endpoint: Option<String>) -> Result<Remote, Failure> {
    let hint = "start it with `mullion nodes`, which also makes the nodes of what is bought";
    let endpoint = match endpoint {
        Some(endpoint) => endpoint,
        None => announced(client).await?.ok_or_else(|| {
            Failure::input(format!(
                "--cloud simulated: there is no simulated EC2: the cluster has no ConfigMap {NAMESPACE}/{NAME}"
            ))
            .hint(hint)
        })?,
    };
    let failed = |why: String| {
        Failure::input(format!(
            "--cloud simulated: the simulated EC2 does not answer: {why}"
        ))
        .hint(hint)
    };
    let url = endpoint
        .parse()
        .map_err(|_| failed(format!("{endpoint} is no URL")))?;
    let mut config = kube::Config::new(url);
    config.proxy_url = None;
    let http = kube::Client::try_from(config).map_err(|error| failed(error.to_string()))?;
    let wire = Http {
        client: http,
        endpoint,
    };
    let connected = Remote::connect(Arc::new(wire)).await;
    connected.map_err(|error| failed(error.to_string()))
}

async fn announced(client: &Client) -> Result<Option<String>, Failure> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let failed = |why: String| {
        Failure::run(format!(
            "ConfigMap {NAMESPACE}/{NAME} cannot be read: {why}"
        ))
    };
    let found = timeout(PATIENCE, api.get_opt(NAME)).await;
    let found = found
        .map_err(|_| failed("no answer".to_owned()))?
        .map_err(|error| failed(error.to_string()))?;
    Ok(found.and_then(|map| map.data?.remove(ENDPOINT)))
}
