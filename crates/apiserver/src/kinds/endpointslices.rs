//! discovery.k8s.io/v1 EndpointSlice: a part of the endpoints behind a Service, of one address type.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Column, Kind,
    print::{AGE, NAME, age, column, name},
    tree::{Tree, set_default},
};
use crate::{
    admission::Ctx,
    field::{Errors, Path},
    validation::{self, check, metadata, names, net, one_of},
};

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_TOPOLOGY: usize = 16;
const MAX_HINTS: usize = 8;
/// How many ports or addresses a cell lists.
const LISTED: usize = 3;

/// discovery.k8s.io/v1 EndpointSlice.
pub(crate) struct EndpointSlice;

impl Kind for EndpointSlice {
    fn default(&self, object: &mut Value) {
        let ports = object
            .get_mut("ports")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten();
        for port in ports.filter_map(Value::as_object_mut) {
            set_default(port, "name", "");
            set_default(port, "protocol", "TCP");
        }
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let kind = object.text("addressType");
        if kind.is_empty() {
            errors.required(&Path::new("addressType"), "");
        } else {
            one_of(
                errors,
                &Path::new("addressType"),
                kind,
                &["FQDN", "IPv4", "IPv6"],
            );
        }
        ports(errors, &Path::new("ports"), object.items("ports"));
        let path = Path::new("endpoints");
        let endpoints = object.items("endpoints");
        if endpoints.len() > MAX_ENDPOINTS {
            return errors.too_many(&path, endpoints.len(), MAX_ENDPOINTS);
        }
        for (index, one) in endpoints.iter().enumerate() {
            endpoint(errors, &path.index(index), one, kind);
        }
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        validation::immutable(
            errors,
            &Path::new("addressType"),
            &object["addressType"],
            &old["addressType"],
        );
    }

    fn columns(&self) -> Option<&[Column]> {
        const COLUMNS: &[Column] = &[
            NAME,
            column("AddressType"),
            column("Ports"),
            column("Endpoints"),
            AGE,
        ];
        Some(COLUMNS)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ports = object.items("ports").iter().map(|port| {
            match (port.integer("port"), port["name"].as_str()) {
                (Some(number), _) => number.to_string(),
                (None, Some(name)) => name.to_owned(),
                (None, None) => "*".to_owned(),
            }
        });
        let addresses = object
            .items("endpoints")
            .iter()
            .flat_map(|endpoint| endpoint.items("addresses"));
        let addresses = addresses.filter_map(Value::as_str).map(str::to_owned);
        vec![
            name(object),
            object.text("addressType").into(),
            listed(ports.collect()).into(),
            listed(addresses.collect()).into(),
            age(object, now),
        ]
    }
}

fn ports(errors: &mut Errors, path: &Path<'_>, ports: &[Value]) {
    if ports.len() > MAX_PORTS {
        return errors.too_many(path, ports.len(), MAX_PORTS);
    }
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let name = port.text("name");
        if !name.is_empty() {
            check(errors, &path.child("name"), name, names::dns_label(name));
        }
        if !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        match port["protocol"].as_str() {
            None => errors.required(&path.child("protocol"), ""),
            Some(protocol) => one_of(
                errors,
                &path.child("protocol"),
                protocol,
                &["SCTP", "TCP", "UDP"],
            ),
        }
        if let Some(protocol) = port["appProtocol"].as_str() {
            check(
                errors,
                &path.child("appProtocol"),
                protocol,
                names::qualified_name(protocol),
            );
        }
    }
}

fn endpoint(errors: &mut Errors, path: &Path<'_>, endpoint: &Value, kind: &str) {
    let addresses = endpoint.items("addresses");
    let addresses_path = path.child("addresses");
    if addresses.is_empty() {
        errors.required(&addresses_path, "must contain at least 1 address");
    } else if addresses.len() > MAX_ADDRESSES {
        errors.too_many(&addresses_path, addresses.len(), MAX_ADDRESSES);
    }
    for (index, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
        match kind {
            "IPv4" | "IPv6" => ip_address(errors, &addresses_path, index, address, kind),
            "FQDN" => domain_name(errors, &addresses_path.index(index), address),
            _ => {}
        }
    }
    if let Some(node) = endpoint["nodeName"].as_str() {
        check(
            errors,
            &path.child("nodeName"),
            node,
            names::dns_subdomain(node),
        );
    }
    let topology = path.child("deprecatedTopology");
    let count = endpoint.entries("deprecatedTopology").count();
    if count > MAX_TOPOLOGY {
        errors.too_many(&topology, count, MAX_TOPOLOGY);
    }
    metadata::labels(errors, &topology, endpoint.get("deprecatedTopology"));
    if let Some(hostname) = endpoint["hostname"].as_str() {
        check(
            errors,
            &path.child("hostname"),
            hostname,
            names::dns_label(hostname),
        );
    }
    hints(
        errors,
        &path.child("hints"),
        endpoint["hints"].items("forZones"),
    );
}

fn ip_address(errors: &mut Errors, path: &Path<'_>, index: usize, address: &str, kind: &str) {
    if net::ip(errors, &path.index(index), address).is_none() {
        return;
    }
    if net::is_v6(address) != (kind == "IPv6") {
        let article = if kind == "IPv4" {
            "must be an IPv4 address"
        } else {
            "must be an IPv6 address"
        };
        errors.invalid(path, address, article);
    }
    net::ordinary_ip(errors, &path.index(index), address);
}

fn domain_name(errors: &mut Errors, path: &Path<'_>, name: &str) {
    let trimmed = name.strip_suffix('.').unwrap_or(name);
    if trimmed.is_empty() {
        return errors.required(path, "");
    }
    let sentences = names::dns_subdomain(trimmed);
    if !sentences.is_empty() {
        return errors.invalid(path, trimmed, sentences.join(","));
    }
    if !trimmed.contains('.') {
        errors.invalid(
            path,
            trimmed,
            "should be a domain with at least two segments separated by dots",
        );
    }
}

fn hints(errors: &mut Errors, path: &Path<'_>, zones: &[Value]) {
    let path = path.child("forZones");
    if zones.len() > MAX_HINTS {
        return errors.too_many(&path, zones.len(), MAX_HINTS);
    }
    let mut seen = BTreeSet::new();
    for (index, zone) in zones.iter().enumerate() {
        let name = zone.text("name");
        let path = path.index(index);
        if !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        check(errors, &path.child("name"), name, names::label_value(name));
    }
}

fn listed(all: Vec<String>) -> String {
    let text = all[..all.len().min(LISTED)].join(",");
    match all.len() {
        0 => "<unset>".to_owned(),
        count if count > LISTED => format!("{text} + {} more...", count - LISTED),
        _ => text,
    }
}
