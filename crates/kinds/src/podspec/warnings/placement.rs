//! Warns about placement: deprecated node labels, and selectors that match nothing.

use mullion_kube_text::{field::Path, names, validation::net};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::WarningList;

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

impl WarningList {
    pub(super) fn node_labels(&mut self, spec: &Value, path: &Path<'_>) {
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
                let at = preferred.index(index);
                let at = at.child("preference");
                let expressions = at.child("matchExpressions");
                for (index, expression) in preference.items("matchExpressions").iter().enumerate() {
                    let at = expressions.index(index);
                    self.deprecated_key(expression, &at);
                    // Validation refuses such values in required terms, so only preferred ones can have them.
                    self.label_values(expression, &at.child("values"));
                }
            }
        }
    }

    pub(super) fn node_selector_term(&mut self, term: &Value, path: &Path<'_>) {
        let at = path.child("matchExpressions");
        for (index, expression) in term.items("matchExpressions").iter().enumerate() {
            self.deprecated_key(expression, &at.index(index));
        }
    }

    fn deprecated_key(&mut self, expression: &Value, path: &Path<'_>) {
        let key = expression.text("key");
        if let Some(message) = deprecated_node_label(key) {
            self.add(&path.child("key"), &format!("{key} is {message}"));
        }
    }

    /// Warns about values that no label can have; a required term with such a value matches no node.
    fn label_values(&mut self, expression: &Value, path: &Path<'_>) {
        let values = expression.items("values").iter().filter_map(Value::as_str);
        for (index, value) in values.enumerate() {
            for sentence in names::label_value(value) {
                let message = format!("{value} is invalid, {sentence}");
                self.add(&path.index(index), &message);
            }
        }
    }

    /// Warns about addresses that are not in canonical form.
    pub(super) fn addresses(&mut self, spec: &Value, path: &Path<'_>) {
        let at = path.child("dnsConfig");
        let at = at.child("nameservers");
        let servers = spec
            .field("dnsConfig")
            .map_or(&[][..], |config| config.items("nameservers"));
        for (index, server) in servers.iter().filter_map(Value::as_str).enumerate() {
            self.0.extend(net::ip_warning(&at.index(index), server));
        }
        let at = path.child("hostAliases");
        for (index, alias) in spec.items("hostAliases").iter().enumerate() {
            let at = at.index(index);
            self.0
                .extend(net::ip_warning(&at.child("ip"), alias.text("ip")));
        }
    }

    pub(super) fn spread(&mut self, spec: &Value, path: &Path<'_>) {
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

    pub(super) fn pod_affinity(&mut self, spec: &Value, path: &Path<'_>) {
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

/// Returns the warning for a deprecated node label.
pub(crate) fn deprecated_node_label(key: &str) -> Option<&'static str> {
    DEPRECATED_NODE_LABELS
        .iter()
        .find(|(label, _)| *label == key)
        .map(|(_, message)| *message)
}
