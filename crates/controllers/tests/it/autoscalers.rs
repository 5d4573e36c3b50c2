//! HorizontalPodAutoscalers scale what they refer to, and say what they do and what they cannot.

use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus,
};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::ApiResource,
};
use serde_json::{Value, json};

use crate::cluster::{Cluster, deployment};

/// A Deployment whose pods request that much of the CPU and 100Mi.
async fn deploy(cluster: &Cluster, name: &str, replicas: i32, cpu: &str) {
    let mut web = deployment(name, replicas, "web:1");
    let requests = json!({ "requests": { "cpu": cpu, "memory": "100Mi" } });
    web["spec"]["template"]["spec"]["containers"][0]["resources"] = requests;
    cluster.create(web).await;
    cluster.rolled_out(name).await;
}

fn cpu(percent: i64) -> Value {
    json!({ "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": percent } } })
}

fn deployment_ref(name: &str) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": name })
}

async fn autoscale(cluster: &Cluster, name: &str, spec: Value) {
    cluster
        .create(json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": { "name": name }, "spec": spec,
        }))
        .await;
}

async fn status(cluster: &Cluster, name: &str) -> HorizontalPodAutoscalerStatus {
    let autoscaler = cluster.api::<HorizontalPodAutoscaler>().get(name).await;
    autoscaler.expect("it is there").status.unwrap_or_default()
}

fn condition(status: &HorizontalPodAutoscalerStatus, kind: &str) -> (String, String, String) {
    let mut all = status.conditions.iter().flatten();
    let found = all.find(|condition| condition.type_ == kind);
    let HorizontalPodAutoscalerCondition {
        status,
        reason,
        message,
        ..
    } = found.cloned().unwrap_or_default();
    (
        status,
        reason.unwrap_or_default(),
        message.unwrap_or_default(),
    )
}

fn said(state: &str, reason: &str, message: &str) -> (String, String, String) {
    (state.to_owned(), reason.to_owned(), message.to_owned())
}

fn replicas(cluster: &Cluster, name: &str) -> i32 {
    let found = cluster.deployment(name);
    let spec = found.as_ref().and_then(|found| found.spec.as_ref());
    spec.and_then(|spec| spec.replicas).unwrap_or_default()
}

async fn until_replicas(cluster: &Cluster, name: &str, wanted: i32) {
    let what = format!("{name} has {wanted} replicas");
    cluster
        .until(&what, || (replicas(cluster, name) == wanted).then_some(()))
        .await;
}

