//! The object that a pod is, or that creates it.

use mullion_controllers::workloads::POD_TEMPLATE_HASH;
use mullion_engine::model::PodSpec;
use serde_json::Value;

/// The reason of Events about pods, or about the Jobs of a CronJob, that a controller could not create.
pub(super) const FAILED_CREATE: &str = "FailedCreate";

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

    /// Returns whether an Event says that a pod of this workload could not be created. Those of a Deployment are about its ReplicaSets, those
    /// of a CronJob about itself or its Jobs.
    pub(super) fn is_refused_in(&self, event: &Value) -> bool {
        let about = &event["involvedObject"];
        let (Some(kind), Some(name)) = (about["kind"].as_str(), about["name"].as_str()) else {
            return false;
        };
        let is_of_home = about["namespace"] == self.namespace.as_str();
        if event["reason"] != FAILED_CREATE || !is_of_home {
            return false;
        }
        let is_itself = kind == self.kind && name == self.name;
        // What is made ends in a hash or a time, in which there is no dash.
        let is_made = || {
            let rest = name.strip_prefix(&self.name);
            let rest = rest.and_then(|rest| rest.strip_prefix('-'));
            rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('-'))
        };
        let kinds = (self.kind.as_str(), kind);
        is_itself || matches!(kinds, ("Deployment", "ReplicaSet") | ("CronJob", "Job")) && is_made()
    }
}
