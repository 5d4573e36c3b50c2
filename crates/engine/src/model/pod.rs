//! A pod: what is its own ([`PodSpec`]) and what it shares with all pods of its template ([`PodTemplate`]).
//!
//! Invariant: two pods with equal templates are the same question to the scheduler. Everything that differs between
//! replicas (names, UIDs, times, status) is kept out of the template.

use super::{Affinity, LabelSelector, PodClaims, PodVolume, ResourceMap, StringMap, TaintEffect};

/// What of a `v1.Pod` matters to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::wire::Pod")
)]
pub struct PodSpec {
    /// `metadata.uid`: the pod's key in the cluster; where it is empty, `namespace/name` is.
    pub uid: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.nodeName`: bound to this node.
    pub node_name: Option<String>,
    /// `status.nominatedNodeName`: preemption makes room for it there.
    pub nominated_node_name: Option<String>,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// `status.conditions`: DisruptionTarget says that kube-scheduler evicted it.
    pub preempted: bool,
    /// `status.phase` is Succeeded or Failed: it occupies nothing.
    pub finished: bool,
    /// `status.startTime` in seconds since 1970.
    pub start_time: Option<i64>,
    /// Everything it shares with its siblings.
    pub template: PodTemplate,
}

/// What pods of one template have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodTemplate {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.labels`.
    pub labels: StringMap,
    /// The controlling owner, for default topology spread and for telling DaemonSet pods.
    pub owner: Option<OwnerRef>,
    /// `spec.nodeSelector`.
    pub node_selector: StringMap,
    /// `spec.affinity`.
    pub affinity: Affinity,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
    /// `spec.containers`.
    pub containers: Vec<Container>,
    /// `spec.initContainers`.
    pub init_containers: Vec<Container>,
    /// `spec.overhead`.
    pub overhead: ResourceMap,
    /// `spec.resources`: requests of the pod as a whole.
    pub resources: Resources,
    /// `spec.topologySpreadConstraints`.
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// `spec.priority`.
    pub priority: i32,
    /// `spec.preemptionPolicy`.
    pub preemption_policy: PreemptionPolicy,
    /// `spec.os.name`.
    pub os: Option<String>,
    /// `spec.schedulingGates` by name: while there is one the pod is not scheduled.
    pub scheduling_gates: Vec<String>,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// `spec.schedulerName`; empty means the default one.
    pub scheduler_name: String,
    /// Those of `spec.volumes` that can decide where the pod goes. Pods with claims of their own are no siblings.
    pub volumes: Vec<PodVolume>,
    /// `spec.volumes[].image.reference` as written: images that are mounted instead of run.
    pub image_volumes: Vec<String>,
    /// `spec.resourceClaims`, of pods that have some.
    pub claims: Option<Box<PodClaims>>,
}

/// The controlling owner of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnerRef {
    /// ReplicaSet, DaemonSet, StatefulSet, Job, ...; with the API version behind it if that is not the one in which Kubernetes has the kind
    /// (`StatefulSet.apps.kruise.io/v1`).
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl OwnerRef {
    /// An owner as `metadata.ownerReferences` names it.
    pub fn new(api_version: &str, kind: &str, name: &str) -> Self {
        let usual = match kind {
            "ReplicaSet" | "StatefulSet" | "DaemonSet" => "apps/v1",
            "ReplicationController" => "v1",
            _ => api_version,
        };
        OwnerRef {
            kind: match api_version == usual {
                true => kind.to_owned(),
                false => format!("{kind}.{api_version}"),
            },
            name: name.to_owned(),
        }
    }
}

/// A container, init container or sidecar.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::wire::ContainerBody")
)]
pub struct Container {
    /// Image reference as written.
    pub image: String,
    /// Requests and limits. Of a container that runs: what it holds ([`hold`](super::hold)).
    pub resources: Resources,
    /// Ports; only those with a `host_port` matter.
    pub ports: Vec<ContainerPort>,
    /// `Always` on an init container makes it a sidecar.
    pub restart_policy: Option<RestartPolicy>,
    /// What else may be restarted, and when.
    pub restart_policy_rules: Vec<RestartRule>,
}

