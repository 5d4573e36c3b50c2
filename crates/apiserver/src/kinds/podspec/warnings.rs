//! What a client is warned of in a pod spec that is accepted (`pkg/api/pod/warnings.go`).

use std::fmt::Write;

use serde_json::Value;

use super::{CONTAINER_LISTS, annotations::APPARMOR_CONTAINER, totals::quantity};
use crate::{
    field::{Path, quote},
    kinds::tree::Tree,
    validation::names,
};

const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";
const DEPRECATED_NODE_LABELS: [(&str, &str); 5] = [
    (
        "beta.kubernetes.io/arch",
        r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#,
    ),
    (
        "beta.kubernetes.io/os",
        r#"deprecated since v1.14; use "kubernetes.io/os" instead"#,
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#,
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#,
    ),
    (
        "beta.kubernetes.io/instance-type",
        r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#,
    ),
];
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
const DEPRECATED_VOLUMES: [(&str, &str, &str); 9] = [
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "gitRepo",
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    (
        "scaleIO",
        "scaleIO",
        "deprecated in v1.16, non-functional in v1.22+",
    ),
    (
        "flocker",
        "flocker",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "storageos",
        "storageOS",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "quobyte",
        "quobyte",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "glusterfs",
        "glusterfs",
        "deprecated in v1.25, non-functional in v1.26+",
    ),
    (
        "cephfs",
        "cephfs",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
    (
        "rbd",
        "rbd",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
];

/// Warnings about a new Pod.
pub(crate) fn of_pod(pod: &Value) -> Vec<String> {
    let mut found = Warnings(Vec::new());
    found.host_name(pod, "the Pod's hostname");
    found.spec_and_metadata(pod, &Path::new("metadata"), &Path::new("spec"), false);
    found.0
}

/// Warnings about the template of a workload, and about a name that becomes the first part of its pods' names.
pub(crate) fn of_workload(workload: &Value, new: bool) -> Vec<String> {
    let mut found = Warnings(Vec::new());
    if new {
        found.host_name(workload, "Pod names and hostnames");
    }
    let spec = Path::new("spec");
    let template = spec.child("template");
    found.spec_and_metadata(
        &workload["spec"]["template"],
        &template.child("metadata"),
        &template.child("spec"),
        true,
    );
    found.0
}

struct Warnings(Vec<String>);

impl Warnings {
    fn add(&mut self, path: &Path<'_>, message: &str) {
        let mut text = path.to_string();
        let _ = write!(text, ": {message}");
        self.0.push(text);
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
        self.token_collisions(spec, &path.child("volumes"));
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
        self.fractions(spec, "overhead", &path.child("overhead"));
        self.profile_annotations(spec, metadata, &annotations_path, template);
        for list in CONTAINER_LISTS {
            let at = path.child(list);
            for (index, container) in spec.items(list).iter().enumerate() {
                self.container(container, &at.index(index));
            }
        }
        self.ports(spec, path);
        if spec
            .integer("terminationGracePeriodSeconds")
            .is_some_and(|seconds| seconds < 0)
        {
            let message = "must be >= 0; negative values are invalid and will be treated as 1";
            self.add(&path.child("terminationGracePeriodSeconds"), message);
        }
        self.pod_affinity(spec, &path.child("affinity"));
    }

    fn node_labels(&mut self, spec: &Value, path: &Path<'_>) {
        for (key, _) in spec.entries("nodeSelector") {
            if let Some(message) = deprecated_node_label(key) {
                self.add(&path.child("nodeSelector").key(key), message);
            }
        }
        let Some(nodes) = spec
            .field("affinity")
            .and_then(|affinity| affinity.field("nodeAffinity"))
        else {
            return;
        };
        let at = path.child("affinity");
        let at = at.child("nodeAffinity");
        if let Some(required) = nodes.field("requiredDuringSchedulingIgnoredDuringExecution") {
            let at = at.child("requiredDuringSchedulingIgnoredDuringExecution");
            let terms = at.child("nodeSelectorTerms");
            for (index, term) in required.items("nodeSelectorTerms").iter().enumerate() {
                self.node_selector_term(term, &terms.index(index));
            }
        }
        let preferred = at.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (index, term) in nodes
            .items("preferredDuringSchedulingIgnoredDuringExecution")
            .iter()
            .enumerate()
        {
            if let Some(preference) = term.field("preference") {
                self.node_selector_term(preference, &preferred.index(index).child("preference"));
            }
        }
    }

    fn node_selector_term(&mut self, term: &Value, path: &Path<'_>) {
        let at = path.child("matchExpressions");
        for (index, expression) in term.items("matchExpressions").iter().enumerate() {
            let key = expression.text("key");
            if let Some(message) = deprecated_node_label(key) {
                self.add(
                    &at.index(index).child("key"),
                    &format!("{key} is {message}"),
                );
            }
        }
    }

    fn spread(&mut self, spec: &Value, path: &Path<'_>) {
        let at = path.child("topologySpreadConstraints");
        for (index, constraint) in spec.items("topologySpreadConstraints").iter().enumerate() {
            let at = at.index(index);
            let key = constraint.text("topologyKey");
            if let Some(message) = deprecated_node_label(key) {
                self.add(&at.child("topologyKey"), &format!("{key} is {message}"));
            }
            if !constraint.has("labelSelector") {
                self.add(&at.child("labelSelector"), NULL_SELECTOR);
            }
        }
    }

    fn volumes(&mut self, spec: &Value, path: &Path<'_>) {
        for (index, volume) in spec.items("volumes").iter().enumerate() {
            for (field, printed, message) in DEPRECATED_VOLUMES {
                if volume.has(field) {
                    self.add(&path.index(index).child(printed), message);
                }
            }
        }
    }

    /// Files that a projected volume puts where a service account token goes.
    fn token_collisions(&mut self, spec: &Value, path: &Path<'_>) {
        let projections = || {
            let volumes = spec.items("volumes").iter().enumerate();
            volumes.flat_map(|(index, volume)| {
                volume
                    .get("projected")
                    .map_or(&[][..], |projected| projected.items("sources"))
                    .iter()
                    .map(move |source| (index, source))
            })
        };
        let token = |file: &str| {
            projections().any(|(_, source)| {
                source
                    .field("serviceAccountToken")
                    .is_some_and(|token| token.text("path") == file)
            })
        };
        for (index, source) in projections() {
            let at = path.index(index);
            let at = at.child("projected");
            let at = at.child("sources");
            let message = |file: &str| {
                format!(
                    "has duplicated path with ServiceAccountToken {}",
                    quote(file)
                )
            };
            for (field, printed) in [
                ("configMap", "configMap"),
                ("secret", "secrets"),
                ("downwardAPI", "downwardAPI"),
            ] {
                let items = source
                    .get(field)
                    .map_or(&[][..], |projection| projection.items("items"));
                for (item_index, item) in items
                    .iter()
                    .enumerate()
                    .filter(|(_, item)| token(item.text("path")))
                {
                    self.add(
                        &at.child(printed).index(item_index),
                        &message(item.text("path")),
                    );
                }
            }
            if let Some(file) = source
                .field("clusterTrustBundle")
                .map(|bundle| bundle.text("path"))
                .filter(|file| token(file))
            {
                self.add(&at.child("ClusterTrustBundle"), &message(file));
            }
        }
    }

    fn repeated(&mut self, spec: &Value, list: &str, field: &str, path: &Path<'_>) {
        let at = path.child(list);
        let items = spec.items(list);
        for (index, item) in items.iter().enumerate() {
            let value = item.text(field);
            if items[..index]
                .iter()
                .any(|other| other.text(field) == value)
            {
                self.add(
                    &at.index(index).child(field),
                    &format!("duplicate {field} {}", quote(value)),
                );
            }
        }
    }

    fn fractions(&mut self, owner: &Value, list: &str, path: &Path<'_>) {
        for name in ["memory", "ephemeral-storage"] {
            let Some(amount) = owner
                .get(list)
                .and_then(|list| list.field(name))
                .map(quantity)
            else {
                continue;
            };
            if !amount.is_integer() {
                let value = quote(&amount.to_string());
                self.add(
                    &path.key(name),
                    &format!("fractional byte value {value} is invalid, must be an integer"),
                );
            }
        }
    }

    fn profile_annotations(
        &mut self,
        spec: &Value,
        metadata: &Value,
        path: &Path<'_>,
        template: bool,
    ) {
        const SECCOMP: &str = r#"non-functional in v1.27+; use the "seccompProfile" field instead"#;
        const APPARMOR: &str = r#"deprecated since v1.30; use the "appArmorProfile" field instead"#;
        let has = |owner: &Value, field: &str| {
            owner
                .field("securityContext")
                .is_some_and(|context| context.has(field))
        };
        for (key, _) in metadata.entries("annotations") {
            if key == "seccomp.security.alpha.kubernetes.io/pod" && !has(spec, "seccompProfile") {
                self.add(&path.key(key), SECCOMP);
            }
            let named = |prefix: &str, field: &str| {
                let name = key.strip_prefix(prefix)?;
                let container = CONTAINER_LISTS
                    .iter()
                    .flat_map(|list| spec.items(list))
                    .find(|other| other.text("name") == name)?;
                (!has(container, field)).then_some(())
            };
            if named(
                "container.seccomp.security.alpha.kubernetes.io/",
                "seccompProfile",
            )
            .is_some()
            {
                self.add(&path.key(key), SECCOMP);
            }
            if template
                && !has(spec, "appArmorProfile")
                && named(APPARMOR_CONTAINER, "appArmorProfile").is_some()
            {
                self.add(&path.key(key), APPARMOR);
            }
        }
    }

    fn container(&mut self, container: &Value, path: &Path<'_>) {
        if let Some(resources) = container.field("resources") {
            let at = path.child("resources");
            self.fractions(resources, "limits", &at.child("limits"));
            self.fractions(resources, "requests", &at.child("requests"));
        }
        let variables = container.items("env");
        let at = path.child("env");
        for (index, variable) in variables.iter().enumerate() {
            let (name, value) = (variable.text("name"), variable.text("value"));
            if !variables[..index]
                .iter()
                .any(|other| other.text("name") == name)
            {
                continue;
            }
            let reference = format!("$({name})");
            if variable.has("valueFrom") || value == reference || !value.contains(&reference) {
                let message = format!(
                    "hides previous definition of {}, which may be dropped when using apply",
                    quote(name)
                );
                self.add(&at.index(index), &message);
            }
        }
    }

    /// Ports of one number and protocol, in whatever containers.
    fn ports(&mut self, spec: &Value, path: &Path<'_>) {
        let all = || {
            CONTAINER_LISTS.into_iter().flat_map(|list| {
                spec.items(list)
                    .iter()
                    .enumerate()
                    .flat_map(move |(container, value)| {
                        value
                            .items("ports")
                            .iter()
                            .enumerate()
                            .map(move |(port, value)| ((list, container, port), value))
                    })
            })
        };
        for (position, ((list, container, index), port)) in all().enumerate() {
            let at = path.child(list);
            let at = at.index(container);
            let at = at.child("ports");
            let at = at.index(index);
            let host = |port: &Value| port.integer("hostPort").unwrap_or(0);
            let (host_ip, host_port) = (port.text("hostIP"), host(port));
            if !host_ip.is_empty() && host_port == 0 {
                let (name, number, protocol) = (
                    port.text("name"),
                    port.integer("containerPort").unwrap_or(0),
                    port.text("protocol"),
                );
                let port = format!(
                    "{{Name:{name} HostPort:0 ContainerPort:{number} Protocol:{protocol} HostIP:{host_ip}}}"
                );
                self.add(&at, &format!("hostIP set without hostPort: {port}"));
            }
            let same = |other: &Value| {
                other.integer("containerPort") == port.integer("containerPort")
                    && other.text("protocol") == port.text("protocol")
            };
            for ((list, container, index), other) in
                all().take(position).filter(|(_, other)| same(other))
            {
                let (other_ip, other_port) = (other.text("hostIP"), host(other));
                let kind = if host_ip == other_ip && host_port == other_port {
                    "duplicate"
                } else if host_port == 0 || other_port == 0 {
                    "overlapping"
                } else if host_port == other_port && host_ip.is_empty() != other_ip.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                let other_at = path.child(list);
                let other_at = other_at.index(container);
                let other_at = other_at.child("ports");
                self.add(
                    &at,
                    &format!("{kind} port definition with {}", other_at.index(index)),
                );
            }
        }
    }

    fn pod_affinity(&mut self, spec: &Value, path: &Path<'_>) {
        let Some(affinity) = spec.field("affinity") else {
            return;
        };
        for field in ["podAffinity", "podAntiAffinity"] {
            let Some(terms) = affinity.field(field) else {
                continue;
            };
            let at = path.child(field);
            let required = at.child("requiredDuringSchedulingIgnoredDuringExecution");
            for (index, term) in terms
                .items("requiredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .enumerate()
            {
                if !term.has("labelSelector") {
                    self.add(&required.index(index).child("labelSelector"), NULL_SELECTOR);
                }
            }
            let preferred = at.child("preferredDuringSchedulingIgnoredDuringExecution");
            for (index, weighted) in terms
                .items("preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .enumerate()
            {
                if !weighted
                    .get("podAffinityTerm")
                    .is_some_and(|term| term.has("labelSelector"))
                {
                    let at = preferred.index(index);
                    self.add(
                        &at.child("podAffinityTerm").child("labelSelector"),
                        NULL_SELECTOR,
                    );
                }
            }
        }
    }
}

fn deprecated_node_label(key: &str) -> Option<&'static str> {
    DEPRECATED_NODE_LABELS
        .iter()
        .find(|(label, _)| *label == key)
        .map(|(_, message)| *message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_of_one_number_are_worth_a_warning() {
        let pod = json!({"metadata": {"name": "x"}, "spec": {"containers": [
            {"ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"}]},
            {"ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}]},
        ]}});
        assert_eq!(
            of_pod(&pod),
            [
                "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[0]: overlapping port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[0]: overlapping port definition with spec.containers[0].ports[1]",
            ]
        );
    }

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
}
