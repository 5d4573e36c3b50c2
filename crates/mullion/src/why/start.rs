//! Says why a pod that is bound to a node does not run or is not ready: what its status says of its containers and conditions, and what its
//! events say.
//!
//! Kubelets write the reasons of single containers into the status, those of volumes and of the sandbox into events only.

mod text;

use std::collections::BTreeSet;

use mullion_api::labels;
use serde::Serialize;
use serde_json::Value;

use super::readiness::{Gate, Readiness, Unready};
use crate::input::list;
pub(super) use text::words;

/// The number of events that are kept, the last ones.
const MOST_EVENTS: usize = 3;
/// The waiting reasons of containers whose turn has not come: those of the pod, or of init containers before them, say more.
const NO_TURN: [&str; 2] = ["PodInitializing", "ContainerCreating"];
/// The states of a container.
const WAITING: &str = "waiting";
pub(super) const RUNNING: &str = "running";
const TERMINATED: &str = "terminated";

/// The reasons of failed pods that their kubelet refused because the node is of another operating system or has other labels than they ask for.
const OF_ANOTHER_NODE: [&str; 3] = [
    "NodeAffinity",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
];

/// What is said of a bound pod that does not run, is not ready, or has failed as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Start {
    /// The pod's UID, by which its events are known.
    #[serde(skip)]
    uid: String,
    phase: String,
    /// When the pod was started, or became not ready since, as RFC 3339 has it; empty if nothing says so.
    #[serde(skip)]
    since: String,
    /// Whether a container runs that is not an init container.
    #[serde(skip)]
    some_run: bool,
    /// How many init containers there are, and how many of them are done; `None` for a pod without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    init_containers: Option<Progress>,
    /// Why the pod as a whole has failed, as its kubelet refused or evicted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<Condition>,
    /// The containers that wait, and init containers that have not ended well.
    containers: Vec<Container>,
    /// The containers that run and are not ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unready: Vec<Unready>,
    /// The readiness gates whose condition is not true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gates: Vec<Gate>,
    /// The conditions about the pod's start that are not true.
    conditions: Vec<Condition>,
    /// Whether the pod requests an address as a Windows pod and has none yet.
    #[serde(skip_serializing_if = "is_false")]
    awaits_address: bool,
    /// The last warnings about the pod as a whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<Event>,
}

/// The number of init containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Progress {
    done: usize,
    all: usize,
}

/// A container that does not run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    #[serde(skip_serializing_if = "is_false")]
    init: bool,
    /// `waiting`, `running` or `terminated`.
    state: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    /// The exit code of the last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_exit_code: Option<i64>,
}

/// A condition of the pod that is not true.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
}

/// A warning about a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Event {
    #[serde(skip)]
    uid: String,
    /// When it was last recorded, as RFC 3339 has it.
    last: String,
    reason: String,
    message: String,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Returns a text, which is empty if the value is none.
pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the namespace and the name of the pod that an Event warns about, and the warning; `None` for other Events. Warnings about a single
/// container are left out, because the pod's status says the same, but for those about probes.
pub(super) fn warning(event: &Value) -> Option<((String, String), Event)> {
    let about = &event["involvedObject"];
    let of_whole = about["fieldPath"].as_str().is_none_or(str::is_empty);
    let is_of_pod = about["kind"] == "Pod" && (of_whole || event["reason"] == "Unhealthy");
    // A pod that is bound has been scheduled, whatever went wrong before.
    if event["type"] != "Warning" || !is_of_pod || event["reason"] == "FailedScheduling" {
        return None;
    }
    let warning = Event {
        uid: text(&about["uid"]),
        last: last_recorded(event).to_owned(),
        reason: text(&event["reason"]),
        message: text(&event["message"]).trim_end().to_owned(),
    };
    Some(((text(&about["namespace"]), text(&about["name"])), warning))
}

/// Returns when a running pod became not ready, or when a pod was started; empty if its status does not say.
fn since(status: &Value) -> String {
    let ready = list(&status["conditions"]).find(|own| own["type"] == "Ready");
    let changed = ready.map(|own| text(&own["lastTransitionTime"]));
    let changed = changed.filter(|own| status["phase"] == "Running" && !own.is_empty());
    changed.unwrap_or_else(|| text(&status["startTime"]))
}

