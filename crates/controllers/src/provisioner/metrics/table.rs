//! The names, types, labels and help texts of metrics: Karpenter's where the meaning is the same, and ours.
//! `docs/metrics.md` explains them.

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Claims that were created.
    Created,
    /// Claims that were disrupted.
    Disrupted,
    /// Claims that have ended.
    Terminated,
    /// The time from the deletion of a claim until it was gone.
    ClaimTermination,
    /// The time that the termination of an instance took.
    InstanceTermination,
    /// NodeClaims of nodes that were repaired.
    UnhealthyDisrupted,
    /// Nodes that have registered.
    NodesCreated,
    /// Nodes that have ended.
    NodesTerminated,
    /// Nodes that were drained.
    NodesDrained,
    /// The age of nodes at their end.
    NodesLifetime,
    /// The time from the deletion of a node until its finalizer was removed.
    NodesTermination,
    /// The allocatable resources of nodes.
    NodesAllocatable,
    /// The requests of the pods on a node.
    NodesPodRequests,
    /// The limits of the pods on a node.
    NodesPodLimits,
    /// The requests of the DaemonSet pods on a node.
    NodesDaemonRequests,
    /// The limits of the DaemonSet pods on a node.
    NodesDaemonLimits,
    /// The capacity of nodes that is not allocatable.
    NodesOverhead,
    /// The age of nodes.
    NodesAge,
    /// The share of the allocatable resources that pods request.
    Utilization,
    /// The number of nodes.
    NodeCount,
    /// Whether pools, claims and nodes were listed at least once.
    Synced,
    /// The number of nodes of a pool that may be disrupted at present.
    AllowedDisruptions,
    /// The number of nodes of a pool that use up its disruption budgets.
    NodesConsumingBudgets,
    /// The price of a pool's nodes.
    Cost,
    /// The limits of a pool.
    Limit,
    /// The resources of a pool's nodes.
    Usage,
    /// The state of a pod, in the labels.
    PodsState,
    /// The time from the creation of a pod until it was bound.
    PodsBound,
    /// The time from the creation of a pod until it was ready.
    PodsStartup,
    /// The age of a pod that is not bound yet.
    PodsUnbound,
    /// The age of a pod that was pending and is not ready yet.
    PodsUnstarted,
    /// The time from the first sight of a pod to the first decision about it.
    SchedulingDecision,
    /// The time since the first sight of a pod about which nothing was decided yet.
    SchedulingUndecided,
    /// The time from a pod's first place in a plan until it was bound.
    ProvisioningBound,
    /// The time from a pod's first place in a plan until it was ready.
    ProvisioningStartup,
    /// The time since the first place in a plan of a pod that is not bound yet.
    ProvisioningUnbound,
    /// The time since the first place in a plan of a pod that is not ready yet.
    ProvisioningUnstarted,
    /// Eviction requests by the status code of the answer.
    EvictionRequests,
    /// Pods that were drained from nodes that are being removed.
    PodsDrained,
    /// Pods whose node was disrupted.
    PodsDisrupted,
    /// The time that a plan took.
    Scheduling,
    /// Pods that no node can be bought for.
    UnschedulablePods,
    /// Pods that no node is planned for, whatever there is to buy.
    IgnoredPods,
    /// The time that a disruption method took to decide.
    Evaluation,
    /// Commands of the disruption controller.
    Decisions,
    /// Commands of the disruption controller by pool.
    DecisionsByPool,
    /// Nodes that a method may disrupt.
    Eligible,
    /// Candidates that were no longer candidates when a command was validated.
    FailedValidations,
    /// Commands whose replacements failed.
    QueueFailures,
    /// Searches that ran out of time.
    ConsolidationTimeouts,
    /// Messages about instances that were received.
    ReceivedMessages,
    /// Messages about instances that were handled and deleted.
    DeletedMessages,
    /// The age of messages when they were read.
    MessageAge,
    /// Failing checks of instances.
    UnhealthyStatus,
    /// Whether an offering can be bought.
    OfferingAvailable,
    /// The price of an offering.
    OfferingPrice,
    /// The vCPUs of an instance type.
    TypeCpu,
    /// The memory of an instance type.
    TypeMemory,
    /// Offerings that a launch did not get.
    LaunchFailures,
    /// Instances whose termination failed.
    TerminationFailures,
    /// The price of the nodes of the last plan that buys any.
    PlanPrice,
    /// The least that any plan for the same pods could cost.
    PlanBound,
    /// How far the plan may be above the cheapest one.
    PlanGap,
    /// The savings of consolidation's moves.
    Saving,
    /// Nodes that consolidation does not remove, by reason.
    Refused,
}

