//! Validates Services (`ValidateService`, `ValidateServiceUpdate` in `pkg/apis/core/validation`).

use std::collections::HashSet;

use mullion_kube_text::{
    field::{self, ErrorType, Errors, Path},
    names,
    validation::{
        check,
        net::{self, OldValues},
        one_of,
    },
};
use mullion_schema::tree::Tree;
use serde_json::{Value, json};

use super::{externally_accessible, headless, needs_health_check};
use crate::{
    fields::{
        self, Code, Field, Forbidden, Format, Labels, Number, OneOf, always, filled, required, set,
    },
    ingresses::BALANCER_POINT,
    podspec::PROTOCOL,
};

const LOAD_BALANCER_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
const NOT_FOR_EXTERNAL_NAME: &str = "may not be set for ExternalName services";
/// The deprecated annotation for topology hints, which [`TOPOLOGY_MODE`] replaces.
pub(super) const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
/// The annotation that makes traffic prefer close endpoints.
pub(super) const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const MAX_AFFINITY_SECONDS: i64 = 86_400;

const SELECTOR_AND_AFFINITY: &[Field] = &[
    always("selector", Labels),
    required("sessionAffinity", OneOf(&["ClientIP", "None"])),
];
const TYPE: &[Field] = &[always(
    "type",
    OneOf(&["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]),
)];
const EXTERNAL_NAME: &[Field] = &[
    filled("clusterIPs", Forbidden(NOT_FOR_EXTERNAL_NAME)),
    filled("ipFamilies", Forbidden(NOT_FOR_EXTERNAL_NAME)),
    set("ipFamilyPolicy", Forbidden(NOT_FOR_EXTERNAL_NAME)),
];
const PORT: &[Field] = &[
    always("port", Number(names::port_number)),
    required("protocol", PROTOCOL),
    always("targetPort", Code(port_or_name)),
    set("appProtocol", Format(names::qualified_name)),
];
const FAMILY_POLICY: &[Field] = &[set(
    "ipFamilyPolicy",
    OneOf(&["PreferDualStack", "RequireDualStack", "SingleStack"]),
)];
const DISTRIBUTION: &[Field] = &[set(
    "trafficDistribution",
    OneOf(&["PreferClose", "PreferSameZone", "PreferSameNode"]),
)];

/// Records the errors of a Service. `old` is the stored one, whose addresses stay valid.
pub(super) fn service(errors: &mut Errors, service: &Value, old: &Value) {
    let spec = &service["spec"];
    topology_annotations(errors, &service["metadata"]["annotations"]);
    let path = Path::new("spec");
    by_type(errors, &path, service);
    ports(errors, &path.child("ports"), spec);
    fields::validate(SELECTOR_AND_AFFINITY, spec, &path, errors);
    affinity(errors, &path, spec);
    cluster_ips(errors, service, old);
    let kept = texts(&old["spec"], "externalIPs").collect();
    for (index, ip) in spec
        .items("externalIPs")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        let path = path.child("externalIPs");
        let path = path.index(index);
        if net::ip(errors, &path, ip, &kept) {
            net::ordinary_ip(errors, &path, ip);
        }
    }
    fields::validate(TYPE, spec, &path, errors);
    if spec["type"] == "ClusterIP" {
        let ports = path.child("ports");
        for (index, port) in spec.items("ports").iter().enumerate() {
            if port.integer("nodePort").unwrap_or(0) != 0 {
                let detail = "may not be used when `type` is 'ClusterIP'";
                errors.forbidden(&ports.index(index).child("nodePort"), detail);
            }
        }
    }
    duplicate_ports(errors, &path.child("ports"), spec);
    load_balancer(errors, &path, service, old);
    traffic_policies(errors, &path, service);
}

fn texts<'a>(spec: &'a Value, field: &str) -> impl Iterator<Item = &'a str> {
    spec.items(field).iter().filter_map(Value::as_str)
}

