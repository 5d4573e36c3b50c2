//! The error response of a request: status, code and message, before each service writes them in the form of its protocol.

use axum::http::StatusCode;
use mullion_cloud::{AddressError, CloudError};

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: String,
    pub(crate) message: String,
}

impl Refusal {
    /// Creates the refusal of a wrong request, with status 400.
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self::with(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn with(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.into(),
        }
    }

    /// Creates the refusal of an invalid value of a parameter.
    pub(crate) fn value(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterValue", message)
    }

    /// Creates the refusal of a request without a required parameter.
    pub(crate) fn missing(name: &str) -> Self {
        Self::new(
            "MissingParameter",
            format!("The request must contain the parameter {name}"),
        )
    }

    /// Creates the refusal with which EC2 throttles calls.
    pub(crate) fn too_many() -> Self {
        // EC2 throttles with status 503; the other services here use 400 or 429.
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::with(status, "RequestLimitExceeded", "Request limit exceeded.")
    }

    /// Creates the refusal for an error whose text begins with EC2's code.
    fn from_text(text: &str) -> Self {
        let (code, message) = text.split_once(": ").unwrap_or(("InternalError", text));
        // EC2 counts missing capacity among the server errors, so that SDKs retry the call.
        let status = match code {
            "InsufficientInstanceCapacity" | "InternalError" => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::with(status, code, message)
    }
}

impl From<CloudError> for Refusal {
    fn from(error: CloudError) -> Self {
        match error {
            CloudError::Throttled => Self::too_many(),
            CloudError::NoAnswer(why) => {
                Self::with(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", why)
            }
            CloudError::InsufficientCapacity(refused) => {
                // EC2's error is about the last option that it tried.
                let last = refused.last().map(ToString::to_string);
                Self::from_text(&last.unwrap_or_default())
            }
            other => Self::from_text(&other.to_string()),
        }
    }
}

impl From<AddressError> for Refusal {
    fn from(error: AddressError) -> Self {
        match error {
            AddressError::Throttled => Self::too_many(),
            AddressError::NoAnswer => Self::with(
                StatusCode::GATEWAY_TIMEOUT,
                "RequestTimeout",
                error.to_string(),
            ),
            other => Self::from_text(&other.to_string()),
        }
    }
}
