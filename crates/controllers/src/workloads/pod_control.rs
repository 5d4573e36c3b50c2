//! Creates and deletes a workload's pods in bulk and in parallel, with the events that kube-controller-manager
//! records.
//!
//! Pods of one template have one request body that is sent many times: it is serialized once, and only the name is
//! read from each response. Creation starts slowly (1, 2, 4, ... at a time), so a template that the API server
//! refuses costs one request.

use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::{
    api::core::v1::{Pod, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Client, Resource, ResourceExt,
    api::{DeleteParams, PostParams},
    core::Request,
};
use serde::Deserialize;

use crate::{Recorder, api_error};

/// The fields that are read from a response.
#[derive(Deserialize)]
struct Created {
    metadata: Named,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Clone)]
pub(super) struct PodControl {
    pub(super) client: Client,
    pub(super) recorder: Recorder,
}

/// The result of a bulk creation.
#[derive(Debug)]
pub(super) struct Creations {
    /// How many pods were created.
    pub(super) created: usize,
    /// The first error. Batches after the one with the error were not tried.
    pub(super) error: Option<kube::Error>,
}

impl PodControl {
    /// Creates one pod per element of `bodies` (see [`pod_body`]) in `namespace` on behalf of `owner`.
    ///
    /// Calls `failed` for every body that did not become a pod. A terminating namespace is not an error.
    pub(super) async fn create<O: Resource<DynamicType = ()>>(
        &self,
        owner: &O,
        bodies: &[Arc<Vec<u8>>],
        failed: impl Fn(),
    ) -> Creations {
        let namespace = owner.namespace().unwrap_or_default();
        let (mut created, mut error) = (0, None);
        let (mut rest, mut batch_size) = (bodies, 1);
        while !rest.is_empty() && error.is_none() {
            let (batch, later) = rest.split_at(batch_size.min(rest.len()));
            for outcome in
                join_all(batch.iter().map(|body| self.spawn_create(&namespace, body))).await
            {
                match outcome {
                    Ok(name) => {
                        created += 1;
                        self.recorder.normal(
                            owner,
                            "SuccessfulCreate",
                            format!("Created pod: {name}"),
                        );
                    }
                    Err(failure) => {
                        failed();
                        if !api_error::is_namespace_terminating(&failure) {
                            let message =
                                format!("Error creating: {}", api_error::message(&failure));
                            self.recorder.warning(owner, "FailedCreate", message);
                        }
                        // Every failure calls `failed`, but the sync is retried for the first one.
                        error.get_or_insert(failure);
                    }
                }
            }
            // Doubled only after a batch without errors, so a refused template costs few requests.
            (rest, batch_size) = (later, batch_size * 2);
        }
        // Bodies that were not tried any more must not stay expected.
        rest.iter().for_each(|_| failed());
        let error = error.filter(|error| !api_error::is_namespace_terminating(error));
        Creations { created, error }
    }

    /// Creates a pod in a separate task, so that a batch uses all cores.
    async fn spawn_create(&self, namespace: &str, body: &Arc<Vec<u8>>) -> kube::Result<String> {
        let (client, body) = (self.client.clone(), Arc::clone(body));
        let request = Request::new(Pod::url_path(&(), Some(namespace)));
        let create = tokio::spawn(async move {
            let request = request
                .create(&PostParams::default(), body.to_vec())
                .map_err(kube::Error::BuildRequest)?;
            client.request::<Created>(request).await
        });
        let created = create
            .await
            .map_err(|error| kube::Error::Service(error.into()))?;
        Ok(created?.metadata.name)
    }

    /// Deletes `pods` on behalf of `owner`. Calls `failed` for every pod that was not deleted.
    ///
    /// Returns the first error. A pod that is already gone is not an error.
    pub(super) async fn delete<O: Resource<DynamicType = ()>>(
        &self,
        owner: &O,
        pods: &[Arc<Pod>],
        failed: impl Fn(&Pod),
    ) -> Option<kube::Error> {
        let deletions = pods.iter().map(|pod| async {
            let (client, name) = (self.client.clone(), pod.name_any());
            let request = Request::new(Pod::url_path(&(), pod.metadata.namespace.as_deref()));
            let request = request
                .delete(&name, &DeleteParams::default())
                .map_err(kube::Error::BuildRequest)?;
            let delete =
                tokio::spawn(async move { client.request::<serde::de::IgnoredAny>(request).await });
            delete
                .await
                .map_err(|error| kube::Error::Service(error.into()))?
        });
        let mut first = None;
        for (pod, outcome) in pods.iter().zip(join_all(deletions).await) {
            match outcome {
                Ok(_) => {
                    self.recorder.normal(
                        owner,
                        "SuccessfulDelete",
                        format!("Deleted pod: {}", pod.name_any()),
                    );
                }
                Err(error) => {
                    failed(pod);
                    if !api_error::is_not_found(&error) {
                        let message = format!("Error deleting: {}", api_error::message(&error));
                        self.recorder.warning(owner, "FailedDelete", message);
                        first.get_or_insert(error);
                    }
                }
            }
        }
        first
    }
}

/// Returns the request body of a pod of `template` that is controlled by the owner and named by the API server.
/// `adjust` may change the pod.
pub(super) fn pod_body(
    template: &PodTemplateSpec,
    owner_name: &str,
    namespace: &str,
    reference: OwnerReference,
    adjust: impl FnOnce(&mut Pod),
) -> Arc<Vec<u8>> {
    let from = template.metadata.clone().unwrap_or_default();
    let metadata = ObjectMeta {
        generate_name: Some(generate_name(owner_name)),
        namespace: Some(namespace.to_owned()),
        labels: from.labels,
        annotations: from.annotations,
        finalizers: from.finalizers,
        owner_references: Some(vec![reference]),
        ..ObjectMeta::default()
    };
    let mut pod = Pod {
        metadata,
        spec: template.spec.clone(),
        status: None,
    };
    adjust(&mut pod);
    // Serializing to memory cannot fail: keys are strings and there is no IO.
    Arc::new(serde_json::to_vec(&pod).expect("a pod serializes"))
}

/// Returns `<owner>-`, or the owner's bare name if the dash would make the prefix an invalid name.
fn generate_name(owner: &str) -> String {
    if owner.len() < 253 {
        format!("{owner}-")
    } else {
        owner.to_owned()
    }
}
