//! Sends the writes of the node lifecycle loop, each in a separate task, with a limited number at a time.
//!
//! A write that conflicts or fails is not repeated here: the watch delivers the current version, and the loop
//! decides again.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};

use super::watch::Input;
use crate::Context;

/// The part of a node that a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    Status,
}

pub(super) struct Writer {
    context: Context,
    permits: Arc<Semaphore>,
    inputs: mpsc::UnboundedSender<Input>,
}

impl Writer {
    pub(super) fn new(
        context: &Context,
        permits: Arc<Semaphore>,
        inputs: mpsc::UnboundedSender<Input>,
    ) -> Self {
        Self {
            context: context.clone(),
            permits,
            inputs,
        }
    }

    /// Patches a node. [`Input::Written`] follows whatever the result is.
    pub(super) fn node(&self, name: String, patch: Patch<Value>, part: Part) {
        let (client, permits) = (self.context.client.clone(), Arc::clone(&self.permits));
        let inputs = self.inputs.clone();
        self.context.tasks.spawn(async move {
            let permit = permits.acquire().await;
            let (nodes, params) = (Api::<Node>::all(client), PatchParams::default());
            let result = match part {
                Part::Status => nodes.patch_status(&name, &params, &patch).await,
                Part::Whole => nodes.patch(&name, &params, &patch).await,
            };
            if let Err(error) = result {
                tracing::debug!(%error, node = name, "node update failed");
            }
            drop(permit);
            // The send fails only when the process stops.
            let _ = inputs.send(Input::Written(name));
        });
    }

    /// Patches a pod's status.
    pub(super) fn pod_status(&self, pod: Arc<Pod>, patch: Value) {
        let (client, permits) = (self.context.client.clone(), Arc::clone(&self.permits));
        self.context.tasks.spawn(async move {
            let Ok(_permit) = permits.acquire().await else {
                return;
            };
            let pods: Api<Pod> = Api::namespaced(client, &pod.namespace().unwrap_or_default());
            let patch = Patch::Strategic(patch);
            let (name, params) = (pod.name_any(), PatchParams::default());
            if let Err(error) = pods.patch_status(&name, &params, &patch).await {
                tracing::debug!(%error, pod = full_name(&pod), "marking a pod not ready failed");
            }
        });
    }
}

/// Returns the parameters that delete only the object with this UID.
pub(super) fn uid_precondition(uid: Option<String>) -> DeleteParams {
    let preconditions = Preconditions {
        uid,
        resource_version: None,
    };
    DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    }
}

/// Returns `<namespace>/<name>`.
pub(super) fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}
