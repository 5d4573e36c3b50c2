//! `nodes/proxy`, `pods/proxy` and `services/proxy`: requests that a real kube-apiserver forwards to a node, a pod or an endpoint of a
//! Service.
//!
//! Nodes and pods are simulated, so no process can take a forwarded request. Checks that kube-apiserver makes before it connects give the
//! same errors here; every other request ends with the error for a target that does not listen.

use std::{future::Future, net::IpAddr, pin::Pin, sync::Arc};

use axum::body::Body;
use http::{Method, Response};
use mullion_kube_text::{golang::quote, status::Status};
use mullion_schema::tree::Tree;
use serde_json::{Value, json};

use crate::http::{call::Call, write};

/// Handles the `proxy` subresource of nodes, pods and services.
pub(crate) fn serve<'a>(
    call: &'a Call,
    _: Method,
    _: Body,
) -> Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send + 'a>> {
    Box::pin(async move {
        if call.query.get("dryRun").is_some() {
            return Err(Status::bad_request("dryRun is not supported"));
        }
        let kind = format!("{}ProxyOptions", call.resource().kind);
        let mut options = json!({"kind": kind, "apiVersion": "v1"});
        if !call.proxied.is_empty() {
            options["path"] = call.proxied.as_str().into();
        }
        // Before the target is looked for, as for every CONNECT: admission may refuse the proxy itself.
        write::admit_connection(call, options).await?;
        Err(match &*call.resource().plural {
            "pods" => of_pod(call),
            "services" => of_service(call),
            _ => of_node(call),
        }
        .unwrap_or_else(|status| status))
    })
}

/// The target of a proxy request: `name`, `name:port` or `scheme:name:port`.
struct Target<'a> {
    name: &'a str,
    port: &'a str,
}

impl<'a> Target<'a> {
    fn of(call: &'a Call) -> Result<Self, Status> {
        let parts: Vec<&str> = call.name.split(':').collect();
        let (scheme, name, port) = match parts.as_slice() {
            [name] => ("", *name, ""),
            [name, port] => ("", *name, *port),
            [scheme, name, port] => (*scheme, *name, *port),
            _ => ("", "", ""),
        };
        if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
            let kind = call.resource().kind.to_lowercase();
            let why = format!("invalid {kind} request {}", quote(&call.name));
            return Err(Status::bad_request(why));
        }
        Ok(Target { name, port })
    }

    /// Finds the object with the target's name.
    fn find(&self, call: &Call, plural: &str) -> Result<Arc<Value>, Status> {
        let ctx = call.ctx(false);
        let found = ctx
            .lookup
            .find("", plural, call.namespace.as_deref(), self.name);
        // Missing Endpoints go by the kind in the path, too: kube-apiserver's storage takes the name of the request's resource.
        found.ok_or_else(|| Status::core_not_found(&call.resource().plural, self.name))
    }
}

fn unavailable(why: String) -> Status {
    Status::new(503, "ServiceUnavailable", why)
}

fn nobody_listens(what: &str, name: &str) -> Status {
    unavailable(format!(
        "error trying to reach service: {what} {} is simulated: nothing listens there",
        quote(name)
    ))
}

fn of_node(call: &Call) -> Result<Status, Status> {
    let target = Target::of(call)?;
    target.find(call, "nodes")?;
    Ok(nobody_listens("node", target.name))
}

fn of_pod(call: &Call) -> Result<Status, Status> {
    let target = Target::of(call)?;
    let pod = target.find(call, "pods")?;
    let address = pod["status"].text("podIP").parse();
    let is_reachable = address.is_ok_and(|address: IpAddr| {
        // kube-apiserver (IsProxyableIP) forwards to no address that could lead back to itself.
        let is_nobody = address.is_loopback() || address.is_multicast();
        !is_nobody && !address.is_unspecified()
    });
    if is_reachable {
        Ok(nobody_listens("pod", target.name))
    } else {
        Err(Status::bad_request("address not allowed"))
    }
}

fn of_service(call: &Call) -> Result<Status, Status> {
    let target = Target::of(call)?;
    let mut port = target.port.to_owned();
    // A number is a port of the Service; the endpoints know its port only by name.
    if let Ok(number) = target.port.parse::<i64>() {
        let service = target.find(call, "services")?;
        let mut ports = service["spec"].items("ports").iter();
        let known = ports.find(|port| port.integer("port") == Some(number));
        let known = known.ok_or_else(|| {
            let name = quote(target.name);
            unavailable(format!("no service port {number} found for service {name}"))
        })?;
        known.text("name").clone_into(&mut port);
    }
    let endpoints = target.find(call, "endpoints")?;
    let subsets = endpoints.items("subsets");
    let nobody = |name: &str| {
        unavailable(format!(
            "no endpoints available for service {}",
            quote(name)
        ))
    };
    if subsets.is_empty() {
        return Err(nobody(target.name));
    }
    let is_pod = |address: &Value| is_address_of_pod(call, address);
    let serves = |subset: &Value| {
        let mut ports = subset.items("ports").iter();
        ports.any(|other| other.text("name") == port)
            && subset.items("addresses").iter().any(is_pod)
    };
    if subsets.iter().any(serves) {
        Ok(nobody_listens("service", target.name))
    } else {
        Err(nobody(&call.name))
    }
}

/// Returns whether an address of Endpoints is that of a pod in the request's namespace; kube-apiserver connects to no other.
fn is_address_of_pod(call: &Call, address: &Value) -> bool {
    let Some(target) = address.field("targetRef") else {
        return false;
    };
    let namespace = call.namespace.as_deref();
    if namespace != Some(target.text("namespace")) {
        return false;
    }
    let ctx = call.ctx(false);
    let pod = ctx.lookup.find("", "pods", namespace, target.text("name"));
    pod.is_some_and(|pod| {
        let mut addresses = pod["status"].items("podIPs").iter();
        addresses.any(|other| other.text("ip") == address.text("ip"))
    })
}
