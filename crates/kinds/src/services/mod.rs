//! Services: defaults, consequences of type changes, and table columns. [`allocate`] allocates addresses and ports from [`pools`],
//! [`validate`] validates a Service, and [`update`] validates its changes.
//!
//! Invariant: the pools contain exactly the cluster IPs and node ports of the stored Services.

mod allocate;
mod node_ports;
pub mod objects;
pub(crate) mod pools;
mod update;
mod validate;

use std::sync::Arc;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    status::Status,
    validation::net,
};
use mullion_schema::tree::{Tree, object_at, set_default, set_zero};
use serde_json::{Map, Value};

pub use self::pools::{InvalidRange, ServiceRange};
use self::{objects::ServiceAllocation, pools::Pools};
use super::{
    Allocation, Check, Column, Kind,
    print::{AGE, NAME, age, column, labels, name, or_none, wide},
};
use crate::{
    Allocator, FieldSelection, Printing,
    request::{Ctx, Lookup},
};

const DEFAULT_AFFINITY_SECONDS: i64 = 10_800;

/// core/v1 Service.
pub(crate) struct Service {
    pools: Arc<Pools>,
}

impl Service {
    /// Creates the kind; its objects get their addresses and ports from `pools`.
    pub(crate) fn new(pools: Arc<Pools>) -> Service {
        Service { pools }
    }

    /// Returns the ranges that addresses are allocated from: those of every ServiceCIDR that is not being deleted and whose condition
    /// `Ready`, if it has one, is true.
    fn ready_ranges(&self, lookup: &dyn Lookup) -> Vec<ServiceRange> {
        let family = self.pools.range().family();
        let ranges = lookup.list(objects::GROUP, "servicecidrs", None);
        let ready = ranges.iter().filter(|range| {
            let conditions = range["status"].items("conditions");
            let mut ready = conditions
                .iter()
                .filter(|told| told.text("type") == "Ready");
            !range["metadata"].has("deletionTimestamp")
                && ready
                    .next()
                    .is_none_or(|told| told.text("status") == "True")
        });
        let mut networks: Vec<&str> = ready
            .flat_map(|range| range["spec"].items("cidrs"))
            .filter_map(Value::as_str)
            .collect();
        // Several ServiceCIDRs may contain the same network, which must not be tried twice.
        networks.sort_unstable();
        networks.dedup();
        let networks = networks.into_iter();
        networks
            .filter_map(|network| ServiceRange::of_network(network, family))
            .collect()
    }
}

fn headless(service: &Value) -> bool {
    service["spec"]
        .items("clusterIPs")
        .first()
        .is_some_and(|ip| ip == "None")
}

fn needs_cluster_ip(service: &Value) -> bool {
    service["spec"]["type"] != "ExternalName"
}

fn needs_node_ports(service: &Value) -> bool {
    matches!(service["spec"].text("type"), "NodePort" | "LoadBalancer")
}

fn externally_accessible(service: &Value) -> bool {
    needs_node_ports(service)
        || (service["spec"]["type"] == "ClusterIP"
            && !service["spec"].items("externalIPs").is_empty())
}

/// Returns whether a Service needs a health check port: an external load balancer that keeps client addresses asks each node whether it has
/// endpoints.
fn needs_health_check(service: &Value) -> bool {
    service["spec"]["type"] == "LoadBalancer" && service["spec"]["externalTrafficPolicy"] == "Local"
}

impl Kind for Service {
    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        default_spec(object_at(root, "spec"));
        let balancer = object["spec"]["type"] == "LoadBalancer";
        let ingress = object
            .pointer_mut("/status/loadBalancer/ingress")
            .and_then(Value::as_array_mut);
        for ingress in ingress.into_iter().flatten() {
            // Only addresses get a mode: validation forbids one next to a hostname alone.
            if balancer && !ingress.text("ip").is_empty() && !ingress.has("ipMode") {
                ingress["ipMode"] = "VIP".into();
            }
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        update::drop_without_cluster_ip(object);
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        update::drop_fields_of_old_type(object, old);
        update::drop_without_cluster_ip(object);
    }

    fn validate_against(
        &self,
        _: &Ctx<'_>,
        object: &Value,
        old: Option<&Value>,
        errors: &mut Errors,
    ) {
        validate::service(errors, object, old.unwrap_or(&Value::Null));
    }

