//! The resources that every controller gets: the client, the clock, the shared informers, the tracer, and the signal to stop.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::Client;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Clock, Informers, Recorder, events::EventSink, traces::Tracer};

/// The shared resources of all controllers of a process. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The only access to the Kubernetes API.
    pub client: Client,
    /// The clock for timestamps; it follows tokio's time.
    pub clock: Clock,
    /// The shared informers: one watch per kind, started on first use.
    pub informers: Arc<Informers>,
    /// Cancelled when the process stops.
    pub shutdown: CancellationToken,
    /// Tracks every task of a controller, so that stopping can wait for them.
    pub tasks: TaskTracker,
    /// Records traces of decisions; off by default.
    pub traces: Tracer,
    events: EventSink,
}

impl Context {
    /// Creates a context over `client`. Must be called within a tokio runtime, because it starts the event writer.
    pub fn new(client: Client, clock: Clock) -> Self {
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        let informers = Arc::new(Informers::new(&client, &tasks, &shutdown));
        let events = EventSink::start(client.clone(), clock.clone(), &tasks, &shutdown);
        Self {
            client,
            clock,
            informers,
            shutdown,
            tasks,
            traces: Tracer::default(),
            events,
        }
    }

    /// Returns the context with a tracer.
    pub fn with_traces(self, traces: Tracer) -> Self {
        Self { traces, ..self }
    }

    /// Returns a recorder whose events have `component` as their source.
    pub fn recorder(&self, component: &str) -> Recorder {
        self.events.recorder(component, None)
    }

    /// Returns a recorder for a component on a node, such as the kubelet.
    pub fn recorder_on(&self, component: &str, host: &str) -> Recorder {
        self.events.recorder(component, Some(host))
    }

    /// Returns the present time in whole seconds, as `metav1.Time` stores it.
    pub fn now(&self) -> Time {
        Time(whole_seconds(self.clock.now()))
    }

    /// Returns the present time in microseconds.
    pub fn now_micro(&self) -> MicroTime {
        MicroTime(self.clock.now())
    }

    /// Cancels every task and waits until all of them have ended.
    pub async fn stop(&self) {
        self.shutdown.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Returns `at` without its fraction of a second.
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
