//! Error messages of kube-apiserver's CEL libraries, where the kube-cel crate has other ones.

use kube_cel::cel::Value;
use mullion_kube_text::golang::{address, quote};

/// Returns kube-apiserver's message for a function that refused its arguments, where it differs.
pub(super) fn of(function: &str, arguments: &[Value]) -> Option<String> {
    let Some(Value::String(text)) = arguments.first() else {
        return None;
    };
    match function {
        "ip" | "ip.isCanonical" | "containsIP" => address_refused(text),
        "cidr" | "containsCIDR" => network_refused(text),
        _ => None,
    }
}

fn address_refused(text: &str) -> Option<String> {
    let shown = quote(text);
    if let Some(why) = address::fault(text) {
        let what = "parse error during conversion from string";
        return Some(format!("IP Address {shown} {what}: {why}"));
    }
    if text.contains('%') {
        return Some(format!("IP address {shown} with zone value is not allowed"));
    }
    address::is_mapped(text).then(|| format!("IPv4-mapped IPv6 address {shown} is not allowed"))
}

fn network_refused(text: &str) -> Option<String> {
    let what = "network address parse error during conversion from string";
    if let Some(why) = address::network_fault(text) {
        return Some(format!("{what}: {what}: {why}"));
    }
    let address = text.split('/').next().unwrap_or_default();
    address::is_mapped(address).then(|| {
        let shown = quote(address);
        format!("{what}: IPv4-mapped IPv6 address {shown} is not allowed")
    })
}
