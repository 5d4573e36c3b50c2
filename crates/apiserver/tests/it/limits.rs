//! What a namespace may use: quotas are counted when writes are admitted, also by many clients at once, and not for what is not stored.

use std::sync::Arc;

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

/// A quota as the quota controller has found it: so much allowed, so much used.
async fn with_quota(api: &Api, hard: Value, used: Value, spec: Value) {
    let mut quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard.clone()}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        quota["spec"][field] = value.clone();
    }
    api.post(QUOTAS, quota).await.ok();
    let status = json!({"status": {"hard": hard, "used": used}});
    api.merge(&format!("{QUOTAS}/q/status"), status).await.ok();
}

async fn used(api: &Api) -> Value {
    api.get(&format!("{QUOTAS}/q")).await.ok()["status"]["used"].clone()
}

#[tokio::test]
async fn a_quota_is_not_overrun_by_clients_that_write_at_once() {
    let api = Arc::new(Api::new(Config::default()));
    with_quota(
        &api,
        json!({"count/configmaps": "5"}),
        json!({"count/configmaps": "0"}),
        json!({}),
    )
    .await;
    let writers: Vec<_> = (0..20)
        .map(|index| {
            let api = api.clone();
            tokio::spawn(async move {
                let name = format!("c{index}");
                api.post(CONFIG_MAPS, config_map(&name)).await.status
            })
        })
        .collect();
    let mut made = 0;
    for writer in writers {
        match writer.await.unwrap() {
            201 => made += 1,
            status => assert_eq!(status, 403),
        }
    }
    assert_eq!(made, 5);
    assert_eq!(used(&api).await, json!({"count/configmaps": "5"}));
    let refusal = api.post(CONFIG_MAPS, config_map("late")).await.refused(403);
    assert_eq!(
        refusal,
        r#"configmaps "late" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=5, limited: count/configmaps=5"#
    );
}

#[tokio::test]
async fn what_is_not_stored_is_not_counted() {
    let api = Api::new(Config::default());
    with_quota(
        &api,
        json!({"configmaps": "5"}),
        json!({"configmaps": "0"}),
        json!({}),
    )
    .await;
    api.post(&format!("{CONFIG_MAPS}?dryRun=All"), config_map("dry"))
        .await
        .ok();
    api.post(CONFIG_MAPS, config_map("a")).await.ok();
    api.post(CONFIG_MAPS, config_map("a")).await.refused(409);
    assert_eq!(used(&api).await, json!({"configmaps": "1"}));
}

#[tokio::test]
async fn a_service_that_becomes_a_load_balancer_is_charged_the_difference() {
    let api = Api::new(Config::default());
    with_quota(
        &api,
        json!({"services": "1", "services.loadbalancers": "0"}),
        json!({"services": "0", "services.loadbalancers": "0"}),
        json!({}),
    )
    .await;
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    api.post(services, service).await.ok();
    let refusal = api
        .merge(
            &format!("{services}/s"),
            json!({"spec": {"type": "LoadBalancer"}}),
        )
        .await
        .refused(403);
    assert!(
        refusal.contains("requested: services.loadbalancers=1, used: services.loadbalancers=0"),
        "{refusal}"
    );
    let relabelled = json!({"metadata": {"labels": {"a": "b"}}});
    api.merge(&format!("{services}/s"), relabelled).await.ok();
    assert_eq!(
        used(&api).await,
        json!({"services": "1", "services.loadbalancers": "0"})
    );
}

#[tokio::test]
async fn a_quota_with_scopes_counts_only_pods_in_them() {
    let api = Api::new(Config::default());
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    api.post("/api/v1/namespaces/default/serviceaccounts", account)
        .await
        .ok();
    with_quota(
        &api,
        json!({"pods": "0"}),
        json!({"pods": "0"}),
        json!({"scopes": ["BestEffort"]}),
    )
    .await;
    let pod = |name: &str, resources: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "nginx", "resources": resources}]},
        })
    };
    let pods = "/api/v1/namespaces/default/pods";
    api.post(pods, pod("a", json!({}))).await.refused(403);
    api.post(pods, pod("b", json!({"requests": {"cpu": "1"}})))
        .await
        .ok();
}

#[tokio::test]
async fn a_job_cannot_be_finished_twice_over() {
    let api = Api::new(Config::default());
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
    });
    let made = api.post(jobs, job).await.ok();
    assert_eq!(
        made["metadata"]["labels"]["batch.kubernetes.io/controller-uid"],
        made["metadata"]["uid"]
    );
    let status = |conditions: &[&str]| {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|kind| json!({"type": kind, "status": "True"}))
            .collect();
        json!({"status": {
            "startTime": "2024-01-01T00:00:00Z", "failed": 1, "uncountedTerminatedPods": {}, "conditions": conditions,
        }})
    };
    let path = format!("{jobs}/j/status");
    let refusal = api.merge(&path, status(&["Failed"])).await.refused(422);
    assert!(
        refusal
            .contains("cannot set Failed=True condition without the FailureTarget=true condition"),
        "{refusal}"
    );
    api.merge(&path, status(&["FailureTarget", "Failed"]))
        .await
        .ok();
    let refusal = api.merge(&path, status(&[])).await.refused(422);
    assert!(
        refusal.contains("cannot disable the terminal Failed=True condition"),
        "{refusal}"
    );
}
