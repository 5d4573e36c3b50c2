//! Bodies whose apiVersion or kind is not the requested one, and the errors that kube-apiserver gives for them.
//!
//! The error depends on whether kube-apiserver's scheme knows the kind in that version: an unknown kind is not registered, another kind
//! cannot be converted, and another version of the same kind is converted first and then found not to be the expected one.

use mullion_kube_text::{
    field::{Errors, Path},
    golang::quote,
    status::Status,
};
use mullion_schema::Type;
use serde_json::Value;

use super::{Expected, internal_package, text};

/// Versions that are no longer served but that kube-apiserver still decodes (`pkg/apis/*/install`): the apiVersion, the package of the
/// internal kinds, and the kinds.
const LEGACY: &[(&str, &str, &[&str])] = &[
    (
        "admissionregistration.k8s.io/v1beta1",
        "admissionregistration",
        &[
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
        ],
    ),
    (
        "apps/v1beta1",
        "apps",
        &["ControllerRevision", "Deployment", "StatefulSet"],
    ),
    (
        "apps/v1beta2",
        "apps",
        &[
            "ControllerRevision",
            "DaemonSet",
            "Deployment",
            "ReplicaSet",
            "StatefulSet",
        ],
    ),
    ("batch/v1beta1", "batch", &["CronJob"]),
    ("coordination.k8s.io/v1beta1", "coordination", &["Lease"]),
    ("discovery.k8s.io/v1beta1", "discovery", &["EndpointSlice"]),
    ("events.k8s.io/v1beta1", "core", &["Event"]),
    (
        "extensions/v1beta1",
        "apps",
        &["DaemonSet", "Deployment", "ReplicaSet"],
    ),
    (
        "extensions/v1beta1",
        "networking",
        &["Ingress", "NetworkPolicy"],
    ),
    (
        "networking.k8s.io/v1beta1",
        "networking",
        &["Ingress", "IngressClass"],
    ),
    ("policy/v1beta1", "policy", &["PodDisruptionBudget"]),
    ("rbac.authorization.k8s.io/v1alpha1", "rbac", RBAC),
    ("rbac.authorization.k8s.io/v1beta1", "rbac", RBAC),
    (
        "scheduling.k8s.io/v1beta1",
        "scheduling",
        &["PriorityClass"],
    ),
    (
        "storage.k8s.io/v1beta1",
        "storage",
        &[
            "CSIDriver",
            "CSINode",
            "CSIStorageCapacity",
            "StorageClass",
            "VolumeAttachment",
        ],
    ),
];
const RBAC: &[&str] = &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];

/// The options kinds, which every version has.
const OPTIONS: [&str; 6] = [
    "CreateOptions",
    "DeleteOptions",
    "GetOptions",
    "ListOptions",
    "PatchOptions",
    "UpdateOptions",
];

/// Returns the package of a kind's internal type, or `None` if kube-apiserver's scheme has no such kind.
fn package_of<'a>(api_version: &'a str, kind: &str) -> Option<&'a str> {
    let legacy = LEGACY
        .iter()
        .find(|(version, _, kinds)| *version == api_version && kinds.contains(&kind));
    if let Some((_, package, _)) = legacy {
        return Some(package);
    }
    let (group, _) = api_version.split_once('/').unwrap_or(("", api_version));
    // kube-apiserver serves these groups with separate schemes.
    if matches!(group, "apiextensions.k8s.io" | "apiregistration.k8s.io") {
        let known = Type::builtin_kind(api_version, kind);
        return known.map(|_| internal_package(group));
    }
    let is_known = Type::builtin_kind(api_version, kind).is_some()
        || (api_version == "v1" && matches!(kind, "List" | "Status"))
        || (OPTIONS.contains(&kind) && has_kinds(api_version));
    is_known.then(|| internal_package(group))
}

/// Returns whether any kind exists in that version.
fn has_kinds(api_version: &str) -> bool {
    Type::has_builtin_version(api_version)
        || LEGACY.iter().any(|(version, _, _)| *version == api_version)
}

/// A body's kind or version, where it is not the expected one.
pub(crate) struct Mismatch {
    pub(crate) kind: String,
    pub(crate) api_version: String,
    pub(crate) version: String,
    pub(crate) why: String,
    /// Whether the body has another version of the expected kind.
    pub(crate) is_convertible: bool,
}

