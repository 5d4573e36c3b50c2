//! The decision log: JSON lines in Karpenter's format about what its controllers did and why.
//!
//! Invariant: the log is bounded; the oldest lines are dropped first. Lines are kept in memory and served as the log of the
//! pods labelled `app.kubernetes.io/name=karpenter`. A follower continues at a cursor and misses no line that is still kept.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use crate::Clock;

/// The default number of lines that are kept.
pub const DEFAULT_LINES: usize = 10_000;

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When it was written.
    pub at: Timestamp,
    /// One JSON object without a line break.
    pub text: Arc<str>,
}

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Details for debugging.
    Debug,
    /// An action that was taken.
    Info,
    /// An action that failed.
    Error,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Error => "ERROR",
        }
    }
}

/// A bounded log in memory. Clones share one log.
#[derive(Clone)]
pub struct DecisionLog {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    capacity: usize,
    lines: Mutex<LogBuffer>,
    written: watch::Sender<u64>,
}

/// The lines that are kept in memory.
#[derive(Default)]
struct LogBuffer {
    kept: VecDeque<Line>,
    /// The number of the first kept line; lines are numbered from 1.
    first: u64,
    reconciles: u64,
}

impl fmt::Debug for DecisionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionLog")
            .field("lines", &self.lines().kept.len())
            .finish_non_exhaustive()
    }
}

impl DecisionLog {
    /// Creates an empty log that keeps `capacity` lines.
    pub fn new(clock: Clock, capacity: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                clock,
                // With no line kept, the number of the last line would be below that of the first.
                capacity: capacity.max(1),
                lines: Mutex::new(LogBuffer {
                    first: 1,
                    ..LogBuffer::default()
                }),
                written: watch::Sender::new(0),
            }),
        }
    }

    /// Returns the kept lines after `cursor`, and the cursor for the next call. The first cursor is 0.
    pub fn since(&self, cursor: u64) -> (Vec<Line>, u64) {
        let lines = self.lines();
        let skip = cursor.saturating_add(1).saturating_sub(lines.first);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let newer = lines.kept.iter().skip(skip).cloned().collect();
        (newer, lines.first + lines.kept.len() as u64 - 1)
    }

    /// Returns a watch of the last line's number, which changes whenever a line is written.
    pub fn written(&self) -> watch::Receiver<u64> {
        self.shared.written.subscribe()
    }

    /// Starts the entries of one reconciliation that is about no particular object.
    pub fn reconciliation(&self, controller: &'static str) -> Reconciliation {
        self.begin(controller, None)
    }

    /// Starts the entries of one reconciliation of an object, given by API group, kind and name.
    pub fn reconciliation_of(
        &self,
        controller: &'static str,
        (group, kind): (&'static str, &'static str),
        name: &str,
    ) -> Reconciliation {
        let subject = Subject {
            group,
            kind,
            name: name.to_owned(),
        };
        self.begin(controller, Some(subject))
    }

    fn begin(&self, controller: &'static str, subject: Option<Subject>) -> Reconciliation {
        let mut lines = self.lines();
        lines.reconciles += 1;
        Reconciliation {
            log: self.clone(),
            controller,
            subject,
            reconcile_id: reconcile_id(lines.reconciles),
            fields: Vec::new(),
        }
    }

    fn push(&self, text: String, at: Timestamp) {
        let last = {
            let mut lines = self.lines();
            lines.kept.push_back(Line {
                at,
                text: text.into(),
            });
            if lines.kept.len() > self.shared.capacity {
                lines.kept.pop_front();
                lines.first += 1;
            }
            // The number is taken under the lock, but sent after it is released: a woken reader
            // locks the lines at once.
            lines.first + lines.kept.len() as u64 - 1
        };
        self.shared.written.send_replace(last);
    }

    fn lines(&self) -> MutexGuard<'_, LogBuffer> {
        self.shared
            .lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Debug)]
struct Subject {
    group: &'static str,
    kind: &'static str,
    name: String,
}

/// One reconciliation of a controller; its entries share a reconcile id.
#[derive(Clone, Debug)]
pub struct Reconciliation {
    log: DecisionLog,
    controller: &'static str,
    subject: Option<Subject>,
    reconcile_id: String,
    fields: Vec<(&'static str, Value)>,
}

impl Reconciliation {
    /// Adds a field to all further entries.
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((key, value.into()));
        self
    }

    /// Adds a reference to an object to all further entries, in the form `"Node":{"name":"..."}`.
    pub fn with_ref(self, kind: &'static str, name: &str) -> Self {
        self.with(kind, serde_json::json!({ "name": name }))
    }

    /// Writes an entry at level INFO.
    pub fn info(&self, message: &str) {
        self.write(Level::Info, message);
    }

