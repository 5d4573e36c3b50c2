//! Checks resources and scale: MUL050 to MUL057.

use mullion_api::labels;
use serde_json::{Value, json};

use super::Context;
use crate::check::{
    finding::Findings,
    fleet::{BACKENDS, OLD_BACKENDS, Source, addresses},
    images::repository,
    path::Path,
    problem::{Image, Problem},
    subject::{Container, Pod},
    yaml::edit::Edit,
};

const NANO: f64 = 30e6;
const CORE: f64 = 45e6;
const LEAST_CPU: f64 = 0.1;
/// The shortest time in seconds that a probe must allow before it kills a container for the first time.
const PATIENCE: u64 = 60;
const SERVICES: usize = 100;

pub(super) fn check(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    address(context, pod, found);
    if !pod.is_windows() {
        return;
    }
    for container in &pod.containers {
        limits(pod, container, found);
        probes(pod, container, found);
    }
    scale(context, pod, found);
}

/// Checks MUL050 and MUL051: a Windows container without a memory limit, or with less than it needs to start.
fn limits(pod: &Pod<'_>, container: &Container<'_>, found: &mut Findings) {
    let resources = container.path.key("resources");
    let limit = container.quantity("limits", "memory");
    let request = container.quantity("requests", "memory");
    // Ephemeral containers cannot have resources.
    let is_ephemeral = container.path.to_string().contains("ephemeralContainers");
    if limit.is_none()
        && container.value["resources"]["limits"]["memory"].is_null()
        && !is_ephemeral
    {
        let finding = found.add(
            "MUL050",
            pod.object,
            resources.clone(),
            Problem::NoMemoryLimit {
                container: container.name.to_owned(),
            },
        );
        if request.is_some() {
            let value = container.value["resources"]["requests"]["memory"].clone();
            // A limit at the request may kill a container that needs more at times.
            finding.not_safe([Edit::Set(resources.keys(&["limits", "memory"]), value)]);
        }
    }
    let repository = repository(container.image).unwrap_or_default();
    let least = match &repository {
        name if name.contains("nanoserver") || container.image.contains("nanoserver") => Some(NANO),
        name if name.contains("servercore") || container.image.contains("servercore") => Some(CORE),
        _ => None,
    };
    let given = [("limits", limit), ("requests", request)];
    if let Some(least) = least
        && let Some((kind, value)) = given
            .into_iter()
            .find_map(|(kind, value)| Some((kind, value.filter(|value| *value < least)?)))
    {
        let problem = Problem::TooLittleMemory {
            image: Image::of(Some(container)),
            bytes: value as u64,
            least: least as u64,
        };
        found.add(
            "MUL051",
            pod.object,
            resources.keys(&[kind, "memory"]),
            problem,
        );
    }
    if let Some(cpu) = container
        .quantity("limits", "cpu")
        .filter(|cpu| *cpu < LEAST_CPU)
    {
        let problem = Problem::TooLittleCpu {
            milli: (cpu * 1000.0) as u64,
        };
        found.add(
            "MUL051",
            pod.object,
            resources.keys(&["limits", "cpu"]),
            problem,
        );
    }
}

/// Checks MUL056: a probe that gives a Windows container too little time.
fn probes(pod: &Pod<'_>, container: &Container<'_>, found: &mut Findings) {
    // The liveness probe starts only after the startup probe has succeeded.
    let probe = ["startupProbe", "livenessProbe"]
        .into_iter()
        .find(|probe| container.value[*probe].is_object());
    let Some(probe) = probe else {
        return;
    };
    let own = &container.value[probe];
    let number = |field: &str, usual: u64| own[field].as_u64().unwrap_or(usual);
    let (delay, period) = (
        number("initialDelaySeconds", 0),
        number("periodSeconds", 10),
    );
    let failures = number("failureThreshold", 3);
    let given = delay + period * failures;
    if given < PATIENCE {
        let at = container.path.key(probe);
        let edit = Edit::Set(
            at.key("initialDelaySeconds"),
            json!(delay + PATIENCE - given),
        );
        found
            .add(
                "MUL056",
                pod.object,
                at,
                Problem::ImpatientProbe {
                    probe,
                    seconds: given,
                },
            )
            .not_safe([edit]);
    }
}

