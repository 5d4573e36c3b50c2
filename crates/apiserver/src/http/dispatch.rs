//! Answers a call: refuses what no handler should see, and passes the rest to the handler of its endpoint.

use axum::body::Body;
use http::{Method, Response};
use mullion_kube_text::{golang::quote, names, status::Status};

use super::{
    call::Call,
    conversion, create, delete, deletecollection, get, list,
    negotiate::{Form, Media, Shape},
    patch,
    path::ObjectPath,
    provided, reply,
    routing::{self, Endpoint, method_not_allowed},
    subresource, update, watch,
    write::Part,
};

/// Answers a call. `by_path` says whether its path has the old `/watch/` prefix.
pub(super) async fn answer(
    mut call: Call,
    by_path: bool,
    method: Method,
    body: Body,
) -> Result<Response<Body>, Status> {
    let row = call.row.clone();
    // Before anything can fail: kube-apiserver warns of a deprecated version also when it refuses the request.
    if let Some(text) = &row.resource.deprecated {
        call.warn(text.to_string());
    }
    let path = ObjectPath {
        namespace: call.namespace.as_deref(),
        name: (!call.name.is_empty()).then_some(&*call.name),
        subresource: call.subresource.as_deref(),
        watch: by_path,
        ..ObjectPath::default()
    };
    // Before the name is checked: kube-apiserver's router registers no HEAD except for proxies.
    if is_rarely_routed(&method)
        && let Some(status) = routing::refusal(&row, &path, &method)
    {
        return Err(status);
    }
    let endpoint = routing::endpoint(&row, &path, &method);
    let watched = is_watch(&call, by_path);
    let checked = conversion::check(&call, &method, watched);
    if let Err(status) = checked.and_then(|()| check_name(&call, &method)) {
        return Ok(finish(&call, Err(status)));
    }
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        // kube-apiserver warns of a deprecated version of a custom resource before it finds that it has no such endpoint.
        Err(status) if call.row.custom => return Ok(finish(&call, Err(status))),
        Err(status) => return Err(status),
    };
    if watched && matches!(endpoint, Endpoint::List | Endpoint::Get) {
        return Ok(answer_watch(call).await);
    }
    let answer = match endpoint {
        Endpoint::Subresource(known) => subresource::serve(&call, known, method, body).await,
        Endpoint::Transient => subresource::transient(&call, body).await,
        Endpoint::Provided => provided::serve(&call, watched),
        Endpoint::List => list::list(&call).await,
        Endpoint::Get => get::get(&call).await,
        Endpoint::Create => {
            call.name.clear();
            create::create(&call, body).await
        }
        Endpoint::Update => update::update(&call, Part::Main, body).await,
        Endpoint::Patch => patch::patch(&call, Part::Main, body).await,
        Endpoint::Delete => delete::delete(&call, body).await,
        Endpoint::DeleteCollection => deletecollection::delete_collection(&call, body).await,
        Endpoint::Nameless => Err(nameless(&call, &method)),
        Endpoint::Unhandled => Err(method_not_allowed()),
    };
    Ok(finish(&call, answer))
}

/// Returns whether a request is a watch; `by_path` says whether its path has the old `/watch/` prefix.
pub(super) fn is_watch(call: &Call, by_path: bool) -> bool {
    by_path || (call.name.is_empty() && call.query.flag("watch").unwrap_or(false))
}

/// Returns whether kube-apiserver's router registers the method for hardly any path.
fn is_rarely_routed(method: &Method) -> bool {
    !matches!(
        *method,
        Method::GET | Method::POST | Method::PUT | Method::PATCH | Method::DELETE
    )
}

/// Returns 400 for a name that no object's key in etcd can have (kube-apiserver: NamespaceKeyFunc). A PUT is left out, because it fails on
/// the name in its body first, and a POST, because nothing is created by the name in the path.
fn check_name(call: &Call, method: &Method) -> Result<(), Status> {
    let is_checked = matches!(
        *method,
        Method::GET | Method::HEAD | Method::DELETE | Method::PATCH
    );
    if call.name.is_empty() || !is_checked {
        return Ok(());
    }
    let sentences = names::path_segment(&call.name);
    if sentences.is_empty() {
        return Ok(());
    }
    let (name, why) = (quote(&call.name), sentences.join(";"));
    Err(Status::bad_request(format!(
        "Name parameter invalid: {name}: {why}"
    )))
}

/// Answers a watch, which takes the call along, so that its warnings are collected first.
async fn answer_watch(call: Call) -> Response<Body> {
    let warnings = call.take_warnings();
    let media = of_refusals(&call);
    let mut response = watch::watch(call)
        .await
        .unwrap_or_else(|status| reply::refusal(&status, media));
    reply::add_warnings(&mut response, &warnings);
    response
}

/// Returns the refusal of a PUT or PATCH to a collection of custom resources.
fn nameless(call: &Call, method: &Method) -> Status {
    let no_name = || Status::bad_request("name must be provided");
    match *method {
        Method::PATCH => patch::is_supported(&call.headers, true)
            .err()
            .unwrap_or_else(no_name),
        _ => no_name(),
    }
}

/// Returns the encoding of a call's errors: an error about a custom resource is never protobuf, and no error is a table.
fn of_refusals(call: &Call) -> Media {
    match call.form {
        Form { media, shape } if shape == Shape::Whole && call.row.has_messages() => media,
        Form {
            media: Media::Yaml,
            shape: Shape::Whole,
        } => Media::Yaml,
        _ => Media::Json,
    }
}

/// Builds the response and adds the warnings that were collected.
pub(super) fn finish(call: &Call, answer: Result<Response<Body>, Status>) -> Response<Body> {
    let mut response = answer.unwrap_or_else(|status| reply::refusal(&status, of_refusals(call)));
    reply::add_warnings(&mut response, &call.take_warnings());
    response
}
