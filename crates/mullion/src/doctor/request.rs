//! Sends single requests to the cluster's API server.

use http::{Method, Request};
use kube::Client;
use serde_json::Value;

use crate::why::source::{PATIENCE, root};

/// A request that was refused, or got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestFailure {
    /// The HTTP status code of the answer; 0 if there was no answer.
    pub(super) code: u16,
    pub(super) why: String,
}

/// Sends a request; a patch is sent as a JSON merge patch.
///
/// # Errors
/// The API server refused the request, or there was no answer.
pub(super) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, RequestFailure> {
    let text = text(client, method, path, body).await?;
    serde_json::from_str(&text).map_err(|error| unanswered(error.to_string()))
}

/// Sends a request whose answer is text, such as a log.
///
/// # Errors
/// The same as for [`send`].
pub(super) async fn text(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<String, RequestFailure> {
    let content = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .body(body)
        .map_err(|error| unanswered(error.to_string()))?;
    match tokio::time::timeout(PATIENCE, client.request_text(request)).await {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(kube::Error::Api(status))) => Err(RequestFailure {
            code: status.code,
            why: status.message,
        }),
        Ok(Err(error)) => Err(unanswered(root(&error))),
        Err(_) => Err(unanswered(format!(
            "no answer within {} s",
            PATIENCE.as_secs()
        ))),
    }
}

fn unanswered(why: String) -> RequestFailure {
    RequestFailure { code: 0, why }
}
