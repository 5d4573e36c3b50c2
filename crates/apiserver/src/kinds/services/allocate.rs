//! What a Service is given as it is created, changes and goes: cluster IPs and IP families here, node ports in [`super::node_ports`]
//! (`pkg/registry/core/service/storage/alloc.go`). The server has one IP family; dual-stack Services are accepted where upstream's
//! single-stack cluster accepts them.

use serde_json::{Value, json};

use super::{
    headless, needs_cluster_ip, needs_health_check, needs_node_ports,
    node_ports::{
        adopt_node_ports, change_node_ports, health_check, health_port, new_node_ports, node_ports,
    },
    pools::Claim,
    validate::cluster_ips,
};
use crate::{
    field::{Errors, Path},
    kinds::tree::Tree,
    status::Status,
    validation::net,
};

/// Takes what a new Service, or a changed one, needs and did not have; remembers what it no longer needs.
pub(super) fn allocate(
    claim: &mut Claim,
    family: &'static str,
    service: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    match old {
        None => {
            if service["spec"].has("clusterIP") && service["spec"].items("clusterIPs").is_empty() {
                service["spec"]["clusterIPs"] = json!([service["spec"]["clusterIP"]]);
            }
            families(family, service, None)?;
            addresses(claim, service)?;
            new_node_ports(claim, service)?;
        }
        Some(old) => {
            adopt(service, old);
            families(family, service, Some(old))?;
            change_addresses(claim, service, old)?;
            if needs_node_ports(service) {
                change_node_ports(claim, service, old)?;
            } else if needs_node_ports(old) {
                node_ports(old).for_each(|port| claim.release_port(port));
            }
        }
    }
    health_check(claim, service, old)
}

/// Gives back everything a deleted Service had.
pub(super) fn release(claim: &mut Claim, old: &Value) {
    if needs_cluster_ip(old) && !headless(old) {
        old["spec"]
            .items("clusterIPs")
            .iter()
            .filter_map(Value::as_str)
            .for_each(|ip| claim.release_address(ip));
    }
    node_ports(old).for_each(|port| claim.release_port(port));
    health_port(old)
        .into_iter()
        .for_each(|port| claim.release_port(port));
}

fn refuse(service: &Value, errors: Errors) -> Result<(), Status> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid_kind(
            "",
            "Service",
            service["metadata"].text("name"),
            &errors,
        ))
    }
}

/// Values a client left out of an update keep what was allocated for them; `clusterIP` and `clusterIPs` follow each other.
fn adopt(service: &mut Value, old: &Value) {
    if needs_cluster_ip(service) && needs_cluster_ip(old) {
        if service["spec"].text("clusterIP").is_empty() && old["spec"].has("clusterIP") {
            service["spec"]["clusterIP"] = old["spec"]["clusterIP"].clone();
        }
        if service["spec"].items("clusterIPs").is_empty()
            && service["spec"]["clusterIP"] == old["spec"]["clusterIP"]
        {
            service["spec"]["clusterIPs"] = old["spec"]["clusterIPs"].clone();
        }
    }
    if needs_node_ports(service) && needs_node_ports(old) {
        adopt_node_ports(service, old);
    }
    if needs_health_check(service)
        && needs_health_check(old)
        && service["spec"].integer("healthCheckNodePort").unwrap_or(0) == 0
    {
        service["spec"]["healthCheckNodePort"] = old["spec"]["healthCheckNodePort"].clone();
    }
    let (ip, before) = (
        service["spec"].text("clusterIP").to_owned(),
        old["spec"].text("clusterIP"),
    );
    let same = service["spec"].items("clusterIPs") == old["spec"].items("clusterIPs");
    if ip != before && same {
        service["spec"]["clusterIPs"] = if ip.is_empty() {
            Value::Null
        } else {
            json!([ip])
        };
    } else if ip == before && !same && service["spec"].items("clusterIPs").is_empty() {
        service["spec"]["clusterIP"] = Value::Null;
    }
}

fn spec_path(field: &str, check: impl FnOnce(&Path<'_>)) {
    check(&Path::new("spec").child(field));
}

/// Settles `ipFamilyPolicy` and `ipFamilies` from what was asked for and what the cluster has.
fn families(family: &'static str, service: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    if !needs_cluster_ip(service) {
        return Ok(());
    }
    if !service["spec"].has("ipFamilyPolicy") {
        let before = old.and_then(|old| old["spec"].field("ipFamilyPolicy"));
        service["spec"]["ipFamilyPolicy"] = match before {
            Some(policy) => policy.clone(),
            None if selectorless(service) => "RequireDualStack".into(),
            None => "SingleStack".into(),
        };
    }
    let mut errors = Errors::default();
    cluster_ips(&mut errors, service);
    if !errors.is_empty() {
        return refuse(service, errors);
    }
    let single = service["spec"]["ipFamilyPolicy"] == "SingleStack";
    if let (Some(old), true) = (old, single) {
        for field in ["clusterIPs", "ipFamilies"] {
            if service["spec"][field] == old["spec"][field]
                && let Some(list) = service["spec"][field].as_array_mut()
            {
                list.truncate(1);
            }
        }
    }
    conflicting_counts(&mut errors, service, old, single);
    infer_families(&mut errors, family, service);
    if !errors.is_empty() {
        return refuse(service, errors);
    }
    if selectorless(service) {
        both_families(family, service, single);
        return Ok(());
    }
    if service["spec"]["ipFamilyPolicy"] == "RequireDualStack" {
        spec_path("ipFamilyPolicy", |path| {
            errors.invalid(
                path,
                "RequireDualStack",
                "this cluster is not configured for dual-stack services",
            );
        });
    }
    for (index, asked) in service["spec"].items("ipFamilies").iter().enumerate() {
        if asked != family {
            spec_path("ipFamilies", |path| {
                errors.invalid(
                    &path.index(index),
                    asked.clone(),
                    "not configured on this cluster",
                )
            });
        }
    }
    if service["spec"].items("ipFamilies").is_empty() {
        service["spec"]["ipFamilies"] = json!([family]);
    }
    refuse(service, errors)
}

