//! The baseline level: what is known to lead out of a container is forbidden. The checks run in the order of upstream's ids, which is
//! the order of the reasons in an answer.

use serde_json::Value;

use super::{Pod, Violation, distinct, named, quoted};
use crate::{field::quote, kinds::tree::Tree};

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const SELINUX_TYPES: [&str; 5] = [
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
];
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// What the pod does that baseline forbids; without the checks that restricted replaces by stricter ones.
pub(super) fn violations(pod: &Pod<'_>, for_restricted: bool) -> Vec<Violation> {
    let mut found = vec![app_armor(pod)];
    if !for_restricted {
        found.push(capabilities(pod));
    }
    found.push(host_namespaces(pod));
    if !for_restricted {
        found.push(host_path_volumes(pod));
    }
    found.extend([
        host_ports(pod),
        probe_hosts(pod),
        privileged(pod),
        proc_mount(pod),
        se_linux(pod),
    ]);
    if !for_restricted {
        found.push(seccomp_profile(pod));
    }
    found.extend([sysctls(pod), host_process(pod)]);
    found.into_iter().flatten().collect()
}

fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    let unconfined = |context: &Value| context["appArmorProfile"]["type"] == "Unconfined";
    let mut details = Vec::new();
    let setters = pod.setters(unconfined);
    if !setters.is_empty() {
        details.push(format!(
            r#"{setters} must not set AppArmor profile type to "Unconfined""#
        ));
    }
    let allowed = |profile: &str| {
        profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/")
    };
    for (key, profile) in pod.metadata.entries("annotations") {
        let profile = profile.as_str().unwrap_or("");
        if key.starts_with(APPARMOR_ANNOTATION) && !allowed(profile) {
            details.push(format!("{key}={}", quote(profile)));
        }
    }
    let reason = if details.len() == 1 {
        "forbidden AppArmor profile"
    } else {
        "forbidden AppArmor profiles"
    };
    (!details.is_empty()).then(|| Violation {
        reason,
        detail: details.join(", "),
    })
}

fn added_capabilities<'v>(
    container: &'v Value,
    allowed: &'v [&str],
) -> impl Iterator<Item = &'v str> {
    let added = container["securityContext"]["capabilities"]
        .items("add")
        .iter()
        .filter_map(Value::as_str);
    added.filter(move |capability| !allowed.contains(capability))
}

fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.containers_that(|container| {
        added_capabilities(container, &CAPABILITIES)
            .next()
            .is_some()
    });
    let forbidden = distinct(
        pod.containers()
            .flat_map(|container| added_capabilities(container, &CAPABILITIES)),
    );
    (!bad.is_empty()).then(|| Violation {
        reason: "non-default capabilities",
        detail: format!(
            "{} must not include {} in securityContext.capabilities.add",
            named("container", &bad),
            quoted(&forbidden)
        ),
    })
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|field| pod.spec.flag(field));
    let detail = shared
        .map(|field| format!("{field}=true"))
        .collect::<Vec<_>>()
        .join(", ");
    (!detail.is_empty()).then_some(Violation {
        reason: "host namespaces",
        detail,
    })
}

fn host_path_volumes(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = pod
        .spec
        .items("volumes")
        .iter()
        .filter(|volume| volume.has("hostPath"));
    let volumes: Vec<&str> = volumes.map(|volume| volume.text("name")).collect();
    (!volumes.is_empty()).then(|| Violation {
        reason: "hostPath volumes",
        detail: named("volume", &volumes),
    })
}

fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let ports = |container: &Value| -> Vec<String> {
        let ports = container
            .items("ports")
            .iter()
            .filter_map(|port| port.integer("hostPort"))
            .filter(|&port| port != 0);
        ports.map(|port| port.to_string()).collect()
    };
    let bad = pod.containers_that(|container| !ports(container).is_empty());
    let used: Vec<String> = pod.containers().flat_map(ports).collect();
    let used = distinct(used.iter().map(String::as_str));
    (!bad.is_empty()).then(|| Violation {
        reason: "hostPort",
        detail: format!(
            "{} {} hostPort{} {}",
            named("container", &bad),
            if bad.len() == 1 { "uses" } else { "use" },
            if used.len() == 1 { "" } else { "s" },
            used.join(", ")
        ),
    })
}

