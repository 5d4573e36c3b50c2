//! The status of a pod: what a writer may change of it.

use serde_json::Value;

use super::annotations;
use crate::{
    field::{Errors, Path, go_struct},
    kinds::tree::{Tree, set_default},
    validation::{check, immutable, names, net},
};

const STATUS_LISTS: [&str; 3] = [
    "containerStatuses",
    "initContainerStatuses",
    "ephemeralContainerStatuses",
];

/// A time as the API prints it: whole seconds.
pub(crate) fn seconds(time: jiff::Timestamp) -> String {
    crate::schema::time::format_seconds(&time)
}

/// Keeps what a writer of the status may leave out, and gives conditions the times that are always printed.
pub(crate) fn prepare(pod: &mut Value, old: &Value) {
    let none = Value::Null;
    let old = old.get("status").unwrap_or(&none);
    let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    if status
        .get("qosClass")
        .and_then(Value::as_str)
        .is_none_or(str::is_empty)
        && let Some(class) = old.field("qosClass")
    {
        status.insert("qosClass".into(), class.clone());
    }
    if status
        .get("observedGeneration")
        .and_then(Value::as_i64)
        .unwrap_or(0)
        == 0
        && let Some(generation) = old.field("observedGeneration")
    {
        status.insert("observedGeneration".into(), generation.clone());
    }
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        keep_condition_generations(conditions, old.items("conditions"));
    }
    for list in STATUS_LISTS {
        for container in status
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            set_default(container, "state", serde_json::Map::new());
            set_default(container, "lastState", serde_json::Map::new());
        }
    }
}

/// A condition without an observed generation keeps that of the old condition of its type; several of one type pair up in order.
fn keep_condition_generations(conditions: &mut [Value], old: &[Value]) {
    for index in 0..conditions.len() {
        let kind = conditions[index].text("type").to_owned();
        let nth = conditions[..index]
            .iter()
            .filter(|other| other.text("type") == kind)
            .count();
        let before = old
            .iter()
            .filter(|other| other.text("type") == kind)
            .nth(nth);
        let Some(condition) = conditions[index].as_object_mut() else {
            continue;
        };
        if condition
            .get("observedGeneration")
            .and_then(Value::as_i64)
            .unwrap_or(0)
            == 0
            && let Some(generation) = before.and_then(|before| before.field("observedGeneration"))
        {
            condition.insert("observedGeneration".into(), generation.clone());
        }
        for time in ["lastProbeTime", "lastTransitionTime"] {
            set_default(condition, time, Value::Null);
        }
    }
}

/// What a new status must keep of the old one.
pub(crate) fn validate(pod: &Value, old: &Value, errors: &mut Errors) {
    let none = Value::Null;
    let (spec, metadata) = (
        pod.get("spec").unwrap_or(&none),
        pod.get("metadata").unwrap_or(&none),
    );
    let (status, old_status) = (
        pod.get("status").unwrap_or(&none),
        old.get("status").unwrap_or(&none),
    );
    let metadata_path = Path::new("metadata");
    let old_metadata = old.get("metadata").unwrap_or(&none);
    annotations::validate_update(
        metadata,
        old_metadata,
        &metadata_path.child("annotations"),
        errors,
    );
    annotations::validate(
        metadata,
        &super::Scope::of_pod(spec),
        &metadata_path.child("annotations"),
        errors,
    );
    condition_types(
        status.items("conditions"),
        &metadata_path.child("conditions"),
        errors,
    );
    let path = Path::new("status");
    let nominated = status.text("nominatedNodeName");
    if !nominated.is_empty() && nominated != old_status.text("nominatedNodeName") {
        check(
            errors,
            &path.child("nominatedNodeName"),
            nominated,
            names::dns_subdomain(nominated),
        );
        if !spec.text("nodeName").is_empty() {
            let why = "may not be set on pods that are already bound to a node";
            errors.forbidden(&path.child("nominatedNodeName"), why);
        }
    }
    if let Some(observed) = status
        .integer("observedGeneration")
        .filter(|seen| *seen < 0)
    {
        let at = path.child("observedGeneration");
        errors.invalid(&at, observed, "must be a non-negative integer");
    }
    immutable(
        errors,
        &path.child("qosClass"),
        status.get("qosClass").unwrap_or(&none),
        old_status.get("qosClass").unwrap_or(&none),
    );
    transitions(status, old_status, spec, &path, errors);
    claim_statuses(
        status.items("resourceClaimStatuses"),
        spec,
        &path.child("resourceClaimStatuses"),
        errors,
    );
    addresses(
        status.items("podIPs"),
        "PodIP",
        &path.child("podIPs"),
        errors,
    );
    let hosts = status.items("hostIPs");
    if let Some(first) = hosts
        .first()
        .map(|first| first.text("ip"))
        .filter(|first| *first != status.text("hostIP"))
    {
        errors.invalid(
            &path.child("hostIPs").index(0).child("ip"),
            first,
            "must be equal to `hostIP`",
        );
    }
    addresses(hosts, "HostIP", &path.child("hostIPs"), errors);
    for list in STATUS_LISTS {
        let at = path.child(list);
        for (index, container) in status.items(list).iter().enumerate() {
            user(container, spec, &at.index(index).child("linux"), errors);
        }
    }
}

