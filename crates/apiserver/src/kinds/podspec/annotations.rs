//! Validation of the annotations that once were fields of pods: mirror pods, tolerations, seccomp and AppArmor profiles.

use serde_json::Value;

use super::{Scope, paths, scheduling};
use crate::{
    field::{Errors, Path},
    kinds::tree::Tree,
    schema::decode::{json_error, json_of_another_type},
};

const MIRROR: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
pub(super) const APPARMOR_CONTAINER: &str = "container.apparmor.security.beta.kubernetes.io/";

/// What annotations must say whenever they are there, on a Pod and on a template.
pub(super) fn validate(metadata: &Value, scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    for (key, value) in metadata.entries("annotations") {
        let value = value.as_str().unwrap_or("");
        if key == MIRROR && scope.spec.text("nodeName").is_empty() {
            errors.invalid(
                &path.key(key),
                value,
                "must set spec.nodeName if mirror pod annotation is set",
            );
        }
        if key == TOLERATIONS && !value.is_empty() {
            let why = match serde_json::from_str(value) {
                Ok(Value::Null) => None,
                Ok(Value::Array(tolerations)) => {
                    let at = path.child(TOLERATIONS);
                    scheduling::validate_tolerations(&tolerations, &at, errors);
                    None
                }
                Ok(other) => Some(json_of_another_type(&other, "[]core.Toleration")),
                Err(error) => Some(json_error(value.as_bytes(), &error).to_string()),
            };
            if let Some(why) = why {
                errors.invalid(path, TOLERATIONS, why);
            }
        }
        if key == DELETION_COST && !is_deletion_cost(value) {
            errors.invalid(&path.key(key), value, "must be a 32bit integer");
        }
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp(value, &path.child(key), errors);
        }
        if let Some(container) = key.strip_prefix(APPARMOR_CONTAINER) {
            if !scope
                .containers()
                .any(|other| other.text("name") == container)
            {
                errors.invalid(&path.key(key), container, "container not found");
            }
            if !matches!(value, "" | "runtime/default" | "unconfined")
                && !value.starts_with("localhost/")
            {
                errors.invalid(
                    &path.key(key),
                    value,
                    format!(
                        "invalid AppArmor profile name: {}",
                        crate::field::quote(value)
                    ),
                );
            }
        }
    }
}

/// Upstream takes a sign only where it means something: no `+`, no `-0`, no leading zeros.
fn is_deletion_cost(value: &str) -> bool {
    value
        .parse::<i32>()
        .is_ok_and(|cost| cost.to_string() == value)
}

fn seccomp(profile: &str, path: &Path<'_>, errors: &mut Errors) {
    if let Some(file) = profile.strip_prefix("localhost/") {
        paths::local_descending(file, path, errors);
    } else if !matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        errors.invalid(path, profile, "must be a valid seccomp profile");
    }
}

/// Whether annotations and fields of a new pod say the same where both are there.
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

/// Annotations that may not be added, changed or removed once the pod is there.
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

/// Whether the pod is the API's picture of a static pod.
pub(super) fn is_mirror(pod: &Value) -> bool {
    pod.get("metadata")
        .and_then(|metadata| metadata.get("annotations"))
        .is_some_and(|annotations| annotations.has(MIRROR))
}
