//! What every controller is given: the client, the clock, the shared informers, and the way to stop.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::Client;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Clock, Informers, Recorder, events::EventSink};

/// Shared surroundings of all controllers of a process. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The only way to the Kubernetes API.
    pub client: Client,
    /// Stamps objects; follows tokio's time.
    pub clock: Clock,
    /// One watch per kind, started on first use.
    pub informers: Arc<Informers>,
    /// Cancelled when the process stops.
    pub shutdown: CancellationToken,
    /// Every task of a controller, so that stopping can wait for them.
    pub tasks: TaskTracker,
    events: EventSink,
}

impl Context {
    /// A context over `client`. Must be called within a tokio runtime (it starts the event writer).
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
            events,
        }
    }

    /// A recorder whose events name `component` as their source.
    pub fn recorder(&self, component: &str) -> Recorder {
        self.events.recorder(component, None)
    }

    /// A recorder for a component on a node, as the kubelet is.
    pub fn recorder_on(&self, component: &str, host: &str) -> Recorder {
        self.events.recorder(component, Some(host))
    }

    /// The present moment in whole seconds, as `metav1.Time` keeps it.
    pub fn now(&self) -> Time {
        Time(whole_seconds(self.clock.now()))
    }

    /// The present moment in microseconds.
    pub fn now_micro(&self) -> MicroTime {
        MicroTime(self.clock.now())
    }

    /// Cancels every task and waits until they have ended.
    pub async fn stop(&self) {
        self.shutdown.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// `at` without its fraction of a second.
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
