//! The source of `metrics.k8s.io`: the simulated kubelets measure the usage of pods and nodes.
//!
//! The API server is created before the controllers, so there are no metrics until [`SimulatedMetrics::serve`] sets their source.

use std::sync::{Arc, OnceLock};

use kube::ResourceExt;
use mullion_apiserver::provided::{Column, ObjectQuery, ObjectSource, Provided, Tagged, Wire};
use mullion_controllers::{kubelet::usage::Meter, metrics};
use mullion_engine::model::Quantity;
use serde_json::{Value, json};

/// The metrics of a simulated cluster. Clones are cheap and share the metrics.
#[derive(Clone, Default)]
pub(super) struct SimulatedMetrics {
    meter: Arc<OnceLock<Meter>>,
}

/// The metrics of pods, as a kind that the API server serves; the next struct has those of nodes.
struct Pods(SimulatedMetrics);
struct Nodes(SimulatedMetrics);

const COLUMNS: &[Column] = &[
    column("Name", "name"),
    column("cpu", "quantity"),
    column("memory", "quantity"),
    column("Window", "duration"),
];

const USAGE: Wire = Wire::Map(&Wire::Quantity);
const CONTAINER: Wire = Wire::Fields(&[("name", 1, Wire::Text), ("usage", 2, USAGE)]);
/// The messages of metrics-server (k8s.io/metrics/pkg/apis/metrics/v1beta1).
const NODE: &[Tagged] = &[
    ("timestamp", 2, Wire::Time),
    ("window", 3, Wire::Duration),
    ("usage", 4, USAGE),
];
const POD: &[Tagged] = &[
    ("timestamp", 2, Wire::Time),
    ("window", 3, Wire::Duration),
    ("containers", 4, Wire::List(&CONTAINER)),
];

const fn column(name: &'static str, format: &'static str) -> Column {
    Column {
        name,
        cell_type: "string",
        format,
        priority: 0,
    }
}

impl SimulatedMetrics {
    /// Sets the source of the metrics.
    pub(super) fn serve(&self, meter: Meter) {
        // This is called once for each cluster, so setting cannot fail.
        let _ = self.meter.set(meter);
    }

    /// Returns the kinds for the API server to serve.
    pub(super) fn provided(&self) -> Vec<Provided> {
        let usage = json!({"type": "object", "additionalProperties": {
            "description": "An amount, as in 250m or 300Mi.",
            "anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true,
        }});
        let container = json!({
            "description": "What one container uses.", "type": "object", "required": ["name", "usage"],
            "properties": {"name": {"type": "string", "description": "The container's name."}, "usage": usage},
        });
        let schema = |description: &str, field: &str, what: Value| {
            json!({
                "description": description, "type": "object", "required": ["timestamp", "window", field],
                "properties": {
                    "timestamp": {"type": "string", "format": "date-time", "description": "The end of the time of measuring."},
                    "window": {"type": "string", "description": "How long usage was measured, as in 15s."},
                    field: what,
                },
            })
        };
        let provided = |kind, plural, namespaced, schema, message, source| Provided {
            group: metrics::GROUP,
            version: metrics::VERSION,
            kind,
            plural,
            namespaced,
            schema,
            message,
            columns: COLUMNS,
            source,
        };
        vec![
            provided(
                "NodeMetrics",
                "nodes",
                false,
                schema("What a node uses.", "usage", usage.clone()),
                NODE,
                Arc::new(Nodes(self.clone())) as Arc<dyn ObjectSource>,
            ),
            provided(
                "PodMetrics",
                "pods",
                true,
                schema(
                    "What the containers of a pod use.",
                    "containers",
                    json!({"type": "array", "items": container}),
                ),
                POD,
                Arc::new(Pods(self.clone())),
            ),
        ]
    }
}

impl ObjectSource for Pods {
    fn list(&self, wanted: &ObjectQuery<'_>) -> Vec<Value> {
        let meter = self.0.meter.get();
        let found = meter.map(|meter| {
            meter.pods(wanted.namespace(), |pod| {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                wanted.takes(namespace, name, Some(pod.labels()))
            })
        });
        found.into_iter().flatten().filter_map(value).collect()
    }

    fn cells(&self, object: &Value) -> Vec<Value> {
        let containers = object["containers"].as_array();
        let total = |resource: &str| {
            let amounts = containers.into_iter().flatten();
            amounts
                .filter_map(|container| container["usage"][resource].as_str()?.parse().ok())
                .fold(Quantity::default(), Quantity::saturating_add)
        };
        let (cpu, memory) = (total("cpu").milli_value(), total("memory").value());
        cells(object, &format!("{cpu}m"), &format!("{}Ki", memory / 1024))
    }
}

impl ObjectSource for Nodes {
    fn list(&self, wanted: &ObjectQuery<'_>) -> Vec<Value> {
        let meter = self.0.meter.get();
        let found = meter.map(|meter| {
            meter.nodes(|node| {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                wanted.takes("", name, Some(node.labels()))
            })
        });
        found.into_iter().flatten().filter_map(value).collect()
    }

    fn cells(&self, object: &Value) -> Vec<Value> {
        let used = |resource: &str| object["usage"][resource].as_str().unwrap_or_default();
        cells(object, used("cpu"), used("memory"))
    }
}

fn cells(object: &Value, cpu: &str, memory: &str) -> Vec<Value> {
    let [name, window] = [&object["metadata"]["name"], &object["window"]];
    vec![name.clone(), cpu.into(), memory.into(), window.clone()]
}

/// Serializes a struct of strings, which never fails.
fn value(object: impl serde::Serialize) -> Option<Value> {
    serde_json::to_value(object).ok()
}
