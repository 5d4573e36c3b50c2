//! Implements `--scale`: a workload has more or fewer pods in the plan.

use std::fmt;

use mullion_controllers::workloads::job;
use mullion_engine::model::{PodSpec, PodVolume};
use rustc_hash::FxHashSet;
use serde_json::Value;

use super::{count, input::Input};
use crate::{
    failure::Failure,
    why::{
        pod_owner::PodOwner,
        world::{self, PlannedPod},
    },
};

/// A workload and the number of pods that it should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    kind: &'static str,
    name: String,
    pods: usize,
}

/// The names that kubectl accepts for each kind.
const KINDS: [(&str, &[&str]); 5] = [
    ("Deployment", &["deployment", "deployments", "deploy"]),
    ("StatefulSet", &["statefulset", "statefulsets", "sts"]),
    ("ReplicaSet", &["replicaset", "replicasets", "rs"]),
    (
        "ReplicationController",
        &["replicationcontroller", "replicationcontrollers", "rc"],
    ),
    ("Job", &["job", "jobs"]),
];
/// The largest number of pods that can be planned for.
const MOST_PODS: usize = 1_000_000;

/// The reason why a text names no workload and its number of pods.
#[derive(Debug, PartialEq)]
pub(super) enum ScaleError {
    Form,
    Kind(String),
    Pods,
}

impl fmt::Display for ScaleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScaleError::Form => f.write_str("it must be KIND/NAME=N, as in deployment/web=200"),
            ScaleError::Kind(kind) => {
                let kinds = KINDS.map(|(_, names)| names[0]);
                write!(f, "{kind} is not one of {}", kinds.join(", "))
            }
            ScaleError::Pods => write!(f, "the number of pods must be 0 to {MOST_PODS}"),
        }
    }
}

impl std::error::Error for ScaleError {}

impl Scale {
    /// Parses `deployment/web=200`.
    pub(super) fn parse(text: &str) -> Result<Self, ScaleError> {
        let parts = text.split_once('=').and_then(|(object, pods)| {
            let (kind, name) = object.split_once('/')?;
            Some((kind, name, pods))
        });
        let (kind, name, pods) = parts.ok_or(ScaleError::Form)?;
        // kubectl takes `Deployment.apps` as well.
        let named = kind.split('.').next().unwrap_or_default();
        let named = named.to_ascii_lowercase();
        let known = KINDS
            .iter()
            .find(|(_, names)| names.contains(&named.as_str()));
        let (kind, _) = known.ok_or_else(|| ScaleError::Kind(kind.to_owned()))?;
        let pods = pods.parse().ok().filter(|pods| *pods <= MOST_PODS);
        Ok(Scale {
            kind,
            name: name.to_owned(),
            pods: pods.ok_or(ScaleError::Pods)?,
        })
    }

    /// Returns the workload; `namespace` is the one that the user names.
    pub(super) fn owner(&self, namespace: Option<&str>) -> PodOwner {
        PodOwner {
            kind: self.kind.to_owned(),
            namespace: namespace.unwrap_or("default").to_owned(),
            name: self.name.clone(),
        }
    }
}

/// Adds pods like those that a workload has, or removes some: first those that do not exist yet, then pending ones, then the youngest.
/// A workload without pods gets them from its template, in a manifest or in the cluster. Returns a sentence about the change.
///
/// # Errors
/// Nothing says what the workload's pods ask for, or its pods have claims of their own.
pub(super) async fn apply(
    scale: &Scale,
    input: &mut Input,
    namespace: Option<&str>,
) -> Result<String, Failure> {
    let owner = scale.owner(namespace);
    let called = format!("{} {}/{}", owner.kind, owner.namespace, owner.name);
    let is_own = |pod: &PodSpec| owner.owns(pod) && !pod.finished && !pod.terminating;
    let of_manifests = input.coming.iter().filter(|pod| is_own(pod)).count();
    let existing = input.source.state.pods.iter();
    let before = of_manifests + existing.filter(|pod| is_own(pod)).count();
    let bound = job_bound(&owner, before, input).await;
    let bound = bound.filter(|bound| bound.pods < scale.pods);
    let pods = bound.as_ref().map_or(scale.pods, |bound| bound.pods);
    let state = &input.source.state;
    let coming = input.coming.iter().filter(|pod| is_own(pod));
    let there = state.pods.iter().filter(|pod| is_own(pod));
    // Pods of a manifest come first: they have the template that new pods will have, existing ones may be
    // older.
    let model = coming.chain(there).next().cloned();
    match model {
        Some(model) if pods > before => more(&model, pods - before, &called, input)?,
        Some(_) => fewer(before - pods, is_own, input),
        None => {
            let mut planned = template_of(&owner, &called, input).await?;
            planned.replicas = pods as u64;
            planned.none_by = None;
            input.replace(&planned)?;
        }
    }
    let change = format!("{called} has {pods} pods in place of {before}");
    Ok(match bound {
        Some(bound) => format!("{change}, not {}: {}", scale.pods, bound.why),
        None => change,
    })
}