/// How a metric is counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A present value.
    Gauge,
    /// How many were at most so large, for each of these bounds.
    Histogram(&'static [f64]),
    /// Quantiles of the last ten minutes.
    Summary,
}

impl Kind {
    /// Returns the type's name in Prometheus' text format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
            Self::Summary => "summary",
        }
    }
}

/// Karpenter's bounds of durations.
const DURATIONS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0, 120.0, 150.0, 300.0, 450.0, 600.0,
];
const POWERS_TO_1024: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];
const POWERS_TO_2048: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0,
];
/// A quarter of an hour to 30 days.
const LIFETIMES: &[f64] = &[
    900.0, 1800.0, 2700.0, 3600.0, 7200.0, 14400.0, 21600.0, 28800.0, 36000.0, 43200.0, 57600.0,
    72000.0, 86400.0, 172800.0, 259200.0, 432000.0, 864000.0, 1296000.0, 1728000.0, 2160000.0,
    2592000.0,
];

const UNTIL_BOUND: &str = "The time from when Karpenter first thinks the pod can schedule until it binds. Note: this calculated from a point in \
     memory, not by the pod creation timestamp.";
const UNTIL_RUNNING: &str = "The time from when Karpenter first thinks the pod can schedule until the pod is running. Note: this calculated from a \
     point in memory, not by the pod creation timestamp.";

const POD: &[&str] = &["name", "namespace"];
const POOL: &[&str] = &["nodepool"];
const POOL_AND_ZONE: &[&str] = &["nodepool", "zone"];
const DISRUPTION: &[&str] = &[
    "capacity_type",
    "consolidation_policy",
    "nodepool",
    "reason",
    "termination_mode",
];
const OFFERING: &[&str] = &["capacity_type", "instance_type", "zone"];
/// Those of [`mullion_api::labels::WELL_KNOWN`] come on top.
pub(super) const OF_NODE: &[&str] = &["managed", "node_name", "phase"];
const OF_NODE_BY_RESOURCE: &[&str] = &["managed", "node_name", "phase", "resource_type"];

/// A metric as Prometheus is told of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Description {
    /// Name without [its prefix](Metric::prefix).
    pub name: &'static str,
    /// How it is counted.
    pub kind: Kind,
    /// Names of its labels, sorted. Metrics of nodes have one for each well-known label of nodes beside them.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

impl Metric {
    /// Every metric, in the order in which they are written.
    pub const ALL: [Self; 65] = [
        Self::Created,
        Self::Disrupted,
        Self::Terminated,
        Self::ClaimTermination,
        Self::InstanceTermination,
        Self::UnhealthyDisrupted,
        Self::NodesCreated,
        Self::NodesTerminated,
        Self::NodesDrained,
        Self::NodesLifetime,
        Self::NodesTermination,
        Self::NodesAllocatable,
        Self::NodesPodRequests,
        Self::NodesPodLimits,
        Self::NodesDaemonRequests,
        Self::NodesDaemonLimits,
        Self::NodesOverhead,
        Self::NodesAge,
        Self::Utilization,
        Self::NodeCount,
        Self::Synced,
        Self::AllowedDisruptions,
        Self::NodesConsumingBudgets,
        Self::Cost,
        Self::Limit,
        Self::Usage,
        Self::PodsState,
        Self::PodsBound,
        Self::PodsStartup,
        Self::PodsUnbound,
        Self::PodsUnstarted,
        Self::SchedulingDecision,
        Self::SchedulingUndecided,
        Self::ProvisioningBound,
        Self::ProvisioningStartup,
        Self::ProvisioningUnbound,
        Self::ProvisioningUnstarted,
        Self::EvictionRequests,
        Self::PodsDrained,
        Self::PodsDisrupted,
        Self::Scheduling,
        Self::UnschedulablePods,
        Self::IgnoredPods,
        Self::Evaluation,
        Self::Decisions,
        Self::DecisionsByPool,
        Self::Eligible,
        Self::FailedValidations,
        Self::QueueFailures,
        Self::ConsolidationTimeouts,
        Self::ReceivedMessages,
        Self::DeletedMessages,
        Self::MessageAge,
        Self::UnhealthyStatus,
        Self::OfferingAvailable,
        Self::OfferingPrice,
        Self::TypeCpu,
        Self::TypeMemory,
        Self::LaunchFailures,
        Self::TerminationFailures,
        Self::PlanPrice,
        Self::PlanBound,
        Self::PlanGap,
        Self::Saving,
        Self::Refused,
    ];

