//! Validates DNS settings, host names, host aliases, and ports on the host's network.

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{
        check,
        net::{self, OldValues},
    },
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::Scope;
use crate::fields::{Field, Format, Items, Text, always};

const MAX_NAMESERVERS: usize = 3;
// These limits come from name resolution in Linux's C library.
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;
const MAX_HOSTNAME_OVERRIDE: usize = 64;

/// An entry of `spec.hostAliases`.
pub(super) const HOST_ALIAS: &[Field] = &[
    always("ip", Text(host_ip)),
    always("hostnames", Items(&Format(names::dns_subdomain))),
];

/// Validates `spec.dnsConfig`.
pub(super) fn validate_dns(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let config = spec.field("dnsConfig");
    let nameservers = config.map_or(&[][..], |config| config.items("nameservers"));
    if spec.text("dnsPolicy") == "None" {
        if config.is_none() {
            return errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if nameservers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return errors.required(&path.child("nameservers"), detail);
        }
    }
    let Some(config) = config else { return };
    let at = path.child("nameservers");
    if nameservers.len() > MAX_NAMESERVERS {
        errors.invalid(
            &at,
            nameservers.to_vec(),
            format!("must not have more than {MAX_NAMESERVERS} nameservers"),
        );
    }
    for (index, server) in nameservers.iter().filter_map(Value::as_str).enumerate() {
        net::ip(errors, &at.index(index), server, OldValues::NONE);
    }
    searches(config.items("searches"), &path.child("searches"), errors);
    let options = path.child("options");
    for (index, _) in config
        .items("options")
        .iter()
        .enumerate()
        .filter(|(_, option)| option.text("name").is_empty())
    {
        errors.required(&options.index(index), "must not be empty");
    }
}

fn searches(searches: &[Value], path: &Path<'_>, errors: &mut Errors) {
    if searches.len() > MAX_SEARCHES {
        errors.invalid(
            path,
            searches.to_vec(),
            format!("must not have more than {MAX_SEARCHES} search paths"),
        );
    }
    let texts = || searches.iter().filter_map(Value::as_str);
    if texts().map(str::len).sum::<usize>() + searches.len().saturating_sub(1)
        > MAX_SEARCH_CHARACTERS
    {
        let detail = format!(
            "must not have more than {MAX_SEARCH_CHARACTERS} characters (including spaces) in the search list"
        );
        errors.invalid(path, searches.to_vec(), detail);
    }
    // A lone dot is the root domain, which the check of names would refuse.
    for (index, search) in texts().enumerate().filter(|(_, search)| *search != ".") {
        // A trailing dot makes the name absolute, which is allowed here.
        let search = search.strip_suffix('.').unwrap_or(search);
        check(
            errors,
            &path.index(index),
            search,
            names::dns_subdomain_with_underscore(search),
        );
    }
}

fn host_ip(errors: &mut Errors, path: &Path<'_>, ip: &str) {
    net::ip(errors, path, ip, OldValues::NONE);
}

/// Validates `spec.hostnameOverride`, which is the whole host name, so no other field may set a part of it.
pub(super) fn validate_hostname_override(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(name) = spec.field("hostnameOverride").and_then(Value::as_str) else {
        return;
    };
    let at = path.child("hostnameOverride");
    if spec.flag("setHostnameAsFQDN") {
        errors.forbidden(&at, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.flag("hostNetwork") {
        errors.forbidden(&at, "may not be specified when hostNetwork is true");
    }
    if name.len() > MAX_HOSTNAME_OVERRIDE {
        errors.too_long(&at, MAX_HOSTNAME_OVERRIDE);
    }
    check(errors, &at, name, names::dns_subdomain(name));
}

/// Checks that with `hostNetwork` every container port equals its host port. Templates may leave the host port to the Pod's defaults.
pub(super) fn validate_host_network(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    if !scope.spec.flag("hostNetwork") {
        return;
    }
    let containers = path.child("containers");
    for (index, container) in scope.spec.items("containers").iter().enumerate() {
        let at = containers.index(index);
        let ports = at.child("ports");
        for (port_index, port) in container.items("ports").iter().enumerate() {
            let host_port = port.integer("hostPort").unwrap_or(0);
            // The defaults of a Pod set its host ports later, so a template may leave them out.
            if (scope.is_pod() || host_port != 0)
                && host_port != port.integer("containerPort").unwrap_or(0)
            {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(
                    &ports.index(port_index).child("hostPort"),
                    host_port,
                    detail,
                );
            }
        }
    }
}
