//! Answers `mullion why deployment NAME` and likewise for other workloads: how many pods are wanted, exist and are ready, what keeps the
//! controller from creating more, and why those that exist wait or do not run.
//!
//! What the controller was refused stands in the workload's conditions, or else in Events about it. Each pod's explanation is that of
//! `mullion why pod`, which is said once for all pods with the same cause.

use std::sync::Arc;

use mullion_engine::model::PodSpec;
use serde::Serialize;
use serde_json::Value;

use super::{
    ExplainedPod, WhyArgs, explain,
    explanation::Explanation,
    note_what_counts,
    page::Page,
    pod_owner::PodOwner,
    pools,
    rules::RuleFlags,
    source::{self, Source},
    start::{last_recorded, words},
    state::{Keeps, State},
    text,
};
use crate::{cli::Output, failure::Failure, input::list, out, up};

/// The conditions of workloads that say why pods are not created, each with its status and the only reason that counts, if not all do.
const REFUSALS: [(&str, &str, Option<&str>); 3] = [
    ("ReplicaFailure", "True", None),
    // A Deployment that cannot create its ReplicaSet makes progress in nothing.
    ("Progressing", "False", Some("ReplicaSetCreateError")),
    // A Job that has failed creates no more pods.
    ("Failed", "True", None),
];

/// What is said about a workload.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadAnswer {
    /// The workload, as in `Deployment shop/web`.
    workload: String,
    /// The number of pods that the controller wants now; `None` for a CronJob, whose Jobs say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    wanted: Option<u64>,
    /// The number of pods that exist and neither have finished nor are being deleted.
    existing: usize,
    /// The number of pods that run and are ready.
    ready: usize,
    /// What the controller was refused, as in `FailedCreate: pods "web-x" is forbidden: exceeded quota: small, ...`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<String>,
    /// Why pods are missing, or why none are wanted, if nobody refuses them; a sentence without a full stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
    /// Why pods wait or do not run, each distinct cause once.
    causes: Vec<Cause>,
}

/// A cause for which pods wait or do not run.
#[derive(Serialize)]
struct Cause {
    /// The number of pods that wait or do not run for this cause.
    pods: usize,
    /// The explanation of the first of them.
    first: Explanation,
}

/// A workload, and its pods that wait or do not run.
struct Asked {
    answer: WorkloadAnswer,
    pods: Vec<PodSpec>,
}

