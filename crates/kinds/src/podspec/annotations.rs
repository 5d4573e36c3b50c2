//! Validates annotations with a meaning for pods: mirror pods, tolerations, seccomp and AppArmor profiles.

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::{
    decode::{json_error, json_of_another_type},
    tree::Tree,
};
use serde_json::Value;

use super::{Scope, paths, scheduling};

const MIRROR: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
pub(super) const APPARMOR_CONTAINER: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Validates the annotations of a Pod or template that have a meaning to Kubernetes.
pub(super) fn validate(metadata: &Value, scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    let Some(annotations) = metadata.field("annotations") else {
        return;
    };
    let annotation = |key: &str| annotations.field(key).and_then(Value::as_str);
    if let Some(value) = annotation(MIRROR).filter(|_| scope.spec.text("nodeName").is_empty()) {
        errors.invalid(
            &path.key(MIRROR),
            value,
            "must set spec.nodeName if mirror pod annotation is set",
        );
    }
    if let Some(value) = annotation(TOLERATIONS).filter(|value| !value.is_empty()) {
        tolerations(value, path, errors);
    }
    if let Some(value) = annotation(DELETION_COST).filter(|value| !is_deletion_cost(value)) {
        errors.invalid(&path.key(DELETION_COST), value, "must be a 32bit integer");
    }
    if let Some(value) = annotation(SECCOMP_POD) {
        // kube-apiserver appends the seccomp keys to the path as fields, and other keys in brackets.
        seccomp(value, &path.child(SECCOMP_POD), errors);
    }
    let texts = || {
        let all = metadata.entries("annotations");
        all.map(|(key, value)| (key, value.as_str().unwrap_or("")))
    };
    for (key, value) in texts().filter(|(key, _)| key.starts_with(SECCOMP_CONTAINER)) {
        seccomp(value, &path.child(key), errors);
    }
    for (key, value) in texts() {
        if let Some(container) = key.strip_prefix(APPARMOR_CONTAINER) {
            apparmor(container, value, scope, &path.key(key), errors);
        }
    }
}

fn tolerations(value: &str, path: &Path<'_>, errors: &mut Errors) {
    let why = match serde_json::from_str(value) {
        Ok(Value::Null) => return,
        Ok(Value::Array(tolerations)) => {
            let at = path.child(TOLERATIONS);
            return scheduling::validate_tolerations(&tolerations, &at, errors);
        }
        Ok(other) => json_of_another_type(&other, "[]core.Toleration"),
        Err(error) => json_error(value.as_bytes(), &error),
    };
    // kube-apiserver shows the key of the annotation as the wrong value.
    errors.invalid(path, TOLERATIONS, why.to_string());
}

