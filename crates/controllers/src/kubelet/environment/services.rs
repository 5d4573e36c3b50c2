//! The variables by which a container finds Services, also in the form of Docker links (kubelet:
//! `getServiceEnvVarMap` and the package envvars).

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};

use super::Variables;

/// Returns the variables of a container of `pod` that was started at `started_at`. They cover the Services that
/// existed by then in the pod's namespace, unless the pod disables service links, and `default/kubernetes`, unless
/// the namespace has a Service of that name.
pub(super) fn variables(pod: &Pod, services: &[Arc<Service>], started_at: Timestamp) -> Variables {
    let namespace = pod.metadata.namespace.as_deref();
    let spec = pod.spec.as_ref();
    let links = spec.and_then(|spec| spec.enable_service_links) != Some(false);
    let mut by_name: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        let meta = &service.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let made = meta.creation_timestamp.as_ref();
        let was_there = made.is_none_or(|made| made.0 <= started_at);
        if address(service).is_none() || !was_there {
            continue;
        }
        if meta.namespace.as_deref() == Some("default") && name == "kubernetes" {
            // A Service of that name in the pod's own namespace has precedence, whichever of the two comes first.
            by_name.entry(name).or_insert(service);
        } else if meta.namespace.as_deref() == namespace && links {
            by_name.insert(name, service);
        }
    }
    let mut variables = Variables::new();
    for (name, service) in by_name {
        add_variables(name, service, &mut variables);
    }
    variables
}

/// Returns the cluster IP of a Service, or `None` if it has none.
fn address(service: &Service) -> Option<&str> {
    let address = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!address.is_empty() && address != "None").then_some(address)
}

fn add_variables(name: &str, service: &Service, variables: &mut Variables) {
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_deref());
    let ports = ports.unwrap_or_default();
    let (Some(ip), Some(first)) = (address(service), ports.first()) else {
        return;
    };
    let prefix = upper(name);
    let mut add = |name: String, value: String| variables.insert(name, value);
    add(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
    add(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let name = format!("{prefix}_SERVICE_PORT_{}", upper(name));
            add(name, port.port.to_string());
        }
    }
    // From here on the names are those that Docker's container links defined.
    add(format!("{prefix}_PORT"), url(ip, first));
    for port in ports {
        let protocol = protocol(port);
        let name = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        add(format!("{name}_PROTO"), protocol.to_lowercase());
        add(format!("{name}_PORT"), port.port.to_string());
        add(format!("{name}_ADDR"), ip.to_owned());
        add(name, url(ip, port));
    }
}

fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

fn url(ip: &str, port: &ServicePort) -> String {
    let host = match ip.parse() {
        Ok(IpAddr::V6(_)) => format!("[{ip}]"),
        _ => ip.to_owned(),
    };
    format!("{}://{host}:{}", protocol(port).to_lowercase(), port.port)
}

/// Returns the name of a Service or port as a part of a variable's name.
fn upper(name: &str) -> String {
    let upper = name.replace(['-', '.'], "_").to_uppercase();
    if upper.starts_with(|c: char| c.is_ascii_digit()) {
        format!("_{upper}")
    } else {
        upper
    }
}
