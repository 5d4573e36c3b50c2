//! Deletes nodes whose machine is gone (cloud-controller-manager: node lifecycle controller).

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use mullion_cloud::{CloudProvider, instance_id};

use super::{health::Ready, writer::uid_precondition};
use crate::{Context, Recorder};

pub(super) struct Instances {
    context: Context,
    cloud: Arc<dyn CloudProvider>,
    recorder: Recorder,
}

impl Instances {
    pub(super) fn new(context: &Context, cloud: Arc<dyn CloudProvider>) -> Self {
        Self {
            context: context.clone(),
            cloud,
            recorder: context.recorder("cloud-node-lifecycle-controller"),
        }
    }

    /// Deletes the node if it is not ready and the cloud does not know its instance.
    pub(super) fn look_for(&self, node: &Arc<Node>) {
        if Ready::of(node) == Ready::True || node.metadata.deletion_timestamp.is_some() {
            return;
        }
        let spec = node.spec.as_ref();
        let provider_id = spec.and_then(|spec| spec.provider_id.as_deref());
        let Some(id) = provider_id.and_then(instance_id) else {
            return;
        };
        let (cloud, client, node) = (
            Arc::clone(&self.cloud),
            self.context.client.clone(),
            Arc::clone(node),
        );
        let recorder = self.recorder.clone();
        self.context.tasks.spawn(async move {
            // Any other error of the cloud says nothing about the instance, so the node stays.
            if !cloud.get(id).await.is_err_and(|error| error.is_not_found()) {
                return;
            }
            let name = node.name_any();
            let message = format!("Deleting node {name} because it does not exist in the cloud provider");
            recorder.normal(&*node, "DeletingNode", message);
            let nodes: Api<Node> = Api::all(client);
            if let Err(error) = nodes.delete(&name, &uid_precondition(node.uid())).await {
                tracing::debug!(%error, node = name, "deleting a node without instance failed, the next round repeats it");
            }
        });
    }
}
