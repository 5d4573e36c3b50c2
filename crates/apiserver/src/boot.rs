//! What is there from the start: the default namespaces, the system's priority classes and the kubernetes Service with its endpoints,
//! created through the ordinary path.

use std::{net::IpAddr, sync::Arc};

use futures::FutureExt;
use http::HeaderMap;
use serde_json::{Value, json};

use crate::{
    admission::User,
    http::{
        call::{Call, FieldValidation, WriteOptions},
        negotiate::Form,
        path::ObjectPath,
        query::Query,
        write,
    },
    kinds::system_classes,
    server::ApiServer,
};

/// The port of the server, as the Service's `targetPort` and its endpoints name it (kube-apiserver: `--secure-port`).
const PORT: u16 = 6443;
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates what every cluster has.
pub(crate) fn run(server: &Arc<ApiServer>, service_ip: &str, advertise: &[IpAddr]) {
    for name in NAMESPACES {
        create(
            server,
            "",
            "namespaces",
            None,
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        );
    }
    for class in system_classes() {
        create(server, "scheduling.k8s.io", "priorityclasses", None, class);
    }
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP", "clusterIP": service_ip, "clusterIPs": [service_ip], "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": PORT}],
        },
    });
    create(server, "", "services", Some("default"), service);
    publish(server, advertise);
}

/// Publishes where the server is, in both forms. Both are the server's own: the labels keep mirroring and slicing away from them.
fn publish(server: &Arc<ApiServer>, advertise: &[IpAddr]) {
    let Some(first) = advertise.first() else {
        return;
    };
    let port = json!({"name": "https", "port": PORT, "protocol": "TCP"});
    let addresses: Vec<Value> = advertise.iter().map(|ip| json!({"ip": ip})).collect();
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": addresses, "ports": [&port]}],
    });
    create(server, "", "endpoints", Some("default"), endpoints);
    let endpoints: Vec<Value> = advertise
        .iter()
        .filter(|ip| ip.is_ipv4() == first.is_ipv4())
        .map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}}))
        .collect();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": if first.is_ipv4() { "IPv4" } else { "IPv6" }, "endpoints": endpoints, "ports": [port],
    });
    create(
        server,
        "discovery.k8s.io",
        "endpointslices",
        Some("default"),
        slice,
    );
}

fn create(
    server: &Arc<ApiServer>,
    group: &str,
    plural: &str,
    namespace: Option<&str>,
    mut object: Value,
) {
    let table = server.registry().table();
    let Some(row) = table.find(group, "v1", plural) else {
        return;
    };
    let user = User {
        name: "system:apiserver".into(),
        groups: vec!["system:authenticated".into(), "system:masters".into()],
        ..User::default()
    };
    let path = ObjectPath {
        group,
        version: "v1",
        plural,
        namespace,
        ..ObjectPath::default()
    };
    let call = Call::new(
        server.clone(),
        row.clone(),
        &path,
        user,
        Query::default(),
        HeaderMap::new(),
        Form::JSON,
    );
    let options = WriteOptions {
        dry_run: false,
        manager: "kube-apiserver".into(),
        validation: FieldValidation::Ignore,
        applies: false,
    };
    call.resource().behaviour.default(&mut object);
    let created = write::create(&call, &options, object).now_or_never();
    let created = created.expect("a write to memory does not wait");
    if let Err(status) = created {
        tracing::error!(plural, %status, "an object that every cluster has cannot be created");
    }
}
