//! Checks whether traffic gets through: from the cluster's objects, and from the probe pods (`mullion doctor --network`).
//!
//! Objects alone can show that a path is blocked, but not that it is open: without probes a check is unknown unless its objects make it
//! fail.

use mullion_api::ami::Os;
use serde_json::Value;

use super::{
    super::{
        findings::{Findings, Problem},
        network::{Answer, Probes, Source, Target, TrafficPath},
        report::{counted, few},
        snapshot::{Snapshot, Unknown, name_of, namespace_of},
    },
    access, is_ready, is_simulated, list, nodes,
};

/// The name of the Service of the cluster's DNS.
const DNS: &str = "kube-dns";
const SERVICE_OF_SLICE: &str = "kubernetes.io/service-name";

/// Checks NET01: Linux nodes reach pods.
pub(in super::super) fn from_linux_nodes(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let mut found = Findings::default();
    ready_nodes(snapshot, Os::Linux, &mut found)?;
    measured(snapshot, &mut found, "NET01");
    Ok(found)
}

/// Checks NET02: Windows nodes reach pods.
pub(in super::super) fn from_windows_nodes(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    if nodes(snapshot, true)?.is_empty() {
        return Ok(Findings::not_needed("there is no Windows node"));
    }
    let mut found = Findings::default();
    ready_nodes(snapshot, Os::Windows, &mut found)?;
    measured(snapshot, &mut found, "NET02");
    Ok(found)
}

fn ready_nodes(snapshot: &Snapshot, os: Os, found: &mut Findings) -> Result<(), Unknown> {
    let nodes = nodes(snapshot, os == Os::Windows)?;
    if !nodes.iter().any(|node| is_ready(node)) {
        let title = super::super::network::title(os);
        found
            .fail(format!(
                "no {title} node is ready, so that no pod of it is reached"
            ))
            .command(format!("kubectl describe nodes -l kubernetes.io/os={os}"));
    }
    Ok(())
}

/// Checks NET03: pods reach pods.
pub(in super::super) fn between_pods(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let mut found = Findings::default();
    let is_missed = !is_simulated(snapshot);
    daemon(
        snapshot,
        "aws-node",
        is_missed,
        &mut found,
        |found, text| found.fail(format!("{text}: pods of Linux nodes get no address")),
    );
    policies(snapshot, "Ingress", &mut found);
    measured(snapshot, &mut found, "NET03");
    Ok(found)
}

/// Checks NET04: Services can be reached by their addresses.
pub(in super::super) fn services(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let mut found = Findings::default();
    let is_missed = !is_simulated(snapshot);
    daemon(
        snapshot,
        "kube-proxy",
        is_missed,
        &mut found,
        |found, text| {
            found.warn(format!(
                "{text}: Linux nodes reach no Service, unless another program does its work"
            ))
        },
    );
    let faults = access::proxy_faults(snapshot);
    if !faults.is_empty() {
        let ids = faults.join(", ");
        found
            .fail(format!("kube-proxy of Windows nodes may not read Services ({ids}), so that no Service is reached from there"))
            .command("mullion doctor --fix");
    }
    without_endpoints(snapshot, &mut found);
    measured(snapshot, &mut found, "NET04");
    if found.problems.is_empty() && found.missing.is_empty() {
        found.state += "; Windows hosts themselves reach no Service, and need not";
    }
    Ok(found)
}

/// Checks NET05: Services can be reached by their names.
pub(in super::super) fn names(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let mut found = Findings::default();
    let dns = snapshot.system("Service", DNS)?;
    match dns {
        Some(_) => match ready_endpoints(snapshot, "kube-system", DNS) {
            Ok(0) => {
                found
                    .fail("the Service kube-system/kube-dns has no ready endpoint: no pod resolves a name")
                    .command("kubectl -n kube-system get pods -l k8s-app=kube-dns");
            }
            Ok(_) => {}
            Err(Unknown(missing)) => found.missing.push(missing),
        },
        // The simulated network resolves names itself.
        None if is_simulated(snapshot) => {}
        None => {
            found
                .fail("there is no Service kube-system/kube-dns: no pod resolves a name")
                .command("aws eks create-addon --cluster-name CLUSTER --addon-name coredns");
        }
    }
    measured(snapshot, &mut found, "NET05");
    Ok(found)
}

/// Checks NET06: NodePorts can be reached.
pub(in super::super) fn node_ports(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let mut found = Findings::default();
    measured(snapshot, &mut found, "NET06");
    Ok(found)
}

