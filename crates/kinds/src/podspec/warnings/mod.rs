//! Collects the warnings for a valid pod spec (`pkg/api/pod/warnings.go`).
//!
//! The warnings are in kube-apiserver's order, independent of the file that finds them. There may be one for each pair of ports or files,
//! so code that compares pairs stops when [`Warnings::is_full`].

mod overlaps;
mod placement;
mod ports;
mod volumes;

pub(crate) use placement::deprecated_node_label;

use std::collections::HashSet;

use mullion_kube_text::{field::Path, golang::quote, names};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{CONTAINER_LISTS, annotations::APPARMOR_CONTAINER, totals::quantity};
use crate::request::warnings::Warnings;

const DEPRECATED_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
];

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP: &str = r#"non-functional in v1.27+; use the "seccompProfile" field instead"#;
/// The warning about an AppArmor profile that is set only by an annotation.
pub(super) const APPARMOR: &str =
    r#"deprecated since v1.30; use the "appArmorProfile" field instead"#;

fn has_profile(owner: &Value, field: &str) -> bool {
    owner
        .field("securityContext")
        .is_some_and(|context| context.has(field))
}

/// Returns the warnings about a new Pod.
pub(crate) fn of_pod(pod: &Value) -> Vec<String> {
    let mut found = WarningList::default();
    found.host_name(pod, "the Pod's hostname");
    found.spec_and_metadata(pod, &Path::new("metadata"), &Path::new("spec"), false);
    found.0.into_texts()
}

/// Returns the warnings about the template of a workload. For a new workload, these include warnings about its name, with which the names
/// of its pods begin.
pub(crate) fn of_workload(workload: &Value, new: bool) -> Vec<String> {
    let mut found = WarningList::default();
    if new {
        found.host_name(workload, "Pod names and hostnames");
    }
    let spec = Path::new("spec");
    found.template(&workload["spec"]["template"], &spec.child("template"));
    found.0.into_texts()
}

/// Returns the warnings about a template at any other path.
pub(crate) fn of_template(template: &Value, path: &Path<'_>) -> Vec<String> {
    let mut found = WarningList::default();
    found.template(template, path);
    found.0.into_texts()
}

/// Returns the warnings about a required node selector.
pub(crate) fn of_node_selector(selector: &Value, path: &Path<'_>) -> Vec<String> {
    let mut found = WarningList::default();
    let terms = path.child("nodeSelectorTerms");
    for (index, term) in selector.items("nodeSelectorTerms").iter().enumerate() {
        found.node_selector_term(term, &terms.index(index));
    }
    found.0.into_texts()
}

/// Returns the warnings about a label selector for nodes.
pub(crate) fn of_label_selector(selector: &Value, path: &Path<'_>) -> Vec<String> {
    let mut found = WarningList::default();
    found.node_selector_term(selector, path);
    let labels = path.child("matchLabels");
    for (label, _) in selector.entries("matchLabels") {
        if let Some(message) = deprecated_node_label(label) {
            found.add(&labels.child(label), message);
        }
    }
    found.0.into_texts()
}

/// Returns the warning about a workload's name, with which the names of its pods begin.
pub(crate) fn of_host_name(workload: &Value) -> Vec<String> {
    let mut found = WarningList::default();
    found.host_name(workload, "Pod names and hostnames");
    found.0.into_texts()
}

/// The warnings found so far, in kube-apiserver's order.
#[derive(Default)]
struct WarningList(Warnings);

impl WarningList {
    fn add(&mut self, path: &Path<'_>, message: &str) {
        if !self.0.is_full() {
            self.0.add(format!("{path}: {message}"));
        }
    }

    fn template(&mut self, template: &Value, path: &Path<'_>) {
        self.spec_and_metadata(template, &path.child("metadata"), &path.child("spec"), true);
    }

    fn host_name(&mut self, object: &Value, used_in: &str) {
        let sentences = names::dns_label(object["metadata"].text("name"));
        if !sentences.is_empty() {
            let why = sentences.join(" ");
            let text = format!(
                "this is used in {used_in}, which can result in surprising behavior; a DNS label is recommended: [{why}]"
            );
            self.add(&Path::new("metadata").child("name"), &text);
        }
    }

