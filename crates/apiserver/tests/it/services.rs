//! Cluster IPs and node ports over the life of Services: taken once, kept on updates, given back by deletions, refusals and dry runs.

use std::time::Duration;

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

fn with_ip(name: &str, ip: &str) -> Value {
    service(name, json!({"clusterIP": ip, "ports": [{"port": 80}]}))
}

#[tokio::test]
async fn the_kubernetes_service_has_the_first_address_of_the_range() {
    let api = Api::new(Config {
        service_cidr: "172.20.0.0/16".parse().expect("a range"),
        ..Config::default()
    });
    assert_eq!(
        api.get("/api/v1/namespaces/default/services/kubernetes")
            .await
            .ok()["spec"]["clusterIP"],
        "172.20.0.1"
    );
    let other = api
        .post(SERVICES, service("web", json!({"ports": [{"port": 80}]})))
        .await
        .ok();
    assert!(
        other["spec"]["clusterIP"]
            .as_str()
            .is_some_and(|ip| ip.starts_with("172.20."))
    );
}

#[tokio::test]
async fn an_address_is_taken_until_its_service_is_deleted() {
    let api = Api::new(Config::default());
    api.post(SERVICES, with_ip("a", "10.96.7.7")).await.ok();
    let refusal = api
        .post(SERVICES, with_ip("b", "10.96.7.7"))
        .await
        .refused(422);
    assert_eq!(
        refusal,
        r#"Service "b" is invalid: spec.clusterIPs: Invalid value: ["10.96.7.7"]: failed to allocate IP 10.96.7.7: provided IP is already allocated"#
    );
    api.delete(&format!("{SERVICES}/a")).await.ok();
    api.post(SERVICES, with_ip("b", "10.96.7.7")).await.ok();
}

#[tokio::test]
async fn refused_writes_and_dry_runs_give_back_what_they_took() {
    let api = Api::new(Config::default());
    let invalid = service(
        "Bad_Name",
        json!({"type": "NodePort", "clusterIP": "10.96.7.7", "ports": [{"port": 80, "nodePort": 30500}]}),
    );
    api.post(SERVICES, invalid.clone()).await.refused(422);
    let mut valid = invalid;
    valid["metadata"]["name"] = "web".into();
    api.post(&format!("{SERVICES}?dryRun=All"), valid.clone())
        .await
        .ok();
    api.post(SERVICES, valid.clone()).await.ok();
    assert_eq!(
        api.post(SERVICES, valid).await.status,
        422,
        "a second one wants the same address"
    );
}

#[tokio::test]
async fn a_name_that_no_address_can_refer_to_is_refused_for_the_address() {
    let api = Api::new(Config::default());
    let why = api
        .post(SERVICES, with_ip("", "10.96.7.7"))
        .await
        .refused(422);
    assert_eq!(
        why,
        r#"Service "" is invalid: spec.clusterIPs: Invalid value: ["10.96.7.7"]: failed to allocate IP 10.96.7.7: IPAddress.networking.k8s.io "10.96.7.7" is invalid: spec.parentRef.name: Required value"#
    );
    let any = |name: &str| service(name, json!({"ports": [{"port": 80}]}));
    let why = api.post(SERVICES, any("a%b")).await.refused(422);
    let start = r#"Service "a%b" is invalid: spec.clusterIPs: Invalid value: [""]: failed to allocate IP: IPAddress.networking.k8s.io "10.96."#;
    let end = r#" is invalid: spec.parentRef.name: Invalid value: "a%b": may not contain '%'"#;
    assert!(why.starts_with(start) && why.ends_with(end), "{why}");
    // An address that is taken is not even looked for, but one outside of the range is refused first.
    api.post(SERVICES, with_ip("a", "10.96.7.7")).await.ok();
    let taken = api.post(SERVICES, with_ip("", "10.96.7.7")).await;
    let taken = taken.refused(422);
    assert!(taken.ends_with("parentRef.name: Required value"), "{taken}");
    let outside = api.post(SERVICES, with_ip("", "10.99.7.7")).await;
    let outside = outside.refused(422);
    assert!(
        outside.contains("does not match the current range"),
        "{outside}"
    );
    // No address is taken in a dry run, so the Service itself is validated.
    let dry = api.post(&format!("{SERVICES}?dryRun=All"), any("")).await;
    assert_eq!(
        dry.refused(422),
        r#"Service "" is invalid: metadata.name: Required value: name or generateName is required"#
    );
}

