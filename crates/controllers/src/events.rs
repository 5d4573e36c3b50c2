//! Records events, which `kubectl describe` and `kubectl events` show.
//!
//! A [`Recorder`] never blocks and never fails: events go through a bounded queue to one writer, which counts
//! repetitions instead of storing them ([`correlator`], with client-go's rules: a source may write 25 events about
//! one object, and then one in five minutes). When the queue is full, events are dropped and counted by source. The
//! log reports when dropping begins, and the counts when the writer has caught up. Nothing may depend on events.

mod correlator;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSeries, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time},
};
use kube::{
    Client, Resource,
    api::{Patch, PatchParams, PostParams},
    core::Request,
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Clock, context::whole_seconds, discarded_response};
use correlator::{COMBINED, Correlator, Verdict};

/// The most events that wait for the writer; more are dropped. This is enough for all events of 2,500 pods that
/// start at once.
const QUEUE: usize = 16_384;
/// The number of events that may be written at once before [`PER_SECOND`] applies.
const BURST: f64 = 1000.0;
/// The number of events written per second in the long run, so that a storm of events leaves the API server
/// capacity.
const PER_SECOND: f64 = 500.0;

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// A normal operation.
    Normal,
    /// A problem that a user may want to examine.
    Warning,
}

impl EventType {
    /// Returns the type as the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// One occurrence of an event, before counting.
#[derive(Clone, Debug)]
struct Occurrence {
    source: Source,
    object: ObjectReference,
    related: Option<ObjectReference>,
    kind: EventType,
    reason: String,
    /// Set by components that use the events.k8s.io form, such as the scheduler.
    action: Option<&'static str>,
    message: String,
    at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Source {
    component: Arc<str>,
    host: Option<Arc<str>>,
}

/// Records events for one component. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    source: Source,
    clock: Clock,
    queue: mpsc::Sender<Occurrence>,
    dropped: Arc<Dropped>,
}

impl Recorder {
    /// Records a `Normal` event about `object`.
    pub fn normal<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.record(
            object.object_ref(&()),
            EventType::Normal,
            reason,
            message.into(),
        );
    }

    /// Records a `Warning` event about `object`.
    pub fn warning<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.record(
            object.object_ref(&()),
            EventType::Warning,
            reason,
            message.into(),
        );
    }

    /// Records an event about the object that `object` refers to, with `field_path` for a container.
    pub fn record(&self, object: ObjectReference, kind: EventType, reason: &str, message: String) {
        self.send(object, None, kind, reason, None, message);
    }

    /// Records an event in the form of `events.k8s.io/v1`, as the scheduler does: with the attempted action, a
    /// related object, and microsecond time.
    pub fn record_action(
        &self,
        object: ObjectReference,
        related: Option<ObjectReference>,
        kind: EventType,
        reason: &str,
        action: &'static str,
        message: String,
    ) {
        self.send(object, related, kind, reason, Some(action), message);
    }

    fn send(
        &self,
        mut object: ObjectReference,
        related: Option<ObjectReference>,
        kind: EventType,
        reason: &str,
        action: Option<&'static str>,
        message: String,
    ) {
        // The object's version is of no use to readers, and would make equal events differ.
        object.resource_version = None;
        let source = self.source.clone();
        let at = self.clock.now();
        let occurrence = Occurrence {
            source,
            object,
            related,
            kind,
            reason: reason.to_owned(),
            action,
            message,
            at,
        };
        // The queue is closed only when the process stops, and then the event is not needed.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(occurrence) {
            self.dropped.add(&self.source.component);
        }
    }
}

/// The sender side of the event writer, which creates recorders.
#[derive(Clone, Debug)]
pub(crate) struct EventSink {
    clock: Clock,
    queue: mpsc::Sender<Occurrence>,
    dropped: Arc<Dropped>,
}

