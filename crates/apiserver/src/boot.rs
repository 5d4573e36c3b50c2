//! Creates the objects that every cluster has: the default namespaces, roles and bindings, the system's priority classes, flow control,
//! the range of Services, the `kubernetes` Service with its endpoints, and the ConfigMaps with the CA of client certificates and with the
//! start of token tracking. A restart creates only what is missing. What kube-apiserver restores while it runs is restored here as well
//! ([`keep`]); roles and priority classes are not.

mod roles;

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use http::HeaderMap;
use mullion_kinds::{
    ServiceRange, flowcontrol, request::Lookup, services::objects, system_classes,
};
use mullion_store::Key;
use serde_json::{Value, json};

use crate::{
    aggregation,
    client_authority::{self, Authorities},
    flow_schemas,
    http::{
        call::{Call, WriteOptions},
        path::ObjectPath,
        write,
    },
    own,
    registry::Row,
    request::query::Query,
    service_range,
    state::ApiServer,
    token_tracking,
};

/// How often the Service, its range and the APIServices are restored ([`RARELY`]: namespaces and flow control).
const OFTEN: Duration = Duration::from_secs(10);
const RARELY: Duration = Duration::from_secs(60);
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The facts about the cluster that some of the objects contain.
pub(crate) struct Seeds {
    /// The range of cluster IPs.
    pub(crate) services: ServiceRange,
    /// The addresses at which pods reach the server.
    pub(crate) advertise: Vec<IpAddr>,
    /// The port at which pods reach the server.
    pub(crate) port: u16,
    /// The CAs of clients and front proxies.
    pub(crate) authorities: Authorities,
}

/// Creates the objects that every cluster has.
pub(crate) async fn run(server: &Arc<ApiServer>, seeds: &Seeds) {
    let services = &seeds.services;
    // First of all: the addresses of stored Services must be taken before anything below allocates one.
    adopt_services(server);
    adopt_addresses(server).await;
    create_namespaces(server).await;
    roles::run(server).await;
    for class in system_classes() {
        create(
            server,
            "scheduling.k8s.io",
            "priorityclasses",
            None,
            class,
            &[],
        )
        .await;
    }
    create_range(server, services).await;
    service_range::settle(server, services).await;
    create_flow_control(server).await;
    // After the schemas, so that clients never see one without its condition.
    flow_schemas::settle(server).await;
    create_own_service(server, seeds).await;
    tell_client_authority(server, seeds).await;
    tell_token_tracking(server).await;
    tell_what_is_served(server, |_| true).await;
}

/// Restores deleted objects until the server is dropped, at kube-apiserver's intervals.
pub(crate) async fn keep(server: Weak<ApiServer>, seeds: Seeds) {
    for round in 1.. {
        tokio::time::sleep(OFTEN).await;
        let Some(server) = server.upgrade() else {
            return;
        };
        restore(&server, &seeds).await;
        if round % (RARELY.as_secs() / OFTEN.as_secs()) == 0 {
            // Users cannot delete these for good, as in kube-apiserver (system namespaces controller).
            create_namespaces(&server).await;
            create_flow_control(&server).await;
        }
    }
}

/// Restores the objects that are checked every few seconds.
async fn restore(server: &Arc<ApiServer>, seeds: &Seeds) {
    create_range(server, &seeds.services).await;
    create_own_service(server, seeds).await;
    tell_client_authority(server, seeds).await;
    tell_token_tracking(server).await;
    // The APIServices of built-in groups are created once, at the start.
    tell_what_is_served(server, Row::is_defined).await;
}

async fn create_namespaces(server: &Arc<ApiServer>) {
    for name in NAMESPACES {
        create(
            server,
            "",
            "namespaces",
            None,
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            &[],
        )
        .await;
    }
}

async fn tell_client_authority(server: &Arc<ApiServer>, seeds: &Seeds) {
    if let Some(map) = client_authority::wanted(server, &seeds.authorities) {
        let namespace = Some(client_authority::NAMESPACE);
        create(server, "", "configmaps", namespace, map, &["data"]).await;
    }
}

async fn tell_token_tracking(server: &Arc<ApiServer>) {
    if let Some(map) = token_tracking::wanted(server) {
        let namespace = Some(token_tracking::NAMESPACE);
        create(server, "", "configmaps", namespace, map, &["data"]).await;
    }
}

async fn create_range(server: &Arc<ApiServer>, services: &ServiceRange) {
    let ranges = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": [services.to_string()]},
    });
    create(
        server,
        "networking.k8s.io",
        "servicecidrs",
        None,
        ranges,
        &[],
    )
    .await;
}

async fn create_flow_control(server: &Arc<ApiServer>) {
    let levels = flowcontrol::levels().map(|level| ("prioritylevelconfigurations", level));
    let schemas = flowcontrol::schemas().map(|schema| ("flowschemas", schema));
    for (plural, object) in levels.chain(schemas) {
        create(server, flowcontrol::GROUP, plural, None, object, &[]).await;
    }
}

