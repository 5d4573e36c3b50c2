//! The source of `kubectl logs`: the simulated kubelets for every container, and the decision log for the provisioner's pod.
//!
//! The API server is created before the controllers, so the source is empty until [`SimulatedLogs::serve`] sets it.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mullion_apiserver::logs::{Container, Line, Log, LogSource, Reading};
use mullion_controllers::{Context, kubelet::logs, provisioner::DecisionLog};
use serde::Deserialize;

/// The labels and the container of the pods whose log is the decision log.
const KARPENTER: &str = "karpenter";
const CONTROLLER: &str = "controller";

/// The logs of a simulated cluster. Clones are cheap and share the logs.
#[derive(Clone, Default)]
pub(super) struct SimulatedLogs {
    sources: Arc<OnceLock<Sources>>,
}

struct Sources {
    context: Context,
    decisions: DecisionLog,
}

impl SimulatedLogs {
    /// Sets the source of the logs.
    pub(super) fn serve(&self, context: &Context, decisions: DecisionLog) {
        // This is called once for each cluster, so setting cannot fail.
        let _ = self.sources.set(Sources {
            context: context.clone(),
            decisions,
        });
    }
}

impl LogSource for SimulatedLogs {
    fn read<'a>(&'a self, container: Container<'a>) -> Reading<'a> {
        Box::pin(async move { self.sources.get()?.read(container).await })
    }
}

impl Sources {
    async fn read(&self, container: Container<'_>) -> Option<Log> {
        let pod = Pod::deserialize(container.pod).ok()?;
        let run = logs::run(&self.context, &pod, container.name, container.previous).await?;
        if is_provisioner(&pod, container.name) {
            return Some(decisions(&self.decisions, container.follow));
        }
        let written = run
            .lines
            .into_iter()
            .map(|text| Line {
                time: run.started_at,
                text,
            })
            .collect();
        let coming = container.follow.then(|| {
            let pods = self.context.informers.pods.clone();
            let name = container.name.to_owned();
            // A simulated container writes no more lines, so the stream only has to end with the container.
            let ended = stream::once(async move { logs::until_stopped(pods, &pod, &name).await });
            ended.filter_map(|()| async { None }).boxed()
        });
        Some(Log { written, coming })
    }
}

fn is_provisioner(pod: &Pod, container: &str) -> bool {
    container == CONTROLLER
        && pod.namespace().as_deref() == Some(KARPENTER)
        && pod
            .labels()
            .get("app.kubernetes.io/name")
            .map(String::as_str)
            == Some(KARPENTER)
}

fn decisions(log: &DecisionLog, follow: bool) -> Log {
    let line = |line: mullion_controllers::provisioner::decision_log::Line| Line {
        time: line.at,
        text: line.text.to_string(),
    };
    let (written, cursor) = log.since(0);
    let coming = follow.then(|| {
        let start = (log.clone(), log.written(), cursor, VecDeque::new());
        stream::unfold(
            start,
            move |(log, mut changed, mut cursor, mut ready)| async move {
                while ready.is_empty() {
                    changed.wait_for(|last| *last > cursor).await.ok()?;
                    let (lines, next) = log.since(cursor);
                    ready.extend(lines);
                    cursor = next;
                }
                let next = ready.pop_front().map(line)?;
                Some((next, (log, changed, cursor, ready)))
            },
        )
        .boxed()
    });
    Log {
        written: written.into_iter().map(line).collect(),
        coming,
    }
}
