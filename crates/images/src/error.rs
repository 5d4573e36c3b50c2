//! The error of a request to a registry.

use std::{net::IpAddr, time::Duration};

use thiserror::Error;

/// Why a registry gave no answer about an image.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AskError {
    /// The host has no address.
    #[error("{host} has no address: {why}")]
    Unresolved {
        /// The host.
        host: String,
        /// The resolver's error.
        why: String,
    },
    /// The host resolves to an address that no registry has, so it is not contacted.
    #[error("{host} leads to {address}, which is not asked: {why}")]
    Refused {
        /// The host.
        host: String,
        /// Its address.
        address: IpAddr,
        /// The kind of address.
        why: &'static str,
    },
    /// The connection failed.
    #[error("{host} cannot be reached: {why}")]
    Unreachable {
        /// The host.
        host: String,
        /// The connection's error.
        why: String,
    },
    /// The registry did not answer in time.
    #[error("{host} did not answer within {} ms", patience.as_millis())]
    TimedOut {
        /// The host.
        host: String,
        /// The time limit.
        patience: Duration,
    },
    /// The credentials do not suffice, or none were sent.
    #[error("{host} wants other credentials for this image")]
    Unauthorized {
        /// The host.
        host: String,
    },
    /// The image does not exist.
    #[error("{host} has no such image")]
    NotFound {
        /// The host.
        host: String,
    },
    /// The registry limits the rate of requests (status 429).
    #[error("{host} asks to be left alone for {} s", retry_after.as_secs())]
    TooMany {
        /// The host.
        host: String,
        /// How long to wait before the next request.
        retry_after: Duration,
    },
    /// The response is longer than the limit.
    #[error("the answer of {host} is longer than {limit} bytes")]
    TooLong {
        /// The host.
        host: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The response was redirected too often.
    #[error("{host} redirects more than {limit} times")]
    Redirects {
        /// The host.
        host: String,
        /// The limit of redirects.
        limit: usize,
    },
    /// The response is unexpected in another way.
    #[error("{host} answers {what}")]
    Unexpected {
        /// The host.
        host: String,
        /// A description of the response.
        what: String,
    },
    /// Too many images are being requested already.
    #[error("too many images are being asked for already")]
    Busy,
}

impl AskError {
    /// Returns whether the error is a definite answer, which makes earlier answers about the image invalid.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            AskError::Unauthorized { .. } | AskError::NotFound { .. }
        )
    }
}