    fn update_checks(&self, _subresource: &str) -> &'static [Check] {
        &[Check::MetadataChange, Check::Change, Check::Object]
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        update::validate(errors, object, old);
    }

    fn validate_status(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        validate::load_balancer_status(errors, object, old);
    }

    fn status_warnings(&self, object: &Value) -> Vec<String> {
        let path = Path::new("status");
        let path = path.child("loadBalancer");
        let path = path.child("ingress");
        let points = object["status"]["loadBalancer"].items("ingress");
        let given = points.iter().enumerate();
        given
            .filter(|(_, point)| !point.text("ip").is_empty())
            .filter_map(|(index, point)| net::ip_warning(&path.index(index), point.text("ip")))
            .collect()
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        let spec = &object["spec"];
        let mut warnings = Vec::new();
        if object["metadata"]["annotations"].has(validate::TOPOLOGY_HINTS) {
            let (old, new) = (validate::TOPOLOGY_HINTS, validate::TOPOLOGY_MODE);
            warnings.push(format!(
                "annotation {old} is deprecated, please use {new} instead"
            ));
        }
        let path = Path::new("spec");
        let address_warnings = |warnings: &mut Vec<String>, field: &str| {
            let ips = spec.items(field).iter().filter_map(Value::as_str);
            for (index, ip) in ips.enumerate().filter(|(_, ip)| *ip != "None") {
                warnings.extend(net::ip_warning(&path.child(field).index(index), ip));
            }
        };
        address_warnings(&mut warnings, "clusterIPs");
        if spec["type"] == "ClusterIP" && spec["clusterIP"] == "None" {
            for (field, ignored) in [
                ("loadBalancerIP", !spec.text("loadBalancerIP").is_empty()),
                ("externalIPs", !spec.items("externalIPs").is_empty()),
                // kube-apiserver's warning writes this field with a capital letter.
                ("SessionAffinity", spec["sessionAffinity"] != "None"),
            ] {
                if ignored {
                    warnings.push(format!("spec.{field} is ignored for headless services"));
                }
            }
        }
        address_warnings(&mut warnings, "externalIPs");
        if !spec.text("loadBalancerIP").is_empty() {
            warnings.extend(net::ip_warning(
                &path.child("loadBalancerIP"),
                spec.text("loadBalancerIP"),
            ));
        }
        for (index, range) in spec
            .items("loadBalancerSourceRanges")
            .iter()
            .filter_map(Value::as_str)
            .enumerate()
        {
            warnings.extend(net::cidr_warnings(
                &path.child("loadBalancerSourceRanges").index(index),
                range,
            ));
        }
        if !spec.items("externalIPs").is_empty() {
            warnings.push(if spec["type"] == "ExternalName" {
                r#"spec.externalIPs is ignored when spec.type is "ExternalName""#.to_owned()
            } else {
                "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
                    .to_owned()
            });
        }
        if spec["type"] != "ExternalName" && !spec.text("externalName").is_empty() {
            warnings.push(
                r#"spec.externalName is ignored when spec.type is not "ExternalName""#.to_owned(),
            );
        }
        if spec["trafficDistribution"] == "PreferClose" {
            warnings.push(
                r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#
                    .to_owned(),
            );
        }
        warnings
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }

    fn allocator(&self) -> Option<&dyn Allocator> {
        Some(self)
    }
}

impl Printing for Service {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Type"),
            column("Cluster-IP"),
            column("External-IP"),
            column("Port(s)"),
            AGE,
            wide("Selector"),
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let cluster_ip = spec
            .items("clusterIPs")
            .first()
            .and_then(Value::as_str)
            .unwrap_or("");
        vec![
            name(object),
            spec.text("type").into(),
            or_none(cluster_ip).into(),
            external_ip(object).into(),
            or_none(&port_list(spec)).into(),
            age(object, now),
            labels(spec["selector"].as_object()).into(),
        ]
    }
}

impl FieldSelection for Service {
    fn selectable_fields(&self) -> &[&'static str] {
        &["spec.clusterIP", "spec.type"]
    }

    fn selectable_value(&self, object: &Value, field: &str) -> String {
        object["spec"]
            .text(field.trim_start_matches("spec."))
            .to_owned()
    }
}

