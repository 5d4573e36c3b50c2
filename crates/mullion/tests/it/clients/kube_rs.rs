//! kube-rs over TLS, from the kubeconfig; what it does in process is tested in the API server's crate.

use std::time::Duration;

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::{
    apps::v1::Deployment,
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, Node, Pod, ServiceAccount},
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{
        DeleteParams, DynamicObject, EvictParams, ListParams, LogParams, Patch, PatchParams,
        PostParams,
    },
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
    core::Selector,
    discovery::{Discovery, Scope},
    runtime::{
        WatchStreamExt,
        conditions::{is_deleted, is_deployment_completed, is_pod_running},
        wait::await_condition,
        watcher,
    },
};
use serde_json::json;

use crate::cluster::{Cluster, PATIENCE};

#[test]
fn kube_rs_works_over_tls() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let story = runtime.block_on(async { tokio::time::timeout(PATIENCE, story(&cluster)).await });
    match story {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("{error:?}\n{}", cluster.stderr()),
        Err(_) => panic!("it took longer than {PATIENCE:?}\n{}", cluster.stderr()),
    }
}

async fn story(cluster: &Cluster) -> anyhow::Result<()> {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig())?;
    let config =
        Config::from_custom_kubeconfig(kubeconfig.clone(), &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    assert_eq!(client.apiserver_version().await?.minor, "36");

    for discovery in [
        Discovery::new(client.clone()).run().await?,
        Discovery::new(client.clone()).run_aggregated().await?,
    ] {
        let group = discovery.get("karpenter.sh").expect("the group is there");
        let (pool, capabilities) = group
            .recommended_kind("NodePool")
            .expect("the kind is there");
        assert_eq!(capabilities.scope, Scope::Cluster);
        let pools: Api<DynamicObject> = Api::all_with(client.clone(), &pool);
        assert_eq!(pools.get("windows-2022").await?.name_any(), "windows-2022");
    }

    // A Deployment's pods, seen by a streaming list that starts before there are any.
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let mine = watcher::Config::default()
        .labels("app=web")
        .streaming_lists();
    let mut seen = Box::pin(
        watcher(pods.clone(), mine)
            .default_backoff()
            .applied_objects(),
    );
    let web: Deployment = serde_json::from_value(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "containers": [{"name": "main", "image": "nginx:1.27"}],
                },
            },
        },
    }))?;
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let apply = PatchParams::apply("kube-rs").force();
    deployments
        .patch("web", &apply, &Patch::Apply(&web))
        .await?;
    let complete = await_condition(deployments.clone(), "web", is_deployment_completed());
    complete.await?;
    let name = loop {
        let pod = seen.try_next().await?.expect("a watcher does not end");
        if pod
            .status
            .is_some_and(|status| status.phase.as_deref() == Some("Running"))
        {
            break pod.metadata.name.expect("pods have names");
        }
    };
    await_condition(pods.clone(), &name, is_pod_running()).await?;

    let follow = LogParams {
        follow: true,
        ..LogParams::default()
    };
    let mut lines = pods.log_stream(&name, &follow).await?.lines();
    let line = lines.next().await.expect("the container says something")?;
    assert!(!line.is_empty());

    let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let scaled = deployments
        .patch_scale("web", &PatchParams::default(), &scale)
        .await?;
    assert_eq!(scaled.spec.and_then(|spec| spec.replicas), Some(3));
    let evicted = pods.get(&name).await?;
    pods.evict(&name, &EvictParams::default()).await?;
    let uid = evicted.metadata.uid.expect("pods have uids");
    await_condition(pods.clone(), &name, is_deleted(&uid)).await?;
    deployments.restart("web").await?;
    await_condition(deployments.clone(), "web", is_deployment_completed()).await?;
    let selector: Selector = web.spec.expect("it has one").selector.try_into()?;
    let listed = pods
        .list(&ListParams::default().labels_from(&selector))
        .await?;
    assert!(listed.items.len() >= 3);
    deployments
        .delete("web", &DeleteParams::foreground())
        .await?;

    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes
        .list(&ListParams::default().limit(1))
        .await?
        .items
        .remove(0)
        .name_any();
    nodes.cordon(&node).await?;
    assert_eq!(
        nodes
            .get(&node)
            .await?
            .spec
            .and_then(|spec| spec.unschedulable),
        Some(true)
    );
    nodes.uncordon(&node).await?;

    // Another who: a service account by its token.
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    let asked = TokenRequest {
        spec: Some(TokenRequestSpec::default()),
        ..TokenRequest::default()
    };
    let token = accounts
        .create_token_request("default", &PostParams::default(), &asked)
        .await?;
    let token = token.status.and_then(|status| status.token);
    let token = token.expect("it was issued");
    let mut anew = kubeconfig;
    for user in &mut anew.auth_infos {
        user.auth_info = Some(AuthInfo {
            token: Some(token.clone().into()),
            ..AuthInfo::default()
        });
    }
    let config = Config::from_custom_kubeconfig(anew, &KubeConfigOptions::default()).await?;
    let account = Client::try_from(config)?;
    let refused = Api::<Namespace>::all(account)
        .list(&ListParams::default())
        .await;
    let refused = refused.expect_err("it has no rights").to_string();
    assert!(
        refused.contains("system:serviceaccount:default:default"),
        "{refused}"
    );
    Ok(())
}

/// kubectl's own informers: one watch that begins with the objects there are, and no list.
#[test]
fn kubectl_waits_by_a_streaming_list() {
    let cluster = Cluster::start(&["--speed", "max"]);
    cluster.kubectl(&["run", "one", "--image=nginx:1.27"]);
    for program in super::kubectls() {
        for wait in [
            [
                "wait",
                "pod/one",
                "--for=condition=Ready",
                "--timeout=60s",
                "-v=8",
            ],
            [
                "wait",
                "pod/one",
                "--for=jsonpath={.status.phase}=Running",
                "--timeout=60s",
                "-v=8",
            ],
        ] {
            let mut command = std::process::Command::new(&program);
            command
                .args(wait)
                .env("KUBE_FEATURE_WatchListClient", "true");
            let output = super::ended(&cluster, Duration::from_secs(90), &mut command);
            let said = crate::cluster::text(&output.stderr);
            assert!(output.status.success(), "{program:?}\n{said}");
            assert!(
                said.contains("sendInitialEvents=true"),
                "{program:?}\n{said}"
            );
            assert!(!said.contains("limit=500"), "{program:?} listed:\n{said}");
        }
    }
}