/// Requires the old and the new annotation for topology to be equal.
fn topology_annotations(errors: &mut Errors, annotations: &Value) {
    let (old, new) = (&annotations[TOPOLOGY_HINTS], &annotations[TOPOLOGY_MODE]);
    if let (Some(old), Some(new)) = (old.as_str(), new.as_str())
        && old != new
    {
        let path = Path::new("metadata");
        let path = path.child("annotations");
        let detail = format!("must match annotations[{TOPOLOGY_HINTS}] when both are specified");
        errors.invalid(&path.key(TOPOLOGY_MODE), new, detail);
    }
}

fn by_type(errors: &mut Errors, path: &Path<'_>, service: &Value) {
    let spec = &service["spec"];
    let kind = spec.text("type");
    // Headless Services and aliases may exist for their DNS names alone.
    if spec.items("ports").is_empty() && !headless(service) && kind != "ExternalName" {
        errors.required(&path.child("ports"), "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless(service) => {
            let detail = format!("may not be set to 'None' for {kind} services");
            errors.invalid(&path.child("clusterIPs").index(0), "None", detail);
        }
        "ExternalName" => {
            fields::validate(EXTERNAL_NAME, spec, path, errors);
            let name = spec.text("externalName");
            // A trailing dot only marks the name as fully qualified; the name check would refuse it.
            let name = name.strip_suffix('.').unwrap_or(name);
            if name.is_empty() {
                errors.required(&path.child("externalName"), "");
            } else {
                check(
                    errors,
                    &path.child("externalName"),
                    name,
                    names::dns_subdomain(name),
                );
            }
        }
        _ => {}
    }
}

fn ports(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let ports = spec.items("ports");
    let mut seen = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let name = port.text("name");
        if name.is_empty() {
            if ports.len() > 1 {
                errors.required(&path.child("name"), "");
            }
        } else {
            check(errors, &path.child("name"), name, names::dns_label(name));
            if !seen.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
        }
        fields::validate(PORT, port, &path, errors);
    }
}

fn port_or_name(port: &Value, path: &Path<'_>, errors: &mut Errors) {
    match port.as_str() {
        Some(name) => check(errors, path, name, names::port_name(name)),
        None => {
            let number = port.as_i64().unwrap_or(0);
            names::port_number(number)
                .into_iter()
                .for_each(|sentence| errors.invalid(path, number, sentence));
        }
    }
}

fn affinity(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let kind = spec.text("sessionAffinity");
    let path = path.child("sessionAffinityConfig");
    let config = spec.field("sessionAffinityConfig");
    match (kind, config) {
        ("ClientIP", None) => errors.required(&path, "when session affinity type is ClientIP"),
        ("ClientIP", Some(config)) => {
            let path = path.child("clientIP");
            match config["clientIP"].integer("timeoutSeconds") {
                None => errors.required(
                    &path.child("timeoutSeconds"),
                    "when session affinity type is ClientIP",
                ),
                Some(seconds) if !(1..=MAX_AFFINITY_SECONDS).contains(&seconds) => {
                    let detail =
                        // The maximum itself is valid, although kube-apiserver's message says "less than".
                        format!("must be greater than 0 and less than {MAX_AFFINITY_SECONDS}");
                    errors.invalid(&path.child("timeoutSeconds"), seconds, detail);
                }
                Some(_) => {}
            }
        }
        ("None", Some(_)) => {
            errors.forbidden(&path, "must not be set when session affinity is None")
        }
        _ => {}
    }
}

