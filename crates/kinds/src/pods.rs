//! Pods: the first status, graceful deletion, immutable fields, and the columns of `kubectl get`.
//!
//! [`podspec`] validates the spec. The columns READY and STATUS follow `pkg/printers/internalversion`.

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    validation::net,
};
use mullion_schema::{
    raw_field::{ParsedParts, RawField},
    tree::Tree,
};
use serde_json::{Value, json};

use super::{
    Check, Column, Kind,
    podspec::{self, defaults::is_restartable_init},
    print,
};
use crate::{FieldSelection, Printing, request::Ctx};

/// The behaviour of core/v1 pods.
pub(super) struct Pods;

const COLUMNS: [Column; 9] = [
    print::NAME,
    print::column("Ready"),
    print::column("Status"),
    print::column("Restarts"),
    print::AGE,
    print::wide("IP"),
    print::wide("Node"),
    print::wide("Nominated Node"),
    print::wide("Readiness Gates"),
];
/// `status.podIPs` is a valid field selector, but its value is always empty: kube-apiserver knows the label and does not set it.
const FIELDS: [&str; 10] = [
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "spec.host",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.nominatedNodeName",
];

/// The parts of a spec that status updates and bindings read.
static RAW_FIELD: RawField = RawField {
    field: "spec",
    parts: ParsedParts {
        whole: &[
            "imagePullSecrets",
            "os",
            "resourceClaims",
            "schedulingGates",
        ],
        lists: &[
            ("containers", &CONTAINER),
            ("ephemeralContainers", &CONTAINER),
            ("initContainers", &CONTAINER),
        ],
    },
};
static CONTAINER: ParsedParts = ParsedParts {
    whole: &["resources", "restartPolicyRules"],
    lists: &[],
};

impl Kind for Pods {
    fn default(&self, object: &mut Value) {
        podspec::defaults::pod(object);
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let warnings = podspec::prepare::creation(object, ctx.now);
        warnings.into_iter().for_each(|warning| ctx.warn(warning));
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, _: &Value) {
        podspec::prepare::drop_disabled(object);
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            podspec::defaults::mirror_service_account(spec);
        }
    }

    fn prepare_status(&self, _: &Ctx<'_>, object: &mut Value, old: &Value) {
        podspec::status::prepare(object, old);
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        podspec::validate_pod(object, errors);
    }

    fn validate_creation(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        podspec::validate_pod_creation(object, errors);
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        podspec::update::validate(object, old, errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        podspec::status::validate(object, old, errors);
    }

    fn raw_field(&self) -> Option<&'static RawField> {
        Some(&RAW_FIELD)
    }

    fn prepare_part(&self, _: &Ctx<'_>, subresource: &str, object: &mut Value, old: &Value) {
        match subresource {
            "ephemeralcontainers" => podspec::update::prepare_ephemeral(object, old),
            "resize" => podspec::prepare_resize(object, old),
            _ => {}
        }
    }

    fn validate_part(
        &self,
        _: &Ctx<'_>,
        subresource: &str,
        object: &Value,
        old: &Value,
        errors: &mut Errors,
    ) {
        match subresource {
            "ephemeralcontainers" => podspec::update::validate_ephemeral(object, old, errors),
            "resize" => podspec::validate_resize(object, old, errors),
            _ => {}
        }
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        if old.is_some() {
            Vec::new()
        } else {
            podspec::warnings::of_pod(object)
        }
    }

    fn status_warnings(&self, object: &Value) -> Vec<String> {
        let (path, mut found) = (Path::new("status"), Vec::new());
        for list in ["podIPs", "hostIPs"] {
            let path = path.child(list);
            for (index, entry) in object["status"].items(list).iter().enumerate() {
                let at = path.index(index);
                found.extend(net::ip_warning(&at.child("ip"), entry.text("ip")));
            }
        }
        found
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }
}