/// Returns when an Event was last recorded, as RFC 3339 has it; empty if it does not say.
pub(super) fn last_recorded(event: &Value) -> &str {
    let times = [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["eventTime"],
        &event["metadata"]["creationTimestamp"],
    ];
    let last = times.into_iter().find_map(Value::as_str);
    last.unwrap_or_default()
}

impl Start {
    /// Reads the status of a pod; `None` for a pod without a node, one that is ready and one that has finished by itself.
    pub(super) fn of(pod: &Value) -> Option<Self> {
        let (spec, status) = (&pod["spec"], &pod["status"]);
        let phase = text(&status["phase"]);
        let is_bound = spec["nodeName"]
            .as_str()
            .is_some_and(|node| !node.is_empty());
        if !is_bound || phase == "Succeeded" {
            return None;
        }
        if phase == "Failed" {
            // Where containers have failed, the pod has no reason of its own.
            let reason = text(&status["reason"]);
            let message = if reason.is_empty() {
                ended_badly(status)?
            } else {
                text(&status["message"])
            };
            return Some(Start {
                uid: text(&pod["metadata"]["uid"]),
                phase,
                failed: Some(Condition {
                    kind: "Failed".to_owned(),
                    reason,
                    message,
                }),
                ..Start::default()
            });
        }
        let inits = init_containers(spec, status);
        let apps = list(&status["containerStatuses"]).filter_map(|own| waiting(own, false));
        let apps: Vec<_> = apps.collect();
        let is_leaving = !pod["metadata"]["deletionTimestamp"].is_null();
        let readiness = if phase == "Running" && !is_leaving {
            Readiness::of(spec, status)
        } else {
            Readiness::default()
        };
        if phase != "Pending" && apps.is_empty() && readiness.is_ready() {
            return None;
        }
        let Readiness {
            unready,
            gates,
            ready,
        } = readiness;
        let is_gate = |own: &Condition| gates.iter().any(|gate| gate.condition_type == own.kind);
        let mut conditions = conditions(status);
        conditions.retain(|own| !is_gate(own));
        // The summary is said where nothing else says more.
        if apps.is_empty() && unready.is_empty() && gates.is_empty() {
            conditions.extend(ready);
        }
        // While init containers are not done, the others wait for their turn.
        let progress = inits.as_ref().map(|(progress, _)| *progress);
        let is_initialized = progress.is_none_or(|own| own.done == own.all);
        let has_turn = |own: &Container| is_initialized || !NO_TURN.contains(&own.reason.as_str());
        let containers = inits.into_iter().flat_map(|(_, containers)| containers);
        Some(Start {
            uid: text(&pod["metadata"]["uid"]),
            phase,
            since: since(status),
            some_run: list(&status["containerStatuses"])
                .any(|own| own["state"][RUNNING].is_object()),
            init_containers: progress,
            containers: containers
                .chain(apps.into_iter().filter(has_turn))
                .collect(),
            conditions,
            unready,
            gates,
            failed: None,
            awaits_address: awaits_address(pod),
            events: Vec::new(),
        })
    }