/// The most pods that a Job has at a time, whatever its parallelism is.
#[derive(Debug, PartialEq)]
struct JobBound {
    pods: usize,
    /// Why the Job has no more, as a sentence.
    why: String,
}

/// Returns the bound of a Job, of a manifest or else of the cluster; `None` for other workloads and for Jobs that their parallelism alone
/// bounds. `before` is the number of pods that the Job has.
async fn job_bound(owner: &PodOwner, before: usize, input: &Input) -> Option<JobBound> {
    if owner.kind != "Job" {
        return None;
    }
    // A user who may not read the Job still gets a plan for its pods.
    let there = input.source.workload(owner).await.ok().flatten();
    let there = there.unwrap_or_default();
    let mut given = input.jobs.iter().filter(|(own, _)| own == owner);
    let spec = match given.next() {
        Some((_, job)) => &job["spec"],
        None => &there["spec"],
    };
    bound_of(spec, &there["status"], before)
}

/// Bounds the active pods of a Job as kube-controller-manager does (job controller: `manageJob`, and `syncJob` for Jobs that are over).
/// A suspended Job counts as resumed, because nobody asks how many pods it has otherwise.
fn bound_of(spec: &Value, status: &Value, before: usize) -> Option<JobBound> {
    let conditions = status["conditions"].as_array();
    let is_true = |kind: &str| {
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|own| own["type"] == kind && own["status"] == "True")
    };
    let ends = [("Complete", "it is complete"), ("Failed", "it has failed")];
    if let Some((_, why)) = ends.into_iter().find(|(kind, _)| is_true(kind)) {
        return Some(JobBound {
            pods: 0,
            why: why.to_owned(),
        });
    }
    let uncounted = &status["uncountedTerminatedPods"]["succeeded"];
    let uncounted = uncounted.as_array().map_or(0, Vec::len);
    let uncounted = i64::try_from(uncounted).unwrap_or(i64::MAX);
    let done = status["succeeded"].as_i64().unwrap_or(0);
    let done = done.saturating_add(uncounted);
    let of_default = spec["parallelism"].is_null() && spec.is_object();
    let completions = spec["completions"].as_i64().or(of_default.then_some(1));
    let completion = |all: i64| count(usize::try_from(all).unwrap_or(0), "completion");
    let why = match (completions, done) {
        (None, 0) => return None,
        (None, _) => "a pod of it has succeeded, so it starts no more".to_owned(),
        (Some(all), 0) => format!("it needs {}", completion(all)),
        (Some(all), done) => format!("{done} of its {} are done", completion(all)),
    };
    let active = i64::try_from(before).unwrap_or(i64::MAX);
    // The number that is asked for is the parallelism.
    let pods = job::wanted_active(i64::MAX, completions, done, active);
    Some(JobBound {
        pods: usize::try_from(pods).unwrap_or(0),
        why,
    })
}

/// Returns a pod of a workload that has none: as the manifest says, or the workload's object in the cluster.
async fn template_of(
    owner: &PodOwner,
    called: &str,
    input: &mut Input,
) -> Result<PlannedPod, Failure> {
    if let Some(planned) = input.idle.iter().find(|own| own.owner == *owner) {
        return Ok(planned.clone());
    }
    let workload = input.source.workload(owner).await;
    let workload = workload.map_err(|failure| failure.about(format!("--scale: {called}")))?;
    let planned = match &workload {
        Some(workload) => world::planned_for(&mut input.source, workload, &input.placement)
            .await
            .map_err(|failure| failure.about(format!("--scale: {called}")))?,
        None => None,
    };
    planned.ok_or_else(|| {
        let cause = if workload.is_some() {
            "has no template"
        } else {
            "has no pod and is not there itself"
        };
        Failure::input(format!(
            "--scale: {called} {cause}, so nothing says what its pods ask for"
        ))
        .hint("-n NAME names its namespace; -f FILE brings its manifest")
    })
}

