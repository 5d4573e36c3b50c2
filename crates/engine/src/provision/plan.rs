//! The result of a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::ModelError;
use crate::model::{Quantity, ResourceMap};
use crate::reason::{Plugin, Reason};

use super::Requirement;

/// The place of each pending pod, and the nodes to buy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Pod key and the name of the existing or in-flight node it goes to.
    pub existing: Vec<(String, String)>,
    /// Nodes to buy.
    pub nodes: Vec<PlannedNode>,
    /// Pods that have no place.
    pub unplaceable: Vec<Unplaceable>,
    /// A lower bound for the price of the nodes that the pods on `nodes` need, however they are packed, in micro-dollars per
    /// hour. `None` if it is unknown: the plan was not made by cost, pods were packed onto existing nodes as well, or pods
    /// have no place.
    pub bound_micro_usd: Option<u64>,
    /// The most that DaemonSets take of a node of each pool; empty if no pool refused a pod.
    pub daemons: BTreeMap<String, ResourceMap>,
    /// The pools and zones in which no subnet has an address for a further node; empty unless the plan was made with
    /// [`SubnetAddresses`](super::SubnetAddresses).
    pub full: BTreeSet<(String, String)>,
}

impl Plan {
    /// Returns the price of the nodes to buy, each with its cheapest option, in micro-dollars per hour.
    pub fn price_micro_usd(&self) -> u64 {
        self.nodes.iter().map(PlannedNode::price_micro_usd).sum()
    }
}

/// A node to buy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedNode {
    /// The pool that buys it.
    pub pool: String,
    /// The instance types that hold the planned pods, cheapest first, never empty; at most 60 unless the pool's `minValues`
    /// need more. Nodes with equal options share one list.
    pub options: Arc<[InstanceTypeOption]>,
    /// The requirements on labels that the launch has to meet: types, zones, capacity types and the pool's own, sorted by
    /// key.
    pub requirements: Arc<[Requirement]>,
    /// Keys of the pods planned on it, in the order they were planned.
    pub pods: Vec<String>,
    /// The sum of the requests of the pods and the DaemonSets' pods.
    pub requests: ResourceMap,
    /// The part of `requests` that the DaemonSets' pods on the cheapest option make up.
    pub daemons: ResourceMap,
    /// The cost in addition to its offering, in micro-dollars per hour.
    pub node_price_micro_usd: u64,
    /// Whether fewer values stay possible than the pool's `minValues`; `requirements` has the number that does.
    pub min_values_relaxed: bool,
    /// Ids of the capacity reservations that it may run in, one of which it will use; empty if its capacity is not reserved.
    pub reservations: Arc<[String]>,
}

impl PlannedNode {
    /// Returns the price with the cheapest option, in micro-dollars per hour.
    pub fn price_micro_usd(&self) -> u64 {
        let cheapest = self.options.first();
        cheapest.map_or(0, |option| option.price_micro_usd) + self.node_price_micro_usd
    }
}

/// An instance type that a planned node can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceTypeOption {
    /// The type's name.
    pub name: String,
    /// The price of the cheapest offering that remains, in micro-dollars per hour.
    pub price_micro_usd: u64,
    /// The offerings that remain, cheapest first: zone, capacity type, price.
    pub offerings: Vec<(String, String, u64)>,
}

/// A pod that has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaceable {
    /// The pod's key.
    pub pod: String,
    /// Set if the pod itself is invalid.
    pub invalid: Option<ModelError>,
    /// Why each pool cannot buy a node for it, in the order in which pools were tried; empty if there are no pools. Pods of
    /// equal templates share one list.
    pub pools: Arc<[PoolRefusal]>,
}

impl Unplaceable {
    /// Returns whether the pod only waits until it is known in which reservations planned nodes run.
    pub fn waits(&self) -> bool {
        let held = |refusal: &PoolRefusal| refusal.reason == PoolReason::ReservationHeld;
        self.pools.iter().any(held)
    }
}

/// Why a pool cannot buy a node for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRefusal {
    /// The pool's name.
    pub pool: String,
    /// The reason.
    pub reason: PoolReason,
}

/// Why a pool cannot buy a node for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolReason {
    /// No instance type meets the pool's own requirements.
    NoInstanceTypes,
    /// A static filter refuses every type that meets the pool's requirements; this is the refusal of the first type.
    Incompatible {
        /// The filter.
        plugin: Plugin,
        /// Its reason.
        reason: Reason,
    },
    /// The pool's limits do not allow another node.
    LimitReached {
        /// The limited resource.
        resource: String,
        /// The amount left of it.
        remaining: Quantity,
        /// The other limited resources of which too little is left for each type that would hold the pod, with the amounts left.
        others: Vec<(String, Quantity)>,
    },
    /// The pod and the DaemonSets' pods together are larger than every type that the pod could run on.
    TooLarge {
        /// The resource that the largest type lacks.
        resource: String,
    },
    /// Types fit, but no offering of them can be bought now.
    NoOffering,
    /// Reserved capacity would fit, but other nodes of the plan hold all of it until it is known in which reservations they
    /// run.
    ReservationHeld,
    /// A node would fit, but not together with the pods that are placed already.
    Topology {
        /// The filter.
        plugin: Plugin,
        /// Its reason.
        reason: Reason,
    },
    /// No node has a place for the pod with the combinations of labels that were tried, of those that the pod accepts and the
    /// pool leaves open; there are more.
    MoreCombinations {
        /// The number of combinations that were tried.
        tried: usize,
    },
    /// Fewer values of a label would stay possible than the pool's `minValues`.
    MinValues {
        /// The label's key.
        key: String,
        /// The pool's `minValues`.
        wanted: u32,
        /// The number of values that would stay possible.
        found: u32,
    },
}
