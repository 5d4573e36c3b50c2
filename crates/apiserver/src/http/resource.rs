//! Requests about objects: from the path to a [`Call`], and from the call to its answer within its limits of time.
//!
//! A short request waits for a seat and has a deadline. A long-running one (a watch, a followed log, a stream into a pod) has neither, but
//! their number is limited for each user.

use std::{sync::Arc, time::Instant};

use axum::body::Body;
use http::{Method, Response, Uri, request::Parts};
use mullion_kinds::request::User;
use mullion_kube_text::status::Status;

use super::{
    OnNetwork, apply,
    arrival::Patience,
    body_stream::GuardedBody,
    call::Call,
    dispatch,
    negotiate::{self, RequestProperties},
    path::ObjectPath,
    reply, routing, running,
    subresource::streams::Upgrade,
};
use crate::{
    metrics::{InFlight, Labels},
    registry::Row,
    request::query::Query,
    state::ApiServer,
};

/// Answers a request about objects. `network` is `None` for a client in this process, which has no limits, metrics or connection.
pub(super) async fn serve(
    server: &Arc<ApiServer>,
    parts: &mut Parts,
    uri: &Uri,
    path: &ObjectPath<'_>,
    user: User,
    body: Body,
    network: Option<OnNetwork>,
) -> Result<Response<Body>, Status> {
    // One table for the whole request: a definition that changes meanwhile must not mix two versions of its rows.
    let table = server.registry().table();
    let Some(row) = table.find(path.group, path.version, path.plural) else {
        return reply::nothing_here(table.routes_group(path.group));
    };
    let method = std::mem::take(&mut parts.method);
    // kube-apiserver answers a custom resource in the wrong scope with a bare 404, because no router knows the path.
    if row.is_defined() && !routing::is_in_scope(row, path, &method) {
        return Ok(reply::page_not_found());
    }
    let mut call = call(server, row, path, user, uri, parts, &method)?;
    let is_long = is_long_running(&call, path, &method);
    let timeout = if is_long {
        // kube-apiserver ignores `timeout` for long-running requests; watches have `timeoutSeconds` of their own.
        None
    } else {
        call.query.timeout()?
    };
    let Some(network) = network else {
        let answer = running::to_its_end(call, path.watch, method, body, false);
        return Box::pin(answer).await;
    };
    call.on_network = true;
    let meter = Meter::begin(server, labels(row, &call, path, &method));
    if !is_long {
        let most = server.gate().limits().request;
        let patience = Patience::of(timeout.map_or(most, |timeout| timeout.min(most)));
        call.patience = patience.clone();
        call.is_exempt = call.user.is_master();
        // Boxed so that kilobytes of future are not copied from one future into the next.
        let answer = Box::pin(running::in_turn(call, path.watch, method, body));
        let answer = patience.bound(answer).await;
        meter.count(&answer);
        return answer.map(|answer| patience.bound_body(answer));
    }
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
    let answer = Box::pin(dispatch::answer(call, path.watch, method, body)).await;
    meter.count(&answer);
    // Until the last byte is sent: the response's head is only the beginning of a watch.
    let held = (stream, busy);
    Ok(answer?.map(|body| Body::new(GuardedBody { body, held })))
}

/// Builds the call of a request: negotiates the form of its answer and parses its query.
fn call(
    server: &Arc<ApiServer>,
    row: &Arc<Row>,
    path: &ObjectPath<'_>,
    user: User,
    uri: &Uri,
    parts: &mut Parts,
    method: &Method,
) -> Result<Call, Status> {
    let query = Query::parse(uri.query());
    let reads = matches!(*method, Method::GET | Method::HEAD);
    // `watch=true` counts for collections alone; a single object is watched through the old `/watch/` path or a field selector.
    let collection = path.name.is_none() && path.subresource.is_none();
    let watch = path.watch || (collection && query.flag("watch").unwrap_or(false));
    let asked = RequestProperties {
        custom: !row.has_messages(),
        collection: reads && (collection || watch),
        watch: reads && watch,
        log: path.subresource == Some("log") && path.group.is_empty(),
    };
    let form = negotiate::negotiate(&parts.headers, asked).map_err(|status| {
        // kube-apiserver's router refuses a path or method before it reads the Accept header, so that error wins over the 406.
        routing::refusal(row, path, method).unwrap_or(status)
    })?;
    let headers = std::mem::take(&mut parts.headers);
    let mut call = Call::new(
        server.clone(),
        row.clone(),
        path,
        user,
        query,
        headers,
        form,
    );
    call.patches = *method == Method::PATCH;
    Ok(call)
}

/// Returns whether a request is long-running, so that no time limit applies (kube-apiserver: BasicLongRunningRequestCheck).
fn is_long_running(call: &Call, path: &ObjectPath<'_>, method: &Method) -> bool {
    match path.subresource {
        Some("attach" | "exec" | "portforward") => true,
        Some("log") => call.query.flag("follow").unwrap_or(false),
        Some(_) => false,
        None => {
            dispatch::is_watch(call, path.watch) && matches!(*method, Method::GET | Method::HEAD)
        }
    }
}

/// Counts one request in the metrics. It is in flight until the meter is dropped, so a client that disconnects is not counted for ever.
struct Meter<'a> {
    server: &'a ApiServer,
    labels: Labels<'a>,
    begun: Instant,
    _in_flight: Option<InFlight<'a>>,
}

impl<'a> Meter<'a> {
    fn begin(server: &'a ApiServer, labels: Labels<'a>) -> Self {
        Meter {
            begun: Instant::now(),
            _in_flight: server.metrics().in_flight(&labels),
            server,
            labels,
        }
    }

    fn count(&self, answer: &Result<Response<Body>, Status>) {
        let code = answer
            .as_ref()
            .map_or_else(|status| status.code, |answer| answer.status().as_u16());
        let metrics = self.server.metrics();
        metrics.answered(&self.labels, code, self.begun.elapsed());
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
        _ if dispatch::is_watch(call, path.watch) => "WATCH",
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
