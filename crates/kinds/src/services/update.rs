//! Handles updates of Services: drops the fields that only the old type needed, and refuses changes of addresses and families.

use std::collections::HashSet;

use mullion_kube_text::{
    field::{Errors, Path},
    validation,
};
use mullion_schema::tree::Tree;
use serde_json::{Value, json};

use super::{
    externally_accessible, headless, needs_cluster_ip, needs_health_check, needs_node_ports,
    validate::load_balancer_class,
};

const FIXED: &str = "may not change once set";

/// Drops fields that only the old type needed. A field that the client changed too is kept, so that validation refuses it.
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
    if object["spec"]["type"] != "LoadBalancer"
        && let Some(status) = object.get_mut("status").and_then(Value::as_object_mut)
    {
        // The status is emptied at once, although the removal of the load balancer takes time.
        status.insert("loadBalancer".to_owned(), json!({}));
    }
    let Some(spec) = object["spec"].as_object_mut() else {
        return;
    };
    for field in dropped {
        // The comparison of the two lists above has decided about both fields of addresses.
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
    let node_port = |port: &Value| port.integer("nodePort").filter(|port| *port != 0);
    let given: HashSet<i64> = before.iter().filter_map(node_port).collect();
    let none_new = now
        .iter()
        .filter_map(node_port)
        .all(|port| given.contains(&port));
    // A node port that the client added is kept with all others, so that validation refuses it.
    if ports && none_new {
        now.iter_mut()
            .filter_map(Value::as_object_mut)
            .for_each(|port| {
                port.remove("nodePort");
            });
    }
}

/// Drops the policy for traffic within the cluster from a Service of type ExternalName, which has no such traffic. kube-apiserver does so
/// when it reads the stored Service, so that validation still refuses a policy that it does not know.
pub(super) fn drop_without_cluster_ip(object: &mut Value) {
    let spec = &mut object["spec"];
    let is_known = matches!(spec.text("internalTrafficPolicy"), "Cluster" | "Local");
    if spec["type"] == "ExternalName"
        && is_known
        && let Some(spec) = spec.as_object_mut()
    {
        spec.remove("internalTrafficPolicy");
    }
}

/// Records the errors of changes in a Service.
pub(super) fn validate(errors: &mut Errors, service: &Value, old: &Value) {
    let (spec, before) = (&service["spec"], &old["spec"]);
    let path = Path::new("spec");
    // Addresses come and go with a change from or to ExternalName.
    if spec["type"] != "ExternalName" && before["type"] != "ExternalName" {
        let (headless, was_headless) = (headless(service), headless(old));
        if !(headless && was_headless) {
            cluster_ips(errors, &path, spec, before);
        }
        if !headless && !was_headless {
            families(errors, &path, spec, before);
        }
    }
    let balancers = spec["type"] == "LoadBalancer" && before["type"] == "LoadBalancer";
    if balancers && spec["loadBalancerClass"] != before["loadBalancerClass"] {
        errors.invalid(
            &path.child("loadBalancerClass"),
            spec["loadBalancerClass"].clone(),
            FIXED,
        );
    }
    load_balancer_class(errors, &path, spec);
    if needs_health_check(service)
        && needs_health_check(old)
        && spec["healthCheckNodePort"] != before["healthCheckNodePort"]
    {
        errors.forbidden(&path.child("healthCheckNodePort"), validation::IMMUTABLE);
    }
}

/// Requires addresses to stay the same, except that a second one may be added, or removed with policy SingleStack.
fn cluster_ips(errors: &mut Errors, path: &Path<'_>, spec: &Value, old: &Value) {
    let (now, before) = (spec.items("clusterIPs"), old.items("clusterIPs"));
    let at = path.child("clusterIPs");
    if now.is_empty() && !before.is_empty() {
        errors.invalid(&at.index(0), now, "primary clusterIP can not be unset");
    }
    for (index, _) in changed(now, before) {
        errors.invalid(&at.index(index), now, FIXED);
    }
    if now.len() == 1 && before.len() > 1 {
        released(errors, path, spec, "secondary clusterIP");
    }
}

/// Requires families to stay the same, with the same exceptions. The shown list and index are those of kube-apiserver's message.
fn families(errors: &mut Errors, path: &Path<'_>, spec: &Value, old: &Value) {
    let (now, before) = (spec.items("ipFamilies"), old.items("ipFamilies"));
    let at = path.child("ipFamilies");
    if now.len() < before.len() && spec.items("clusterIPs").is_empty() {
        errors.invalid(&at.index(0), now, "primary ipFamily can not be unset");
    }
    let shown = if now.len() == before.len() {
        now
    } else {
        spec.items("clusterIPs")
    };
    for _ in changed(now, before) {
        errors.invalid(&at.index(0), shown, FIXED);
    }
    if now.len() == 1 && before.len() > 1 {
        released(errors, path, spec, "secondary ipFamily");
    }
}

/// Returns the entries that differ, with their indexes. If the lists have different lengths, only the first entries are compared.
fn changed<'a>(
    now: &'a [Value],
    before: &'a [Value],
) -> impl Iterator<Item = (usize, (&'a Value, &'a Value))> {
    let compared = if now.len() == before.len() {
        now.len()
    } else {
        1
    };
    now.iter()
        .zip(before)
        .take(compared)
        .enumerate()
        .filter(|(_, (now, before))| now != before)
}

fn released(errors: &mut Errors, path: &Path<'_>, spec: &Value, what: &str) {
    if spec["ipFamilyPolicy"] != "SingleStack" {
        errors.invalid(
            &path.child("ipFamilyPolicy"),
            spec["ipFamilyPolicy"].clone(),
            format!("must be set to 'SingleStack' when releasing the {what}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_a_balancer_go_with_it() {
        let old = json!({"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}});
        let mut same = old.clone();
        drop_fields_of_old_type(&mut same, &old);
        assert_eq!(same, old);
        let mut other = old.clone();
        other["spec"]["type"] = "ClusterIP".into();
        drop_fields_of_old_type(&mut other, &old);
        assert_eq!(other["status"], json!({"loadBalancer": {}}));
    }
}
