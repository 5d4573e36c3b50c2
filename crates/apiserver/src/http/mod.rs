//! The HTTP handlers: from a request to a response, in the same way for every kind. Each verb has its own file.
//!
//! A request passes `path` and `auth`. One about objects goes on through `resource` (its [`Call`](call::Call) and its time), `routing` (its
//! endpoint), `dispatch`, the verb and `reply`; any other is answered in `non_resource`. Every error is a [`Status`]. Handlers name no kind:
//! the differences come from the kind's row in [`crate::registry`].

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
mod dispatch;
pub(crate) mod get;
mod list;
pub(crate) mod negotiate;
mod non_resource;
mod oidc;
pub(crate) mod openapi;
pub(crate) mod patch;
pub(crate) mod path;
mod piece;
mod pretty;
mod probes;
mod provided;
pub(crate) mod reply;
mod resource;
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

use std::{any::Any, borrow::Cow, panic::AssertUnwindSafe, sync::Arc};

use axum::{Router, body::Body, extract::State};
use futures::FutureExt;
use http::{Method, Request, Response, StatusCode, request::Parts};
use mullion_kinds::request::warnings::Warnings;
use mullion_kube_text::status::Status;
use tokio::sync::watch as signal;

use self::path::Route;
use crate::{auth, connections::ActivityGuard, flows::Flow, request::query, state::ApiServer};

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
    if takes_gzip {
        reply::compress(response)
    } else {
        response
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

/// Authorizes a request and answers it.
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
    let path = if uri.path().contains('%') {
        Cow::Owned(query::unescape(uri.path()))
    } else {
        Cow::Borrowed(uri.path())
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
    match route {
        Route::Object(object) => {
            resource::serve(&server, &mut parts, &uri, &object, user, body, network).await
        }
        route => {
            let on_network = network.is_some();
            non_resource::serve(&server, &parts, &uri, route, &user, on_network).await
        }
    }
}
