//! Prepares a new pod for validation: sets its first status, completes selectors with its labels, and sets AppArmor fields from
//! annotations.

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::tree::{Tree, object_at};
use serde_json::{Map, Value, json};

use super::{annotations::APPARMOR_CONTAINER, defaults, qos, security, warnings::APPARMOR};

/// Sets the status of a new pod and does the rest of kube-apiserver's PrepareForCreate. Returns warnings for the client.
pub(crate) fn creation(pod: &mut Value, now: jiff::Timestamp) -> Vec<String> {
    drop_disabled(pod);
    let labels = pod
        .get("metadata")
        .and_then(|metadata| metadata.get("labels"))
        .cloned()
        .unwrap_or_default();
    let none = Value::Null;
    let spec = pod.get("spec").unwrap_or(&none);
    let mut status = json!({"phase": "Pending", "qosClass": qos::class(spec)});
    if !spec.items("schedulingGates").is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null, "lastTransitionTime": super::status::seconds(now),
        }]);
    }
    // A status that the client sent is lost here: a new pod is pending, whatever it says.
    pod["status"] = status;
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        defaults::mirror_service_account(spec);
        merge_label_keys(spec, &labels);
    }
    apparmor_from_annotations(pod)
}

/// Removes the fields of features that are off by default: `lifecycle.stopSignal`, `schedulingGroup` and certificate projections.
pub(crate) fn drop_disabled(pod: &mut Value) {
    if let Some(spec) = pod.get_mut("spec") {
        drop_disabled_spec(spec);
    }
}

/// Does the same as [`drop_disabled`] for the spec of a template.
pub(crate) fn drop_disabled_spec(spec: &mut Value) {
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("schedulingGroup");
    }
    for volume in list_mut(spec, "volumes") {
        let Some(projected) = volume.get_mut("projected") else {
            continue;
        };
        for source in list_mut(projected, "sources").filter_map(Value::as_object_mut) {
            source.remove("clusterTrustBundle");
            source.remove("podCertificate");
        }
    }
    for list in super::CONTAINER_LISTS {
        let Some(containers) = spec.get_mut(list).and_then(Value::as_array_mut) else {
            continue;
        };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            let Some(lifecycle) = container
                .get_mut("lifecycle")
                .and_then(Value::as_object_mut)
            else {
                continue;
            };
            if lifecycle.remove("stopSignal").is_some() && lifecycle.is_empty() {
                container.remove("lifecycle");
            }
        }
    }
}

/// Adds the keys of `matchLabelKeys` and `mismatchLabelKeys` to the selector next to them, with the values of the pod's own labels.
fn merge_label_keys(spec: &mut Map<String, Value>, labels: &Value) {
    if let Some(affinity) = spec.get_mut("affinity") {
        for field in ["podAffinity", "podAntiAffinity"] {
            let Some(terms) = affinity.get_mut(field) else {
                continue;
            };
            for weighted in list_mut(terms, "preferredDuringSchedulingIgnoredDuringExecution") {
                if let Some(term) = weighted.get_mut("podAffinityTerm") {
                    merge_into_selector(term, labels);
                }
            }
            list_mut(terms, "requiredDuringSchedulingIgnoredDuringExecution")
                .for_each(|term| merge_into_selector(term, labels));
        }
    }
    if let Some(constraints) = spec
        .get_mut("topologySpreadConstraints")
        .and_then(Value::as_array_mut)
    {
        constraints
            .iter_mut()
            .for_each(|constraint| merge_into_selector(constraint, labels));
    }
}

fn list_mut<'a>(owner: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    owner
        .get_mut(field)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

