//! Builds the pods of a Job. Pure.

use std::sync::Arc;

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod},
};
use kube::ResourceExt;

use super::policy::{self, Action};
use crate::{ownership, workloads::pod_control::pod_body};

/// The finalizer that keeps a pod until the Job has counted it.
pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// The annotation of a pod with its index.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The annotations of a pod with the failures of its index before it: those that count and those that a policy
/// ignores.
const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const INDEX_IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// Returns the index of an indexed Job's pod.
pub(super) fn index(pod: &Pod) -> Option<i32> {
    let index: i32 = pod.annotations().get(INDEX)?.parse().ok()?;
    (index >= 0).then_some(index)
}

/// Returns whether the pod is kept until it is counted.
pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|name| name == TRACKING)
}

/// The failures of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    /// Failures that count towards the index's limit.
    pub(super) counted: i32,
    /// Failures that a policy ignores.
    ignored: i32,
}

impl Failures {
    /// Returns the failures of the index before `pod` was created.
    pub(super) fn before(pod: &Pod) -> Self {
        let number = |name: &str| {
            let number = pod.annotations().get(name)?.parse().ok();
            number.filter(|number: &i32| *number >= 0)
        };
        Self {
            counted: number(INDEX_FAILURES).unwrap_or(0),
            ignored: number(INDEX_IGNORED_FAILURES).unwrap_or(0),
        }
    }

    /// Returns the failures of the index including that of `pod`.
    pub(super) fn with(job: &Job, pod: &Pod) -> Self {
        let mut failures = Self::before(pod);
        let number = match policy::action(job, pod) {
            Action::Ignore => &mut failures.ignored,
            _ => &mut failures.counted,
        };
        *number = number.saturating_add(1);
        failures
    }

    pub(super) fn all(self) -> i32 {
        self.counted.saturating_add(self.ignored)
    }
}

/// The longest `generateName` that the API server does not truncate.
const LONGEST_PREFIX: usize = 58;

/// Returns the name prefix of an index's pods. A long Job name is cut to leave room for the index.
fn prefix(job: &str, index: i32) -> String {
    let end = format!("-{index}-");
    let room = LONGEST_PREFIX.saturating_sub(end.len());
    // Names are ASCII; the search for a character boundary only avoids a panic if one is not.
    let cut = (0..=room.min(job.len()))
        .rev()
        .find(|at| job.is_char_boundary(*at));
    format!("{}{end}", &job[..cut.unwrap_or(0)])
}

/// Returns the request body of a pod. For an indexed Job it is the pod of `index`, with `failures` as annotations
/// if they are counted per index.
pub(super) fn body(
    job: &Job,
    index: Option<i32>,
    failures: Option<Failures>,
) -> Option<Arc<Vec<u8>>> {
    let template = &job.spec.as_ref()?.template;
    let name = job.name_any();
    let reference = ownership::controller_reference(job);
    let namespace = job.namespace().unwrap_or_default();
    Some(pod_body(template, &name, &namespace, reference, |pod| {
        pod.finalizers_mut().push(TRACKING.to_owned());
        let Some(index) = index else { return };
        pod.metadata.generate_name = Some(prefix(&name, index));
        pod.annotations_mut()
            .insert(INDEX.to_owned(), index.to_string());
        pod.labels_mut().insert(INDEX.to_owned(), index.to_string());
        if let Some(failures) = failures {
            let annotations = pod.annotations_mut();
            annotations.insert(INDEX_FAILURES.to_owned(), failures.counted.to_string());
            if failures.ignored > 0 {
                annotations.insert(
                    INDEX_IGNORED_FAILURES.to_owned(),
                    failures.ignored.to_string(),
                );
            }
        }
        if let Some(spec) = &mut pod.spec {
            // The pod's name ends in a random suffix, but its host name within the Job must be stable.
            spec.hostname = Some(format!("{name}-{index}"));
            let init = spec.init_containers.iter_mut().flatten();
            init.chain(&mut spec.containers)
                .for_each(set_index_variable);
        }
    }))
}

fn set_index_variable(container: &mut Container) {
    let variables = container.env.get_or_insert_default();
    if variables
        .iter()
        .any(|variable| variable.name == INDEX_VARIABLE)
    {
        return;
    }
    let field = ObjectFieldSelector {
        api_version: None,
        field_path: format!("metadata.labels['{INDEX}']"),
    };
    variables.push(EnvVar {
        name: INDEX_VARIABLE.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(field),
            ..EnvVarSource::default()
        }),
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pod_of_an_indexed_job_knows_its_index() {
        let job: Job = serde_json::from_value(json!({
            "metadata": { "name": "j", "namespace": "ns", "uid": "u" },
            "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] } } },
        }))
        .expect("a Job");
        let failures = Failures {
            counted: 1,
            ignored: 0,
        };
        let body = body(&job, Some(3), Some(failures)).expect("a body");
        let pod: Value = serde_json::from_slice(&body).expect("JSON");
        insta::assert_snapshot!(serde_json::to_string_pretty(&pod).expect("JSON"));
    }

    #[test]
    fn a_long_name_leaves_room_for_the_index() {
        assert_eq!(prefix("short", 7), "short-7-");
        let long = "a".repeat(60);
        assert_eq!(prefix(&long, 0), format!("{}-0-", "a".repeat(55)));
        assert_eq!(prefix(&long, 123), format!("{}-123-", "a".repeat(53)));
    }

    #[test]
    fn what_a_policy_ignores_is_told_apart() {
        let job: Job = serde_json::from_value(json!({
            "metadata": { "name": "j" },
            "spec": {
                "template": { "spec": { "containers": [] } },
                "podFailurePolicy": { "rules": [{ "action": "Ignore", "onExitCodes": { "operator": "In", "values": [7] } }] },
            },
        }))
        .expect("a Job");
        let pod = |code: i32| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": "j-0", "annotations": { INDEX_FAILURES: "2", INDEX_IGNORED_FAILURES: "3" } },
                "status": { "phase": "Failed", "containerStatuses": [{
                    "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "terminated": { "exitCode": code } },
                }] },
            }))
            .expect("a pod")
        };
        let numbers = |code| {
            let failures = Failures::with(&job, &pod(code));
            (failures.counted, failures.ignored)
        };
        assert_eq!((numbers(1), numbers(7)), ((3, 3), (2, 4)));
        let body = body(&job, Some(0), Some(Failures::with(&job, &pod(7)))).expect("a body");
        let next: Pod = serde_json::from_slice(&body).expect("a pod");
        assert_eq!(Failures::before(&next).all(), 6);
    }
}
