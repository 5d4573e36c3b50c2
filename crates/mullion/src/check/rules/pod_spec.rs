//! Checks the pod specification: MUL040 to MUL043 and MUL045 to MUL047.

use mullion_engine::images::System;
use serde_json::{Value, json};

use super::{Context, identity};
use crate::check::{
    finding::Findings,
    path::Path,
    placement::{Choice, list},
    problem::{Image, Problem},
    subject::{Container, Object, Pod},
    yaml::edit::Edit,
};

/// The fields of a pod's securityContext that kube-apiserver refuses together with `spec.os.name: windows` (validateWindows).
const POD_SECURITY: [&str; 11] = [
    "appArmorProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "runAsGroup",
    "runAsUser",
    "seLinuxChangePolicy",
    "seLinuxOptions",
    "seccompProfile",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "sysctls",
];
/// The fields of a container's securityContext that kube-apiserver refuses likewise.
const CONTAINER_SECURITY: [&str; 10] = [
    "allowPrivilegeEscalation",
    "appArmorProfile",
    "capabilities",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
];
/// The fields of the pod's spec that kube-apiserver refuses likewise; the first two are refused only if they are true.
const POD: [&str; 4] = ["hostIPC", "hostPID", "hostUsers", "shareProcessNamespace"];
const DEVICES: [&str; 5] = [
    "nvidia.com/",
    "amd.com/gpu",
    "gpu.intel.com/",
    "aws.amazon.com/neuron",
    "vpc.amazonaws.com/efa",
];
/// Directories of Linux that have no counterpart on a Windows host.
const UNIX: [&str; 7] = ["/dev", "/etc", "/proc", "/run", "/sys", "/usr", "/var/run"];
const UNIX_SHELLS: [&str; 8] = [
    "/bin/sh",
    "/bin/bash",
    "/bin/ash",
    "/usr/bin/sh",
    "/usr/bin/bash",
    "/usr/bin/env",
    "sh",
    "bash",
];
const WINDOWS_SHELLS: [&str; 4] = ["powershell", "powershell.exe", "cmd", "cmd.exe"];

pub(super) fn check(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    shells(pod, found);
    match pod.system() {
        Some(System::Windows) => {
            fields(pod, found);
            host(context, pod, found);
            volumes(pod, found);
            devices(pod, found);
            identity::check(context, pod, found);
        }
        Some(System::Linux) => windows_options(pod, found),
        None => {}
    }
}

/// Returns the paths of the fields of a Windows pod that Windows does not have.
pub(super) fn forbidden(pod: &Pod<'_>) -> Vec<Path> {
    let mut paths = Vec::new();
    for field in POD {
        let value = &pod.spec[field];
        let must_be_true = matches!(field, "hostIPC" | "hostPID");
        if (must_be_true && *value == true) || (!must_be_true && !value.is_null()) {
            paths.push(pod.at(&[field]));
        }
    }
    for field in POD_SECURITY {
        if !pod.spec["securityContext"][field].is_null() {
            paths.push(pod.at(&["securityContext", field]));
        }
    }
    for container in &pod.containers {
        for field in CONTAINER_SECURITY {
            if !container.value["securityContext"][field].is_null() {
                paths.push(container.path.keys(&["securityContext", field]));
            }
        }
    }
    paths
}

/// Checks MUL040: fields that Windows does not have.
fn fields(pod: &Pod<'_>, found: &mut Findings) {
    let refused = pod.named() == Some(System::Windows);
    for at in forbidden(pod) {
        let finding = found.add(
            "MUL040",
            pod.object,
            at.clone(),
            Problem::NotOnWindows { refused },
        );
        // Where the API server refuses the pod, nothing runs today, and what the author meant is unclear.
        if !refused {
            finding.safe([Edit::Remove(at)]);
        }
    }
}

/// Checks MUL041: windowsOptions on a Linux pod.
fn windows_options(pod: &Pod<'_>, found: &mut Findings) {
    let mut places = vec![(
        pod.at(&["securityContext", "windowsOptions"]),
        &pod.spec["securityContext"],
    )];
    places.extend(pod.containers.iter().map(|own| {
        (
            own.path.keys(&["securityContext", "windowsOptions"]),
            &own.value["securityContext"],
        )
    }));
    for (at, security) in places {
        if !security["windowsOptions"].is_null() {
            found
                .add("MUL041", pod.object, at.clone(), Problem::OptionsOnLinux)
                .safe([Edit::Remove(at)]);
        }
    }
}

/// Checks MUL042 and MUL043: hostNetwork on a Windows pod, and a HostProcess pod that is refused.
fn host(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    let at = pod.at(&["hostNetwork"]);
    if !pod.host_process() {
        if pod.host_network() {
            found.add("MUL042", pod.object, at, Problem::HostNetwork);
        }
        return;
    }
    if !pod.host_network() {
        found
            .add(
                "MUL043",
                pod.object,
                at.clone(),
                Problem::HostProcessNeedsNetwork,
            )
            .safe([Edit::Set(at, json!(true))]);
    }
    if let Some(other) = pod
        .containers
        .iter()
        .find(|container| !container.host_process)
    {
        let container = other.name.to_owned();
        found.add(
            "MUL043",
            pod.object,
            other.path.clone(),
            Problem::HostProcessMixed { container },
        );
    }
    let is_home = |object: &&Object| object.is("Namespace", "") && object.name() == pod.namespace;
    let level = context.objects.iter().find(is_home).and_then(|home| {
        let level = home.value["metadata"]["labels"].get("pod-security.kubernetes.io/enforce");
        level.and_then(Value::as_str)
    });
    // Pod Security's levels baseline and restricted both forbid HostProcess.
    if let Some(level) = level.filter(|level| *level != "privileged") {
        let problem = Problem::HostProcessLevel {
            namespace: pod.namespace.to_owned(),
            level: level.to_owned(),
        };
        found.add("MUL043", pod.object, pod.at(&["securityContext"]), problem);
    }
}

