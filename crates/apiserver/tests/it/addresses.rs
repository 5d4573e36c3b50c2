//! The IPAddress objects of Services: they come, go and return with the Services.

use std::path::Path;

use mullion_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

use crate::api::Api;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const RANGE: &str = "/apis/networking.k8s.io/v1/servicecidrs/kubernetes";

fn service(name: &str, ip: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"clusterIP": ip, "ports": [{"port": 80}]}})
}

fn address(ip: &str) -> Value {
    let parent = json!({"resource": "gateways", "group": "example.com", "name": "g"});
    json!({"metadata": {"name": ip}, "spec": {"parentRef": parent}})
}

async fn names(api: &Api) -> Vec<String> {
    let list = api.get(ADDRESSES).await.ok();
    let items = list["items"].as_array().expect("a list").iter();
    let name = |item: &Value| {
        item["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    items.map(name).collect()
}

async fn open(directory: &Path) -> (std::sync::Arc<ApiServer>, Api) {
    let server = ApiServer::open(Config::default(), directory).await;
    let server = server.expect("the directory can be used");
    let api = Api::of(&server);
    (server, api)
}

#[tokio::test]
async fn an_address_comes_with_a_service_and_goes_with_it() {
    let api = Api::new(Config::default());
    assert_eq!(names(&api).await, ["10.96.0.1"]);
    let made = api.post(SERVICES, service("web", "10.96.7.7")).await.ok();
    let address = api.get(&format!("{ADDRESSES}/10.96.7.7")).await.ok();
    assert_eq!(
        address["spec"],
        json!({"parentRef": {"resource": "services", "namespace": "default", "name": "web"}})
    );
    assert_eq!(
        address["metadata"]["labels"],
        json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"})
    );
    let owner = &address["metadata"]["managedFields"][0];
    assert_eq!(
        (&owner["manager"], &owner["operation"]),
        (&json!("kube-apiserver"), &json!("Update"))
    );
    assert_eq!(
        owner["fieldsV1"]["f:spec"]["f:parentRef"]["f:name"],
        json!({})
    );
    let number = |object: &Value| -> u64 {
        let revision = object["metadata"]["resourceVersion"].as_str();
        revision.expect("a revision").parse().expect("a number")
    };
    assert!(number(&address) < number(&made));
    let table = api.table(&format!("{ADDRESSES}/10.96.7.7")).await;
    assert_eq!(table["rows"][0]["cells"][1], "services/default/web");
    let external = json!({"spec": {"type": "ExternalName", "externalName": "a.example.com", "clusterIP": null, "clusterIPs": null}});
    api.merge(&format!("{SERVICES}/web"), external).await.ok();
    assert_eq!(names(&api).await, ["10.96.0.1"]);
    let back = json!({"spec": {"type": "ClusterIP", "externalName": null}});
    let changed = api.merge(&format!("{SERVICES}/web"), back).await.ok();
    let ip = changed["spec"]["clusterIP"].as_str().expect("an address");
    assert!(names(&api).await.contains(&ip.to_owned()));
    let headless = json!({"metadata": {"name": "none"}, "spec": {"clusterIP": "None"}});
    api.post(SERVICES, headless).await.ok();
    let preview = format!("{SERVICES}?dryRun=All");
    api.post(&preview, service("dry", "10.96.7.8")).await.ok();
    assert_eq!(names(&api).await.len(), 2);
    api.delete(&format!("{SERVICES}/web")).await.ok();
    assert_eq!(names(&api).await, ["10.96.0.1"]);
}

#[tokio::test]
async fn an_address_that_a_service_still_has_comes_back() {
    let api = Api::new(Config::default());
    api.post(SERVICES, service("web", "10.96.7.7")).await.ok();
    let url = format!("{ADDRESSES}/10.96.7.7");
    let before = api.get(&url).await.ok();
    api.delete(&url).await.ok();
    let after = api.get(&url).await.ok();
    assert_eq!(after["spec"], before["spec"]);
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let taken = api.post(SERVICES, service("other", "10.96.7.7")).await;
    assert!(
        taken
            .refused(422)
            .contains("provided IP is already allocated")
    );
}

#[tokio::test]
async fn an_address_of_a_users_is_given_to_no_service_while_it_is_there() {
    let api = Api::new(Config::default());
    api.post(ADDRESSES, address("10.96.7.7")).await.ok();
    let refused = api.post(SERVICES, service("web", "10.96.7.7")).await;
    assert!(
        refused
            .refused(422)
            .contains("provided IP is already allocated")
    );
    api.delete(&format!("{ADDRESSES}/10.96.7.7")).await.ok();
    api.post(SERVICES, service("web", "10.96.7.7")).await.ok();
    let refused = api.post(ADDRESSES, address("10.96.7.7")).await;
    assert_eq!(refused.status, 409);
    api.post(ADDRESSES, address("192.0.2.1")).await.ok();
}

#[tokio::test]
async fn a_restart_finds_the_addresses_and_mends_those_that_do_not_fit() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, api) = open(directory.path()).await;
    api.post(SERVICES, service("web", "10.96.7.7")).await.ok();
    api.post(ADDRESSES, address("10.96.7.9")).await.ok();
    let mut left_over = address("10.96.7.8");
    left_over["metadata"]["labels"] =
        json!({"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    api.post(ADDRESSES, left_over).await.ok();
    let before = api.get(&format!("{ADDRESSES}/10.96.7.7")).await.ok();
    server.close().await;
    drop((server, api));
    let (_server, api) = open(directory.path()).await;
    assert_eq!(names(&api).await, ["10.96.0.1", "10.96.7.7", "10.96.7.9"]);
    assert_eq!(
        api.get(&format!("{ADDRESSES}/10.96.7.7")).await.ok(),
        before
    );
    for ip in ["10.96.7.7", "10.96.7.9"] {
        let refused = api.post(SERVICES, service("other", ip)).await;
        assert!(
            refused
                .refused(422)
                .contains("provided IP is already allocated")
        );
    }
    api.post(SERVICES, service("other", "10.96.7.8")).await.ok();
}

#[tokio::test]
async fn the_range_of_the_server_is_ready_from_the_start() {
    let api = Api::new(Config::default());
    let range = api.get(RANGE).await.ok();
    assert_eq!(range["spec"]["cidrs"], json!(["10.96.0.0/16"]));
    let condition = &range["status"]["conditions"][0];
    let said = ["type", "status", "reason", "message"].map(|field| condition[field].clone());
    assert_eq!(
        said,
        [
            "Ready",
            "True",
            "",
            "Kubernetes default Service CIDR is ready"
        ]
    );
    let owners = range["metadata"]["managedFields"]
        .as_array()
        .expect("owners")
        .iter();
    let owners: Vec<&str> = owners
        .filter_map(|owner| owner["manager"].as_str())
        .collect();
    assert!(
        owners.contains(&"kubernetes-service-cidr-controller"),
        "{owners:?}"
    );
}

#[tokio::test]
async fn services_get_addresses_out_of_every_range_that_is_ready() {
    const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
    const REFUSAL: &str = "the provided network does not match the current range";
    let directory = tempfile::tempdir().expect("a directory");
    let config = || Config {
        service_cidr: "10.0.0.0/29".parse().expect("a range"),
        ..Config::default()
    };
    let server = ApiServer::open(config(), directory.path()).await;
    let server = server.expect("the directory can be used");
    let api = Api::of(&server);
    let auto = |name: &str| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    let refusal = api
        .post(SERVICES, service("early", "10.9.0.5"))
        .await
        .refused(422);
    assert!(refusal.ends_with(REFUSAL), "{refusal}");
    for index in 0..5 {
        api.post(SERVICES, auto(&format!("s{index}"))).await.ok();
    }
    api.post(SERVICES, auto("full")).await.refused(500);
    let range = json!({"metadata": {"name": "more", "finalizers": ["example.com/held"]}, "spec": {"cidrs": ["10.9.0.0/28", "fd00::/112"]}});
    api.post(RANGES, range).await.ok();
    let made = api.post(SERVICES, auto("full")).await.ok();
    let ip = made["spec"]["clusterIP"].as_str().unwrap_or_default();
    assert!(ip.starts_with("10.9.0."), "{ip}");
    assert!(names(&api).await.contains(&ip.to_owned()));
    let other = if ip == "10.9.0.5" {
        "10.9.0.6"
    } else {
        "10.9.0.5"
    };
    api.post(SERVICES, service("asked", other)).await.ok();
    // The controller says so of a range that goes while addresses need it.
    let status = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status, "reason": "Terminating", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let place = format!("{RANGES}/more");
    api.merge(&format!("{place}/status"), status("False"))
        .await
        .ok();
    api.post(SERVICES, auto("late")).await.refused(500);
    let refusal = api
        .post(SERVICES, service("late", "10.9.0.9"))
        .await
        .refused(422);
    assert!(refusal.ends_with(REFUSAL), "{refusal}");
    api.merge(&format!("{place}/status"), status("True"))
        .await
        .ok();
    api.delete(&place).await.ok();
    api.post(SERVICES, auto("late")).await.refused(500);
    // What was given stays with who has it, over a restart too.
    server.close().await;
    drop((api, server));
    let server = ApiServer::open(config(), directory.path()).await;
    let api = Api::of(&server.expect("the directory can be used"));
    let gone = json!({"metadata": {"finalizers": null}});
    api.merge(&place, gone).await.ok();
    let again = json!({"metadata": {"name": "again"}, "spec": {"cidrs": ["10.9.0.0/24"]}});
    api.post(RANGES, again).await.ok();
    let refusal = api
        .post(SERVICES, service("late", other))
        .await
        .refused(422);
    assert!(
        refusal.ends_with("provided IP is already allocated"),
        "{refusal}"
    );
    api.delete(&format!("{SERVICES}/asked")).await.ok();
    api.post(SERVICES, service("late", other)).await.ok();
}
