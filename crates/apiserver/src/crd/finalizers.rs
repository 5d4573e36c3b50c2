//! Warnings for malformed finalizers of custom resources, which a built-in kind would refuse. Source:
//! k8s.io/apiextensions-apiserver/pkg/registry/customresource: validateKubeFinalizerName.

use std::collections::BTreeSet;

use mullion_kube_text::{golang::quote, names};
use serde_json::Value;

const STANDARD: &[&str] = &["foregroundDeletion", "kubernetes", "orphan"];

/// Returns warnings about the finalizers that a write adds.
pub(super) fn warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let before = old.map(given).unwrap_or_default();
    let mut warnings = Vec::new();
    for finalizer in given(object).difference(&before) {
        let mut warn = |why: &str| {
            warnings.push(format!("metadata.finalizers: {}: {why}", quote(finalizer)));
        };
        for sentence in names::qualified_name(finalizer) {
            warn(&sentence);
        }
        if !finalizer.contains('/') && !STANDARD.contains(finalizer) {
            warn(
                "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers",
            );
        }
    }
    warnings
}

fn given(object: &Value) -> BTreeSet<&str> {
    let finalizers = object["metadata"]["finalizers"].as_array();
    let finalizers = finalizers.into_iter().flatten();
    finalizers.filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_new_finalizer_without_a_domain_is_warned_of() {
        let with = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
        let (old, new) = (
            with(json!(["mine"])),
            with(json!(["mine", "orphan", "a.example/b", "yours"])),
        );
        assert_eq!(
            warnings(&new, Some(&old)),
            [
                "metadata.finalizers: \"yours\": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"
            ]
        );
        assert_eq!(warnings(&new, None).len(), 2);
    }
}