/// Checks NET07: pods reach the outside of the cluster.
pub(in super::super) fn outside(snapshot: &Snapshot) -> Result<Findings, Unknown> {
    let mut found = Findings::default();
    policies(snapshot, "Egress", &mut found);
    measured(snapshot, &mut found, "NET07");
    Ok(found)
}

/// Reports a DaemonSet of kube-system that is missing or has pods that are not ready.
fn daemon<'a>(
    snapshot: &Snapshot,
    name: &str,
    is_missed: bool,
    found: &'a mut Findings,
    report: impl FnOnce(&'a mut Findings, String) -> &'a mut Problem,
) {
    let text = match snapshot.system("DaemonSet", name) {
        Err(Unknown(missing)) => return found.missing.push(missing),
        Ok(None) if is_missed => format!("there is no DaemonSet kube-system/{name}"),
        Ok(None) => return,
        Ok(Some(set)) => {
            let count = |field: &str| set["status"][field].as_u64().unwrap_or(0);
            let (wanted, ready) = (count("desiredNumberScheduled"), count("numberReady"));
            if ready >= wanted {
                return;
            }
            format!("{ready} of {wanted} pods of the DaemonSet kube-system/{name} are ready")
        }
    };
    report(found, text).command(format!(
        "kubectl -n kube-system describe pods -l k8s-app={name}"
    ));
}

/// Reports NetworkPolicies that block all traffic in a direction for all pods of a namespace.
fn policies(snapshot: &Snapshot, direction: &str, found: &mut Findings) {
    let policies = match snapshot.all("NetworkPolicy") {
        Ok(policies) => policies,
        Err(Unknown(missing)) => return found.missing.push(missing),
    };
    let rules = |policy: &Value| list(&policy["spec"][direction.to_lowercase()]).count();
    let shuts = |policy: &&Value| {
        let selector = &policy["spec"]["podSelector"];
        let is_for_all = selector.as_object().is_none_or(serde_json::Map::is_empty);
        let is_meant = list(&policy["spec"]["policyTypes"]).any(|own| own == direction);
        is_for_all && is_meant && rules(policy) == 0
    };
    for policy in policies.iter().filter(shuts) {
        let (namespace, name) = (namespace_of(policy), name_of(policy));
        // NetworkPolicies add up: another one may allow what this one does not.
        let is_opened = policies
            .iter()
            .any(|other| namespace_of(other) == namespace && rules(other) > 0);
        if is_opened {
            continue;
        }
        let what = match direction {
            "Ingress" => "lets nothing reach the pods",
            _ => "lets nothing leave the pods, questions for names included,",
        };
        found
            .warn(format!("the NetworkPolicy {namespace}/{name} {what} of the namespace {namespace} where the network plugin heeds policies (Amazon's does on Linux nodes)"))
            .command(format!("kubectl -n {namespace} describe networkpolicy {name}"));
    }
}

/// Returns the number of ready endpoints of a Service.
fn ready_endpoints(snapshot: &Snapshot, namespace: &str, name: &str) -> Result<usize, Unknown> {
    let slices = snapshot.all("EndpointSlice")?.iter().filter(|slice| {
        namespace_of(slice) == namespace && slice["metadata"]["labels"][SERVICE_OF_SLICE] == name
    });
    let endpoints = slices.flat_map(|slice| list(&slice["endpoints"]));
    // An unknown readiness counts as ready (EndpointConditions of discovery.k8s.io/v1).
    let ready = endpoints.filter(|own| own["conditions"]["ready"] != false);
    Ok(ready.count())
}

/// Reports Services with a selector that have no ready endpoint.
fn without_endpoints(snapshot: &Snapshot, found: &mut Findings) {
    let services = match snapshot.all("Service") {
        Ok(services) => services.iter(),
        Err(Unknown(missing)) => return found.missing.push(missing),
    };
    let mut empty = Vec::new();
    for service in services {
        let (namespace, name) = (namespace_of(service), name_of(service));
        let selector = service["spec"]["selector"].as_object();
        let chooses = selector.is_some_and(|own| !own.is_empty());
        // Check NET05 is about the DNS Service.
        let is_dns = namespace == "kube-system" && name == DNS;
        if !chooses || is_dns || service["spec"]["type"] == "ExternalName" {
            continue;
        }
        match ready_endpoints(snapshot, namespace, name) {
            Ok(0) => empty.push((namespace, name)),
            Ok(_) => {}
            Err(Unknown(missing)) => return found.missing.push(missing),
        }
    }
    if let [(namespace, name), ..] = empty.as_slice() {
        let count = empty.len();
        let names = few(empty.iter().map(|(home, name)| format!("{home}/{name}")));
        let (head, verb) = match count {
            1 => ("the Service", "has"),
            _ => ("the Services", "have"),
        };
        found
            .warn(format!(
                "{head} {names} {verb} no ready endpoint: nobody answers there"
            ))
            .advise("see whether the selector fits pods, and whether they are ready:")
            .command(format!("kubectl -n {namespace} describe service {name}"));
    }
}

