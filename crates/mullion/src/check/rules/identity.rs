//! Checks as whom Windows containers run: MUL044 and MUL048.

use super::Context;
use crate::check::{
    finding::Findings,
    problem::Problem,
    subject::{CredentialUse, Object, Pod},
    table::Severity,
};

/// Checks a Windows pod.
pub(super) fn check(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    users(pod, found);
    credentials(context, pod, found);
}

/// Checks MUL044: a user that Windows refuses.
fn users(pod: &Pod<'_>, found: &mut Findings) {
    let of_pod = &pod.spec["securityContext"];
    let mut places = vec![(pod.at(&["securityContext"]), of_pod, pod.host_process())];
    places.extend(pod.containers.iter().map(|own| {
        (
            own.path.key("securityContext"),
            &own.value["securityContext"],
            own.host_process,
        )
    }));
    for (at, security, host_process) in places {
        let Some(user) = security["windowsOptions"]["runAsUserName"].as_str() else {
            continue;
        };
        let at = at.keys(&["windowsOptions", "runAsUserName"]);
        if let Some(why) = user_fault(user) {
            found.add(
                "MUL044",
                pod.object,
                at,
                Problem::UserName {
                    user: user.to_owned(),
                    why,
                },
            );
            continue;
        }
        // The container's own setting wins over the pod's, also if it is false.
        let non_root = security["runAsNonRoot"]
            .as_bool()
            .or(of_pod["runAsNonRoot"].as_bool());
        if user.eq_ignore_ascii_case("ContainerAdministrator") && non_root == Some(true) {
            found.add("MUL044", pod.object, at, Problem::AdministratorAsNonRoot);
        } else if user.to_ascii_lowercase().starts_with("nt authority\\") && !host_process {
            found
                .add(
                    "MUL044",
                    pod.object,
                    at,
                    Problem::SystemAccount {
                        user: user.to_owned(),
                    },
                )
                .as_a(Severity::Info);
        }
    }
}

/// Returns why kube-apiserver refuses a runAsUserName.
fn user_fault(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    if text.chars().any(char::is_control) {
        return Some("it has control characters");
    }
    let parts: Vec<_> = text.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return Some("it has more than one backslash"),
    };
    if let Some(domain) = domain {
        let net_bios = (1..=15).contains(&domain.len())
            && !domain.starts_with('.')
            && !domain.contains(['/', ':', '*', '?', '"', '<', '>', '|']);
        let is_label = |part: &str| {
            (1..=63).contains(&part.len())
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        let dns = domain.len() <= 256 && domain.split('.').all(is_label);
        if !net_bios && !dns {
            return Some("its domain is neither a NetBIOS nor a DNS name");
        }
    }
    match user {
        "" => Some("it names no user"),
        user if user.len() > 104 => Some("its user is longer than 104 characters"),
        user if user.chars().all(|c| c == '.' || c == ' ') => {
            Some("its user has only dots and spaces")
        }
        user if user.contains([
            '"', '/', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']',
        ]) =>
        {
            Some("its user has characters that Windows forbids")
        }
        _ => None,
    }
}

/// Checks MUL048: a GMSA credential that is missing.
fn credentials(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    let mut places = vec![(
        pod.at(&["securityContext", "windowsOptions"]),
        &pod.spec["securityContext"]["windowsOptions"],
    )];
    places.extend(pod.containers.iter().map(|own| {
        let at = own.path.keys(&["securityContext", "windowsOptions"]);
        (at, &own.value["securityContext"]["windowsOptions"])
    }));
    for (at, options) in places {
        match options["gmsaCredentialSpecName"].as_str() {
            Some(name) => {
                let is_it = |object: &Object| {
                    object.is("GMSACredentialSpec", "windows.k8s.io") && object.name() == name
                };
                let used = CredentialUse::of(pod.namespace, pod.spec, name);
                // Only for a running cluster is it known which credential specs exist.
                let problem = match context.denied {
                    Some(_) if !context.objects.iter().any(is_it) => {
                        let name = name.to_owned();
                        Problem::NoCredential { name }
                    }
                    Some(denied) if denied.contains(&used) => Problem::MayNotUse {
                        account: format!("{}/{}", used.namespace, used.account),
                        name: used.name,
                    },
                    _ => continue,
                };
                let at = at.key("gmsaCredentialSpecName");
                found.add("MUL048", pod.object, at, problem);
            }
            None if !options["gmsaCredentialSpec"].is_null() => {
                found.add(
                    "MUL048",
                    pod.object,
                    at.key("gmsaCredentialSpec"),
                    Problem::CredentialWithoutName,
                );
            }
            None => {}
        }
    }
}