    /// Adds the last of the warnings about the pod. Those about an earlier pod of its name do not count.
    pub(super) fn with_events<'e>(mut self, all: impl Iterator<Item = &'e Event>) -> Self {
        let is_own =
            |own: &&Event| own.uid == self.uid || own.uid.is_empty() || self.uid.is_empty();
        let mut own: Vec<&Event> = all.filter(is_own).collect();
        own.sort_by(|a, b| b.last.cmp(&a.last));
        let mut known = BTreeSet::new();
        own.retain(|event| known.insert((&event.reason, without_ids(&event.message))));
        own.truncate(MOST_EVENTS);
        self.events = own.into_iter().cloned().collect();
        self
    }

    /// Returns when the pod was started, or became not ready since, as RFC 3339 has it; empty if nothing says so.
    pub(super) fn since(&self) -> &str {
        &self.since
    }

    /// Returns whether a container waits for another reason than that it is being created.
    pub(super) fn has_fault(&self) -> bool {
        let mut waiting = self.containers.iter().filter(|own| own.state == WAITING);
        waiting.any(|own| !own.reason.is_empty() && !NO_TURN.contains(&own.reason.as_str()))
    }

    /// Returns whether the pod has no sandbox, which is not made before it has an address.
    pub(super) fn lacks_sandbox(&self) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.any(|own| own.kind == "PodReadyToStartContainers")
    }

    /// Returns whether another pod does not run for the same cause. Messages are not compared, because they name the pod and count its tries.
    pub(super) fn has_same_cause(&self, other: &Self) -> bool {
        let containers = |own: &Self| -> Vec<(String, &'static str, String)> {
            let all = own.containers.iter();
            all.map(|own| (own.name.clone(), own.state, own.reason.clone()))
                .collect()
        };
        let kinds = |own: &Self| -> Vec<(String, String)> {
            let all = own.conditions.iter().chain(&own.failed);
            all.map(|own| (own.kind.clone(), own.reason.clone()))
                .collect()
        };
        // Events come and go in any order.
        let events = |own: &Self| -> BTreeSet<String> {
            own.events.iter().map(|own| own.reason.clone()).collect()
        };
        (&self.phase, self.init_containers, self.awaits_address)
            == (&other.phase, other.init_containers, other.awaits_address)
            && (&self.unready, &self.gates) == (&other.unready, &other.gates)
            && (containers(self), kinds(self), events(self))
                == (containers(other), kinds(other), events(other))
    }

    /// Returns whether the pod may have the wrong node for its images: a container of it does not run, or its kubelet refused it for that.
    pub(super) fn may_have_the_wrong_node(&self) -> bool {
        match &self.failed {
            Some(failed) => OF_ANOTHER_NODE.contains(&failed.reason.as_str()),
            None => !self.some_run || !self.containers.is_empty(),
        }
    }
}

