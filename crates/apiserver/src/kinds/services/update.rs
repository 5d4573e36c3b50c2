//! What changes and what may not when a Service is updated: fields that only the old type needed go, addresses and families stay.

use serde_json::Value;

use super::{
    externally_accessible, headless, needs_cluster_ip, needs_health_check, needs_node_ports,
};
use crate::{
    field::{Errors, Path},
    kinds::tree::Tree,
};

/// Clears what only the old type needed, unless the client changed it too (then validation complains).
pub(super) fn drop_fields_of_old_type(object: &mut Value, old: &Value) {
    let no_longer = |needs: fn(&Value) -> bool| needs(old) && !needs(object);
    let mut dropped: Vec<&str> = Vec::new();
    if no_longer(needs_cluster_ip) {
        dropped.extend(["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"]);
        if object["spec"]["clusterIPs"] == old["spec"]["clusterIPs"] {
            dropped.extend(["clusterIP", "clusterIPs"]);
        }
    }
    if no_longer(needs_health_check) {
        dropped.push("healthCheckNodePort");
    }
    if no_longer(|service| service["spec"]["type"] == "LoadBalancer") {
        dropped.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if no_longer(externally_accessible) {
        dropped.push("externalTrafficPolicy");
    }
    let ports = no_longer(needs_node_ports);
    let Some(spec) = object["spec"].as_object_mut() else {
        return;
    };
    for field in dropped {
        let same = matches!(field, "clusterIP" | "clusterIPs")
            || spec.get(field) == old["spec"].get(field);
        if same {
            spec.remove(field);
        }
    }
    let before = old["spec"].items("ports");
    let Some(now) = spec.get_mut("ports").and_then(Value::as_array_mut) else {
        return;
    };
    let unchanged = now.len() == before.len()
        && now
            .iter()
            .zip(before)
            .all(|(now, before)| now["nodePort"] == before["nodePort"]);
    if ports && unchanged {
        now.iter_mut()
            .filter_map(Value::as_object_mut)
            .for_each(|port| {
                port.remove("nodePort");
            });
    }
}

/// Records what may not change in a Service.
pub(super) fn validate(errors: &mut Errors, service: &Value, old: &Value) {
    let (spec, before) = (&service["spec"], &old["spec"]);
    let path = Path::new("spec");
    if spec["type"] != "ExternalName"
        && before["type"] != "ExternalName"
        && !(headless(service) && headless(old))
    {
        kept(
            errors,
            &path.child("clusterIPs"),
            spec,
            before,
            "clusterIPs",
            "primary clusterIP can not be unset",
            "secondary clusterIP",
        );
        kept(
            errors,
            &path.child("ipFamilies"),
            spec,
            before,
            "ipFamilies",
            "primary ipFamily can not be unset",
            "secondary ipFamily",
        );
    }
    let balancers = spec["type"] == "LoadBalancer" && before["type"] == "LoadBalancer";
    if balancers && spec["loadBalancerClass"] != before["loadBalancerClass"] {
        errors.invalid(
            &path.child("loadBalancerClass"),
            spec["loadBalancerClass"].clone(),
            "may not change once set",
        );
    }
}

/// The entries of a list of at most two stay as they are, except that a second one may come, or go under policy SingleStack.
fn kept(
    errors: &mut Errors,
    path: &Path<'_>,
    spec: &Value,
    old: &Value,
    field: &str,
    unset: &str,
    second: &str,
) {
    let (now, before) = (spec.items(field), old.items(field));
    if now.is_empty() && !before.is_empty() {
        errors.invalid(&path.index(0), now, unset);
    }
    for (index, _) in now
        .iter()
        .zip(before)
        .enumerate()
        .filter(|(_, (now, before))| now != before)
    {
        let index = if field == "ipFamilies" { 0 } else { index };
        errors.invalid(&path.index(index), now, "may not change once set");
    }
    if now.len() == 1 && before.len() > 1 && spec["ipFamilyPolicy"] != "SingleStack" {
        let path = Path::new("spec");
        let detail = format!("must be set to 'SingleStack' when releasing the {second}");
        errors.invalid(
            &path.child("ipFamilyPolicy"),
            spec["ipFamilyPolicy"].clone(),
            detail,
        );
    }
}
