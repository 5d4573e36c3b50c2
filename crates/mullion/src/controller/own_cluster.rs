//! What a process asks about itself: the cluster and the pod that it runs in, the user that it is, and its name among replicas.

use std::path::Path;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, Client, api::PostParams};
use mullion_api::eksctl::KubernetesVersion;
use tokio::time::timeout;

use crate::{failure::Failure, why::source};

/// The file with the namespace of the pod that the process runs in.
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Returns whether this process runs in a pod with a service account.
pub(super) fn runs_in_a_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && Path::new(OWN_NAMESPACE).exists()
}

/// Returns the namespace of the pod that this process runs in.
pub(super) fn namespace() -> Option<String> {
    let text = std::fs::read_to_string(OWN_NAMESPACE).ok()?;
    Some(text.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Returns a client with the permissions of the pod's service account.
pub(super) fn client() -> Result<(Client, String), Failure> {
    let failed = |why: String| {
        Failure::input(format!(
            "the service account of this pod cannot be used: {why}"
        ))
        .hint("the pod needs automountServiceAccountToken, or name a kubeconfig with --kubeconfig")
    };
    let config = kube::Config::incluster().map_err(|error| failed(error.to_string()))?;
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config).map_err(|error| failed(error.to_string()))?;
    Ok((client, server))
}

/// Returns a name for the leader election that no other candidate has.
pub(super) fn identity() -> String {
    let host = std::env::var("POD_NAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/etc/hostname").ok())
        .unwrap_or_default();
    // A restarted pod may have the same name, and must not take the Lease of its predecessor for its own.
    let unique = uuid::Uuid::new_v4();
    match host.trim() {
        "" => unique.to_string(),
        host => format!("{host}_{unique}"),
    }
}

/// Returns the Kubernetes version for new nodes, which is the API server's.
pub(super) async fn kubernetes_version(client: &Client) -> Result<KubernetesVersion, Failure> {
    let failed =
        |why: String| Failure::run(format!("the version of the API server is not known: {why}"));
    let said = timeout(source::PATIENCE, client.apiserver_version()).await;
    let said = said
        .map_err(|_| failed("no answer".to_owned()))?
        .map_err(|error| failed(error.to_string()))?;
    // EKS reports a minor version such as "35+".
    let minor = said.minor.trim_end_matches('+').parse().ok();
    minor
        .and_then(KubernetesVersion::from_minor)
        .ok_or_else(|| failed(format!("{}.{} has no images", said.major, said.minor)))
}

/// Returns the user that this process is to the API server, so that the parts `addresses` and `ipam` of one process, or of processes with one
/// kubeconfig, do not refuse each other's writes.
pub(super) async fn user(client: &Client) -> Option<String> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let (params, question) = (PostParams::default(), SelfSubjectReview::default());
    let said = timeout(source::PATIENCE, api.create(&params, &question)).await;
    let why = match said {
        Ok(Ok(review)) => return review.status?.user_info?.username,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    tracing::warn!(
        "the API server does not say which user this process is ({why}): if it hands out addresses of Windows pods, name its user in --address-users"
    );
    None
}
