//! core/v1 Node: its kubelet writes the status, admission taints new nodes as not ready, and the fields of the cloud provider are
//! immutable.

use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;
use mullion_kube_text::{
    field::{self, ErrorType, Errors, Path},
    golang::quote,
    names, quantity,
    validation::{metadata, net, resources},
};
use mullion_schema::tree::{Tree, object_at};
use serde_json::Value;

use super::{
    Check, Column, Kind, node_annotations,
    print::{AGE, NAME, age, column, name, or_none, wide},
};
use crate::{
    FieldSelection, Printing,
    fields::{self, Field, required},
    podspec,
    request::Ctx,
};

const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
const ROLE_LABEL: &str = "kubernetes.io/role";

const TAINT: &[Field] = &[required("effect", podspec::TAINT_EFFECT)];

/// core/v1 Node.
pub(crate) struct Node;

impl Kind for Node {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            align_pod_cidrs(spec);
        }
        let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) else {
            return;
        };
        for list in ["capacity", "allocatable"] {
            status
                .get_mut(list)
                .into_iter()
                .for_each(quantity::round_list);
        }
        let capacity = status.get("capacity").filter(|capacity| {
            capacity
                .as_object()
                .is_some_and(|capacity| !capacity.is_empty())
        });
        // SetDefaults_NodeStatus: a kubelet that reserves nothing may report the capacity alone.
        if let (Some(capacity), None) = (
            capacity.cloned(),
            status.get("allocatable").and_then(Value::as_object),
        ) {
            status.insert("allocatable".to_owned(), capacity);
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        if let Some(root) = object.as_object_mut() {
            // Dynamic configuration of kubelets was removed, so no new node may ask for it.
            object_at(root, "spec").remove("configSource");
        }
        if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
            status.remove("config");
        }
    }

    /// Drops `configSource`, which configured kubelets and has no effect any more, unless the stored node has it.
    fn prepare_update(&self, _ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        drop_unless_kept(object, old, "spec", "configSource");
    }

    fn prepare_status(&self, _ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        drop_unless_kept(object, old, "status", "config");
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        node_annotations::validate(errors, &object["metadata"]["annotations"]);
        taints(errors, object);
        declared_resources(errors, object);
        pod_cidrs(errors, object["spec"].items("podCIDRs"));
        declared_features(errors, object["status"].items("declaredFeatures"));
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[
            Check::Metadata,
            Check::Object,
            Check::MetadataChange,
            Check::Change,
        ]
    }

    fn validate_update(&self, ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        // ValidateNodeUpdate serves both endpoints.
        self.validate_status(ctx, object, old, errors);
    }

    fn validate_status(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        node_annotations::validate(errors, &object["metadata"]["annotations"]);
        declared_resources(errors, object);
        duplicate_addresses(errors, object["status"].items("addresses"));
        once_set(errors, object, old);
        taints(errors, object);
        declared_features(errors, object["status"].items("declaredFeatures"));
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        let (spec, mut found) = (&object["spec"], Vec::new());
        if spec.has("configSource") {
            found.push("spec.configSource: the feature is removed".to_owned());
        }
        if !spec.text("externalID").is_empty() {
            found.push(
                "spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned(),
            );
        }
        found
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }
}

impl Printing for Node {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Status"),
            column("Roles"),
            AGE,
            column("Version"),
            wide("Internal-IP"),
            wide("External-IP"),
            wide("OS-Image"),
            wide("Kernel-Version"),
            wide("Container-Runtime"),
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let info = &object["status"]["nodeInfo"];
        let known = |field: &str| match info.text(field) {
            "" => "<unknown>",
            text => text,
        };
        let kernel = match (known("kernelVersion"), info.text("architecture")) {
            ("<unknown>", _) | (_, "") => known("kernelVersion").to_owned(),
            (kernel, architecture) => format!("{kernel} ({architecture})"),
        };
        vec![
            name(object),
            status(object).into(),
            roles(object).into(),
            age(object, now),
            info.text("kubeletVersion").into(),
            address(object, "InternalIP").into(),
            address(object, "ExternalIP").into(),
            known("osImage").into(),
            kernel.into(),
            known("containerRuntimeVersion").into(),
        ]
    }
}

impl FieldSelection for Node {
    fn selectable_fields(&self) -> &[&'static str] {
        &["spec.unschedulable"]
    }

    fn selectable_value(&self, object: &Value, _field: &str) -> String {
        object["spec"].flag("unschedulable").to_string()
    }
}

fn drop_unless_kept(object: &mut Value, old: &Value, part: &str, field: &str) {
    if !old[part].has(field)
        && let Some(part) = object.get_mut(part).and_then(Value::as_object_mut)
    {
        part.remove(field);
    }
}

