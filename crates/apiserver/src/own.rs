//! Requests that the server makes to itself. Its controllers send them through the router as `kube-apiserver`, so that watchers and
//! managedFields see the same as with kube-apiserver's controllers. Objects that must exist before the first response are created without
//! a router.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use mullion_kinds::{SubresourceHandler, request::User};
use mullion_kube_text::status::Status;
use serde_json::Value;
use tower::ServiceExt;

use crate::{
    http::{apply, call::Call, negotiate::Form, path::ObjectPath, router, write::Part},
    request::query::Query,
    state::ApiServer,
};

/// Sends a request through the router. A PATCH is a merge patch; a null `body` sends none.
pub(crate) async fn send(
    server: &Arc<ApiServer>,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<(), StatusCode> {
    let user = User {
        name: "system:apiserver".to_owned(),
        groups: vec!["system:masters".to_owned()],
        ..User::default()
    };
    let body = match body {
        Value::Null => Body::empty(),
        body => Body::from(body.to_string()),
    };
    let content_type = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::USER_AGENT, "kube-apiserver")
        .header(header::CONTENT_TYPE, content_type)
        .extension(user)
        .body(body)
        .expect("method, path and headers are well-formed");
    // The router is infallible: errors are responses.
    let Ok(response) = router(server.clone()).oneshot(request).await;
    let (parts, body) = response.into_parts();
    let _ = body.collect().await;
    if parts.status.is_success() {
        Ok(())
    } else {
        Err(parts.status)
    }
}

/// Applies the status of an object with `force`, so that the manager owns it. Waits only for the store.
pub(crate) async fn apply_status(
    server: &Arc<ApiServer>,
    path: &ObjectPath<'_>,
    manager: &str,
    configuration: &Value,
) -> Result<(), Status> {
    let path = ObjectPath {
        subresource: Some("status"),
        ..path.clone()
    };
    let query = format!("fieldManager={manager}&force=true");
    let mut headers = HeaderMap::new();
    let media = HeaderValue::from_static("application/apply-patch+yaml");
    headers.insert(header::CONTENT_TYPE, media);
    let call = call(server, &path, Query::parse(Some(&query)), headers);
    let call = call.ok_or_else(Status::no_such_path)?;
    let mut subresources = call.resource().subresources.iter();
    let status = subresources.find_map(|subresource| match subresource.handler {
        SubresourceHandler::Status(rule) => Some(Part::Status(rule)),
        _ => None,
    });
    let status = status.ok_or_else(Status::no_such_path)?;
    let configuration = Bytes::from(configuration.to_string());
    apply::apply(&call, status, &configuration).await?;
    Ok(())
}

/// Builds a call on the server's own behalf.
pub(crate) fn call(
    server: &Arc<ApiServer>,
    path: &ObjectPath<'_>,
    query: Query,
    headers: HeaderMap,
) -> Option<Call> {
    let table = server.registry().table();
    let row = table.find(path.group, path.version, path.plural)?;
    let user = User {
        name: "system:apiserver".into(),
        groups: vec!["system:authenticated".into(), "system:masters".into()],
        ..User::default()
    };
    Some(Call::new(
        server.clone(),
        row.clone(),
        path,
        user,
        query,
        headers,
        Form::JSON,
    ))
}
