//! The rules of the baseline level, which forbids known ways out of a container. A rule that a version changed has the newer
//! version in its name.

use mullion_kube_text::golang::quote;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Pod, Violation, distinct, named, quoted};

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
/// Without the last before 1.31.
const SELINUX_TYPES: [&str; 5] = [
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
];
/// The safe sysctls, in the order in which they were allowed: five at first, then one in 1.27, four in 1.29 and two in 1.32.
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
/// The annotation with the seccomp profile of a pod, from before 1.19.
pub(super) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// The prefix of the annotations with the seccomp profiles of containers, from before 1.19.
pub(super) const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

pub(super) fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    let is_bad = |context: &Value| {
        let profile = context.field("appArmorProfile");
        profile
            .is_some_and(|profile| !matches!(profile.text("type"), "RuntimeDefault" | "Localhost"))
    };
    // The field and the old annotation are reported together, as upstream's check does.
    let mut setters: Vec<String> = Vec::from_iter(pod.setters(is_bad));
    let contexts = pod.contexts().filter(|context| is_bad(context));
    let types = distinct(contexts.map(|context| context["appArmorProfile"].text("type")));
    let is_allowed = |profile: &str| {
        profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/")
    };
    let annotations = pod.metadata.entries("annotations");
    let annotations = annotations.filter(|(key, _)| key.starts_with(APPARMOR_ANNOTATION));
    let annotations: Vec<String> = annotations
        .map(|(key, profile)| (key, profile.as_str().unwrap_or("")))
        .filter(|(_, profile)| !is_allowed(profile))
        .map(|(key, profile)| format!("{key}={}", quote(profile)))
        .collect();
    match annotations.len() {
        0 => {}
        1 => setters.push("annotation".to_owned()),
        _ => setters.push("annotations".to_owned()),
    }
    let annotations = annotations.iter().map(String::as_str);
    let values: Vec<&str> = types.into_iter().chain(annotations).collect();
    (!setters.is_empty()).then(|| Violation {
        reason: match values.len() {
            1 => "forbidden AppArmor profile",
            _ => "forbidden AppArmor profiles",
        },
        detail: format!(
            "{} must not set AppArmor profile type to {}",
            setters.join(" and "),
            quoted(&values)
        ),
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

pub(super) fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
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

pub(super) fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
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

pub(super) fn host_path_volumes(pod: &Pod<'_>) -> Option<Violation> {
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

pub(super) fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
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
    // Each port once, however many containers use it.
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

pub(super) fn probe_hosts(pod: &Pod<'_>) -> Option<Violation> {
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

pub(super) fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.containers_that(|container| container["securityContext"].flag("privileged"));
    (!bad.is_empty()).then(|| Violation {
        reason: "privileged",
        detail: format!(
            "{} must not set securityContext.privileged=true",
            named("container", &bad)
        ),
    })
}

/// Checks `procMount` since 1.35: a pod with a user namespace may use any value, because the namespace contains what an unmasked /proc
/// exposes.
pub(super) fn proc_mount_1_35(pod: &Pod<'_>) -> Option<Violation> {
    (!pod.has_user_namespace())
        .then(|| proc_mount(pod))
        .flatten()
}

pub(super) fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
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
    (!bad.is_empty()).then(|| Violation {
        reason: "procMount",
        detail: format!(
            "{} must not set securityContext.procMount to {}",
            named("container", &bad),
            quoted(&values)
        ),
    })
}

pub(super) fn se_linux(pod: &Pod<'_>) -> Option<Violation> {
    se_linux_of(pod, &SELINUX_TYPES[..4])
}

pub(super) fn se_linux_1_31(pod: &Pod<'_>) -> Option<Violation> {
    se_linux_of(pod, &SELINUX_TYPES)
}

fn se_linux_of(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let options = || pod.contexts().map(|context| &context["seLinuxOptions"]);
    let is_bad_type = |options: &Value| !allowed.contains(&options.text("type"));
    let is_set = |field: &str| options().any(|options| !options.text(field).is_empty());
    let setters = pod.setters(|context| {
        let options = &context["seLinuxOptions"];
        is_bad_type(options) || !options.text("user").is_empty() || !options.text("role").is_empty()
    })?;
    let bad = options().filter(|options| is_bad_type(options));
    let types = distinct(bad.map(|options| options.text("type")));
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(named("type", &types));
    }
    data.extend(is_set("user").then(|| "user may not be set".to_owned()));
    data.extend(is_set("role").then(|| "role may not be set".to_owned()));
    let data = data.join("; ");
    Some(Violation {
        reason: "seLinuxOptions",
        detail: format!("{setters} set forbidden securityContext.seLinuxOptions: {data}"),
    })
}

/// Checks the seccomp annotations from before 1.19, which later versions of the rule ignore.
pub(super) fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    let of_containers = pod
        .containers()
        .map(|container| format!("{SECCOMP_CONTAINER}{}", container.text("name")));
    let is_allowed = |profile: &str| {
        matches!(profile, "runtime/default" | "docker/default") || profile.starts_with("localhost/")
    };
    let annotations = &pod.metadata["annotations"];
    let found: Vec<String> = std::iter::once(SECCOMP_POD.to_owned())
        .chain(of_containers)
        .filter(|key| annotations.has(key) && !is_allowed(annotations.text(key)))
        .map(|key| format!("{key}={}", quote(annotations.text(&key))))
        .collect();
    let found = distinct(found.iter().map(String::as_str));
    (!found.is_empty()).then(|| Violation {
        reason: "seccompProfile",
        detail: format!(
            "forbidden annotation{} {}",
            if found.len() == 1 { "" } else { "s" },
            found.join(", ")
        ),
    })
}

/// Refuses explicit seccomp profiles; both levels use the same words.
pub(super) fn seccomp_profile(pod: &Pod<'_>) -> Option<Violation> {
    let is_bad = |context: &Value| {
        let profile = context.field("seccompProfile");
        profile
            .is_some_and(|profile| !matches!(profile.text("type"), "RuntimeDefault" | "Localhost"))
    };
    let setters = pod.setters(is_bad)?;
    let contexts = pod.contexts().filter(|context| is_bad(context));
    let values = distinct(contexts.map(|context| context["seccompProfile"].text("type")));
    Some(Violation {
        reason: "seccompProfile",
        detail: format!(
            "{setters} must not set securityContext.seccompProfile.type to {}",
            quoted(&values)
        ),
    })
}

pub(super) fn sysctls(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_of(pod, &SYSCTLS[..5])
}

pub(super) fn sysctls_1_27(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_of(pod, &SYSCTLS[..6])
}

pub(super) fn sysctls_1_29(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_of(pod, &SYSCTLS[..10])
}

pub(super) fn sysctls_1_32(pod: &Pod<'_>) -> Option<Violation> {
    sysctls_of(pod, &SYSCTLS)
}

fn sysctls_of(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let set = pod.spec["securityContext"].items("sysctls").iter();
    let names = set.map(|sysctl| sysctl.text("name"));
    let forbidden: Vec<&str> = names.filter(|name| !allowed.contains(name)).collect();
    (!forbidden.is_empty()).then(|| Violation {
        reason: "forbidden sysctls",
        detail: forbidden.join(", "),
    })
}

pub(super) fn host_process(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(|context| context["windowsOptions"].flag("hostProcess"))?;
    Some(Violation {
        reason: "hostProcess",
        detail: format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"),
    })
}