/// Checks MUL045: a volume or a mount that Windows does not have.
fn volumes(pod: &Pod<'_>, found: &mut Findings) {
    for (index, volume) in list(&pod.spec["volumes"]).enumerate() {
        let at = pod.at(&["volumes"]).index(index);
        let medium = volume["emptyDir"]["medium"].as_str().unwrap_or_default();
        if !medium.is_empty() {
            let at = at.keys(&["emptyDir", "medium"]);
            found.add(
                "MUL045",
                pod.object,
                at,
                Problem::MemoryVolume {
                    medium: medium.to_owned(),
                },
            );
        }
        let path = volume["hostPath"]["path"].as_str().unwrap_or_default();
        let is_unix = UNIX.iter().any(|own| {
            path.strip_prefix(own)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        if is_unix || path.ends_with(".sock") {
            found.add(
                "MUL045",
                pod.object,
                at.keys(&["hostPath", "path"]),
                Problem::UnixPath {
                    path: path.to_owned(),
                },
            );
        }
    }
    for container in &pod.containers {
        if !container.value["volumeDevices"].is_null() {
            found.add(
                "MUL045",
                pod.object,
                container.path.key("volumeDevices"),
                Problem::BlockDevice,
            );
        }
        for (index, mount) in list(&container.value["volumeMounts"]).enumerate() {
            let at = container.path.key("volumeMounts").index(index);
            if let Some(mode) = mount["mountPropagation"]
                .as_str()
                .filter(|mode| *mode != "None")
            {
                found.add(
                    "MUL045",
                    pod.object,
                    at.key("mountPropagation"),
                    Problem::Propagation {
                        mode: mode.to_owned(),
                    },
                );
            }
            let path = mount["mountPath"].as_str().unwrap_or_default();
            if matches!(path, "/" | "C:\\" | "C:/" | "c:\\" | "c:/") {
                found.add(
                    "MUL045",
                    pod.object,
                    at.key("mountPath"),
                    Problem::RootMount {
                        path: path.to_owned(),
                    },
                );
            }
        }
        for (kind, name) in resource_names(container) {
            if name.starts_with("hugepages-") {
                let at = container.path.keys(&["resources", kind, name]);
                found.add(
                    "MUL045",
                    pod.object,
                    at,
                    Problem::HugePages {
                        name: name.to_owned(),
                    },
                );
            }
        }
    }
}

fn resource_names<'c>(
    container: &'c Container<'_>,
) -> impl Iterator<Item = (&'static str, &'c str)> {
    ["requests", "limits"].into_iter().flat_map(|kind| {
        let fields = container.value["resources"][kind]
            .as_object()
            .into_iter()
            .flatten();
        fields.map(move |(name, _)| (kind, name.as_str()))
    })
}

/// Checks MUL046: a shell of the other operating system.
fn shells(pod: &Pod<'_>, found: &mut Findings) {
    for container in &pod.containers {
        // The image's facts decide which shell it has; without facts, the pod's operating system does.
        let system = match &container.fact {
            Some(fact) => [System::Linux, System::Windows]
                .into_iter()
                .find(|system| fact.only_of(*system)),
            None => match pod.placement.os {
                Choice::One(system) => Some(system),
                _ => None,
            },
        };
        let Some(system) = system else {
            continue;
        };
        let wrong: &[&str] = match system {
            System::Linux => &WINDOWS_SHELLS,
            System::Windows => &UNIX_SHELLS,
        };
        let mut places = vec![
            vec!["command"],
            vec!["lifecycle", "postStart", "exec", "command"],
            vec!["lifecycle", "preStop", "exec", "command"],
        ];
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            places.push(vec![probe, "exec", "command"]);
        }
        for fields in places {
            let command = fields
                .iter()
                .fold(container.value, |value, field| &value[*field]);
            let Some(shell) = command[0].as_str() else {
                continue;
            };
            if wrong.iter().any(|wrong| wrong.eq_ignore_ascii_case(shell)) {
                let at = container.path.keys(&fields).index(0);
                let problem = Problem::WrongShell {
                    shell: shell.to_owned(),
                    image: Image::of(Some(container)),
                    system,
                };
                found.add("MUL046", pod.object, at, problem);
            }
        }
    }
}

/// Checks MUL047: devices and debugging that Windows does not have.
fn devices(pod: &Pod<'_>, found: &mut Findings) {
    for container in &pod.containers {
        let mut seen = Vec::new();
        for (kind, name) in resource_names(container) {
            if DEVICES.iter().any(|device| name.starts_with(device)) && !seen.contains(&name) {
                // Devices have equal requests and limits, so one finding covers both.
                seen.push(name);
                let at = container.path.keys(&["resources", kind, name]);
                found.add(
                    "MUL047",
                    pod.object,
                    at,
                    Problem::Device {
                        name: name.to_owned(),
                    },
                );
            }
        }
        if container.value["targetContainerName"].is_string() {
            found.add(
                "MUL047",
                pod.object,
                container.path.key("targetContainerName"),
                Problem::TargetContainer,
            );
        }
    }
}
