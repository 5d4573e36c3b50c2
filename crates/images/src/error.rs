//! Why a registry gave no answer.

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
        /// What the resolver says.
        why: String,
    },
    /// The host has an address that no registry has.
    #[error("{host} leads to {address}, which is not asked: {why}")]
    Refused {
        /// The host.
        host: String,
        /// Its address.
        address: IpAddr,
        /// What kind of address it is.
        why: &'static str,
    },
    /// There is no connection.
    #[error("{host} cannot be reached: {why}")]
    Unreachable {
        /// The host.
        host: String,
        /// What the connection says.
        why: String,
    },
    /// It took longer than a registry is waited for.
    #[error("{host} did not answer within {} ms", patience.as_millis())]
    TimedOut {
        /// The host.
        host: String,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The credentials do not suffice, or there are none.
    #[error("{host} wants other credentials for this image")]
    Unauthorized {
        /// The host.
        host: String,
    },
    /// There is no such image.
    #[error("{host} has no such image")]
    NotFound {
        /// The host.
        host: String,
    },
    /// The registry wants fewer requests.
    #[error("{host} asks to be left alone for {} s", retry_after.as_secs())]
    TooMany {
        /// The host.
        host: String,
        /// For how long.
        retry_after: Duration,
    },
    /// The answer is longer than any manifest.
    #[error("the answer of {host} is longer than {limit} bytes")]
    TooLong {
        /// The host.
        host: String,
        /// The limit.
        limit: usize,
    },
    /// It leads from one place to the next.
    #[error("{host} redirects more than {limit} times")]
    Redirects {
        /// The host.
        host: String,
        /// The limit.
        limit: usize,
    },
    /// Anything else.
    #[error("{host} answers {what}")]
    Unexpected {
        /// The host.
        host: String,
        /// What it answers.
        what: String,
    },
    /// Too many images are being asked for already.
    #[error("too many images are being asked for already")]
    Busy,
}

impl AskError {
    /// Whether the registry has answered for good: what was known of the image before holds no longer.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            AskError::Unauthorized { .. } | AskError::NotFound { .. }
        )
    }
}