/// Validates the cluster IPs and families of a Service, also before they are allocated.
pub(super) fn cluster_ips(errors: &mut Errors, service: &Value, old: &Value) {
    let spec = &service["spec"];
    if spec["type"] == "ExternalName" {
        return;
    }
    let path = Path::new("spec");
    let (ip, ips) = (spec.text("clusterIP"), spec.items("clusterIPs"));
    let ips_path = path.child("clusterIPs");
    match (ip.is_empty(), ips.first()) {
        (false, None) => errors.required(&ips_path, ""),
        (false, Some(first)) if first != ip => {
            errors.invalid(&ips_path, ips, "first value must match `clusterIP`")
        }
        (true, Some(_)) => errors.invalid(
            &ips_path,
            ips,
            "must be empty when `clusterIP` is not specified",
        ),
        _ => {}
    }
    let families = spec.items("ipFamilies");
    let mut seen = HashSet::new();
    for (index, family) in families.iter().filter_map(Value::as_str).enumerate() {
        let path = path.child("ipFamilies");
        one_of(errors, &path.index(index), family, &["IPv4", "IPv6"]);
        if !seen.insert(family) {
            errors.duplicate(&path.index(index), family);
        }
    }
    fields::validate(FAMILY_POLICY, spec, &path, errors);
    let kept = texts(&old["spec"], "clusterIPs").collect();
    let mut malformed = false;
    for (index, ip) in ips.iter().filter_map(Value::as_str).enumerate() {
        if index == 0 && ip == "None" {
            if ips.len() > 1 {
                malformed = true;
                errors.invalid(&ips_path, ips, "'None' must be the first and only value");
            }
        } else {
            malformed |= !net::ip(errors, &ips_path.index(index), ip, &kept);
        }
    }
    if ips.len() > 2 {
        errors.invalid(&ips_path, ips, "may only hold up to 2 values");
    }
    // The other checks need well-formed addresses.
    if malformed {
        return;
    }
    let is_v6 = |ip: &Value| net::is_v6(ip.as_str().unwrap_or(""));
    if ips.len() > 1 && !(ips.iter().any(is_v6) && ips.iter().any(|ip| !is_v6(ip))) {
        errors.invalid(
            &ips_path,
            ips,
            "may specify no more than one IP for each IP family",
        );
    }
    // A headless Service has no address whose family could be wrong.
    if headless(service) {
        return;
    }
    for (index, (ip, family)) in ips.iter().zip(families).enumerate() {
        let matches = (family == "IPv6") == is_v6(ip);
        // An unknown family was reported above.
        if !matches && (family == "IPv4" || family == "IPv6") {
            let family = family.as_str().unwrap_or("");
            let detail =
                format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            errors.invalid(&ips_path.index(index), ip.clone(), detail);
        }
    }
}

fn duplicate_ports<'s>(errors: &mut Errors, path: &Path<'_>, spec: &'s Value) {
    let ports = spec.items("ports");
    let key = |port: &'s Value, field: &str| (&port["protocol"], &port[field]);
    let mut seen = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let is_new = seen.insert(key(port, "nodePort"));
        if port.integer("nodePort").unwrap_or(0) != 0 && !is_new {
            errors.duplicate(
                &path.index(index).child("nodePort"),
                port["nodePort"].clone(),
            );
        }
    }
    let mut seen = HashSet::new();
    let ports = ports.iter().enumerate();
    for (index, port) in ports.filter(|(_, port)| !seen.insert(key(port, "port"))) {
        // ValidateService compares ServicePorts that have only protocol and port, and prints the struct with all fields.
        let key = field::go_struct(&[
            ("Name", json!("")),
            ("Protocol", port["protocol"].clone()),
            ("AppProtocol", Value::Null),
            ("Port", port["port"].clone()),
            ("TargetPort", json!(0)),
            ("NodePort", json!(0)),
        ]);
        errors.with_text(ErrorType::Duplicate, &path.index(index), key, "");
    }
}

fn load_balancer(errors: &mut Errors, path: &Path<'_>, service: &Value, old: &Value) {
    let spec = &service["spec"];
    let balancer = spec["type"] == "LoadBalancer";
    let ranges = spec.items("loadBalancerSourceRanges");
    if !ranges.is_empty() {
        // kube-apiserver writes this path with a capital letter.
        let path = path.child("LoadBalancerSourceRanges");
        if !balancer {
            errors.forbidden(&path, LOAD_BALANCER_ONLY);
        }
        let kept = texts(&old["spec"], "loadBalancerSourceRanges").map(str::trim);
        let kept = kept.collect();
        for (index, range) in ranges.iter().filter_map(Value::as_str).enumerate() {
            net::cidr(errors, &path.index(index), range.trim(), &kept);
        }
    } else if let Some(annotation) = service["metadata"]["annotations"][SOURCE_RANGES].as_str() {
        let path = Path::new("metadata");
        let path = path.child("annotations");
        let path = path.key(SOURCE_RANGES);
        if !balancer {
            errors.forbidden(&path, LOAD_BALANCER_ONLY);
        }
        // A stored annotation is not checked again, because older servers accepted more ranges.
        let same = old["metadata"]["annotations"][SOURCE_RANGES] == annotation;
        let annotation = annotation.trim();
        let looked_at = !same && !annotation.is_empty();
        for range in annotation.split(',').filter(|_| looked_at) {
            net::cidr(errors, &path, range.trim(), OldValues::NONE);
        }
    }
    let allocate = path.child("allocateLoadBalancerNodePorts");
    match (balancer, spec.has("allocateLoadBalancerNodePorts")) {
        (false, true) => errors.forbidden(&allocate, LOAD_BALANCER_ONLY),
        (true, false) => errors.required(&allocate, ""),
        _ => {}
    }
    load_balancer_class(errors, path, spec);
}

