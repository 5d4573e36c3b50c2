//! Finds the pod template that the chunks of a CapacityBuffer are made from. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodTemplate, PodTemplateSpec};
use kube::ResourceExt;
use mullion_api::capacity_buffer::CapacityBuffer;
use mullion_cloud::WindowsAddresses;

use super::{chunk, size};
use crate::provisioner::coming_pod;

/// Gives access to the objects that chunks are made from.
pub trait Templates {
    /// Returns a PodTemplate.
    fn pod_template(&self, namespace: &str, name: &str) -> Option<Arc<PodTemplate>>;

    /// Returns the pod template of a Deployment, StatefulSet or ReplicaSet, and how many pods it shall have.
    fn workload(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<(PodTemplateSpec, Option<i32>)>;
}

/// The source of a buffer's chunks.
#[derive(Debug, Default)]
pub(super) struct Origin {
    pub(super) template: PodTemplateSpec,
    /// Name and generation of the PodTemplate, if it is one.
    pub(super) pod_template: Option<(String, Option<i64>)>,
    /// How many pods the workload shall have, if it is one.
    pub(super) replicas: Option<i32>,
}

/// Why it is not known what a chunk is: reason and message of a condition.
pub(super) type Unresolved = (&'static str, String);

impl Origin {
    /// Returns the template that a buffer's chunks are made from (karpenter: `ResolveCapacityBuffer`).
    ///
    /// # Errors
    /// The buffer names no template, or one that is not there.
    pub(super) fn of(
        buffer: &CapacityBuffer,
        templates: &impl Templates,
    ) -> Result<Self, Unresolved> {
        let (namespace, spec) = (buffer.namespace().unwrap_or_default(), &buffer.spec);
        if let Some(reference) = &spec.pod_template_ref {
            let name = &reference.name;
            let found = templates.pod_template(&namespace, name);
            let found = found.ok_or_else(|| {
                let message = format!("PodTemplate {name:?} not found");
                ("PodTemplateNotFound", message)
            })?;
            return Ok(Origin {
                template: found.template.clone().unwrap_or_default(),
                pod_template: Some((name.clone(), found.metadata.generation)),
                replicas: None,
            });
        }
        let failed = |message: String| Err(("ResolutionFailed", message));
        let Some(reference) = &spec.scalable_ref else {
            return failed("Neither podTemplateRef nor scalableRef is set".to_owned());
        };
        if !matches!(reference.api_group.as_str(), "" | "apps") {
            let group = &reference.api_group;
            return failed(format!("unsupported scalableRef API group {group:?}"));
        }
        let (kind, name) = (reference.kind.as_str(), &reference.name);
        if !matches!(kind, "Deployment" | "StatefulSet" | "ReplicaSet") {
            return failed(format!("unsupported kind {kind:?}"));
        }
        let found = templates.workload(kind, &namespace, name);
        let (template, replicas) = found.ok_or_else(|| {
            let message = format!("{kind}.apps {name:?} not found");
            ("ScalableRefNotFound", message)
        })?;
        Ok(Origin {
            template,
            pod_template: None,
            replicas: Some(replicas.unwrap_or(1)),
        })
    }

    /// Returns how many chunks a buffer asks for, before the limit of [`size::MOST`].
    pub(super) fn count(&self, buffer: &CapacityBuffer) -> i64 {
        let mut pod = self.template.spec.clone().unwrap_or_default();
        coming_pod::request_limits(&mut pod);
        size::chunks(&buffer.spec, &pod, self.replicas)
    }

    /// Returns the chunks of a buffer.
    pub(super) fn chunks(
        &self,
        buffer: &CapacityBuffer,
        addresses: WindowsAddresses,
    ) -> Vec<Arc<Pod>> {
        let count = size::bounded(self.count(buffer));
        chunk::of(buffer, &self.template, count, addresses)
    }
}
