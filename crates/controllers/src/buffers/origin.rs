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

/// Why it is not known what a chunk is, with the message of a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// There is no such PodTemplate.
    #[error("PodTemplate {0:?} not found")]
    NoPodTemplate(String),
    /// The buffer refers to nothing.
    #[error("Neither podTemplateRef nor scalableRef is set")]
    NoReference,
    /// The buffer refers to a workload of this group.
    #[error("unsupported scalableRef API group {0:?}")]
    Group(String),
    /// The buffer refers to a workload of this kind.
    #[error("unsupported kind {0:?}")]
    Kind(String),
    /// There is no such workload.
    #[error("{kind}.apps {name:?} not found")]
    NoWorkload {
        /// The kind of the workload.
        kind: String,
        /// The name of the workload.
        name: String,
    },
}

impl Unresolved {
    /// Returns the reason of the condition.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Unresolved::NoPodTemplate(_) => "PodTemplateNotFound",
            Unresolved::NoWorkload { .. } => "ScalableRefNotFound",
            Unresolved::NoReference | Unresolved::Group(_) | Unresolved::Kind(_) => {
                "ResolutionFailed"
            }
        }
    }
}

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
            let found = found.ok_or_else(|| Unresolved::NoPodTemplate(name.clone()))?;
            return Ok(Origin {
                template: found.template.clone().unwrap_or_default(),
                pod_template: Some((name.clone(), found.metadata.generation)),
                replicas: None,
            });
        }
        let Some(reference) = &spec.scalable_ref else {
            return Err(Unresolved::NoReference);
        };
        if !matches!(reference.api_group.as_str(), "" | "apps") {
            return Err(Unresolved::Group(reference.api_group.clone()));
        }
        let (kind, name) = (reference.kind.as_str(), &reference.name);
        if !matches!(kind, "Deployment" | "StatefulSet" | "ReplicaSet") {
            return Err(Unresolved::Kind(kind.to_owned()));
        }
        let found = templates.workload(kind, &namespace, name);
        let (template, replicas) = found.ok_or_else(|| Unresolved::NoWorkload {
            kind: kind.to_owned(),
            name: name.clone(),
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
