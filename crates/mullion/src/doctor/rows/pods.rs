//! Checks Windows pods and their addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use mullion_api::{account::InstanceFacts, labels};
use mullion_engine::ip::{Cidr, Kind};
use serde_json::Value;

use super::{
    super::{
        change::Change,
        findings::{Findings, Problem},
        report::{counted, few, names},
        snapshot::{DryRun, Snapshot, Unknown, name_of, namespace_of},
    },
    is_windows, list, nodes,
    nodes::has_settled,
    switches::settings,
};
use crate::why::{
    hangs::is_settled,
    start::{address, requests_address},
};

/// Returns the pods that run or will run on Windows: by their node, or else by their node selector and `spec.os`. Finished pods and those
/// being deleted are left out.
pub(super) fn windows_pods(snapshot: &Snapshot) -> Result<Vec<&Value>, Unknown> {
    let windows: BTreeSet<_> = nodes(snapshot, true)?.into_iter().map(name_of).collect();
    let pods = snapshot.all("Pod")?.iter();
    let is_one = |pod: &&Value| {
        let ended = matches!(
            pod["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        ) || pod["metadata"]["deletionTimestamp"].is_string();
        let on_windows = match pod["spec"]["nodeName"].as_str() {
            Some(node) => windows.contains(node),
            None => says_windows(&pod["spec"]),
        };
        !ended && on_windows
    };
    Ok(pods.filter(is_one).collect())
}

fn says_windows(spec: &Value) -> bool {
    let selector = &spec["nodeSelector"];
    let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    let by_affinity = |term: &Value| {
        list(&term["matchExpressions"]).any(|own| {
            own["key"] == labels::OS
                && own["operator"] == "In"
                && list(&own["values"]).all(|value| value == labels::OS_WINDOWS)
        })
    };
    selector[labels::OS] == labels::OS_WINDOWS
        || selector[labels::BETA_OS] == labels::OS_WINDOWS
        || spec["os"]["name"] == labels::OS_WINDOWS
        || !selector[labels::WINDOWS_BUILD].is_null()
        || (list(terms).next().is_some() && list(terms).all(by_affinity))
}

/// Returns the pods on a node.
pub(super) fn on_node<'a>(snapshot: &'a Snapshot, node: &str) -> Result<Vec<&'a Value>, Unknown> {
    let pods = snapshot.all("Pod")?.iter();
    Ok(pods.filter(|pod| pod["spec"]["nodeName"] == node).collect())
}

/// Returns the address that the controller gave a pod, with its prefix length.
/// Returns whether a controller replaces a pod that is deleted.
pub(super) fn is_replaced(pod: &Value) -> bool {
    const REPLACED: [&str; 4] = [
        "ReplicaSet",
        "StatefulSet",
        "DaemonSet",
        "ReplicationController",
    ];
    let mut owners = list(&pod["metadata"]["ownerReferences"]);
    owners.any(|own| {
        let kind = own["kind"].as_str().unwrap_or_default();
        own["controller"] == true && REPLACED.contains(&kind)
    })
}

/// Adds the remedy of recreating a pod: as a change if a controller replaces the pod, or else as a command.
fn renew<'a>(problem: &'a mut Problem, pod: &Value) -> &'a mut Problem {
    let (namespace, name) = (namespace_of(pod), name_of(pod));
    if is_replaced(pod) {
        problem.with_fix(Change::delete(pod))
    } else {
        problem.command(format!("kubectl -n {namespace} delete pod {name}"))
    }
}

pub(super) fn title(pod: &Value) -> String {
    format!("{}/{}", namespace_of(pod), name_of(pod))
}

