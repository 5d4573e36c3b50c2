//! What the provisioner is asked.
//!
//! Prices are whole micro-dollars per hour, so that ranking is exact; they are those of the operating system that will
//! run on the node.

use std::sync::Arc;

use crate::model::{NodeSpec, Operator, PodSpec, PodTemplate, ResourceMap, StringMap, Taint};

/// The question.
#[derive(Clone, Debug, Default)]
pub struct PlanRequest {
    /// Pods that need a place.
    pub pods: Vec<PodSpec>,
    /// Nodes that were bought and are not ready for pods yet.
    pub in_flight: Vec<InFlightNode>,
    /// What can be bought.
    pub templates: Vec<NodeTemplate>,
    /// Picks among equals when pods go to nodes that exist.
    pub seed: u64,
    /// Packs pods by cost, instead of placing them one by one as Karpenter does. The plan is never dearer.
    pub by_cost: bool,
    /// How long is searched for a cheaper packing: items are looked at so many times for one machine or another. None takes
    /// [`PlanRequest::EFFORT`].
    pub effort: Option<u64>,
    /// How much what pods prefer counts for the nodes to buy.
    pub preferences: PreferencePolicy,
    /// Whether pods are planned for pools whose demands for a choice of values cannot be met (Karpenter: `MIN_VALUES_POLICY`).
    pub min_values: MinValuesPolicy,
    /// What becomes of pods for which planned nodes leave no reserved capacity.
    pub reserved: ReservedPolicy,
}

/// What becomes of a pod that reserved capacity is there for, all of which other planned nodes hold. A planned node holds a machine of every
/// reservation that it may run in, though it will run in one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservedPolicy {
    /// Other capacity is bought for it (Karpenter: while it looks for what to give back).
    #[default]
    FallBack,
    /// It waits until it is known what the nodes run in (Karpenter: while it provisions).
    Wait,
}

/// What the `minValues` of a pool's requirements do where fewer values would stay possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinValuesPolicy {
    /// The pod is not planned there.
    #[default]
    Strict,
    /// It is planned with as many values as there are, and the node says so.
    BestEffort,
}

/// How much what pods prefer counts for nodes to buy: labels of nodes, being near or apart from others, being spread, being on nodes without a
/// PreferNoSchedule taint. The scheduler follows preferences in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferencePolicy {
    /// As far as it costs no more than the pools allow ([`NodeTemplate::preference_price`]).
    #[default]
    WithinPrice,
    /// As far as nodes can be bought, whatever they cost (Karpenter: `PREFERENCE_POLICY=Respect`).
    Respect,
    /// Not at all (Karpenter: `PREFERENCE_POLICY=Ignore`).
    Ignore,
}

impl PlanRequest {
    /// Looks at items in search of a cheaper packing, unless the request says otherwise: some tenths of a second.
    pub const EFFORT: u64 = 2_000_000;
}

/// A node on its way: a claim without a node yet, or a node that is there but not initialized. Of the latter this says
/// what it will be, for the time of the plan: without startup taints, with what it does not advertise yet.
#[derive(Clone, Debug, Default)]
pub struct InFlightNode {
    /// The node as it will be, its startup taints left out. Its name is the claim's until there is a node.
    pub node: NodeSpec,
    /// What DaemonSets will take of it beyond those of their pods that are on it.
    pub daemon_overhead: ResourceMap,
    /// Pods that earlier plans put there.
    pub pods: Vec<PodSpec>,
}

/// What one pool can buy.
#[derive(Clone, Debug, Default)]
pub struct NodeTemplate {
    /// Pool name; nodes get it as label `karpenter.sh/nodepool`.
    pub pool: String,
    /// Higher first; 0 where none is set.
    pub weight: i32,
    /// Labels of the nodes.
    pub labels: StringMap,
    /// Taints of the nodes.
    pub taints: Vec<Taint>,
    /// Taints the nodes start with and lose; they keep no pod away from the plan.
    pub startup_taints: Vec<Taint>,
    /// What instance types, zones, capacity types and labels may be.
    pub requirements: Vec<Requirement>,
    /// What the pool may still buy by resource (`cpu`, `memory`, `nodes`, ...); absent is unlimited.
    pub limits_remaining: ResourceMap,
    /// What is taken of each node beside the pods of `daemons`.
    pub daemon_overhead: ResourceMap,
    /// What each of its nodes costs beside its offering: micro-dollars an hour.
    pub node_price_micro_usd: u64,
    /// By so many thousandths what pods prefer may make its nodes dearer; none for [`NodeTemplate::PREFERENCE_PRICE`].
    pub preference_price: Option<u32>,
    /// The pods of DaemonSets: each is counted on the machines that it would run on.
    pub daemons: Vec<PodTemplate>,
    /// The types there are, shared between pools.
    pub instance_types: Vec<Arc<InstanceType>>,
    /// Every type that the pool's class could buy if its requirements were others; empty where that is `instance_types`. Only a search for
    /// changes ([`crate::remedy`]) looks at it.
    pub for_sale: Vec<Arc<InstanceType>>,
}

impl NodeTemplate {
    /// What pods prefer may make nodes dearer by a tenth, unless the pool says otherwise.
    pub const PREFERENCE_PRICE: u32 = 100;
}

/// One requirement of a pool: the values its nodes' label may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// How to compare.
    pub operator: Operator,
    /// With what.
    pub values: Vec<String>,
    /// At least this many values must stay possible.
    pub min_values: Option<u32>,
}

impl Requirement {
    /// Whether a label's value, or its absence, meets it.
    pub fn is_met_by(&self, value: Option<&String>) -> bool {
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

/// A machine that can be bought, for one operating system.
#[derive(Clone, Debug, Default)]
pub struct InstanceType {
    /// Name, for example `c6a.xlarge`.
    pub name: String,
    /// Labels of its nodes: architecture, operating system, family, size, ... The type's own label is added.
    pub labels: StringMap,
    /// What the machine has; limits count it.
    pub capacity: ResourceMap,
    /// What pods can have, extended resources such as Windows addresses included.
    pub allocatable: ResourceMap,
    /// Where and how it is sold.
    pub offerings: Vec<Offering>,
}

/// A way to buy a type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offering {
    /// Zone; nodes get it as label `topology.kubernetes.io/zone`.
    pub zone: String,
    /// `spot`, `on-demand` or `reserved`; nodes get it as label `karpenter.sh/capacity-type`.
    pub capacity_type: String,
    /// Micro-dollars per hour for the operating system that runs.
    pub price_micro_usd: u64,
    /// Whether it can be had now.
    pub available: bool,
    /// What it draws on, if its capacity is reserved.
    pub reservation: Option<Reservation>,
}

/// A capacity reservation that an offering draws on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Its id; offerings with one id draw on one reservation.
    pub id: String,
    /// What nodes in it have as labels, the capacity type left out.
    pub labels: StringMap,
    /// How many more nodes may be planned for it. Where an offering that can be had has none left, nodes that are being launched hold it.
    pub left: u32,
}
