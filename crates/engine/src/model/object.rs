//! The other objects that affect placement: namespaces, services, workloads and disruption budgets.

use super::{LabelSelector, StringMap};

/// A namespace with its labels, which namespace selectors match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::wire::Namespace")
)]
pub struct NamespaceSpec {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: StringMap,
}

/// A service. The pods that it selects are spread by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::wire::Service")
)]
pub struct ServiceSpec {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.selector`; empty selects nothing.
    pub selector: StringMap,
}

/// A ReplicaSet, ReplicationController or StatefulSet. Its pods are spread by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::wire::Workload")
)]
pub struct WorkloadSpec {
    /// `kind`.
    pub kind: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.selector`.
    pub selector: LabelSelector,
}

/// The fields of a PodDisruptionBudget that preemption and draining read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::wire::Pdb")
)]
pub struct PdbSpec {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.selector`; `None` and an empty selector protect no pod from preemption.
    pub selector: Option<LabelSelector>,
    /// `status.disruptionsAllowed`.
    pub disruptions_allowed: i32,
    /// The names in `status.disruptedPods`: pods that are being evicted already.
    pub disrupted_pods: Vec<String>,
}
