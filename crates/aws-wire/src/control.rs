//! Lets other processes inject faults: `POST /mullion/faults` with JSON, for tests in other languages.
//!
//! Invariant: an invalid request changes nothing.

use std::{collections::BTreeMap, fmt, num::NonZeroU32};

use axum::{
    body::Body,
    http::{Method, Response, StatusCode},
};
use mullion_api::fault::{FaultKind, UnknownFault};
use mullion_cloud::sim::{
    AddressFaults, CapacityPattern, Fault, ParseFaultsError, ParsePatternError, RefusedFault,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Endpoint, json::respond};

/// The path; no service of AWS has it.
pub(crate) const PATH: &str = "/mullion/faults";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Change {
    /// The actions to deny from now on, such as `ec2:CreateFleet`.
    deny: Vec<String>,
    /// The actions to allow again.
    allow: Vec<String>,
    /// The number of next calls to throttle, by action.
    throttle: BTreeMap<String, u32>,
    /// The allowed calls per second, by action; `null` removes the limit.
    rate: BTreeMap<String, Option<NonZeroU32>>,
    /// The offerings that are sold out from now on, such as `m5.large/us-west-2a/spot`.
    exhaust: Vec<String>,
    /// The offerings that are available again.
    replenish: Vec<String>,
    /// The faults of calls about addresses, such as `throttle=10%,lag=5s`.
    addresses: Option<String>,
    /// Faults to cause.
    cause: Vec<Named>,
    /// Faults to end.
    heal: Vec<Named>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Named {
    /// The name of the fault in `mullion fault`, such as `spot-interruption`.
    fault: String,
    /// The target of the fault.
    target: String,
}

/// The reason why a request changes nothing.
#[derive(Debug)]
enum ControlError {
    /// The request has another method than POST.
    Method(Method),
    /// The body is not JSON of its type.
    Body(serde_json::Error),
    /// An offering is malformed.
    Pattern(ParsePatternError),
    /// The faults of calls about addresses are malformed.
    Addresses(ParseFaultsError),
    /// A fault is unknown.
    Fault(UnknownFault),
    /// A fault has no such target.
    Target(RefusedFault),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Method(method) => write!(f, "{PATH} takes POST, not {method}"),
            ControlError::Body(error) => write!(f, "{error}"),
            ControlError::Pattern(error) => write!(f, "{error}"),
            ControlError::Addresses(error) => write!(f, "{error}"),
            ControlError::Fault(error) => write!(f, "{error}"),
            ControlError::Target(error) => write!(f, "{error}"),
        }
    }
}

/// Handles a request.
pub(crate) fn answer(
    endpoint: &Endpoint,
    method: &Method,
    body: &[u8],
    request_id: &str,
) -> Response<Body> {
    let done = if *method == Method::POST {
        apply(endpoint, body)
    } else {
        Err(ControlError::Method(method.clone()))
    };
    let (status, value) = match done {
        Ok(done) => (StatusCode::OK, json!({ "done": done })),
        Err(why) => (
            StatusCode::BAD_REQUEST,
            json!({ "message": why.to_string() }),
        ),
    };
    respond(status, "application/json", &value, request_id)
}

fn apply(endpoint: &Endpoint, body: &[u8]) -> Result<Vec<Value>, ControlError> {
    // Everything is parsed and looked up before the first fault changes.
    let change: Change = serde_json::from_slice(body).map_err(ControlError::Body)?;
    let patterns = |texts: &[String]| {
        let read = |text: &String| text.parse::<CapacityPattern>();
        let all: Result<Vec<_>, _> = texts.iter().map(read).collect();
        all.map_err(ControlError::Pattern)
    };
    let (exhaust, replenish) = (patterns(&change.exhaust)?, patterns(&change.replenish)?);
    let addresses = change.addresses.as_deref().map(str::parse::<AddressFaults>);
    let addresses = addresses.transpose().map_err(ControlError::Addresses)?;
    let ec2 = endpoint.ec2();
    let found = |named: &[Named]| {
        let find = |named: &Named| -> Result<Fault, ControlError> {
            let kind: FaultKind = named.fault.parse().map_err(ControlError::Fault)?;
            ec2.fault(kind, &named.target).map_err(ControlError::Target)
        };
        named.iter().map(find).collect::<Result<Vec<_>, _>>()
    };
    let (cause, heal) = (found(&change.cause)?, found(&change.heal)?);
    let faults = endpoint.faults();
    change.deny.iter().for_each(|action| faults.deny(action));
    change.allow.iter().for_each(|action| faults.allow(action));
    for (action, calls) in &change.throttle {
        faults.throttle(action, *calls);
    }
    for (action, calls) in &change.rate {
        faults.limit(action, *calls);
    }
    exhaust.into_iter().for_each(|pattern| ec2.exhaust(pattern));
    replenish.iter().for_each(|pattern| ec2.replenish(pattern));
    if let Some(addresses) = addresses {
        ec2.set_address_faults(addresses);
    }
    let caused = cause.iter().map(|fault| ec2.cause(fault));
    let mut done: Vec<Value> = caused.map(Value::from).collect();
    done.extend(heal.iter().map(|fault| Value::from(ec2.heal(fault))));
    Ok(done)
}
