//! Resolves the address of a webhook: a host by DNS, a service by its Service and endpoint objects.
//!
//! Pods are simulated: nothing listens at their addresses, and a call to one would only wait for its timeout. A service reaches a program
//! on this machine as type ExternalName (`localhost`), or without selector through Endpoints or EndpointSlices that name no pods.

use std::net::{IpAddr, SocketAddr};

use mullion_kinds::request::Lookup;
use mullion_kube_text::golang::quote;
use mullion_schema::tree::Tree;
use serde_json::Value;

/// The largest number of addresses of one webhook that are tried.
const MAX_ADDRESSES: usize = 8;

/// The reason why a webhook has no address to connect to.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EndpointError {
    /// DNS has no address of the host.
    #[error("dial tcp: lookup {0}: no such host")]
    NoHost(String),
    /// There is no such service.
    #[error("service {} not found", quote(.0))]
    NoService(String),
    /// The service has no such port.
    #[error("no service port {port} found for service {}", quote(.service))]
    NoPort {
        /// The port.
        port: u16,
        /// The name of the service.
        service: String,
    },
    /// The service has no endpoint.
    #[error("no endpoints available for service {}", quote(.0))]
    NoEndpoints(String),
    /// Only simulated pods are behind the service, named with its namespace.
    #[error(
        "service {} is backed by simulated pods, in which nothing listens: run the webhook on this machine and make the service type \
         ExternalName (externalName: localhost), or set the webhook's failurePolicy to Ignore",
        quote(.0)
    )]
    SimulatedPods(String),
}

/// Returns the addresses of a host in the order in which to try them.
pub(super) async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, EndpointError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found = tokio::net::lookup_host((host, port)).await;
    let found: Vec<SocketAddr> = match found {
        Ok(found) => found.take(MAX_ADDRESSES).collect(),
        Err(_) => Vec::new(),
    };
    if found.is_empty() {
        return Err(EndpointError::NoHost(host.to_owned()));
    }
    Ok(found)
}

