//! The services that speak JSON: SSM, SQS and the Price List by `X-Amz-Target`, EKS and ARC by path.

pub(crate) mod arc;
pub(crate) mod eks;
mod pricing;
mod sqs;
mod ssm;

use axum::{
    body::Body,
    http::{HeaderValue, Method, Response, StatusCode, header},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{Endpoint, endpoint::Blocked, refusal::Refusal};

/// Runs the action of a request and returns the response. `target` names service and action, as in `AmazonSSM.GetParameter`.
pub(crate) async fn answer(
    endpoint: &Endpoint,
    target: &str,
    body: &[u8],
    request_id: &str,
) -> Response<Body> {
    let (service, action) = target.split_once('.').unwrap_or((target, ""));
    let (version, done) = match service {
        "AmazonSSM" => ("1.1", ssm::run_action(endpoint, action, body)),
        "AmazonSQS" => ("1.0", sqs::run_action(endpoint, action, body).await),
        "AWSPriceListService" => ("1.1", pricing::run_action(endpoint, action, body)),
        _ => ("1.1", Err(unknown(target))),
    };
    let kind = format!("application/x-amz-json-{version}");
    match done {
        Ok(value) => respond(StatusCode::OK, &kind, &value, request_id),
        Err(refusal) => {
            // The JSON protocol has the code of an error in `__type`.
            let value = json!({ "__type": refusal.code, "message": refusal.message });
            let mut response = respond(refusal.status, &kind, &value, request_id);
            // SQS used the Query protocol before JSON, and SDKs still report its error codes of that time, which they find here.
            if service == "AmazonSQS" && refusal.code.ends_with("QueueDoesNotExist") {
                let old = "AWS.SimpleQueueService.NonExistentQueue;Sender";
                let old = HeaderValue::from_static(old);
                response.headers_mut().insert("x-amzn-query-error", old);
            }
            response
        }
    }
}

pub(crate) fn respond(
    status: StatusCode,
    kind: &str,
    value: &Value,
    request_id: &str,
) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE.as_str(), kind),
        ("x-amzn-requestid", request_id),
    ] {
        if let (Ok(name), Ok(value)) = (
            header::HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_str(value),
        ) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Returns the response of a service whose actions are paths.
fn respond_by_path(done: Result<Value, Refusal>, request_id: &str) -> Response<Body> {
    const KIND: &str = "application/json";
    match done {
        Ok(value) => respond(StatusCode::OK, KIND, &value, request_id),
        Err(refusal) => {
            let value = json!({ "message": refusal.message });
            let mut response = respond(refusal.status, KIND, &value, request_id);
            // Services with a REST protocol have the code of an error in a header, not in the body.
            if let Ok(code) = HeaderValue::from_str(&refusal.code) {
                response.headers_mut().insert("x-amzn-errortype", code);
            }
            response
        }
    }
}

/// Returns the refusal of a method and path that are not simulated.
fn unknown_path(method: &Method, path: &str) -> Refusal {
    let text = format!("{method} {path} is not served by the simulated AWS endpoint.");
    Refusal::with(StatusCode::NOT_FOUND, "UnknownOperationException", text)
}

/// Refuses calls as services do whose actions are paths.
fn admit_by_path(endpoint: &Endpoint, service: &str, action: &str) -> Result<(), Refusal> {
    endpoint
        .admit(service, action)
        .map_err(|blocked| match blocked {
            Blocked::Throttled => Refusal::with(
                StatusCode::TOO_MANY_REQUESTS,
                "ThrottlingException",
                "Rate exceeded",
            ),
            Blocked::Denied(why) => {
                Refusal::with(StatusCode::FORBIDDEN, "AccessDeniedException", why)
            }
        })
}

/// Returns the refusal of an action that is not simulated.
fn unknown(action: &str) -> Refusal {
    let text = format!("The action {action} is not served by the simulated AWS endpoint.");
    Refusal::new("UnknownOperationException", text)
}

/// Refuses a throttled or denied call as services of the JSON protocol do.
fn admit(endpoint: &Endpoint, service: &str, action: &str) -> Result<(), Refusal> {
    endpoint
        .admit(service, action)
        .map_err(|blocked| match blocked {
            Blocked::Throttled => Refusal::new("ThrottlingException", "Rate exceeded"),
            Blocked::Denied(why) => Refusal::new("AccessDeniedException", why),
        })
}

/// Reads a request. Unknown fields are refused, like unread parameters of the Query protocol.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|error| Refusal::new("SerializationException", error.to_string()))
}