#[tokio::test(start_paused = true)]
async fn it_grows_with_the_load_and_shrinks_when_the_load_has_been_low_for_five_minutes() {
    let (cluster, gauges) = Cluster::with_gauges().await;
    deploy(&cluster, "web", 1, "100m").await;
    gauges.together("web", 400);
    let spec = json!({ "scaleTargetRef": deployment_ref("web"), "minReplicas": 1, "maxReplicas": 10, "metrics": [cpu(50)] });
    autoscale(&cluster, "web", spec).await;

    until_replicas(&cluster, "web", 4).await;
    let status_now = status(&cluster, "web").await;
    assert_eq!(
        (status_now.current_replicas, status_now.desired_replicas),
        (Some(1), 4)
    );
    assert!(status_now.last_scale_time.is_some());
    assert_eq!(
        condition(&status_now, "AbleToScale"),
        said(
            "True",
            "SucceededRescale",
            "the HPA controller was able to update the target scale to 4"
        )
    );
    assert_eq!(
        condition(&status_now, "ScalingActive"),
        said(
            "True",
            "ValidMetricFound",
            "the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)"
        )
    );
    assert_eq!(
        condition(&status_now, "ScalingLimited"),
        said(
            "True",
            "ScaleUpLimit",
            "the desired replica count is increasing faster than the maximum scale rate"
        )
    );
    until_replicas(&cluster, "web", 8).await;
    cluster.pass(120).await;
    assert_eq!(replicas(&cluster, "web"), 8, "half of each request is used");
    let status_now = status(&cluster, "web").await;
    let measured = status_now
        .current_metrics
        .as_ref()
        .and_then(|all| all.first());
    let measured = measured
        .and_then(|one| one.resource.as_ref())
        .expect("measured");
    assert_eq!(measured.current.average_utilization, Some(50));
    assert_eq!(
        measured
            .current
            .average_value
            .as_ref()
            .map(|value| value.0.as_str()),
        Some("50m")
    );
    assert_eq!(condition(&status_now, "AbleToScale").1, "ReadyForNewScale");
    assert_eq!(
        condition(&status_now, "ScalingLimited").1,
        "DesiredWithinRange"
    );

    gauges.together("web", 100);
    cluster.pass(240).await;
    assert_eq!(replicas(&cluster, "web"), 8);
    assert_eq!(
        condition(&status(&cluster, "web").await, "AbleToScale").1,
        "ScaleDownStabilized"
    );
    until_replicas(&cluster, "web", 2).await;
    let events = cluster.events("web").await;
    let sizes: Vec<&str> = events
        .iter()
        .filter(|(reason, _)| reason == "SuccessfulRescale")
        .map(|(_, message)| message.as_str())
        .collect();
    assert_eq!(
        sizes,
        [
            "New size: 4; reason: cpu resource utilization (percentage of request) above target",
            "New size: 8; reason: cpu resource utilization (percentage of request) above target",
            "New size: 2; reason: All metrics below target",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn behaviour_and_tolerance_of_the_object_are_kept() {
    let (cluster, gauges) = Cluster::with_gauges().await;
    deploy(&cluster, "web", 2, "100m").await;
    gauges.each("web", 52, 0);
    let slowly = json!({ "stabilizationWindowSeconds": 0, "policies": [{ "type": "Pods", "value": 1, "periodSeconds": 60 }] });
    let mut up = slowly.clone();
    up["tolerance"] = json!("0.01");
    let behavior = json!({ "scaleUp": up, "scaleDown": slowly });
    let spec = json!({
        "scaleTargetRef": deployment_ref("web"), "minReplicas": 2, "maxReplicas": 10,
        "metrics": [cpu(50)], "behavior": behavior,
    });
    autoscale(&cluster, "web", spec).await;
    // Four hundredths above the target.
    until_replicas(&cluster, "web", 3).await;
    gauges.each("web", 100, 0);
    cluster.pass(30).await;
    assert_eq!(replicas(&cluster, "web"), 3);
    assert_eq!(
        condition(&status(&cluster, "web").await, "ScalingLimited").1,
        "ScaleUpLimit"
    );
    until_replicas(&cluster, "web", 4).await;
    gauges.each("web", 50, 0);
    // What was added in a period may be taken away again beside the policy.
    cluster.pass(70).await;
    gauges.each("web", 1, 0);
    until_replicas(&cluster, "web", 3).await;
    cluster.pass(40).await;
    assert_eq!(replicas(&cluster, "web"), 3);
    until_replicas(&cluster, "web", 2).await;
    cluster.pass(120).await;
    assert_eq!(
        condition(&status(&cluster, "web").await, "ScalingLimited"),
        said(
            "True",
            "TooFewReplicas",
            "the desired replica count is less than the minimum replica count"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn containers_and_averages_are_measured() {
    let (cluster, gauges) = Cluster::with_gauges().await;
    deploy(&cluster, "web", 2, "100m").await;
    gauges.each("web", 100, 300 << 20);
    let of_container = json!({ "type": "ContainerResource", "containerResource": {
        "name": "cpu", "container": "main", "target": { "type": "Utilization", "averageUtilization": 50 } } });
    let memory = json!({ "type": "Resource", "resource": {
        "name": "memory", "target": { "type": "AverageValue", "averageValue": "150Mi" } } });
    let metrics = json!([of_container, memory]);
    let spec =
        json!({ "scaleTargetRef": deployment_ref("web"), "maxReplicas": 4, "metrics": metrics });
    autoscale(&cluster, "web", spec).await;
    until_replicas(&cluster, "web", 4).await;
    let measured = status(&cluster, "web")
        .await
        .current_metrics
        .expect("measured");
    assert_eq!(
        serde_json::to_value(&measured).expect("JSON"),
        json!([
            { "type": "ContainerResource", "containerResource": {
                "name": "cpu", "container": "main", "current": { "averageUtilization": 100, "averageValue": "100m" } } },
            { "type": "Resource", "resource": { "name": "memory", "current": { "averageValue": "300Mi" } } },
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn bounds_are_kept_without_metrics_and_zero_replicas_switch_it_off() {
    let (cluster, _) = Cluster::with_gauges().await;
    deploy(&cluster, "few", 1, "100m").await;
    deploy(&cluster, "many", 5, "100m").await;
    deploy(&cluster, "none", 0, "100m").await;
    for name in ["few", "many", "none"] {
        let spec = json!({ "scaleTargetRef": deployment_ref(name), "minReplicas": 2, "maxReplicas": 3, "metrics": [cpu(50)] });
        autoscale(&cluster, name, spec).await;
    }
    until_replicas(&cluster, "few", 2).await;
    until_replicas(&cluster, "many", 3).await;
    let message = |name| {
        let events = cluster.events(name);
        async move {
            let mut scaled = events.await.into_iter();
            scaled
                .find(|(reason, _)| reason == "SuccessfulRescale")
                .map(|(_, message)| message)
        }
    };
    assert_eq!(
        message("few").await.as_deref(),
        Some("New size: 2; reason: Current number of replicas below Spec.MinReplicas")
    );
    assert_eq!(
        message("many").await.as_deref(),
        Some("New size: 3; reason: Current number of replicas above Spec.MaxReplicas")
    );
    assert_eq!(
        condition(&status(&cluster, "none").await, "ScalingActive"),
        said(
            "False",
            "ScalingDisabled",
            "scaling is disabled since the replica count of the target is zero"
        )
    );
    assert_eq!(replicas(&cluster, "none"), 0);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_measured_is_said_as_upstream_says_it() {
    let (cluster, gauges) = Cluster::with_gauges().await;
    cluster.create(deployment("bare", 1, "web:1")).await;
    deploy(&cluster, "web", 1, "100m").await;
    gauges.each("bare", 100, 0);
    let metric = |metric: Value| json!({ "scaleTargetRef": deployment_ref("web"), "maxReplicas": 3, "metrics": [metric] });
    let value = json!({ "type": "Value", "value": "10" });
    let average = json!({ "type": "AverageValue", "averageValue": "10" });
    let queue = json!({ "name": "depth", "selector": { "matchLabels": { "queue": "mail" } } });
    let cases = [
        (
            "unrequested",
            json!({ "scaleTargetRef": deployment_ref("bare"), "maxReplicas": 3, "metrics": [cpu(50)] }),
            "FailedGetResourceMetric",
            "failed to get cpu utilization: missing request for cpu in container main of Pod ",
            "failed to get cpu resource metric value: failed to get cpu utilization: missing request for cpu in container main of Pod ",
        ),
        (
            "unmeasured",
            metric(cpu(50)),
            "FailedGetResourceMetric",
            "failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource metrics API",
            "failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource metrics API",
        ),
        (
            "outside",
            metric(
                json!({ "type": "External", "external": { "metric": queue, "target": average } }),
            ),
            "FailedGetExternalMetric",
            "unable to get external metric default/depth/&LabelSelector{MatchLabels:map[string]string{queue: mail,},MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from external metrics API: the server could not find the requested resource (get depth.external.metrics.k8s.io)",
            "failed to get depth external metric value: failed to get depth external metric: unable to get external metric default/depth/",
        ),
        (
            "of-pods",
            metric(
                json!({ "type": "Pods", "pods": { "metric": { "name": "hits" }, "target": average } }),
            ),
            "FailedGetPodsMetric",
            "unable to get metric hits: unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered",
            "failed to get pods metric value: unable to get metric hits: ",
        ),
        (
            "of-an-object",
            metric(json!({ "type": "Object", "object": {
                "metric": { "name": "hits" }, "target": value,
                "describedObject": { "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "main" } } })),
            "FailedGetObjectMetric",
            "unable to get metric hits on Ingress default/main: unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered",
            "failed to get object metric value: unable to get metric hits on Ingress default/main: ",
        ),
    ];
    // One after the other: two autoscalers of the same pods would be refused.
    for (name, spec, reason, why, in_all) in cases {
        autoscale(&cluster, name, spec).await;
        cluster.pass(40).await;
        let status = status(&cluster, name).await;
        let active = condition(&status, "ScalingActive");
        assert_eq!(
            (active.0.as_str(), active.1.as_str()),
            ("False", reason),
            "{name}: {active:?}"
        );
        let whole = format!("the HPA was unable to compute the replica count: {why}");
        assert!(active.2.starts_with(&whole), "{name}: {}", active.2);
        assert_eq!(condition(&status, "AbleToScale").1, "SucceededGetScale");
        let metrics = serde_json::to_value(&status.current_metrics).expect("JSON");
        assert_eq!(metrics, json!([{ "type": "" }]), "{name}");
        let events = cluster.events(name).await;
        let told = |reason: &str| {
            let mut told = events.iter().filter(|(one, _)| one == reason);
            told.next()
                .map(|(_, message)| message.clone())
                .unwrap_or_default()
        };
        assert!(told(reason).starts_with(why), "{name}: {events:?}");
        let whole = format!("invalid metrics (1 invalid out of 1), first error is: {in_all}");
        assert!(
            told("FailedComputeMetricsReplicas").starts_with(&whole),
            "{name}: {events:?}"
        );
        cluster
            .delete::<HorizontalPodAutoscaler>(name, &Default::default())
            .await;
        cluster.pass(20).await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_one_metric_unknown_it_grows_but_does_not_shrink() {
    let (cluster, gauges) = Cluster::with_gauges().await;
    deploy(&cluster, "web", 2, "100m").await;
    gauges.each("web", 1, 0);
    let unknown = json!({ "type": "Pods", "pods": { "metric": { "name": "hits" }, "target": { "type": "AverageValue", "averageValue": "10" } } });
    let behavior = json!({ "scaleDown": { "stabilizationWindowSeconds": 0 } });
    let spec = json!({ "scaleTargetRef": deployment_ref("web"), "maxReplicas": 6, "metrics": [cpu(50), unknown], "behavior": behavior });
    autoscale(&cluster, "web", spec).await;
    cluster.pass(120).await;
    assert_eq!(replicas(&cluster, "web"), 2);
    assert_eq!(
        condition(&status(&cluster, "web").await, "ScalingActive").1,
        "FailedGetPodsMetric"
    );
    gauges.each("web", 100, 0);
    until_replicas(&cluster, "web", 4).await;
    assert_eq!(
        condition(&status(&cluster, "web").await, "ScalingActive").1,
        "ValidMetricFound"
    );
}

#[tokio::test(start_paused = true)]
async fn without_the_metrics_api_it_says_that_nobody_answers() {
    let cluster = Cluster::start().await;
    deploy(&cluster, "web", 1, "100m").await;
    let spec =
        json!({ "scaleTargetRef": deployment_ref("web"), "maxReplicas": 3, "metrics": [cpu(50)] });
    autoscale(&cluster, "web", spec).await;
    cluster.pass(20).await;
    assert_eq!(
        condition(&status(&cluster, "web").await, "ScalingActive").2,
        "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for resource cpu: unable to \
         fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)"
    );
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_not_there_is_named() {
    let (cluster, _) = Cluster::with_gauges().await;
    let cases = [
        (
            "gone",
            deployment_ref("nope"),
            "deployments.apps \"nope\" not found",
        ),
        (
            "odd",
            json!({ "apiVersion": "example.com/v1", "kind": "Foo", "name": "x" }),
            "no matches for kind \"Foo\" in group \"example.com\"",
        ),
        (
            "stiff",
            json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "x" }),
            "the server could not find the requested resource",
        ),
    ];
    for (name, target, why) in cases {
        autoscale(
            &cluster,
            name,
            json!({ "scaleTargetRef": target, "maxReplicas": 3, "metrics": [cpu(50)] }),
        )
        .await;
        cluster.pass(20).await;
        let message =
            format!("the HPA controller was unable to get the target's current scale: {why}");
        assert_eq!(
            condition(&status(&cluster, name).await, "AbleToScale"),
            said("False", "FailedGetScale", &message)
        );
        let events = cluster.events(name).await;
        let expected = ("FailedGetScale".to_owned(), why.to_owned());
        assert!(events.contains(&expected), "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_autoscalers_of_the_same_pods_are_told() {
    let (cluster, gauges) = Cluster::with_gauges().await;
    deploy(&cluster, "web", 1, "100m").await;
    gauges.each("web", 100, 0);
    for name in ["a", "b"] {
        let spec = json!({ "scaleTargetRef": deployment_ref("web"), "maxReplicas": 1, "metrics": [cpu(50)] });
        autoscale(&cluster, name, spec).await;
    }
    cluster.pass(40).await;
    for name in ["a", "b"] {
        assert_eq!(
            condition(&status(&cluster, name).await, "ScalingActive"),
            said(
                "False",
                "AmbiguousSelector",
                "pods by selector app=web are controlled by more than one HPA (e.g. [default/a default/b])"
            )
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_custom_resource_with_a_scale_is_scaled() {
    let (cluster, gauges) = Cluster::with_gauges().await;
    let spec = json!({ "type": "object", "properties": { "replicas": { "type": "integer" } } });
    let state = json!({ "type": "object", "properties": { "replicas": { "type": "integer" }, "selector": { "type": "string" } } });
    let schema = json!({ "type": "object", "properties": { "spec": spec, "status": state } });
    let scale = json!({ "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector" });
    cluster
        .create(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "fleets.example.com" },
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": { "plural": "fleets", "singular": "fleet", "kind": "Fleet" },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
                    "subresources": { "status": {}, "scale": scale } }],
            },
        }))
        .await;
    cluster.pass(2).await;
    // Its pods are played by a Deployment.
    deploy(&cluster, "ship", 2, "100m").await;
    gauges.each("ship", 100, 0);
    cluster
        .create(json!({ "apiVersion": "example.com/v1", "kind": "Fleet", "metadata": { "name": "north" }, "spec": { "replicas": 2 } }))
        .await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Fleet"));
    let fleets: Api<DynamicObject> =
        Api::namespaced_with(cluster.context.client.clone(), "default", &kind);
    let state = json!({ "status": { "replicas": 2, "selector": "app in (ship),tier!=back" } });
    fleets
        .patch_status("north", &PatchParams::default(), &Patch::Merge(state))
        .await
        .expect("it is accepted");
    let target = json!({ "apiVersion": "example.com/v1", "kind": "Fleet", "name": "north" });
    let spec = json!({ "scaleTargetRef": target, "maxReplicas": 9, "metrics": [cpu(50)] });
    autoscale(&cluster, "north", spec).await;
    cluster.pass(20).await;
    let scaled = fleets.get_scale("north").await.expect("it has a scale");
    assert_eq!(scaled.spec.and_then(|spec| spec.replicas), Some(4));
}