/// Checks DOC03: a Windows pod gets its request for an address.
pub(in super::super) fn webhooks(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    if !settings(snapshot)?.windows_ipam {
        return Ok(Findings::not_needed("Windows IP management is off (DOC01)"));
    }
    let pod = match &snapshot.dry_run {
        DryRun::Admitted(pod) => pod,
        DryRun::Forbidden => return Err(Unknown("create pods -n default (dry run)".to_owned())),
        DryRun::Refused(why) => {
            let mut found = Findings::default();
            found
                .warn(format!("a Windows pod in the namespace default was refused in a dry run, so that the address webhook cannot be tried: {why}"))
                .advise("let it pass, or look at a pod of yours: its first container must request vpc.amazonaws.com/PrivateIPv4Address:")
                .command("kubectl get pod NAME -o jsonpath='{.spec.containers[0].resources}'");
            return Ok(found);
        }
    };
    if requests_address(pod) {
        return Ok(Findings::state("a pod in a dry run got its request"));
    }
    let mut found = Findings::default();
    let name = "vpc-resource-mutating-webhook";
    let there = snapshot
        .all("MutatingWebhookConfiguration")
        .map(|all| all.iter().any(|own| name_of(own) == name));
    let why = match there {
        Ok(true) => format!(
            "the MutatingWebhookConfiguration {name} is there, but its webhook does not answer or leaves pods out"
        ),
        Ok(false) => format!("there is no MutatingWebhookConfiguration {name}"),
        Err(_) => "the address webhook did not act".to_owned(),
    };
    found
        .fail(format!("a Windows pod gets no request for an address: {why}. New Windows pods stay in ContainerCreating"))
        .advise("EKS makes the webhook; it comes back with an update of the control plane, or from config/webhook of the controller's repository:")
        .command(format!("kubectl get mutatingwebhookconfiguration {name} -o yaml"));
    Ok(found)
}

/// Returns whether a network interface has an address, as a single one or in a prefix.
fn has(instance: &InstanceFacts, address: Ipv4Addr) -> bool {
    let alone = instance
        .addresses
        .iter()
        .any(|own| *own == address.to_string());
    alone
        || instance.prefixes.iter().any(|own| {
            // The 16 addresses of a /28 block differ only in their last four bits.
            let block: Option<Ipv4Addr> = own.strip_suffix("/28").and_then(|own| own.parse().ok());
            block.is_some_and(|block| block.to_bits() >> 4 == address.to_bits() >> 4)
        })
}

/// Checks DOC06: the addresses of pods, annotations and interfaces agree.
pub(in super::super) fn agreement(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let pods = windows_pods(snapshot)?;
    let addressed: Vec<_> = pods
        .iter()
        .filter_map(|pod| Some((*pod, address(pod)?)))
        .collect();
    let mut found = Findings::state(format!(
        "{} of Windows pods, each once",
        counted(addressed.len(), "address", "addresses")
    ));
    let mut owners: BTreeMap<Ipv4Addr, Vec<&Value>> = BTreeMap::new();
    for (pod, text) in &addressed {
        let Ok(cidr) = text.parse::<Cidr>() else {
            let text = format!("pod {} has the address `{text}`, which is none", title(pod));
            renew(found.fail(text), pod);
            continue;
        };
        owners.entry(cidr.ip).or_default().push(pod);
        let ip = pod["status"]["podIP"].as_str().unwrap_or_default();
        if !ip.is_empty() && ip != cidr.ip.to_string() {
            let text = format!(
                "pod {} was given {} and runs with {ip}",
                title(pod),
                cidr.ip
            );
            renew(found.fail(text), pod);
        }
    }
    for (address, pods) in owners.iter().filter(|(_, pods)| pods.len() > 1) {
        let problem = found.fail(format!(
            "{address} is the address of {}: their traffic goes to one of them",
            few(pods.iter().map(|pod| title(pod)))
        ));
        // One of the pods may keep the address.
        for pod in pods.iter().skip(1) {
            renew(problem, pod);
        }
    }
    interfaces(snapshot, &owners, &mut found)?;
    Ok(found)
}

/// Compares the pods' addresses with those of the network interfaces.
fn interfaces(
    snapshot: &Snapshot,
    owners: &BTreeMap<Ipv4Addr, Vec<&Value>>,
    found: &mut Findings,
) -> Result<(), Unknown> {
    let instances = match &snapshot.account.instances {
        Ok(instances) => &instances.windows,
        Err(unknown) => {
            found.missing.push(unknown.0.clone());
            return Ok(());
        }
    };
    for node in nodes(snapshot, true)? {
        let id = node["spec"]["providerID"].as_str();
        let id = id.and_then(mullion_cloud::instance_id);
        let Some(instance) = id.and_then(|id| instances.get(&*id.0)) else {
            continue;
        };
        let of_node = owners.iter().filter_map(|(address, pods)| {
            let pod = pods
                .iter()
                .find(|pod| pod["spec"]["nodeName"] == name_of(node))?;
            Some((*address, *pod))
        });
        let of_node: Vec<_> = of_node.collect();
        for (address, pod) in &of_node {
            if !has(instance, *address) && is_settled(pod, snapshot.now) {
                let text = format!(
                    "pod {} has {address}, which EC2 does not know on the interface of node {}: nothing reaches the pod",
                    title(pod),
                    name_of(node)
                );
                renew(found.fail(text), pod);
            }
        }
        // The controller writes what it knows some seconds after it has given an address to a pod or to a new node.
        let now = snapshot.now;
        if has_settled(node, now) && of_node.iter().all(|(_, pod)| is_settled(pod, now)) {
            leaked(snapshot, node, instance, found)?;
        }
    }
    Ok(())
}

