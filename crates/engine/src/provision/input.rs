//! The input of a plan: pods without a place, nodes in flight, and what the pools can buy.
//!
//! Prices are whole micro-dollars per hour, so that comparisons are exact, and apply to the operating system that the node
//! will run.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{NodeSpec, Operator, PodSpec, PodTemplate, ResourceMap, StringMap, Taint};

/// The input of a plan.
#[derive(Clone, Debug, Default)]
pub struct PlanRequest {
    /// Pods that need a place.
    pub pods: Vec<PodSpec>,
    /// Nodes that were bought but do not accept pods yet.
    pub in_flight: Vec<InFlightNode>,
    /// The existing or in-flight nodes where the plan before placed pods, by the pods' keys. These pods stay there unless
    /// moving them makes a better plan that leaves none of the nodes without pods.
    pub places: BTreeMap<String, String>,
    /// What each pool can buy.
    pub templates: Vec<NodeTemplate>,
    /// Seed for choosing among equally good existing nodes.
    pub seed: u64,
    /// Whether pods are packed by cost instead of placed one by one as Karpenter does. The resulting plan is never more
    /// expensive than Karpenter's.
    pub by_cost: bool,
    /// Limits the search for a cheaper packing: how many times an item is compared with a machine. `None` means
    /// [`PlanRequest::EFFORT`].
    pub effort: Option<u64>,
    /// How far pods' preferences count when nodes are bought.
    pub preferences: PreferencePolicy,
    /// Whether pods are planned for a pool whose `minValues` cannot be met (Karpenter: `MIN_VALUES_POLICY`).
    pub min_values: MinValuesPolicy,
    /// Whether pods wait or other capacity is bought when planned nodes hold all reserved capacity.
    pub reserved: ReservedPolicy,
}

/// What happens to a pod that could use reserved capacity while other planned nodes hold all of it. A planned node holds one
/// instance of every reservation that it may run in, although it will run in only one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservedPolicy {
    /// Other capacity is bought for the pod (Karpenter: during disruption).
    #[default]
    FallBack,
    /// The pod waits until it is known in which reservations the nodes run (Karpenter: during provisioning).
    Wait,
}

/// What happens if a node would leave fewer values of a label possible than a requirement's `minValues`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinValuesPolicy {
    /// The pod is not planned on that node.
    #[default]
    Strict,
    /// The pod is planned with the values that remain, and
    /// [`PlannedNode::min_values_relaxed`](super::PlannedNode::min_values_relaxed) is set.
    BestEffort,
}

/// How far preferences count when nodes are bought: preferred node labels, preferred affinity and anti-affinity to pods,
/// soft spread constraints, and avoiding PreferNoSchedule taints. The scheduler follows preferences in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferencePolicy {
    /// They count as long as the plan costs no more than the pools allow ([`NodeTemplate::preference_price`]).
    #[default]
    WithinPrice,
    /// They count as long as suitable nodes can be bought, whatever their price (Karpenter:
    /// `PREFERENCE_POLICY=Respect`).
    Respect,
    /// They do not count (Karpenter: `PREFERENCE_POLICY=Ignore`).
    Ignore,
}

impl PlanRequest {
    /// The default for [`PlanRequest::effort`], which takes some tenths of a second.
    pub const EFFORT: u64 = 2_000_000;
}

/// A node that does not accept pods yet: a claim without a node, or a node that is not initialized. It is described as it
/// will be, without startup taints and with the resources that it does not advertise yet.
#[derive(Clone, Debug, Default)]
pub struct InFlightNode {
    /// The node as it will be, its startup taints left out. Its name is the claim's until there is a node.
    pub node: NodeSpec,
    /// Pods that earlier plans placed on it, and those that DaemonSets will put there.
    pub pods: Vec<PodSpec>,
}

