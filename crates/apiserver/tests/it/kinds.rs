//! Kinds with two faces, and rules that reach from one kind to another through admission.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

const RUNTIME_CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";
const OLD_RUNTIME_CLASSES: &str = "/apis/node.k8s.io/v1beta1/runtimeclasses";

fn windows_class(api_version: &str) -> Value {
    json!({
        "apiVersion": api_version, "kind": "RuntimeClass", "metadata": {"name": "windows-2022"}, "handler": "runhcs-wcow-process",
        "scheduling": {
            "nodeSelector": {"kubernetes.io/os": "windows", "node.kubernetes.io/windows-build": "10.0.20348"},
            "tolerations": [{"key": "os", "operator": "Equal", "value": "windows", "effect": "NoSchedule"}],
        },
    })
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "nginx"}]},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    pod
}

async fn with_service_account(api: &Api) {
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    api.post("/api/v1/namespaces/default/serviceaccounts", account)
        .await
        .ok();
}

#[tokio::test]
async fn a_runtime_class_of_the_old_version_is_the_same_object_and_warned_about() {
    let api = Api::new(Config::default());
    let created = api
        .post(OLD_RUNTIME_CLASSES, windows_class("node.k8s.io/v1beta1"))
        .await;
    assert_eq!(
        created.warnings,
        [
            r#"299 - "node.k8s.io/v1beta1 RuntimeClass is deprecated in v1.22+, unavailable in v1.25+""#
        ]
    );
    assert_eq!(created.ok()["apiVersion"], "node.k8s.io/v1beta1");
    let new = api
        .get(&format!("{RUNTIME_CLASSES}/windows-2022"))
        .await
        .ok();
    assert_eq!(
        (new["apiVersion"].as_str(), new["handler"].as_str()),
        (Some("node.k8s.io/v1"), Some("runhcs-wcow-process"))
    );
    let old = api
        .get(&format!("{OLD_RUNTIME_CLASSES}/windows-2022"))
        .await
        .ok();
    assert_eq!(old["scheduling"], new["scheduling"]);
    api.post(RUNTIME_CLASSES, windows_class("node.k8s.io/v1"))
        .await
        .refused(409);
}

#[tokio::test]
async fn a_pod_goes_where_its_runtime_class_says_or_is_refused() {
    let api = Api::new(Config::default());
    with_service_account(&api).await;
    api.post(RUNTIME_CLASSES, windows_class("node.k8s.io/v1"))
        .await
        .ok();
    let pods = "/api/v1/namespaces/default/pods";
    let placed = api
        .post(pods, pod("a", json!({"runtimeClassName": "windows-2022"})))
        .await
        .ok();
    assert_eq!(
        placed["spec"]["nodeSelector"],
        windows_class("")["scheduling"]["nodeSelector"]
    );
    assert_eq!(
        placed["spec"]["tolerations"][2],
        windows_class("")["scheduling"]["tolerations"][0]
    );
    let elsewhere = json!({"runtimeClassName": "windows-2022", "nodeSelector": {"node.kubernetes.io/windows-build": "10.0.17763"}});
    assert_eq!(
        api.post(pods, pod("b", elsewhere)).await.refused(403),
        r#"pods "b" is forbidden: conflict: runtimeClass.scheduling.nodeSelector[node.kubernetes.io/windows-build] = 10.0.20348; pod.spec.nodeSelector[node.kubernetes.io/windows-build] = 10.0.17763"#
    );
}

#[tokio::test]
async fn a_bound_pod_has_the_zone_of_its_node() {
    let api = Api::new(Config::default());
    with_service_account(&api).await;
    let labels = json!({"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r", "other": "x"});
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}});
    api.post("/api/v1/nodes", node).await.ok();
    let pods = "/api/v1/namespaces/default/pods";
    api.post(pods, pod("p", json!({}))).await.ok();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    api.post(&format!("{pods}/p/binding"), binding).await.ok();
    let bound = api.get(&format!("{pods}/p")).await.ok();
    assert_eq!(
        bound["metadata"]["labels"],
        json!({"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r"})
    );
}

#[tokio::test]
async fn nothing_is_created_in_a_namespace_that_is_going() {
    let api = Api::new(Config::default());
    api.post(
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gone"}}),
    )
    .await
    .ok();
    let path = "/api/v1/namespaces/gone";
    assert_eq!(
        api.delete(path).await.ok()["status"]["phase"],
        "Terminating"
    );
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    assert_eq!(
        api.post("/api/v1/namespaces/gone/configmaps", map)
            .await
            .refused(403),
        r#"configmaps "m" is forbidden: unable to create new content in namespace gone because it is being terminated"#
    );
    let mut namespace = api.get(path).await.ok();
    namespace["spec"] = json!({"finalizers": []});
    api.put(&format!("{path}/finalize"), namespace).await.ok();
    api.get(path).await.refused(404);
}

#[tokio::test]
async fn an_event_is_one_object_with_two_faces() {
    let api = Api::new(Config::default());
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "message": "m", "reason": "R", "type": "Normal",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "source": {"component": "kubelet"},
    });
    api.post("/api/v1/namespaces/default/events", event)
        .await
        .ok();
    let new = api
        .get("/apis/events.k8s.io/v1/namespaces/default/events/e")
        .await
        .ok();
    assert_eq!(
        (new["note"].as_str(), new["regarding"]["name"].as_str()),
        (Some("m"), Some("p"))
    );
    let listed = api
        .get("/apis/events.k8s.io/v1/events?fieldSelector=regarding.name=p")
        .await
        .ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    let listed = api
        .get("/api/v1/events?fieldSelector=involvedObject.name=q")
        .await
        .ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(0));
}

#[tokio::test]
async fn the_system_s_priority_classes_are_there_from_the_start() {
    let api = Api::new(Config::default());
    let class = api
        .get("/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical")
        .await
        .ok();
    assert_eq!(
        (
            class["value"].as_i64(),
            class["metadata"]["generation"].as_i64()
        ),
        (Some(2_000_001_000), Some(1))
    );
}

#[tokio::test]
async fn an_annotation_written_with_a_deployment_s_status_is_no_new_generation() {
    let api = Api::new(Config::default());
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let labels = json!({"app": "web"});
    let mut written = api
        .post(
            deployments,
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}},
                },
            }),
        )
        .await
        .ok();
    written["metadata"]["annotations"] = json!({"deployment.kubernetes.io/revision": "1"});
    let path = format!("{deployments}/web");
    let mut written = api.put(&format!("{path}/status"), written).await.ok();
    assert_eq!(
        written["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "1"
    );
    assert_eq!(written["metadata"]["generation"], 1);
    written["metadata"]["annotations"]["note"] = json!("counts on the main endpoint");
    let written = api.put(&path, written).await.ok();
    assert_eq!(written["metadata"]["generation"], 2);
}
