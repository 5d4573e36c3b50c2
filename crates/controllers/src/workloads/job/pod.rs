//! What the pods of a Job look like. Pure.

use std::sync::Arc;

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod},
};
use kube::ResourceExt;

use crate::{ownership, workloads::pod_control::pod_body};

/// Keeps a pod until the Job has counted it.
pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// On a pod: its index.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// On a pod: how often its index has failed before.
pub(super) const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// The index of a pod of an indexed Job.
pub(super) fn index(pod: &Pod) -> Option<i32> {
    let index: i32 = pod.annotations().get(INDEX)?.parse().ok()?;
    (index >= 0).then_some(index)
}

/// Whether the pod is kept until it is counted.
pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|name| name == TRACKING)
}

/// A pod of the Job; of an indexed one that of `index`, which has failed `failures` times if that is counted.
pub(super) fn body(job: &Job, index: Option<i32>, failures: Option<i32>) -> Option<Arc<Vec<u8>>> {
    let template = &job.spec.as_ref()?.template;
    let name = match index {
        Some(index) => format!("{}-{index}", job.name_any()),
        None => job.name_any(),
    };
    let reference = ownership::controller_reference(job);
    let namespace = job.namespace().unwrap_or_default();
    Some(pod_body(template, &name, &namespace, reference, |pod| {
        pod.finalizers_mut().push(TRACKING.to_owned());
        let Some(index) = index else { return };
        pod.annotations_mut()
            .insert(INDEX.to_owned(), index.to_string());
        pod.labels_mut().insert(INDEX.to_owned(), index.to_string());
        if let Some(failures) = failures {
            pod.annotations_mut()
                .insert(INDEX_FAILURES.to_owned(), failures.to_string());
        }
        if let Some(spec) = &mut pod.spec {
            // The name has a random end, the address within the Job does not.
            spec.hostname = Some(name.clone());
            let init = spec.init_containers.iter_mut().flatten();
            init.chain(&mut spec.containers).for_each(tell_index);
        }
    }))
}

fn tell_index(container: &mut Container) {
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
        let body = body(&job, Some(3), Some(1)).expect("a body");
        let pod: Value = serde_json::from_slice(&body).expect("JSON");
        insta::assert_snapshot!(serde_json::to_string_pretty(&pod).expect("JSON"));
    }
}
