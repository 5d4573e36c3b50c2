//! Says why an existing NodePool buys nothing: by its own conditions and by those of its node class.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use mullion_api::karpenter::{EC2NodeClass, NodePool, node_pool_condition as condition};

/// The reason of a condition of a node class that waits for other conditions of the class.
const WAITS: &str = "DependenciesNotReady";

/// Returns why a pool does not buy nodes. `class` is its node class, if that exists.
pub(super) fn reason(pool: &NodePool, class: Option<&EC2NodeClass>) -> String {
    if pool.metadata.deletion_timestamp.is_some() {
        return "it is being deleted".to_owned();
    }
    if pool.spec.replicas.is_some() {
        return "it has a fixed number of nodes".to_owned();
    }
    let all = conditions_of_pool(pool, class);
    if all.is_empty() {
        "it is not ready".to_owned()
    } else {
        format!("it is not ready: {}", all.join("; "))
    }
}

/// Returns what the conditions of a pool say that keep it from being ready, each message once. What is said of the class is what the conditions
/// of `class` say, if it is given.
pub(crate) fn conditions_of_pool(pool: &NodePool, class: Option<&EC2NodeClass>) -> Vec<String> {
    let conditions = pool.status.iter().flat_map(|status| &status.conditions);
    let wrong: Vec<&Condition> = conditions.filter(|own| own.status != "True").collect();
    let of = |kinds: &[&str]| {
        let wrong = wrong
            .iter()
            .filter(|own| kinds.contains(&own.type_.as_str()));
        let mut all: Vec<String> = Vec::new();
        for wrong in wrong {
            let own = class.filter(|_| wrong.type_ == condition::NODE_CLASS_READY);
            let said = own.and_then(of_class);
            let said = said.unwrap_or_else(|| message(wrong).to_owned());
            if !all.contains(&said) {
                all.push(said);
            }
        }
        all
    };
    // `Ready` only summarizes the other two conditions, so its message is used only if they have none.
    let all = of(&[condition::VALIDATION_SUCCEEDED, condition::NODE_CLASS_READY]);
    if all.is_empty() {
        of(&[condition::READY])
    } else {
        all
    }
}

/// Returns what the conditions of a class say that keep it from being ready; `None` if they say nothing. The pool's condition repeats the
/// class's summary only, as in `SubnetsReady=False`.
fn of_class(class: &EC2NodeClass) -> Option<String> {
    let all = messages(&wrong_of_class(class));
    (!all.is_empty()).then(|| {
        format!(
            "EC2NodeClass {} is not ready: {}",
            class.name_any(),
            all.join("; ")
        )
    })
}

/// Returns the conditions of a class that keep it from being ready: those that have failed, or else those that are still open.
pub(crate) fn wrong_of_class(class: &EC2NodeClass) -> Vec<&Condition> {
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    let conditions: Vec<&Condition> = conditions.collect();
    let ready = conditions.iter().find(|own| own.type_ == condition::READY);
    let Some(ready) = ready else {
        return Vec::new();
    };
    // The summary lists them, as in `SubnetsReady=False, AMIsReady=Unknown`.
    let counts = |own: &&&Condition| {
        let mut parts = ready.message.split(", ");
        parts.any(|part| part.split('=').next() == Some(&own.type_))
    };
    let wrong = conditions.iter().filter(|own| own.status != "True");
    let wrong: Vec<_> = wrong.filter(counts).copied().collect();
    // What has failed says more than what is still open.
    let failed = |own: &&&Condition| own.status == "False" && own.reason != WAITS;
    let failed: Vec<_> = wrong.iter().filter(failed).copied().collect();
    if failed.is_empty() { wrong } else { failed }
}

/// Returns the messages of conditions, each once.
pub(crate) fn messages(conditions: &[&Condition]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for message in conditions.iter().map(|own| message(own)) {
        if !all.iter().any(|own| own == message) {
            all.push(message.to_owned());
        }
    }
    all
}

/// Returns a condition's message, or its reason if it has none.
pub(crate) fn message(condition: &Condition) -> &str {
    match condition.message.as_str() {
        "" => &condition.reason,
        message => message,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn conditions(all: &[(&str, &str, &str)]) -> Value {
        let all = all.iter().map(|(kind, status, message)| {
            json!({
                "type": kind, "status": status, "reason": "Why", "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"
            })
        });
        all.collect()
    }

    fn pool(all: &[(&str, &str, &str)]) -> NodePool {
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"template": {"spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []}}},
            "status": {"conditions": conditions(all)},
        }))
        .expect("a pool")
    }

    fn class(all: &[(&str, &str, &str)]) -> EC2NodeClass {
        serde_json::from_value(json!({
            "metadata": {"name": "n"}, "spec": {}, "status": {"conditions": conditions(all)},
        }))
        .expect("a class")
    }

    #[test]
    fn each_reason_of_a_pool_that_is_not_ready_is_said_once() {
        let missing = "NodeClass not found on cluster";
        let told = reason(
            &pool(&[
                (condition::NODE_CLASS_READY, "False", missing),
                (
                    condition::NODE_REGISTRATION_HEALTHY,
                    "Unknown",
                    "object is awaiting reconciliation",
                ),
                (condition::VALIDATION_SUCCEEDED, "False", missing),
                (
                    condition::READY,
                    "False",
                    "NodeClassReady=False, ValidationSucceeded=False",
                ),
            ]),
            None,
        );
        assert_eq!(told, format!("it is not ready: {missing}"));
        let unknown = reason(&pool(&[(condition::READY, "Unknown", "")]), None);
        assert_eq!(unknown, "it is not ready: Why");
        assert_eq!(reason(&pool(&[]), None), "it is not ready");
    }

    #[test]
    fn a_class_that_is_not_ready_says_why_itself() {
        let summary = "SubnetsReady=False, ValidationSucceeded=Unknown";
        let pool = pool(&[
            (condition::NODE_CLASS_READY, "False", summary),
            (condition::READY, "False", "NodeClassReady=False"),
        ]);
        let subnets = "SubnetSelector did not match any Subnets";
        let mut wrong = vec![
            ("SubnetsReady", "False", subnets),
            (
                "ValidationSucceeded",
                "Unknown",
                "object is awaiting reconciliation",
            ),
            ("FieldsIgnored", "False", "nobody asked"),
            ("Ready", "False", summary),
        ];
        let expected = format!("it is not ready: EC2NodeClass n is not ready: {subnets}");
        assert_eq!(reason(&pool, Some(&class(&wrong))), expected);
        wrong.remove(0);
        let open =
            "it is not ready: EC2NodeClass n is not ready: object is awaiting reconciliation";
        assert_eq!(reason(&pool, Some(&class(&wrong))), open);
        // A class that has become ready since says nothing.
        let ready = class(&[("Ready", "True", "")]);
        let expected = format!("it is not ready: {summary}");
        assert_eq!(reason(&pool, Some(&ready)), expected);
    }
}
