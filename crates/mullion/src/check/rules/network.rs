//! Checks logs, names and network features: MUL060 to MUL064.

use mullion_engine::images::System;
use serde_json::Value;

use super::Context;
use crate::check::{
    finding::Findings,
    images::repository,
    path::Path,
    placement::list,
    problem::{Image, Problem},
    subject::{Container, Object, Pod},
};

/// Images whose program writes its logs to ETW, the event log or files instead of stdout.
const SILENT: [&str; 4] = [
    "mcr.microsoft.com/windows/servercore/iis",
    "mcr.microsoft.com/dotnet/framework/aspnet",
    "mcr.microsoft.com/dotnet/framework/wcf",
    "mcr.microsoft.com/dotnet/framework/samples",
];
const LEVELS: [&str; 5] = ["critical", "error", "warning", "information", "verbose"];

pub(super) fn check(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    if !pod.is_windows() {
        return;
    }
    for container in &pod.containers {
        logs(pod, container, found);
        names(context, pod, container, found);
    }
}

/// Checks MUL060: logs that nobody sees.
fn logs(pod: &Pod<'_>, container: &Container<'_>, found: &mut Findings) {
    let words = started(container).join(" ").to_ascii_lowercase();
    if words.contains("logmonitor") {
        return;
    }
    let repository = repository(container.image).unwrap_or_default();
    let is_silent =
        // With a command of its own, the container starts another program than the image does.
        SILENT.iter().any(|own| repository == *own) && container.value["command"].is_null();
    if is_silent || words.contains("servicemonitor.exe") {
        let problem = Problem::SilentLogs {
            image: Image::of(Some(container)),
        };
        found.add("MUL060", pod.object, container.path.key("image"), problem);
    }
}

/// Returns the command line of a container, as far as the pod or the image's registry says it.
fn started<'c>(container: &'c Container<'_>) -> Vec<&'c str> {
    let mut words = container.command_line();
    let program = container
        .fact
        .as_ref()
        .and_then(|fact| fact.program.as_ref());
    if let Some(program) = program.filter(|_| container.value["command"].is_null()) {
        // As the kubelet does: `command` replaces entrypoint and arguments of the image, `args` only the
        // arguments.
        if container.value["args"].is_null() {
            words.extend(program.arguments.iter().map(String::as_str));
        }
        words.splice(0..0, program.entrypoint.iter().map(String::as_str));
    }
    words
}

/// Checks MUL062: a short Service name in a Windows pod.
fn names(context: &Context<'_>, pod: &Pod<'_>, container: &Container<'_>, found: &mut Findings) {
    let is_service = |name: &str| {
        context.checked().any(|(_, object)| {
            object.is("Service", "") && object.namespace() == pod.namespace && object.name() == name
        })
    };
    let mut places: Vec<(Path, &str)> = Vec::new();
    for (index, variable) in list(&container.value["env"]).enumerate() {
        let at = container.path.key("env").index(index).key("value");
        places.extend(variable["value"].as_str().map(|text| (at, text)));
    }
    for (index, argument) in list(&container.value["args"]).enumerate() {
        places.extend(
            argument
                .as_str()
                .map(|text| (container.path.key("args").index(index), text)),
        );
    }
    for (at, text) in places {
        if let Some(name) = host(text).filter(|name| is_service(name)) {
            let problem = Problem::ShortName {
                name: name.to_owned(),
                namespace: pod.namespace.to_owned(),
            };
            found.add("MUL062", pod.object, at, problem);
        }
    }
}

/// Returns the host name in a text if it has a single label: `http://api/x`, `tcp://db:5432`, `db:5432`, `--url=http://api`.
fn host(text: &str) -> Option<&str> {
    let after = match text.split_once("://") {
        Some((_, rest)) => rest.split(['/', '?']).next()?,
        // Without a scheme, only a port shows that a word is a host name.
        None => {
            let (name, port) = text.split_once(':')?;
            port.parse::<u16>().ok()?;
            name
        }
    };
    // A URL may have a user and a password before the host.
    let host = after.rsplit('@').next()?.split(':').next()?;
    let is_label = !host.is_empty()
        && host
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    is_label.then_some(host)
}

pub(super) fn check_object(
    context: &Context<'_>,
    index: usize,
    object: &Object,
    found: &mut Findings,
) {
    match object.kind() {
        "ConfigMap" => log_monitor(index, object, found),
        "Service" if object.is("Service", "") => service(context, index, object, found),
        "ENIConfig" if context.fleet.windows().next().is_some() => {
            found.add(
                "MUL063",
                index,
                Path::of(&["kind"]),
                Problem::CustomNetworking,
            );
        }
        "SecurityGroupPolicy" => {
            let selector = &object.value["spec"]["podSelector"]["matchLabels"];
            for pod in context.selected(object.namespace(), selector) {
                let pods = context.objects[pod.object].title();
                found.add(
                    "MUL063",
                    index,
                    Path::of(&["spec", "podSelector"]),
                    Problem::SecurityGroups { pods },
                );
            }
        }
        "ClusterConfig" => fargate(context, index, object, found),
        _ => {}
    }
}

