//! The instance metadata service (IMDSv2), from which controllers that run on EC2 learn region and account.
//!
//! Invariant: the document is that of a machine beside the cluster, where its control plane runs. It names no instance, since the simulated
//! EC2 has none there.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Method, Response, StatusCode},
};
use serde_json::json;

use crate::Endpoint;

/// What paths of the service begin with.
pub(crate) const PATH: &str = "/latest/";

/// The header with the lifetime of a token in seconds.
const LIFETIME: &str = "x-aws-ec2-metadata-token-ttl-seconds";
/// The header that carries a token.
const TOKEN: &str = "x-aws-ec2-metadata-token";
/// The longest lifetime of a token, six hours.
const LONGEST_LIFETIME: u32 = 21_600;

/// Handles a request. Any token that is not empty is accepted.
pub(crate) fn answer(
    endpoint: &Endpoint,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Response<Body> {
    let path = path.strip_prefix(PATH).unwrap_or_default();
    if *method == Method::PUT && path == "api/token" {
        return token(headers);
    }
    if *method != Method::GET {
        return respond(StatusCode::METHOD_NOT_ALLOWED, String::new());
    }
    // Only version 2 of the metadata service is served, which requires a token.
    if headers.get(TOKEN).is_none_or(HeaderValue::is_empty) {
        return respond(StatusCode::UNAUTHORIZED, String::new());
    }
    let config = endpoint.ec2().config();
    match path {
        "dynamic/instance-identity/document" => {
            let document = json!({
                "accountId": endpoint.settings().account_id,
                "region": config.region,
                "version": "2017-09-30",
            });
            respond(StatusCode::OK, document.to_string())
        }
        "meta-data/placement/region" => respond(StatusCode::OK, config.region.clone()),
        _ => respond(StatusCode::NOT_FOUND, String::new()),
    }
}

/// Returns a token with the lifetime that the request asks for.
fn token(headers: &HeaderMap) -> Response<Body> {
    let lifetime = headers.get(LIFETIME);
    let seconds = lifetime.and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    match (
        lifetime,
        seconds.filter(|own| (1..=LONGEST_LIFETIME).contains(own)),
    ) {
        (Some(lifetime), Some(_)) => {
            let mut response = respond(StatusCode::OK, "simulated".to_owned());
            response.headers_mut().insert(LIFETIME, lifetime.clone());
            response
        }
        _ => respond(StatusCode::BAD_REQUEST, String::new()),
    }
}

fn respond(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}
