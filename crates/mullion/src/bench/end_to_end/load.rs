//! Implements the clients of the measurement: connections to the API server's TLS port that are kept open, and a watch.
//!
//! They share the machine with what they measure, so they do little: bodies are made by inserting a name into a template, answers are read
//! and dropped, and the events of the watch are only counted.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::Value;
use tokio::task::JoinSet;

use crate::{
    bench::api::{
        client::{Connection, Request},
        server::Server,
    },
    failure::Failure,
};

/// The number of connections, and so of requests at the same time.
const CONNECTIONS: usize = 32;
/// A placeholder in a template for the pod's name.
const NAME: &str = "\u{1}";
/// The expected status of an answer to a creation; the next constant is that for a change.
const CREATED: u16 = 201;
const CHANGED: u16 = 200;

/// A pod manifest without a name.
pub(super) struct Template {
    collection: String,
    before: String,
    after: String,
}

impl Template {
    /// Creates a template from a manifest without a name.
    pub(super) fn new(mut manifest: Value) -> Self {
        let namespace = manifest["metadata"]["namespace"].as_str();
        let collection = pods_of(namespace.unwrap_or("default"));
        manifest["metadata"]["name"] = NAME.into();
        let text = manifest.to_string();
        let (before, after) = text
            .split_once("\\u0001")
            .expect("JSON writes the control character as an escape");
        Self {
            collection,
            before: before.to_owned(),
            after: after.to_owned(),
        }
    }

    fn named(&self, name: &str) -> Request {
        let body = [&self.before, name, &self.after].concat();
        Request::post(&self.collection, body.as_bytes())
    }
}

/// Returns the path of a namespace's pods.
pub(super) fn pods_of(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

/// Returns the request that creates an object, with the expected status.
pub(super) fn creation(collection: &str, object: &Value) -> (Request, u16) {
    let request = Request::post(collection, object.to_string().as_bytes());
    (request, CREATED)
}

/// Returns the request that changes an object, with the expected status.
pub(super) fn change(path: &str, patch: &Value) -> (Request, u16) {
    let request = Request::patch(path, patch.to_string().as_bytes());
    (request, CHANGED)
}

/// Creates `pods` pods with the names `{prefix}-{index}`; the templates are used in turn.
pub(super) async fn create(
    server: &Server,
    templates: Vec<Template>,
    prefix: &'static str,
    pods: usize,
) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let request = move || {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let template = (index < pods).then(|| &templates[index % templates.len()]);
        template.map(|template| (template.named(&format!("{prefix}-{index}")), CREATED))
    };
    share(server, request).await
}

/// Sends requests over all connections at the same time; each request comes with the expected status of its answer.
pub(super) async fn send_all(
    server: &Server,
    requests: impl Iterator<Item = (Request, u16)> + Send + 'static,
) -> Result<(), Failure> {
    let requests = Mutex::new(requests);
    let next = move || {
        let mut requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.next()
    };
    share(server, next).await
}

async fn share(
    server: &Server,
    next: impl Fn() -> Option<(Request, u16)> + Send + Sync + 'static,
) -> Result<(), Failure> {
    let next = Arc::new(next);
    let mut clients = JoinSet::new();
    for mut connection in server.connect_all(CONNECTIONS).await? {
        let next = Arc::clone(&next);
        clients.spawn(async move {
            while let Some((request, status)) = next() {
                connection.expect(&request, status).await?;
            }
            Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client.map_err(|error| Failure::run(format!("a client failed: {error}")))??;
    }
    Ok(())
}

/// A watch that shows each new pod when it is bound to a node; pods that existed before are left out.
pub(super) struct Bindings(Connection);

impl Bindings {
    /// Starts the watch.
    pub(super) async fn watch(server: &Server) -> Result<Self, Failure> {
        // The selector matches a pod once it is bound, and the pod does not change after that, so there is one event for each pod.
        let path =
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName!%3D&labelSelector=app!%3Dfiller";
        let mut connection = server.connect().await?;
        connection.watch(&Request::get(path)).await?;
        Ok(Bindings(connection))
    }

    /// Waits until this many pods are bound to nodes.
    pub(super) async fn wait(mut self, pods: usize) -> Result<(), Failure> {
        self.0.events(pods).await
    }
}
