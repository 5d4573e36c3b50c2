//! Decides which accounts Windows containers may run as: which ones the kubelet and the runtime refuse.
//!
//! Pure: takes a container and its pod, and returns the message of a refusal. The numeric users of Linux containers
//! are not checked.

use k8s_openapi::api::core::v1::{Container, Pod, WindowsSecurityContextOptions};

/// The account that counts as root on Windows.
const ROOT: &str = "ContainerAdministrator";
/// The service accounts that a HostProcess container may run as.
const SERVICE_ACCOUNTS: [&str; 3] = ["SYSTEM", "LOCAL SERVICE", "NETWORK SERVICE"];
/// The local groups of Windows Server; a HostProcess container may run as a temporary member of one.
const LOCAL_GROUPS: [&str; 20] = [
    "Access Control Assistance Operators",
    "Administrators",
    "Backup Operators",
    "Certificate Service DCOM Access",
    "Cryptographic Operators",
    "Device Owners",
    "Distributed COM Users",
    "Event Log Readers",
    "Guests",
    "Hyper-V Administrators",
    "IIS_IUSRS",
    "Network Configuration Operators",
    "Performance Log Users",
    "Performance Monitor Users",
    "Power Users",
    "Print Operators",
    "Remote Desktop Users",
    "Remote Management Users",
    "Replicator",
    "Users",
];

/// Returns why a container that must not run as root may not be created (kubelet: `verifyRunAsNonRoot` in
/// security_context_windows.go).
///
/// Only an account named by the pod or the container counts, since Windows images name none. `pod_reference` names
/// the pod in the kubelet's messages.
pub(super) fn breaks_non_root(
    pod: &Pod,
    container: &Container,
    pod_reference: &str,
) -> Option<String> {
    let own = container.security_context.as_ref();
    let of_pod = pod.spec.as_ref()?.security_context.as_ref();
    let non_root = own
        .and_then(|context| context.run_as_non_root)
        .or_else(|| of_pod?.run_as_non_root);
    let account = account(pod, container)?;
    (non_root == Some(true) && account.eq_ignore_ascii_case(ROOT)).then(|| {
        format!(
            "container's runAsUserName ({account}) which will be regarded as root identity and will break non-root policy (pod: \
             {pod_reference:?}, container: {})",
            container.name
        )
    })
}

/// Returns why a HostProcess container cannot be started (hcsshim: `processToken` in
/// internal/jobcontainers/logon.go). Its account must be one of the service accounts in `NT AUTHORITY` or a local
/// group of the node.
pub(super) fn cannot_log_on(pod: &Pod, container: &Container) -> Option<String> {
    if !is_host_process(pod, container) {
        return None;
    }
    let account = account(pod, container).unwrap_or_default();
    let is_any = |names: &[&str], name: &str| {
        let mut names = names.iter();
        names.any(|known| known.eq_ignore_ascii_case(name))
    };
    let is_known = match account.split_once('\\') {
        // The runtime compares the domain case-sensitively.
        Some((domain, user)) => domain == "NT AUTHORITY" && is_any(&SERVICE_ACCOUNTS, user),
        None => is_any(&LOCAL_GROUPS, account),
    };
    let why = match account {
        "" => "empty username or group name passed",
        _ => "failed to logon user: The user name or password is incorrect.",
    };
    (!is_known).then(|| format!("failed to create user process token: {why}"))
}

/// Returns whether a container runs as a process of its node.
pub(super) fn is_host_process(pod: &Pod, container: &Container) -> bool {
    option(pod, container, |options| options.host_process) == Some(true)
}

fn account<'a>(pod: &'a Pod, container: &'a Container) -> Option<&'a str> {
    option(pod, container, |options| {
        options.run_as_user_name.as_deref()
    })
}

/// Returns an option of the container, or the pod's if the container has none.
fn option<'a, T>(
    pod: &'a Pod,
    container: &'a Container,
    of: impl Fn(&'a WindowsSecurityContextOptions) -> Option<T>,
) -> Option<T> {
    let own = container.security_context.as_ref();
    let own = own.and_then(|context| of(context.windows_options.as_ref()?));
    own.or_else(|| {
        let context = pod.spec.as_ref()?.security_context.as_ref()?;
        of(context.windows_options.as_ref()?)
    })
}
