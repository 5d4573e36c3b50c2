//! Tests code that talks to Kubernetes against a whole API server in the test's own process: no socket, no binary, no container.
//!
//!     cargo run -p mullion-apiserver --example api_server_in_a_test
//!
//! The code under test is `restart`. Validation, defaults, conflicts and status codes are those of kube-apiserver 1.36.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client, Error, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use mullion_apiserver::{ApiServer, Config, admission::User};
use serde_json::json;

/// Restarts a Deployment's pods as `kubectl rollout restart` does, and returns its new generation.
async fn restart(client: Client, name: &str, at: &str) -> kube::Result<i64> {
    let deployments: Api<Deployment> = Api::default_namespaced(client);
    let annotations = json!({"kubectl.kubernetes.io/restartedAt": at});
    let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
    let restarted = deployments
        .patch(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    Ok(restarted.metadata.generation.unwrap_or_default())
}

/// A server of its own for each test: it costs some milliseconds. `ServiceAccount` is left out because no controller makes the accounts
/// without which pods are refused.
fn client() -> Client {
    let server = ApiServer::new(Config {
        disabled_admission: "ServiceAccount".parse().expect("the name of a plugin"),
        ..Config::default()
    });
    Client::new(server.router_as(User::administrator()), "default")
}

fn deployment(replicas: i32) -> Deployment {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "nginx"}]},
            },
        },
    });
    serde_json::from_value(deployment).expect("a Deployment")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> kube::Result<()> {
    let client = client();
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());

    // Defaults are filled in as on a real cluster.
    let created = deployments
        .create(&PostParams::default(), &deployment(3))
        .await?;
    let strategy = created.spec.and_then(|spec| spec.strategy?.type_);
    assert_eq!(strategy.as_deref(), Some("RollingUpdate"));
    assert_eq!(created.metadata.generation, Some(1));

    // The code under test; a change of the template counts as a new generation.
    let generation = restart(client.clone(), "web", "2026-01-01T00:00:00Z").await?;
    println!("restarted: generation {generation}");
    assert_eq!(generation, 2);

    // What goes wrong goes wrong as there, too.
    match restart(client, "shop", "2026-01-01T00:00:00Z").await {
        Err(Error::Api(status)) if status.is_not_found() => println!("{}", status.message),
        other => panic!("a missing Deployment is no 404: {other:?}"),
    }
    let invalid = deployments
        .create(&PostParams::default(), &deployment(-1))
        .await;
    match invalid {
        Err(Error::Api(status)) if status.code == 422 => {
            println!("{}", status.message);
        }
        other => panic!("a Deployment with -1 replicas is no error: {other:?}"),
    }
    let names = deployments.list(&ListParams::default()).await?;
    let names: Vec<_> = names.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["web"]);
    Ok(())
}