/// Checks MUL053: more pods than all Windows groups together have addresses for.
fn scale(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    if pod.host_network() || !context.fleet.complete || pod.kind == "DaemonSet" {
        return;
    }
    let prefixes = super::config_maps::prefixes(context.objects);
    let mut all = 0;
    for group in context.fleet.reachable(&pod.placement) {
        let most = group
            .types
            .iter()
            .map(|name| addresses(name, prefixes))
            .collect::<Option<Vec<_>>>();
        // A group without a limit of nodes, or with an unknown instance type, may have room for all pods.
        let (Some(nodes), Some(most)) = (group.nodes, most.and_then(|most| most.into_iter().max()))
        else {
            return;
        };
        all += nodes * most;
    }
    let pods = pod.replicas(context.objects);
    if all > 0 && pods > all {
        found.add(
            "MUL053",
            pod.object,
            Path::of(&["spec", "replicas"]),
            Problem::TooFewAddresses {
                pods,
                addresses: all,
                prefixes,
            },
        );
    }
}

/// Checks MUL054 and MUL055: a load balancer with too many Windows pods, and more than 100 Services without DSR.
pub(super) fn check_services(context: &Context<'_>, found: &mut Findings) {
    let services: Vec<_> = context
        .checked()
        .filter(|(_, object)| object.is("Service", ""))
        .collect();
    let most = if context.fleet.has_old_nodes {
        OLD_BACKENDS
    } else {
        BACKENDS
    };
    for (index, service) in &services {
        if service.text_at("/spec/type") != "LoadBalancer" {
            continue;
        }
        let pods = context.selected(service.namespace(), &service.value["spec"]["selector"]);
        let count: u64 = pods.iter().map(|pod| pod.replicas(context.objects)).sum();
        if count > most {
            found.add(
                "MUL054",
                *index,
                Path::of(&["spec", "type"]),
                Problem::TooManyBackends { pods: count, most },
            );
        }
    }
    let windows: Vec<_> = context
        .fleet
        .windows()
        .filter(|group| group.source != Source::Node || context.live)
        .collect();
    // DSR is switched on in free text, such as a bootstrap script or arguments of kube-proxy, so any mention
    // counts.
    let dsr = windows.iter().any(|group| {
        context.objects[group.object]
            .value
            .to_string()
            .to_ascii_lowercase()
            .contains("dsr")
    });
    if let (Some((index, _)), false, false) = (services.get(SERVICES), windows.is_empty(), dsr) {
        found.add(
            "MUL055",
            *index,
            Path::of(&["kind"]),
            Problem::TooManyServices {
                services: services.len(),
            },
        );
    }
}

/// Checks MUL057: an address request or annotation in a manifest. In a running cluster the controller sets the
/// annotation of a pod, so that is no finding.
fn address(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    for container in &pod.containers {
        for kind in ["requests", "limits"] {
            let value = &container.value["resources"][kind][labels::PRIVATE_IPV4];
            if value.is_null() || *value == 1 || *value == "1" {
                continue;
            }
            let at = container
                .path
                .keys(&["resources", kind, labels::PRIVATE_IPV4]);
            found
                .add(
                    "MUL057",
                    pod.object,
                    at.clone(),
                    Problem::AddressRequest {
                        value: plain(value),
                    },
                )
                .safe([Edit::Remove(at)]);
        }
    }
    let is_manifest = !context.live || pod.kind != "Pod";
    if is_manifest && pod.meta["annotations"].get(labels::PRIVATE_IPV4).is_some() {
        let at = pod
            .path
            .keys(&["metadata", "annotations", labels::PRIVATE_IPV4]);
        found
            .add("MUL057", pod.object, at.clone(), Problem::AddressAnnotation)
            .safe([Edit::Remove(at)]);
    }
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the instance types of a group that are too small for Windows, with less than 4 GiB.
pub(super) fn small(types: &[String]) -> impl Iterator<Item = &String> {
    const LEAST_MIB: u64 = 4096;
    types
        .iter()
        .filter(|name| crate::check::fleet::memory_mib(name).is_some_and(|mib| mib < LEAST_MIB))
}

/// Returns the bytes of memory that a node class reserves on Windows nodes.
pub(super) fn reserved(kubelet: &Value) -> f64 {
    let fields = ["systemReserved", "kubeReserved"].into_iter();
    fields
        .filter_map(|field| crate::check::subject::amount(&kubelet[field]["memory"]))
        .sum()
}