    fn spec_and_metadata(
        &mut self,
        object: &Value,
        metadata_path: &Path<'_>,
        path: &Path<'_>,
        template: bool,
    ) {
        let none = Value::Null;
        let (spec, metadata) = (
            object.get("spec").unwrap_or(&none),
            object.get("metadata").unwrap_or(&none),
        );
        let annotations_path = metadata_path.child("annotations");
        self.node_labels(spec, path);
        self.spread(spec, path);
        for (key, message) in DEPRECATED_ANNOTATIONS {
            if metadata
                .entries("annotations")
                .any(|(other, _)| other == key)
            {
                self.add(&annotations_path.key(key), message);
            }
        }
        self.volumes(spec, &path.child("volumes"));
        self.overlapping_files(spec.items("volumes"));
        self.repeated(spec, "hostAliases", "ip", path);
        self.repeated(spec, "imagePullSecrets", "name", path);
        let secrets = path.child("imagePullSecrets");
        for (index, _) in spec
            .items("imagePullSecrets")
            .iter()
            .enumerate()
            .filter(|(_, secret)| secret.text("name").is_empty())
        {
            self.add(
                &secrets.index(index).child("name"),
                r#"invalid empty name """#,
            );
        }
        self.fractions(spec, &["overhead"], path);
        let annotations = &metadata["annotations"];
        if annotations.has(SECCOMP_POD) && !has_profile(spec, "seccompProfile") {
            self.add(&annotations_path.key(SECCOMP_POD), SECCOMP);
        }
        for list in CONTAINER_LISTS {
            let at = path.child(list);
            for (index, container) in spec.items(list).iter().enumerate() {
                let context = (spec, annotations);
                self.profile_annotations(container, context, &annotations_path, template);
                self.container(container, &at.index(index));
            }
        }
        self.ports(spec, path);
        self.port_names(spec, path);
        if spec
            .integer("terminationGracePeriodSeconds")
            .is_some_and(|seconds| seconds < 0)
        {
            let message = "must be >= 0; negative values are invalid and will be treated as 1";
            self.add(&path.child("terminationGracePeriodSeconds"), message);
        }
        self.pod_affinity(spec, &path.child("affinity"));
        self.addresses(spec, path);
    }