/// What happens when a container exits in a certain way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct RestartRule {
    /// `Restart` or `RestartAllContainers`; the kubelet must know the latter.
    pub action: String,
}

/// Requests and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct Resources {
    /// What is set aside.
    pub requests: ResourceMap,
    /// What is the most it may use; the API server has copied absent requests from here.
    pub limits: ResourceMap,
}

/// A container's restart policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum RestartPolicy {
    /// A sidecar.
    Always,
    /// Restarted when it fails.
    OnFailure,
    /// Never restarted.
    Never,
}

/// A container port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct ContainerPort {
    /// Port on the node; 0 for none.
    #[cfg_attr(feature = "serde", serde(rename = "hostPort"))]
    pub host_port: i32,
    /// Address on the node; empty for all.
    #[cfg_attr(feature = "serde", serde(rename = "hostIP"))]
    pub host_ip: String,
    /// TCP (also when empty), UDP or SCTP.
    pub protocol: String,
}

/// Lets a pod onto nodes with a taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct Toleration {
    /// Taint key; empty (with `Exists`) for every key.
    pub key: String,
    /// How the value compares.
    pub operator: TolerationOperator,
    /// With what.
    pub value: String,
    /// Only this effect; `None` for all.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "super::wire::effect"))]
    pub effect: Option<TaintEffect>,
    /// How long a NoExecute taint is tolerated, in seconds.
    pub toleration_seconds: Option<i64>,
}

/// How a toleration compares the taint's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum TolerationOperator {
    /// Same value.
    #[default]
    #[cfg_attr(feature = "serde", serde(alias = ""))]
    Equal,
    /// Any value.
    Exists,
    /// The taint's integer is above; behind an upstream gate that is off by default.
    Gt,
    /// The taint's integer is below; behind the same gate.
    Lt,
}

/// `spec.topologySpreadConstraints[]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct TopologySpreadConstraint {
    /// How uneven places may be.
    pub max_skew: i32,
    /// Node label whose values are the places.
    pub topology_key: String,
    /// Filter or score.
    pub when_unsatisfiable: WhenUnsatisfiable,
    /// Which pods are spread; `None` matches none.
    pub label_selector: Option<LabelSelector>,
    /// With fewer places than this the smallest count is taken as 0.
    pub min_domains: Option<i32>,
    /// Whether nodes the pod's node affinity excludes count as places; default `Honor`.
    pub node_affinity_policy: Option<InclusionPolicy>,
    /// Whether nodes with untolerated taints are left out; default `Ignore`: they count.
    pub node_taints_policy: Option<InclusionPolicy>,
    /// Labels whose value on the pod joins the selector.
    pub match_label_keys: Vec<String>,
}

/// What an unsatisfied constraint does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum WhenUnsatisfiable {
    /// Filters.
    #[default]
    DoNotSchedule,
    /// Scores.
    ScheduleAnyway,
}

/// Whether a node property is taken into account when places are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum InclusionPolicy {
    /// Only nodes that pass count.
    Honor,
    /// All nodes count.
    Ignore,
}

/// Whether a pod may evict others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum PreemptionPolicy {
    /// It may.
    #[default]
    PreemptLowerPriority,
    /// It waits.
    Never,
}

impl PodSpec {
    /// The pod's key: its UID, or `namespace/name` for a pod that has none yet.
    pub fn key(&self) -> String {
        if self.uid.is_empty() {
            format!("{}/{}", self.template.namespace, self.name)
        } else {
            self.uid.clone()
        }
    }
}

impl Container {
    /// An init container that keeps running beside the others.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(RestartPolicy::Always)
    }
}