/// Sets `podCIDRs` and `podCIDR`, which is the first of `podCIDRs`. If a client sends both and they differ, `podCIDR` wins.
fn align_pod_cidrs(spec: &mut serde_json::Map<String, Value>) {
    let first = spec
        .get("podCIDRs")
        .and_then(Value::as_array)
        .and_then(|cidrs| cidrs.first())
        .cloned();
    let single = spec
        .get("podCIDR")
        .filter(|cidr| cidr.as_str().is_some_and(|cidr| !cidr.is_empty()))
        .cloned();
    match (single, first) {
        (Some(single), first) if first.as_ref() != Some(&single) => {
            spec.insert("podCIDRs".to_owned(), Value::Array(vec![single]));
        }
        (None, Some(first)) => {
            spec.insert("podCIDR".to_owned(), first);
        }
        _ => {}
    }
}

fn taints(errors: &mut Errors, node: &Value) {
    // kube-apiserver reports errors about taints below metadata.
    let path = Path::new("metadata");
    taint_list(errors, &path.child("taints"), node["spec"].items("taints"));
}

/// Records the errors of taints; `path` is the list's.
pub(super) fn taint_list(errors: &mut Errors, path: &Path<'_>, taints: &[Value]) {
    let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let path = path.index(index);
        let (key, effect) = (taint.text("key"), taint.text("effect"));
        metadata::label_name(errors, &path.child("key"), key);
        let sentences = names::label_value(taint.text("value"));
        if !sentences.is_empty() {
            errors.invalid(
                &path.child("value"),
                taint.text("value"),
                // kube-apiserver makes one error of all sentences here.
                sentences.join(";"),
            );
        }
        fields::validate(TAINT, taint, &path, errors);
        if !seen.insert((key, effect)) {
            let text = field::go_struct(&[
                ("Key", key.into()),
                ("Value", taint.text("value").into()),
                ("Effect", effect.into()),
                ("TimeAdded", taint["timeAdded"].clone()),
            ]);
            errors.with_text(
                ErrorType::Duplicate,
                &path,
                text,
                "taints must be unique by key and effect pair",
            );
        }
    }
}

fn declared_resources(errors: &mut Errors, node: &Value) {
    let path = Path::new("status");
    for list in ["capacity", "allocatable"] {
        for (resource, amount) in node["status"].entries(list) {
            resources::amount(
                errors,
                &path.child(list).child(resource),
                resource,
                amount.as_str().unwrap_or(""),
            );
        }
    }
}

fn pod_cidrs(errors: &mut Errors, cidrs: &[Value]) {
    let path = Path::new("spec");
    let path = path.child("podCIDRs");
    let texts: Vec<&str> = cidrs.iter().filter_map(Value::as_str).collect();
    for (index, cidr) in texts.iter().enumerate() {
        net::cidr(errors, &path.index(index), cidr, net::OldValues::NONE);
    }
    let unreadable = texts
        .iter()
        .enumerate()
        .find(|(_, cidr)| net::parse_cidr(cidr).is_none());
    if let (Some((index, cidr)), true) = (unreadable, texts.len() > 1) {
        // kube-apiserver then counts the families too, and reports that error as well.
        let why = format!(
            "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{index}]: <nil> (invalid CIDR address: {cidr})"
        );
        errors.internal(&path, why);
    }
    let families: BTreeSet<bool> = texts
        .iter()
        .filter_map(|cidr| net::parse_cidr(cidr))
        .map(|range| range.network.is_ipv4())
        .collect();
    let both = unreadable.is_none() && families.len() == 2;
    if texts.len() > 1 && (texts.len() > 2 || !both) {
        errors.invalid(
            &path,
            cidrs,
            "may specify no more than one CIDR for each IP family",
        );
    }
}

/// Validates the features that a kubelet declares: valid names, each greater than the one before.
fn declared_features(errors: &mut Errors, features: &[Value]) {
    let path = Path::new("status");
    let path = path.child("declaredFeatures");
    let texts: Vec<&str> = features.iter().filter_map(Value::as_str).collect();
    for (index, name) in texts.iter().enumerate() {
        if !is_feature_name(name) {
            let why = format!(
                "invalid feature name {}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' \
                 (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes",
                quote(name)
            );
            errors.invalid(&path.index(index), *name, why);
        }
        // kube-apiserver compares neighbours only.
        if let Some(next) = texts.get(index + 1) {
            let at = path.index(index + 1);
            if name == next {
                errors.duplicate(&at, *next);
            } else if name > next {
                errors.invalid(&at, *next, "list must be sorted alphabetically");
            }
        }
    }
}

/// Returns whether a name consists of alphanumeric segments, the first of which begins with a capital letter.
fn is_feature_name(name: &str) -> bool {
    let is_segment =
        |segment: &str| !segment.is_empty() && segment.bytes().all(|b| b.is_ascii_alphanumeric());
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.split('/').all(is_segment)
}

fn duplicate_addresses(errors: &mut Errors, addresses: &[Value]) {
    let path = Path::new("status");
    let path = path.child("addresses");
    let mut seen = HashSet::new();
    for (index, address) in addresses.iter().enumerate() {
        if !seen.insert(address) {
            let text = field::go_struct(&[
                ("Type", address["type"].clone()),
                ("Address", address["address"].clone()),
            ]);
            errors.with_text(ErrorType::Duplicate, &path.index(index), text, "");
        }
    }
}

