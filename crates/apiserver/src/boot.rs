//! What is there from the start: the default namespaces, the system's priority classes and the kubernetes Service, created through the ordinary path.

use std::sync::Arc;

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

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates what every cluster has.
pub(crate) fn run(server: &Arc<ApiServer>, service_ip: &str) {
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
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
    });
    create(server, "", "services", Some("default"), service);
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
