//! `metrics.k8s.io` as a test reads it off: every running container of an app uses what the test says.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
};

use jiff::SignedDuration;
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use kube::ResourceExt;
use mullion_apiserver::provided::{ObjectQuery, ObjectSource, Provided};
use mullion_controllers::{
    Clock, Context, Informer,
    metrics::{self, ContainerMetrics, PodMetrics},
    pods,
};
use serde_json::{Value, json};

/// How long usage is measured.
const WINDOW: SignedDuration = SignedDuration::from_secs(10);

/// Cheap to clone; all clones show the same.
#[derive(Clone, Default)]
pub(crate) struct Gauges(Arc<Inner>);

#[derive(Default)]
struct Inner {
    cluster: OnceLock<(Informer<Pod>, Clock)>,
    load: Mutex<BTreeMap<String, Load>>,
}

/// What the pods of an app use.
#[derive(Clone, Copy)]
enum Load {
    Each { cpu_milli: i64, memory_bytes: i64 },
    Together { cpu_milli: i64 },
}

impl Gauges {
    /// Every container of `app` uses that much.
    pub(crate) fn each(&self, app: &str, cpu_milli: i64, memory_bytes: i64) {
        let load = Load::Each {
            cpu_milli,
            memory_bytes,
        };
        self.load().insert(app.to_owned(), load);
    }

    /// The pods of `app` share that much of the CPU.
    pub(crate) fn together(&self, app: &str, cpu_milli: i64) {
        self.load()
            .insert(app.to_owned(), Load::Together { cpu_milli });
    }

    pub(crate) fn serve(&self, context: &Context) {
        let cluster = (context.informers.pods.clone(), context.clock.clone());
        assert!(self.0.cluster.set(cluster).is_ok(), "served once");
    }

    pub(crate) fn provided(&self) -> Provided {
        Provided {
            group: metrics::GROUP,
            version: metrics::VERSION,
            kind: "PodMetrics",
            plural: "pods",
            namespaced: true,
            schema: json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            message: &[],
            columns: &[],
            source: Arc::new(self.clone()),
        }
    }

    fn load(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Load>> {
        self.0.load.lock().expect("not poisoned")
    }
}

impl ObjectSource for Gauges {
    fn list(&self, wanted: &ObjectQuery<'_>) -> Vec<Value> {
        let Some((all, clock)) = self.0.cluster.get() else {
            return Vec::new();
        };
        let running: Vec<Arc<Pod>> = all
            .list()
            .into_iter()
            .filter(|pod| pods::phase(pod) == "Running")
            .collect();
        let app = |pod: &Pod| pod.labels().get("app").cloned().unwrap_or_default();
        let load = self.load();
        let metrics = |pod: &Arc<Pod>| {
            let app_of = app(pod);
            let (cpu_milli, memory_bytes) = match *load.get(&app_of)? {
                Load::Each {
                    cpu_milli,
                    memory_bytes,
                } => (cpu_milli, memory_bytes),
                Load::Together { cpu_milli } => {
                    let sharers = running.iter().filter(|other| app(other) == app_of);
                    let sharers = i64::try_from(sharers.count()).expect("few");
                    (cpu_milli / sharers, 0)
                }
            };
            let window = std::time::Duration::try_from(WINDOW).expect("positive");
            let mut metrics = PodMetrics::of(pod, Time(clock.now()), window.into());
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            metrics.containers = containers
                .map(|container| ContainerMetrics {
                    name: container.name.clone(),
                    usage: [
                        ("cpu".to_owned(), Quantity(format!("{cpu_milli}m"))),
                        ("memory".to_owned(), Quantity(memory_bytes.to_string())),
                    ]
                    .into(),
                })
                .collect();
            Some(serde_json::to_value(metrics).expect("it serializes"))
        };
        let is_wanted = |pod: &&Arc<Pod>| {
            let namespace = pod.namespace().unwrap_or_default();
            wanted.takes(&namespace, &pod.name_any(), Some(pod.labels()))
        };
        running
            .iter()
            .filter(is_wanted)
            .filter_map(metrics)
            .collect()
    }

    fn cells(&self, _: &Value) -> Vec<Value> {
        Vec::new()
    }
}
