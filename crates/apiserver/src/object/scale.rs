//! The autoscaling/v1 Scale of an object: derived from fields of the object, and written back to them.

use mullion_kinds::SubresourceHandler;
use mullion_kube_text::validation::selector;
use serde_json::{Map, Value, json};

use super::metadata;

/// The object's fields that a Scale is derived from.
#[derive(Clone, Copy)]
pub(crate) struct Paths<'a> {
    pub spec: &'a str,
    pub status: &'a str,
    pub selector: Option<&'a str>,
}

impl<'a> Paths<'a> {
    /// Returns the paths of a Scale's handler, or `None` for another handler.
    pub(crate) fn of(handler: &'a SubresourceHandler) -> Option<Self> {
        let SubresourceHandler::Scale {
            spec_replicas,
            status_replicas,
            selector,
        } = handler
        else {
            return None;
        };
        Some(Paths {
            spec: spec_replicas,
            status: status_replicas,
            selector: selector.as_deref(),
        })
    }
}

/// Returns the object's replica count, if it has one.
pub(crate) fn replicas<'a>(object: &'a Value, paths: &Paths<'_>) -> Option<&'a Value> {
    read(object, paths.spec)
}

/// Sets the object's replica count.
pub(crate) fn set_replicas(object: &mut Value, paths: &Paths<'_>, replicas: i64) {
    write_at(object, paths.spec, replicas.into());
}

/// Derives the Scale of an object.
pub(crate) fn scale_of(object: &Value, paths: &Paths<'_>) -> Value {
    let mut shown = Map::new();
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        metadata::keep(&mut shown, &object["metadata"], field);
    }
    let mut spec = Map::new();
    if let Some(replicas) = replicas(object, paths).filter(|replicas| **replicas != 0) {
        spec.insert("replicas".into(), replicas.clone());
    }
    let mut status = Map::new();
    status.insert(
        "replicas".into(),
        read(object, paths.status)
            .cloned()
            .unwrap_or_else(|| 0.into()),
    );
    let selector = match paths.selector.and_then(|path| read(object, path)) {
        Some(Value::String(text)) => text.clone(),
        // ReplicationControllers have a plain map of labels; the other kinds have a LabelSelector.
        Some(Value::Object(labels)) if labels.values().all(Value::is_string) => {
            let mut pairs: Vec<String> = labels
                .iter()
                .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
                .collect();
            pairs.sort_unstable();
            pairs.join(",")
        }
        Some(structured) => selector::format_label_selector(structured),
        None => String::new(),
    };
    if !selector.is_empty() {
        status.insert("selector".into(), selector.into());
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": shown, "spec": spec, "status": status})
}

fn read<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim_start_matches('.')
        .split('.')
        .try_fold(object, |value, segment| value.get(segment))
}

fn write_at(object: &mut Value, path: &str, value: Value) {
    let mut place = object;
    for segment in path.trim_start_matches('.').split('.') {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[segment];
    }
    *place = value;
}
