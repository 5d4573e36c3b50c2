//! What kube-apiserver's libraries say of values that they refuse; the kube-cel crate has words of its own.

use kube_cel::cel::Value;

use crate::{
    field::quote,
    golang::{address, semver},
};

/// The sentence for a function that has refused its arguments, where one is known.
pub(super) fn of(function: &str, arguments: &[Value]) -> Option<String> {
    let Some(Value::String(text)) = arguments.first() else {
        return None;
    };
    match function {
        "semver" => match arguments.get(1) {
            Some(Value::Bool(true)) => semver::fault(&normal(text)),
            _ => semver::fault(text),
        },
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

/// A version without its `v`, with all three numbers and without leading zeros.
fn normal(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (numbers, rest) = match text.find(['-', '+']) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let plain = |number: &str| match number.trim_start_matches('0') {
        "" if number.is_empty() => String::new(),
        "" => "0".to_owned(),
        number => number.to_owned(),
    };
    let mut numbers: Vec<String> = numbers.split('.').map(plain).collect();
    while numbers.len() < 3 {
        numbers.push("0".to_owned());
    }
    numbers.join(".") + rest
}