impl Mismatch {
    pub(crate) fn find(expected: &Expected<'_>, object: &Value) -> Option<Self> {
        let (api_version, kind) = (text(object, "apiVersion"), text(object, "kind"));
        Mismatch::of(expected, api_version, kind)
    }

    pub(crate) fn of(expected: &Expected<'_>, api_version: &str, kind: &str) -> Option<Self> {
        let wanted = expected.api_version();
        // Only built-in kinds have defaults for their type; a custom resource must name its own.
        let given = if api_version.is_empty() && !expected.custom {
            &wanted
        } else {
            api_version
        };
        // Go parses `/v1` as version v1 of the core group.
        let given = match given.strip_prefix('/') {
            Some(version) if !version.contains('/') => version,
            _ => given,
        };
        let kind = if kind.is_empty() { expected.kind } else { kind };
        if given == wanted && kind == expected.kind {
            return None;
        }
        let version = given.rsplit('/').next().unwrap_or_default();
        let package = internal_package(expected.group);
        let known = package_of(given, kind).filter(|_| !expected.custom);
        let is_convertible = known == Some(package) && kind == expected.kind;
        let why = if expected.custom || is_convertible {
            format!(
                "the API version in the data ({given}) does not match the expected API version ({wanted})"
            )
        } else if known.is_some() {
            format!(
                "converting ({version}.{kind}) to ({package}.{}): unknown conversion",
                expected.kind
            )
        } else {
            format!(
                "no kind {} is registered for version {} in scheme \"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30\"",
                quote(kind),
                quote(given),
            )
        };
        Some(Mismatch {
            kind: kind.to_owned(),
            api_version: given.to_owned(),
            version: version.to_owned(),
            why,
            is_convertible,
        })
    }

    /// Returns the type that the body names, if it is another version of the expected kind.
    pub(crate) fn named_type(&self) -> Option<Type> {
        Type::builtin_kind(&self.api_version, &self.kind).filter(|_| self.is_convertible)
    }

    /// Returns the error for a custom resource, which is decoded whatever its kind is and validated afterwards.
    pub(crate) fn invalid(&self, expected: &Expected<'_>, object: &Value) -> Status {
        let mut errors = Errors::default();
        let wanted = expected.api_version();
        if self.kind != expected.kind {
            let why = format!("must be {}", expected.kind);
            errors.invalid(&Path::new("kind"), self.kind.as_str(), why);
        }
        if self.api_version != wanted {
            let path = Path::new("apiVersion");
            errors.invalid(
                &path,
                self.api_version.as_str(),
                format!("must be {wanted}"),
            );
        }
        let group = self
            .api_version
            .split_once('/')
            .map_or("", |(group, _)| group);
        Status::invalid_kind(
            group,
            &self.kind,
            text(&object["metadata"], "name"),
            &errors,
        )
    }

    pub(crate) fn refusal(&self, expected: &Expected<'_>, object: &Value) -> Status {
        if expected.custom && self.api_version == expected.api_version() {
            self.invalid(expected, object)
        } else if expected.custom || self.is_convertible {
            Status::bad_request(self.why.as_str())
        } else {
            expected.refuse(&self.kind, &self.version, &self.why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_tell_unknown_kinds_from_others_and_from_other_versions() {
        let schema = Type::builtin("api.apps.v1.Deployment").expect("deployments are built in");
        let expected = Expected {
            group: "apps",
            version: "v1",
            kind: "Deployment",
            schema: &schema,
            custom: false,
        };
        for (api_version, kind, why) in [
            (
                "extensions/v1beta1",
                "Deployment",
                "the API version in the data (extensions/v1beta1) does not match the expected API version (apps/v1)",
            ),
            (
                "extensions/v1beta1",
                "Ingress",
                "converting (v1beta1.Ingress) to (apps.Deployment): unknown conversion",
            ),
            (
                "v1",
                "DeleteOptions",
                "converting (v1.DeleteOptions) to (apps.Deployment): unknown conversion",
            ),
            (
                "rbac.authorization.k8s.io/v1",
                "DeleteOptions",
                "converting (v1.DeleteOptions) to (apps.Deployment): unknown conversion",
            ),
            (
                "extensions/v1",
                "Deployment",
                r#"no kind "Deployment" is registered for version "extensions/v1" in scheme "k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30""#,
            ),
        ] {
            let found = Mismatch::of(&expected, api_version, kind).expect("it is not a Deployment");
            assert_eq!(found.why, why);
        }
        assert!(Mismatch::of(&expected, "", "").is_none());
    }
}