impl Printing for Pods {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let none = Value::Null;
        let (spec, status) = (
            object.get("spec").unwrap_or(&none),
            object.get("status").unwrap_or(&none),
        );
        let summary = Summary::of(object, spec, status);
        let restarts = match &summary.last_restart {
            Some(time) if summary.restarts > 0 => {
                format!("{} ({} ago)", summary.restarts, print::since(time, now))
            }
            _ => summary.restarts.to_string(),
        };
        vec![
            print::name(object),
            format!("{}/{}", summary.ready, summary.containers).into(),
            summary.reason.into(),
            restarts.into(),
            print::age(object, now),
            print::or_none(
                status
                    .items("podIPs")
                    .first()
                    .map_or("", |ip| ip.text("ip")),
            )
            .into(),
            print::or_none(spec.text("nodeName")).into(),
            print::or_none(status.text("nominatedNodeName")).into(),
            print::or_none(&readiness_gates(spec, status)).into(),
        ]
    }

    fn row_conditions(&self, object: &Value) -> Vec<Value> {
        let message = match object["status"].text("phase") {
            "Succeeded" => "The pod has completed successfully.",
            "Failed" => "The pod failed.",
            _ => return Vec::new(),
        };
        vec![
            json!({"type": "Completed", "status": "True", "reason": object["status"]["phase"], "message": message}),
        ]
    }
}

impl FieldSelection for Pods {
    fn selectable_fields(&self) -> &[&'static str] {
        &FIELDS
    }

    fn selectable_value(&self, object: &Value, field: &str) -> String {
        let none = Value::Null;
        let (spec, status) = (
            object.get("spec").unwrap_or(&none),
            object.get("status").unwrap_or(&none),
        );
        match field {
            "spec.hostNetwork" => spec.flag("hostNetwork").to_string(),
            // An old name of the field, which clients still select by.
            "spec.host" => spec.text("nodeName").to_owned(),
            // kube-apiserver's internal type has only the list.
            "status.podIP" => status
                .items("podIPs")
                .first()
                .map_or("", |ip| ip.text("ip"))
                .to_owned(),
            _ => match field.split_once('.') {
                Some(("spec", name)) => spec.text(name).to_owned(),
                Some(("status", name)) => status.text(name).to_owned(),
                _ => String::new(),
            },
        }
    }
}

