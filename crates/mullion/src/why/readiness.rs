//! Says what keeps a running pod from being ready: probes of its containers that have not succeeded, and readiness gates.
//!
//! What keeps a pod from running is said by [`super::start`], which also has the words about both.

use serde::Serialize;
use serde_json::Value;

use super::start::{Condition, RUNNING, text, words};
use crate::input::list;

/// A container that runs and is not ready.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Unready {
    name: String,
    /// The probe that has not succeeded, as in `readiness probe (HTTP GET /healthz on port 8080)`; `None` if the container has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<String>,
}

/// A readiness gate of the pod that keeps it from being ready.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Gate {
    pub(super) condition_type: String,
    /// The status of the condition; `None` if nobody has set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

impl Unready {
    /// Returns what keeps the container from being ready, as a sentence without a full stop.
    pub(super) fn sentence(&self) -> String {
        let name = &self.name;
        match &self.probe {
            Some(probe) => {
                format!("container {name} runs and is not ready: its {probe} has not succeeded")
            }
            None => format!("container {name} runs and is not ready"),
        }
    }
}

impl Gate {
    /// Returns what is said of the gate's condition, as a sentence without a full stop.
    pub(super) fn sentence(&self) -> String {
        let gate = &self.condition_type;
        let why = words([&self.reason, &self.message]);
        match &self.status {
            Some(status) => format!("readiness gate {gate}: its condition is {status}{why}"),
            None => format!("readiness gate {gate}: nobody has set its condition"),
        }
    }
}

/// How far a running pod is from being ready.
#[derive(Default)]
pub(super) struct Readiness {
    pub(super) unready: Vec<Unready>,
    pub(super) gates: Vec<Gate>,
    /// The condition Ready, if it is False.
    pub(super) ready: Option<Condition>,
}

impl Readiness {
    /// Reads the spec and the status of a pod.
    pub(super) fn of(spec: &Value, status: &Value) -> Self {
        let mut unready = Vec::new();
        for (specs, statuses) in [
            ("initContainers", "initContainerStatuses"),
            ("containers", "containerStatuses"),
        ] {
            for own in list(&status[statuses]) {
                let is_unready = own["state"][RUNNING].is_object() && own["ready"] == false;
                let spec = list(&spec[specs]).find(|spec| spec["name"] == own["name"]);
                // Of init containers, sidecars alone are asked whether they are ready.
                let counts = specs == "containers"
                    || spec.is_some_and(|spec| spec["restartPolicy"] == "Always");
                if is_unready && counts {
                    unready.push(Unready {
                        name: text(&own["name"]),
                        probe: spec.and_then(|spec| open_probe(spec, own)),
                    });
                }
            }
        }
        let condition = |kind: &Value| list(&status["conditions"]).find(|own| own["type"] == *kind);
        let gates = list(&spec["readinessGates"]).filter_map(|gate| {
            let kind = &gate["conditionType"];
            let condition = condition(kind);
            let is_true = condition.is_some_and(|own| own["status"] == "True");
            (!is_true).then(|| Gate {
                condition_type: text(kind),
                status: condition.map(|own| text(&own["status"])),
                reason: condition.map_or_else(String::new, |own| text(&own["reason"])),
                message: condition.map_or_else(String::new, |own| text(&own["message"])),
            })
        });
        let ready = condition(&Value::from("Ready")).filter(|own| own["status"] == "False");
        Readiness {
            unready,
            gates: gates.collect(),
            ready: ready.map(|own| Condition {
                kind: "Ready".to_owned(),
                reason: text(&own["reason"]),
                message: text(&own["message"]),
            }),
        }
    }

    /// Returns whether nothing keeps the pod from being ready.
    pub(super) fn is_ready(&self) -> bool {
        self.unready.is_empty() && self.gates.is_empty() && self.ready.is_none()
    }
}

/// Returns the probe that keeps a running container from being ready.
fn open_probe(spec: &Value, status: &Value) -> Option<String> {
    // Until the startup probe has succeeded, no other probe is tried.
    let is_starting = spec["startupProbe"].is_object() && status["started"] == false;
    let (name, probe) = if is_starting {
        ("startup", &spec["startupProbe"])
    } else {
        ("readiness", &spec["readinessProbe"])
    };
    let port = |port: &Value| match port {
        Value::String(name) => name.clone(),
        other => other.to_string(),
    };
    let command = |command: &Value| {
        let words = list(command).filter_map(Value::as_str);
        words.collect::<Vec<_>>().join(" ")
    };
    let asks = match probe {
        Value::Object(own) if own.contains_key("httpGet") => {
            let get = &probe["httpGet"];
            let path = get["path"].as_str().unwrap_or("/");
            format!("HTTP GET {path} on port {}", port(&get["port"]))
        }
        Value::Object(own) if own.contains_key("tcpSocket") => {
            format!("TCP port {}", port(&probe["tcpSocket"]["port"]))
        }
        Value::Object(own) if own.contains_key("grpc") => {
            format!("gRPC on port {}", port(&probe["grpc"]["port"]))
        }
        Value::Object(own) if own.contains_key("exec") => command(&probe["exec"]["command"]),
        Value::Object(_) => return Some(format!("{name} probe")),
        _ => return None,
    };
    Some(format!("{name} probe ({asks})"))
}
