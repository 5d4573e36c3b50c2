//! The rules of the restricted level: a pod must give up the privileges that it does not need. Since 1.25 Windows pods are exempt from the
//! checks of fields that only Linux has, and since 1.35 a pod with a user namespace of its own may run as root in it.

use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Pod, Violation, baseline, distinct, named, quoted};

/// The volumes a restricted pod may have.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

pub(super) fn privilege_escalation_1_25(pod: &Pod<'_>) -> Option<Violation> {
    (!pod.is_windows())
        .then(|| privilege_escalation(pod))
        .flatten()
}

pub(super) fn privilege_escalation(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.containers_that(|container| {
        container["securityContext"]["allowPrivilegeEscalation"] != false
    });
    (!bad.is_empty()).then(|| Violation {
        reason: "allowPrivilegeEscalation != false",
        detail: format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            named("container", &bad)
        ),
    })
}

pub(super) fn capabilities_1_25(pod: &Pod<'_>) -> Option<Violation> {
    (!pod.is_windows()).then(|| capabilities(pod)).flatten()
}

pub(super) fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let of = |container: &Value| container["securityContext"]["capabilities"].clone();
    let keeping = pod.containers_that(|container| {
        !of(container)
            .items("drop")
            .iter()
            .any(|capability| capability == "ALL")
    });
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!(
            r#"{} must set securityContext.capabilities.drop=["ALL"]"#,
            named("container", &keeping)
        ));
    }
    let adds = |container: &Value| {
        of(container)
            .items("add")
            .iter()
            .any(|capability| capability != "NET_BIND_SERVICE")
    };
    let adding = pod.containers_that(adds);
    if !adding.is_empty() {
        let added = pod
            .containers()
            .flat_map(|container| container["securityContext"]["capabilities"].items("add"));
        let added = distinct(
            added
                .filter_map(Value::as_str)
                .filter(|capability| *capability != "NET_BIND_SERVICE"),
        );
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            named("container", &adding),
            quoted(&added)
        ));
    }
    (!details.is_empty()).then(|| Violation {
        reason: "unrestricted capabilities",
        detail: details.join("; "),
    })
}

pub(super) fn volumes(pod: &Pod<'_>) -> Option<Violation> {
    fn kind(volume: &Value) -> &str {
        let fields = volume.as_object().into_iter().flatten();
        fields
            .map(|(field, _)| field.as_str())
            .find(|field| *field != "name")
            .unwrap_or("unknown")
    }
    let restricted = || {
        pod.spec
            .items("volumes")
            .iter()
            .filter(|volume| !VOLUMES.contains(&kind(volume)))
    };
    let names: Vec<&str> = restricted().map(|volume| volume.text("name")).collect();
    let kinds = distinct(restricted().map(kind));
    (!names.is_empty()).then(|| Violation {
        reason: "restricted volume types",
        detail: format!(
            "{} {} {}",
            named("volume", &names),
            if names.len() == 1 { "uses" } else { "use" },
            named("restricted volume type", &kinds)
        ),
    })
}

pub(super) fn run_as_non_root_1_35(pod: &Pod<'_>) -> Option<Violation> {
    (!pod.has_user_namespace())
        .then(|| run_as_non_root(pod))
        .flatten()
}

pub(super) fn run_as_non_root(pod: &Pod<'_>) -> Option<Violation> {
    let reason = "runAsNonRoot != true";
    if let Some(setters) = pod.setters(|context| context["runAsNonRoot"] == false) {
        return Some(Violation {
            reason,
            detail: format!("{setters} must not set securityContext.runAsNonRoot=false"),
        });
    }
    let promised = pod.spec["securityContext"].flag("runAsNonRoot");
    let silent = pod.containers_that(|container| !container["securityContext"].has("runAsNonRoot"));
    (!promised && !silent.is_empty()).then(|| Violation {
        reason,
        detail: format!(
            "pod or {} must set securityContext.runAsNonRoot=true",
            named("container", &silent)
        ),
    })
}

pub(super) fn run_as_user_1_35(pod: &Pod<'_>) -> Option<Violation> {
    (!pod.has_user_namespace())
        .then(|| run_as_user(pod))
        .flatten()
}

pub(super) fn run_as_user(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(|context| context.integer("runAsUser") == Some(0))?;
    Some(Violation {
        reason: "runAsUser=0",
        detail: format!("{setters} must not set runAsUser=0"),
    })
}

pub(super) fn seccomp_1_25(pod: &Pod<'_>) -> Option<Violation> {
    (!pod.is_windows()).then(|| seccomp(pod)).flatten()
}

pub(super) fn seccomp(pod: &Pod<'_>) -> Option<Violation> {
    let explicit = baseline::seccomp_profile(pod);
    if explicit.is_some() {
        return explicit;
    }
    let promised = pod.spec["securityContext"].has("seccompProfile");
    let silent =
        pod.containers_that(|container| !container["securityContext"].has("seccompProfile"));
    (!promised && !silent.is_empty()).then(|| Violation {
        reason: "seccompProfile",
        detail: format!(
            r#"pod or {} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost""#,
            named("container", &silent)
        ),
    })
}
