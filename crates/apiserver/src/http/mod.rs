//! The HTTP handlers: from a request to a response, in the same way for every kind. Each verb has its own file.
//!
//! A request passes `path`, `auth`, `call`, the verb and `reply`. Every error is a [`Status`]. Handlers name no kind: the differences
//! come from the kind's row in [`crate::registry`].

pub(crate) mod apply;
mod arrival;
pub(crate) mod body;
pub(crate) mod body_stream;
pub(crate) mod call;
mod content;
mod continuation;
mod conversion;
mod create;
pub(crate) mod delete;
mod deletecollection;
mod discovery;
pub(crate) mod get;
mod list;
pub(crate) mod negotiate;
mod oidc;
pub(crate) mod openapi;
pub(crate) mod patch;
pub(crate) mod path;
mod piece;
mod pretty;
mod probes;
mod provided;
pub(crate) mod reply;
mod response_headers;
mod routing;
mod running;
mod selector;
mod site;
mod snapshot;
pub(crate) mod subresource;
pub(crate) mod table;
mod update;
mod watch;
pub(crate) mod write;

use std::{any::Any, borrow::Cow, panic::AssertUnwindSafe, sync::Arc, time::Instant};

use axum::{Router, body::Body, extract::State};
use futures::FutureExt;
use http::{Method, Request, Response, StatusCode, request::Parts};
use mullion_kinds::request::warnings::Warnings;
use mullion_kube_text::{golang::quote, names, status::Status};
use tokio::sync::watch as signal;

use self::{
    arrival::Patience,
    body_stream::GuardedBody,
    call::Call,
    negotiate::{Form, Media, RequestProperties, Shape},
    path::{ObjectPath, Route},
    subresource::streams::Upgrade,
    write::Part,
};
use crate::{
    auth,
    connections::ActivityGuard,
    flows::Flow,
    limits::TooMany,
    metrics::Labels,
    registry::Row,
    request::query::{self, Query},
    state::ApiServer,
};

/// The warning for a token that was ignored because of extra space (kube-apiserver: bearertoken).
const EXTRA_SPACE: &str = "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// The extension that marks requests from a socket.
#[derive(Clone)]
pub(crate) struct OnNetwork {
    /// The names in the server's certificate.
    pub(crate) names: Arc<[String]>,
    /// Becomes true when the server shuts down.
    pub(crate) closing: signal::Receiver<bool>,
    /// Marks the connection as in use.
    pub(crate) busy: ActivityGuard,
}

/// Returns the service that answers all requests.
pub(crate) fn router(server: Arc<ApiServer>) -> Router {
    Router::new().fallback(serve).with_state(server)
}

async fn serve(State(server): State<Arc<ApiServer>>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let head_only = parts.method == Method::HEAD;
    let takes_gzip = reply::takes_gzip(&parts.headers);
    let extra_space = auth::has_extra_space(&parts.headers);
    let for_eyes = pretty::wanted(&parts.headers, &parts.uri);
    // Everything that the response needs from the head is taken here, because the handler consumes the request.
    let media = negotiate::of_refusals(&parts.headers);
    let (method, uri) = (parts.method.clone(), parts.uri.clone());
    let audit_id = response_headers::audit_id(&parts.headers);
    let mut flow = None;
    // As kube-apiserver's WithPanicRecovery: a bug in one handler costs one 500, not the connection with all its other requests.
    let answer = AssertUnwindSafe(route(server, parts, body, &mut flow)).catch_unwind();
    let mut response = answer
        .await
        .unwrap_or_else(|panic| Err(panicked(&method, uri.path(), &*panic)))
        .unwrap_or_else(|status| reply::refusal(&status, media));
    // Only with a 401: a client that was authenticated in another way does not depend on the ignored token.
    if extra_space && response.status() == StatusCode::UNAUTHORIZED {
        let mut warnings = Warnings::default();
        warnings.add(EXTRA_SPACE.to_owned());
        reply::add_warnings(&mut response, &warnings);
    }
    // From here on the response is complete; only its bytes are transformed.
    response_headers::add(response.headers_mut(), audit_id, flow);
    if for_eyes {
        response = pretty::indented(response).await;
    }
    // Before compression, which would spend work on a body that is not sent.
    if head_only {
        let (parts, _) = response.into_parts();
        return Response::from_parts(parts, Body::empty());
    }
    match takes_gzip {
        true => reply::compress(response),
        false => response,
    }
}

