//! Subresources: the generic ones (status, parts of an object, scale), and a table with the handlers of all others.

mod binding;
mod eviction;
mod log;
mod proxy;
pub(crate) mod reviews;
mod scale;
pub(crate) mod streams;
mod token;

use std::{future::Future, pin::Pin};

use axum::body::Body;
use http::{Method, Response};
use mullion_kinds::{Subresource, SubresourceHandler};
use mullion_kube_text::status::Status;

use super::{call::Call, get, patch, routing::method_not_allowed, update, write::Part};
use crate::{object::scale::Paths, registry::Row};

/// A handler of a named subresource, which checks method, query and body itself.
pub(crate) type Handler =
    for<'a> fn(
        &'a Call,
        Method,
        Body,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send + 'a>>;

/// The handlers of named subresources by group, plural and subresource. An empty subresource is a resource that is not stored.
const NAMED: &[(&str, &str, &str, Handler)] = &[
    ("", "bindings", "", binding::serve),
    ("", "nodes", "proxy", proxy::serve),
    ("", "pods", "attach", streams::serve),
    ("", "pods", "binding", binding::serve),
    ("", "pods", "eviction", eviction::serve),
    ("", "pods", "exec", streams::serve),
    ("", "pods", "log", log::serve),
    ("", "pods", "portforward", streams::serve),
    ("", "pods", "proxy", proxy::serve),
    ("", "serviceaccounts", "token", token::serve),
    ("", "services", "proxy", proxy::serve),
    (
        "authentication.k8s.io",
        "selfsubjectreviews",
        "",
        reviews::self_subject,
    ),
    ("authentication.k8s.io", "tokenreviews", "", reviews::token),
    (
        "authorization.k8s.io",
        "localsubjectaccessreviews",
        "",
        reviews::local_access_of,
    ),
    (
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "",
        reviews::self_access,
    ),
    (
        "authorization.k8s.io",
        "selfsubjectrulesreviews",
        "",
        reviews::self_rules,
    ),
    (
        "authorization.k8s.io",
        "subjectaccessreviews",
        "",
        reviews::access_of,
    ),
];

/// Returns the verb of a method, or 405 if the subresource does not have it. Of the built-in ones only proxies have HEAD, which they pass
/// on.
pub(super) fn check_method(
    row: &Row,
    subresource: &Subresource,
    method: &Method,
) -> Result<&'static str, Status> {
    if *method == Method::HEAD && !row.is_defined() && subresource.name != "proxy" {
        return Err(method_not_allowed());
    }
    let verb = match *method {
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::POST => "create",
        Method::DELETE => "delete",
        // Among subresources only proxies have this verb, and they pass on every method, such as OPTIONS.
        _ if subresource.verbs.contains(&"delete") => "delete",
        _ => "",
    };
    if subresource.verbs.contains(&verb) {
        return Ok(verb);
    }
    Err(if row.is_defined() {
        Status::not_supported(&*row.resource, verb)
    } else {
        method_not_allowed()
    })
}

/// Answers a request for a subresource.
pub(crate) async fn serve(
    call: &Call,
    subresource: &Subresource,
    method: Method,
    body: Body,
) -> Result<Response<Body>, Status> {
    let verb = check_method(&call.row, subresource, &method)?;
    match &subresource.handler {
        SubresourceHandler::Status(rule) => part(call, Part::Status(*rule), verb, body).await,
        SubresourceHandler::Part(rule) => part(call, Part::Piece(*rule), verb, body).await,
        handler @ SubresourceHandler::Scale { .. } => match Paths::of(handler) {
            Some(paths) => scale::serve(call, &paths, verb, body).await,
            None => Err(Status::no_such_path()),
        },
        SubresourceHandler::Named => match named(call, subresource.name) {
            Some(handler) => handler(call, method, body).await,
            None => Err(Status::no_such_path()),
        },
    }
}

/// Answers a POST to a resource that is not stored (reviews, bindings).
pub(crate) async fn transient(call: &Call, body: Body) -> Result<Response<Body>, Status> {
    match named(call, "") {
        Some(handler) => handler(call, Method::POST, body).await,
        None => Err(Status::no_such_path()),
    }
}

fn named(call: &Call, subresource: &str) -> Option<Handler> {
    let resource = call.resource();
    let found = NAMED.iter().find(|(group, plural, name, _)| {
        *group == resource.group && *plural == resource.plural && *name == subresource
    });
    found.map(|(_, _, _, handler)| *handler)
}

/// Reads or writes the object through a subresource that may change only a part of it.
async fn part(call: &Call, part: Part, verb: &str, body: Body) -> Result<Response<Body>, Status> {
    match verb {
        "get" => get::get(call).await,
        "update" => update::update(call, part, body).await,
        _ => patch::patch(call, part, body).await,
    }
}
