//! Allocates the cluster IPs and IP families of a Service when it is created, changed or deleted; [`super::node_ports`] allocates its
//! ports. Source: `pkg/registry/core/service/storage/alloc.go`.
//!
//! The server has one IP family, and accepts the same dual-stack Services as a single-stack cluster of kube-apiserver.

use std::net::IpAddr;

use mullion_kube_text::{
    field::{Errors, Path},
    status::Status,
    validation::net,
};
use mullion_schema::tree::Tree;
use serde_json::{Value, json};

use super::{
    headless, needs_cluster_ip, needs_health_check, needs_node_ports,
    node_ports::{
        adopt_node_ports, change_node_ports, health_check, health_port, new_node_ports, node_ports,
    },
    objects,
    pools::{Claim, Refusal},
    validate::cluster_ips,
};
use crate::addresses::validate as validate_address;

/// Allocates the addresses and ports that a new or changed Service needs, and marks those that it no longer needs for release.
pub(super) fn allocate(
    claim: &mut Claim,
    family: &'static str,
    service: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    match old {
        None => {
            // Clients from before dual stack send only `clusterIP` (NormalizeClusterIPs).
            if service["spec"].has("clusterIP") && service["spec"].items("clusterIPs").is_empty() {
                service["spec"]["clusterIPs"] = json!([service["spec"]["clusterIP"]]);
            }
            families(family, service, None)?;
            // The families come first, because each of them needs an address.
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

/// Releases all addresses and ports of a deleted Service.
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

/// Keeps the allocated values that a client left out of an update, and keeps `clusterIP` and `clusterIPs` consistent.
fn adopt(service: &mut Value, old: &Value) {
    if needs_cluster_ip(service) && needs_cluster_ip(old) {
        if service["spec"].text("clusterIP").is_empty() && old["spec"].has("clusterIP") {
            service["spec"]["clusterIP"] = old["spec"]["clusterIP"].clone();
        }
        if service["spec"].items("clusterIPs").is_empty() && old["spec"].has("clusterIPs") {
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
    align_addresses(service, old);
}

/// Copies a change of `clusterIP` to `clusterIPs`, for old clients that know only the first field.
fn align_addresses(service: &mut Value, old: &Value) {
    let (ip, before) = (
        service["spec"].text("clusterIP").to_owned(),
        old["spec"].text("clusterIP"),
    );
    if ip == before {
        if service["spec"].items("clusterIPs").is_empty() && old["spec"].has("clusterIPs") {
            service["spec"]["clusterIPs"] = old["spec"]["clusterIPs"].clone();
        }
    } else if same(service, old, "clusterIPs") {
        service["spec"]["clusterIPs"] = if ip.is_empty() {
            Value::Null
        } else {
            json!([ip])
        };
    }
}

/// Returns whether a list of the spec is unchanged.
fn same(service: &Value, old: &Value, list: &str) -> bool {
    service["spec"].items(list) == old["spec"].items(list)
}

/// Returns whether a Service keeps the policy `PreferDualStack`. Its families then stay the same, even if they would be chosen differently
/// now.
fn goes_on_preferring(service: &Value, old: &Value) -> bool {
    const PREFER: &str = "PreferDualStack";
    let policy = old["spec"].text("ipFamilyPolicy");
    service["spec"]["ipFamilyPolicy"] == PREFER
        && (policy == PREFER || policy.is_empty())
        && service["spec"]["type"] == old["spec"]["type"]
        && same(service, old, "clusterIPs")
        && same(service, old, "ipFamilies")
}

fn spec_path(field: &str, check: impl FnOnce(&Path<'_>)) {
    check(&Path::new("spec").child(field));
}

/// Sets `ipFamilyPolicy` and `ipFamilies` from the client's values and the cluster's family.
fn families(family: &'static str, service: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    if !needs_cluster_ip(service) || old.is_some_and(|old| goes_on_preferring(service, old)) {
        return Ok(());
    }
    if !service["spec"].has("ipFamilyPolicy") {
        let before = old.and_then(|old| old["spec"].field("ipFamilyPolicy"));
        service["spec"]["ipFamilyPolicy"] = match before {
            Some(policy) => policy.clone(),
            // Its endpoints are written by hand and may have any family, whatever the cluster's is.
            None if selectorless(service) => "RequireDualStack".into(),
            None => "SingleStack".into(),
        };
    }
    let mut errors = Errors::default();
    // Validation comes after allocation, but the steps below rely on well-formed lists.
    cluster_ips(&mut errors, service, old.unwrap_or(&Value::Null));
    if !errors.is_empty() {
        return refuse(service, errors);
    }
    let single = service["spec"]["ipFamilyPolicy"] == "SingleStack";
    // A change to SingleStack drops the second entry of lists that the client left as they were.
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
    // kube-apiserver stops here, because the checks below would report the same mistakes again.
    if !errors.is_empty() {
        return refuse(service, errors);
    }
    if selectorless(service) {
        // This comes before the checks below, because it allows what they would refuse.
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

/// Returns whether a Service is headless and has no selector. Such a Service may name both families on any cluster.
fn selectorless(service: &Value) -> bool {
    service["spec"]["clusterIP"] == "None" && service["spec"].entries("selector").next().is_none()
}

fn conflicting_counts(errors: &mut Errors, service: &Value, old: Option<&Value>, single: bool) {
    let policy = || service["spec"]["ipFamilyPolicy"].clone();
    let count = |object: &Value, field: &str| object["spec"].items(field).len();
    // An empty list releases nothing, because it is filled in later.
    let reduced =
        |old: &Value, field: &str| (1..count(old, field)).contains(&count(service, field));
    let mut complain = |detail: &str| {
        spec_path("ipFamilyPolicy", |path| {
            errors.invalid(path, policy(), detail)
        })
    };
    if let (Some(old), false) = (old, single) {
        if reduced(old, "clusterIPs") {
            complain("must be 'SingleStack' to release the secondary cluster IP");
        }
        if reduced(old, "ipFamilies") {
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

/// Adds the families of the given cluster IPs.
fn infer_families(errors: &mut Errors, family: &'static str, service: &mut Value) {
    let ips = service["spec"].items("clusterIPs").to_vec();
    for (index, ip) in ips
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
        .take_while(|(_, ip)| *ip != "None")
    {
        // The client has named the family of this address, and `cluster_ips` has compared the two.
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
    // An empty entry asks for any address.
    ips.resize(
        service["spec"].items("ipFamilies").len().max(ips.len()),
        Value::from(""),
    );
    for index in 0..ips.len() {
        let ip = ips[index].as_str().unwrap_or("");
        let refusal = if ip.is_empty() {
            let taken = claim.any_address().map_err(|refusal| {
                Status::internal(format!("failed to allocate a serviceIP: {refusal}"))
            })?;
            let refusal = refused_object(claim, service, taken);
            if refusal.is_none() {
                ips[index] = taken.to_string().into();
            }
            refusal.map(|why| format!("failed to allocate IP: {why}"))
        } else {
            let allocated = claim.address(ip);
            let of_object = match (&allocated, net::parse_ip(ip)) {
                (Ok(()) | Err(Refusal::AddressTaken), Some(ip)) => {
                    refused_object(claim, service, ip)
                }
                _ => None,
            };
            let refusal = of_object.or_else(|| Some(allocated.err()?.to_string()));
            refusal.map(|why| format!("failed to allocate IP {ip}: {why}"))
        };
        if let Some(detail) = refusal {
            let mut errors = Errors::default();
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

/// Returns the error for an IPAddress that cannot refer to its Service, which has no name or one that no path can have. kube-apiserver
/// creates the IPAddress first, outside of dry runs, and validates the Service after that.
fn refused_object(claim: &Claim, service: &Value, ip: IpAddr) -> Option<String> {
    if claim.is_dry() {
        return None;
    }
    let address = objects::of_service(ip, service);
    let mut errors = Errors::default();
    validate_address(&address.object?, &mut errors);
    let refusal = || Status::invalid_kind(objects::GROUP, "IPAddress", &address.name, &errors);
    (!errors.is_empty()).then(|| refusal().message)
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
        // With one family no second address can come or go, and validation refuses another first one.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ServiceRange, services::pools::Pools};

    /// Returns the policy and the families of a changed Service, or the refusal.
    fn changed(old: &Value, sent: &Value) -> Result<[Value; 2], Status> {
        let pools = Pools::new(ServiceRange::default());
        let old = json!({"metadata": {"name": "s"}, "spec": old});
        let mut service = json!({"metadata": {"name": "s"}, "spec": sent});
        let mut claim = pools.claim_from(vec![ServiceRange::default()]);
        allocate(&mut claim, "IPv4", &mut service, Some(&old))?;
        Ok(["ipFamilyPolicy", "ipFamilies"].map(|field| service["spec"][field].clone()))
    }

    #[test]
    fn what_a_change_leaves_out_is_not_released() {
        let both = json!(["IPv4", "IPv6"]);
        let headless = json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "ipFamilyPolicy": "RequireDualStack", "ipFamilies": both});
        let sent = json!({"type": "ClusterIP", "clusterIP": "None"});
        assert_eq!(
            changed(&headless, &sent),
            Ok(["RequireDualStack".into(), both.clone()])
        );
        let single = json!({"type": "ClusterIP", "clusterIP": "None", "ipFamilies": ["IPv4"]});
        let refusal = changed(&headless, &single).unwrap_err().message;
        assert!(
            refusal.ends_with("must be 'SingleStack' to release the secondary IP family"),
            "{refusal}"
        );
        let web = json!({"type": "ClusterIP", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4"]});
        assert_eq!(
            changed(&web, &json!({"type": "ClusterIP"})),
            Ok(["PreferDualStack".into(), json!(["IPv4"])])
        );
    }

    #[test]
    fn who_goes_on_preferring_two_families_keeps_those_there_are() {
        let spec = |families: Value, selector: Value| json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "ipFamilyPolicy": "PreferDualStack", "ipFamilies": families, "selector": selector});
        let (one, both) = (json!(["IPv4"]), json!(["IPv4", "IPv6"]));
        let (some, none) = (json!({"a": "b"}), json!({}));
        for (families, before, now) in [(&one, &some, &none), (&both, &none, &some)] {
            let (old, new) = (
                spec(families.clone(), before.clone()),
                spec(families.clone(), now.clone()),
            );
            assert_eq!(
                changed(&old, &new),
                Ok(["PreferDualStack".into(), families.clone()])
            );
        }
    }

    #[test]
    fn an_address_that_is_changed_alone_is_changed_in_both_fields() {
        let old = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]}});
        for (sent, expected) in [
            (json!({"type": "ClusterIP"}), json!(["10.96.0.9"])),
            (
                json!({"type": "ClusterIP", "clusterIP": "10.96.0.8"}),
                json!(["10.96.0.8"]),
            ),
            (
                json!({"type": "ExternalName", "clusterIP": "10.96.0.9"}),
                json!(["10.96.0.9"]),
            ),
            (
                json!({"type": "ExternalName", "clusterIPs": ["10.96.0.9"]}),
                Value::Null,
            ),
        ] {
            let mut service = json!({"spec": sent});
            adopt(&mut service, &old);
            assert_eq!(service["spec"]["clusterIPs"], expected, "{sent}");
        }
    }

    #[test]
    fn one_node_port_serves_two_ports_only_under_two_protocols() {
        let spec = |ports: Value| json!({"type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"], "ports": ports});
        let port = |name: &str, protocol: &str| json!({"name": name, "protocol": protocol, "port": 80, "nodePort": 30111});
        let old = spec(json!([port("a", "TCP")]));
        let two = |protocol| spec(json!([port("a", "TCP"), port("b", protocol)]));
        assert!(changed(&old, &two("UDP")).is_ok());
        assert_eq!(
            changed(&old, &two("TCP")).unwrap_err().message,
            "duplicate nodePort: {TCP 30111}"
        );
    }
}
