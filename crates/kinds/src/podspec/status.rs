//! Validates and prepares writes to a pod's status.

use std::collections::{HashMap, HashSet, VecDeque};

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{check, net},
};
use mullion_schema::tree::{Tree, set_default};
use serde_json::Value;

use super::{allocated, annotations, restarts};
use crate::fields::{self, AtLeast, Field, Format, Items, Number, always, set};

const STATUS: &[Field] = &[set(
    "observedGeneration",
    AtLeast(0, "must be a non-negative integer"),
)];
const LINUX_USER: &[Field] = &[
    always("uid", Number(names::unix_id)),
    always("gid", Number(names::unix_id)),
    always("supplementalGroups", Items(&Number(names::unix_id))),
];
const CLAIM: &[Field] = &[set("resourceClaimName", Format(names::dns_subdomain))];
const STATUS_LISTS: [&str; 3] = [
    "containerStatuses",
    "initContainerStatuses",
    "ephemeralContainerStatuses",
];

/// Formats a time with whole seconds, as the API prints it.
pub(crate) fn seconds(time: jiff::Timestamp) -> String {
    mullion_schema::time::format_seconds(&time)
}

/// Restores status fields that a writer may leave out, and adds the times of conditions that are always printed.
pub(crate) fn prepare(pod: &mut Value, old: &Value) {
    let none = Value::Null;
    let old = old.get("status").unwrap_or(&none);
    let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    // Writers that do not know these two fields must not remove them.
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
    // This field's feature gate is off by default, and kube-apiserver drops the fields of such features.
    status.remove("nodeAllocatableResourceClaimStatuses");
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
            // Go prints both structs even if they are empty, so clients rely on their presence.
            set_default(container, "state", serde_json::Map::new());
            set_default(container, "lastState", serde_json::Map::new());
            drop_disabled(container);
        }
    }
}

/// Removes the fields of features that 1.36 has off by default: `ContainerStopSignals` and `ImageVolumeWithDigest`.
fn drop_disabled(container: &mut serde_json::Map<String, Value>) {
    container.remove("stopSignal");
    for mount in container
        .get_mut("volumeMounts")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        mount.remove("volumeStatus");
    }
}

/// Restores the observed generation of conditions that lack one from the old condition of the same type; several of one type are paired in
/// order.
fn keep_condition_generations(conditions: &mut [Value], old: &[Value]) {
    let mut old_of_type: HashMap<&str, VecDeque<&Value>> = HashMap::new();
    for condition in old {
        let of_type = old_of_type.entry(condition.text("type")).or_default();
        of_type.push_back(condition);
    }
    for condition in conditions {
        let of_type = old_of_type.get_mut(condition.text("type"));
        let before = of_type.and_then(VecDeque::pop_front);
        let Some(condition) = condition.as_object_mut() else {
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
            // Go has no `omitempty` for structs: a time that is not set is printed as null.
            set_default(condition, time, Value::Null);
        }
    }
}

/// Validates the new status of a pod against the old one.
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
    // The status endpoint also writes annotations, so they are checked as for an update.
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
    let path = Path::new("status");
    conditions(
        status.items("conditions"),
        &path.child("conditions"),
        errors,
    );
    let nominated = status.text("nominatedNodeName");
    // Only a changed name is checked, or no status of a bound pod that still carries one could be written.
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
    fields::validate(STATUS, status, &path, errors);
    fields::immutable(&["qosClass"], status, old_status, &path, errors);
    restarts::validate(status, old_status, spec, &path, errors);
    claim_statuses(
        status.items("resourceClaimStatuses"),
        spec,
        &path.child("resourceClaimStatuses"),
        errors,
    );
    if let Some(claim) = status.field("extendedResourceClaimStatus") {
        let at = path.child("extendedResourceClaimStatus");
        allocated::validate_extended(claim, spec, &at, errors);
    }
    addresses(
        status.items("podIPs"),
        old_status.items("podIPs"),
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
    addresses(
        hosts,
        old_status.items("hostIPs"),
        "HostIP",
        &path.child("hostIPs"),
        errors,
    );
    for list in STATUS_LISTS {
        let at = path.child(list);
        for (index, container) in status.items(list).iter().enumerate() {
            let at = at.index(index);
            user(container, spec, &at.child("user").child("linux"), errors);
        }
    }
    allocated::validate_health(status, spec, &path, errors);
}

/// Validates the ids that a container runs with, which Windows pods do not have.
fn user(container: &Value, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(user) = container.field("user").and_then(|user| user.field("linux")) else {
        return;
    };
    // A pod that does not name its system counts as a Linux pod.
    match spec.field("os").map_or("linux", |os| os.text("name")) {
        "windows" => errors.forbidden(path, "cannot be set for a windows pod"),
        "linux" => {
            fields::validate(LINUX_USER, user, path, errors);
        }
        _ => {}
    }
}

