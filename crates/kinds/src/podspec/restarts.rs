//! Checks that a status update does not restart containers that may not restart.

use std::collections::HashSet;

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::Value;

/// Refuses a status in which a container runs again although it ended and must not restart.
pub(super) fn validate(
    status: &Value,
    old: &Value,
    spec: &Value,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let policy = spec.text("restartPolicy");
    let lists = [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
    ];
    // A rule with that action also restarts containers that would not restart on their own.
    if !may_restart_all(spec) {
        for (statuses, containers) in lists {
            let containers = spec.items(containers);
            let may_restart = |name: &str, code: i64| {
                containers
                    .iter()
                    .find(|container| container.text("name") == name)
                    .is_some_and(|container| restarts(container, policy, code))
            };
            listed(status, old, statuses, path, may_restart, errors);
        }
    }
    let never = |_: &str, _: i64| false;
    listed(
        status,
        old,
        "ephemeralContainerStatuses",
        path,
        never,
        errors,
    );
}

fn listed(
    status: &Value,
    old: &Value,
    list: &str,
    path: &Path<'_>,
    may_restart: impl Fn(&str, i64) -> bool,
    errors: &mut Errors,
) {
    let path = path.child(list);
    let running = status.items(list).iter();
    let running = running.filter(|after| terminated(after).is_none());
    let running: HashSet<&str> = running.map(|after| after.text("name")).collect();
    for (index, before) in old.items(list).iter().enumerate() {
        let Some(ended) = terminated(before) else {
            continue;
        };
        let name = before.text("name");
        if running.contains(name) && !may_restart(name, ended.integer("exitCode").unwrap_or(0)) {
            errors.forbidden(
                // The index is that of the old status, as in kube-apiserver.
                &path.index(index).child("state"),
                "may not be transitioned to non-terminated state",
            );
        }
    }
}

fn terminated(status: &Value) -> Option<&Value> {
    status.field("state")?.field("terminated")
}

/// Returns whether any container has a restart rule with the action `RestartAllContainers`.
fn may_restart_all(spec: &Value) -> bool {
    ["initContainers", "containers"]
        .into_iter()
        .flat_map(|list| spec.items(list))
        .flat_map(|container| container.items("restartPolicyRules"))
        .any(|rule| rule.text("action") == "RestartAllContainers")
}

/// Returns whether a container restarts after an exit with this code. The container's first matching rule decides, then its own policy,
/// then that of the pod.
fn restarts(container: &Value, pod_policy: &str, code: i64) -> bool {
    let own_policy = container.text("restartPolicy");
    let fits = |rule: &&Value| {
        let Some(codes) = rule.field("exitCodes") else {
            return false;
        };
        let is_listed = codes
            .items("values")
            .iter()
            .any(|value| value.as_i64() == Some(code));
        match codes.text("operator") {
            "In" => is_listed,
            "NotIn" => !is_listed,
            _ => false,
        }
    };
    let rule = container.items("restartPolicyRules").iter().find(fits);
    if !own_policy.is_empty() && rule.is_some_and(|rule| rule.text("action") == "Restart") {
        return true;
    }
    let policy = if own_policy.is_empty() {
        pod_policy
    } else {
        own_policy
    };
    match policy {
        "Never" => false,
        "OnFailure" => code != 0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    /// Returns whether a container that exited with this code may be running again.
    fn may(spec: Value, list: &str, code: i64) -> bool {
        let status = |state: Value| json!({list: [{"name": "a", "state": state}]});
        let (old, new) = (
            status(json!({"terminated": {"exitCode": code}})),
            status(json!({"running": {}})),
        );
        causes(|errors| validate(&new, &old, &spec, &Path::new("status"), errors)).is_empty()
    }

    #[test]
    fn policies_and_rules_say_which_containers_start_again() {
        let pod = |policy: &str, container: Value| {
            let mut container = container;
            container["name"] = "a".into();
            json!({"restartPolicy": policy, "containers": [container]})
        };
        let rule = json!({"restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}},
        ]});
        let all = json!({"restartPolicy": "Never", "restartPolicyRules": [
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}},
        ]});
        for (spec, code, expected) in [
            (pod("Always", json!({})), 0, true),
            (pod("OnFailure", json!({})), 0, false),
            (pod("OnFailure", json!({})), 1, true),
            (pod("Never", json!({})), 1, false),
            (pod("Never", json!({"restartPolicy": "OnFailure"})), 1, true),
            (pod("Always", json!({"restartPolicy": "Never"})), 1, false),
            (pod("Always", rule.clone()), 1, false),
            (pod("Never", rule), 42, true),
            (pod("Never", all), 1, true),
            (
                json!({"restartPolicy": "Always", "containers": []}),
                1,
                false,
            ),
        ] {
            assert_eq!(
                may(spec.clone(), "containerStatuses", code),
                expected,
                "{spec} {code}"
            );
        }
        let sidecar = json!({"restartPolicy": "Never", "initContainers": [{"name": "a", "restartPolicy": "Always"}]});
        assert!(may(sidecar, "initContainerStatuses", 0));
        let helper = json!({"restartPolicy": "Always", "ephemeralContainers": [{"name": "a"}]});
        assert!(!may(helper, "ephemeralContainerStatuses", 1));
    }

    #[test]
    fn the_place_of_the_old_status_is_named() {
        let old = json!({"containerStatuses": [{"name": "b"}, {"name": "a", "state": {"terminated": {"exitCode": 1}}}]});
        let new = json!({"containerStatuses": [{"name": "a"}]});
        let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}, {"name": "b"}]});
        let mut errors = Errors::default();
        validate(&new, &old, &spec, &Path::new("status"), &mut errors);
        assert_eq!(errors.0[0].field, "status.containerStatuses[1].state");
    }
}