    /// Returns whether the metric has a label for each well-known label of nodes.
    pub fn is_of_node(self) -> bool {
        self >= Self::NodesAllocatable && self <= Self::NodesAge
    }

    /// Returns the prefix of the metric's name: `karpenter_` for Karpenter's metrics, `mullion_`
    /// for ours.
    pub fn prefix(self) -> &'static str {
        if self >= Self::PlanPrice {
            "mullion_"
        } else {
            "karpenter_"
        }
    }

    /// Returns the metric's name, type and help text.
    pub fn describe(self) -> Description {
        use Kind::{Counter, Gauge, Histogram, Summary};
        let of = |name, kind, labels, help| Description {
            name,
            kind,
            labels,
            help,
        };
        match self {
            Self::Created => of(
                "nodeclaims_created_total",
                Counter,
                &["min_values_relaxed", "nodepool", "reason"],
                "Number of nodeclaims created in total by Karpenter. Labeled by reason the nodeclaim was created, the owning nodepool, and if min \
                 values was relaxed for this nodeclaim.",
            ),
            Self::Disrupted => of(
                "nodeclaims_disrupted_total",
                Counter,
                DISRUPTION,
                "Number of nodeclaims disrupted in total by Karpenter. Labeled by reason the nodeclaim was disrupted, the owning nodepool, the \
                 capacity type, the consolidation policy, and the termination mode.",
            ),
            Self::Terminated => of(
                "nodeclaims_terminated_total",
                Counter,
                &["capacity_type", "nodepool", "zone"],
                "Number of nodeclaims terminated in total by Karpenter. Labeled by the owning nodepool, capacity type, and zone.",
            ),
            Self::ClaimTermination => of(
                "nodeclaims_termination_duration_seconds",
                Histogram(POWERS_TO_2048),
                POOL,
                "Duration of NodeClaim termination in seconds.",
            ),
            Self::UnhealthyDisrupted => of(
                "nodeclaims_unhealthy_disrupted_total",
                Counter,
                &["capacity_type", "condition", "image_id", "nodepool"],
                "Number of unhealthy nodeclaims disrupted in total by Karpenter. Labeled by condition on the node was disrupted, the owning nodepool, \
                 and the image ID.",
            ),
            Self::InstanceTermination => of(
                "nodeclaims_instance_termination_duration_seconds",
                Histogram(POWERS_TO_1024),
                POOL,
                "Duration of CloudProvider Instance termination in seconds.",
            ),
            Self::NodesCreated => of(
                "nodes_created_total",
                Counter,
                POOL_AND_ZONE,
                "Number of nodes created in total by Karpenter. Labeled by owning nodepool and zone.",
            ),
            Self::NodesTerminated => of(
                "nodes_terminated_total",
                Counter,
                POOL_AND_ZONE,
                "Number of nodes terminated in total by Karpenter. Labeled by owning nodepool and zone.",
            ),
            Self::NodesDrained => of(
                "nodes_drained_total",
                Counter,
                POOL,
                "The total number of nodes drained by Karpenter",
            ),
            Self::NodesLifetime => of(
                "nodes_lifetime_duration_seconds",
                Histogram(LIFETIMES),
                POOL,
                "The lifetime duration of the nodes since creation.",
            ),
            Self::NodesTermination => of(
                "nodes_termination_duration_seconds",
                Summary,
                POOL,
                "The time taken between a node's deletion request and the removal of its finalizer",
            ),
            Self::NodesAllocatable => of(
                "nodes_allocatable",
                Gauge,
                OF_NODE_BY_RESOURCE,
                "Node allocatable are the resources allocatable by nodes.",
            ),
            Self::NodesPodRequests => of(
                "nodes_total_pod_requests",
                Gauge,
                OF_NODE_BY_RESOURCE,
                "Node total pod requests are the resources requested by pods bound to nodes, including the DaemonSet pods.",
            ),
            Self::NodesPodLimits => of(
                "nodes_total_pod_limits",
                Gauge,
                OF_NODE_BY_RESOURCE,
                "Node total pod limits are the resources specified by pod limits, including the DaemonSet pods.",
            ),
            Self::NodesDaemonRequests => of(
                "nodes_total_daemon_requests",
                Gauge,
                OF_NODE_BY_RESOURCE,
                "Node total daemon requests are the resource requested by DaemonSet pods bound to nodes.",
            ),
            Self::NodesDaemonLimits => of(
                "nodes_total_daemon_limits",
                Gauge,
                OF_NODE_BY_RESOURCE,
                "Node total daemon limits are the resources specified by DaemonSet pod limits.",
            ),
            Self::NodesOverhead => of(
                "nodes_system_overhead",
                Gauge,
                OF_NODE_BY_RESOURCE,
                "Node system daemon overhead are the resources reserved for system overhead, the difference between the node's capacity and \
                 allocatable values are reported by the status.",
            ),
            Self::NodesAge => of(
                "nodes_current_lifetime_seconds",
                Gauge,
                OF_NODE,
                "Node age in seconds",
            ),
            Self::Utilization => of(
                "cluster_utilization_percent",
                Gauge,
                &["resource_type"],
                "Utilization of allocatable resources by pod requests",
            ),
            Self::NodeCount => of(
                "cluster_state_node_count",
                Gauge,
                &[],
                "Current count of nodes in cluster state",
            ),
            Self::Synced => of(
                "cluster_state_synced",
                Gauge,
                &[],
                "Returns 1 if cluster state is synced and 0 otherwise. Synced checks that nodeclaims and nodes that are stored in the APIServer have \
                 the same representation as Karpenter's cluster state",
            ),
            Self::AllowedDisruptions => of(
                "nodepools_allowed_disruptions",
                Gauge,
                &["nodepool", "reason"],
                "The number of nodes for a given NodePool that can be concurrently disrupting at a point in time. Labeled by NodePool. Note that \
                 allowed disruptions can change very rapidly, as new nodes may be created and others may be deleted at any point.",
            ),
            Self::NodesConsumingBudgets => of(
                "nodepools_nodes_consuming_budgets",
                Gauge,
                &["nodepool", "reason"],
                "The number of nodes consuming the budget of a nodepool at a point in time. Labeled by NodePool.",
            ),
            Self::Cost => of(
                "nodepools_cost_total",
                Gauge,
                POOL,
                "Total cost of the nodepool from Karpenter's perspective. Units are determined by the cloud provider. Not an authoritative source \
                 for billing. Includes modifications due to NodeOverlays",
            ),
            Self::Limit => of(
                "nodepools_limit",
                Gauge,
                &["nodepool", "resource_type"],
                "Limits specified on the nodepool that restrict the quantity of resources provisioned. Labeled by nodepool name and resource type.",
            ),
            Self::Usage => of(
                "nodepools_usage",
                Gauge,
                &["nodepool", "resource_type"],
                "The amount of resources that have been provisioned for a nodepool. Labeled by nodepool name and resource type.",
            ),
            Self::PodsState => of(
                "pods_state",
                Gauge,
                &[
                    "arch",
                    "capacity_type",
                    "instance_type",
                    "managed",
                    "name",
                    "namespace",
                    "node",
                    "nodepool",
                    "owner",
                    "phase",
                    "ready",
                    "scheduled",
                    "zone",
                ],
                "Pod state is the current state of pods. This metric can be used several ways as it is labeled by the pod name, namespace, owner, \
                 node, nodepool name, zone, architecture, capacity type, instance type, pod phase, and pod readiness.",
            ),
            Self::PodsBound => of(
                "pods_bound_duration_seconds",
                Histogram(DURATIONS),
                &[],
                "The time from pod creation until the pod is bound.",
            ),
            Self::PodsStartup => of(
                "pods_startup_duration_seconds",
                Summary,
                &[],
                "The time from pod creation until the pod is running.",
            ),
            Self::PodsUnbound => of(
                "pods_unbound_time_seconds",
                Gauge,
                &["name", "namespace"],
                "The time from pod creation until the pod is bound.",
            ),
            Self::PodsUnstarted => of(
                "pods_unstarted_time_seconds",
                Gauge,
                &["name", "namespace"],
                "The time from pod creation until the pod is running.",
            ),
            Self::SchedulingDecision => of(
                "pods_scheduling_decision_duration_seconds",
                Histogram(DURATIONS),
                &[],
                "The time it takes for Karpenter to first try to schedule a pod after it's been seen.",
            ),
            Self::SchedulingUndecided => of(
                "pods_provisioning_scheduling_undecided_time_seconds",
                Gauge,
                POD,
                "The time from when Karpenter has seen a pod without making a scheduling decision for the pod. Note: this calculated from a point \
                 in memory, not by the pod creation timestamp.",
            ),
            Self::ProvisioningBound => of(
                "pods_provisioning_bound_duration_seconds",
                Histogram(DURATIONS),
                &[],
                UNTIL_BOUND,
            ),
            Self::ProvisioningStartup => of(
                "pods_provisioning_startup_duration_seconds",
                Histogram(DURATIONS),
                &[],
                UNTIL_RUNNING,
            ),
            Self::ProvisioningUnbound => of(
                "pods_provisioning_unbound_time_seconds",
                Gauge,
                POD,
                UNTIL_BOUND,
            ),
            Self::ProvisioningUnstarted => of(
                "pods_provisioning_unstarted_time_seconds",
                Gauge,
                POD,
                UNTIL_RUNNING,
            ),
            Self::EvictionRequests => of(
                "pods_eviction_requests_total",
                Counter,
                &["code"],
                "The total number of pod eviction requests made by Karpenter, labeled by response code",
            ),
            Self::PodsDrained => of(
                "pods_drained_total",
                Counter,
                &["reason"],
                "The total number of pods drained during node termination by Karpenter, labeled by reason",
            ),
            Self::PodsDisrupted => of(
                "pods_disruption_initiated_total",
                Counter,
                DISRUPTION,
                "Number of pod disruptions initiated in total by Karpenter, incremented by the reschedulable pod count whenever the underlying \
                 nodeclaim is disrupted. Labeled by reason the nodeclaim was disrupted, the owning nodepool, the capacity type, the consolidation \
                 policy, and the termination mode. Pods owned by DaemonSets and mirror pods are excluded.",
            ),
            Self::Scheduling => of(
                "scheduler_scheduling_duration_seconds",
                Histogram(DURATIONS),
                &["controller"],
                "Duration of scheduling simulations used for deprovisioning and provisioning in seconds.",
            ),
            Self::UnschedulablePods => of(
                "scheduler_unschedulable_pods_count",
                Gauge,
                &["controller"],
                "The number of unschedulable Pods.",
            ),
            Self::IgnoredPods => of(
                "scheduler_ignored_pods_count",
                Gauge,
                &[],
                "Number of pods ignored during scheduling by Karpenter",
            ),
            Self::Evaluation => of(
                "voluntary_disruption_decision_evaluation_duration_seconds",
                Histogram(DURATIONS),
                &["consolidation_type", "reason"],
                "Duration of the disruption decision evaluation process in seconds. Labeled by method and consolidation type.",
            ),
            Self::Decisions => of(
                "voluntary_disruption_decisions_total",
                Counter,
                &["consolidation_type", "decision", "reason"],
                "Number of disruption decisions performed. Labeled by disruption decision, reason, and consolidation type.",
            ),
            Self::DecisionsByPool => of(
                "voluntary_disruption_decisions_by_nodepool_total",
                Counter,
                &["consolidation_type", "decision", "nodepool", "reason"],
                "Number of disruption decisions performed by nodepool. Labeled by nodepool name, disruption decision, reason, and consolidation type.",
            ),
            Self::Eligible => of(
                "voluntary_disruption_eligible_nodes",
                Gauge,
                &["reason"],
                "Number of nodes eligible for disruption by Karpenter. Labeled by disruption reason.",
            ),
            Self::FailedValidations => of(
                "voluntary_disruption_failed_validations_total",
                Counter,
                &["consolidation_type"],
                "Number of candidates that were selected for disruption but failed validation. Labeled by consolidation type.",
            ),
            Self::QueueFailures => of(
                "voluntary_disruption_queue_failures_total",
                Counter,
                &["consolidation_type", "decision", "reason"],
                "The number of times that an enqueued disruption decision failed. Labeled by disruption method.",
            ),
            Self::ConsolidationTimeouts => of(
                "voluntary_disruption_consolidation_timeouts_total",
                Counter,
                &["consolidation_type"],
                "Number of times the Consolidation algorithm has reached a timeout. Labeled by consolidation type.",
            ),
            Self::ReceivedMessages => of(
                "interruption_received_messages_total",
                Counter,
                &["message_type"],
                "Count of messages received from the SQS queue. Broken down by message type and whether the message was actionable.",
            ),
            Self::DeletedMessages => of(
                "interruption_deleted_messages_total",
                Counter,
                &[],
                "Count of messages deleted from the SQS queue.",
            ),
            Self::MessageAge => of(
                "interruption_message_queue_duration_seconds",
                Histogram(DURATIONS),
                &[],
                "Amount of time an interruption message is on the queue before it is processed by karpenter.",
            ),
            Self::OfferingAvailable => of(
                "cloudprovider_instance_type_offering_available",
                Gauge,
                OFFERING,
                "Instance type offering availability, based on instance type, capacity type, and zone",
            ),
            Self::OfferingPrice => of(
                "cloudprovider_instance_type_offering_price_estimate",
                Gauge,
                OFFERING,
                "Instance type offering estimated hourly price used when making informed decisions on node cost calculation, based on instance \
                 type, capacity type, and zone.",
            ),
            Self::TypeCpu => of(
                "cloudprovider_instance_type_cpu_cores",
                Gauge,
                &["instance_type"],
                "VCPUs cores for a given instance type.",
            ),
            Self::TypeMemory => of(
                "cloudprovider_instance_type_memory_bytes",
                Gauge,
                &["instance_type"],
                "Memory, in bytes, for a given instance type.",
            ),
            Self::LaunchFailures => of(
                "cloudprovider_instance_launch_failures_total",
                Counter,
                &["capacity_type", "reason", "zone", "zone_id"],
                "Number of instance launch (CreateFleet offering) failures, dimensioned by availability zone, zone ID, capacity type, and launch \
                 failure reason.",
            ),
            Self::TerminationFailures => of(
                "cloudprovider_instance_termination_failures_total",
                Counter,
                &["zone", "zone_id"],
                "Number of instance termination (TerminateInstances) failures, dimensioned by availability zone and zone ID.",
            ),
            Self::PlanPrice => of(
                "plan_price_usd_per_hour",
                Gauge,
                &[],
                "What the nodes of the last plan that buys cost.",
            ),
            Self::PlanBound => of(
                "plan_bound_usd_per_hour",
                Gauge,
                &[],
                "What nodes for the pods of the last plan that buys cost at least, however they are packed.",
            ),
            Self::PlanGap => of(
                "plan_gap_percent",
                Gauge,
                &[],
                "By how much the last plan that buys may be dearer than the cheapest plan.",
            ),
            Self::Saving => of(
                "consolidation_saving_usd_per_hour_total",
                Counter,
                &[],
                "What all moves of consolidation together save an hour.",
            ),
            Self::Refused => of(
                "consolidation_refused_nodes",
                Gauge,
                &["reason"],
                "Nodes that consolidation looked at last and leaves alone. Labeled by reason.",
            ),
            Self::UnhealthyStatus => of(
                "interruption_instance_status_unhealthy_total",
                Counter,
                &["category"],
                "Count of unique unhealthy instance statuses detected from EC2 DescribeInstanceStatus. Broken down by status check category.",
            ),
        }
    }
}