fn conditions(conditions: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, condition) in conditions.iter().enumerate() {
        let at = path.index(index);
        fields::validate(STATUS, condition, &at, errors);
        let kind = condition.text("type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            // kube-apiserver writes this path with a capital letter.
            check(errors, &at.child("Type"), kind, names::qualified_name(kind));
        }
    }
}

fn claim_statuses(statuses: &[Value], spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let claims = spec.items("resourceClaims").iter();
    let claims: HashSet<&str> = claims.map(|claim| claim.text("name")).collect();
    let mut seen = HashSet::new();
    for (index, status) in statuses.iter().enumerate() {
        let entry = path.index(index);
        let at = entry.child("name");
        let name = status.text("name");
        if !claims.contains(name) {
            errors.invalid(
                &at,
                name,
                "must match the name of an entry in `spec.resourceClaims`",
            );
        }
        if !seen.insert(name) {
            errors.duplicate(&at, name);
        }
        fields::validate(CLAIM, status, &entry, errors);
    }
}

/// Validates addresses, of which there may be one of each family. Invalid addresses that are stored already may stay.
fn addresses(list: &[Value], old: &[Value], type_name: &str, path: &Path<'_>, errors: &mut Errors) {
    let kept = old.iter().map(|entry| entry.text("ip")).collect();
    for (index, entry) in list.iter().enumerate() {
        net::ip(errors, &path.index(index), entry.text("ip"), &kept);
    }
    if list.len() < 2 {
        return;
    }
    let ips: Vec<_> = list
        .iter()
        .map(|entry| net::parse_ip(entry.text("ip")))
        .collect();
    if let Some(index) = ips.iter().position(Option::is_none) {
        let why = format!(
            "failed to check for dual stack with error:invalid IP[{index}]: {}",
            list[index].text("ip")
        );
        errors.internal(path, why);
    }
    // kube-apiserver goes on after the internal error, so a list with an address that does not parse gets this one too.
    let six = ips.iter().flatten().filter(|ip| ip.is_ipv6()).count();
    if ips.contains(&None) || ips.len() > 2 || six != 1 {
        let texts = list
            .iter()
            .map(|entry| super::internal::compact(type_name, entry))
            .collect::<Vec<_>>();
        let text = format!("[{}]", texts.join(","));
        let detail = "may specify no more than one IP for each IP family";
        errors.with_text(
            mullion_kube_text::field::ErrorType::Invalid,
            path,
            text,
            detail,
        );
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

    /// Returns the fields of the errors of a status change.
    fn refused(spec: Value, old: Value, new: Value) -> Vec<String> {
        let pod = |status: Value| json!({"spec": spec, "status": status});
        let mut errors = Errors::default();
        validate(&pod(new), &pod(old), &mut errors);
        errors.0.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn what_is_wrong_is_named_where_it_stands() {
        for (status, expected) in [
            (
                json!({"conditions": [{"type": "a b", "observedGeneration": -1}]}),
                vec![
                    "status.conditions[0].observedGeneration",
                    "status.conditions[0].Type",
                ],
            ),
            (
                json!({"initContainerStatuses": [{"name": "a", "user": {"linux": {"uid": -1, "gid": 0}}}]}),
                vec!["status.initContainerStatuses[0].user.linux.uid"],
            ),
            (
                json!({"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "C"}]}),
                vec!["status.resourceClaimStatuses[0].resourceClaimName"],
            ),
            (
                json!({"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": []}}),
                vec!["status.extendedResourceClaimStatus.requestMappings"],
            ),
        ] {
            let spec = json!({"resourceClaims": [{"name": "c"}]});
            assert_eq!(refused(spec, Value::Null, status), expected);
        }
    }

    #[test]
    fn addresses_are_one_of_each_family() {
        let status = |ips: &[&str]| {
            let ips: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
            json!({"podIPs": ips})
        };
        let refused = |old: &[&str], new: &[&str]| refused(Value::Null, status(old), status(new));
        assert!(refused(&[], &["1.1.1.1", "::1"]).is_empty());
        assert_eq!(refused(&[], &["1.1.1.1", "1.1.1.2"]), ["status.podIPs"]);
        assert_eq!(refused(&[], &["1.1.1.1", "1.1.1.1"]), ["status.podIPs"]);
        assert_eq!(refused(&[], &["1.1.1.1", "::1", "::2"]), ["status.podIPs"]);
        assert_eq!(refused(&[], &["01.1.1.1"]), ["status.podIPs[0]"]);
        assert!(refused(&["01.1.1.1"], &["01.1.1.1"]).is_empty());
    }
}