fn hosts(container: &Value) -> Vec<&str> {
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| &container[probe]);
    let hooks = ["postStart", "preStop"].map(|hook| &container["lifecycle"][hook]);
    let handlers = probes.into_iter().chain(hooks);
    let hosts = handlers.flat_map(|handler| {
        [
            handler["httpGet"].text("host"),
            handler["tcpSocket"].text("host"),
        ]
    });
    hosts.filter(|host| !host.is_empty()).collect()
}

fn probe_hosts(pod: &Pod<'_>) -> Option<Violation> {
    let bad = distinct(
        pod.containers_that(|container| !hosts(container).is_empty())
            .into_iter(),
    );
    let used = distinct(pod.containers().flat_map(hosts));
    (!bad.is_empty()).then(|| Violation {
        reason: "probe or lifecycle host",
        detail: format!(
            "{} {} {}",
            named("container", &bad),
            if bad.len() == 1 { "uses" } else { "use" },
            named("probe or lifecycle host", &used)
        ),
    })
}

fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.containers_that(|container| container["securityContext"].flag("privileged"));
    (!bad.is_empty()).then(|| Violation {
        reason: "privileged",
        detail: format!(
            "{} must not set securityContext.privileged=true",
            named("container", &bad)
        ),
    })
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let unmasked = |container: &Value| {
        !matches!(
            container["securityContext"].text("procMount"),
            "" | "Default"
        )
    };
    let bad = pod.containers_that(unmasked);
    let values = distinct(
        pod.containers()
            .filter(|c| unmasked(c))
            .map(|container| container["securityContext"].text("procMount")),
    );
    (!bad.is_empty() && !pod.has_user_namespace()).then(|| Violation {
        reason: "procMount",
        detail: format!(
            "{} must not set securityContext.procMount to {}",
            named("container", &bad),
            quoted(&values)
        ),
    })
}

fn se_linux(pod: &Pod<'_>) -> Option<Violation> {
    let contexts = || {
        let containers = pod
            .containers()
            .map(|container| &container["securityContext"]);
        std::iter::once(&pod.spec["securityContext"])
            .chain(containers)
            .map(|context| &context["seLinuxOptions"])
    };
    let bad_type = |options: &Value| !SELINUX_TYPES.contains(&options.text("type"));
    let set = |field: &str| contexts().any(|options| !options.text(field).is_empty());
    let setters = pod.setters(|context| {
        let options = &context["seLinuxOptions"];
        bad_type(options) || !options.text("user").is_empty() || !options.text("role").is_empty()
    });
    let types = distinct(
        contexts()
            .filter(|options| bad_type(options))
            .map(|options| options.text("type")),
    );
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(named("type", &types));
    }
    data.extend(set("user").then(|| "user may not be set".to_owned()));
    data.extend(set("role").then(|| "role may not be set".to_owned()));
    (!setters.is_empty()).then(|| Violation {
        reason: "seLinuxOptions",
        detail: format!(
            "{setters} set forbidden securityContext.seLinuxOptions: {}",
            data.join("; ")
        ),
    })
}

/// Whether a security context sets a seccomp profile that no level above privileged allows.
pub(super) fn is_bad_profile(context: &Value) -> bool {
    !matches!(
        context["seccompProfile"].text("type"),
        "" | "RuntimeDefault" | "Localhost"
    )
}

/// The refusal of explicit profiles, which both levels word alike.
pub(super) fn seccomp_profile(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(is_bad_profile);
    let containers = pod
        .containers()
        .map(|container| &container["securityContext"]);
    let contexts = std::iter::once(&pod.spec["securityContext"]).chain(containers);
    let values = distinct(
        contexts
            .filter(|context| is_bad_profile(context))
            .map(|context| context["seccompProfile"].text("type")),
    );
    (!setters.is_empty()).then(|| Violation {
        reason: "seccompProfile",
        detail: format!(
            "{setters} must not set securityContext.seccompProfile.type to {}",
            quoted(&values)
        ),
    })
}

fn sysctls(pod: &Pod<'_>) -> Option<Violation> {
    let set = pod.spec["securityContext"]
        .items("sysctls")
        .iter()
        .map(|sysctl| sysctl.text("name"));
    let forbidden: Vec<&str> = set.filter(|name| !SYSCTLS.contains(name)).collect();
    (!forbidden.is_empty()).then(|| Violation {
        reason: "forbidden sysctls",
        detail: forbidden.join(", "),
    })
}

fn host_process(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(|context| context["windowsOptions"].flag("hostProcess"));
    (!setters.is_empty()).then(|| Violation {
        reason: "hostProcess",
        detail: format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"),
    })
}