fn merge_into_selector(owner: &mut Value, labels: &Value) {
    // A missing selector selects no pod, and an expression added to it would make it select some.
    if !owner.has("labelSelector") {
        return;
    }
    let mut expressions = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in owner.items(field).iter().filter_map(Value::as_str) {
            // kube-apiserver skips keys for which the pod has no label.
            if let Some(value) = labels.field(key) {
                expressions.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    if expressions.is_empty() {
        return;
    }
    let selector = &mut owner["labelSelector"];
    match selector
        .get_mut("matchExpressions")
        .and_then(Value::as_array_mut)
    {
        Some(present) => present.extend(expressions),
        None => selector["matchExpressions"] = expressions.into(),
    }
}

/// Copies AppArmor profiles from annotations to fields, which kubelets read. Returns warnings that ask the client to set the fields.
fn apparmor_from_annotations(pod: &mut Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let prefixed = |(key, value): (&str, &Value)| {
        Some((
            key.strip_prefix(APPARMOR_CONTAINER)?.to_owned(),
            value.as_str()?.to_owned(),
        ))
    };
    let profiles: Vec<(String, String)> = pod["metadata"]
        .entries("annotations")
        .filter_map(prefixed)
        .collect();
    let windows = pod["spec"]
        .field("os")
        .is_some_and(|os| os.text("name") == "windows");
    // Validation forbids AppArmor fields in a Windows pod, so the annotation must not become one.
    if profiles.is_empty() || windows {
        return warnings;
    }
    let pod_profile = pod["spec"]
        .field("securityContext")
        .and_then(|context| context.field("appArmorProfile"))
        .cloned();
    for list in super::CONTAINER_LISTS {
        for container in list_mut(&mut pod["spec"], list) {
            let annotation = profiles
                .iter()
                .find(|(name, _)| name == container.text("name"));
            let has_own = container
                .field("securityContext")
                .is_some_and(|context| context.has("appArmorProfile"));
            let (Some((name, annotation)), false) = (annotation, has_own) else {
                continue;
            };
            let profile = profile_of_annotation(annotation);
            // The pod's own profile already says the same, so the container needs no field.
            if profile.is_some() && profile == pod_profile {
                continue;
            }
            let path = format!("metadata.annotations[{APPARMOR_CONTAINER}{name}]");
            warnings.push(format!("{path}: {APPARMOR}"));
            if let (Some(profile), Some(container)) = (profile, container.as_object_mut()) {
                object_at(container, "securityContext").insert("appArmorProfile".into(), profile);
            }
        }
    }
    warnings
}

fn profile_of_annotation(annotation: &str) -> Option<Value> {
    let profile = match annotation {
        "unconfined" => json!({"type": "Unconfined"}),
        "runtime/default" => json!({"type": "RuntimeDefault"}),
        other => {
            json!({"type": "Localhost", "localhostProfile": other.strip_prefix("localhost/")?})
        }
    };
    let mut errors = Errors::default();
    security::apparmor(&profile, &Path::new("appArmorProfile"), &mut errors);
    // An invalid profile sets no field, or the client would see an error about a field that it did not send.
    errors.is_empty().then_some(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_features_that_are_off_are_dropped() {
        let mut spec = json!({
            "schedulingGroup": {"podGroupName": "g"},
            "containers": [{"lifecycle": {"stopSignal": "SIGUSR1"}}],
            "volumes": [{"projected": {"sources": [{"clusterTrustBundle": {"path": "a"}}, {"podCertificate": {}}, {"secret": {}}]}}],
        });
        drop_disabled_spec(&mut spec);
        assert_eq!(
            spec,
            json!({"containers": [{}], "volumes": [{"projected": {"sources": [{}, {}, {"secret": {}}]}}]})
        );
    }

    #[test]
    fn label_keys_become_expressions_of_the_selector() {
        let mut pod = json!({
            "metadata": {"labels": {"a": "b", "x": "1"}},
            "spec": {"topologySpreadConstraints": [
                {"labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["x", "absent"]}, {"matchLabelKeys": ["x"]},
            ]},
        });
        creation(&mut pod, jiff::Timestamp::UNIX_EPOCH);
        let constraints = &pod["spec"]["topologySpreadConstraints"];
        assert_eq!(
            constraints[0]["labelSelector"]["matchExpressions"],
            json!([{"key": "x", "operator": "In", "values": ["1"]}])
        );
        assert!(constraints[1].get("labelSelector").is_none());
    }

    #[test]
    fn a_gated_pod_says_that_it_is_not_scheduled() {
        let mut pod = json!({"metadata": {}, "spec": {"schedulingGates": [{"name": "g"}]}, "status": {"phase": "Running"}});
        creation(&mut pod, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(pod["status"]["phase"], "Pending");
        assert_eq!(
            pod["status"]["conditions"][0]["lastTransitionTime"],
            "1970-01-01T00:00:00Z"
        );
    }

    #[test]
    fn apparmor_annotations_become_fields() {
        let mut pod = json!({
            "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/a": "localhost/p"}},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
        });
        let warnings = creation(&mut pod, jiff::Timestamp::UNIX_EPOCH);
        let warning = r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/a]: deprecated since v1.30; use the "appArmorProfile" field instead"#;
        assert_eq!(warnings, [warning]);
        let profile = &pod["spec"]["containers"][0]["securityContext"]["appArmorProfile"];
        assert_eq!(
            *profile,
            json!({"type": "Localhost", "localhostProfile": "p"})
        );
        assert!(
            pod["spec"]["containers"][1]
                .get("securityContext")
                .is_none()
        );
    }
}
