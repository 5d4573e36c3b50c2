//! Creates and deletes a workload's pods in bulk, in parallel, with the events that upstream records.
//!
//! Pods of one template are one request body sent many times: it is serialized once, and of each answer only the name
//! is read. Creation starts slowly (1, 2, 4, ... at a time), so that a template the server refuses costs one request.

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

/// The little that is read of an answer.
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

/// How a bulk creation went.
#[derive(Debug)]
pub(super) struct Creations {
    /// Pods created.
    pub(super) created: usize,
    /// The first error; nothing was tried after the batch it happened in.
    pub(super) error: Option<kube::Error>,
}

impl PodControl {
    /// Creates one pod per element of `bodies` (see [`pod_body`]) in `namespace` on behalf of `owner`.
    ///
    /// `failed` is called for every body that did not become a pod. A namespace that is going away is no error.
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
                        error.get_or_insert(failure);
                    }
                }
            }
            (rest, batch_size) = (later, batch_size * 2);
        }
        rest.iter().for_each(|_| failed());
        let error = error.filter(|error| !api_error::is_namespace_terminating(error));
        Creations { created, error }
    }

    /// A task of its own, so that a batch uses every core.
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

    /// Deletes `pods` on behalf of `owner`. `failed` is called for every pod that was not deleted.
    ///
    /// Returns the first error; that a pod is already gone is none.
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

/// A pod of `template` controlled by `owner`, to be named by the server, passed through `adjust`.
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

/// `<owner>-`, or the owner's bare name if the dash would make the prefix an invalid name.
fn generate_name(owner: &str) -> String {
    if owner.len() < 253 {
        format!("{owner}-")
    } else {
        owner.to_owned()
    }
}
