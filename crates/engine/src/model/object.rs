//! The other objects that decide where pods go: namespaces, services, workloads and disruption budgets.

use super::{LabelSelector, StringMap};

/// A namespace and the labels that namespace selectors look at.
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

/// A service: pods it selects are spread by default.
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

/// A ReplicaSet, ReplicationController or StatefulSet: its pods are spread by default.
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

/// A disruption budget as preemption and draining see it.
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
    /// `spec.selector`; `None` or an empty one protects nothing from preemption.
    pub selector: Option<LabelSelector>,
    /// `status.disruptionsAllowed`.
    pub disruptions_allowed: i32,
    /// `status.disruptedPods` by pod name: already on their way out.
    pub disrupted_pods: Vec<String>,
}
