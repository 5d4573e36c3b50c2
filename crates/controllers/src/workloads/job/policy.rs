//! Evaluates a Job's pod failure policy and success policy. Pure.

use k8s_openapi::api::{
    batch::v1::{Job, PodFailurePolicyRule},
    core::v1::{ContainerStatus, Pod},
};
use kube::ResourceExt;

use super::indexes::Indexes;
use crate::pods;

/// The action of the pod failure policy for a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The failure counts towards the backoff limit.
    Count,
    /// The failure is not counted.
    Ignore,
    /// The pod's index fails.
    FailIndex,
    /// The Job fails, with this message.
    FailJob(String),
}

/// Returns the action of the first rule that matches (kube-controller-manager: `matchPodFailurePolicy`).
pub(super) fn action(job: &Job, pod: &Pod) -> Action {
    let spec = job.spec.as_ref();
    let Some(policy) = spec.and_then(|spec| spec.pod_failure_policy.as_ref()) else {
        return Action::Count;
    };
    for (index, rule) in policy.rules.iter().enumerate() {
        let Some(what) = on_exit_codes(rule, pod).or_else(|| on_conditions(rule, pod)) else {
            continue;
        };
        // The first matching rule decides; later ones are not looked at.
        return match rule.action.as_str() {
            "Ignore" => Action::Ignore,
            "FailIndex" => Action::FailIndex,
            "FailJob" => Action::FailJob(format!("{what} matching FailJob rule at index {index}")),
            _ => Action::Count,
        };
    }
    Action::Count
}

/// Returns the message part about the container whose exit code matches the rule; `None` if none does.
fn on_exit_codes(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let wanted = rule.on_exit_codes.as_ref()?;
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten();
    let all = status.container_statuses.iter().flatten().chain(init);
    let named = |status: &&ContainerStatus| {
        wanted
            .container_name
            .as_ref()
            .is_none_or(|name| *name == status.name)
    };
    let matches = |status: &ContainerStatus| {
        let code = status.state.as_ref()?.terminated.as_ref()?.exit_code;
        let listed = wanted.values.contains(&code);
        let hit = match wanted.operator.as_str() {
            "In" => listed,
            // Exit code 0 is no failure, so it never matches.
            "NotIn" => code != 0 && !listed,
            _ => false,
        };
        hit.then_some(code)
    };
    let mut found = all
        .filter(named)
        .filter_map(|status| Some((status, matches(status)?)));
    let (status, code) = found.next()?;
    let namespace = pod.namespace().unwrap_or_default();
    Some(format!(
        "Container {} for pod {namespace}/{} failed with exit code {code}",
        status.name,
        pod.name_any()
    ))
}

/// Returns the message part about the pod condition that matches the rule; `None` if none does.
fn on_conditions(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let patterns = rule.on_pod_conditions.iter().flatten();
    let matched = patterns.into_iter().find(|pattern| {
        let wanted = pattern.status.as_deref().unwrap_or("True");
        pods::condition(pod, &pattern.type_).is_some_and(|condition| condition.status == wanted)
    })?;
    let namespace = pod.namespace().unwrap_or_default();
    Some(format!(
        "Pod {namespace}/{} has condition {}",
        pod.name_any(),
        matched.type_
    ))
}

/// Returns the message about the first rule of the success policy that is satisfied; `None` if none is.
pub(super) fn succeeded(job: &Job, succeeded: &Indexes, completions: i32) -> Option<String> {
    let spec = job.spec.as_ref()?;
    let rules = &spec.success_policy.as_ref()?.rules;
    let met = rules.iter().position(|rule| {
        let counted = match &rule.succeeded_indexes {
            Some(text) => {
                let wanted = Indexes::parse(text, completions);
                let done = wanted.0.intersection(&succeeded.0).count();
                if rule.succeeded_count.is_none() {
                    return done == wanted.0.len();
                }
                done
            }
            None => succeeded.0.len(),
        };
        let enough = rule
            .succeeded_count
            .and_then(|count| usize::try_from(count).ok());
        enough.is_some_and(|enough| counted >= enough)
    })?;
    Some(format!("Matched rules at index {met}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(spec: Value) -> Job {
        let mut spec = spec;
        spec["template"] = json!({ "spec": { "containers": [] } });
        serde_json::from_value(json!({ "metadata": { "name": "j" }, "spec": spec })).expect("a Job")
    }

    fn failed(code: i32, condition: Option<&str>) -> Pod {
        let conditions: Vec<_> = condition
            .iter()
            .map(|kind| json!({ "type": kind, "status": "True" }))
            .collect();
        serde_json::from_value(json!({
            "metadata": { "name": "j-x", "namespace": "ns" },
            "status": {
                "phase": "Failed", "conditions": conditions,
                "containerStatuses": [{
                    "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "terminated": { "exitCode": code } },
                }],
            },
        }))
        .expect("a pod")
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let job = job(json!({ "podFailurePolicy": { "rules": [
            { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
            { "action": "FailJob", "onExitCodes": { "containerName": "main", "operator": "In", "values": [42] } },
            { "action": "FailIndex", "onExitCodes": { "operator": "NotIn", "values": [1] } },
        ] } }));
        assert_eq!(
            action(&job, &failed(42, Some("DisruptionTarget"))),
            Action::Ignore
        );
        let message = "Container main for pod ns/j-x failed with exit code 42 matching FailJob rule at index 1";
        assert_eq!(
            action(&job, &failed(42, None)),
            Action::FailJob(message.into())
        );
        assert_eq!(action(&job, &failed(7, None)), Action::FailIndex);
        assert_eq!(action(&job, &failed(1, None)), Action::Count);
    }

    #[test]
    fn enough_has_succeeded_by_indexes_by_number_or_both() {
        let met = |rule: Value, done: &str| {
            let job = job(json!({ "successPolicy": { "rules": [rule] } }));
            succeeded(&job, &Indexes::parse(done, 10), 10).is_some()
        };
        let leaders = json!({ "succeededIndexes": "0,2" });
        assert!(met(leaders.clone(), "0,2,5") && !met(leaders, "0"));
        let any = json!({ "succeededCount": 2 });
        assert!(met(any.clone(), "3,4") && !met(any, "3"));
        let of_these = json!({ "succeededIndexes": "0-3", "succeededCount": 1 });
        assert!(met(of_these.clone(), "2,9") && !met(of_these, "9"));
    }
}
