//! Services: EndpointSlices, Endpoints, load balancers.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Endpoints, Pod, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, deployment},
    wait::{until, until_gone},
};

fn service(name: &str, extra: Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "labels": {"team": "blue"}},
        "spec": {"selector": {"app": name}, "ports": [{"name": "web", "port": 80, "targetPort": "http"}]},
    });
    let spec = service["spec"].as_object_mut().expect("an object");
    spec.extend(extra.as_object().expect("an object").clone());
    service
}

fn slices(cluster: &Cluster, service: &str) -> Vec<Arc<EndpointSlice>> {
    let of = |slice: &Arc<EndpointSlice>| {
        slice
            .labels()
            .get("kubernetes.io/service-name")
            .is_some_and(|s| s == service)
    };
    cluster
        .context
        .informers
        .endpoint_slices
        .list()
        .into_iter()
        .filter(of)
        .collect()
}

fn ready(cluster: &Cluster, service: &str) -> usize {
    let slices = slices(cluster, service);
    let endpoints = slices
        .iter()
        .flat_map(|slice| slice.endpoints.iter().flatten());
    endpoints
        .filter(|endpoint| {
            endpoint
                .conditions
                .as_ref()
                .is_some_and(|c| c.ready == Some(true))
        })
        .count()
}

fn endpoints(cluster: &Cluster, service: &str) -> Option<(usize, usize)> {
    let endpoints: Arc<Endpoints> = cluster
        .context
        .informers
        .endpoints
        .get("default", service)?;
    let subsets = endpoints.subsets.clone().unwrap_or_default();
    let ready = subsets
        .iter()
        .map(|subset| subset.addresses.as_ref().map_or(0, Vec::len))
        .sum();
    let unready = subsets
        .iter()
        .map(|subset| subset.not_ready_addresses.as_ref().map_or(0, Vec::len))
        .sum();
    Some((ready, unready))
}

