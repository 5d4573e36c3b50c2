//! `mullion bench`: benchmarks that users can repeat. Each prints what it measured, and on how many objects.

pub(crate) mod api;
pub(crate) mod consolidate;
mod end_to_end;
pub(crate) mod engine;
mod mix;
pub(crate) mod provision;

use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{WatchStreamExt, watcher},
};
use mullion_api::eksctl;
use mullion_cloud::Speed;
use rustc_hash::FxHashSet;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    cli::{MOST_PODS_PER_NODE, Output},
    failure::Failure,
    input::list,
    kubeconfig, memory, out,
    up::{
        cluster::Cluster,
        plan::{self, Plan},
        port::PortChoice,
    },
};

/// An instance type with 16 vCPUs, 64 GiB and 234 pods.
const INSTANCE_TYPE: &str = "m5.4xlarge";
/// The time that nodes get until pods are created without them.
const NODES_PATIENCE: Duration = Duration::from_secs(15);
/// The time after which the benchmark gives up.
const PATIENCE: Duration = Duration::from_secs(600);

/// Measures the time from one manifest to all pods Running and Ready, without simulated delays, through the API server's TLS port.
pub(crate) async fn up(nodes: u32, pods: u32, output: Output) -> Result<(), Failure> {
    let most = nodes.saturating_mul(MOST_PODS_PER_NODE);
    if pods > most {
        return Err(Failure::input(format!(
            "{pods} pods have no room on {nodes} nodes: each takes {MOST_PODS_PER_NODE}"
        ))
        .hint(format!(
            "--pods {most}, or --nodes {}",
            pods.div_ceil(MOST_PODS_PER_NODE)
        )));
    }
    let cluster = Cluster::start(plan(nodes)?).await?;
    // A late node is not an error, because the pods wait for it.
    let _ = cluster.nodes_ready(NODES_PATIENCE).await;
    let client = client(&cluster).await?;
    let measured = tokio::time::timeout(PATIENCE, apply_and_wait(&client, pods)).await;
    let resident = memory::resident_bytes();
    cluster.stop().await;
    let seconds = match measured {
        Ok(result) => result?.as_secs_f64(),
        Err(_) => {
            return Err(Failure::run(format!(
                "{pods} pods on {nodes} nodes were not all Running within {} s",
                PATIENCE.as_secs()
            )));
        }
    };
    let per_second = f64::from(pods) / seconds;
    match output {
        Output::Json => {
            let object = json!({
                "scenario": "up", "nodes": nodes, "pods": pods, "seconds": seconds, "pods_per_second": per_second, "resident_bytes": resident,
            });
            out::line(&object.to_string());
        }
        Output::Text => {
            let memory = resident.map_or("unknown".to_owned(), |bytes| {
                format!("{:.0} MB", bytes as f64 / 1e6)
            });
            out::line(&format!(
                "{pods} pods on {nodes} nodes: {seconds:.2} s from apply to all Running, {per_second:.0} pods/s, {memory} resident"
            ));
        }
    }
    Ok(())
}

fn plan(nodes: u32) -> Result<Plan, Failure> {
    let spec = eksctl::Cluster {
        node_groups: vec![plan::group("bench", INSTANCE_TYPE, nodes)],
        ..plan::default_spec()
    };
    Ok(Plan {
        name: spec.name.clone(),
        directory: None,
        fresh: false,
        spec,
        file: None,
        config: String::new(),
        default_pools: false,
        port: PortChoice::Exactly(0),
        kubeconfig: None,
        speed: Speed::INSTANT,
        exhausted: Vec::new(),
        subnet_bits: None,
        ipam: Default::default(),
        address_faults: Default::default(),
        node_profiles: Default::default(),
        images: Default::default(),
        registries: Default::default(),
        gates_unknown_images: false,
        pod_os_counts: true,
        gmsa_random_hostname: false,
        gates: Default::default(),
        settings: Default::default(),
        traces: None,
        scheduler: Default::default(),
        scheduler_text: None,
        detached: false,
        remarks: Vec::new(),
    })
}

/// Connects like a user: with a socket, TLS, and the administrator's certificate.
async fn client(cluster: &Cluster) -> Result<Client, Failure> {
    let failed = |why: String| Failure::run(format!("no client for the cluster: {why}"));
    let server = format!("https://{}", cluster.address);
    let config = kubeconfig::for_cluster(&kubeconfig::Cluster {
        name: "bench",
        server: &server,
        directory: None,
        certs: &cluster.certs,
    });
    let config = Kubeconfig::deserialize(&config).map_err(|error| failed(error.to_string()))?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .map_err(|error| failed(error.to_string()))?;
    Client::try_from(config).map_err(|error| failed(error.to_string()))
}

async fn apply_and_wait(client: &Client, pods: u32) -> Result<Duration, Failure> {
    let deployment = DynamicObject::deserialize(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "bench"},
        "spec": {
            "replicas": pods, "selector": {"matchLabels": {"app": "bench"}},
            "template": {
                "metadata": {"labels": {"app": "bench"}},
                "spec": {"containers": [{"name": "c", "image": "nginx:1.27", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}]},
            },
        },
    }))
    .map_err(|error| Failure::run(format!("the manifest is malformed: {error}")))?;
    let kind = ApiResource::erase::<Pod>(&());
    let api: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind);
    let mut changes = std::pin::pin!(
        watcher(api, watcher::Config::default().labels("app=bench"))
            .default_backoff()
            .applied_objects()
    );
    let began = Instant::now();
    let kind = ApiResource::erase::<Deployment>(&());
    let deployments: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind);
    deployments
        .create(&PostParams::default(), &deployment)
        .await
        .map_err(|error| Failure::run(format!("the Deployment cannot be created: {error}")))?;
    let mut running = FxHashSet::default();
    while running.len() < pods as usize {
        match changes.next().await {
            Some(Ok(pod)) if is_running(&pod) => {
                running.insert(pod.name_any());
            }
            // The watcher restarts by itself after an error.
            Some(_) => {}
            None => return Err(Failure::run("the watch on pods ended")),
        }
    }
    Ok(began.elapsed())
}

fn is_running(pod: &DynamicObject) -> bool {
    let status = &pod.data["status"];
    let is_ready =
        |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    status["phase"] == "Running" && list(&status["conditions"]).any(is_ready)
}