    /// Writes an entry at level DEBUG.
    pub fn debug(&self, message: &str) {
        self.write(Level::Debug, message);
    }

    /// Writes an entry at level ERROR with the error's text.
    pub fn error(&self, message: &str, error: &dyn fmt::Display) {
        let failed = self.clone().with("error", error.to_string());
        failed.write(Level::Error, message);
    }

    /// Writes an entry at level ERROR without an error value.
    pub fn problem(&self, message: &str) {
        self.write(Level::Error, message);
    }

    fn write(&self, level: Level, message: &str) {
        let at = self.log.shared.clock.now();
        let mut line = ObjectWriter::default();
        line.field("level", &level.as_str().into());
        line.field("time", &format!("{at:.3}").into());
        line.field("logger", &"controller".into());
        line.field("message", &message.into());
        line.field("commit", &env!("CARGO_PKG_VERSION").into());
        line.field("controller", &self.controller.into());
        if let Some(Subject { group, kind, name }) = &self.subject {
            line.field("controllerGroup", &(*group).into());
            line.field("controllerKind", &(*kind).into());
            line.field(kind, &serde_json::json!({ "name": name }));
        }
        let name = self.subject.as_ref().map_or("", |subject| &subject.name);
        line.field("namespace", &"".into());
        line.field("name", &name.into());
        line.field("reconcileID", &self.reconcile_id.as_str().into());
        for (key, value) in &self.fields {
            line.field(key, value);
        }
        self.log.push(line.finish(), at);
    }
}

/// Writes a JSON object whose fields keep the order in which they are added, as readers of Karpenter's logs expect.
#[derive(Default)]
struct ObjectWriter {
    text: String,
}

impl ObjectWriter {
    fn field(&mut self, key: &str, value: &Value) {
        self.text.push(if self.text.is_empty() { '{' } else { ',' });
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{}:{value}", Value::from(key));
    }

    fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

/// Returns an id in the form of a UUID, derived from a counter instead of random numbers so that runs are reproducible.
fn reconcile_id(count: u64) -> String {
    let hash = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let other = hash.rotate_left(32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        hash >> 32,
        (hash >> 16) & 0xffff,
        hash & 0xfff,
        other >> 52,
        other & 0xffff_ffff_ffff
    )
}

/// Joins the first `shown` items of a list, in Karpenter's form: `a, b and 3 other(s)`.
pub fn abbreviated(items: &[impl AsRef<str>], shown: usize) -> String {
    let head: Vec<_> = items.iter().take(shown).map(AsRef::as_ref).collect();
    let mut text = head.join(", ");
    if items.len() > shown {
        let _ = write!(text, " and {} other(s)", items.len() - shown);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(capacity: usize) -> DecisionLog {
        let epoch = "2024-09-10T15:21:13.076Z".parse().expect("a time");
        DecisionLog::new(Clock::starting_at(epoch), capacity)
    }

    #[tokio::test(start_paused = true)]
    async fn lines_have_karpenters_fields_in_karpenters_order() {
        let log = log(10);
        log.reconciliation_of(
            "nodeclaim.lifecycle",
            ("karpenter.sh", "NodeClaim"),
            "default-wgbwq",
        )
        .with_ref("Node", "ip-10-0-55-209.us-east-2.compute.internal")
        .info("registered nodeclaim");
        let (lines, _) = log.since(0);
        let version = env!("CARGO_PKG_VERSION");
        let id = reconcile_id(1);
        let expected = format!(
            r#"{{"level":"INFO","time":"2024-09-10T15:21:13.076Z","logger":"controller","message":"registered nodeclaim","commit":"{version}","controller":"nodeclaim.lifecycle","controllerGroup":"karpenter.sh","controllerKind":"NodeClaim","NodeClaim":{{"name":"default-wgbwq"}},"namespace":"","name":"default-wgbwq","reconcileID":"{id}","Node":{{"name":"ip-10-0-55-209.us-east-2.compute.internal"}}}}"#
        );
        assert_eq!(&*lines[0].text, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_lines_go_first_and_a_cursor_reads_on() {
        let log = log(2);
        let pass = log.reconciliation("provisioner");
        pass.info("a");
        let (first, cursor) = log.since(0);
        assert_eq!(first.len(), 1);
        assert_eq!(log.since(cursor).0.len(), 0);
        for message in ["b", "c", "d"] {
            pass.info(message);
        }
        let (rest, cursor) = log.since(cursor);
        assert_eq!(rest.len(), 2, "b is gone");
        assert!(rest[0].text.contains(r#""message":"c""#));
        assert_eq!(cursor, *log.written().borrow());
    }

    #[test]
    fn long_lists_are_cut_off() {
        assert_eq!(abbreviated(&["a", "b"], 5), "a, b");
        assert_eq!(abbreviated(&["a", "b", "c"], 1), "a and 2 other(s)");
    }
}
