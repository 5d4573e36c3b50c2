//! The number of files that the process may open: every connection to the API server is one.
//!
//! Shells start programs with a soft limit of 1,024 or less, which every process may raise to the hard limit.

use mullion_apiserver::{ConnectionLimits, Limits};

/// Raises the limit as far as possible, and returns it.
#[cfg(unix)]
pub(crate) fn raise() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    /// The limit that macOS accepts if it has no hard limit (OPEN_MAX).
    const SURELY: u64 = 10_240;
    let limit = getrlimit(Resource::Nofile);
    let wanted = [limit.maximum, Some(SURELY)];
    for current in wanted {
        let is_more = current.is_none_or(|wanted| limit.current.is_some_and(|now| now < wanted));
        let raised = Rlimit { current, ..limit };
        if is_more && setrlimit(Resource::Nofile, raised).is_ok() {
            break;
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the largest number, because Windows has no such limit.
#[cfg(not(unix))]
pub(crate) fn raise() -> u64 {
    u64::MAX
}

/// Returns the limits of an API server in this process.
pub(crate) fn server_limits() -> Limits {
    Limits {
        connections: ConnectionLimits::default().within_open_files(raise()),
        ..Limits::default()
    }
}