/// Returns whether a text is a valid deletion cost: a 32-bit number without plus sign or leading zeros.
fn is_deletion_cost(value: &str) -> bool {
    let starts_well =
        value == "0" || value.starts_with(['-', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    starts_well && value.parse::<i32>().is_ok()
}

fn apparmor(
    container: &str,
    profile: &str,
    scope: &Scope<'_>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    if !scope
        .containers()
        .any(|other| other.text("name") == container)
    {
        errors.invalid(path, container, "container not found");
    }
    if !matches!(profile, "" | "runtime/default" | "unconfined")
        && !profile.starts_with("localhost/")
    {
        let why = format!(
            "invalid AppArmor profile name: {}",
            mullion_kube_text::golang::quote(profile)
        );
        errors.invalid(path, profile, why);
    }
}

fn seccomp(profile: &str, path: &Path<'_>, errors: &mut Errors) {
    if let Some(file) = profile.strip_prefix("localhost/") {
        paths::local_descending(errors, path, file);
    } else if !matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        errors.invalid(path, profile, "must be a valid seccomp profile");
    }
}

/// Checks that annotations and fields of a new pod agree where both are set.
pub(super) fn validate_matching(
    metadata: &Value,
    scope: &Scope<'_>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(annotations) = metadata.field("annotations") else {
        return;
    };
    let pod_context = scope.spec.field("securityContext");
    if let (Some(annotation), Some(profile)) = (
        annotations.field(SECCOMP_POD).and_then(Value::as_str),
        pod_context.and_then(|context| context.field("seccompProfile")),
    ) {
        same_profile(
            "seccomp",
            annotation,
            profile,
            &path.child("securityContext").child("seccompProfile"),
            errors,
        );
    }
    let of_container = |prefix: &str, name: &str| {
        let mut all = metadata.entries("annotations");
        all.find(|(key, _)| key.strip_prefix(prefix) == Some(name))
            .and_then(|(_, value)| value.as_str())
    };
    scope.visit_containers(path, &mut |container, at| {
        let profile = container
            .field("securityContext")
            .and_then(|context| context.field("seccompProfile"));
        if let (Some(profile), Some(annotation)) = (
            profile,
            of_container(SECCOMP_CONTAINER, container.text("name")),
        ) {
            same_profile(
                "seccomp",
                annotation,
                profile,
                &at.child("securityContext").child("seccompProfile"),
                errors,
            );
        }
    });
    // Windows has no AppArmor, so its profiles are not compared.
    if scope
        .spec
        .field("os")
        .is_some_and(|os| os.text("name") == "windows")
    {
        return;
    }
    let pod_profile = pod_context.and_then(|context| context.field("appArmorProfile"));
    scope.visit_containers(path, &mut |container, at| {
        let own = container
            .field("securityContext")
            .and_then(|context| context.field("appArmorProfile"));
        if let (Some(profile), Some(annotation)) = (
            own.or(pod_profile),
            of_container(APPARMOR_CONTAINER, container.text("name")),
        ) {
            same_profile(
                "apparmor",
                annotation,
                profile,
                &at.child("securityContext").child("appArmorProfile"),
                errors,
            );
        }
    });
}

fn same_profile(
    what: &str,
    annotation: &str,
    profile: &Value,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let same_type = match profile.text("type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => {
            annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default")
        }
        "Localhost" => annotation.starts_with("localhost/"),
        _ => return,
    };
    if !same_type {
        errors.forbidden(
            &path.child("type"),
            format!("{what} type in annotation and field must match"),
        );
    } else if annotation
        .strip_prefix("localhost/")
        .is_some_and(|file| file != profile.text("localhostProfile"))
    {
        errors.forbidden(
            &path.child("localhostProfile"),
            format!("{what} profile in annotation and field must match"),
        );
    }
}

/// Refuses changes of annotations that are fixed once the pod exists.
pub(super) fn validate_update(metadata: &Value, old: &Value, path: &Path<'_>, errors: &mut Errors) {
    let fixed = |key: &str| {
        if key == MIRROR {
            Some("mirror pod annotation")
        } else {
            key.starts_with(APPARMOR_CONTAINER)
                .then_some("AppArmor annotations")
        }
    };
    let annotation = |metadata: &'_ Value, key: &str| {
        metadata
            .get("annotations")
            .and_then(|all| all.get(key))
            .cloned()
    };
    for (key, value) in old.entries("annotations") {
        if let Some(what) = fixed(key).filter(|_| annotation(metadata, key).as_ref() != Some(value))
        {
            errors.forbidden(&path.key(key), format!("may not remove or update {what}"));
        }
    }
    for (key, _) in metadata.entries("annotations") {
        if let Some(what) = fixed(key).filter(|_| annotation(old, key).is_none()) {
            errors.forbidden(&path.key(key), format!("may not add {what}"));
        }
    }
}

/// Returns whether the pod is a mirror pod, the API object of a static pod.
pub(super) fn is_mirror(pod: &Value) -> bool {
    pod.get("metadata")
        .and_then(|metadata| metadata.get("annotations"))
        .is_some_and(|annotations| annotations.has(MIRROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_cost_is_a_number_of_32_bits() {
        for good in ["0", "-0", "-08", "-5", "2147483647"] {
            assert!(is_deletion_cost(good), "{good}");
        }
        for bad in ["", "-", "+1", "08", "1e3", "2147483648"] {
            assert!(!is_deletion_cost(bad), "{bad}");
        }
    }
}
