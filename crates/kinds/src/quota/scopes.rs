//! Which objects a quota with scopes counts: only those in all of its scopes.

use mullion_schema::tree::Tree;
use serde_json::Value;

use super::CountedKind;
use crate::podspec::qos;

/// Returns whether the object is in every scope of a quota.
pub fn contain(quota: &Value, counted: &CountedKind<'_>, object: &Value) -> bool {
    let spec = &quota["spec"];
    let named = spec
        .items("scopes")
        .iter()
        .filter_map(Value::as_str)
        .all(|scope| is_in(counted, object, scope, "Exists", &[]));
    named
        && spec["scopeSelector"]
            .items("matchExpressions")
            .iter()
            .all(|requirement| {
                let scope = requirement.text("scopeName");
                let values = requirement.items("values");
                is_in(counted, object, scope, requirement.text("operator"), values)
            })
}

fn is_in(
    counted: &CountedKind<'_>,
    object: &Value,
    scope: &str,
    operator: &str,
    values: &[Value],
) -> bool {
    let spec = &object["spec"];
    let selects = |class: &str| match operator {
        "In" => values.iter().any(|value| value == class),
        "NotIn" => !values.iter().any(|value| value == class),
        "Exists" => !class.is_empty(),
        "DoesNotExist" => class.is_empty(),
        _ => false,
    };
    match (counted.core_plural(), scope) {
        ("pods", "Terminating") => is_terminating(object),
        ("pods", "NotTerminating") => !is_terminating(object),
        ("pods", "BestEffort") => qos::class(spec) == "BestEffort",
        ("pods", "NotBestEffort") => qos::class(spec) != "BestEffort",
        ("pods", "PriorityClass") => selects(spec.text("priorityClassName")),
        ("pods", "CrossNamespacePodAffinity") => reaches_out(&spec["affinity"]),
        ("persistentvolumeclaims", "VolumeAttributesClass") => {
            let status = &object["status"];
            let target = &status["modifyVolumeStatus"];
            let mut classes = vec![
                spec.text("volumeAttributesClassName"),
                status.text("currentVolumeAttributesClassName"),
                target.text("targetVolumeAttributesClassName"),
            ];
            classes.retain(|class| !class.is_empty());
            match classes.as_slice() {
                [] => selects(""),
                classes => classes.iter().any(|class| selects(class)),
            }
        }
        _ => false,
    }
}

/// Returns whether a pod has a deadline (`activeDeadlineSeconds`), which is the scope `Terminating`.
pub fn is_terminating(pod: &Value) -> bool {
    let seconds = pod["spec"].integer("activeDeadlineSeconds");
    seconds.is_some_and(|seconds| seconds >= 0)
}

/// Returns whether a term of the affinity selects pods of other namespaces.
fn reaches_out(affinity: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|side| {
        let terms = &affinity[*side];
        let required = terms
            .items("requiredDuringSchedulingIgnoredDuringExecution")
            .iter();
        let preferred = terms
            .items("preferredDuringSchedulingIgnoredDuringExecution")
            .iter()
            .map(|weighted| &weighted["podAffinityTerm"]);
        required
            .chain(preferred)
            .any(|term| !term.items("namespaces").is_empty() || term.has("namespaceSelector"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_counted_only_in_all_scopes() {
        let pods = CountedKind::named("", "pods");
        let pod = json!({"spec": {"activeDeadlineSeconds": 5, "priorityClassName": "high", "containers": [{"name": "a"}]}});
        let quota = |spec: Value| contain(&json!({"spec": spec}), &pods, &pod);
        assert!(quota(json!({"scopes": ["Terminating", "BestEffort"]})));
        assert!(!quota(json!({"scopes": ["Terminating", "NotBestEffort"]})));
        let class = |operator: &str, values: &[&str]| {
            quota(
                json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}}),
            )
        };
        assert!(class("In", &["high"]));
        assert!(!class("NotIn", &["high"]));
        assert!(class("Exists", &[]));
    }
}