/// Returns the addresses behind a service's port.
pub(super) async fn of_service(
    lookup: &dyn Lookup,
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<Vec<SocketAddr>, EndpointError> {
    let service = lookup.find("", "services", Some(namespace), name);
    let service = service.ok_or_else(|| EndpointError::NoService(name.to_owned()))?;
    let spec = &service["spec"];
    if spec.text("type") == "ExternalName" {
        return look_up(spec.text("externalName"), port).await;
    }
    let mut ports = spec.items("ports").iter();
    let Some(served) = ports.find(|served| served.integer("port") == Some(port.into())) else {
        return Err(EndpointError::NoPort {
            port,
            service: name.to_owned(),
        });
    };
    let endpoints = endpoints(lookup, namespace, name, served.text("name"));
    let reachable = endpoints.iter().filter(|endpoint| !endpoint.is_pod);
    let reachable: Vec<SocketAddr> = reachable
        .map(|endpoint| endpoint.address)
        .take(MAX_ADDRESSES)
        .collect();
    match (reachable.is_empty(), endpoints.is_empty()) {
        (false, _) => Ok(reachable),
        (true, true) => Err(EndpointError::NoEndpoints(name.to_owned())),
        (true, false) => Err(EndpointError::SimulatedPods(format!("{namespace}/{name}"))),
    }
}

struct Endpoint {
    address: SocketAddr,
    is_pod: bool,
}

impl Endpoint {
    fn of(address: &str, port: i64, target: &Value) -> Option<Self> {
        let address = SocketAddr::new(address.parse().ok()?, u16::try_from(port).ok()?);
        let is_pod = target.text("kind") == "Pod";
        Some(Endpoint { address, is_pod })
    }
}

/// Returns the ready endpoints of a port from all EndpointSlices, and from Endpoints that may have no slices.
fn endpoints(lookup: &dyn Lookup, namespace: &str, service: &str, port: &str) -> Vec<Endpoint> {
    let port_of = |object: &Value| {
        let mut ports = object.items("ports").iter();
        let served = ports.find(|served| served.text("name") == port)?;
        served.integer("port")
    };
    let mut found = Vec::new();
    for slice in lookup.list("discovery.k8s.io", "endpointslices", Some(namespace)) {
        let of = slice["metadata"]["labels"].text("kubernetes.io/service-name");
        let Some(port) = port_of(&slice).filter(|_| of == service) else {
            continue;
        };
        for endpoint in slice.items("endpoints") {
            if endpoint["conditions"]["ready"] == false {
                continue;
            }
            let addresses = endpoint.items("addresses").iter().filter_map(Value::as_str);
            let target = endpoint.get("targetRef").unwrap_or(&Value::Null);
            found.extend(addresses.filter_map(|address| Endpoint::of(address, port, target)));
        }
    }
    if let Some(endpoints) = lookup.find("", "endpoints", Some(namespace), service) {
        for subset in endpoints.items("subsets") {
            let Some(port) = port_of(subset) else {
                continue;
            };
            for address in subset.items("addresses") {
                let target = address.get("targetRef").unwrap_or(&Value::Null);
                found.extend(Endpoint::of(address.text("ip"), port, target));
            }
        }
    }
    found.sort_by_key(|endpoint| endpoint.address);
    found.dedup_by_key(|endpoint| endpoint.address);
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    /// Objects by group, plural and name, all in one namespace.
    struct Objects(Vec<(&'static str, &'static str, Value)>);

    impl Lookup for Objects {
        fn find(
            &self,
            group: &str,
            plural: &str,
            _: Option<&str>,
            name: &str,
        ) -> Option<Arc<Value>> {
            let mut all = self.list(group, plural, None).into_iter();
            all.find(|object| object["metadata"]["name"] == name)
        }

        fn list(&self, group: &str, plural: &str, _: Option<&str>) -> Vec<Arc<Value>> {
            let all = self.0.iter();
            let of_kind = all.filter(|(g, p, _)| *g == group && *p == plural);
            of_kind
                .map(|(_, _, object)| Arc::new(object.clone()))
                .collect()
        }
    }

    #[tokio::test]
    async fn a_service_leads_to_the_ready_endpoints_of_its_port_that_are_no_pods() {
        let slice = |name: &str, service: &str, address: &str, ready: bool, target: Value| {
            json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
                   "ports": [{"name": "metrics", "port": 1}, {"name": "https", "port": 9443}],
                   "endpoints": [{"addresses": [address], "conditions": {"ready": ready}, "targetRef": target}]})
        };
        let slices = "endpointslices";
        let group = "discovery.k8s.io";
        let objects = Objects(vec![
            (
                "",
                "services",
                json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "https", "port": 443}]}}),
            ),
            (
                group,
                slices,
                slice("a", "s", "192.0.2.1", true, Value::Null),
            ),
            (
                group,
                slices,
                slice("b", "s", "192.0.2.2", false, Value::Null),
            ),
            (
                group,
                slices,
                slice("c", "s", "192.0.2.3", true, json!({"kind": "Pod"})),
            ),
            (
                group,
                slices,
                slice("d", "other", "192.0.2.4", true, Value::Null),
            ),
            (
                "",
                "endpoints",
                json!({"metadata": {"name": "s"}, "subsets": [
                    {"addresses": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::5"}], "ports": [{"name": "https", "port": 9443}]}]}),
            ),
        ]);
        let found = of_service(&objects, "n", "s", 443).await;
        let wanted = ["192.0.2.1:9443", "[2001:db8::5]:9443"];
        assert_eq!(
            found,
            Ok(wanted.map(|address| address.parse().unwrap()).to_vec())
        );
        let refused = of_service(&objects, "n", "s", 80).await;
        assert_eq!(
            refused.map_err(|error| error.to_string()),
            Err("no service port 80 found for service \"s\"".to_owned())
        );
    }
}
