//! Decodes pods for the shared informer without `managedFields`.
//!
//! The managed fields are a quarter of a pod's JSON and would become a tree of a hundred small maps, only to be
//! dropped at once. They are skipped while decoding. Everything else is as in [`Pod`].

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Pod, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use kube::Resource;
use serde::{Deserialize, Deserializer};

/// A decoded pod without `managedFields`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LeanPod {
    #[serde(default, deserialize_with = "without_managers")]
    metadata: ObjectMeta,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

impl From<LeanPod> for Pod {
    fn from(pod: LeanPod) -> Self {
        Pod {
            metadata: pod.metadata,
            spec: pod.spec,
            status: pod.status,
        }
    }
}

impl Resource for LeanPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group(_: &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version(_: &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural(_: &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn without_managers<'de, D: Deserializer<'de>>(input: D) -> Result<ObjectMeta, D::Error> {
    let meta = Meta::deserialize(input)?;
    Ok(ObjectMeta {
        annotations: meta.annotations,
        creation_timestamp: meta.creation_timestamp,
        deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
        deletion_timestamp: meta.deletion_timestamp,
        finalizers: meta.finalizers,
        generate_name: meta.generate_name,
        generation: meta.generation,
        labels: meta.labels,
        managed_fields: None,
        name: meta.name,
        namespace: meta.namespace,
        owner_references: meta.owner_references,
        resource_version: meta.resource_version,
        self_link: meta.self_link,
        uid: meta.uid,
    })
}

/// [`ObjectMeta`] without `managedFields`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    self_link: Option<String>,
    uid: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lean_pod_lacks_its_managed_fields_and_nothing_else() {
        let whole = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "annotations": { "a": "b" }, "creationTimestamp": "2026-01-27T10:00:00Z",
                "deletionGracePeriodSeconds": 30, "deletionTimestamp": "2026-01-27T10:01:00Z",
                "finalizers": ["f"], "generateName": "web-", "generation": 2, "labels": { "app": "web" },
                "managedFields": [{ "manager": "kubectl", "operation": "Update", "fieldsV1": { "f:spec": {} } }],
                "name": "web-1", "namespace": "ns", "resourceVersion": "7", "selfLink": "/x", "uid": "u",
                "ownerReferences": [{ "apiVersion": "v1", "kind": "K", "name": "o", "uid": "v", "controller": true }],
            },
            "spec": { "containers": [{ "name": "c" }] },
            "status": { "phase": "Running" },
        });
        let lean: LeanPod = serde_json::from_value(whole.clone()).expect("a pod");
        let mut pod: Pod = serde_json::from_value(whole).expect("a pod");
        assert!(pod.metadata.managed_fields.take().is_some());
        assert_eq!(Pod::from(lean), pod);
    }
}