/// Prints the answers about workloads, given by kind and name. Returns true if no pod is refused, and each has a place or gets one by itself.
///
/// # Errors
/// The cluster cannot be read, or has no such workload.
pub(super) async fn run(
    named: Vec<(&'static str, String)>,
    args: &WhyArgs,
    rules: &RuleFlags,
) -> Result<bool, Failure> {
    if args.selector.is_some() {
        return Err(
            Failure::input("a workload is asked about by its name: -l is about pods")
                .hint("mullion why pod -l LABELS"),
        );
    }
    let home = args.namespace.as_deref().unwrap_or("default");
    let owner = |(kind, name): (&str, String)| PodOwner {
        kind: kind.to_owned(),
        namespace: home.to_owned(),
        name,
    };
    let owners: Vec<PodOwner> = named.into_iter().map(owner).collect();
    let keeps = Keeps {
        workloads: owners.clone(),
        ..Keeps::default()
    };
    let mut source = match &args.state {
        Some(path) => {
            let state = State::new(rules.empty_cluster()?).keeping(keeps);
            source::file(path, state).await?
        }
        None => source::live(args.kubeconfig.clone(), args.context.clone(), rules, keeps).await?,
    };
    if !source.offline {
        source::add_refusals(&mut source, &owners).await;
    }
    let mut all = Vec::new();
    for owner in &owners {
        all.push(asked(&source, owner).await?);
    }
    let pods: Vec<PodSpec> = all.iter().flat_map(|own| own.pods.clone()).collect();
    if !source.offline {
        source::add_events(&mut source, &pods).await;
    }
    let table = Arc::new(up::images::table(args.images.as_deref())?);
    let subjects: Vec<_> = pods.into_iter().map(ExplainedPod::existing).collect();
    let mut state = source.state;
    let lacks_pools = args.state.is_some() && !state.has("NodePool");
    let pools = pools::of(&state).await?;
    let explained = explain(&mut state, &pools, &subjects, &table).map_err(Failure::input)?;
    let mut left = explained.iter();
    for (index, own) in all.iter_mut().enumerate() {
        let explained = left.by_ref().take(own.pods.len());
        own.answer.causes = causes(explained);
        match args.output {
            Output::Json => {
                out::line(&serde_json::to_string(&own.answer).map_err(Failure::run)?);
            }
            Output::Text => {
                if index > 0 {
                    out::line("");
                }
                own.answer.print();
            }
        }
    }
    let placed = note_what_counts(&explained, &subjects, &pools, lacks_pools);
    let created = all.iter().all(|own| own.answer.refused.is_empty());
    Ok(placed && created)
}

/// Returns what is said of a workload, but for the causes, and its pods that wait or do not run.
async fn asked(source: &Source, owner: &PodOwner) -> Result<Asked, Failure> {
    let PodOwner {
        kind,
        namespace,
        name,
    } = owner;
    let object = source.workload(owner).await?.ok_or_else(|| {
        let plural = kind.to_lowercase() + "s";
        Failure::input(format!(
            "there is no {kind} {name} in namespace {namespace}"
        ))
        .hint(format!("kubectl get {plural} -A shows those there are"))
    })?;
    let state = &source.state;
    let is_own = |pod: &&PodSpec| !pod.finished && !pod.terminating && owns(owner, &object, pod);
    let existing: Vec<&PodSpec> = state.pods.iter().filter(is_own).collect();
    let waits = |pod: &PodSpec| pod.node_name.is_none() || state.pod_facts.start_of(pod).is_some();
    let waiting: Vec<PodSpec> = existing
        .iter()
        .filter(|pod| waits(pod))
        .map(|pod| (*pod).clone())
        .collect();
    let wanted = wanted(kind, &object);
    let lacking = wanted.map(|wanted| wanted.saturating_sub(existing.len() as u64));
    let mut refused = conditions(&object);
    // An Event may be an hour old: it counts only while pods are missing.
    if refused.is_empty() && lacking != Some(0) {
        refused.extend(last_event(state, owner, &object));
    }
    let missing = match (wanted, lacking) {
        _ if !refused.is_empty() => None,
        (Some(0), _) => none_wanted(kind, &object),
        (None, _) if object["spec"]["suspend"] == true => none_wanted(kind, &object),
        (_, Some(0) | None) => None,
        (_, Some(_)) => Some(why_missing(source, kind, &object, waiting.first())),
    };
    Ok(Asked {
        answer: WorkloadAnswer {
            workload: format!("{kind} {namespace}/{name}"),
            wanted,
            existing: existing.len(),
            ready: existing.len() - waiting.len(),
            refused,
            missing,
            causes: Vec::new(),
        },
        pods: waiting,
    })
}

/// Returns whether a pod belongs to a workload; those of a CronJob belong to its Jobs that run.
fn owns(owner: &PodOwner, object: &Value, pod: &PodSpec) -> bool {
    if owner.kind != "CronJob" {
        return owner.owns(pod);
    }
    list(&object["status"]["active"]).any(|job| {
        let job = PodOwner {
            kind: "Job".to_owned(),
            namespace: owner.namespace.clone(),
            name: job["name"].as_str().unwrap_or_default().to_owned(),
        };
        job.owns(pod)
    })
}

/// Returns how many pods the controller wants now; `None` for a CronJob.
fn wanted(kind: &str, object: &Value) -> Option<u64> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    match kind {
        "CronJob" => None,
        "DaemonSet" => Some(number(&status["desiredNumberScheduled"])),
        "Job" => {
            let has_ended = list(&status["conditions"]).any(|own| {
                own["status"] == "True" && (own["type"] == "Complete" || own["type"] == "Failed")
            });
            if spec["suspend"] == true || has_ended {
                return Some(0);
            }
            let parallelism = spec["parallelism"].as_u64().unwrap_or(1);
            let succeeded = number(&status["succeeded"]);
            // Without completions one pod that succeeds is enough, and no more are created then.
            Some(match spec["completions"].as_u64() {
                Some(all) => parallelism.min(all.saturating_sub(succeeded)),
                None if succeeded > 0 => 0,
                None => parallelism,
            })
        }
        _ => Some(spec["replicas"].as_u64().unwrap_or(1)),
    }
}

/// Returns the conditions that say why the controller creates no pods.
fn conditions(object: &Value) -> Vec<String> {
    let said = list(&object["status"]["conditions"]).filter_map(|own| {
        let reason = own["reason"].as_str().unwrap_or_default();
        let counts = |(kind, status, only): &(&str, &str, Option<&str>)| {
            own["type"] == *kind && own["status"] == *status && only.is_none_or(|it| it == reason)
        };
        REFUSALS.iter().any(counts).then(|| sentence(own))
    });
    said.collect()
}

