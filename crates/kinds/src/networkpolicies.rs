//! networking.k8s.io/v1 NetworkPolicy: the connections that the pods of a namespace may have (`pkg/apis/networking/validation`).

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{
        check,
        net::{self, OldValues},
        selector::{format_label_selector, label_selector},
    },
};
use mullion_schema::tree::{Tree, object_at, set_default};
use serde_json::{Map, Value};

use super::{Column, Kind, print};
use crate::{
    Printing,
    fields::{self, Field, OneOf, set},
    request::Ctx,
};

/// networking.k8s.io/v1 NetworkPolicy.
pub(super) struct NetworkPolicy;

const COLUMNS: [Column; 3] = [print::NAME, print::column("Pod-Selector"), print::AGE];
const PORT: &[Field] = &[set("protocol", OneOf(&["TCP", "UDP", "SCTP"]))];
/// The two directions, and the field of each that names the peers.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

impl Kind for NetworkPolicy {
    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        let spec = object_at(root, "spec");
        for (direction, _) in DIRECTIONS {
            let rules = spec.get_mut(direction).and_then(Value::as_array_mut);
            for rule in rules.into_iter().flatten() {
                default_ports(rule);
            }
        }
        let has_items = |spec: &Map<String, Value>, field: &str| {
            spec.get(field)
                .and_then(Value::as_array)
                .is_some_and(|items| !items.is_empty())
        };
        if !has_items(spec, "policyTypes") {
            // A policy without egress rules must not block outgoing traffic, but one without ingress rules isolates its pods.
            let mut types = vec!["Ingress"];
            if has_items(spec, "egress") {
                types.push("Egress");
            }
            spec.insert("policyTypes".into(), types.into());
        }
    }

    fn validate_against(
        &self,
        _: &Ctx<'_>,
        object: &Value,
        old: Option<&Value>,
        errors: &mut Errors,
    ) {
        let kept = old.map(|old| networks(&old["spec"])).unwrap_or_default();
        spec(&object["spec"], &kept, errors);
    }

    fn warnings(&self, object: &Value, _: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        let path = Path::new("spec");
        for (direction, peers) in DIRECTIONS {
            let at = path.child(direction);
            for (index, rule) in object["spec"].items(direction).iter().enumerate() {
                let at = at.index(index);
                let at = at.child(peers);
                for (index, peer) in rule.items(peers).iter().enumerate() {
                    let at = at.index(index);
                    let at = at.child("ipBlock");
                    let block = &peer["ipBlock"];
                    if block.has("cidr") {
                        warnings.extend(net::cidr_warnings(&at.child("cidr"), block.text("cidr")));
                    }
                    let at = at.child("except");
                    for (index, cidr) in block.items("except").iter().enumerate() {
                        let cidr = cidr.as_str().unwrap_or_default();
                        warnings.extend(net::cidr_warnings(&at.index(index), cidr));
                    }
                }
            }
        }
        warnings
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for NetworkPolicy {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            print::name(object),
            format_label_selector(&object["spec"]["podSelector"]).into(),
            print::age(object, now),
        ]
    }
}

fn spec(spec: &Value, kept: &OldValues<'_>, errors: &mut Errors) {
    const TYPES: [&str; 2] = ["Ingress", "Egress"];
    let path = Path::new("spec");
    label_selector(errors, &path.child("podSelector"), &spec["podSelector"]);
    for (direction, peers) in DIRECTIONS {
        let at = path.child(direction);
        for (index, rule) in spec.items(direction).iter().enumerate() {
            let at = at.index(index);
            let ports = at.child("ports");
            for (index, item) in rule.items("ports").iter().enumerate() {
                port(item, &ports.index(index), errors);
            }
            let at = at.child(peers);
            for (index, item) in rule.items(peers).iter().enumerate() {
                peer(item, kept, &at.index(index), errors);
            }
        }
    }
    let at = path.child("policyTypes");
    let types = spec.items("policyTypes");
    if types.len() > TYPES.len() {
        let types = spec["policyTypes"].clone();
        return errors.invalid(&at, types, "may not specify more than two policyTypes");
    }
    for (index, kind) in types.iter().enumerate() {
        let kind = kind.as_str().unwrap_or_default();
        if !TYPES.contains(&kind) {
            errors.not_supported(&at.index(index), kind, &TYPES);
        }
    }
}

