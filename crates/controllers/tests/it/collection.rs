//! Garbage collection, namespaces, and what every namespace gets.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams, PropagationPolicy},
};
use serde_json::json;

use crate::cluster::{Cluster, config_map, deployment, owned_by};

fn propagate(policy: PropagationPolicy) -> DeleteParams {
    DeleteParams {
        propagation_policy: Some(policy),
        ..DeleteParams::default()
    }
}

async fn config_maps(cluster: &Cluster) -> BTreeSet<String> {
    let maps = cluster
        .api::<ConfigMap>()
        .list(&ListParams::default())
        .await
        .expect("they are listed");
    maps.items
        .into_iter()
        .map(|map| map.name_any())
        .filter(|name| name != "kube-root-ca.crt")
        .collect()
}

/// Lets time pass until exactly these ConfigMaps are left.
async fn until_left(cluster: &Cluster, names: &[&str]) {
    let expected: BTreeSet<_> = names.iter().map(|name| (*name).to_owned()).collect();
    for _ in 0..600 {
        if config_maps(cluster).await == expected {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!(
        "expected {expected:?}, left {:?}",
        config_maps(cluster).await
    );
}

#[tokio::test(start_paused = true)]
async fn deleting_a_deployment_takes_its_sets_and_pods_along() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 3, "web:1")).await;
    cluster.rolled_out("web").await;
    cluster
        .delete::<Deployment>("web", &DeleteParams::default())
        .await;
    cluster
        .until("everything is gone", || {
            let pods = cluster.context.informers.pods.is_empty();
            (pods && cluster.context.informers.replica_sets.is_empty()).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn foreground_deletion_keeps_the_owner_until_its_pods_are_gone() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({}), json!([])).await;
    cluster.create(deployment("web", 3, "web:1")).await;
    cluster.rolled_out("web").await;
    cluster
        .delete::<Deployment>("web", &propagate(PropagationPolicy::Foreground))
        .await;
    let mut waited = false;
    cluster
        .until("the Deployment is gone", || {
            let left = !cluster.context.informers.pods.is_empty();
            match cluster.deployment("web") {
                Some(web) => {
                    waited |= web.finalizers().contains(&"foregroundDeletion".to_owned()) && left;
                    None
                }
                None => Some(()),
            }
        })
        .await;
    assert!(waited, "it waited for its dependents");
    assert!(cluster.context.informers.pods.is_empty());
    assert!(cluster.context.informers.replica_sets.is_empty());
}

#[tokio::test(start_paused = true)]
async fn orphaned_dependents_stay_and_are_adopted_again() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster.rolled_out("web").await;
    let set = cluster.replica_sets("web")[0].name_any();
    cluster
        .delete::<Deployment>("web", &propagate(PropagationPolicy::Orphan))
        .await;
    cluster
        .until("the Deployment is gone", || {
            cluster.deployment("web").is_none().then_some(())
        })
        .await;
    cluster.pass(5).await;
    let orphan = cluster
        .context
        .informers
        .replica_sets
        .get("default", &set)
        .expect("it stays");
    assert!(orphan.owner_references().is_empty());
    assert_eq!(cluster.pods("web").len(), 2);
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster
        .until("it is adopted", || {
            (cluster.replica_sets("web").len() == 1).then_some(())
        })
        .await;
    cluster.rolled_out("web").await;
    assert_eq!(cluster.replica_sets("web")[0].name_any(), set);
}

