//! Reads a cluster for the rules: the objects that the rules check, the nodes, and the GMSACredentialSpecs that the cluster's authorizer
//! denies to the service accounts of pods.

use std::{collections::BTreeSet, path::PathBuf};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::{Api, Client, api::PostParams};
use mullion_api::labels::PLACED_BY_IMAGE;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    path::Path,
    subject::{CredentialUse, NO_TEXT, Object, credential_uses},
};
use crate::{failure::Failure, why::source};

/// The number of lists requested at the same time.
const AT_ONCE: usize = 4;

/// The kind, the apiVersion, and the rest of the path of each list.
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

/// What the rules need from a cluster.
#[derive(Default)]
pub(super) struct Live {
    pub(super) objects: Vec<Object>,
    /// The credential specs that the service accounts of pods may not use.
    pub(super) denied: BTreeSet<CredentialUse>,
    /// Whether the cluster places pods by their images, as its webhook or the annotation of at least one pod shows.
    pub(super) places_by_image: bool,
}

/// Reads the cluster that a kubeconfig selects.
///
/// # Errors
/// The cluster does not answer, or the user may not list a kind.
pub(super) async fn cluster(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<Live, Failure> {
    let (client, server) = source::client(kubeconfig, context).await?;
    cluster_of(&client, &server).await
}

/// Reads a cluster. Objects that a controller created from another object are left out (nodes are not), because their owner is
/// checked.
///
/// # Errors
/// The cluster does not answer, or the user may not list a kind.
pub(super) async fn cluster_of(client: &Client, server: &str) -> Result<Live, Failure> {
    let lists: Vec<_> = stream::iter(LISTS)
        .map(|(kind, version, resource)| async move {
            // The core group is older than API groups and has a path of its own.
            let root = if version == "v1" { "api" } else { "apis" };
            let path = format!("/{root}/{version}/{resource}");
            Ok::<_, Failure>((version, source::list(client, server, kind, &path).await?))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let (mut objects, mut places_by_image) = (Vec::new(), false);
    for (version, (kind, list)) in lists {
        for item in list.and_then(|list| list.items).unwrap_or_default() {
            let mut value: Value = serde_json::from_str(item.get()).map_err(Failure::run)?;
            // The API server leaves kind and apiVersion out of the items of a list.
            value["apiVersion"] = version.into();
            value["kind"] = kind.into();
            places_by_image |=
                kind == "Pod" && value["metadata"]["annotations"][PLACED_BY_IMAGE].is_string();
            let owners = value["metadata"]["ownerReferences"].as_array();
            if kind == "Node"
                || owners
                    .is_none_or(|owners| !owners.iter().any(|owner| owner["controller"] == true))
            {
                objects.push(Object {
                    value,
                    text: NO_TEXT,
                    document: 0,
                    root: Path::default(),
                    is_patch: false,
                });
            }
        }
    }
    let denied = denied(client, &objects).await;
    places_by_image |= has_placement(client, server).await;
    Ok(Live {
        objects,
        denied,
        places_by_image,
    })
}

/// Returns whether the cluster has the webhook that places pods by their images. A list that the user may not read, or that fails, shows none.
async fn has_placement(client: &Client, server: &str) -> bool {
    const PATH: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    const NAME: &str = "\"placement.mullion.dev\"";
    let list = source::try_list(client, server, PATH).await.ok().flatten();
    let items = list.and_then(|list| list.items).unwrap_or_default();
    items.iter().any(|item| item.get().contains(NAME))
}

/// Returns the uses of credential specs by pods that the cluster's authorizer denies (SubjectAccessReview for the verb `use`, as
/// windows-gmsa's webhook asks). A review that fails, for instance because the user may not create reviews, counts as allowed, so that
/// nothing uncertain is reported.
async fn denied(client: &Client, objects: &[Object]) -> BTreeSet<CredentialUse> {
    let uses: BTreeSet<_> = objects.iter().flat_map(credential_uses).collect();
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let asked = stream::iter(uses).map(|one| {
        let reviews = &reviews;
        async move {
            let CredentialUse {
                namespace,
                account,
                name,
            } = &one;
            // The groups are those that the API server gives to every service account; without them rules for groups would not count.
            let review = json!({"spec": {
                "user": format!("system:serviceaccount:{namespace}:{account}"),
                "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{namespace}"), "system:authenticated"],
                "resourceAttributes": {
                    "verb": "use", "group": "windows.k8s.io", "resource": "gmsacredentialspecs", "namespace": namespace, "name": name,
                },
            }});
            let review = SubjectAccessReview::deserialize(&review).ok()?;
            let answer = reviews.create(&PostParams::default(), &review).await.ok()?;
            (!answer.status?.allowed).then_some(one)
        }
    });
    let denied = asked.buffered(AT_ONCE).collect::<Vec<_>>().await;
    denied.into_iter().flatten().collect()
}
