//! STS (API version 2011-06-15): GetCallerIdentity.

use axum::{
    body::Body,
    http::{Response, StatusCode},
};

use crate::{
    Endpoint,
    ec2::respond,
    iam::{admit, metadata, refuse},
    query::Params,
    refusal::Refusal,
    xml::Xml,
};

const NAMESPACE: &str = "https://sts.amazonaws.com/doc/2011-06-15/";
/// The API version that identifies a request for STS.
pub(crate) const VERSION: &str = "2011-06-15";

/// Runs the action of a request and returns the response.
pub(crate) fn answer(endpoint: &Endpoint, params: &Params, request_id: &str) -> Response<Body> {
    match caller_identity(endpoint, params, request_id) {
        Ok(xml) => respond(StatusCode::OK, xml),
        Err(refusal) => refuse(&refusal, NAMESPACE, request_id),
    }
}

fn caller_identity(
    endpoint: &Endpoint,
    params: &Params,
    request_id: &str,
) -> Result<Vec<u8>, Refusal> {
    let action = params.root().text("Action").unwrap_or_default();
    admit(endpoint, "sts", action)?;
    if action != "GetCallerIdentity" {
        return Err(Refusal::new(
            "InvalidAction",
            format!("Could not find operation {action} for version {VERSION}"),
        ));
    }
    params.complete()?;
    let account = &endpoint.settings().account_id;
    Ok(Xml::document(
        "GetCallerIdentityResponse",
        Some(NAMESPACE),
        |xml| {
            xml.node("GetCallerIdentityResult", |xml| {
                xml.leaf("Arn", endpoint.caller());
                xml.leaf("UserId", "AIDAMULLIONEXAMPLE00");
                xml.leaf("Account", account);
            });
            metadata(xml, request_id);
        },
    ))
}