fn readiness_gates(spec: &Value, status: &Value) -> String {
    let gates = spec.items("readinessGates");
    if gates.is_empty() {
        return String::new();
    }
    let open = gates
        .iter()
        .filter(|gate| condition(status, gate.text("conditionType")) == "True")
        .count();
    format!("{open}/{}", gates.len())
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a str {
    status
        .items("conditions")
        .iter()
        .find(|condition| condition.text("type") == kind)
        .map_or("", |condition| condition.text("status"))
}

/// The facts about a pod's containers that its table row shows.
struct Summary {
    reason: String,
    ready: usize,
    containers: usize,
    restarts: i64,
    last_restart: Option<String>,
}

impl Summary {
    fn of(object: &Value, spec: &Value, status: &Value) -> Summary {
        let phase = status.text("phase");
        let mut reason = match status.text("reason") {
            "" => phase.to_owned(),
            reason => reason.to_owned(),
        };
        if status.items("conditions").iter().any(|condition| {
            condition.text("type") == "PodScheduled"
                && condition.text("reason") == "SchedulingGated"
        }) {
            "SchedulingGated".clone_into(&mut reason);
        }
        // Sidecars run as long as the pod does, so READY counts them.
        let sidecars = spec
            .items("initContainers")
            .iter()
            .filter(|container| is_restartable_init(container))
            .count();
        let mut summary = Summary {
            reason,
            ready: 0,
            containers: spec.items("containers").len() + sidecars,
            restarts: 0,
            last_restart: None,
        };
        let initializing = summary.init_containers(spec, status);
        // Sidecars can restart in an initialized pod, whose other containers then still decide.
        if !initializing || condition(status, "Initialized") == "True" {
            summary.running_containers(spec, status);
        }
        if object["metadata"].has("deletionTimestamp") {
            // Nobody can confirm that the containers of a lost node end, so printPod does not show Terminating.
            if status.text("reason") == "NodeLost" {
                "Unknown".clone_into(&mut summary.reason);
            } else if phase != "Succeeded" && phase != "Failed" {
                "Terminating".clone_into(&mut summary.reason);
            }
        }
        summary
    }

    /// Sets the reason from the first init container that is neither done nor a started sidecar. Returns whether there is such a container.
    fn init_containers(&mut self, spec: &Value, status: &Value) -> bool {
        let all = spec.items("initContainers");
        let sidecar = |name: &str| {
            all.iter()
                .any(|container| container.text("name") == name && is_restartable_init(container))
        };
        let mut waiting = false;
        for (index, container) in status.items("initContainerStatuses").iter().enumerate() {
            self.restarts += container.integer("restartCount").unwrap_or(0);
            self.note_restart(container);
            if waiting {
                continue;
            }
            let state = State::of(container);
            match state {
                State::Terminated { exit_code: 0, .. } => continue,
                _ if sidecar(container.text("name")) && container.flag("started") => {
                    self.ready += usize::from(container.flag("ready"));
                    continue;
                }
                State::Terminated {
                    reason: "",
                    signal,
                    exit_code,
                } => {
                    self.reason = if signal != 0 {
                        format!("Init:Signal:{signal}")
                    } else {
                        format!("Init:ExitCode:{exit_code}")
                    };
                }
                State::Terminated { reason, .. } => self.reason = format!("Init:{reason}"),
                // `PodInitializing` is the reason of each container that waits for its turn; the progress says more.
                State::Waiting(reason) if !reason.is_empty() && reason != "PodInitializing" => {
                    self.reason = format!("Init:{reason}")
                }
                _ => self.reason = format!("Init:{index}/{}", all.len()),
            }
            waiting = true;
        }
        waiting
    }

    /// Sets the reason from the containers. They are visited in reverse order, so the first container with a reason decides.
    fn running_containers(&mut self, spec: &Value, status: &Value) {
        // The restarts of finished init containers do not count any more, only those of sidecars.
        self.restarts = 0;
        self.last_restart = None;
        let sidecar = |name: &str| {
            spec.items("initContainers")
                .iter()
                .any(|container| container.text("name") == name && is_restartable_init(container))
        };
        for container in status
            .items("initContainerStatuses")
            .iter()
            .filter(|container| sidecar(container.text("name")))
        {
            self.restarts += container.integer("restartCount").unwrap_or(0);
            self.note_restart(container);
        }
        let (mut running, mut error) = (false, None);
        for container in status.items("containerStatuses").iter().rev() {
            self.restarts += container.integer("restartCount").unwrap_or(0);
            self.note_restart(container);
            match State::of(container) {
                State::Waiting(reason) if !reason.is_empty() => reason.clone_into(&mut self.reason),
                State::Terminated {
                    reason,
                    signal,
                    exit_code,
                } => {
                    self.reason = match (reason, signal) {
                        ("", 0) => format!("ExitCode:{exit_code}"),
                        ("", signal) => format!("Signal:{signal}"),
                        (reason, _) => reason.to_owned(),
                    };
                    if exit_code != 0 {
                        error = Some(self.reason.clone());
                    }
                }
                State::Running if container.flag("ready") => {
                    running = true;
                    self.ready += 1;
                }
                _ => {}
            }
        }
        // The deciding container has completed, but others may still run or may have failed.
        if self.reason == "Completed" {
            if running && condition(status, "Ready") == "True" {
                "Running".clone_into(&mut self.reason);
            } else if let Some(error) = error {
                self.reason = error;
            } else if running {
                "NotReady".clone_into(&mut self.reason);
            }
        }
    }

    fn note_restart(&mut self, container: &Value) {
        let ended = container
            .get("lastState")
            .and_then(|state| state.field("terminated"))
            .map_or("", |ended| ended.text("finishedAt"));
        if !ended.is_empty() && self.last_restart.as_deref().is_none_or(|last| last < ended) {
            self.last_restart = Some(ended.to_owned());
        }
    }
}

enum State<'a> {
    Waiting(&'a str),
    Running,
    Terminated {
        reason: &'a str,
        signal: i64,
        exit_code: i64,
    },
    Unknown,
}

impl<'a> State<'a> {
    fn of(container: &'a Value) -> State<'a> {
        let Some(state) = container.get("state") else {
            return State::Unknown;
        };
        if let Some(ended) = state.field("terminated") {
            State::Terminated {
                reason: ended.text("reason"),
                signal: ended.integer("signal").unwrap_or(0),
                exit_code: ended.integer("exitCode").unwrap_or(0),
            }
        } else if let Some(waiting) = state.field("waiting") {
            State::Waiting(waiting.text("reason"))
        } else if state.has("running") {
            State::Running
        } else {
            State::Unknown
        }
    }
}
