//! The requests of the scheduler's writers. Their response bodies are not read.

use kube::{
    Client, Error,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::Request,
};
use serde_json::{Value, json};

use crate::discarded_response;

/// Returns `true` for an accepted write, `false` for one that was finally refused, and `None` for one to be
/// repeated.
pub(super) fn settled(result: Result<(), Error>) -> Option<bool> {
    match result {
        Ok(()) => Some(true),
        // 429 and 5xx say that the server could not judge the write now.
        Err(Error::Api(status)) if status.code < 500 && status.code != 429 => {
            tracing::debug!(%status, "scheduler write refused");
            Some(false)
        }
        Err(error) => {
            tracing::debug!(%error, "scheduler write failed, repeating it");
            None
        }
    }
}

pub(super) async fn post_binding(
    client: &Client,
    namespace: &str,
    name: &str,
    uid: Option<&str>,
    node: &str,
) -> Result<(), Error> {
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": name, "namespace": namespace, "uid": uid },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let body = serde_json::to_vec(&binding).map_err(Error::SerdeError)?;
    let request = Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
    let request = request.create_subresource("binding", name, &PostParams::default(), body);
    discarded_response::send(client, request).await
}

pub(super) async fn patch_status(
    client: &Client,
    collection: &str,
    name: &str,
    patch: &Value,
) -> Result<(), Error> {
    let (request, params) = (Request::new(collection), PatchParams::default());
    let request = request.patch_subresource("status", name, &params, &Patch::Strategic(patch));
    discarded_response::send(client, request).await
}

pub(super) async fn delete(
    client: &Client,
    collection: &str,
    name: &str,
    params: &DeleteParams,
) -> Result<(), Error> {
    let request = Request::new(collection).delete(name, params);
    discarded_response::send(client, request).await
}
