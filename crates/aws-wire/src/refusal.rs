//! Why a request is refused: status, code and message, before a service writes them in its own form.

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
    /// A request that is wrong.
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

    /// A value that a parameter cannot have.
    pub(crate) fn value(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterValue", message)
    }

    /// A parameter that has to be there.
    pub(crate) fn missing(name: &str) -> Self {
        Self::new(
            "MissingParameter",
            format!("The request must contain the parameter {name}"),
        )
    }

    /// Too many calls of EC2's.
    pub(crate) fn too_many() -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::with(status, "RequestLimitExceeded", "Request limit exceeded.")
    }

    /// An error whose text begins with EC2's code.
    fn from_text(text: &str) -> Self {
        let (code, message) = text.split_once(": ").unwrap_or(("InternalError", text));
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
                // The last option is what EC2 tells of.
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
