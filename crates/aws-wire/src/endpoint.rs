//! The endpoint of all services: finds the service of a request, and holds the state that the simulated EC2 does not have.

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::{HeaderMap, Method, Request, Response, StatusCode, header},
};
use mullion_cloud::sim::SimulatedEc2;
use tokio::net::TcpListener;

use crate::{
    Faults, Settings, control,
    ec2::{self, EndpointState},
    iam::{self, Profiles},
    imds,
    json::{self, arc, eks},
    query::Params,
    refusal::Refusal,
    sts,
};

/// The maximum size of a request in bytes.
const MOST_BYTES: usize = 1 << 20;

/// A simulated EC2 as clients of AWS reach it. Cheap to clone; all clones are one endpoint.
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
}

struct Inner {
    ec2: SimulatedEc2,
    settings: Settings,
    faults: Faults,
    state: Mutex<EndpointState>,
    profiles: Mutex<Profiles>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("ec2", &self.inner.ec2)
            .finish_non_exhaustive()
    }
}

/// Answers requests on a listener until the process ends.
///
/// # Errors
/// The listener cannot accept connections any more.
pub async fn serve(listener: TcpListener, endpoint: Endpoint) -> io::Result<()> {
    axum::serve(listener, endpoint.router()).await
}

impl Endpoint {
    /// Creates an endpoint of this EC2, without launch templates and faults.
    pub fn new(ec2: SimulatedEc2, settings: Settings) -> Self {
        let state = EndpointState::new(ec2.config().seed);
        Self {
            inner: Arc::new(Inner {
                ec2,
                settings,
                faults: Faults::default(),
                state: Mutex::new(state),
                profiles: Mutex::default(),
            }),
        }
    }

    /// Returns the simulated EC2.
    pub fn ec2(&self) -> &SimulatedEc2 {
        &self.inner.ec2
    }

    /// Returns the faults of calls.
    pub fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    /// Returns the settings of the endpoint.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Returns a router that handles requests for all AWS services.
    pub fn router(&self) -> Router {
        Router::new().fallback(handle).with_state(self.clone())
    }

    pub(crate) fn profiles(&self) -> MutexGuard<'_, Profiles> {
        // After a panic while the lock was held, at worst a profile exists that no client knows of.
        let profiles = &self.inner.profiles;
        profiles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether an IAM role has this name.
    pub(crate) fn has_role(&self, name: &str) -> bool {
        let cluster = &self.inner.ec2.config().cluster;
        name == format!("KarpenterNodeRole-{cluster}")
            || self.inner.settings.roles.iter().any(|own| own == name)
    }

    /// Returns the name of the queue of messages about instances.
    pub(crate) fn queue(&self) -> &str {
        let cluster = &self.inner.ec2.config().cluster;
        self.inner.settings.queue.as_ref().unwrap_or(cluster)
    }

    /// Returns the ARN of the caller. Signatures are not verified, so all callers are one user.
    pub(crate) fn caller(&self) -> String {
        format!(
            "arn:aws:iam::{}:user/mullion",
            self.inner.settings.account_id
        )
    }

    /// Returns an error if a fault throttles or denies a call.
    pub(crate) fn admit(&self, service: &str, action: &str) -> Result<(), Blocked> {
        let action = format!("{service}:{action}");
        if self.inner.faults.throttles(&action) {
            return Err(Blocked::Throttled);
        }
        self.denial(&action)
            .map_or(Ok(()), |why| Err(Blocked::Denied(why)))
    }

    /// Returns why IAM does not allow an action; `None` if it does.
    pub(crate) fn denial(&self, action: &str) -> Option<String> {
        let is_denied = self.inner.faults.denies(action) || self.inner.ec2.denies(action);
        is_denied.then(|| {
            format!(
                "User: {} is not authorized to perform: {action} because no identity-based policy allows the {action} action",
                self.caller()
            )
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, EndpointState> {
        // After a panic while the lock was held, at worst a template or a token exists that no client knows of.
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason for which a call is refused before its action runs.
pub(crate) enum Blocked {
    /// There were too many calls.
    Throttled,
    /// The caller has no permission; the text says why.
    Denied(String),
}

async fn handle(State(endpoint): State<Endpoint>, request: Request<Body>) -> Response<Body> {
    let request_id = endpoint.state().ids.request();
    // In a task of its own: a client that hangs up must not cancel a launch halfway.
    let done = tokio::spawn(answer(endpoint, request, request_id.clone()));
    done.await.unwrap_or_else(|error| {
        tracing::error!("a request to the simulated AWS endpoint was not answered: {error}");
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let text = "An internal error has occurred";
        ec2::refuse(&Refusal::with(status, "InternalError", text), &request_id)
    })
}

/// Passes a request to its service and returns the response.
async fn answer(endpoint: Endpoint, request: Request<Body>, request_id: String) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = match to_bytes(body, MOST_BYTES).await {
        Ok(body) => body,
        Err(error) => {
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            let refusal = Refusal::with(status, "RequestEntityTooLarge", error.to_string());
            return ec2::refuse(&refusal, &request_id);
        }
    };
    if head.uri.path() == control::PATH {
        return control::answer(&endpoint, &head.method, &body, &request_id);
    }
    // Before the check of signatures: instances ask this service for credentials, so they cannot sign yet.
    if head.uri.path().starts_with(imds::PATH) {
        return imds::answer(&endpoint, &head.method, head.uri.path(), &head.headers);
    }
    let is_signed = is_signed(&head.headers, head.uri.query());
    if !is_signed {
        let status = StatusCode::FORBIDDEN;
        let text = "Request is missing Authentication Token";
        let refusal = Refusal::with(status, "MissingAuthenticationToken", text);
        return ec2::refuse(&refusal, &request_id);
    }
    if let Some(target) = head.headers.get("x-amz-target") {
        let target = target.to_str().unwrap_or_default();
        return json::answer(&endpoint, target, &body, &request_id).await;
    }
    if head.uri.path().starts_with(eks::PATH) {
        return eks::answer(&endpoint, &head.method, head.uri.path(), &request_id);
    }
    if head.uri.path().starts_with(arc::PATH) {
        return arc::answer(&endpoint, &head.method, head.uri.path(), &request_id).await;
    }
    // All services of the Query protocol share this endpoint, as with AWS_ENDPOINT_URL; the Version parameter tells them apart. A GET has its
    // parameters in its URL.
    let form = match head.method {
        Method::GET => head.uri.query().unwrap_or_default().as_bytes(),
        _ => &body[..],
    };
    let params = Params::parse(form);
    params.root().accept(&SIGNATURE);
    match params.root().text("Version") {
        Some(iam::VERSION) => iam::answer(&endpoint, &params, &request_id),
        Some(sts::VERSION) => sts::answer(&endpoint, &params, &request_id),
        _ => ec2::answer(&endpoint, &params, &request_id).await,
    }
}

/// The parameters of a signature in a URL (a presigned request).
const SIGNATURE: [&str; 7] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Security-Token",
    "X-Amz-Signature",
];

/// Returns whether the request is signed; the signature is not verified.
fn is_signed(headers: &HeaderMap, query: Option<&str>) -> bool {
    headers.contains_key(header::AUTHORIZATION)
        || query.is_some_and(|query| query.contains("X-Amz-Signature="))
}
