//! The objects of a cluster: what its rules are about, and its nodes.

use std::path::PathBuf;

use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use serde_json::Value;

use super::{path::Path, subject::Object};
use crate::{failure::Failure, why::source};

/// Lists asked for at the same time.
const AT_ONCE: usize = 4;

/// Kind, apiVersion and what follows the apiVersion in the path of the list.
const LISTS: [(&str, &str, &str); 20] = [
    ("Pod", "v1", "pods"),
    ("Service", "v1", "services"),
    ("Namespace", "v1", "namespaces"),
    ("Node", "v1", "nodes"),
    ("ConfigMap", "v1", "namespaces/kube-system/configmaps"),
    ("ReplicationController", "v1", "replicationcontrollers"),
    ("Deployment", "apps/v1", "deployments"),
    ("ReplicaSet", "apps/v1", "replicasets"),
    ("StatefulSet", "apps/v1", "statefulsets"),
    ("DaemonSet", "apps/v1", "daemonsets"),
    ("Job", "batch/v1", "jobs"),
    ("CronJob", "batch/v1", "cronjobs"),
    ("RuntimeClass", "node.k8s.io/v1", "runtimeclasses"),
    ("NodePool", "karpenter.sh/v1", "nodepools"),
    ("EC2NodeClass", "karpenter.k8s.aws/v1", "ec2nodeclasses"),
    ("Provisioner", "karpenter.sh/v1alpha5", "provisioners"),
    (
        "AWSNodeTemplate",
        "karpenter.k8s.aws/v1alpha1",
        "awsnodetemplates",
    ),
    ("ENIConfig", "crd.k8s.amazonaws.com/v1alpha1", "eniconfigs"),
    (
        "SecurityGroupPolicy",
        "vpcresources.k8s.aws/v1beta1",
        "securitygrouppolicies",
    ),
    (
        "GMSACredentialSpec",
        "windows.k8s.io/v1",
        "gmsacredentialspecs",
    ),
];

/// Returns the objects of the cluster that a kubeconfig names.
///
/// # Errors
/// The cluster does not answer.
pub(super) async fn objects(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<Vec<Object>, Failure> {
    let (client, server) = source::client(kubeconfig, context).await?;
    objects_of(&client, &server).await
}

/// Returns the objects of a cluster. What a controller made of another object is left out: its owner is checked.
///
/// # Errors
/// The cluster does not answer, or the user may not list a kind.
pub(super) async fn objects_of(client: &Client, server: &str) -> Result<Vec<Object>, Failure> {
    let lists: Vec<_> = stream::iter(LISTS)
        .map(|(kind, version, resource)| async move {
            let root = if version == "v1" { "api" } else { "apis" };
            let path = format!("/{root}/{version}/{resource}");
            Ok::<_, Failure>((version, source::list(client, server, kind, &path).await?))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let mut objects = Vec::new();
    for (version, (kind, list)) in lists {
        for item in list.and_then(|list| list.items).unwrap_or_default() {
            let mut value: Value = serde_json::from_str(item.get()).map_err(Failure::run)?;
            value["apiVersion"] = version.into();
            value["kind"] = kind.into();
            let owners = value["metadata"]["ownerReferences"].as_array();
            if kind == "Node"
                || owners
                    .is_none_or(|owners| !owners.iter().any(|owner| owner["controller"] == true))
            {
                objects.push(Object {
                    value,
                    text: usize::MAX,
                    document: 0,
                    root: Path::default(),
                });
            }
        }
    }
    Ok(objects)
}