/// Creates the Service through which pods reach this server, and its endpoints.
async fn create_own_service(server: &Arc<ApiServer>, seeds: &Seeds) {
    let service_ip = seeds.services.first().to_string();
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP", "clusterIP": service_ip, "clusterIPs": [service_ip], "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": seeds.port}],
        },
    });
    create(server, "", "services", Some("default"), service, &[]).await;
    publish(server, &seeds.advertise, seeds.port).await;
}

/// Creates the missing APIServices.
async fn tell_what_is_served(server: &Arc<ApiServer>, which: impl Fn(&Row) -> bool) {
    const PLURAL: &str = "apiservices";
    for (name, object) in aggregation::wanted(&server.registry().table(), which) {
        if server
            .registry()
            .find(aggregation::GROUP, PLURAL, None, &name)
            .is_some()
        {
            continue;
        }
        create(server, aggregation::GROUP, PLURAL, None, object, &[]).await;
    }
}

/// Marks the addresses and ports of the stored Services as allocated, so that no other Service gets them.
fn adopt_services(server: &Arc<ApiServer>) {
    let Some(call) = call(server, "", "services", None) else {
        return;
    };
    let Some(allocator) = call.resource().behaviour.allocator() else {
        return;
    };
    for object in call.row.collection.snapshot(None).objects {
        let mut service = call.row.served(&object);
        // Not fatal: the cluster must start even if a Service cannot keep its address.
        if let Err(status) = allocator.adopt(&mut service) {
            tracing::warn!(service = object.key().as_str(), %status, "a Service cannot keep its address or port");
        }
    }
}

/// Creates and deletes IPAddress objects to match the Services, and marks those that users created as allocated.
async fn adopt_addresses(server: &Arc<ApiServer>) {
    let (Some(services), Some(call)) = (
        call(server, "", "services", None),
        call(server, objects::GROUP, objects::PLURAL, None),
    ) else {
        return;
    };
    let mut companions = Vec::new();
    let mut given = HashSet::new();
    for object in services.row.collection.snapshot(None).objects {
        let service = services.row.served(&object);
        for ip in objects::addresses(&service) {
            let name = ip.to_string();
            if call.row.collection.get(call.key(&name).as_str()).is_none() {
                companions.push(objects::of_service(ip, &service));
            }
            given.insert(name);
        }
    }
    for object in call.row.collection.snapshot(None).objects {
        let name = object.key().name();
        if given.contains(name) {
            continue;
        }
        let (label, allocator) = objects::MANAGED_BY;
        if object.meta().label(label) == Some(allocator) {
            companions.push(objects::gone(name.to_owned()));
            continue;
        }
        let (ctx, mut served) = (call.ctx(false), call.row.served(&object));
        if let Ok(taken) = call.resource().allocate(&ctx, &mut served, None) {
            taken.commit();
        }
    }
    write::companions::settle(server, companions, server.now()).await;
}

/// Publishes the server's addresses as Endpoints and as an EndpointSlice. The labels keep the mirroring and slicing controllers away.
async fn publish(server: &Arc<ApiServer>, advertise: &[IpAddr], port: u16) {
    let Some(first) = advertise.first() else {
        return;
    };
    let port = json!({"name": "https", "port": port, "protocol": "TCP"});
    let addresses: Vec<Value> = advertise.iter().map(|ip| json!({"ip": ip})).collect();
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": addresses, "ports": [&port]}],
    });
    let said = &["subsets"];
    create(server, "", "endpoints", Some("default"), endpoints, said).await;
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
        &["endpoints", "ports"],
    )
    .await;
}

/// Creates an object, or updates the fields in `renewed` if it exists.
async fn create(
    server: &Arc<ApiServer>,
    group: &str,
    plural: &str,
    namespace: Option<&str>,
    mut object: Value,
    renewed: &[&str],
) {
    let Some(call) = call(server, group, plural, namespace) else {
        return;
    };
    // Written like a client's object, so that managedFields show who maintains it.
    let options = WriteOptions::without_query(match group {
        flowcontrol::GROUP => flowcontrol::MANAGER,
        _ => "kube-apiserver",
    });
    call.resource().behaviour.default(&mut object);
    let key = Key::new(
        namespace,
        object["metadata"]["name"].as_str().unwrap_or_default(),
    );
    let done = if call.row.collection.get(key.as_str()).is_none() {
        write::create(&call, &options, object).await
    } else {
        let renew = |stored: &mut Value| {
            // Without a change nothing is stored, or every round would cause an event.
            let changed = renewed.iter().any(|field| stored[*field] != object[*field]);
            for field in renewed {
                stored[*field] = object[*field].clone();
            }
            Ok(changed)
        };
        write::modify(&call.row, call.now, &key, false, renew).await
    };
    if let Err(status) = done {
        tracing::error!(plural, %status, "an object that every cluster has cannot be created");
    }
}

/// Builds a call for a collection on the server's own behalf.
fn call(
    server: &Arc<ApiServer>,
    group: &str,
    plural: &str,
    namespace: Option<&str>,
) -> Option<Call> {
    let path = ObjectPath {
        group,
        version: "v1",
        plural,
        namespace,
        ..ObjectPath::default()
    };
    own::call(server, &path, Query::default(), HeaderMap::new())
}