/// Returns only what the probes found on the paths of the check `id`, without looking at objects.
pub(in super::super) fn tried(snapshot: &Snapshot, id: &str) -> Findings {
    let mut found = Findings::default();
    measured(snapshot, &mut found, id);
    found
}

/// Returns whether a path belongs to the check `id`.
fn is_of(id: &str, way: &TrafficPath) -> bool {
    match id {
        "NET01" => way.is_from(Os::Linux, Source::Node) && matches!(way.target, Target::Pod { .. }),
        "NET02" => way.is_from(Os::Windows, Source::Node),
        "NET03" => way.source == Source::Pod && matches!(way.target, Target::Pod { .. }),
        "NET04" => matches!(way.target, Target::Service(_)),
        "NET05" => matches!(way.target, Target::ShortName(_) | Target::FullName(_)),
        "NET06" => matches!(way.target, Target::NodePort(_)),
        "NET07" => matches!(way.target, Target::OutsideAddress | Target::OutsideName),
        _ => false,
    }
}

/// Adds what the probes found on the paths of a check.
fn measured(snapshot: &Snapshot, found: &mut Findings, id: &str) {
    let answers = match &snapshot.probes {
        Probes::None(needed) => return found.missing.push(needed.clone()),
        Probes::Tried(answers) => answers.iter().filter(|(way, _)| is_of(id, way)),
    };
    let (mut open, mut slowest) = (0, 0_f64);
    for (way, answer) in answers {
        match answer {
            Answer::Answered(seconds) => {
                open += 1;
                slowest = slowest.max(*seconds);
            }
            Answer::Untried(needed) if !found.missing.contains(needed) => {
                found.missing.push(needed.clone());
            }
            Answer::Untried(_) => {}
            Answer::Failed(why) => {
                let text = format!("from {way}: {why}");
                match (way.os, way.target) {
                    // Without a search list, the Windows resolver does not look up names of one label, so this is only a warning.
                    (Os::Windows, Target::ShortName(_)) => found.warn(text),
                    _ => found.fail(text),
                };
                if let Some(problem) = found.problems.last_mut() {
                    advise(problem, way);
                }
            }
        }
    }
    match open {
        0 if found.problems.is_empty() && found.missing.is_empty() => {
            *found = Findings::not_needed("no two ready nodes have such a way between them");
        }
        _ => {
            found.state = format!(
                "{} open, {:.0} ms at the most",
                counted(open, "way", "ways"),
                slowest * 1000.0
            );
        }
    }
}

/// Adds advice about what usually blocks such a path.
fn advise(problem: &mut Problem, way: &TrafficPath) {
    match way.target {
        Target::Pod { .. } => problem
            .advise("let the security groups of the nodes take all traffic from each other, and look whether the network plugin runs:")
            .command("kubectl -n kube-system get pods -l k8s-app=aws-node -o wide"),
        Target::Service(_) => match way.os {
            Os::Linux => problem
                .advise("see what kube-proxy says:")
                .command("kubectl -n kube-system logs -l k8s-app=kube-proxy"),
            Os::Windows => problem
                .advise("see what the service kube-proxy of the node says (DOC10, DOC11, DOC17), and restart it there (PowerShell):")
                .command("Restart-Service kube-proxy"),
        },
        Target::ShortName(_) if way.os == Os::Windows => {
            problem.advise("use the full name in Windows pods, SERVICE.NAMESPACE.svc.cluster.local")
        }
        Target::ShortName(_) | Target::FullName(_) => problem
            .advise("see whether CoreDNS answers, and whether the security groups let port 53 pass:")
            .command("kubectl -n kube-system logs -l k8s-app=kube-dns"),
        Target::NodePort(_) => problem
            .advise("let the security groups of the nodes take the ports 30000 to 32767 from those who call"),
        Target::OutsideAddress | Target::OutsideName => problem
            .advise("the subnets need a route to a NAT gateway, or to an internet gateway with public addresses, and the security groups must let it out"),
    };
}