/// What one pool can buy, and the nodes that result.
#[derive(Clone, Debug, Default)]
pub struct NodeTemplate {
    /// The pool's name; nodes get it as label `karpenter.sh/nodepool`.
    pub pool: String,
    /// The pool's weight: pools with a higher one are tried first; 0 if the pool sets none.
    pub weight: i32,
    /// Labels of the nodes.
    pub labels: StringMap,
    /// Taints of the nodes.
    pub taints: Vec<Taint>,
    /// Taints that nodes start with and lose later; the plan ignores them.
    pub startup_taints: Vec<Taint>,
    /// Requirements on instance types, zones, capacity types and other labels.
    pub requirements: Vec<Requirement>,
    /// What the pool may still buy, by resource (`cpu`, `memory`, `nodes`, ...); a resource that is absent is unlimited.
    pub limits_remaining: ResourceMap,
    /// The cost of each node in addition to its offering, in micro-dollars per hour.
    pub node_price_micro_usd: u64,
    /// The number of thousandths by which preferences may raise the price; `None` means
    /// [`NodeTemplate::PREFERENCE_PRICE`].
    pub preference_price: Option<u32>,
    /// The pods of DaemonSets. Each takes resources and host ports of the machines that the static filters let it run on.
    pub daemons: Vec<PodTemplate>,
    /// The instance types that can be bought, shared between pools.
    pub instance_types: Vec<Arc<InstanceType>>,
    /// All types that the pool's class could buy if the pool's requirements were different; empty if they equal
    /// `instance_types`. Only the search for remedies ([`crate::remedy`]) uses it.
    pub for_sale: Vec<Arc<InstanceType>>,
}

impl NodeTemplate {
    /// The default for [`NodeTemplate::preference_price`]: a tenth.
    pub const PREFERENCE_PRICE: u32 = 100;
}

/// One requirement of a pool: the values that a node label may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// The operator.
    pub operator: Operator,
    /// The operands.
    pub values: Vec<String>,
    /// The minimum number of values that must stay possible.
    pub min_values: Option<u32>,
}

impl Requirement {
    /// Returns whether a label's value, or its absence, satisfies the requirement.
    pub fn is_met_by(&self, value: Option<&String>) -> bool {
        // As in Karpenter, a value that is no number satisfies no comparison.
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        let bound = || {
            let bound = self.values.first();
            bound.and_then(|bound| bound.parse::<i64>().ok())
        };
        let compare = |holds: fn(i64, i64) -> bool| match (number(), bound()) {
            (Some(number), Some(bound)) => holds(number, bound),
            _ => false,
        };
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => compare(|number, bound| number > bound),
            Operator::Lt => compare(|number, bound| number < bound),
            Operator::Gte => compare(|number, bound| number >= bound),
            Operator::Lte => compare(|number, bound| number <= bound),
        }
    }
}

/// A machine type that can be bought, for one operating system.
#[derive(Clone, Debug, Default)]
pub struct InstanceType {
    /// The type's name, for example `c6a.xlarge`.
    pub name: String,
    /// The labels of its nodes: architecture, operating system, family, size, ... The instance-type label is added.
    pub labels: StringMap,
    /// The machine's capacity, which the pool's limits count.
    pub capacity: ResourceMap,
    /// The part of it that pods can have, including extended resources such as Windows addresses.
    pub allocatable: ResourceMap,
    /// Zones and capacity types in which the type is sold.
    pub offerings: Vec<Offering>,
}

/// One way to buy an instance type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offering {
    /// Zone; nodes get it as label `topology.kubernetes.io/zone`.
    pub zone: String,
    /// `spot`, `on-demand` or `reserved`; nodes get it as label `karpenter.sh/capacity-type`.
    pub capacity_type: String,
    /// The price in micro-dollars per hour for the node's operating system.
    pub price_micro_usd: u64,
    /// Whether the offering can be bought now.
    pub available: bool,
    /// Further labels of its nodes, such as the zone's id and what reservation they run in.
    pub labels: StringMap,
    /// The capacity reservation that it uses, if any.
    pub reservation: Option<Reservation>,
}

/// A capacity reservation that an offering uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// The reservation's id; offerings with the same id share one reservation.
    pub id: String,
    /// How many more nodes may be planned for it. If an available offering has 0 left, nodes that are being launched hold
    /// it.
    pub left: u32,
}
