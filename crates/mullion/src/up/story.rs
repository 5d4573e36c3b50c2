//! `-v`: logs the story of a cluster to stderr, from its informers and its decision log: nodes that are added and removed, the number of
//! pods that were scheduled, and launches and removals of instances.
//!
//! It only observes; no part of the cluster depends on it. Pods are counted once a second but not named: `kubectl events` names them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use mullion_api::labels;
use mullion_controllers::{
    Change, Context,
    informers::BY_NODE,
    provisioner::{DecisionLog, decision_log::Line},
};
use serde_json::{Map, Value};
use tokio::time::{MissedTickBehavior, interval};

use super::nodes::is_ready;

/// The interval at which pods are counted.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// The longest value of a decision that is not cut.
const MAX_VALUE: usize = 100;
/// Fields of a decision with the place in the code, not the decision.
const SURROUNDINGS: &[&str] = &[
    "level",
    "time",
    "logger",
    "message",
    "commit",
    "controller",
    "controllerGroup",
    "controllerKind",
    "namespace",
    "name",
    "reconcileID",
    "error",
];

/// Logs the story until the context ends, if the log level includes it.
pub(crate) fn log(context: &Context, decisions: &DecisionLog) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    log_nodes(context);
    log_pods(context);
    log_decisions(context, decisions.clone());
}

fn log_nodes(context: &Context) {
    context.informers.nodes.on_change(|change| {
        let name = change.object().name_any();
        match change {
            Change::Added(node) => tracing::info!("node {name} joined: {}", looks(node)),
            Change::Deleted(_) => tracing::info!("node {name} is gone"),
            Change::Updated { old, new } => {
                match (is_ready(old), is_ready(new)) {
                    (false, true) => tracing::info!("node {name} is ready"),
                    (true, false) => tracing::info!("node {name} is not ready any more"),
                    _ => {}
                }
                match (cordoned(old), cordoned(new)) {
                    (false, true) => tracing::info!("node {name} is cordoned"),
                    (true, false) => tracing::info!("node {name} takes pods again"),
                    _ => {}
                }
            }
        }
    });
}

fn looks(node: &Node) -> String {
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    let known = [labels::INSTANCE_TYPE, labels::OS, labels::ZONE];
    let mut words: Vec<&str> = known.iter().filter_map(|key| label(key)).collect();
    words.extend(label(labels::EKSCTL_NODEGROUP));
    words.join(", ")
}

fn cordoned(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.unschedulable).unwrap_or(false)
}

/// The number of pods that changed since the last count.
#[derive(Default)]
struct Counts {
    bound: AtomicUsize,
    ready: AtomicUsize,
    gone: AtomicUsize,
}

fn log_pods(context: &Context) {
    let counts = Arc::new(Counts::default());
    let pods = &context.informers.pods;
    pods.on_change({
        let counts = Arc::clone(&counts);
        move |change| {
            let (before, now) = match change {
                Change::Added(pod) => (None, Some(pod)),
                Change::Updated { old, new } => (Some(old), Some(new)),
                Change::Deleted(pod) => (Some(pod), None),
            };
            // The counters stand alone: no other memory depends on their order.
            let count = |counter: &AtomicUsize| counter.fetch_add(1, Ordering::Relaxed);
            let Some(now) = now else {
                count(&counts.gone);
                return;
            };
            let became = |is: fn(&Pod) -> bool| is(now) && !before.is_some_and(|old| is(old));
            if became(has_node) {
                count(&counts.bound);
            }
            if became(pod_is_ready) {
                count(&counts.ready);
            }
        }
    });
    let (pods, shutdown) = (pods.clone(), context.shutdown.clone());
    let count = async move {
        let mut ticks = interval(COUNT_EVERY);
        // After a sleep of the machine one count is enough.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let take = |counter: &AtomicUsize| counter.swap(0, Ordering::Relaxed);
            let happened = [
                (take(&counts.bound), "bound to nodes"),
                (take(&counts.ready), "became ready"),
                (take(&counts.gone), "gone"),
            ];
            let happened: Vec<String> = happened
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{count} {what}"))
                .collect();
            if !happened.is_empty() {
                let waiting = pods.count_by_index(BY_NODE, "");
                tracing::info!("pods: {}; {waiting} without a node", happened.join(", "));
            }
        }
    };
    context.tasks.spawn(async move {
        shutdown.run_until_cancelled(count).await;
    });
}

fn has_node(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|spec| spec.node_name.is_some())
}

fn pod_is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn log_decisions(context: &Context, log: DecisionLog) {
    let shutdown = context.shutdown.clone();
    let follow = async move {
        let (mut written, mut cursor) = (log.written(), 0);
        while written.wait_for(|last| *last > cursor).await.is_ok() {
            let (lines, next) = log.since(cursor);
            cursor = next;
            for line in lines.iter().filter_map(decision) {
                tracing::info!("{line}");
            }
        }
    };
    context.tasks.spawn(async move {
        shutdown.run_until_cancelled(follow).await;
    });
}

/// Formats a line of the decision log for users; `None` for debug lines.
fn decision(line: &Line) -> Option<String> {
    let fields: Map<String, Value> = serde_json::from_str(&line.text).ok()?;
    if fields["level"] == "DEBUG" {
        return None;
    }
    let mut text = format!("provisioner: {}", fields.get("message")?.as_str()?);
    if let Some(error) = fields.get("error") {
        text += &format!(": {}", plain(error));
    }
    let what = fields
        .iter()
        .filter(|(key, _)| !SURROUNDINGS.contains(&key.as_str()))
        .map(|(key, value)| format!(" {key}={}", plain(value)));
    text.extend(what);
    Some(text)
}

fn plain(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Object(map) if map.contains_key("name") => {
            map["name"].as_str().unwrap_or_default().to_owned()
        }
        other => other.to_string(),
    };
    match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use mullion_controllers::Clock;

    use super::*;

    #[test]
    fn a_decision_is_told_without_its_surroundings() {
        let log = DecisionLog::new(Clock::starting_at(jiff::Timestamp::UNIX_EPOCH), 10);
        let pass = log.reconciliation("provisioner");
        pass.clone()
            .with_ref("NodePool", "windows-2022")
            .with("Pods", "x".repeat(150))
            .info("created nodeclaim");
        pass.debug("computing");
        let told: Vec<String> = log.since(0).0.iter().filter_map(decision).collect();
        let pods = format!("{}...", "x".repeat(100));
        assert_eq!(
            told,
            [format!(
                "provisioner: created nodeclaim NodePool=windows-2022 Pods={pods}"
            )]
        );
    }

    #[test]
    fn a_failure_is_told_with_its_cause() {
        let log = DecisionLog::new(Clock::starting_at(jiff::Timestamp::UNIX_EPOCH), 10);
        log.reconciliation("provisioner")
            .error("creating nodeclaim", &"no offering");
        let told = decision(&log.since(0).0[0]);
        assert_eq!(
            told.as_deref(),
            Some("provisioner: creating nodeclaim: no offering")
        );
    }
}
