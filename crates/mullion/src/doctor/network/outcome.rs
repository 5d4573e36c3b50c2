//! Reads the outcome of a probe's containers from the statuses and logs of their pods.

use serde_json::Value;

use super::{Answer, Target, TrafficPath, manifests::CALL_PATIENCE, probe::PATIENCE};

/// How often a path is tried before it counts as blocked, because a new Service takes a moment to reach all nodes.
const TRIES: u64 = 3;
/// The reasons of waiting containers that waiting longer does not help.
const STUCK: [&str; 4] = [
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
];

/// The outcome of a container.
#[derive(Debug, PartialEq)]
pub(super) enum ContainerOutcome {
    /// The container succeeded.
    Well,
    /// The container failed on every try; this is its last exit code.
    Badly(i64),
    /// The container will never start, for this reason.
    Never(String),
}

/// Returns the address of a running pod.
pub(super) fn address(pod: &Value) -> Option<&str> {
    let runs = pod["status"]["phase"] == "Running";
    pod["status"]["podIP"]
        .as_str()
        .filter(|own| runs && !own.is_empty())
}

fn status<'a>(pod: &'a Value, container: &str) -> &'a Value {
    let all = pod["status"]["containerStatuses"].as_array();
    let mut all = all.into_iter().flatten();
    all.find(|own| own["name"] == container)
        .unwrap_or(&Value::Null)
}

/// Returns the outcome of a container, or `None` while it is not decided.
pub(super) fn ended(pod: &Value, container: &str) -> Option<ContainerOutcome> {
    let own = status(pod, container);
    let state = &own["state"];
    // While a container waits for its next try, its exit code is in `lastState`.
    let last = [&state["terminated"], &own["lastState"]["terminated"]];
    let code = last.iter().find_map(|own| own["exitCode"].as_i64());
    let waits = &state["waiting"];
    let is_stuck = waits["reason"]
        .as_str()
        .is_some_and(|reason| STUCK.contains(&reason));
    match state["terminated"]["exitCode"].as_i64() {
        Some(0) => return Some(ContainerOutcome::Well),
        _ if is_stuck => return Some(ContainerOutcome::Never(reason(waits))),
        _ => {}
    }
    let tries = own["restartCount"].as_u64().unwrap_or(0) + 1;
    let has_failed = tries >= TRIES && state["running"].is_null();
    match code {
        Some(code) if has_failed => Some(ContainerOutcome::Badly(code)),
        _ if pod["status"]["phase"] == "Failed" => {
            Some(ContainerOutcome::Never(reason(&pod["status"])))
        }
        _ => None,
    }
}

/// Returns the reason and the message of a container state.
fn reason(state: &Value) -> String {
    let text = |field: &str| state[field].as_str().unwrap_or_default();
    let parts = [text("reason"), text("message")];
    let parts = parts.into_iter().filter(|own| !own.is_empty());
    parts.collect::<Vec<_>>().join(": ")
}

/// Returns why a container does not run, worded to follow "the pod NAME, which".
pub(super) fn started_not(pod: Option<&Value>, container: &str) -> String {
    let Some(pod) = pod else {
        return "somebody else has deleted".to_owned();
    };
    let conditions = pod["status"]["conditions"].as_array();
    let unscheduled = conditions
        .into_iter()
        .flatten()
        .find(|own| own["type"] == "PodScheduled" && own["status"] == "False");
    let why = match (ended(pod, container), unscheduled) {
        (Some(ContainerOutcome::Never(why)), _) => why,
        (_, Some(condition)) => reason(condition),
        _ => reason(&status(pod, container)["state"]["waiting"]),
    };
    match why.as_str() {
        "" => format!("has not run within {} min", PATIENCE.as_secs() / 60),
        why => format!("does not run ({why})"),
    }
}

/// Returns what an exit code of curl means.
pub(super) fn curl_error(code: i64) -> String {
    match code {
        6 => "the name is not known".to_owned(),
        7 => "the connection is refused".to_owned(),
        28 => format!("no answer within {CALL_PATIENCE} s"),
        52 | 56 => "the connection is cut".to_owned(),
        code => format!("curl ends with {code}"),
    }
}

/// Parses the log of a call: the answer, `;`, and the seconds.
pub(super) fn understood(way: &TrafficPath, log: &str) -> Answer {
    let parts = log.trim().rsplit_once(';');
    let Some((body, Ok(seconds))) = parts.map(|(body, own)| (body.trim(), own.parse())) else {
        return Answer::Untried(
            "a real node: the probe's log holds no answer, so that it may be a simulated one"
                .to_owned(),
        );
    };
    let wanted = way.answers();
    let is_right = match way.target {
        Target::Pod { .. } => body.eq_ignore_ascii_case(&wanted),
        _ => body.to_ascii_lowercase().starts_with(&wanted),
    };
    if is_right {
        Answer::Answered(seconds)
    } else {
        Answer::Failed(format!("{body:?} has answered in place of {wanted}"))
    }
}