/// The ids that a container runs with; Windows has none.
fn user(container: &Value, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(user) = container.field("user").and_then(|user| user.field("linux")) else {
        return;
    };
    match spec.field("os").map_or("linux", |os| os.text("name")) {
        "windows" => errors.forbidden(path, "cannot be set for a windows pod"),
        "linux" => {
            let mut id = |path: &Path<'_>, id: i64| {
                for sentence in names::unix_id(id) {
                    errors.invalid(path, id, sentence);
                }
            };
            for field in ["uid", "gid"] {
                id(&path.child(field), user.integer(field).unwrap_or(0));
            }
            let groups = path.child("supplementalGroups");
            for (index, group) in user.items("supplementalGroups").iter().enumerate() {
                id(&groups.index(index), group.as_i64().unwrap_or(0));
            }
        }
        _ => {}
    }
}

fn condition_types(conditions: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, condition) in conditions.iter().enumerate() {
        let kind = condition.text("type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            check(
                errors,
                &path.index(index).child("Type"),
                kind,
                names::qualified_name(kind),
            );
        }
    }
}

/// A container that has ended for good does not start again.
fn transitions(status: &Value, old: &Value, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let policy = spec.text("restartPolicy");
    let sidecar = |name: &str| {
        spec.items("initContainers").iter().any(|container| {
            container.text("name") == name && container.text("restartPolicy") == "Always"
        })
    };
    let own_policy = |name: &str| {
        super::CONTAINER_LISTS
            .into_iter()
            .flat_map(|list| spec.items(list))
            .any(|container| {
                container.text("name") == name
                    && (container.has("restartPolicy") || container.has("restartPolicyRules"))
            })
    };
    for list in STATUS_LISTS {
        let ephemeral = list == "ephemeralContainerStatuses";
        if policy == "Always" && !ephemeral {
            continue;
        }
        for (index, before) in old.items(list).iter().enumerate() {
            let name = before.text("name");
            let Some(ended) = before
                .get("state")
                .and_then(|state| state.field("terminated"))
            else {
                continue;
            };
            let failed = ended.integer("exitCode").unwrap_or(0) != 0;
            let may_restart = !ephemeral
                && ((failed && policy == "OnFailure") || sidecar(name) || own_policy(name));
            let runs = |after: &Value| {
                after.text("name") == name
                    && !after
                        .get("state")
                        .is_some_and(|state| state.has("terminated"))
            };
            if !may_restart && status.items(list).iter().any(runs) {
                let at = path.child(list);
                errors.forbidden(
                    &at.index(index).child("state"),
                    "may not be transitioned to non-terminated state",
                );
            }
        }
    }
}

fn claim_statuses(statuses: &[Value], spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, status) in statuses.iter().enumerate() {
        let at = path.index(index);
        let at = at.child("name");
        let name = status.text("name");
        if !spec
            .items("resourceClaims")
            .iter()
            .any(|claim| claim.text("name") == name)
        {
            errors.invalid(
                &at,
                name,
                "must match the name of an entry in `spec.resourceClaims`",
            );
        }
        if statuses[..index]
            .iter()
            .any(|other| other.text("name") == name)
        {
            errors.duplicate(&at, name);
        }
        if status.has("resourceClaimName") {
            let claim = status.text("resourceClaimName");
            check(errors, &at, claim, names::dns_subdomain(claim));
        }
    }
}

/// Addresses: at most one of each family.
fn addresses(list: &[Value], type_name: &str, path: &Path<'_>, errors: &mut Errors) {
    let before = errors.0.len();
    for (index, entry) in list.iter().enumerate() {
        net::ip(errors, &path.index(index), entry.text("ip"));
    }
    if list.len() < 2 || errors.0.len() > before {
        return;
    }
    let six = list
        .iter()
        .filter(|entry| net::is_v6(entry.text("ip")))
        .count();
    let texts = list
        .iter()
        .map(|entry| super::internal::compact(type_name, entry))
        .collect::<Vec<_>>();
    if list.len() > 2 || six != 1 {
        let text = format!("[{}]", texts.join(","));
        let detail = "may specify no more than one IP for each IP family";
        errors.with_text(crate::field::ErrorType::Invalid, path, text, detail);
    }
    for (index, entry) in list.iter().enumerate() {
        if list[..index]
            .iter()
            .any(|other| other.text("ip") == entry.text("ip"))
        {
            let text = go_struct(&[("IP", entry.text("ip").into())]);
            errors.with_text(
                crate::field::ErrorType::Duplicate,
                &path.index(index),
                text,
                "",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_writer_leaves_out_is_kept() {
        let old = json!({"status": {"qosClass": "Burstable", "observedGeneration": 2, "conditions": [{"type": "Ready", "observedGeneration": 2}]}});
        let mut pod = json!({"status": {"conditions": [{"type": "Ready"}, {"type": "Other"}], "containerStatuses": [{"name": "a"}]}});
        prepare(&mut pod, &old);
        assert_eq!(
            (
                &pod["status"]["qosClass"],
                &pod["status"]["observedGeneration"]
            ),
            (&json!("Burstable"), &json!(2))
        );
        assert_eq!(pod["status"]["conditions"][0]["observedGeneration"], 2);
        assert!(
            pod["status"]["conditions"][1]
                .get("observedGeneration")
                .is_none()
        );
        assert_eq!(
            pod["status"]["containerStatuses"][0]["lastState"],
            json!({})
        );
    }

    #[test]
    fn a_container_that_ended_does_not_run_again() {
        let pod = |state: Value| json!({"spec": {"restartPolicy": "Never"}, "status": {"containerStatuses": [{"name": "a", "state": state}]}});
        let mut errors = Errors::default();
        validate(
            &pod(json!({"running": {}})),
            &pod(json!({"terminated": {"exitCode": 1}})),
            &mut errors,
        );
        assert_eq!(errors.0[0].field, "status.containerStatuses[0].state");
    }
}
