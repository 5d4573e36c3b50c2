//! A pod: its own fields ([`PodSpec`]) and those that it shares with all pods of its template ([`PodTemplate`]).
//!
//! Invariant: pods with equal templates are equal to the scheduler. Everything that differs between replicas (names, UIDs,
//! times, status) is kept out of the template.

use super::{Affinity, LabelSelector, PodClaims, PodVolume, ResourceMap, StringMap, TaintEffect};

/// The fields of a `v1.Pod` that matter to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::wire::Pod")
)]
pub struct PodSpec {
    /// `metadata.uid`: the pod's key in the cluster; if it is empty, the key is `namespace/name`.
    pub uid: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.nodeName`: the node that the pod is bound to.
    pub node_name: Option<String>,
    /// `status.nominatedNodeName`: the node on which preemption makes room for the pod.
    pub nominated_node_name: Option<String>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// Whether the condition DisruptionTarget says that kube-scheduler preempts the pod.
    pub preempted: bool,
    /// Whether `status.phase` is Succeeded or Failed, so that the pod uses no resources.
    pub finished: bool,
    /// `status.startTime` in seconds since 1970.
    pub start_time: Option<i64>,
    /// The fields that it shares with other pods of its template.
    pub template: PodTemplate,
}

/// The fields that pods of one template share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodTemplate {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.labels`.
    pub labels: StringMap,
    /// The controlling owner, for default topology spread and to recognize DaemonSet pods.
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
    /// The names in `spec.schedulingGates`; a pod that has any is not scheduled.
    pub scheduling_gates: Vec<String>,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// `spec.schedulerName`; empty means the default one.
    pub scheduler_name: String,
    /// The volumes of `spec.volumes` that can affect where the pod runs. Pods with different claims have different
    /// templates.
    pub volumes: Vec<PodVolume>,
    /// `spec.volumes[].image.reference` as written: images that are mounted, not run.
    pub image_volumes: Vec<String>,
    /// `spec.resourceClaims`; `None` if the pod has none.
    pub claims: Option<Box<PodClaims>>,
}

/// The controlling owner of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnerRef {
    /// The kind, as ReplicaSet, DaemonSet, StatefulSet or Job; followed by the API version if it is not Kubernetes' own for
    /// that kind (`StatefulSet.apps.kruise.io/v1`).
    pub kind: String,
    /// The owner's name.
    pub name: String,
}

impl OwnerRef {
    /// Creates an owner from the fields of `metadata.ownerReferences`.
    pub fn new(api_version: &str, kind: &str, name: &str) -> Self {
        // Without this, a kind of the same name from another API would own pods in the place of Kubernetes' own.
        let usual = match kind {
            "ReplicaSet" | "StatefulSet" | "DaemonSet" => "apps/v1",
            "ReplicationController" => "v1",
            _ => api_version,
        };
        OwnerRef {
            kind: if api_version == usual {
                kind.to_owned()
            } else {
                format!("{kind}.{api_version}")
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
    /// Requests and limits; of a running container those that it has at present ([`hold`](super::hold)).
    pub resources: Resources,
    /// Ports; only those with a `host_port` matter.
    pub ports: Vec<ContainerPort>,
    /// `Always` on an init container makes it a sidecar.
    pub restart_policy: Option<RestartPolicy>,
    /// Rules for restarting the container or the pod.
    pub restart_policy_rules: Vec<RestartRule>,
}

/// The action after a container exits in a certain way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct RestartRule {
    /// `Restart` or `RestartAllContainers`; only kubelets with the feature support the latter.
    pub action: String,
}

/// Requests and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct Resources {
    /// The amounts that are reserved.
    pub requests: ResourceMap,
    /// The maximum amounts; the API server has set absent requests to these.
    pub limits: ResourceMap,
}

/// A container's restart policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum RestartPolicy {
    /// Always restarted; on an init container it makes a sidecar.
    Always,
    /// Restarted after a failure.
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

/// Allows a pod onto nodes with a taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct Toleration {
    /// Taint key; empty (with `Exists`) for every key.
    pub key: String,
    /// How the taint's value is compared.
    pub operator: TolerationOperator,
    /// The value to compare with.
    pub value: String,
    /// The effect that is tolerated; `None` for all.
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
    /// The taint's value is a greater integer; behind a Kubernetes feature gate that is off by default.
    Gt,
    /// The taint's value is a smaller integer; behind the same gate.
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
    /// The maximum difference between the numbers of matching pods of two domains.
    pub max_skew: i32,
    /// The node label whose values are the domains.
    pub topology_key: String,
    /// Whether the constraint filters or scores nodes.
    pub when_unsatisfiable: WhenUnsatisfiable,
    /// The pods that are counted; `None` matches none.
    pub label_selector: Option<LabelSelector>,
    /// With fewer domains than this, the smallest count is taken as 0.
    pub min_domains: Option<i32>,
    /// Whether nodes excluded by the pod's node affinity are left out of the domains; default `Honor`: they are.
    pub node_affinity_policy: Option<InclusionPolicy>,
    /// Whether nodes with untolerated taints are left out of the domains; default `Ignore`: they are not.
    pub node_taints_policy: Option<InclusionPolicy>,
    /// Keys of pod labels whose values are added to the selector.
    pub match_label_keys: Vec<String>,
}

/// The effect of an unsatisfied constraint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum WhenUnsatisfiable {
    /// The node is filtered out.
    #[default]
    DoNotSchedule,
    /// The node gets a lower score.
    ScheduleAnyway,
}

/// Whether a node property is respected when domains are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum InclusionPolicy {
    /// Only nodes that pass are counted.
    Honor,
    /// All nodes are counted.
    Ignore,
}

/// Whether a pod may preempt others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum PreemptionPolicy {
    /// It may preempt pods of lower priority.
    #[default]
    PreemptLowerPriority,
    /// It waits for room.
    Never,
}

impl PodSpec {
    /// Returns the pod's key: its UID, or `namespace/name` if it has no UID yet.
    pub fn key(&self) -> String {
        if self.uid.is_empty() {
            format!("{}/{}", self.template.namespace, self.name)
        } else {
            self.uid.clone()
        }
    }
}

impl Container {
    /// Returns whether this init container is a sidecar, which runs beside the main containers.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(RestartPolicy::Always)
    }
}