fn more(model: &PodSpec, pods: usize, called: &str, input: &mut Input) -> Result<(), Failure> {
    let volumes = &model.template.volumes;
    // Where a volume is decides the zone of its pod, so a copy of the model's claims would place all pods by
    // one volume.
    let has_own = |volume: &PodVolume| {
        matches!(volume, PodVolume::Ephemeral { .. })
            || called.starts_with("StatefulSet") && matches!(volume, PodVolume::Claim { .. })
    };
    if volumes.iter().any(has_own) {
        return Err(Failure::input(format!(
            "--scale: each pod of {called} has claims of its own, which nothing says for more pods"
        ))
        .hint("-f FILE plans for its manifest with the replicas that you want"));
    }
    let stem = called.rsplit_once('/').map_or(called, |(_, name)| name);
    let bill = input.bill_of(model);
    let mut number = 0;
    for _ in 0..pods {
        let mut pod = PodSpec {
            uid: String::new(),
            node_name: None,
            nominated_node_name: None,
            start_time: None,
            ..model.clone()
        };
        loop {
            pod.name = format!("{stem}-{number}");
            number += 1;
            if input.keys.insert(pod.key()) {
                break;
            }
        }
        if let Some(bill) = &bill {
            input.bills.insert(pod.key(), bill.clone());
        }
        input.coming.push(pod);
    }
    Ok(())
}

fn fewer(mut pods: usize, is_own: impl Fn(&PodSpec) -> bool, input: &mut Input) {
    let mut kept = Vec::new();
    // From the end, so that the pods with the lowest numbers stay.
    for pod in std::mem::take(&mut input.coming).into_iter().rev() {
        if pods > 0 && is_own(&pod) {
            pods -= 1
        } else {
            kept.push(pod)
        }
    }
    kept.reverse();
    input.coming = kept;
    let state = &input.source.state;
    let mut there: Vec<(bool, Option<i64>, String)> = state
        .pods
        .iter()
        .filter(|pod| is_own(pod))
        .map(|pod| (pod.node_name.is_some(), pod.start_time, pod.key()))
        .collect();
    // Pending pods come first, then the youngest.
    there.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
    there.truncate(pods);
    let there: FxHashSet<String> = there.into_iter().map(|(.., key)| key).collect();
    input.remove(|pod| there.contains(&pod.key()));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_has_no_more_pods_than_completions_that_lack() {
        let bound = |spec: Value, status: Value| bound_of(&spec, &status, 3);
        let of = |pods: usize, why: &str| {
            let why = why.to_owned();
            Some(JobBound { pods, why })
        };
        let six = json!({"parallelism": 2, "completions": 6});
        assert_eq!(
            bound(six.clone(), json!({})),
            of(6, "it needs 6 completions")
        );
        let status = json!({"succeeded": 1, "uncountedTerminatedPods": {"succeeded": ["a"]}});
        assert_eq!(
            bound(six.clone(), status),
            of(4, "2 of its 6 completions are done")
        );
        let all = of(0, "9 of its 6 completions are done");
        assert_eq!(bound(six, json!({"succeeded": 9})), all);
        let failed = json!({"succeeded": 1, "conditions": [{"type": "Failed", "status": "True"}]});
        assert_eq!(
            bound(json!({"completions": 6}), failed),
            of(0, "it has failed")
        );
        let queue = json!({"parallelism": 2});
        assert_eq!(bound(queue.clone(), json!({})), None);
        assert_eq!(
            bound(queue, json!({"succeeded": 1})),
            of(3, "a pod of it has succeeded, so it starts no more")
        );
        assert_eq!(bound(json!({}), json!({})), of(1, "it needs 1 completion"));
        assert_eq!(bound(Value::Null, Value::Null), None);
    }

    #[test]
    fn a_workload_and_its_number_are_read_as_kubectl_names_them() {
        let scale = Scale::parse("deploy/web=200").expect("a scale");
        assert_eq!(
            scale,
            Scale {
                kind: "Deployment",
                name: "web".to_owned(),
                pods: 200
            }
        );
        for text in ["Deployment/web=200", "deployments.apps/web=200"] {
            assert_eq!(Scale::parse(text), Ok(scale.clone()));
        }
        for (text, why) in [
            ("web=3", "it must be KIND/NAME=N, as in deployment/web=200"),
            (
                "cronjob/a=3",
                "cronjob is not one of deployment, statefulset, replicaset, replicationcontroller, job",
            ),
            ("rs/a=-1", "the number of pods must be 0 to 1000000"),
        ] {
            let refused = Scale::parse(text).map_err(|error| error.to_string());
            assert_eq!(refused, Err(why.to_owned()));
        }
    }
}