/// Returns the 500 for a request whose handler panicked. Mutexes that it had locked stay usable, as every user ignores poisoning.
fn panicked(method: &Method, path: &str, panic: &(dyn Any + Send)) -> Status {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let why = text.unwrap_or("without a text");
    tracing::error!(%method, path, why, "a handler has panicked");
    let mut status = Status::internal("");
    status.message =
        "This request caused apiserver to panic. Look in the logs for details.".to_owned();
    status
}

async fn route(
    server: Arc<ApiServer>,
    mut parts: Parts,
    body: Body,
    flow: &mut Option<Flow>,
) -> Result<Response<Body>, Status> {
    let network = parts.extensions.remove::<OnNetwork>();
    if let Some(network) = &network {
        // Only for sockets: a client in this process has no browser that could be led here from another site.
        site::check(parts.version, &parts.headers, &parts.uri, &network.names)?;
    }
    let uri = std::mem::take(&mut parts.uri);
    // Clients escape characters that RBAC names may contain, above all colons.
    let path = match uri.path().contains('%') {
        true => Cow::Owned(query::unescape(uri.path())),
        false => Cow::Borrowed(uri.path()),
    };
    let route = match path::parse(&path) {
        known @ Route::Other("" | "/version") => known,
        // Other paths outside the API must match exactly, including a trailing slash.
        Route::Other(_) => Route::Other(&path),
        known => known,
    };
    // Before the route is looked up: an unauthorized user must not learn which paths exist.
    let user = server
        .access()
        .admit(&mut parts, &path, uri.query(), server.now(), flow)?;
    if let Route::Other(path) = route
        // Probes must be answered when all seats are taken, or an overloaded server would be restarted.
        && probes::takes_no_turn(&parts.method, path)
        && let Some(answer) = probes::serve(&server, &parts.method, path, uri.query())
    {
        return answer;
    }
    // kube-apiserver's flow schema `exempt`: requests of `system:masters` never queue.
    let is_exempt = network.is_none() || user.is_master();
    let _turn = match &route {
        // Requests about objects wait for a seat only when their body has arrived.
        Route::Object(_) => None,
        _ if is_exempt => None,
        _ => match server.gate().turn().await {
            Ok(turn) => Some(turn),
            Err(TooMany) => return Ok(reply::too_many_requests()),
        },
    };
    // One table for the whole request: a definition that changes meanwhile must not mix two versions of its rows.
    let table = server.registry().table();
    match route {
        Route::Object(object) => {
            let Some(row) = table.find(object.group, object.version, object.plural) else {
                return nothing_here(table.routes_group(object.group));
            };
            // kube-apiserver answers a custom resource in the wrong scope with a bare 404, because no router knows the path.
            if row.is_defined() && !is_in_scope(row, &object, &parts.method) {
                return Ok(reply::page_not_found());
            }
            let query = Query::parse(uri.query());
            let reads = matches!(parts.method, Method::GET | Method::HEAD);
            // `watch=true` counts for collections alone; a single object is watched through the old `/watch/` path or a field selector.
            let collection = object.name.is_none() && object.subresource.is_none();
            let watch = object.watch || (collection && query.flag("watch").unwrap_or(false));
            let asked = RequestProperties {
                custom: !row.has_messages(),
                collection: reads && (collection || watch),
                watch: reads && watch,
                log: object.subresource == Some("log") && object.group.is_empty(),
            };
            let form = negotiate::negotiate(&parts.headers, asked).map_err(|status| {
                // kube-apiserver's router refuses a path or method before it reads the Accept header, so that error wins over the 406.
                routing::refusal(row, &object, &parts.method).unwrap_or(status)
            })?;
            let mut call = Call::new(
                server.clone(),
                row.clone(),
                &object,
                user,
                query,
                parts.headers,
                form,
            );
            call.patches = parts.method == Method::PATCH;
            let goes_on = goes_on(&call, &object, &parts.method);
            let timeout = match goes_on {
                // kube-apiserver ignores `timeout` for long-running requests; watches have `timeoutSeconds` of their own.
                true => None,
                false => call.query.timeout()?,
            };
            // A client in this process has no limits, metrics or connection.
            let Some(network) = network else {
                let answer = running::to_its_end(call, object.watch, parts.method, body, false);
                return Box::pin(answer).await;
            };
            call.on_network = true;
            let begun = Instant::now();
            let labels = labels(row, &call, &object, &parts.method);
            // Counted down when it is dropped, so a client that disconnects is not counted for ever.
            let _in_flight = server.metrics().in_flight(&labels);
            let count = |answer: &Result<Response<Body>, Status>| {
                let code = answer
                    .as_ref()
                    .map_or_else(|status| status.code, |answer| answer.status().as_u16());
                server.metrics().answered(&labels, code, begun.elapsed());
            };
            if !goes_on {
                let most = server.gate().limits().request;
                let patience = Patience::of(timeout.map_or(most, |timeout| timeout.min(most)));
                call.patience = patience.clone();
                call.is_exempt = is_exempt;
                // Boxed so that kilobytes of future are not copied from one future into the next.
                let answer = Box::pin(running::in_turn(call, object.watch, parts.method, body));
                let answer = patience.bound(answer).await;
                count(&answer);
                return answer.map(|answer| patience.bound_body(answer));
            }
            // Long-running requests take no seat, but their number is limited for each user.
            let Ok(stream) = server.gate().stream(&call.user.name) else {
                return Ok(reply::too_many_requests());
            };
            let (stream, busy) = (Arc::new(stream), network.busy.goes_on());
            call.upgrade = parts.extensions.remove().map(|on| Upgrade {
                on,
                closing: network.closing,
                busy: busy.clone(),
                stream: stream.clone(),
            });
            let answer = Box::pin(objects(call, object.watch, parts.method, body)).await;
            count(&answer);
            Ok(answer?.map(|body| {
                Body::new(GuardedBody {
                    body,
                    // Until the last byte is sent: the response's head is only the beginning of a watch.
                    held: (stream, busy),
                })
            }))
        }
        Route::Groups { .. } | Route::Group(_) | Route::Version { .. } => {
            let address = server.external_url().trim_start_matches("https://");
            let document = || discovery::serve(&table, &route, &parts.headers, address);
            match running::aside(document) {
                Some(_) if parts.method != Method::GET => Err(method_not_allowed()),
                Some(answer) => Ok(answer),
                None => {
                    // kube-apiserver answers an unknown version of a known group with a Status, and anything else with plain text.
                    let known = match route {
                        Route::Version { group, .. } => table.routes_group(group),
                        _ => false,
                    };
                    nothing_here(known)
                }
            }
        }
        Route::Other("" | "/index.html") => {
            Ok(reply::indented(200, &discovery::root_paths(&table)))
        }
        Route::Other(path) => {
            if let Some(answer) = probes::serve(&server, &parts.method, path, uri.query()) {
                return answer;
            }
            if let Some(answer) = oidc::serve(&server, &parts.method, path) {
                return answer;
            }
            if let Some(answer) = snapshot::serve(&server, &user, &parts.method, path) {
                return answer;
            }
            if path == "/metrics" && parts.method != Method::DELETE {
                return Ok(reply::respond(
                    200,
                    "text/plain; version=0.0.4; charset=utf-8",
                    Body::from(server.metrics().text(&table) + &server.more_metrics()),
                ));
            }
            // Generating a document takes long enough to delay the other connections of this thread.
            let document =
                || openapi::serve(&server, &parts.method, path, uri.query(), &parts.headers);
            running::aside(document).unwrap_or_else(|| Ok(reply::page_not_found()))
        }
    }
}

