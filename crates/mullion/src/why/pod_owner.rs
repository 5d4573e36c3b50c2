//! The object that a pod is, or that creates it.

use mullion_controllers::workloads::POD_TEMPLATE_HASH;
use mullion_engine::model::PodSpec;

/// The object that a pod is, or that creates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodOwner {
    /// The kind: `Deployment`, for example, or `Pod` for a pod without a workload.
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl PodOwner {
    /// Returns whether an existing pod is this object, or was created by it. Pods of a CronJob's earlier runs are not counted.
    pub(crate) fn owns(&self, pod: &PodSpec) -> bool {
        let PodOwner {
            kind,
            namespace,
            name,
        } = self;
        if pod.template.namespace != *namespace {
            return false;
        }
        let owner = pod.template.owner.as_ref();
        let is_owned = |kind: &str, name: &str| {
            owner.is_some_and(|owner| owner.kind == kind && owner.name == name)
        };
        match kind.as_str() {
            "Pod" => pod.name == *name,
            "Deployment" => {
                let hash = pod.template.labels.get(POD_TEMPLATE_HASH);
                hash.is_some_and(|hash| is_owned("ReplicaSet", &format!("{name}-{hash}")))
            }
            kind => is_owned(kind, name),
        }
    }
}
