//! The provisioner's answer.

use std::sync::Arc;

use crate::error::ModelError;
use crate::model::{Quantity, ResourceMap};
use crate::reason::{Plugin, Reason};

use super::Requirement;

/// Where every pending pod goes, and what to buy for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Pod key and the name of the existing or in-flight node it goes to.
    pub existing: Vec<(String, String)>,
    /// Nodes to buy.
    pub nodes: Vec<PlannedNode>,
    /// Pods that nothing can place.
    pub unplaceable: Vec<Unplaceable>,
    /// However the pods on `nodes` are packed, nodes for them cost no less than this: micro-dollars an hour. None if it is not known: the
    /// question was not asked by cost, nodes that are there were packed together with these, or pods have no place.
    pub bound_micro_usd: Option<u64>,
}

impl Plan {
    /// What the nodes to buy cost, each as the cheapest that it may be: micro-dollars an hour.
    pub fn price_micro_usd(&self) -> u64 {
        self.nodes.iter().map(PlannedNode::price_micro_usd).sum()
    }
}

/// A node to buy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedNode {
    /// For this pool.
    pub pool: String,
    /// The types that hold the planned pods, cheapest first, at most 60 unless the pool demands a choice of more; never empty. Nodes that can be the
    /// same share one list.
    pub options: Arc<[InstanceTypeOption]>,
    /// What is left open, as requirements on labels: types, zones, capacity types and the pool's own, sorted by key.
    pub requirements: Arc<[Requirement]>,
    /// Keys of the pods planned on it, in the order they were planned.
    pub pods: Vec<String>,
    /// What the pods and DaemonSets together ask for.
    pub requests: ResourceMap,
    /// What it costs beside its offering: micro-dollars an hour.
    pub node_price_micro_usd: u64,
    /// Fewer values stay possible than the pool demands; `requirements` says how many there are.
    pub min_values_relaxed: bool,
    /// Ids of the capacity reservations that it may run in, of one of which it takes a machine; empty where its capacity is not reserved.
    pub reservations: Arc<[String]>,
}

impl PlannedNode {
    /// What it costs as the cheapest that it may be: micro-dollars an hour.
    pub fn price_micro_usd(&self) -> u64 {
        let cheapest = self.options.first();
        cheapest.map_or(0, |option| option.price_micro_usd) + self.node_price_micro_usd
    }
}

/// A type a planned node can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceTypeOption {
    /// Its name.
    pub name: String,
    /// Its cheapest offering that is left: micro-dollars per hour.
    pub price_micro_usd: u64,
    /// Offerings that are left: zone, capacity type, price; cheapest first.
    pub offerings: Vec<(String, String, u64)>,
}

/// A pod that nothing can place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaceable {
    /// Its key.
    pub pod: String,
    /// The pod itself cannot be true.
    pub invalid: Option<ModelError>,
    /// Why each pool cannot buy for it, in the order pools were tried. Empty: there are no pools. Pods of equal templates share one list.
    pub pools: Arc<[PoolRefusal]>,
}

impl Unplaceable {
    /// Whether it only waits until it is known what nodes of the plan run in.
    pub fn waits(&self) -> bool {
        let held = |refusal: &PoolRefusal| refusal.reason == PoolReason::ReservationHeld;
        self.pools.iter().any(held)
    }
}

/// Why a pool cannot buy for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRefusal {
    /// Which pool.
    pub pool: String,
    /// Why.
    pub reason: PoolReason,
}

/// Why a pool cannot buy for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolReason {
    /// No instance type meets the pool's own requirements.
    NoInstanceTypes,
    /// Every type that meets the pool's requirements is refused by a static filter; the first one's word.
    Incompatible {
        /// Which filter.
        plugin: Plugin,
        /// Why.
        reason: Reason,
    },
    /// The pool may not buy more.
    LimitReached {
        /// Of which resource.
        resource: String,
        /// What is left of it.
        remaining: Quantity,
    },
    /// The pod, with what DaemonSets take, is larger than every type it could run on.
    TooLarge {
        /// What it lacks on the largest.
        resource: String,
    },
    /// Types fit, but none can be had now.
    NoOffering,
    /// Reserved capacity would do, but other nodes of the plan hold all of it until it is known what they run in.
    ReservationHeld,
    /// A node would fit, but not beside the pods that are there.
    Topology {
        /// Which filter.
        plugin: Plugin,
        /// Why.
        reason: Reason,
    },
    /// Fewer values of a label would stay possible than the pool demands.
    MinValues {
        /// Which label.
        key: String,
        /// How many the pool demands.
        wanted: u32,
        /// How many there would be.
        found: u32,
    },
}