/// Returns the metric labels of a request about objects.
fn labels<'a>(row: &'a Row, call: &Call, path: &ObjectPath<'_>, method: &Method) -> Labels<'a> {
    let resource = &row.resource;
    let known = resource.subresources.iter();
    let subresource = path.subresource.and_then(|asked| {
        let mut known = known.filter(|known| known.name == asked);
        known.next().map(|known| known.name)
    });
    let on_object = path.name.is_some();
    let verb = match *method {
        _ if matches!(
            subresource,
            Some("attach" | "exec" | "portforward" | "proxy")
        ) =>
        {
            "CONNECT"
        }
        _ if watches(call, path.watch) => "WATCH",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH if apply::is_apply(&call.headers) => "APPLY",
        Method::PATCH => "PATCH",
        Method::DELETE if on_object => "DELETE",
        Method::DELETE => "DELETECOLLECTION",
        _ if on_object => "GET",
        _ => "LIST",
    };
    Labels {
        verb,
        group: &resource.group,
        version: &resource.version,
        resource: &resource.plural,
        subresource: subresource.unwrap_or_default(),
        scope: match (on_object, path.namespace) {
            (true, _) => "resource",
            (false, Some(_)) => "namespace",
            (false, None) => "cluster",
        },
        dry_run: match call.query.get("dryRun") {
            Some("All") => "All",
            _ => "",
        },
    }
}

