//! Where container logs come from: the embedding program provides a [`LogSource`], as the server itself has no logs.

use std::pin::Pin;

use futures::Stream;
use jiff::Timestamp;
use serde_json::Value;

/// A source of container logs, provided by the embedding program.
pub trait LogSource: Send + Sync {
    /// Returns the log of a container, or `None` if the source has none. The pod is bound and the container has started.
    fn read<'a>(&'a self, container: Container<'a>) -> Reading<'a>;
}

/// The future that resolves to a log.
pub type Reading<'a> = Pin<Box<dyn Future<Output = Option<Log>> + Send + 'a>>;

/// The container whose log is requested.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    /// The stored pod.
    pub pod: &'a Value,
    /// The container's name: a regular, init or ephemeral one.
    pub name: &'a str,
    /// Whether the log of the previous run is requested.
    pub previous: bool,
    /// Whether the client also waits for lines that are still to be written.
    pub follow: bool,
}

/// A container's log.
pub struct Log {
    /// The lines written so far, oldest first.
    pub written: Vec<Line>,
    /// The lines still to come, for a client that follows; the stream ends when the container does.
    pub coming: Option<Pin<Box<dyn Stream<Item = Line> + Send>>>,
}

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The time at which the line was written.
    pub time: Timestamp,
    /// The text without its line break.
    pub text: String,
}