    fn repeated(&mut self, spec: &Value, list: &str, field: &str, path: &Path<'_>) {
        let at = path.child(list);
        let items = spec.items(list);
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let value = item.text(field);
            if !seen.insert(value) {
                self.add(
                    &at.index(index).child(field),
                    &format!("duplicate {field} {}", quote(value)),
                );
            }
        }
    }

    /// Warns about fractional bytes in resource lists below the path.
    fn fractions(&mut self, owner: &Value, lists: &[&str], path: &Path<'_>) {
        for name in ["memory", "ephemeral-storage"] {
            for list in lists {
                let Some(amount) = owner.get(list).and_then(|list| list.field(name)) else {
                    continue;
                };
                let amount = quantity(amount);
                if !amount.is_integer() {
                    let value = quote(&amount.to_string());
                    self.add(
                        &path.child(list).key(name),
                        &format!("fractional byte value {value} is invalid, must be an integer"),
                    );
                }
            }
        }
    }

    /// Warns about annotations that set a container's profiles and have been replaced by fields.
    fn profile_annotations(
        &mut self,
        container: &Value,
        (spec, annotations): (&Value, &Value),
        path: &Path<'_>,
        template: bool,
    ) {
        let name = container.text("name");
        let annotated =
            |prefix: &str| Some(format!("{prefix}{name}")).filter(|key| annotations.has(key));
        if !has_profile(container, "seccompProfile")
            && let Some(key) = annotated("container.seccomp.security.alpha.kubernetes.io/")
        {
            self.add(&path.key(&key), SECCOMP);
        }
        // A pod gets this warning when the fields are set from the annotations.
        if template
            && !has_profile(spec, "appArmorProfile")
            && !has_profile(container, "appArmorProfile")
            && let Some(key) = annotated(APPARMOR_CONTAINER)
        {
            self.add(&path.key(&key), APPARMOR);
        }
    }

    fn container(&mut self, container: &Value, path: &Path<'_>) {
        if let Some(resources) = container.field("resources") {
            self.fractions(resources, &["limits", "requests"], &path.child("resources"));
        }
        let variables = container.items("env");
        let at = path.child("env");
        let mut seen = HashSet::new();
        for (index, variable) in variables.iter().enumerate() {
            let (name, value) = (variable.text("name"), variable.text("value"));
            if seen.insert(name) {
                continue;
            }
            let reference = format!("$({name})");
            // A value that extends the earlier one, as in `$(PATH):/bin`, is meant to hide it.
            if variable.has("valueFrom") || value == reference || !value.contains(&reference) {
                let message = format!(
                    "hides previous definition of {}, which may be dropped when using apply",
                    quote(name)
                );
                self.add(&at.index(index), &message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_hidden_variable_is_worth_a_warning_unless_it_is_used() {
        let env = |value: &str| json!({"metadata": {"name": "x"}, "spec": {"containers": [{"env": [{"name": "A", "value": "1"}, {"name": "A", "value": value}]}]}});
        assert!(of_pod(&env("$(A)2")).is_empty());
        assert_eq!(
            of_pod(&env("2")),
            [
                r#"spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply"#
            ]
        );
    }

    /// Returns how many warnings a pod gets and how many times memory was asked for to find them.
    fn counted(pod: &Value) -> (usize, u64) {
        let mut warnings = 0;
        let counted = allocation_counter::measure(|| warnings = of_pod(pod).len());
        (warnings, counted.count_total)
    }

    #[test]
    fn pairs_are_looked_for_no_longer_than_headers_hold_warnings_of_them() {
        let repeat = |item: Value| Value::Array(vec![item; 20_000]);
        let of_container = |container: Value| json!({"spec": {"containers": [container]}});
        let file = |path: String| json!({"key": "k", "path": path});
        let equal = repeat(file("a".to_owned()));
        let nested: Value = (0..20_000)
            .map(|index| file("a/".repeat(index % 50) + "b"))
            .collect();
        let volume = |source: Value| {
            let mut volume = source;
            volume["name"] = "v".into();
            json!({"spec": {"volumes": [volume]}})
        };
        let projected = |items: &Value| {
            volume(json!({"projected": {"sources": [{"secret": {"name": "s", "items": items}}]}}))
        };
        for (pod, least) in [
            (
                of_container(json!({"ports": repeat(json!({"containerPort": 80}))})),
                30,
            ),
            (
                of_container(
                    json!({"ports": repeat(json!({"containerPort": 80, "hostIP": "10.0.0.1"}))}),
                ),
                30,
            ),
            (
                of_container(json!({"env": repeat(json!({"name": "A", "value": "x"}))})),
                30,
            ),
            (
                volume(json!({"configMap": {"name": "m", "items": equal}})),
                1,
            ),
            (
                volume(json!({"configMap": {"name": "m", "items": nested}})),
                1,
            ),
            (projected(&equal), 1),
            (projected(&nested), 1),
            (
                json!({"spec": {"imagePullSecrets": repeat(json!({"name": "s"}))}}),
                30,
            ),
        ] {
            let (warnings, allocations) = counted(&pod);
            assert!((least..150).contains(&warnings), "{warnings}");
            assert!(allocations < 20_000 * 50, "{allocations}");
        }
    }

    #[test]
    fn what_is_not_written_as_usual_is_worth_a_warning() {
        let preference =
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "-1"]}]});
        let pod = json!({"metadata": {"name": "x"}, "spec": {
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": preference}]}},
            "dnsConfig": {"nameservers": ["1.1.1.1", "2001:DB8::1"]}, "hostAliases": [{"ip": "0:0::1"}],
        }});
        let found = of_pod(&pod);
        assert!(
            found[0].starts_with("spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values[1]: -1 is invalid, a valid label must be")
        );
        assert_eq!(
            found[1..],
            [
                r#"spec.dnsConfig.nameservers[1]: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")"#,
                r#"spec.hostAliases[0].ip: IPv6 address "0:0::1" should be in RFC 5952 canonical format ("::1")"#,
            ]
        );
    }
}
