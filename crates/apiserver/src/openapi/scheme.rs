//! The `x-kubernetes-group-version-kind` tags of types that are not resources. A type that belongs to every group is tagged with each
//! group and version in client-go's scheme, served or not.

use serde_json::{Value, json};

/// The groups and versions in client-go's scheme.
const VERSIONS: &[(&str, &[&str])] = &[
    ("", &["v1"]),
    ("admission.k8s.io", &["v1", "v1beta1"]),
    (
        "admissionregistration.k8s.io",
        &["v1", "v1alpha1", "v1beta1"],
    ),
    ("apiextensions.k8s.io", &["v1", "v1beta1"]),
    ("apiregistration.k8s.io", &["v1", "v1beta1"]),
    ("apps", &["v1", "v1beta1", "v1beta2"]),
    ("authentication.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("authorization.k8s.io", &["v1", "v1beta1"]),
    ("autoscaling", &["v1", "v2"]),
    ("batch", &["v1", "v1beta1"]),
    ("certificates.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("coordination.k8s.io", &["v1", "v1alpha2", "v1beta1"]),
    ("discovery.k8s.io", &["v1", "v1beta1"]),
    ("events.k8s.io", &["v1", "v1beta1"]),
    ("extensions", &["v1beta1"]),
    (
        "flowcontrol.apiserver.k8s.io",
        &["v1", "v1beta1", "v1beta2", "v1beta3"],
    ),
    ("imagepolicy.k8s.io", &["v1alpha1"]),
    ("internal.apiserver.k8s.io", &["v1alpha1"]),
    ("networking.k8s.io", &["v1", "v1beta1"]),
    ("node.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("policy", &["v1", "v1beta1"]),
    ("rbac.authorization.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("resource.k8s.io", &["v1", "v1alpha3", "v1beta1", "v1beta2"]),
    ("scheduling.k8s.io", &["v1", "v1alpha2", "v1beta1"]),
    ("storage.k8s.io", &["v1", "v1alpha1", "v1beta1"]),
    ("storagemigration.k8s.io", &["v1beta1"]),
];

const META: &str = "apimachinery.pkg.apis.meta.v1.";

/// Returns the tags of a type by its full name; `None` for resources, which are tagged with the version that is served.
pub(super) fn tags(name: &str) -> Option<Value> {
    let tag = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    match name.strip_prefix(META) {
        Some(kind @ ("DeleteOptions" | "WatchEvent")) => {
            let groups = VERSIONS.iter();
            let all = groups.flat_map(|(group, versions)| {
                versions
                    .iter()
                    .map(move |version| tag(group, version, kind))
            });
            return Some(all.collect());
        }
        Some(
            kind @ ("APIGroup" | "APIGroupList" | "APIResourceList" | "APIVersions" | "Status"),
        ) => {
            return Some(json!([tag("", "v1", kind)]));
        }
        _ => {}
    }
    let own = match name {
        "api.authentication.v1.TokenRequest" => tag("authentication.k8s.io", "v1", "TokenRequest"),
        "api.autoscaling.v1.Scale" => tag("autoscaling", "v1", "Scale"),
        "api.policy.v1.Eviction" => tag("policy", "v1", "Eviction"),
        _ => return None,
    };
    Some(json!([own]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_group_has_is_tagged_with_every_group() {
        let options = tags("apimachinery.pkg.apis.meta.v1.DeleteOptions").expect("tags");
        let options = options.as_array().expect("a list");
        assert_eq!(options.len(), 60);
        let place = |tag: &Value| [tag["group"].to_string(), tag["version"].to_string()];
        assert!(options.is_sorted_by_key(place));
        assert_eq!(
            options[0],
            json!({"group": "", "version": "v1", "kind": "DeleteOptions"})
        );
        assert_eq!(
            tags("api.autoscaling.v1.Scale"),
            Some(json!([{"group": "autoscaling", "version": "v1", "kind": "Scale"}]))
        );
        assert_eq!(tags("api.core.v1.Pod"), None);
    }
}