fn once_set(errors: &mut Errors, node: &Value, old: &Value) {
    let path = Path::new("spec");
    let (now, before) = (
        node["spec"].items("podCIDRs"),
        old["spec"].items("podCIDRs"),
    );
    let changes = if now.len() == before.len() {
        now.iter()
            .zip(before)
            .filter(|(now, before)| now != before)
            .count()
    } else {
        1
    };
    if !before.is_empty() {
        // kube-apiserver repeats the error for each range that changed.
        for _ in 0..changes {
            errors.forbidden(
                &path.child("podCIDRs"),
                "node updates may not change podCIDR except from \"\" to valid",
            );
        }
    }
    let provider = old["spec"].text("providerID");
    if !provider.is_empty() && node["spec"].text("providerID") != provider {
        errors.forbidden(
            &path.child("providerID"),
            "node updates may not change providerID except from \"\" to valid",
        );
    }
    if node["spec"].text("externalID") != old["spec"].text("externalID") {
        errors.forbidden(&path.child("externalID"), "may not be updated");
    }
}

fn status(node: &Value) -> String {
    // printNode collects conditions in a map, which keeps the last one of a type.
    let ready = node["status"]
        .items("conditions")
        .iter()
        .rfind(|condition| condition["type"] == "Ready");
    let mut text = match ready {
        None => "Unknown".to_owned(),
        Some(ready) if ready["status"] == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
    };
    if node["spec"].flag("unschedulable") {
        text.push_str(",SchedulingDisabled");
    }
    text
}

fn roles(node: &Value) -> String {
    let roles: BTreeSet<&str> = node["metadata"]
        .entries("labels")
        .filter_map(|(key, value)| match key.strip_prefix(ROLE_PREFIX) {
            Some(role) => Some(role),
            // The older label has the role as its value.
            None if key == ROLE_LABEL => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    or_none(&roles.into_iter().collect::<Vec<_>>().join(",")).to_owned()
}

fn address<'n>(node: &'n Value, kind: &str) -> &'n str {
    let found = node["status"]
        .items("addresses")
        .iter()
        .find(|address| address["type"] == kind);
    or_none(found.map_or("", |address| address.text("address")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn allocatable_defaults_to_capacity_in_canonical_form() {
        let mut node = json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4000m"}}});
        Node.default(&mut node);
        assert_eq!(node["status"]["allocatable"], json!({"cpu": "4"}));
    }

    #[test]
    fn roles_come_from_both_kinds_of_labels() {
        let node = json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}}});
        assert_eq!(roles(&node), "edge,worker");
        assert_eq!(roles(&json!({"metadata": {}})), "<none>");
    }

    #[test]
    fn ranges_of_pods_are_one_of_each_family_as_they_are_read() {
        const TWO: &str = "may specify no more than one CIDR for each IP family";
        let rows: [(Value, Vec<String>); 4] = [
            (json!(["10.0.0.0/8", "fd00::/64"]), vec![]),
            // An IPv4 range in IPv6 notation.
            (
                json!(["::ffff:10.0.0.0/104", "10.0.0.0/8"]),
                vec![
                    r#"spec.podCIDRs[0]: Invalid value: "::ffff:10.0.0.0/104": must not have an IPv4-mapped IPv6 address"#.to_owned(),
                    format!(r#"spec.podCIDRs: Invalid value: ["::ffff:10.0.0.0/104","10.0.0.0/8"]: {TWO}"#),
                ],
            ),
            (
                json!(["10.0.0.0", "fd00::/64"]),
                vec![
                    r#"spec.podCIDRs[0]: Invalid value: "10.0.0.0": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"#.to_owned(),
                    "spec.podCIDRs: Internal error: invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[0]: <nil> (invalid CIDR address: 10.0.0.0)".to_owned(),
                    format!(r#"spec.podCIDRs: Invalid value: ["10.0.0.0","fd00::/64"]: {TWO}"#),
                ],
            ),
            (
                json!(["x"]),
                vec![
                    r#"spec.podCIDRs[0]: Invalid value: "x": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"#.to_owned(),
                ],
            ),
        ];
        for (cidrs, expected) in rows {
            let list = cidrs.as_array().expect("a list");
            assert_eq!(
                field::causes(|errors| pod_cidrs(errors, list)),
                expected,
                "{cidrs}"
            );
        }
    }

    #[test]
    fn the_same_taint_twice_is_a_duplicate() {
        let node = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "value": "c", "effect": "NoSchedule"}]}});
        let mut errors = Errors::default();
        taints(&mut errors, &node);
        assert_eq!(errors.0[0].field, "metadata.taints[1]");
        assert_eq!(
            errors.0[0].body(),
            r#"Duplicate value: {"Key":"a","Value":"c","Effect":"NoSchedule","TimeAdded":null}: taints must be unique by key and effect pair"#
        );
    }
}
