//! Validates the security contexts of pods and containers: ids, seccomp, AppArmor, SELinux, sysctls.

use std::collections::HashSet;

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Scope, internal, paths, windows};
use crate::fields::{self, Code, Field, Fields, Items, Number, OneOf, always, required, set};

const SYSCTL_MAX: usize = 253;
const SYSCTL: &str = r"must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
const MAX_APPARMOR_PROFILE: usize = 4095;
const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

const USER: Field = set("runAsUser", Number(names::unix_id));
const GROUP: Field = set("runAsGroup", Number(names::unix_id));
const IDS: &[Field] = &[
    set("fsGroup", Number(names::unix_id)),
    USER,
    GROUP,
    always("supplementalGroups", Items(&Number(names::unix_id))),
];
const WINDOWS: Field = set("windowsOptions", Fields(windows::OPTIONS));
const APPARMOR: Field = set("appArmorProfile", Code(apparmor));
const POD: &[Field] = &[
    set("fsGroupChangePolicy", OneOf(&["Always", "OnRootMismatch"])),
    set("seccompProfile", Code(seccomp)),
    WINDOWS,
    APPARMOR,
    set("supplementalGroupsPolicy", OneOf(&["Merge", "Strict"])),
    set("seLinuxChangePolicy", OneOf(&["Recursive"])),
];
const CONTAINER: &[Field] = &[
    USER,
    GROUP,
    set("procMount", OneOf(&["Default", "Unmasked"])),
];
const SECCOMP: &[Field] = &[set("seccompProfile", Code(seccomp))];
const SECCOMP_TYPE: &[Field] =
    &[required("type", OneOf(&PROFILE_TYPES))
        .because("type is required when seccompProfile is set")];
const PROFILES: &[Field] = &[WINDOWS, APPARMOR];

/// Validates `spec.securityContext`.
pub(super) fn validate_pod(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(context) = spec.field("securityContext") else {
        return;
    };
    fields::validate(IDS, context, path, errors);
    // Both fields choose the PID namespace of the containers.
    if spec.flag("shareProcessNamespace") && spec.flag("hostPID") {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(&path.child("shareProcessNamespace"), true, detail);
    }
    sysctls(
        context.items("sysctls"),
        spec,
        &path.child("sysctls"),
        errors,
    );
    fields::validate(POD, context, path, errors);
}