#[tokio::test(start_paused = true)]
async fn an_object_lives_as_long_as_one_of_its_owners() {
    let cluster = Cluster::start().await;
    let first = cluster.create(config_map("first", json!([]))).await;
    let second = cluster.create(config_map("second", json!([]))).await;
    cluster
        .create(config_map(
            "child",
            json!([owned_by(&first, true), owned_by(&second, true)]),
        ))
        .await;
    cluster
        .delete::<ConfigMap>("first", &DeleteParams::default())
        .await;
    cluster.pass(5).await;
    until_left(&cluster, &["second", "child"]).await;
    let child = cluster
        .api::<ConfigMap>()
        .get("child")
        .await
        .expect("it stays");
    assert_eq!(
        child.owner_references().len(),
        1,
        "the reference to the dead owner is gone"
    );
    cluster
        .delete::<ConfigMap>("second", &DeleteParams::default())
        .await;
    until_left(&cluster, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_created_after_its_owner_died_is_collected() {
    let cluster = Cluster::start().await;
    let owner = cluster.create(config_map("owner", json!([]))).await;
    cluster
        .delete::<ConfigMap>("owner", &DeleteParams::default())
        .await;
    cluster
        .create(config_map("late", json!([owned_by(&owner, false)])))
        .await;
    until_left(&cluster, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn foreground_deletion_waits_only_for_blocking_dependents_and_passes_down() {
    let cluster = Cluster::start().await;
    let owner = cluster.create(config_map("owner", json!([]))).await;
    let child = cluster
        .create(config_map("child", json!([owned_by(&owner, true)])))
        .await;
    let mut grandchild = config_map("grandchild", json!([owned_by(&child, true)]));
    grandchild["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.create(grandchild).await;
    cluster.pass(1).await;
    cluster
        .delete::<ConfigMap>("owner", &propagate(PropagationPolicy::Foreground))
        .await;
    cluster.pass(10).await;
    until_left(&cluster, &["owner", "child", "grandchild"]).await;
    let release = json!({"metadata": {"finalizers": null}});
    cluster.patch::<ConfigMap>("grandchild", release).await;
    until_left(&cluster, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn objects_that_wait_for_each_other_are_collected() {
    let cluster = Cluster::start().await;
    let a = cluster.create(config_map("a", json!([]))).await;
    let b = cluster
        .create(config_map("b", json!([owned_by(&a, true)])))
        .await;
    let circle = json!({"metadata": {"ownerReferences": [owned_by(&b, true)]}});
    cluster.patch::<ConfigMap>("a", circle).await;
    cluster.pass(1).await;
    cluster
        .delete::<ConfigMap>("a", &propagate(PropagationPolicy::Foreground))
        .await;
    until_left(&cluster, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn custom_resources_are_collected_from_the_moment_their_kind_exists() {
    let cluster = Cluster::start().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    cluster
        .create(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        }))
        .await;
    cluster.pass(5).await;
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "owner"}});
    let owner = cluster.create(widget).await;
    cluster
        .create(config_map("child", json!([owned_by(&owner, false)])))
        .await;
    cluster.pass(5).await;
    until_left(&cluster, &["child"]).await;
    let resource = kube::discovery::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(
        "example.com",
        "v1",
        "Widget",
    ));
    let widgets: Api<kube::core::DynamicObject> =
        Api::namespaced_with(cluster.context.client.clone(), "default", &resource);
    widgets
        .delete("owner", &DeleteParams::default())
        .await
        .expect("it is there");
    until_left(&cluster, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_gets_its_account_and_certificate_and_gets_them_back() {
    let cluster = Cluster::start().await;
    let client = cluster.context.client.clone();
    cluster
        .create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}))
        .await;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "team");
    let maps: Api<ConfigMap> = Api::namespaced(client, "team");
    cluster.pass(1).await;
    let first = accounts.get("default").await.expect("it was made");
    let certificate = maps.get("kube-root-ca.crt").await.expect("it was made");
    assert_eq!(
        certificate.data.expect("data")["ca.crt"],
        "-----BEGIN CERTIFICATE-----"
    );
    accounts
        .delete("default", &DeleteParams::default())
        .await
        .expect("it is there");
    maps.delete("kube-root-ca.crt", &DeleteParams::default())
        .await
        .expect("it is there");
    cluster.pass(1).await;
    assert_ne!(
        accounts.get("default").await.expect("it is back").uid(),
        first.uid()
    );
    assert!(maps.get("kube-root-ca.crt").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_namespace_is_emptied_pods_first_and_goes() {
    let cluster = Cluster::start().await;
    let client = cluster.context.client.clone();
    cluster
        .create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}))
        .await;
    cluster.pass(1).await;
    let mut web = deployment("web", 2, "web:1");
    web["metadata"]["namespace"] = json!("team");
    cluster.create(web).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": "team"}});
    cluster.create(secret).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "team");
    let held = json!({
        "metadata": {"name": "held", "finalizers": ["example.com/hold"]},
        "spec": {"containers": [{"name": "main", "image": "web:1"}]},
    });
    let held: Pod = serde_json::from_value(held).expect("a pod");
    pods.create(&PostParams::default(), &held)
        .await
        .expect("it is accepted");
    cluster.pass(2).await;

    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .delete("team", &DeleteParams::default())
        .await
        .expect("it is there");
    cluster.pass(60).await;
    let terminating = namespaces.get("team").await.expect("it waits for the pod");
    let status = terminating.status.expect("a status");
    assert_eq!(status.phase.as_deref(), Some("Terminating"));
    let message = |kind: &str| {
        let mut conditions = status.conditions.iter().flatten();
        conditions
            .find(|condition| condition.type_ == kind)
            .and_then(|condition| condition.message.clone())
    };
    assert_eq!(
        message("NamespaceContentRemaining").as_deref(),
        Some("Some resources are remaining: pods. has 1 resource instances")
    );
    assert_eq!(
        message("NamespaceFinalizersRemaining").as_deref(),
        Some(
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
        )
    );
    let secrets: Api<Secret> = Api::namespaced(client, "team");
    assert!(
        secrets.get("key").await.is_ok(),
        "other kinds wait for the pods"
    );

    let release = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch("held", &kube::api::PatchParams::default(), &release)
        .await
        .expect("it is there");
    cluster
        .until("the namespace is gone", || {
            cluster
                .context
                .informers
                .namespaces
                .get("", "team")
                .is_none()
                .then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_in_another_namespace_is_none_which_is_told() {
    let cluster = Cluster::start().await;
    let owner = cluster
        .create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}))
        .await;
    let uid = owner.metadata.uid.expect("every object has one");
    let reference = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]);
    cluster
        .create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}))
        .await;
    cluster.pass(5).await;
    for (name, kind) in [("stray", "Secret"), ("wide", "PriorityClass")] {
        let mut child = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "ownerReferences": reference}});
        if kind == "Secret" {
            child["metadata"]["namespace"] = json!("other");
        } else {
            child["apiVersion"] = json!("scheduling.k8s.io/v1");
            child["value"] = json!(1);
        }
        cluster.create(child).await;
    }
    cluster.pass(30).await;
    let client = || cluster.context.client.clone();
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(client(), "other");
    let stray = secrets.get_opt("stray").await.expect("the API answers");
    assert!(stray.is_none(), "it has no owner and goes");
    let classes: Api<k8s_openapi::api::scheduling::v1::PriorityClass> = Api::all(client());
    let wide = classes.get_opt("wide").await.expect("the API answers");
    assert!(wide.is_some(), "what cannot have such an owner stays");
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::all(client());
    let events = events.list(&kube::api::ListParams::default()).await;
    let told: Vec<_> = events
        .expect("events are listed")
        .into_iter()
        .filter(|event| event.reason.as_deref() == Some("OwnerRefInvalidNamespace"))
        .filter_map(|event| event.message)
        .collect();
    for namespace in ["other", ""] {
        let message = format!(
            "ownerRef [v1/ConfigMap, namespace: {namespace}, name: owner, uid: {uid}] does not exist in namespace \"{namespace}\""
        );
        assert!(told.contains(&message), "{message} in {told:#?}");
    }
}