/// Returns what the last Event about a pod that could not be created says. Those about an earlier workload of the same name do not count.
fn last_event(state: &State, owner: &PodOwner, object: &Value) -> Option<String> {
    let uid = object["metadata"]["uid"].as_str();
    let counts = |event: &&Value| {
        let about = &event["involvedObject"];
        let is_earlier = about["kind"] == owner.kind.as_str()
            && uid.is_some_and(|uid| about["uid"].as_str().is_some_and(|own| own != uid));
        owner.is_refused_in(event) && !is_earlier
    };
    let events = state.objects("Event").filter(counts);
    events
        .max_by_key(|event| last_recorded(event))
        .map(sentence)
}

/// Returns reason and message of a condition or an Event, in one line.
fn sentence(said: &Value) -> String {
    let text = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
    let all = words([&text("reason"), &text("message")]);
    all.trim_start_matches(": ").to_owned()
}

/// Returns why no pods are wanted.
fn none_wanted(kind: &str, object: &Value) -> Option<String> {
    let spec = &object["spec"];
    if spec["suspend"] == true {
        return Some("It is suspended: spec.suspend is true".to_owned());
    }
    match kind {
        "DaemonSet" => {
            Some("No node is one that it runs on: mullion why -f FILE says why".to_owned())
        }
        "Job" | "CronJob" => None,
        _ => Some("No pod is wanted: spec.replicas is 0".to_owned()),
    }
}

/// Returns why pods are missing that nobody is known to refuse. `first` is the first pod that waits or does not run.
fn why_missing(source: &Source, kind: &str, object: &Value, first: Option<&PodSpec>) -> String {
    let (spec, status) = (&object["spec"], &object["status"]);
    let is_ordered = kind == "StatefulSet" && spec["podManagementPolicy"] != "Parallel";
    if let Some(first) = first.filter(|_| is_ordered) {
        return format!(
            "The others are created one by one, the next once {} is ready",
            first.name
        );
    }
    if status.as_object().is_none_or(serde_json::Map::is_empty) {
        return "No controller has seen it: its status is empty".to_owned();
    }
    if source.offline {
        return "No condition of it says why pods are missing, nor does an Event in the file"
            .to_owned();
    }
    "No condition and no Event says why pods are missing; Events are kept for an hour".to_owned()
}

/// Groups explanations by their cause, in the order of the first pod of each cause.
fn causes<'e>(explained: impl Iterator<Item = &'e Explanation>) -> Vec<Cause> {
    let mut causes: Vec<Cause> = Vec::new();
    for explanation in explained {
        let mut known = causes.iter_mut();
        match known.find(|cause| cause.first.has_same_cause(explanation)) {
            Some(cause) => cause.pods += 1,
            None => causes.push(Cause {
                pods: 1,
                first: explanation.clone(),
            }),
        }
    }
    causes
}

impl WorkloadAnswer {
    fn print(&self) {
        let (colours, width) = (out::colours(), out::width());
        let mut page = Page::new(colours, width);
        let (bold, bad, end) = (page.colours.bold, page.colours.bad, page.colours.end);
        let exist = if self.existing == 1 {
            "exists"
        } else {
            "exist"
        };
        let are = if self.ready == 1 { "is" } else { "are" };
        let counts = format!("{} {exist}, {} {are} ready", self.existing, self.ready);
        let workload = &self.workload;
        page.paragraph(&match self.wanted {
            Some(wanted) => {
                let pods = if wanted == 1 { "pod" } else { "pods" };
                format!("{bold}{workload}{end} wants {wanted} {pods}: {counts}.")
            }
            None => format!("{bold}{workload}{end}: of the pods of its Jobs {counts}."),
        });
        for why in &self.refused {
            page.paragraph(&format!("Its controller {bad}creates no more{end}: {why}"));
        }
        if let Some(why) = &self.missing {
            page.paragraph(&format!("{why}."));
        }
        out::line(&page.end());
        for Cause { pods, first } in &self.causes {
            let said = match pods {
                1 => "1 pod waits or is not ready:".to_owned(),
                pods => format!(
                    "{pods} pods wait or are not ready for the same cause, the first of them:"
                ),
            };
            out::line(&format!("\n{said}"));
            out::line(&text::text(first, &[], colours, width));
        }
    }
}
