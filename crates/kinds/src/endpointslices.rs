//! discovery.k8s.io/v1 EndpointSlice: a part of the endpoints behind a Service, of one address type.

use std::collections::BTreeSet;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{
        check,
        net::{self, OldValues},
    },
};
use mullion_schema::tree::{Tree, set_default};
use serde_json::Value;

use super::{
    Check, Column, Kind,
    print::{AGE, NAME, age, column, name},
};
use crate::{
    Printing,
    fields::{self, Field, Format, Labels, OneOf, always, present, required, set},
    podspec::PROTOCOL,
    request::Ctx,
};

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_TOPOLOGY: usize = 16;
const MAX_HINTS: usize = 8;
const SLICE: &[Field] = &[required("addressType", OneOf(&["FQDN", "IPv4", "IPv6"]))];
const PORT: &[Field] = &[
    present("protocol", PROTOCOL),
    set("appProtocol", Format(names::qualified_name)),
];
const NODE: &[Field] = &[set("nodeName", Format(names::dns_subdomain))];
const TOPOLOGY_AND_HOST: &[Field] = &[
    always("deprecatedTopology", Labels),
    set("hostname", Format(names::dns_label)),
];
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLERS: [&str; 2] = [
    "endpointslice-controller.k8s.io",
    "endpointslicemirroring-controller.k8s.io",
];
/// The number of ports or addresses that a table cell lists.
const LISTED: usize = 3;

/// discovery.k8s.io/v1 EndpointSlice.
pub(crate) struct EndpointSlice;

impl Kind for EndpointSlice {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::WHOLE
    }

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

    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        drop_topology(object);
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, old: &Value) {
        // Endpoints that were written through v1beta1 keep the field until somebody changes them.
        if object["endpoints"] != old["endpoints"] {
            drop_topology(object);
        }
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        if old.is_none() && object["addressType"] == "FQDN" {
            warnings.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        // These controllers write canonical addresses, so they need no warnings.
        let writer = object["metadata"]["labels"].text(MANAGED_BY);
        if CONTROLLERS.contains(&writer) {
            return warnings;
        }
        let path = Path::new("endpoints");
        for (index, endpoint) in object.items("endpoints").iter().enumerate() {
            let at = path.index(index);
            let at = at.child("addresses");
            for (index, address) in endpoint.items("addresses").iter().enumerate() {
                let address = address.as_str().unwrap_or_default();
                warnings.extend(net::ip_warning(&at.index(index), address));
            }
        }
        warnings
    }

    fn validate_against(
        &self,
        _: &Ctx<'_>,
        object: &Value,
        old: Option<&Value>,
        errors: &mut Errors,
    ) {
        let kind = object.text("addressType");
        fields::validate(SLICE, object, Path::ROOT, errors);
        ports(errors, &Path::new("ports"), object.items("ports"));
        let mut found = Errors::default();
        endpoints(object.items("endpoints"), kind, &mut found);
        // Invalid endpoints that are unchanged may stay. The list is long, so it is compared only if there are errors.
        let same = |old: &Value| old["endpoints"] == object["endpoints"];
        if !found.is_empty() && !old.is_some_and(same) {
            errors.0.append(&mut found.0);
        }
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        fields::immutable(&["addressType"], object, old, Path::ROOT, errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for EndpointSlice {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("AddressType"),
            column("Ports"),
            column("Endpoints"),
            AGE,
        ];
        COLUMNS
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

/// Removes `deprecatedTopology`, which v1beta1 had instead of `nodeName` and `zone` and which cannot be written in v1.
fn drop_topology(slice: &mut Value) {
    let endpoints = slice.get_mut("endpoints").and_then(Value::as_array_mut);
    let endpoints = endpoints.into_iter().flatten();
    for endpoint in endpoints.filter_map(Value::as_object_mut) {
        endpoint.remove("deprecatedTopology");
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
        // A port without a name has the empty one, which only one port may have.
        if !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        fields::validate(PORT, port, &path, errors);
    }
}

fn endpoints(endpoints: &[Value], kind: &str, errors: &mut Errors) {
    let path = Path::new("endpoints");
    if endpoints.len() > MAX_ENDPOINTS {
        return errors.too_many(&path, endpoints.len(), MAX_ENDPOINTS);
    }
    for (index, one) in endpoints.iter().enumerate() {
        endpoint(errors, &path.index(index), one, kind);
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
    fields::validate(NODE, endpoint, path, errors);
    let topology = path.child("deprecatedTopology");
    let count = endpoint.entries("deprecatedTopology").count();
    if count > MAX_TOPOLOGY {
        errors.too_many(&topology, count, MAX_TOPOLOGY);
    }
    fields::validate(TOPOLOGY_AND_HOST, endpoint, path, errors);
    let (given, at) = (&endpoint["hints"], path.child("hints"));
    hints(
        errors,
        &at.child("forZones"),
        given.items("forZones"),
        names::label_value,
    );
    hints(
        errors,
        &at.child("forNodes"),
        given.items("forNodes"),
        names::dns_subdomain,
    );
}

fn ip_address(errors: &mut Errors, path: &Path<'_>, index: usize, address: &str, kind: &str) {
    if !net::ip(errors, &path.index(index), address, OldValues::NONE) {
        return;
    }
    if net::is_v6(address) != (kind == "IPv6") {
        let article = if kind == "IPv4" {
            "must be an IPv4 address"
        } else {
            "must be an IPv6 address"
        };
        // kube-apiserver reports the wrong family at the list.
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

fn hints(
    errors: &mut Errors,
    path: &Path<'_>,
    places: &[Value],
    rule: fn(&str) -> names::Sentences,
) {
    if places.len() > MAX_HINTS {
        return errors.too_many(path, places.len(), MAX_HINTS);
    }
    let mut seen = BTreeSet::new();
    for (index, place) in places.iter().enumerate() {
        let name = place.text("name");
        let path = path.index(index);
        if !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        check(errors, &path.child("name"), name, rule(name));
    }
}

fn listed(all: Vec<String>) -> String {
    let text = all[..all.len().min(LISTED)].join(",");
    match all.len() {
        _ if text.is_empty() => "<unset>".to_owned(),
        count if count > LISTED => format!("{text} + {} more...", count - LISTED),
        _ => text,
    }
}
