//! What clients are warned of and shown in tables, where the recorded scenarios say nothing.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn template() -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}, "containers": [{"name": "c", "image": "nginx"}]},
    })
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template()},
    })
}

/// The texts of warnings without the code and agent before them.
fn texts(warnings: &[String]) -> Vec<String> {
    let bare = warnings.iter().map(|warning| {
        let text = warning.strip_prefix("299 - ").unwrap_or(warning);
        let bare = text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'));
        bare.unwrap_or(text).replace("\\\"", "\"")
    });
    bare.collect()
}

#[tokio::test]
async fn a_template_is_warned_of_with_every_generation() {
    let api = Api::new(Config::default());
    let old_label = r#"spec.template.spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead"#;
    let created = api.post(DEPLOYMENTS, deployment()).await;
    assert_eq!(texts(&created.warnings), [old_label]);
    let path = format!("{DEPLOYMENTS}/web");
    let scaled = api.merge(&path, json!({"spec": {"replicas": 3}})).await;
    assert_eq!(texts(&scaled.warnings), [old_label]);
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    assert!(api.merge(&path, labelled).await.warnings.is_empty());
}

#[tokio::test]
async fn claims_of_a_part_of_a_byte_and_endless_histories_are_warned_of() {
    let api = Api::new(Config::default());
    let claim = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1.5"}}}});
    let mut set = deployment();
    set["kind"] = "StatefulSet".into();
    set["spec"]["template"]["spec"]["nodeSelector"] = json!({});
    set["spec"]["revisionHistoryLimit"] = json!(-1);
    set["spec"]["volumeClaimTemplates"] = json!([claim]);
    let history = "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended";
    let fraction = |path: &str| {
        format!(
            r#"{path}.resources.requests[storage]: fractional byte value "1500m" is invalid, must be an integer"#
        )
    };
    let created = api.post(SETS, set).await;
    let expected = [fraction("spec.volumeClaimTemplates[0]"), history.to_owned()];
    assert_eq!(texts(&created.warnings), expected);
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    let changed = api.merge(&format!("{SETS}/web"), labelled).await;
    let expected = [
        fraction("spec.volumeClaimTemplates[0].Spec"),
        history.to_owned(),
    ];
    assert_eq!(texts(&changed.warnings), expected);
}

#[tokio::test]
async fn labels_of_old_are_warned_of_where_nodes_are_selected() {
    let api = Api::new(Config::default());
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "x"}, "handler": "h",
        "scheduling": {"nodeSelector": {"beta.kubernetes.io/arch": "amd64"}},
    });
    let answer = api.post("/apis/node.k8s.io/v1/runtimeclasses", class).await;
    assert_eq!(
        texts(&answer.warnings),
        [r#"scheduling.nodeSelector: deprecated since v1.14; use "kubernetes.io/arch" instead"#]
    );
    let capacity = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity", "metadata": {"name": "x"}, "storageClassName": "s",
        "nodeTopology": {
            "matchLabels": {"beta.kubernetes.io/arch": "amd64"}, "matchExpressions": [{"key": "beta.kubernetes.io/os", "operator": "Exists"}],
        },
    });
    let capacities = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities";
    assert_eq!(
        texts(&api.post(capacities, capacity).await.warnings),
        [
            r#"nodeTopology.matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use "kubernetes.io/os" instead"#,
            r#"nodeTopology.matchLabels.beta.kubernetes.io/arch: deprecated since v1.14; use "kubernetes.io/arch" instead"#,
        ]
    );
}

#[tokio::test]
async fn addresses_in_an_odd_form_are_warned_of_in_a_status_too() {
    let api = Api::new(Config::default());
    let services = "/api/v1/namespaces/default/services";
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    });
    api.post(services, service).await.ok();
    let points = json!({"status": {"loadBalancer": {"ingress": [{"hostname": "a.b"}, {"ip": "2001:DB8::1"}]}}});
    let answer = api.merge(&format!("{services}/web/status"), points).await;
    assert_eq!(
        texts(&answer.warnings),
        [
            r#"status.loadBalancer.ingress[1]: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")"#
        ]
    );
}

/// The cells of the one row of a table.
async fn cells(api: &Api, path: &str) -> Value {
    api.table(path).await["rows"][0]["cells"].clone()
}

#[tokio::test]
async fn cells_show_what_is_unset_zero_or_empty_as_upstream_does() {
    let api = Api::new(Config::default());
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "x"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "v", "volumeAttributesClassName": "", "resources": {"requests": {"storage": "1Gi"}}},
    });
    api.post(claims, claim).await.ok();
    let row = cells(&api, claims).await;
    assert_eq!((&row[3], &row[6]), (&json!("0"), &json!("")), "{row}");

    let endpoints = "/api/v1/namespaces/default/endpoints";
    let unready = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "x"}, "subsets": [{"notReadyAddresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}],
    });
    api.post(endpoints, unready).await.ok();
    assert_eq!(cells(&api, &format!("{endpoints}/x")).await[1], "");
}

#[tokio::test]
async fn a_quota_lists_resources_by_their_names() {
    let api = Api::new(Config::default());
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let hard = json!({"services": "5", "services.nodeports": "2", "limits.cpu": "4", "pods": "10"});
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "x"}, "spec": {"hard": hard}});
    api.post(quotas, quota).await.ok();
    let status =
        json!({"status": {"hard": hard, "used": {"services": "1", "services.nodeports": "0"}}});
    api.merge(&format!("{quotas}/x/status"), status).await.ok();
    let row = cells(&api, quotas).await;
    assert_eq!(row[1], "pods: 0/10, services: 1/5, services.nodeports: 0/2");
    assert_eq!(row[2], "limits.cpu: 0/4");
}