/// Checks MUL061: a configuration that LogMonitor refuses.
fn log_monitor(index: usize, object: &Object, found: &mut Findings) {
    let data = object.value["data"].as_object().into_iter().flatten();
    for (key, value) in
        data.filter(|(key, _)| key.to_ascii_lowercase().ends_with("logmonitorconfig.json"))
    {
        let at = Path::of(&["data", key]);
        let text = value.as_str().unwrap_or_default();
        let mut add = |why: String| {
            found.add("MUL061", index, at.clone(), Problem::LogMonitor { why });
        };
        let Ok(config) = serde_json::from_str::<Value>(text) else {
            add("it is not JSON".to_owned());
            continue;
        };
        let sources = &config["LogConfig"]["sources"];
        if list(sources).next().is_none() {
            add("it has no sources".to_owned());
        }
        for (position, source) in list(sources).enumerate() {
            for why in source_faults(source) {
                add(format!("sources[{position}]: {why}"));
            }
        }
    }
}

fn source_faults(source: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let kind = source["type"]
        .as_str()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let levels = match kind.as_str() {
        "eventlog" => {
            if !source["startAtOldestRecord"].is_boolean() {
                faults.push("an EventLog needs startAtOldestRecord".to_owned());
            }
            &source["channels"]
        }
        "etw" => &source["providers"],
        "file" => {
            let directory = source["directory"]
                .as_str()
                .unwrap_or_default()
                .trim_end_matches(['\\', '/']);
            if directory.ends_with(':') && source["includeSubdirectories"] == true {
                faults.push(
                    "the root of a drive cannot be watched with its subdirectories".to_owned(),
                );
            }
            &Value::Null
        }
        "process" => &Value::Null,
        other => {
            faults.push(format!(
                "type {other:?} is not EventLog, File, ETW or Process"
            ));
            &Value::Null
        }
    };
    for level in list(levels).filter_map(|own| own["level"].as_str()) {
        if !LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
            faults.push(format!(
                "level {level:?} is not Critical, Error, Warning, Information or Verbose"
            ));
        }
    }
    faults
}

/// Checks MUL063 (features that Windows nodes of EKS do not have) and MUL064 (a Service that Windows hosts cannot reach) for a Service.
fn service(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    let spec = &object.value["spec"];
    let pods = context.selected(object.namespace(), &spec["selector"]);
    let Some(pod) = pods.first() else {
        return;
    };
    let pods = context.objects[pod.object].title();
    let policy = spec["ipFamilyPolicy"].as_str().unwrap_or_default();
    if list(&spec["ipFamilies"]).any(|family| family == "IPv6") {
        found.add(
            "MUL063",
            index,
            Path::of(&["spec", "ipFamilies"]),
            Problem::Ipv6 { pods: pods.clone() },
        );
    } else if policy.ends_with("DualStack") {
        found.add(
            "MUL063",
            index,
            Path::of(&["spec", "ipFamilyPolicy"]),
            Problem::Ipv6 { pods: pods.clone() },
        );
    }
    let local = ["externalTrafficPolicy", "internalTrafficPolicy"]
        .into_iter()
        .find(|field| spec[*field] == "Local");
    let affinity = (spec["sessionAffinity"] == "ClientIP").then_some("sessionAffinity");
    let node_port = (spec["type"] == "NodePort").then_some("type");
    if let Some(field) = local.or(affinity).or(node_port) {
        let value = spec[field].as_str().unwrap_or_default().to_owned();
        found.add(
            "MUL064",
            index,
            Path::of(&["spec", field]),
            Problem::HostsCannotReach { field, value, pods },
        );
    }
}

/// Checks MUL063 for Fargate profiles that select Windows pods.
fn fargate(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    for (position, profile) in list(&object.value["fargateProfiles"]).enumerate() {
        for (number, selector) in list(&profile["selectors"]).enumerate() {
            let namespace = selector["namespace"].as_str().unwrap_or_default();
            let labels = selector["labels"]
                .as_object()
                .filter(|labels| !labels.is_empty());
            let is_selected = |pod: &&Pod<'_>| {
                pod.namespace == namespace
                    && labels.is_none_or(|_| pod.has_labels(&selector["labels"]))
            };
            if let Some(pod) = context.windows().find(is_selected) {
                let at = Path::of(&["fargateProfiles"])
                    .index(position)
                    .key("selectors")
                    .index(number);
                let pods = context.objects[pod.object].title();
                found.add("MUL063", index, at, Problem::Fargate { pods });
            }
        }
    }
    if object.text_at("/kubernetesNetworkConfig/ipFamily") == "IPv6"
        && context.own.windows().any(|group| group.object == index)
    {
        let at = Path::of(&["kubernetesNetworkConfig", "ipFamily"]);
        found.add(
            "MUL063",
            index,
            at,
            Problem::Ipv6 {
                pods: format!("{} nodes of this cluster", System::Windows),
            },
        );
    }
}