impl Allocator for Service {
    fn allocate(
        &self,
        ctx: &Ctx<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Box<dyn Allocation>, Status> {
        // A deletion only gives addresses back, so the ServiceCIDRs are not read for it.
        let mut claim = if object.is_null() {
            self.pools.claim()
        } else {
            self.pools.claim_from(self.ready_ranges(ctx.lookup))
        };
        if ctx.dry_run {
            claim = claim.for_dry_run();
        }
        match (object.is_null(), old) {
            (true, Some(old)) => allocate::release(&mut claim, old),
            (true, None) => {}
            (false, old) => {
                allocate::allocate(&mut claim, self.pools.range().family(), object, old)?
            }
        }
        let service = match old {
            Some(old) if object.is_null() => old,
            _ => object,
        };
        Ok(Box::new(ServiceAllocation::to_service(claim, service)))
    }

    fn adopt(&self, object: &mut Value) -> Result<(), Status> {
        let mut claim = self.pools.claim();
        allocate::allocate(&mut claim, self.pools.range().family(), object, None)?;
        // The Service is stored already, so its values are kept without waiting for a write.
        Box::new(claim).commit();
        Ok(())
    }
}

fn default_spec(spec: &mut Map<String, Value>) {
    set_zero(spec, "sessionAffinity", "None");
    if spec["sessionAffinity"] == "None" {
        // SetDefaults_Service drops a configuration left over from ClientIP, which validation would refuse.
        spec.remove("sessionAffinityConfig");
    } else if spec["sessionAffinity"] == "ClientIP" {
        let client_ip = object_at(object_at(spec, "sessionAffinityConfig"), "clientIP");
        set_default(client_ip, "timeoutSeconds", DEFAULT_AFFINITY_SECONDS);
    }
    set_zero(spec, "type", "ClusterIP");
    for port in spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        set_zero(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_else(|| 0.into());
        set_zero(port, "targetPort", number);
    }
    let kind = spec["type"].as_str().unwrap_or("").to_owned();
    let external_ips = spec
        .get("externalIPs")
        .and_then(Value::as_array)
        .is_some_and(|ips| !ips.is_empty());
    if matches!(&*kind, "NodePort" | "LoadBalancer") || (kind == "ClusterIP" && external_ips) {
        set_zero(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(&*kind, "NodePort" | "LoadBalancer" | "ClusterIP") {
        set_default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        set_default(spec, "allocateLoadBalancerNodePorts", true);
    }
}

fn external_ip(service: &Value) -> String {
    let spec = &service["spec"];
    let listed: Vec<&str> = spec
        .items("externalIPs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match spec.text("type") {
        "ExternalName" => spec.text("externalName").to_owned(),
        "LoadBalancer" => {
            let address = |ingress| {
                let ip = Tree::text(ingress, "ip");
                if ip.is_empty() {
                    Tree::text(ingress, "hostname")
                } else {
                    ip
                }
            };
            let mut all: Vec<&str> = service["status"]["loadBalancer"]
                .items("ingress")
                .iter()
                .map(address)
                .collect();
            all.retain(|address| !address.is_empty());
            // kube-apiserver's printer takes the balancer's addresses from a sorted set, and the external IPs as they are listed.
            all.sort_unstable();
            all.dedup();
            all.extend(listed);
            if all.is_empty() {
                "<pending>".to_owned()
            } else {
                all.join(",")
            }
        }
        _ => or_none(&listed.join(",")).to_owned(),
    }
}

fn port_list(spec: &Value) -> String {
    let one = |port: &Value| {
        let (number, protocol) = (port.integer("port").unwrap_or(0), port.text("protocol"));
        match port.integer("nodePort") {
            None | Some(0) => format!("{number}/{protocol}"),
            Some(node) => format!("{number}:{node}/{protocol}"),
        }
    };
    spec.items("ports")
        .iter()
        .map(one)
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn warned(spec: Value) -> Vec<String> {
        let service = Service::new(Pools::new(ServiceRange::default()));
        service.warnings(&json!({"metadata": {}, "spec": spec}), None)
    }

    #[test]
    fn what_a_headless_service_does_not_look_at_is_worth_a_warning() {
        let spec = json!({
            "type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "sessionAffinity": "ClientIP", "loadBalancerIP": "1.2.3.4",
        });
        assert_eq!(
            warned(spec),
            [
                "spec.loadBalancerIP is ignored for headless services",
                "spec.SessionAffinity is ignored for headless services",
            ]
        );
    }

    #[test]
    fn addresses_that_were_there_stay_valid() {
        let service = json!({
            "metadata": {},
            "spec": {
                "type": "LoadBalancer", "clusterIP": "010.96.0.9", "clusterIPs": ["010.96.0.9"], "ipFamilies": ["IPv4"],
                "externalIPs": ["::ffff:1.2.3.4"], "loadBalancerSourceRanges": [" 10.0.0.1/8"], "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
                "sessionAffinity": "None", "allocateLoadBalancerNodePorts": true, "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster",
            },
        });
        let causes = |old: &Value| {
            mullion_kube_text::field::causes(|errors| validate::service(errors, &service, old))
        };
        assert_eq!(
            causes(&Value::Null),
            [
                r#"spec.clusterIPs[0]: Invalid value: "010.96.0.9": must not have leading 0s"#,
                r#"spec.externalIPs[0]: Invalid value: "::ffff:1.2.3.4": must not be an IPv4-mapped IPv6 address"#,
                r#"spec.LoadBalancerSourceRanges[0]: Invalid value: "10.0.0.1/8": must not have bits set beyond the prefix length"#,
            ]
        );
        assert_eq!(causes(&service), Vec::<String>::new());
    }

    #[test]
    fn changes_are_judged_before_the_service_as_such() {
        let old = json!({"spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.2"], "ipFamilies": ["IPv4"], "loadBalancerClass": "a/b", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000}});
        let mut new = old.clone();
        new["spec"]["clusterIPs"] = json!([]);
        new["spec"]["loadBalancerClass"] = "c/d".into();
        new["spec"]["healthCheckNodePort"] = 30001.into();
        let mut errors = Errors::default();
        update::validate(&mut errors, &new, &old);
        let causes: Vec<String> = errors
            .0
            .iter()
            .map(|error| format!("{}: {}", error.field, error.body()))
            .collect();
        assert_eq!(
            causes,
            [
                "spec.clusterIPs[0]: Invalid value: []: primary clusterIP can not be unset",
                r#"spec.loadBalancerClass: Invalid value: "c/d": may not change once set"#,
                "spec.healthCheckNodePort: Forbidden: field is immutable",
            ]
        );
    }
}
