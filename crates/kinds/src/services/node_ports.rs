//! Allocates the node ports and the health check port of a Service. Ports of one Service with different protocols may share a node port.

use std::collections::{HashMap, HashSet};

use mullion_kube_text::{
    field::{Errors, Path},
    status::Status,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    externally_accessible, needs_health_check, needs_node_ports,
    pools::{Claim, Refusal},
};

/// Gives each port without a node port the one that the port of the same name had, unless another port has it now.
pub(super) fn adopt_node_ports(service: &mut Value, old: &Value) {
    let had: HashSet<i64> = node_ports(old).collect();
    let kept: HashSet<i64> = node_ports(service)
        .filter(|port| had.contains(port))
        .collect();
    let mut before: HashMap<&str, i64> = HashMap::new();
    for port in old["spec"].items("ports") {
        before.entry(port.text("name")).or_insert(node_port(port));
    }
    for port in service["spec"]["ports"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        match before.get(port.text("name")) {
            Some(&number) if node_port(port) == 0 && number != 0 && !kept.contains(&number) => {
                port["nodePort"] = number.into()
            }
            _ => {}
        }
    }
}

/// Returns the requested node port, which may be invalid; 0 means none.
fn node_port(port: &Value) -> i64 {
    port.integer("nodePort").unwrap_or(0)
}

/// Returns the node ports that are set.
pub(super) fn node_ports(service: &Value) -> impl Iterator<Item = i64> + '_ {
    service["spec"]
        .items("ports")
        .iter()
        .map(node_port)
        .filter(|&port| port != 0)
}

/// Returns whether the Service gets node ports without asking for specific ones.
fn automatic_node_ports(service: &Value) -> bool {
    service["spec"]["type"] == "NodePort"
        || (service["spec"]["type"] == "LoadBalancer"
            && service["spec"]["allocateLoadBalancerNodePorts"] != false)
}

fn refuse_port(service: &Value, index: usize, port: i64, refusal: &Refusal) -> Status {
    let mut errors = Errors::default();
    let path = Path::new("spec");
    let path = path.child("ports");
    errors.invalid(
        &path.index(index).child("nodePort"),
        port,
        refusal.to_string(),
    );
    Status::invalid_kind("", "Service", service["metadata"].text("name"), &errors)
}

fn no_port(refusal: Refusal) -> Status {
    Status::internal(format!("failed to allocate a nodePort: {refusal}"))
}

/// Allocates the node ports of a new Service: ports with the same number and different protocols share one.
pub(super) fn new_node_ports(claim: &mut Claim, service: &mut Value) -> Result<(), Status> {
    if !needs_node_ports(service) {
        return Ok(());
    }
    let automatic = automatic_node_ports(service);
    let mut ports = service["spec"].items("ports").to_vec();
    // The first node port that is requested for each port number.
    // A port without a request shares that of a later one, so the requests are collected first.
    let mut asked_for: HashMap<Value, i64> = HashMap::new();
    for port in ports.iter().filter(|port| node_port(port) != 0) {
        let number = port["port"].clone();
        asked_for.entry(number).or_insert(node_port(port));
    }
    let mut given: HashMap<Value, i64> = HashMap::new();
    for (index, port) in ports.iter_mut().enumerate() {
        let asked = node_port(port);
        if asked == 0 && !automatic {
            continue;
        }
        let number = port["port"].clone();
        let chosen = match given.get(&number).copied() {
            Some(chosen) if asked == 0 || asked == chosen => chosen,
            Some(_) => {
                claim
                    .port(asked)
                    .map_err(|refusal| refuse_port(service, index, asked, &refusal))?;
                asked
            }
            None => {
                let chosen = match asked_for.get(&number).copied() {
                    Some(wanted) => {
                        claim
                            .port(wanted)
                            .map_err(|refusal| refuse_port(service, index, wanted, &refusal))?;
                        wanted
                    }
                    None => claim.any_port().map_err(no_port)?,
                };
                given.insert(number, chosen);
                chosen
            }
        };
        port["nodePort"] = chosen.into();
    }
    service["spec"]["ports"] = ports.into();
    Ok(())
}

/// Allocates the new node ports of a changed Service, and marks the removed ones for release.
pub(super) fn change_node_ports(
    claim: &mut Claim,
    service: &mut Value,
    old: &Value,
) -> Result<(), Status> {
    let automatic = automatic_node_ports(service);
    let before: HashSet<i64> = node_ports(old).collect();
    let mut ports = service["spec"].items("ports").to_vec();
    let mut taken: HashSet<i64> = HashSet::new();
    let mut seen: HashSet<(String, i64)> = HashSet::new();
    for (index, port) in ports.iter_mut().enumerate() {
        let asked = node_port(port);
        if asked == 0 {
            if automatic {
                // Unlike for a new Service, kube-apiserver shares no port between protocols here.
                port["nodePort"] = claim.any_port().map_err(no_port)?.into();
            }
        } else if !before.contains(&asked) && !taken.contains(&asked) {
            claim
                .port(asked)
                .map_err(|refusal| refuse_port(service, index, asked, &refusal))?;
            taken.insert(asked);
        }
        let chosen = (port.text("protocol").to_owned(), node_port(port));
        if chosen.1 != 0 && seen.contains(&chosen) {
            // kube-apiserver finds the duplicate before validation, and answers with an internal error.
            let (protocol, number) = chosen;
            let why = format!("duplicate nodePort: {{{protocol} {number}}}");
            return Err(Status::new(500, "", why));
        }
        seen.insert(chosen);
    }
    service["spec"]["ports"] = ports.into();
    let now: HashSet<i64> = node_ports(service).collect();
    before
        .into_iter()
        .filter(|port| !now.contains(port))
        .for_each(|port| claim.release_port(port));
    Ok(())
}

pub(super) fn health_port(service: &Value) -> Option<i64> {
    service["spec"]
        .integer("healthCheckNodePort")
        .filter(|&port| port != 0)
}

pub(super) fn health_check(
    claim: &mut Claim,
    service: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let had = old.filter(|old| needs_health_check(old));
    match (needs_health_check(service), had) {
        (true, None) => {
            let port = match health_port(service) {
                Some(port) => claim.port(port).map(|()| port).map_err(|refusal| {
                    Status::internal(format!(
                        "failed to allocate requested HealthCheck NodePort {port}: {refusal}"
                    ))
                })?,
                None => claim.any_port().map_err(|refusal| {
                    Status::internal(format!(
                        // kube-apiserver prints the requested port, which is 0 if there is none.
                        "failed to allocate a HealthCheck NodePort 0: {refusal}"
                    ))
                })?,
            };
            service["spec"]["healthCheckNodePort"] = port.into();
        }
        (false, Some(old)) => health_port(old)
            .into_iter()
            .for_each(|port| claim.release_port(port)),
        _ => {}
    }
    debug_assert!(!needs_health_check(service) || externally_accessible(service));
    Ok(())
}