/// Returns a message without the quoted names in it that differ each time, such as that of a sandbox.
fn without_ids(message: &str) -> String {
    const SHORTEST_ID: usize = 32;
    let is_id = |word: &&str| {
        word.len() >= SHORTEST_ID && word.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let words = message.split('"').filter(|word| !is_id(word));
    words.collect()
}

/// Returns a container that waits, from its status.
fn waiting(status: &Value, init: bool) -> Option<Container> {
    let waiting = &status["state"]["waiting"];
    waiting.is_object().then(|| Container {
        name: text(&status["name"]),
        init,
        state: WAITING,
        reason: text(&waiting["reason"]),
        message: text(&waiting["message"]),
        last_exit_code: status["lastState"]["terminated"]["exitCode"].as_i64(),
    })
}

/// Returns which containers of a failed pod ended with which exit codes other than 0; `None` if none did.
fn ended_badly(status: &Value) -> Option<String> {
    let statuses = ["initContainerStatuses", "containerStatuses"];
    let all = statuses.into_iter().flat_map(|own| list(&status[own]));
    let ended = all.filter_map(|own| {
        let end = &own["state"][TERMINATED];
        let code = end["exitCode"].as_i64().filter(|code| *code != 0)?;
        let why = words([&text(&end["reason"]), &text(&end["message"])]);
        Some(format!(
            "container {} ended with exit code {code}{why}",
            text(&own["name"])
        ))
    });
    let ended: Vec<_> = ended.collect();
    (!ended.is_empty()).then(|| ended.join("; "))
}

/// Returns how far the init containers are, and the first of them that is not done; `None` for a pod without any. Sidecars count as done once
/// they have started.
fn init_containers(spec: &Value, status: &Value) -> Option<(Progress, Option<Container>)> {
    let all = list(&spec["initContainers"]).count();
    if all == 0 {
        return None;
    }
    let is_sidecar = |name: &Value| {
        list(&spec["initContainers"])
            .any(|own| own["name"] == *name && own["restartPolicy"] == "Always")
    };
    let is_done = |own: &&Value| {
        if is_sidecar(&own["name"]) {
            own["started"] == true
        } else {
            own["state"]["terminated"]["exitCode"] == 0
        }
    };
    let statuses = || list(&status["initContainerStatuses"]);
    let done = statuses().filter(is_done).count();
    let open = statuses().find(|own| !is_done(own)).map(|own| {
        let ended = &own["state"]["terminated"];
        waiting(own, true).unwrap_or_else(|| Container {
            name: text(&own["name"]),
            init: true,
            state: if ended.is_object() {
                TERMINATED
            } else {
                RUNNING
            },
            reason: text(&ended["reason"]),
            message: text(&ended["message"]),
            last_exit_code: ended["exitCode"]
                .as_i64()
                .or(own["lastState"]["terminated"]["exitCode"].as_i64()),
        })
    });
    Some((Progress { done, all }, open))
}

/// Returns the conditions about a pod's start that are not true. `Ready` and `ContainersReady` only repeat what the containers say.
fn conditions(status: &Value) -> Vec<Condition> {
    let all = list(&status["conditions"]);
    let wrong = all.filter(|own| {
        let kind = own["type"].as_str().unwrap_or_default();
        own["status"] == "False"
            && !matches!(kind, "Ready" | "ContainersReady" | "PodResizeInProgress")
    });
    let read = wrong.map(|own| Condition {
        kind: text(&own["type"]),
        reason: text(&own["reason"]),
        message: text(&own["message"]),
    });
    read.collect()
}

/// Returns whether a pod requests an address as a Windows pod and has none.
fn awaits_address(pod: &Value) -> bool {
    has_network(pod) && requests_address(pod) && address(pod).is_none()
}

/// Returns the annotation that gives a Windows pod its address.
pub(crate) fn address(pod: &Value) -> Option<&str> {
    pod["metadata"]["annotations"][labels::PRIVATE_IPV4].as_str()
}

/// Returns whether a container of a pod requests an address, as EKS's webhook has Windows pods do.
pub(crate) fn requests_address(pod: &Value) -> bool {
    let asks = |own: &Value| !own["resources"]["requests"][labels::PRIVATE_IPV4].is_null();
    list(&pod["spec"]["containers"]).any(asks)
}

/// Returns whether a pod has a network of its own, so that it needs an address.
pub(crate) fn has_network(pod: &Value) -> bool {
    pod["spec"]["hostNetwork"] != true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: Value, status: Value) -> Value {
        let mut pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "1"}, "spec": spec, "status": status});
        pod["spec"]["nodeName"] = json!("n0");
        pod
    }

    fn said(pod: &Value) -> Vec<String> {
        let said = |start: Start| [vec![start.summary()], start.reasons()].concat();
        Start::of(pod).map_or_else(Vec::new, said)
    }

    #[test]
    fn containers_that_wait_say_why_and_share_a_sentence() {
        let waits = |name: &str, reason: &str, message: &str| json!({"name": name, "state": {"waiting": {"reason": reason, "message": message}}});
        let status = json!({"phase": "Pending", "containerStatuses": [
            waits("a", "CreateContainerConfigError", "configmap \"c\" not found"),
            waits("b", "ContainerCreating", ""),
            waits("c", "ContainerCreating", ""),
            {"name": "d", "state": {"running": {}}},
        ], "conditions": [
            {"type": "PodReadyToStartContainers", "status": "True"},
            {"type": "Ready", "status": "False"},
        ]});
        assert_eq!(
            said(&pod(json!({}), status)),
            [
                "It does not run",
                "container a waits: CreateContainerConfigError: configmap \"c\" not found",
                "containers b, c wait: ContainerCreating",
            ]
        );
    }

    #[test]
    fn a_pod_of_which_a_part_runs_is_not_said_not_to_run() {
        let back_off = json!({"name": "b", "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
        let a = |state: &str| json!({"name": "a", "state": {state: {}}});
        let of = |a: Value| json!({"phase": "Running", "containerStatuses": [a, back_off]});
        let waits = "container b waits: CrashLoopBackOff";
        let some = said(&pod(json!({}), of(a("running"))));
        assert_eq!(some, ["Not all of its containers run", waits]);
        let none = said(&pod(json!({}), of(a("terminated"))));
        assert_eq!(none, ["It does not run", waits]);
    }

    #[test]
    fn init_containers_come_first_and_say_how_far_they_are() {
        let spec = json!({"initContainers": [
            {"name": "proxy", "restartPolicy": "Always"}, {"name": "setup"}, {"name": "late"},
        ]});
        let status = |setup: Value| {
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "proxy", "started": true, "state": {"running": {}}},
                {"name": "setup", "state": setup},
                {"name": "late", "state": {"waiting": {"reason": "PodInitializing"}}},
            ], "containerStatuses": [{"name": "web", "state": {"waiting": {"reason": "PodInitializing"}}}]})
        };
        let first = "It does not run yet: 1 of its 3 init containers is done";
        assert_eq!(
            said(&pod(spec.clone(), status(json!({"running": {}})))),
            [first, "container setup runs"]
        );
        let failed = json!({"terminated": {"exitCode": 2, "reason": "Error"}});
        assert_eq!(
            said(&pod(spec, status(failed))),
            [first, "container setup ended with exit code 2: Error"]
        );
    }

    #[test]
    fn a_pod_that_runs_has_finished_or_has_no_node_says_nothing() {
        let running = json!({"phase": "Running", "containerStatuses": [{"name": "a", "state": {"running": {}}}]});
        assert_eq!(said(&pod(json!({}), running)), [""; 0]);
        assert_eq!(said(&pod(json!({}), json!({}))), [""; 0]);
        assert_eq!(said(&pod(json!({}), json!({"phase": "Failed"}))), [""; 0]);
        let ended = json!({"phase": "Failed", "containerStatuses": [
            {"name": "a", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}},
            {"name": "b", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
        ]});
        let why =
            "It has failed and is not started again: container a ended with exit code 3: Error";
        assert_eq!(said(&pod(json!({}), ended)), [why]);
        let unbound = json!({"spec": {}, "status": {"phase": "Pending"}});
        assert_eq!(said(&unbound), [""; 0]);
    }

    #[test]
    fn a_pod_that_runs_and_is_not_ready_names_its_probes_and_gates() {
        let spec = json!({
            "readinessGates": [{"conditionType": "a.example/one"}, {"conditionType": "a.example/two"}],
            "containers": [
                {"name": "a", "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}}},
                {"name": "b", "readinessProbe": {"tcpSocket": {"port": "web"}}, "startupProbe": {"exec": {"command": ["up", "-q"]}}},
                {"name": "c"}, {"name": "d"},
            ],
        });
        let runs = |name: &str, ready: bool| json!({"name": name, "ready": ready, "started": name != "b", "state": {"running": {}}});
        let status = json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
            {"type": "ContainersReady", "status": "False"},
            {"type": "a.example/two", "status": "False", "message": "no target"},
        ], "containerStatuses": [runs("a", false), runs("b", false), runs("c", true), runs("d", false)]});
        assert_eq!(
            said(&pod(spec, status)),
            [
                "It runs and is not ready",
                "container a runs and is not ready: its readiness probe (HTTP GET /healthz on port 8080) has not succeeded",
                "container b runs and is not ready: its startup probe (up -q) has not succeeded",
                "container d runs and is not ready",
                "readiness gate a.example/one: nobody has set its condition",
                "readiness gate a.example/two: its condition is False: no target",
            ]
        );
        // Of pods whose kubelet is lost, kube-controller-manager sets the condition alone.
        let lost =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]});
        assert_eq!(
            said(&pod(json!({}), lost)),
            ["It runs and is not ready", "condition Ready is False"]
        );
    }

    #[test]
    fn a_sidecar_that_starts_again_keeps_no_pod_from_running() {
        let spec = json!({"initContainers": [{"name": "proxy", "restartPolicy": "Always"}]});
        let status = json!({"phase": "Running", "initContainerStatuses": [
            {"name": "proxy", "started": false, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        ], "containerStatuses": [{"name": "web", "ready": true, "state": {"running": {}}}],
        "conditions": [{"type": "Ready", "status": "False"}]});
        let said = said(&pod(spec, status));
        assert_eq!(said[0], "Not all of its containers run");
        assert!(
            said[1].contains("proxy waits: CrashLoopBackOff"),
            "{said:?}"
        );
    }

    #[test]
    fn a_pod_whose_containers_all_run_has_the_right_node() {
        let of = |container: Value| {
            let status = json!({"phase": "Running", "containerStatuses": [container]});
            let start = Start::of(&pod(json!({}), status));
            start.map(|start| start.may_have_the_wrong_node())
        };
        let unready = json!({"name": "a", "ready": false, "state": {"running": {}}});
        assert_eq!(of(unready), Some(false));
        let waits = json!({"name": "a", "state": {"waiting": {"reason": "ImagePullBackOff"}}});
        assert_eq!(of(waits), Some(true));
    }

    #[test]
    fn a_pod_that_its_kubelet_refused_says_so() {
        let status = json!({"phase": "Failed", "reason": "PodOSSelectorNodeLabelDoesNotMatch", "message": "Failed to admit pod"});
        let refused = pod(json!({"os": {"name": "windows"}}), status);
        let why = "It has failed and is not started again: PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod";
        assert_eq!(said(&refused), [why]);
        let advice = Start::of(&refused).and_then(|start| start.advice());
        assert!(
            advice.is_some_and(|own| own.starts_with("Its node is none that it asks for")),
            "{advice:?}"
        );
    }

    #[test]
    fn events_about_the_pod_say_what_its_status_does_not() {
        let event = |uid: &str, last: &str, message: &str| {
            json!({
                "type": "Warning", "reason": "FailedMount", "message": message, "lastTimestamp": last,
                "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web", "uid": uid},
            })
        };
        let mut of_container = event("1", "2026-01-01T00:00:09Z", "Error: ImagePullBackOff");
        of_container["involvedObject"]["fieldPath"] = json!("spec.containers{a}");
        assert_eq!(warning(&of_container), None);
        let id = "0123456789abcdef0123456789abcdef";
        let all = [
            event("1", "2026-01-01T00:00:02Z", "no secret"),
            event("1", "2026-01-01T00:00:03Z", "no secret"),
            event("1", "2026-01-01T00:00:04Z", &format!("sandbox \"{id}\"")),
            event("1", "2026-01-01T00:00:05Z", &format!("sandbox \"{id}0\"")),
            event("2", "2026-01-01T00:00:06Z", "of an earlier pod"),
        ];
        let all: Vec<_> = all.iter().filter_map(warning).collect();
        assert_eq!(all[0].0, ("shop".to_owned(), "web".to_owned()));
        let start = Start::of(&pod(json!({}), json!({"phase": "Pending"}))).expect("it waits");
        let start = start.with_events(all.iter().map(|(_, event)| event));
        assert_eq!(
            start.reasons(),
            [
                format!("event: FailedMount: sandbox \"{id}0\""),
                "event: FailedMount: no secret".to_owned(),
            ]
        );
    }

    #[test]
    fn a_windows_pod_without_its_address_says_so() {
        let spec = json!({"containers": [{"name": "a", "resources": {"requests": {labels::PRIVATE_IPV4: "1"}}}]});
        let mut pod = pod(
            spec,
            json!({"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}]}),
        );
        let none =
            "it has no address yet: the annotation vpc.amazonaws.com/PrivateIPv4Address is missing";
        let sandbox = "condition PodReadyToStartContainers is False";
        assert_eq!(said(&pod), ["It does not run", none, sandbox]);
        let start = Start::of(&pod).expect("it waits");
        let advice = start.advice().expect("what to do");
        assert!(advice.contains("DOC14"), "{advice}");
        pod["metadata"]["annotations"] = json!({labels::PRIVATE_IPV4: "10.0.0.9/24"});
        assert_eq!(said(&pod), ["It does not run", sandbox]);
    }
}