/// Validates `securityContext` of a container.
pub(super) fn validate_container(
    context: &Value,
    host_users: bool,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    fields::validate(CONTAINER, context, path, errors);
    // An unmasked /proc has files of the kernel that only a user namespace keeps from being written.
    if host_users && context.text("procMount") == "Unmasked" {
        errors.invalid(
            &path.child("procMount"),
            "Unmasked",
            "`hostUsers` must be false to use `Unmasked`",
        );
    }
    fields::validate(SECCOMP, context, path, errors);
    if context.has("allowPrivilegeEscalation") && !context.flag("allowPrivilegeEscalation") {
        let mut conflict = |detail: &str| {
            errors.with_text(
                ErrorType::Invalid,
                path,
                internal::compact("SecurityContext", context),
                detail,
            );
        };
        if context.flag("privileged") {
            conflict("cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        let added = context
            .get("capabilities")
            .map_or(&[][..], |capabilities| capabilities.items("add"));
        for _ in added
            .iter()
            // kube-apiserver compares this spelling alone, so `SYS_ADMIN` passes.
            .filter(|capability| capability.as_str() == Some("CAP_SYS_ADMIN"))
        {
            conflict(
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
    fields::validate(PROFILES, context, path, errors);
}

fn sysctls(sysctls: &[Value], spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, sysctl) in sysctls.iter().enumerate() {
        let name = sysctl.text("name");
        let is_new = seen.insert(name);
        let at = path.index(index);
        let at = at.child("name");
        if name.is_empty() {
            errors.required(&at, "");
        } else if !is_sysctl(name) {
            errors.invalid(&at, name, SYSCTL);
        } else if !is_new {
            errors.duplicate(&at, name);
        }
        // Without a namespace of its own, the pod would change the kernel settings of the node.
        if spec.flag("hostNetwork") && is_namespaced(name, &["net."], &[]) {
            errors.invalid(&at, name, "may not be specified when 'hostNetwork' is true");
        } else if spec.flag("hostIPC")
            && is_namespaced(
                name,
                &["kernel.shm", "kernel.msg", "fs.mqueue."],
                &["kernel.sem"],
            )
        {
            errors.invalid(&at, name, "may not be specified when 'hostIPC' is true");
        }
    }
}

/// Returns whether a sysctl belongs to a kernel namespace that containers have of their own. If its first separator is a slash, dots and
/// slashes are exchanged.
fn is_namespaced(name: &str, prefixes: &[&str], exact: &[&str]) -> bool {
    let slashes = name
        .find(['.', '/'])
        .is_some_and(|first| name.as_bytes()[first] == b'/');
    let same = |byte: u8, wanted: u8| {
        let byte = match byte {
            b'/' if slashes => b'.',
            b'.' if slashes => b'/',
            other => other,
        };
        byte == wanted
    };
    let starts = |prefix: &str| {
        name.len() >= prefix.len()
            && name
                .bytes()
                .zip(prefix.bytes())
                .all(|(byte, wanted)| same(byte, wanted))
    };
    prefixes.iter().any(|prefix| starts(prefix))
        || exact
            .iter()
            .any(|whole| name.len() == whole.len() && starts(whole))
}

fn is_sysctl(name: &str) -> bool {
    let edge = |byte: Option<u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.len() <= SYSCTL_MAX
        && name.split(['.', '/']).all(|segment| {
            edge(segment.bytes().next())
                && edge(segment.bytes().last())
                && segment.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte)
                })
        })
}

fn seccomp(profile: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(SECCOMP_TYPE, profile, path, errors);
    let kind = profile.text("type");
    let at = path.child("localhostProfile");
    match profile.field("localhostProfile").and_then(Value::as_str) {
        None if kind == "Localhost" => {
            errors.required(&at, "must be set when seccomp type is Localhost")
        }
        Some(file) if kind == "Localhost" => paths::local_descending(errors, &at, file),
        Some(_) => {
            let text = internal::compact("SeccompProfile", profile);
            errors.with_text(
                ErrorType::Invalid,
                &at,
                text,
                "can only be set when seccomp type is Localhost",
            );
        }
        None => {}
    }
}

/// Validates the AppArmor profile of a pod or a container.
pub(super) fn apparmor(profile: &Value, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("localhostProfile");
    let local = profile.field("localhostProfile").and_then(Value::as_str);
    match (profile.text("type"), local) {
        ("Localhost", None) => errors.required(&at, "must be set when AppArmor type is Localhost"),
        ("Localhost", Some(name)) => {
            if name.trim() != name {
                errors.invalid(&at, name, "must not be padded with whitespace");
            } else if name.is_empty() {
                errors.required(&at, "must be set when AppArmor type is Localhost");
            }
            if name.len() > MAX_APPARMOR_PROFILE {
                errors.too_long(&at, MAX_APPARMOR_PROFILE);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            errors.invalid(&at, name, "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => errors.required(
            &path.child("type"),
            "type is required when appArmorProfile is set",
        ),
        (kind, _) => errors.not_supported(&path.child("type"), kind, &PROFILE_TYPES),
    }
}

/// Checks that with `hostUsers: false` a pod uses no other host namespace and no block devices, whose owners cannot be mapped.
pub(super) fn validate_host_users(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    const WHY: &str = "when `hostUsers` is false";
    if scope.host_users() {
        return;
    }
    // kube-apiserver refuses these combinations, because they lead to unexpected permission errors.
    for (field, printed) in [
        ("hostNetwork", "hostNetwork"),
        // kube-apiserver writes these two paths with a capital letter.
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if scope.spec.flag(field) {
            errors.forbidden(&path.child(printed), WHY);
        }
    }
    scope.visit_containers(path, &mut |container, at| {
        if !container.items("volumeDevices").is_empty() {
            errors.forbidden(&at.child("volumeDevices"), WHY);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctls_are_recognized_with_dots_and_with_slashes() {
        assert!(is_namespaced("net.ipv4.ip_forward", &["net."], &[]));
        assert!(is_namespaced("net/ipv4/ip_forward", &["net."], &[]));
        assert!(!is_namespaced("network.x", &["net."], &[]));
        assert!(is_namespaced("kernel.sem", &[], &["kernel.sem"]));
        assert!(is_sysctl("kernel.shm_rmid_forced") && !is_sysctl("a b") && !is_sysctl("a..b"));
    }
}