#[tokio::test(start_paused = true)]
async fn ready_pods_become_endpoints_in_both_forms() {
    let cluster = Cluster::start().await;
    cluster.create(service("web", json!({}))).await;
    cluster
        .until("there is an empty slice", || {
            (slices(&cluster, "web").len() == 1).then_some(())
        })
        .await;
    cluster.create(deployment("web", 3, "web:1")).await;
    cluster
        .until("three are ready", || {
            (ready(&cluster, "web") == 3).then_some(())
        })
        .await;
    let slices = slices(&cluster, "web");
    assert_eq!(slices.len(), 1);
    let slice = &slices[0];
    assert!(slice.name_any().starts_with("web-"), "{}", slice.name_any());
    assert_eq!(
        slice.labels()["endpointslice.kubernetes.io/managed-by"],
        "endpointslice-controller.k8s.io"
    );
    assert_eq!(slice.labels()["team"], "blue");
    let port = &slice.ports.as_ref().expect("ports")[0];
    assert_eq!(
        (port.name.as_deref(), port.port, port.protocol.as_deref()),
        (Some("web"), Some(8080), Some("TCP"))
    );
    let target = slice
        .endpoints
        .as_ref()
        .and_then(|all| all[0].target_ref.clone())
        .expect("a target");
    assert_eq!(target.kind.as_deref(), Some("Pod"));

    cluster
        .until("Endpoints agree", || {
            (endpoints(&cluster, "web") == Some((3, 0))).then_some(())
        })
        .await;
    assert!(
        cluster
            .events("web")
            .await
            .iter()
            .all(|(reason, _)| !reason.starts_with("Failed")),
        "no write is tried on a stale view"
    );
    let object = cluster
        .context
        .informers
        .endpoints
        .get("default", "web")
        .expect("it is there");
    assert_eq!(object.labels()["team"], "blue");
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_not_ready_are_listed_as_such() {
    let cluster = Cluster::start().await;
    cluster.set_ready("web:1", false);
    cluster.create(service("web", json!({}))).await;
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster
        .until("two are unready", || {
            (endpoints(&cluster, "web") == Some((0, 2))).then_some(())
        })
        .await;
    assert_eq!(ready(&cluster, "web"), 0);
    cluster
        .create(service(
            "eager",
            json!({"selector": {"app": "web"}, "publishNotReadyAddresses": true}),
        ))
        .await;
    cluster
        .until("they are published", || {
            (ready(&cluster, "eager") == 2).then_some(())
        })
        .await;
    cluster
        .until("in both forms", || {
            (endpoints(&cluster, "eager") == Some((2, 0))).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn many_endpoints_spread_over_slices_of_a_hundred_and_shrink_again() {
    let cluster = Cluster::start().await;
    cluster.create(service("web", json!({}))).await;
    cluster.create(deployment("web", 230, "web:1")).await;
    cluster
        .until("all are ready", || {
            (ready(&cluster, "web") == 230).then_some(())
        })
        .await;
    let sizes: Vec<_> = slices(&cluster, "web")
        .iter()
        .map(|slice| slice.endpoints.as_ref().map_or(0, Vec::len))
        .collect();
    assert!(sizes.iter().all(|&size| size <= 100), "{sizes:?}");
    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 0}}))
        .await;
    cluster
        .until("one empty slice is left", || {
            let slices = slices(&cluster, "web");
            (slices.len() == 1 && slices[0].endpoints.as_ref().is_none_or(Vec::is_empty))
                .then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_leaves_when_its_pod_does_and_everything_when_the_service_does() {
    let cluster = Cluster::start().await;
    cluster.create(service("web", json!({}))).await;
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster
        .until("two are ready", || {
            (ready(&cluster, "web") == 2).then_some(())
        })
        .await;
    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 1}}))
        .await;
    cluster
        .until("one is left", || {
            (endpoints(&cluster, "web") == Some((1, 0))).then_some(())
        })
        .await;
    cluster
        .until("in both forms", || {
            (ready(&cluster, "web") == 1).then_some(())
        })
        .await;
    cluster
        .delete::<Service>("web", &DeleteParams::default())
        .await;
    cluster
        .until("nothing is left", || {
            (slices(&cluster, "web").is_empty() && endpoints(&cluster, "web").is_none())
                .then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_somebody_deleted_comes_back() {
    let cluster = Cluster::start().await;
    cluster.create(service("web", json!({}))).await;
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster
        .until("two are ready", || {
            (ready(&cluster, "web") == 2).then_some(())
        })
        .await;
    let gone = slices(&cluster, "web")[0].name_any();
    cluster
        .delete::<EndpointSlice>(&gone, &DeleteParams::default())
        .await;
    cluster
        .until("another has taken its place", || {
            let slices = slices(&cluster, "web");
            (ready(&cluster, "web") == 2 && slices.iter().all(|slice| slice.name_any() != gone))
                .then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_headless_service_names_its_pods() {
    let cluster = Cluster::start().await;
    cluster
        .create(service("db", json!({"clusterIP": "None", "ports": null})))
        .await;
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "db-0", "labels": {"app": "db"}},
        "spec": {"containers": [{"name": "main", "image": "db:1"}], "hostname": "db-0", "subdomain": "db"},
    });
    cluster.create(pod.take()).await;
    cluster
        .until("it is ready", || (ready(&cluster, "db") == 1).then_some(()))
        .await;
    let slice = &slices(&cluster, "db")[0];
    assert_eq!(slice.labels()["service.kubernetes.io/headless"], "");
    assert_eq!(
        slice
            .endpoints
            .as_ref()
            .and_then(|all| all[0].hostname.clone())
            .as_deref(),
        Some("db-0")
    );
    cluster
        .delete::<Pod>("db-0", &DeleteParams::default())
        .await;
    cluster
        .until("it has left", || (ready(&cluster, "db") == 0).then_some(()))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_gives_an_address_and_lets_go_of_it() {
    let cluster = Cluster::start().await;
    cluster
        .create(service("web", json!({"type": "LoadBalancer"})))
        .await;
    let services = &cluster.context.informers.services;
    let hostname = cluster
        .until("it has an address", || {
            let service = services.get("default", "web")?;
            let ingress = service
                .status
                .as_ref()?
                .load_balancer
                .as_ref()?
                .ingress
                .clone()?;
            ingress.first()?.hostname.clone()
        })
        .await;
    assert!(
        hostname.ends_with(".us-west-2.elb.amazonaws.com"),
        "{hostname}"
    );
    let held = services.get("default", "web").expect("it is there");
    assert_eq!(
        held.finalizers(),
        ["service.kubernetes.io/load-balancer-cleanup"]
    );
    let events: Vec<_> = cluster
        .events("web")
        .await
        .into_iter()
        .map(|(reason, _)| reason)
        .collect();
    assert_eq!(
        events,
        [
            "EnsuringLoadBalancer",
            "UnAvailableLoadBalancer",
            "EnsuredLoadBalancer"
        ],
        "there is no node"
    );
    cluster
        .delete::<Service>("web", &DeleteParams::default())
        .await;
    cluster
        .until("it is gone", || {
            services.get("default", "web").is_none().then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_no_longer_wants_a_load_balancer_gives_its_address_back() {
    let cluster = Cluster::start().await;
    cluster
        .create(service("web", json!({"type": "LoadBalancer"})))
        .await;
    let services = &cluster.context.informers.services;
    let has_address = |service: &Service| {
        let balancer = service
            .status
            .as_ref()
            .and_then(|status| status.load_balancer.as_ref());
        balancer.is_some_and(|balancer| {
            balancer
                .ingress
                .as_ref()
                .is_some_and(|ingress| !ingress.is_empty())
        })
    };
    let current = || services.get("default", "web");
    cluster
        .until("it has an address", || {
            current().filter(|service| has_address(service))
        })
        .await;
    cluster
        .patch::<Service>("web", json!({"spec": {"type": "ClusterIP"}}))
        .await;
    let plain = cluster
        .until("it has none", || {
            current().filter(|service| !has_address(service) && service.finalizers().is_empty())
        })
        .await;
    assert_eq!(
        plain.spec.as_ref().and_then(|spec| spec.type_.as_deref()),
        Some("ClusterIP")
    );
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_somebody_deleted_come_back() {
    let cluster = Cluster::start().await;
    cluster.create(service("web", json!({}))).await;
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster
        .until("two are ready", || {
            (endpoints(&cluster, "web") == Some((2, 0))).then_some(())
        })
        .await;
    let before = cluster
        .context
        .informers
        .endpoints
        .get("default", "web")
        .and_then(|endpoints| endpoints.uid());
    cluster
        .delete::<Endpoints>("web", &DeleteParams::default())
        .await;
    cluster
        .until("there are new ones", || {
            let now = cluster.context.informers.endpoints.get("default", "web")?;
            (now.uid() != before && endpoints(&cluster, "web") == Some((2, 0))).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_happens_to_a_load_balancer_is_told_as_upstream_does() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({}), json!([])).await;
    cluster
        .create(service("web", json!({"type": "LoadBalancer"})))
        .await;
    let told = async |count: usize| {
        for _ in 0..100 {
            let events = cluster.events("web").await;
            if events.len() >= count {
                return events;
            }
            cluster.pass(1).await;
        }
        panic!("too little was told: {:?}", cluster.events("web").await);
    };
    told(2).await;
    cluster.node("n2", json!({}), json!([])).await;
    told(3).await;
    cluster
        .patch::<Service>(
            "web",
            json!({"spec": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}}),
        )
        .await;
    told(4).await;
    cluster
        .patch::<Service>(
            "web",
            json!({"spec": {"type": "ClusterIP", "loadBalancerSourceRanges": null}}),
        )
        .await;
    let events = told(7).await;
    let texts: Vec<_> = events
        .iter()
        .map(|(reason, message)| format!("{reason}: {message}"))
        .collect();
    for text in [
        "EnsuringLoadBalancer: Ensuring load balancer",
        "EnsuredLoadBalancer: Ensured load balancer",
        "UpdatedLoadBalancer: Updated load balancer with new hosts",
        "LoadBalancerSourceRanges: [] -> [10.0.0.0/8]",
        "Type: LoadBalancer -> ClusterIP",
        "DeletingLoadBalancer: Deleting load balancer",
        "DeletedLoadBalancer: Deleted load balancer",
    ] {
        assert!(
            texts.iter().any(|told| told == text),
            "{text} in {texts:#?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn endpoints_say_since_when_what_they_show_is_so() {
    let cluster = Cluster::start().await;
    cluster.create(service("web", json!({}))).await;
    cluster.pass(100).await;
    cluster.create(deployment("web", 1, "web:1")).await;
    cluster
        .until("it is ready in both forms", || {
            (ready(&cluster, "web") == 1 && endpoints(&cluster, "web") == Some((1, 0)))
                .then_some(())
        })
        .await;
    let annotation = "endpoints.kubernetes.io/last-change-trigger-time";
    let pod = &cluster.pods("web")[0];
    let since = mullion_controllers::pods::ready_since(pod).expect("it is ready");
    let slice = slices(&cluster, "web")[0]
        .annotations()
        .get(annotation)
        .cloned();
    assert_eq!(slice, Some(since.to_string()));
    let object = cluster.context.informers.endpoints.get("default", "web");
    let object = object.and_then(|object| object.annotations().get(annotation).cloned());
    assert_eq!(object, Some(since.to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_range_is_ready_and_stays_while_addresses_need_it() {
    let cluster = Cluster::start().await;
    let ranges: kube::Api<ServiceCIDR> = kube::Api::all(cluster.context.client.clone());
    let said = async |name: &str, message: &str| {
        let is_told = |range: &ServiceCIDR| {
            let conditions = range.status.iter().flat_map(|status| &status.conditions);
            let mut conditions = conditions.flatten();
            conditions.any(|told| told.message == message) && !range.finalizers().is_empty()
        };
        until(&ranges, name, is_told).await;
    };
    let ready = "Kubernetes Service CIDR is ready";
    said("kubernetes", ready).await;
    let extra = json!({"metadata": {"name": "extra"}, "spec": {"cidrs": ["10.200.0.0/24"]}});
    let extra = serde_json::from_value(extra).expect("a range");
    ranges
        .create(&Default::default(), &extra)
        .await
        .expect("it is accepted");
    said("extra", ready).await;
    let now = DeleteParams::default();
    ranges.delete("extra", &now).await.expect("it is there");
    ranges
        .delete("kubernetes", &now)
        .await
        .expect("it is there");
    said(
        "kubernetes",
        "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
    )
    .await;
    until_gone(&ranges, "extra").await;
    let held = ranges.get("kubernetes").await.expect("it is held");
    assert!(held.metadata.deletion_timestamp.is_some());
}