/// Returns whether custom resources of that scope exist at a path; only lists and watches span namespaces.
fn is_in_scope(row: &Row, path: &ObjectPath<'_>, method: &Method) -> bool {
    let across = path.name.is_none() && matches!(*method, Method::GET | Method::HEAD);
    match row.resource.namespaced {
        true => path.namespace.is_some() || across || path.watch,
        false => path.namespace.is_none(),
    }
}

/// Returns the 404: a JSON Status under a group of built-in kinds, plain text elsewhere.
fn nothing_here(group_served: bool) -> Result<Response<Body>, Status> {
    if group_served {
        Err(Status::no_such_path())
    } else {
        Ok(reply::page_not_found())
    }
}

/// Returns whether a request is long-running, so that no time limit applies (kube-apiserver: BasicLongRunningRequestCheck).
fn goes_on(call: &Call, path: &ObjectPath<'_>, method: &Method) -> bool {
    match path.subresource {
        Some("attach" | "exec" | "portforward") => true,
        Some("log") => call.query.flag("follow").unwrap_or(false),
        Some(_) => false,
        None => watches(call, path.watch) && matches!(*method, Method::GET | Method::HEAD),
    }
}

/// Returns whether a request is a watch; `by_path` says whether its path has the old `/watch/` prefix.
fn watches(call: &Call, by_path: bool) -> bool {
    by_path || (call.name.is_empty() && call.query.flag("watch").unwrap_or(false))
}

/// Returns the 405 for a verb that a resource does not have.
pub(crate) fn method_not_allowed() -> Status {
    let mut status = Status::new(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    );
    status.details = Some(Box::default());
    status
}

