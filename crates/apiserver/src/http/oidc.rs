//! Serves the documents with which others check the tokens of this server's service accounts ([`crate::auth::oidc`]).

use axum::body::Body;
use http::{HeaderValue, Method, Response, header::CACHE_CONTROL};
use mullion_kube_text::status::Status;

use super::{reply, routing::method_not_allowed};
use crate::{auth::oidc, state::ApiServer};

/// Answers a request for one of the documents; `None` for other paths.
pub(crate) fn serve(
    server: &ApiServer,
    method: &Method,
    path: &str,
) -> Option<Result<Response<Body>, Status>> {
    let (content_type, document) =
        oidc::document(server.authenticator(), server.external_url(), path)?;
    if *method != Method::GET {
        return Some(Err(method_not_allowed()));
    }
    let mut response = reply::respond(200, content_type, Body::from(document.to_string()));
    response.headers_mut().insert(
        CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=3600"),
    );
    Some(Ok(response))
}