/// Validates the load balancer class, which only load balancers may have.
pub(super) fn load_balancer_class(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let Some(class) = spec["loadBalancerClass"].as_str() else {
        return;
    };
    let path = path.child("loadBalancerClass");
    if spec["type"] == "LoadBalancer" {
        check(errors, &path, class, names::qualified_name(class));
    } else {
        errors.forbidden(&path, LOAD_BALANCER_ONLY);
    }
}

fn traffic_policies(errors: &mut Errors, path: &Path<'_>, service: &Value) {
    let spec = &service["spec"];
    let policy = spec.text("externalTrafficPolicy");
    let external = path.child("externalTrafficPolicy");
    match (externally_accessible(service), policy.is_empty()) {
        (false, false) => errors.invalid(
            &external,
            policy,
            "may only be set for externally-accessible services",
        ),
        (true, true) => errors.required(&external, ""),
        (true, false) => one_of(errors, &external, policy, &["Cluster", "Local"]),
        (false, true) => {}
    }
    let port = spec.integer("healthCheckNodePort").unwrap_or(0);
    let health = path.child("healthCheckNodePort");
    match (needs_health_check(service), port) {
        (false, 0) => {}
        (false, port) => {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.invalid(&health, port, detail);
        }
        (true, 0) => errors.required(&health, ""),
        (true, port) => names::port_number(port)
            .into_iter()
            .for_each(|sentence| errors.invalid(&health, port, sentence)),
    }
    let internal = path.child("internalTrafficPolicy");
    match spec["internalTrafficPolicy"].as_str() {
        Some(policy) => one_of(errors, &internal, policy, &["Cluster", "Local"]),
        None if matches!(spec.text("type"), "NodePort" | "LoadBalancer" | "ClusterIP") => {
            errors.required(&internal, "")
        }
        None => {}
    }
    fields::validate(DISTRIBUTION, spec, path, errors);
}

/// Records the errors of the addresses that a load balancer reports.
pub(super) fn load_balancer_status(errors: &mut Errors, service: &Value, old: &Value) {
    let path = Path::new("status");
    let path = path.child("loadBalancer");
    let path = path.child("ingress");
    let all = service["status"]["loadBalancer"].items("ingress");
    if service["spec"]["type"] != "LoadBalancer" {
        if !all.is_empty() {
            errors.forbidden(&path, "may only be used when `spec.type` is 'LoadBalancer'");
        }
        return;
    }
    let kept = old["status"]["loadBalancer"].items("ingress").iter();
    let kept = kept.map(|ingress| ingress.text("ip")).collect();
    for (index, ingress) in all.iter().enumerate() {
        let path = path.index(index);
        let ip = ingress.text("ip");
        if !ip.is_empty() {
            net::ip(errors, &path.child("ip"), ip, &kept);
        }
        match ingress["ipMode"].as_str() {
            None if !ip.is_empty() => {
                errors.required(&path.child("ipMode"), "must be specified when `ip` is set")
            }
            None => {}
            Some(_) if ip.is_empty() => errors.forbidden(
                &path.child("ipMode"),
                "may not be specified when `ip` is not set",
            ),
            Some(mode) => one_of(errors, &path.child("ipMode"), mode, &["Proxy", "VIP"]),
        }
        fields::validate(BALANCER_POINT, ingress, &path, errors);
    }
}
