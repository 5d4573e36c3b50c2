//! Validates the Windows options of a pod spec: security options, HostProcess containers, and the fields that `spec.os` excludes.
//!
//! Windows containers have no numeric users and groups, seccomp, SELinux, capabilities or sysctls, and Linux containers have no Windows
//! options. The API server refuses the combination only if `spec.os.name` names the system.

use mullion_kube_text::{
    field::{Errors, Path},
    names,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::Scope;
use crate::fields::{Field, Format, Text, set};

const MAX_CREDENTIAL_SPEC_KIB: usize = 64;
const MAX_DOMAIN: usize = 256;
const MAX_USER: usize = 104;
const NOT_ON_WINDOWS: &str = "cannot be set for a windows pod";
const NOT_ON_LINUX: &str = "windows options cannot be set for a linux pod";

/// The fields of the pod's security context that Windows does not have, in kube-apiserver's order. A `.` marks fields of the pod spec
/// itself.
const POD_FIELDS: [&str; 15] = [
    "appArmorProfile",
    "seLinuxOptions",
    ".hostUsers",
    ".hostPID",
    ".hostIPC",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    ".shareProcessNamespace",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
const CONTAINER_FIELDS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// `windowsOptions` of a pod or a container.
pub(super) const OPTIONS: &[Field] = &[
    set("gmsaCredentialSpecName", Format(names::dns_subdomain)),
    set("gmsaCredentialSpec", Text(credential_spec)),
    set("runAsUserName", Text(run_as_user_name)),
];

fn credential_spec(errors: &mut Errors, path: &Path<'_>, spec: &str) {
    if spec.is_empty() {
        errors.invalid(path, spec, "gmsaCredentialSpec cannot be an empty string");
    } else if spec.len() > MAX_CREDENTIAL_SPEC_KIB * 1024 {
        let why = format!("gmsaCredentialSpec size must be under {MAX_CREDENTIAL_SPEC_KIB} KiB");
        errors.invalid(path, spec, why);
    }
}

/// Validates a user name, `DOMAIN\user` or `user`.
fn run_as_user_name(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        return errors.invalid(path, name, "runAsUserName cannot be an empty string");
    }
    if name.bytes().any(|byte| byte.is_ascii_control()) {
        return errors.invalid(
            path,
            name,
            "runAsUserName cannot contain control characters",
        );
    }
    let (domain, user) = match name.split_once('\\') {
        Some((_, user)) if user.contains('\\') => {
            return errors.invalid(
                path,
                name,
                "runAsUserName cannot contain more than one backslash",
            );
        }
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    // The limit of the domain is exclusive and that of the user inclusive, as the two messages say.
    if domain.is_some_and(|domain| domain.len() >= MAX_DOMAIN) {
        errors.invalid(
            path,
            name,
            format!("runAsUserName's Domain length must be under {MAX_DOMAIN} characters"),
        );
    }
    if domain.is_some_and(|domain| !is_netbios(domain) && !is_dns(domain)) {
        errors.invalid(
            path,
            name,
            "runAsUserName's Domain doesn't match the NetBios nor the DNS format",
        );
    }
    if user.is_empty() {
        errors.invalid(path, name, "runAsUserName's User cannot be empty");
    } else if user.len() > MAX_USER {
        errors.invalid(
            path,
            name,
            format!("runAsUserName's User length must not be longer than {MAX_USER} characters"),
        );
    }
    if !user.is_empty() && user.bytes().all(|byte| byte == b'.' || byte == b' ') {
        errors.invalid(
            path,
            name,
            "runAsUserName's User cannot contain only periods or spaces",
        );
    }
    if user.contains(|c| "\"/\\:;|=,+*?<>@[]".contains(c)) {
        let detail =
            r#"runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]"#;
        errors.invalid(path, name, detail);
    }
}

fn is_netbios(domain: &str) -> bool {
    let length = domain.chars().count();
    (1..=15).contains(&length)
        && !domain.starts_with('.')
        && !domain.contains(|c| "\\/:*?\"<>|".contains(c))
}

fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    })
}