/// Headless and without a selector: such a Service may name both families on any cluster.
fn selectorless(service: &Value) -> bool {
    service["spec"]["clusterIP"] == "None" && service["spec"].entries("selector").next().is_none()
}

fn conflicting_counts(errors: &mut Errors, service: &Value, old: Option<&Value>, single: bool) {
    let policy = || service["spec"]["ipFamilyPolicy"].clone();
    let count = |object: &Value, field: &str| object["spec"].items(field).len();
    let mut complain = |detail: &str| {
        spec_path("ipFamilyPolicy", |path| {
            errors.invalid(path, policy(), detail)
        })
    };
    if let (Some(old), false) = (old, single) {
        if count(service, "clusterIPs") < count(old, "clusterIPs") {
            complain("must be 'SingleStack' to release the secondary cluster IP");
        }
        if count(service, "ipFamilies") < count(old, "ipFamilies") {
            complain("must be 'SingleStack' to release the secondary IP family");
        }
    }
    if single && count(service, "clusterIPs") == 2 {
        complain(
            "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified",
        );
    }
    if single && count(service, "ipFamilies") == 2 {
        complain(
            "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
        );
    }
}

/// Families that the given addresses imply.
fn infer_families(errors: &mut Errors, family: &'static str, service: &mut Value) {
    let ips = service["spec"].items("clusterIPs").to_vec();
    for (index, ip) in ips
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
        .take_while(|(_, ip)| *ip != "None")
    {
        if index < service["spec"].items("ipFamilies").len() {
            continue;
        }
        let of_ip = if net::is_v6(ip) { "IPv6" } else { "IPv4" };
        if of_ip != family {
            spec_path("clusterIPs", |path| {
                errors.invalid(
                    &path.index(index),
                    ips.clone(),
                    format!("{of_ip} is not configured on this cluster"),
                );
            });
        } else if let Some(families) = service["spec"]["ipFamilies"].as_array_mut() {
            families.push(of_ip.into());
        } else {
            service["spec"]["ipFamilies"] = json!([of_ip]);
        }
    }
}

fn both_families(family: &'static str, service: &mut Value, single: bool) {
    if service["spec"].items("ipFamilies").is_empty() {
        service["spec"]["ipFamilies"] = json!([family]);
    }
    if let Some([first]) = service["spec"]["ipFamilies"].as_array().map(Vec::as_slice)
        && !single
    {
        let other = if first == "IPv4" { "IPv6" } else { "IPv4" };
        service["spec"]["ipFamilies"] = json!([first, other]);
    }
}

fn addresses(claim: &mut Claim, service: &mut Value) -> Result<(), Status> {
    if !needs_cluster_ip(service) || headless(service) {
        return Ok(());
    }
    let mut ips = service["spec"].items("clusterIPs").to_vec();
    ips.resize(
        service["spec"].items("ipFamilies").len().max(ips.len()),
        Value::from(""),
    );
    for index in 0..ips.len() {
        let ip = ips[index].as_str().unwrap_or("");
        if ip.is_empty() {
            let taken = claim.any_address().map_err(|refusal| {
                Status::internal(format!("failed to allocate a serviceIP: {refusal}"))
            })?;
            ips[index] = taken.to_string().into();
        } else if let Err(refusal) = claim.address(ip) {
            let mut errors = Errors::default();
            let detail = format!("failed to allocate IP {ip}: {refusal}");
            spec_path("clusterIPs", |path| {
                errors.invalid(path, ips.clone(), detail)
            });
            return refuse(service, errors);
        }
    }
    service["spec"]["clusterIP"] = ips.first().cloned().unwrap_or_default();
    service["spec"]["clusterIPs"] = ips.into();
    Ok(())
}

fn change_addresses(claim: &mut Claim, service: &mut Value, old: &Value) -> Result<(), Status> {
    match (needs_cluster_ip(old), needs_cluster_ip(service)) {
        (false, true) => addresses(claim, service),
        (true, false) if !headless(old) => {
            old["spec"]
                .items("clusterIPs")
                .iter()
                .filter_map(Value::as_str)
                .for_each(|ip| claim.release_address(ip));
            Ok(())
        }
        _ => Ok(()),
    }
}
