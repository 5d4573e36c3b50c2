//! networking.k8s.io/v1 ServiceCIDR and IPAddress: the ranges that Services get their addresses from, and the allocated addresses.
//!
//! Addresses are allocated from every ready ServiceCIDR ([`super::services::pools`]): the one named `kubernetes`, which is the range that
//! the server was started with, and those that users create. The IPAddress objects of Services are created and deleted with them
//! ([`objects`]). An address whose IPAddress a user created is not allocated to Services.

use std::{net::IpAddr, sync::Arc};

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    status::Status,
    validation::{IMMUTABLE, net},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Allocation, Check, Column, Kind,
    podspec::internal,
    print,
    services::{objects, pools::Pools},
};
use crate::{
    Allocator, Printing,
    fields::{self, Field, Fields, Format, filled, present, required},
    request::Ctx,
};

/// networking.k8s.io/v1 ServiceCIDR.
pub(super) struct ServiceCidr;

/// networking.k8s.io/v1 IPAddress.
pub(super) struct IpAddress {
    pools: Arc<Pools>,
}

impl IpAddress {
    /// Creates the kind; its objects mark their addresses as used in `pools`.
    pub(super) fn new(pools: Arc<Pools>) -> Self {
        IpAddress { pools }
    }
}

/// Returns the Service that an IPAddress refers to, if the Service has the address.
fn owner(ctx: &Ctx<'_>, address: &Value) -> Option<Arc<Value>> {
    let parent = &address["spec"]["parentRef"];
    if !parent.text("group").is_empty() || parent.text("resource") != "services" {
        return None;
    }
    let (namespace, name) = (parent.text("namespace"), parent.text("name"));
    let service = ctx.lookup.find("", "services", Some(namespace), name)?;
    let ip: IpAddr = address["metadata"].text("name").parse().ok()?;
    let has = objects::addresses(&service).any(|other| other == ip);
    has.then_some(service)
}

const ADDRESS: &[Field] = &[present("parentRef", Fields(PARENT))];
const PARENT: &[Field] = &[
    filled("group", Format(names::dns_subdomain)),
    required("resource", Format(names::path_segment)),
    required("name", Format(names::path_segment)),
    filled("namespace", Format(names::path_segment)),
];
const CIDR_COLUMNS: [Column; 3] = [print::NAME, print::column("CIDRs"), print::AGE];
/// As in kube-apiserver, whose rows have a third cell, the age, without a column of its own.
const ADDRESS_COLUMNS: [Column; 2] = [print::NAME, print::column("ParentRef")];

impl Kind for ServiceCidr {
    fn validate_creation(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        ranges(&object["spec"], &Path::new("spec").child("cidrs"), errors);
    }

    /// Allows only one change of the ranges: a single range may be joined by one of the other IP family.
    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let path = Path::new("spec");
        let path = path.child("cidrs");
        let (now, before) = (object["spec"].items("cidrs"), old["spec"].items("cidrs"));
        let grows = before.len() == 1 && now.len() == 2;
        if now.len() != before.len() && !grows {
            let sent = errors.as_sent(&path, &object["spec"]["cidrs"]);
            return errors.invalid(&path, sent, IMMUTABLE);
        }
        for (index, (now, before)) in now.iter().zip(before).enumerate() {
            if now != before {
                errors.invalid(&path.index(index), now.clone(), IMMUTABLE);
            }
        }
        // The first range was validated at creation; the second one is new.
        if grows {
            ranges(&object["spec"], &path, errors);
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for ServiceCidr {
    fn columns(&self) -> &[Column] {
        &CIDR_COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ranges = object["spec"].items("cidrs").iter();
        let ranges: Vec<&str> = ranges.filter_map(Value::as_str).collect();
        vec![
            print::name(object),
            ranges.join(",").into(),
            print::age(object, now),
        ]
    }
}

/// Checks that there is one range, or one of each IP family.
fn ranges(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let ranges: Vec<&str> = spec
        .items("cidrs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match ranges.as_slice() {
        [] => return errors.required(path, "at least one CIDR required"),
        [first, second] => {
            let family = |text: &str| net::parse_cidr(text).map(|range| range.network.is_ipv4());
            let (first, second) = (family(first), family(second));
            if first.is_some() && first == second {
                let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
                return errors.invalid(path, spec["cidrs"].clone(), why);
            }
        }
        [_] => {}
        _ => {
            let text = internal::compact("ServiceCIDRSpec", spec);
            let why = "may only hold up to 2 values";
            return errors.with_text(ErrorType::Invalid, path, text, why);
        }
    }
    for (index, range) in ranges.iter().enumerate() {
        net::strict_cidr(errors, &path.index(index), range);
    }
}

/// Validates the reference of an IPAddress.
pub(super) fn validate(address: &Value, errors: &mut Errors) {
    fields::validate(ADDRESS, &address["spec"], &Path::new("spec"), errors);
}

impl Kind for IpAddress {
    /// As in kube-apiserver, every update validates the whole object, and the metadata twice.
    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[
            Check::Metadata,
            Check::Object,
            Check::MetadataChange,
            Check::Change,
        ]
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        validate(object, errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let (parent, before) = (&object["spec"]["parentRef"], &old["spec"]["parentRef"]);
        if parent != before {
            let text = match parent {
                Value::Null => "null".to_owned(),
                parent => internal::compact("ParentReference", parent),
            };
            let path = Path::new("spec");
            let at = path.child("parentRef");
            errors.with_text(ErrorType::Invalid, &at, text, IMMUTABLE);
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn allocator(&self) -> Option<&dyn Allocator> {
        Some(self)
    }
}

impl Printing for IpAddress {
    fn columns(&self) -> &[Column] {
        &ADDRESS_COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let parent = match object["spec"].field("parentRef") {
            None => "<none>".to_owned(),
            Some(parent) => {
                let mut text = parent.text("resource").to_lowercase();
                for (before, field) in [('.', "group"), ('/', "namespace"), ('/', "name")] {
                    if !parent.text(field).is_empty() {
                        text.push(before);
                        text.push_str(parent.text(field));
                    }
                }
                text
            }
        };
        vec![print::name(object), parent.into(), print::age(object, now)]
    }
}

impl Allocator for IpAddress {
    /// Marks the address of a user's IPAddress as used, so that no Service gets it. The address of a Service is in use already, and its
    /// IPAddress is created again when a user deletes it.
    fn allocate(
        &self,
        ctx: &Ctx<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Box<dyn Allocation>, Status> {
        let mut claim = self.pools.claim();
        let mut again = None;
        match old {
            None => {
                // An address that is already allocated belongs to a Service whose IPAddress is being created.
                let _ = claim.address(object["metadata"].text("name"));
            }
            Some(old) if object.is_null() => {
                let name = old["metadata"].text("name");
                match (owner(ctx, old), name.parse()) {
                    (Some(service), Ok(ip)) => again = Some(objects::of_service(ip, &service)),
                    _ => claim.release_address(name),
                }
            }
            Some(_) => {}
        }
        Ok(Box::new(objects::ServiceAllocation::to_address(
            claim, again,
        )))
    }
}