/// Requires HostProcess for all containers of a pod or for none, and with it the host's network.
pub(super) fn validate_host_process(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    let host_process = |context: Option<&Value>| {
        context
            .and_then(|context| context.field("windowsOptions"))
            .and_then(|options| options.field("hostProcess"))
            .and_then(Value::as_bool)
    };
    let pod = host_process(scope.spec.field("securityContext"));
    let (mut containers, mut on_host) = (0, 0);
    scope.visit_containers(path, &mut |container, at| {
        containers += 1;
        let own = host_process(container.field("securityContext"));
        if let (Some(pod), Some(own)) = (pod, own)
            && pod != own
        {
            let at = at.child("securityContext");
            let at = at.child("windowsOptions");
            let detail =
                format!("pod hostProcess value must be identical if both are specified, was {pod}");
            errors.invalid(&at.child("hostProcess"), own, detail);
        }
        // A container without a value of its own has the pod's.
        if own.or(pod) == Some(true) {
            on_host += 1;
        }
    });
    if on_host == 0 {
        return;
    }
    if on_host != containers {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.invalid(path, "", detail);
    }
    // HostProcess containers run in the network of the node, whatever the spec says.
    if !scope.spec.flag("hostNetwork") {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.invalid(&path.child("hostNetwork"), false, detail);
    }
}

/// Validates `spec.os`, and refuses the fields that the named system does not have.
pub(super) fn validate_os(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    let Some(os) = scope.spec.field("os") else {
        return;
    };
    match os.text("name") {
        "" => errors.required(&path.child("os").child("name"), ""),
        "linux" => linux(scope, path, errors),
        "windows" => windows(scope, path, errors),
        other => errors.not_supported(&path.child("os"), other, &["linux", "windows"]),
    }
}

fn linux(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    if scope
        .spec
        .field("securityContext")
        .is_some_and(|context| context.has("windowsOptions"))
    {
        errors.forbidden(
            &path.child("securityContext").child("windowsOptions"),
            NOT_ON_LINUX,
        );
    }
    scope.visit_containers(path, &mut |container, at| {
        if container
            .field("securityContext")
            .is_some_and(|context| context.has("windowsOptions"))
        {
            errors.forbidden(
                &at.child("securityContext").child("windowsOptions"),
                NOT_ON_LINUX,
            );
        }
    });
}

fn windows(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    if let Some(context) = scope.spec.field("securityContext") {
        let at = path.child("securityContext");
        for field in POD_FIELDS {
            match field.strip_prefix('.') {
                Some(field)
                    if scope
                        .spec
                        .field(field)
                        .is_some_and(|value| is_set(field, value)) =>
                {
                    errors.forbidden(&path.child(field), NOT_ON_WINDOWS);
                }
                None if context
                    .field(field)
                    .is_some_and(|value| is_set(field, value))
                    // In Go an empty list that the client sent is not nil, so it counts as set.
                    || errors.sent_empty(&at.child(field)) =>
                {
                    errors.forbidden(&at.child(field), NOT_ON_WINDOWS);
                }
                _ => {}
            }
        }
    }
    scope.visit_containers(path, &mut |container, at| {
        let Some(context) = container.field("securityContext") else {
            return;
        };
        let at = at.child("securityContext");
        for field in CONTAINER_FIELDS
            .into_iter()
            .filter(|field| context.has(field))
        {
            errors.forbidden(&at.child(field), NOT_ON_WINDOWS);
        }
    });
}

/// Returns whether a field counts as set: plain booleans if they are true, lists and pointers if they are present.
fn is_set(field: &str, value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value || !matches!(field, "hostPID" | "hostIPC"),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of(name: &str) -> Vec<String> {
        let mut errors = Errors::default();
        run_as_user_name(&mut errors, &Path::new("runAsUserName"), name);
        errors.0.into_iter().map(|error| error.detail).collect()
    }

    #[test]
    fn user_names_with_and_without_a_domain_are_good() {
        for good in [
            "ContainerUser",
            r"DOMAIN\user",
            r"NT AUTHORITY\LOCAL SERVICE",
            r"corp.example.com\svc",
        ] {
            assert_eq!(errors_of(good), [""; 0], "{good}");
        }
    }

    #[test]
    fn every_fault_of_a_user_name_is_named() {
        assert_eq!(
            errors_of(r"a\b\c"),
            ["runAsUserName cannot contain more than one backslash"]
        );
        assert_eq!(
            errors_of("..."),
            ["runAsUserName's User cannot contain only periods or spaces"]
        );
        assert_eq!(errors_of(r"d\"), ["runAsUserName's User cannot be empty"]);
        assert_eq!(errors_of(r"A*\us[er").len(), 2);
    }
}