/// Reports addresses on an interface that the address controller does not know of.
fn leaked(
    snapshot: &Snapshot,
    node: &Value,
    instance: &InstanceFacts,
    found: &mut Findings,
) -> Result<(), Unknown> {
    let record = snapshot.find("CNINode", "", name_of(node))?;
    let ipv4 = record
        .map(|own| &own["status"]["ipv4"])
        .filter(|own| own.is_object());
    let Some(ipv4) = ipv4 else { return Ok(()) };
    let count = |field: &str| ipv4[field].as_u64().unwrap_or(0) as usize;
    let known: usize = ["used", "warm", "cooling", "creating", "deleting"]
        .into_iter()
        .map(count)
        .sum();
    let total = instance.addresses.len() + 16 * instance.prefixes.len();
    // Addresses that are being assigned or released may or may not be on the interface already.
    if total > known && count("creating") + count("deleting") == 0 {
        found
            .warn(format!("the interface of node {} has {} that the controller does not account for", name_of(node), counted(total - known, "address", "addresses")))
            .advise("a restart of the controller takes them up again; if they stay, give them back:")
            .command("aws ec2 unassign-private-ip-addresses --network-interface-id ENI --private-ip-addresses ADDRESS");
    }
    Ok(())
}

/// Checks DOC23: what the address controller knows.
pub(in super::super) fn what_the_controller_knows(
    snapshot: &Snapshot,
) -> Result<Findings, Unknown> {
    let settings = settings(snapshot)?;
    if !settings.windows_ipam {
        return Ok(Findings::not_needed("Windows IP management is off (DOC01)"));
    }
    let kind = settings.kind(true);
    let targets = settings.targets(kind);
    let mode = match kind {
        Kind::Prefix => "prefixes",
        Kind::Address => "single addresses",
    };
    let mut parts = vec![format!(
        "{mode}, at least {} warm and {} in all on each node",
        targets.warm_ip, targets.min_ip
    )];
    let mut found = Findings::default();
    for node in snapshot.all("Node")?.iter().filter(|node| is_windows(node)) {
        let name = name_of(node);
        let record = snapshot.find("CNINode", "", name)?;
        let ipv4 = record
            .map(|own| &own["status"]["ipv4"])
            .filter(|own| own.is_object());
        let Some(ipv4) = ipv4 else {
            let own = on_node(snapshot, name)?;
            let used = own.iter().filter(|pod| address(pod).is_some()).count();
            parts.push(format!("{name}: {used} used"));
            continue;
        };
        let count = |field: &str| ipv4[field].as_u64().unwrap_or(0);
        parts.push(format!(
            "{name}: {} of {} used, {} warm, {} cooling, {} waiting",
            count("used"),
            count("capacity"),
            count("warm"),
            count("cooling"),
            count("waiting")
        ));
        if count("waiting") > 0 && count("creating") == 0 && count("warm") == 0 {
            let waiting = count("waiting") as usize;
            let text = match count("cooling") {
                0 => "no address is on its way",
                _ => "addresses cool for 30 seconds after they were released",
            };
            let events = windows_pods(snapshot)?;
            let pods = events.into_iter().filter(|pod| {
                pod["spec"]["nodeName"] == name && address(pod).is_none() && requests_address(pod)
            });
            found
                .warn(format!(
                    "{} on node {name} ({}): {text}",
                    counted(
                        waiting,
                        "pod waits for an address",
                        "pods wait for an address"
                    ),
                    names(pods)
                ))
                .command(format!("kubectl describe cninode {name}"));
        }
    }
    found.state = parts.join("; ");
    Ok(found)
}