async fn objects(
    mut call: Call,
    watch: bool,
    method: Method,
    body: Body,
) -> Result<Response<Body>, Status> {
    let resource = call.row.resource.clone();
    let is_collection = call.name.is_empty();
    // Before anything can fail: kube-apiserver warns of a deprecated version also when it refuses the request.
    if let Some(text) = &resource.deprecated {
        call.warn(text.to_string());
    }
    // Answered before the name is checked: kube-apiserver's router registers no HEAD except for proxies.
    let path = ObjectPath {
        namespace: call.namespace.as_deref(),
        name: (!is_collection).then_some(&*call.name),
        subresource: call.subresource.as_deref(),
        watch,
        ..ObjectPath::default()
    };
    let is_odd = !matches!(
        method,
        Method::GET | Method::POST | Method::PUT | Method::PATCH | Method::DELETE
    );
    if is_odd && let Some(status) = routing::refusal(&call.row, &path, &method) {
        return Err(status);
    }
    if let Err(status) = conversion::check(&call, &method, watches(&call, watch)) {
        return Ok(finish(&call, Err(status)));
    }
    let in_place = call.namespace.is_some() == resource.namespaced;
    // A PUT is left out: it fails on the name in its body first. Nothing is created by the name in the path.
    if matches!(
        method,
        Method::GET | Method::HEAD | Method::DELETE | Method::PATCH
    ) && !is_collection
    {
        // kube-apiserver (NamespaceKeyFunc) refuses such a name when it makes the object's key in etcd.
        let sentences = names::path_segment(&call.name);
        if !sentences.is_empty() {
            let why = format!(
                "Name parameter invalid: {}: {}",
                quote(&call.name),
                sentences.join(";")
            );
            return Ok(finish(&call, Err(Status::bad_request(why))));
        }
    }
    if let Some(name) = &call.subresource {
        let subresource = resource
            .subresources
            .iter()
            .find(|subresource| subresource.name == *name)
            .filter(|_| in_place);
        let subresource = subresource.ok_or_else(|| match call.row.is_defined() {
            true => Status::not_found(&resource, &call.name),
            false => Status::no_such_path(),
        })?;
        let answer = subresource::serve(&call, subresource, method, body).await;
        return Ok(finish(&call, answer));
    }
    if method == Method::POST && call.row.is_defined() {
        // Custom resources have no router that would refuse the name in the path; the name in the body counts.
        call.name.clear();
    }
    // Only lists and watches span namespaces; other methods are refused below.
    let all_namespaces = resource.namespaced && call.namespace.is_none() && is_collection;
    if !in_place && !all_namespaces {
        return Err(Status::no_such_path());
    }
    // Reviews and the like are created to be answered and are never stored.
    if resource.rules.transient {
        if method != Method::POST || !call.name.is_empty() || all_namespaces {
            return Err(method_not_allowed());
        }
        let answer = subresource::transient(&call, body).await;
        return Ok(finish(&call, answer));
    }
    if (watch || resource.rules.read_only) && !matches!(method, Method::GET | Method::HEAD) {
        return Err(method_not_allowed());
    }
    let watched = watches(&call, watch);
    if let Some(source) = resource.source() {
        let answer = provided::serve(&call, source, &method, watched);
        return Ok(finish(&call, answer));
    }
    if watched && matches!(method, Method::GET | Method::HEAD) {
        // The watch takes the call along, so collect its warnings first.
        let warnings = call.take_warnings();
        let media = of_refusals(&call);
        let mut response = watch::watch(call)
            .await
            .unwrap_or_else(|status| reply::refusal(&status, media));
        reply::add_warnings(&mut response, &warnings);
        return Ok(response);
    }
    let answer = match (&method, call.name.is_empty()) {
        (&Method::GET | &Method::HEAD, true) => list::list(&call).await,
        (&Method::POST, true) if !all_namespaces => create::create(&call, body).await,
        (&Method::DELETE, true) if !all_namespaces && resource.rules.delete_collection => {
            deletecollection::delete_collection(&call, body).await
        }
        (&Method::GET | &Method::HEAD, false) => get::get(&call).await,
        (&Method::PUT, false) => update::update(&call, Part::Main, body).await,
        (&Method::PATCH, false) => patch::patch(&call, Part::Main, body).await,
        (&Method::DELETE, false) => delete::delete(&call, body).await,
        (&Method::PUT, true) if call.row.is_defined() => Err(nameless()),
        (&Method::PATCH, true) if call.row.is_defined() => {
            Err(match patch::is_supported(&call.headers, true) {
                Ok(()) => nameless(),
                Err(status) => status,
            })
        }
        _ => Err(method_not_allowed()),
    };
    Ok(finish(&call, answer))
}

/// Returns the 400 for a PUT or PATCH to a collection of custom resources, which no router has refused before.
fn nameless() -> Status {
    Status::bad_request("name must be provided")
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
fn finish(call: &Call, answer: Result<Response<Body>, Status>) -> Response<Body> {
    let mut response = answer.unwrap_or_else(|status| reply::refusal(&status, of_refusals(call)));
    reply::add_warnings(&mut response, &call.take_warnings());
    response
}
