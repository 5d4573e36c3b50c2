//! networking.k8s.io/v1 Ingress: rules that route requests from outside the cluster to Services (`pkg/apis/networking/validation`).

use std::collections::BTreeSet;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{check, net},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Check, Column, Kind, print};
use crate::{
    Printing,
    fields::{
        self, All, Code, Each, Field, Fields, Format, Items, Text, always, filled, required, set,
    },
    request::Ctx,
};

/// networking.k8s.io/v1 Ingress.
pub(super) struct Ingress;

/// The annotation that named the class before `ingressClassName` existed.
pub const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
/// A reference to an object of any kind.
pub(super) const LOCAL_REFERENCE: &[Field] = &[
    set("apiGroup", Format(names::dns_subdomain)),
    required("kind", Format(names::path_segment)),
    required("name", Format(names::path_segment)),
];
const SPEC: &[Field] = &[
    set("defaultBackend", Code(backend)),
    always("rules", Each(RULE)),
    always("tls", Each(TLS)),
    set("ingressClassName", Format(names::dns_subdomain)),
];
const RULE: &[Field] = &[
    filled("host", All(&[Text(no_address), Text(host_name)])),
    set("http", Fields(HTTP)),
];
const HTTP: &[Field] = &[required("paths", Items(&Code(http_path)))];
const TLS: &[Field] = &[
    always("hosts", Items(&Text(host_name))),
    filled("secretName", Format(names::dns_subdomain)),
];
const SERVICE: &[Field] = &[required("name", Format(names::dns_label))];
/// An address that a load balancer has.
pub(crate) const BALANCER_POINT: &[Field] = &[filled(
    "hostname",
    All(&[Format(names::dns_subdomain), Text(no_address)]),
)];
const COLUMNS: [Column; 6] = [
    print::NAME,
    print::column("Class"),
    print::column("Hosts"),
    print::column("Address"),
    print::column("Ports"),
    print::AGE,
];
/// The number of hosts that the table shows.
const SHOWN: usize = 3;

impl Kind for Ingress {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        if spec.items("rules").is_empty() && !spec.has("defaultBackend") {
            let sent = errors.as_sent(&path.child("rules"), &spec["rules"]);
            errors.invalid(
                &path,
                sent,
                "either `defaultBackend` or `rules` must be specified",
            );
        }
        fields::validate(SPEC, spec, &path, errors);
    }

    fn validate_creation(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        // Stored Ingresses may have both with different values, so only creations are checked.
        let annotated = object["metadata"]["annotations"].field(CLASS_ANNOTATION);
        let class = object["spec"].field("ingressClassName");
        if let (Some(annotated), Some(class)) = (annotated, class)
            && annotated != class
        {
            errors.invalid(
                // kube-apiserver's path leaves out `metadata`.
                &Path::new("annotations").child(CLASS_ANNOTATION),
                annotated.clone(),
                "must match `ingressClassName` when both are specified",
            );
        }
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let path = Path::new("status");
        let path = path.child("loadBalancer");
        let path = path.child("ingress");
        let points = object["status"]["loadBalancer"].items("ingress");
        let kept = old["status"]["loadBalancer"].items("ingress").iter();
        let kept = kept.map(|point| point.text("ip")).collect();
        for (index, point) in points.iter().enumerate() {
            let at = path.index(index);
            let ip = point.text("ip");
            if !ip.is_empty() {
                net::ip(errors, &at.child("ip"), ip, &kept);
            }
            fields::validate(BALANCER_POINT, point, &at, errors);
        }
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let annotated = object["metadata"]["annotations"].has(CLASS_ANNOTATION);
        if old.is_some() || !annotated || object["spec"].has("ingressClassName") {
            return Vec::new();
        }
        vec![format!(
            "annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead"
        )]
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for Ingress {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let points = object["status"]["loadBalancer"].items("ingress");
        let addresses: BTreeSet<&str> = points
            .iter()
            .map(|point| match point.text("ip") {
                "" => point.text("hostname"),
                ip => ip,
            })
            .filter(|address| !address.is_empty())
            .collect();
        let addresses: Vec<&str> = addresses.into_iter().collect();
        let class = match spec.field("ingressClassName") {
            Some(class) => class.as_str().unwrap_or_default(),
            None => "<none>",
        };
        let ports = if spec.items("tls").is_empty() {
            "80"
        } else {
            "80, 443"
        };
        vec![
            print::name(object),
            class.into(),
            hosts(spec.items("rules")).into(),
            addresses.join(",").into(),
            ports.into(),
            print::age(object, now),
        ]
    }
}