/// Returns all networks that a policy names.
fn networks(spec: &Value) -> OldValues<'_> {
    let peers = DIRECTIONS.iter().flat_map(|(direction, peers)| {
        let rules = spec.items(direction).iter();
        rules.flat_map(|rule| rule.items(peers))
    });
    let blocks = peers.filter_map(|peer| peer.field("ipBlock"));
    let texts = blocks.flat_map(|block| {
        let except = block.items("except").iter().filter_map(Value::as_str);
        except.chain([block.text("cidr")])
    });
    texts.collect()
}

fn default_ports(rule: &mut Value) {
    let ports = rule.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        set_default(port, "protocol", "TCP");
    }
}

fn port(port: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(PORT, port, path, errors);
    let (at, end_path) = (path.child("port"), path.child("endPort"));
    let end = port.integer("endPort");
    match port.field("port") {
        Some(Value::String(name)) => {
            if let Some(end) = end {
                errors.invalid(
                    &end_path,
                    end,
                    "may not be specified when `port` is non-numeric",
                );
            }
            check(errors, &at, name, names::port_name(name));
        }
        Some(number) => {
            let number = number.as_i64().unwrap_or(0);
            for sentence in names::port_number(number) {
                errors.invalid(&at, number, sentence);
            }
            if let Some(end) = end {
                if end < number {
                    // kube-apiserver's error shows the port here, not the end port.
                    errors.invalid(&end_path, number, "must be greater than or equal to `port`");
                }
                for sentence in names::port_number(end) {
                    errors.invalid(&end_path, end, sentence);
                }
            }
        }
        None => {
            if let Some(end) = end {
                errors.invalid(
                    &end_path,
                    end,
                    "may not be specified when `port` is not specified",
                );
            }
        }
    }
}

fn peer(peer: &Value, kept: &OldValues<'_>, path: &Path<'_>, errors: &mut Errors) {
    let mut named = 0;
    for field in ["podSelector", "namespaceSelector"] {
        if let Some(selector) = peer.field(field) {
            named += 1;
            label_selector(errors, &path.child(field), selector);
        }
    }
    match (peer.field("ipBlock"), named) {
        (Some(block), _) => {
            ip_block(block, kept, &path.child("ipBlock"), errors);
            if named > 0 {
                errors.forbidden(path, "may not specify both ipBlock and another peer");
            }
        }
        (None, 0) => errors.required(path, "must specify a peer"),
        (None, _) => {}
    }
}

fn ip_block(block: &Value, kept: &OldValues<'_>, path: &Path<'_>, errors: &mut Errors) {
    let (text, at) = (block.text("cidr"), path.child("cidr"));
    if text.is_empty() {
        return errors.required(&at, "");
    }
    net::cidr(errors, &at, text, kept);
    let Some(range) = net::parse_cidr(text) else {
        return;
    };
    let at = path.child("except");
    for (index, except) in block.items("except").iter().enumerate() {
        let (at, text) = (at.index(index), except.as_str().unwrap_or_default());
        net::cidr(errors, &at, text, kept);
        let Some(inner) = net::parse_cidr(text) else {
            continue;
        };
        if !range.contains(inner.network) || inner.written <= range.written {
            errors.invalid(&at, text, "must be a strict subset of `cidr`");
        }
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    #[test]
    fn networks_that_were_there_stay_valid_wherever_they_are_named() {
        let policy = |direction: &str, peers: &str, cidr: &str, except: &[&str]| {
            let block = json!({"cidr": cidr, "except": except});
            json!({"podSelector": {}, direction: [{peers: [{"ipBlock": block}]}]})
        };
        let now = policy("ingress", "from", "10.0.0.1/8", &["10.1.0.1/16"]);
        assert_eq!(
            causes(|errors| spec(&now, OldValues::NONE, errors)),
            [
                r#"spec.ingress[0].from[0].ipBlock.cidr: Invalid value: "10.0.0.1/8": must not have bits set beyond the prefix length"#,
                r#"spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: "10.1.0.1/16": must not have bits set beyond the prefix length"#,
            ]
        );
        let old = policy("egress", "to", "10.1.0.1/16", &["10.0.0.1/8"]);
        assert!(causes(|errors| spec(&now, &networks(&old), errors)).is_empty());
    }
}