impl EventSink {
    pub(crate) fn start(
        client: Client,
        clock: Clock,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Self {
        let (queue, mut occurrences) = mpsc::channel(QUEUE);
        let shutdown = shutdown.clone();
        let dropped = Arc::new(Dropped::default());
        let reported = Arc::clone(&dropped);
        tasks.spawn(async move {
            let mut writer = Writer {
                client,
                correlator: Correlator::default(),
                last_name: AtomicI64::new(0),
            };
            let mut pace = Pace::new();
            let write_all = async {
                while let Some(occurrence) = occurrences.recv().await {
                    // Only requests cost tokens: an event that is merely counted or suppressed must not slow
                    // the others.
                    if writer.write(occurrence).await {
                        pace.spend().await;
                    }
                    // Reported when the queue is drained, so that a storm of events logs two lines instead of
                    // thousands.
                    if occurrences.is_empty() {
                        reported.report();
                    }
                }
            };
            shutdown.run_until_cancelled(write_all).await;
        });
        Self {
            clock,
            queue,
            dropped,
        }
    }

    pub(crate) fn recorder(&self, component: &str, host: Option<&str>) -> Recorder {
        let source = Source {
            component: component.into(),
            host: host.map(Into::into),
        };
        Recorder {
            source,
            clock: self.clock.clone(),
            queue: self.queue.clone(),
            dropped: Arc::clone(&self.dropped),
        }
    }
}

/// The number of events dropped since the queue was last empty, by the component that recorded them.
#[derive(Debug, Default)]
struct Dropped(Mutex<BTreeMap<Arc<str>, u64>>);

impl Dropped {
    /// Counts a dropped event, and logs the first one.
    fn add(&self, component: &Arc<str>) {
        let mut counts = self.lock();
        if counts.is_empty() {
            tracing::info!("more events than can be written; some are dropped");
        }
        *counts.entry(Arc::clone(component)).or_default() += 1;
    }