#[tokio::test]
async fn an_update_that_leaves_allocated_values_out_keeps_them() {
    let api = Api::new(Config::default());
    let created = api
        .post(
            SERVICES,
            service(
                "web",
                json!({"type": "NodePort", "ports": [{"name": "http", "port": 80}]}),
            ),
        )
        .await
        .ok();
    let update = service(
        "web",
        json!({"type": "NodePort", "ports": [{"name": "http", "port": 81}, {"name": "more", "port": 82}]}),
    );
    let updated = api.put(&format!("{SERVICES}/web"), update).await.ok();
    assert_eq!(updated["spec"]["clusterIP"], created["spec"]["clusterIP"]);
    assert_eq!(
        updated["spec"]["ports"][0]["nodePort"],
        created["spec"]["ports"][0]["nodePort"]
    );
    assert_ne!(
        updated["spec"]["ports"][1]["nodePort"],
        updated["spec"]["ports"][0]["nodePort"]
    );
}

#[tokio::test]
async fn node_ports_come_and_go_with_the_type() {
    let api = Api::new(Config::default());
    let path = format!("{SERVICES}/web");
    api.post(
        SERVICES,
        service(
            "web",
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30501}]}),
        ),
    )
    .await
    .ok();
    let plain = api
        .merge(&path, json!({"spec": {"type": "ClusterIP"}}))
        .await
        .ok();
    assert_eq!(plain["spec"]["ports"][0].get("nodePort"), None);
    assert_eq!(plain["spec"].get("externalTrafficPolicy"), None);
    api.post(
        SERVICES,
        service(
            "other",
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30501}]}),
        ),
    )
    .await
    .ok();
    let balancer = json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}});
    let balancer = api.merge(&path, balancer).await.ok();
    let ports = [
        &balancer["spec"]["ports"][0]["nodePort"],
        &balancer["spec"]["healthCheckNodePort"],
    ];
    assert!(
        ports.iter().all(|port| port
            .as_i64()
            .is_some_and(|port| (30_000..32_768).contains(&port) && port != 30_501)),
        "{ports:?}"
    );
}

#[tokio::test]
async fn one_node_port_serves_one_port_of_two_protocols() {
    let api = Api::new(Config::default());
    let ports = json!([{"name": "t", "port": 53, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}]);
    let dns = api
        .post(
            SERVICES,
            service("dns", json!({"type": "NodePort", "ports": ports})),
        )
        .await
        .ok();
    assert_eq!(
        dns["spec"]["ports"][0]["nodePort"],
        dns["spec"]["ports"][1]["nodePort"]
    );
}

#[tokio::test]
async fn a_full_range_is_an_internal_error() {
    let api = Api::new(Config {
        service_cidr: "10.0.0.0/29".parse().expect("a range"),
        ..Config::default()
    });
    for name in ["a", "b", "c", "d", "e"] {
        api.post(SERVICES, service(name, json!({"ports": [{"port": 80}]})))
            .await
            .ok();
    }
    let refusal = api
        .post(SERVICES, service("f", json!({"ports": [{"port": 80}]})))
        .await
        .refused(500);
    assert_eq!(
        refusal,
        "Internal error occurred: failed to allocate a serviceIP: range is full"
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_server_looks_after_comes_back_when_it_is_deleted() {
    const OFTEN: [&str; 4] = [
        "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking",
        "/api/v1/namespaces/default/services/kubernetes",
        "/api/v1/namespaces/default/endpoints/kubernetes",
        "/apis/networking.k8s.io/v1/servicecidrs/kubernetes",
    ];
    const RARELY: [&str; 2] = [
        "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/service-accounts",
        "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations/exempt",
    ];
    let api = Api::new(Config {
        advertise: vec!["10.0.0.7".parse().expect("an address")],
        ..Config::default()
    });
    for path in OFTEN.iter().chain(&RARELY) {
        api.delete(path).await.ok();
    }
    tokio::time::sleep(Duration::from_secs(11)).await;
    for path in OFTEN {
        api.get(path).await.ok();
    }
    for path in RARELY {
        api.get(path).await.refused(404);
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    for path in RARELY {
        api.get(path).await.ok();
    }
}

#[tokio::test]
async fn the_priority_classes_of_the_system_are_not_deleted() {
    let api = Api::new(Config::default());
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical";
    assert_eq!(
        api.delete(path).await.refused(403),
        r#"priorityclasses.scheduling.k8s.io "system-node-critical" is forbidden: this is a system priority class and cannot be deleted"#
    );
}
