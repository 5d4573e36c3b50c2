//! Decides whether a container is restarted: by the pod's policy, the container's own policy, and its rules by exit
//! code (kubelet: `ContainerShouldRestart`, `ShouldAllContainersRestart`). [`super::pod`] carries out a restart of
//! all containers.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, PodSpec};

/// The action of a rule that restarts all containers of the pod.
const ALL: &str = "RestartAllContainers";

/// Returns whether `container` is restarted after an exit with `code`.
pub(super) fn after_exit(container: &Container, spec: &PodSpec, code: i32) -> bool {
    let own = container.restart_policy.as_deref();
    // All rules of 1.36 restart something, so a matching one decides against the policy.
    if rule_for(container, code).is_some() {
        return true;
    }
    match own.or(spec.restart_policy.as_deref()) {
        Some("Never") => false,
        Some("OnFailure") => code != 0,
        _ => true,
    }
}

/// Returns whether the restart policy does not restart a container that succeeded. Rules by exit code are ignored.
pub(super) fn is_once(container: &Container, spec: &PodSpec) -> bool {
    let own = container.restart_policy.as_deref();
    matches!(
        own.or(spec.restart_policy.as_deref()),
        Some("Never" | "OnFailure")
    )
}

/// Returns whether a container whose probe failed is restarted: always, unless the policy is `Never`.
pub(super) fn after_failed_probe(container: &Container, spec: &PodSpec) -> bool {
    let own = container.restart_policy.as_deref();
    own.or(spec.restart_policy.as_deref()) != Some("Never")
}

/// Returns whether an exit of `container` with `code` restarts all containers of its pod.
pub(super) fn of_all(container: &Container, code: i32) -> bool {
    rule_for(container, code).is_some_and(|rule| rule.action == ALL)
}

/// Returns whether a pod has a rule that can restart all its containers (kubelet: `AllContainersCouldRestart`).
pub(super) fn may_be_of_all(spec: &PodSpec) -> bool {
    let init = spec.init_containers.iter().flatten();
    let mut rules = init
        .chain(&spec.containers)
        .flat_map(|container| container.restart_policy_rules.iter().flatten());
    rules.any(|rule| rule.action == ALL)
}

/// Returns the first rule that matches an exit. Rules count only if the container has a policy of its own, which
/// validation requires.
fn rule_for(container: &Container, code: i32) -> Option<&ContainerRestartRule> {
    let mut rules = container.restart_policy_rules.iter().flatten();
    rules.find(|rule| container.restart_policy.is_some() && matches(rule, code))
}

fn matches(rule: &ContainerRestartRule, code: i32) -> bool {
    let Some(exit) = &rule.exit_codes else {
        return false;
    };
    let listed = exit.values.iter().flatten().any(|value| *value == code);
    match exit.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn verdict(container: Value, pod_policy: &str, code: i32) -> bool {
        let mut container = container;
        container["name"] = json!("c");
        let container = serde_json::from_value(container).expect("a container");
        let spec = PodSpec {
            restart_policy: Some(pod_policy.to_owned()),
            ..PodSpec::default()
        };
        after_exit(&container, &spec, code)
    }

    #[test]
    fn a_containers_rules_come_before_its_policy_and_its_policy_before_the_pods() {
        let rule = |operator: &str| {
            json!({
                "restartPolicy": "Never",
                "restartPolicyRules": [{ "action": "Restart", "exitCodes": { "operator": operator, "values": [42] } }],
            })
        };
        let cases = [
            (json!({}), "Always", 0, true),
            (json!({}), "OnFailure", 0, false),
            (json!({}), "OnFailure", 1, true),
            (json!({}), "Never", 1, false),
            (json!({ "restartPolicy": "OnFailure" }), "Never", 1, true),
            (json!({ "restartPolicy": "Never" }), "Always", 1, false),
            (rule("In"), "Always", 42, true),
            (rule("In"), "Always", 1, false),
            (rule("NotIn"), "Always", 1, true),
            (rule("NotIn"), "Always", 42, false),
        ];
        for (container, policy, code, expected) in cases {
            assert_eq!(
                verdict(container.clone(), policy, code),
                expected,
                "{container} in a pod with {policy} after {code}"
            );
        }
    }
}