fn hosts(rules: &[Value]) -> String {
    let (mut shown, mut more) = (Vec::new(), false);
    for rule in rules {
        more |= shown.len() == SHOWN;
        if !more && !rule.text("host").is_empty() {
            shown.push(rule.text("host"));
        }
    }
    match (shown.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, false) => shown.join(","),
        // printIngress counts the other rules here, not their hosts.
        (false, true) => format!("{} + {} more...", shown.join(","), rules.len() - SHOWN),
    }
}

fn no_address(errors: &mut Errors, path: &Path<'_>, host: &str) {
    if net::parse_ip(host).is_some() {
        errors.invalid(path, host, "must be a DNS name, not an IP address");
    }
}

fn host_name(errors: &mut Errors, path: &Path<'_>, host: &str) {
    let sentences = if host.contains('*') {
        names::wildcard_subdomain(host)
    } else {
        names::dns_subdomain(host)
    };
    check(errors, path, host, sentences);
}

fn http_path(item: &Value, path: &Path<'_>, errors: &mut Errors) {
    const KINDS: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];
    const SEQUENCES: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
    const SUFFIXES: [&str; 2] = ["/..", "/."];
    if !item.has("pathType") {
        return errors.required(&path.child("pathType"), "pathType must be specified");
    }
    let (text, at) = (item.text("path"), path.child("path"));
    let absolute = text.starts_with('/');
    match item.text("pathType") {
        "Exact" | "Prefix" => {
            if !absolute {
                errors.invalid(&at, text, "must be an absolute path");
            }
            for sequence in SEQUENCES.iter().filter(|part| text.contains(**part)) {
                errors.invalid(&at, text, format!("must not contain '{sequence}'"));
            }
            for suffix in SUFFIXES.iter().filter(|part| text.ends_with(**part)) {
                errors.invalid(&at, text, format!("cannot end with '{suffix}'"));
            }
        }
        // The controller decides what such a path means, so it may be empty or a pattern.
        "ImplementationSpecific" => {
            if !text.is_empty() && !absolute {
                errors.invalid(&at, text, "must be an absolute path");
            }
        }
        other => errors.not_supported(&path.child("pathType"), other, &KINDS),
    }
    backend(&item["backend"], &path.child("backend"), errors);
}

fn backend(backend: &Value, path: &Path<'_>, errors: &mut Errors) {
    match (backend.field("resource"), backend.field("service")) {
        (Some(_), Some(_)) => {
            errors.invalid(path, "", "cannot set both resource and service backends");
        }
        (Some(resource), None) => {
            fields::validate(LOCAL_REFERENCE, resource, &path.child("resource"), errors);
        }
        (None, Some(service)) => service_backend(service, path, errors),
        (None, None) => errors.invalid(path, "", "resource or service backend is required"),
    }
}

fn service_backend(service: &Value, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("service");
    fields::validate(SERVICE, service, &at, errors);
    let port = &service["port"];
    let at = at.child("port");
    let (name, number) = (port.text("name"), port.integer("number").unwrap_or(0));
    match (name.is_empty(), number == 0) {
        (false, false) => errors.invalid(path, "", "cannot set both port name & port number"),
        (false, true) => check(errors, &at.child("name"), name, names::port_name(name)),
        (true, false) => {
            for sentence in names::port_number(number) {
                errors.invalid(&at.child("number"), number, sentence);
            }
        }
        (true, true) => errors.required(path, "port name or number is required"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn three_hosts_are_shown_and_the_others_counted() {
        let rules = |hosts: &[&str]| -> Vec<Value> {
            hosts.iter().map(|host| json!({"host": host})).collect()
        };
        assert_eq!(hosts(&rules(&[])), "*");
        assert_eq!(hosts(&rules(&["a", "b", "c"])), "a,b,c");
        assert_eq!(hosts(&rules(&["a", "b", "c", "d"])), "a,b,c + 1 more...");
    }
}
