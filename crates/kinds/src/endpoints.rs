//! core/v1 Endpoints: the addresses behind a Service in the old, deprecated form.

use std::net::IpAddr;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{
        check,
        net::{self, OldValues},
    },
};
use mullion_schema::tree::{Tree, set_zero};
use serde_json::Value;

use super::{
    Check, Column, Kind,
    print::{AGE, NAME, age, column, name},
};
use crate::{
    Printing,
    fields::{self, Field, Format, Number, always, filled, required, set},
    podspec::PROTOCOL,
    request::Ctx,
};

/// The number of addresses that a table cell lists.
const LISTED: usize = 3;

/// core/v1 Endpoints.
pub(crate) struct Endpoints;

const ADDRESS: &[Field] = &[
    filled("hostname", Format(names::dns_label)),
    set("nodeName", Format(names::dns_subdomain)),
];
const PORT: &[Field] = &[
    always("port", Number(names::port_number)),
    required("protocol", PROTOCOL),
    set("appProtocol", Format(names::qualified_name)),
];

impl Kind for Endpoints {
    fn default(&self, object: &mut Value) {
        for subset in object
            .get_mut("subsets")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let ports = subset
                .get_mut("ports")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten();
            ports
                .filter_map(Value::as_object_mut)
                .for_each(|port| set_zero(port, "protocol", "TCP"));
        }
    }

    fn validate_against(
        &self,
        _: &Ctx<'_>,
        object: &Value,
        old: Option<&Value>,
        errors: &mut Errors,
    ) {
        let mut found = Errors::default();
        subsets(object, &mut found);
        // Invalid subsets that are unchanged may stay. The lists are long, so they are compared only if there are errors.
        let same = |old: &Value| old["subsets"] == object["subsets"];
        if !found.is_empty() && !old.is_some_and(same) {
            errors.0.append(&mut found.0);
        }
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[Check::MetadataChange, Check::Metadata, Check::Object]
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        // The controller writes canonical addresses, so they need no warnings.
        if object["metadata"]["labels"]["endpoints.kubernetes.io/managed-by"]
            == "endpoint-controller"
        {
            return Vec::new();
        }
        let (path, mut found) = (Path::new("subsets"), Vec::new());
        for (index, subset) in object.items("subsets").iter().enumerate() {
            let path = path.index(index);
            for field in ["addresses", "notReadyAddresses"] {
                let path = path.child(field);
                for (index, address) in subset.items(field).iter().enumerate() {
                    let path = path.index(index);
                    found.extend(net::ip_warning(&path.child("ip"), address.text("ip")));
                }
            }
        }
        found
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for Endpoints {
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Endpoints"), AGE];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            listed(object.items("subsets")).into(),
            age(object, now),
        ]
    }
}

fn subsets(object: &Value, errors: &mut Errors) {
    let path = Path::new("subsets");
    for (index, subset) in object.items("subsets").iter().enumerate() {
        let path = path.index(index);
        if subset.items("addresses").is_empty() && subset.items("notReadyAddresses").is_empty() {
            errors.required(&path, "must specify `addresses` or `notReadyAddresses`");
        }
        for field in ["addresses", "notReadyAddresses"] {
            for (index, one) in subset.items(field).iter().enumerate() {
                address(errors, &path.child(field).index(index), one);
            }
        }
        let ports = subset.items("ports");
        for (index, one) in ports.iter().enumerate() {
            port(
                errors,
                &path.child("ports").index(index),
                one,
                ports.len() > 1,
            );
        }
    }
}

fn address(errors: &mut Errors, path: &Path<'_>, address: &Value) {
    let ip = address.text("ip");
    net::ip(errors, &path.child("ip"), ip, OldValues::NONE);
    fields::validate(ADDRESS, address, path, errors);
    net::ordinary_ip(errors, &path.child("ip"), ip);
}

fn port(errors: &mut Errors, path: &Path<'_>, port: &Value, named: bool) {
    let name = port.text("name");
    if !name.is_empty() {
        check(errors, &path.child("name"), name, names::dns_label(name));
    } else if named {
        errors.required(&path.child("name"), "");
    }
    fields::validate(PORT, port, path, errors);
}

fn listed(subsets: &[Value]) -> String {
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let ips = || {
            subset
                .items("addresses")
                .iter()
                .map(|address| address.text("ip"))
        };
        if subset.items("ports").is_empty() {
            all.extend(ips().map(str::to_owned));
        }
        for port in subset.items("ports") {
            let number = port.integer("port").unwrap_or(0);
            all.extend(ips().map(|ip| match ip.parse() {
                Ok(IpAddr::V6(_)) => format!("[{ip}]:{number}"),
                _ => format!("{ip}:{number}"),
            }));
        }
    }
    let text = all[..all.len().min(LISTED)].join(",");
    if all.len() > LISTED {
        format!("{text} + {} more...", all.len() - LISTED)
    } else {
        text
    }
}