    /// Logs and resets the counts, if there are any. Returns them.
    fn report(&self) -> BTreeMap<Arc<str>, u64> {
        let counts = std::mem::take(&mut *self.lock());
        if !counts.is_empty() {
            let count: u64 = counts.values().sum();
            tracing::info!(count, by_source = ?counts, "events were dropped");
        }
        counts
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A token bucket on tokio's time.
struct Pace {
    tokens: f64,
    at: Instant,
}

impl Pace {
    fn new() -> Self {
        Self {
            tokens: BURST,
            at: Instant::now(),
        }
    }

    /// Takes a token, and waits for it if there is none.
    async fn spend(&mut self) {
        let now = Instant::now();
        self.tokens = (self.tokens + (now - self.at).as_secs_f64() * PER_SECOND).min(BURST) - 1.0;
        self.at = now;
        if self.tokens < 0.0 {
            sleep(Duration::from_secs_f64(-self.tokens / PER_SECOND)).await;
        }
    }
}

struct Writer {
    client: Client,
    correlator: Correlator,
    last_name: AtomicI64,
}

impl Writer {
    /// Writes or counts an event. Returns whether a request was sent.
    async fn write(&mut self, occurrence: Occurrence) -> bool {
        let namespace = occurrence
            .object
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let collection = Event::url_path(&(), Some(&namespace));
        let fresh_name = self.fresh_name(&occurrence);
        let outcome = match self.correlator.judge(&occurrence, fresh_name) {
            Verdict::Suppressed => return false,
            Verdict::First { name, message } => {
                let new = event(&occurrence, &namespace, name, message, 1);
                self.create(&collection, &new).await
            }
            Verdict::Repeated {
                name,
                message,
                count,
            } => {
                // The two forms of an event count repetitions in different fields.
                let patch = if occurrence.action.is_some() {
                    json!({"series": EventSeries {
                        count: Some(count),
                        last_observed_time: Some(MicroTime(occurrence.at)),
                    }})
                } else {
                    let last = Time(whole_seconds(occurrence.at));
                    json!({"count": count, "lastTimestamp": last, "message": message})
                };
                let patch = Patch::Merge(patch);
                let patch =
                    Request::new(&*collection).patch(&name, &PatchParams::default(), &patch);
                match discarded_response::send(&self.client, patch).await {
                    // The event expired or was deleted with its namespace, so a new one is written.
                    Err(kube::Error::Api(status)) if status.code == 404 => {
                        let new = event(&occurrence, &namespace, name, message, count);
                        self.create(&collection, &new).await
                    }
                    outcome => outcome,
                }
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(reason = occurrence.reason, %error, "event not written");
        }
        true
    }

    async fn create(&self, collection: &str, event: &Event) -> Result<(), kube::Error> {
        let body = serde_json::to_vec(event).map_err(kube::Error::SerdeError)?;
        let request = Request::new(collection).create(&PostParams::default(), body);
        discarded_response::send(&self.client, request).await
    }

    /// Returns `<object>.<hexadecimal nanoseconds>`, which is unique even if the clock stands still.
    fn fresh_name(&self, occurrence: &Occurrence) -> String {
        let nanos = i64::try_from(occurrence.at.as_nanosecond()).unwrap_or(i64::MAX);
        let unique = nanos.max(self.last_name.load(Ordering::Relaxed) + 1);
        self.last_name.store(unique, Ordering::Relaxed);
        format!(
            "{}.{unique:x}",
            occurrence.object.name.as_deref().unwrap_or_default()
        )
    }
}

fn event(
    occurrence: &Occurrence,
    namespace: &str,
    name: String,
    message: String,
    count: i32,
) -> Event {
    let Occurrence {
        source,
        object,
        related,
        kind,
        reason,
        action,
        at,
        ..
    } = occurrence;
    let host = source.host.as_deref().map(str::to_owned);
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        ..ObjectMeta::default()
    };
    // client-go creates combined events without these two fields.
    let is_combined = message.starts_with(COMBINED);
    let plain = Event {
        metadata,
        involved_object: object.clone(),
        related: related.clone(),
        reason: Some(reason.clone()),
        message: Some(message),
        type_: Some(kind.as_str().to_owned()),
        reporting_component: (!is_combined).then(|| source.component.to_string()),
        reporting_instance: host.clone().filter(|_| !is_combined),
        ..Event::default()
    };
    match action {
        Some(action) => Event {
            action: Some((*action).to_owned()),
            event_time: Some(MicroTime(*at)),
            reporting_instance: Some(host.unwrap_or_else(|| source.component.to_string())),
            ..plain
        },
        None => {
            let time = Some(Time(whole_seconds(*at)));
            let source = EventSource {
                component: Some(source.component.to_string()),
                host,
            };
            let (first_timestamp, last_timestamp) = (time.clone(), time);
            Event {
                source: Some(source),
                first_timestamp,
                last_timestamp,
                count: Some(count),
                ..plain
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_written_at_once_and_a_storm_at_a_steady_pace() {
        let mut pace = Pace::new();
        let start = Instant::now();
        for _ in 0..1000 {
            pace.spend().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..1000 {
            pace.spend().await;
        }
        assert_eq!(start.elapsed().as_secs_f64().round(), 2.0);
        tokio::time::advance(Duration::from_secs(60)).await;
        let later = Instant::now();
        for _ in 0..1000 {
            pace.spend().await;
        }
        assert_eq!(
            later.elapsed(),
            Duration::ZERO,
            "a quiet time earns a new burst"
        );
    }

    #[test]
    fn what_finds_the_queue_full_is_dropped_and_counted_by_source_and_nothing_else() {
        let (queue, mut occurrences) = mpsc::channel(2);
        let dropped = Arc::new(Dropped::default());
        let recorder = Recorder {
            source: Source {
                component: "test".into(),
                host: None,
            },
            clock: Clock::starting_at(Timestamp::UNIX_EPOCH),
            queue,
            dropped: Arc::clone(&dropped),
        };
        let record = |reason: &str| {
            recorder.record(
                ObjectReference::default(),
                EventType::Normal,
                reason,
                String::new(),
            );
        };
        for reason in ["first", "second", "third", "fourth"] {
            record(reason);
        }
        assert_eq!(dropped.report(), [("test".into(), 2)].into());
        assert_eq!(dropped.report(), BTreeMap::new(), "told once");
        let mut kept = Vec::new();
        while let Ok(occurrence) = occurrences.try_recv() {
            kept.push(occurrence.reason);
        }
        assert_eq!(kept, ["first", "second"]);
        drop(occurrences);
        record("late");
        assert_eq!(
            dropped.report(),
            BTreeMap::new(),
            "a process that stops drops nothing worth telling"
        );
    }
}
