//! Requests that are not about objects: discovery, probes, documents, metrics.

use std::sync::Arc;

use axum::body::Body;
use http::{Method, Response, Uri, request::Parts};
use mullion_kinds::request::User;
use mullion_kube_text::status::Status;

use super::{
    discovery, oidc, openapi, path::Route, probes, reply, routing::method_not_allowed, running,
    snapshot,
};
use crate::{limits::TooMany, registry::Table, state::ApiServer};

/// Answers a request that is not about objects.
pub(super) async fn serve(
    server: &Arc<ApiServer>,
    parts: &Parts,
    uri: &Uri,
    route: Route<'_>,
    user: &User,
    on_network: bool,
) -> Result<Response<Body>, Status> {
    // Probes must be answered when all seats are taken, or an overloaded server would be restarted.
    if let Route::Other(path) = route
        && probes::takes_no_turn(&parts.method, path)
        && let Some(answer) = probes::serve(server, &parts.method, path, uri.query())
    {
        return answer;
    }
    // kube-apiserver's flow schema `exempt`: requests of `system:masters` never queue.
    let _turn = if !on_network || user.is_master() {
        None
    } else {
        match server.gate().turn().await {
            Ok(turn) => Some(turn),
            Err(TooMany) => return Ok(reply::too_many_requests()),
        }
    };
    let table = server.registry().table();
    match route {
        Route::Other("" | "/index.html") => {
            Ok(reply::indented(200, &discovery::root_paths(&table)))
        }
        Route::Other(path) => other(server, parts, uri, path, user, &table),
        route => discover(server, parts, &route, &table),
    }
}

/// Answers a request for a discovery document.
fn discover(
    server: &ApiServer,
    parts: &Parts,
    route: &Route<'_>,
    table: &Table,
) -> Result<Response<Body>, Status> {
    let address = server.external_url().trim_start_matches("https://");
    let document = || discovery::serve(table, route, &parts.headers, address);
    match running::aside(document) {
        Some(_) if parts.method != Method::GET => Err(method_not_allowed()),
        Some(answer) => Ok(answer),
        // kube-apiserver answers an unknown version of a known group with a Status, and anything else with plain text.
        None => reply::nothing_here(match route {
            Route::Version { group, .. } => table.routes_group(group),
            _ => false,
        }),
    }
}

/// Answers a request for a path outside the API.
fn other(
    server: &Arc<ApiServer>,
    parts: &Parts,
    uri: &Uri,
    path: &str,
    user: &User,
    table: &Table,
) -> Result<Response<Body>, Status> {
    let (method, query) = (&parts.method, uri.query());
    let answer = probes::serve(server, method, path, query)
        .or_else(|| oidc::serve(server, method, path))
        .or_else(|| snapshot::serve(server, user, method, path));
    if let Some(answer) = answer {
        return answer;
    }
    if path == "/metrics" && *method != Method::DELETE {
        return Ok(reply::respond(
            200,
            "text/plain; version=0.0.4; charset=utf-8",
            Body::from(server.metrics().text(table) + &server.more_metrics()),
        ));
    }
    // Generating a document takes long enough to delay the other connections of this thread.
    let document = || openapi::serve(server, method, path, query, &parts.headers);
    running::aside(document).unwrap_or_else(|| Ok(reply::page_not_found()))
}
