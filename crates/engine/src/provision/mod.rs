//! What to buy: pending pods, nodes that exist or are on their way, and pools that can buy more.
//!
//! The scheduler's own filters decide: every planned node is a node of the [`Cluster`](crate::Cluster) between
//! checkpoint and rollback, so what is planned is what scheduling then does. The question is in `input`, the answer in
//! `plan`; pools become catalogs of concrete options (`catalog`) with room beside their DaemonSets (`rooms`), planned nodes lose options as pods join (`claim`).
//! `solve` tries several ways and keeps the cheapest: pods one by one, as Karpenter does (`one_by_one`, with several choices of zones in `first_fit`), or packed by cost. For the
//! latter the question is put in numbers (`numbers`), packed (`pack`) and carried out (`packed`). What a pool could buy
//! under other requirements (`sale`) is for those who look for changes,
//! what to buy in place of nodes that go (`replace`) for those who give back. What pods prefer is demanded as far as it
//! may cost (`preferences`). Pods keep the places of the plan before (`kept`). Existing nodes are tried again as others are
//! planned (`retry`), and pods that share a node start where there is room for all (`units`). Pods that ask for too many values of open
//! labels are planned for in several `rounds`; `other_labels` says for which of them another value could help. A finished plan can be put
//! into the cluster for what is asked next (`carried`). No plan puts more nodes into a capacity reservation than it has machines
//! (`reservations`), and on request none has nodes for which no subnet has an address (`addresses`).

mod addresses;
mod carried;
mod catalog;
mod cheapest;
mod claim;
mod first_fit;
mod in_flight;
mod input;
mod kept;
mod limit;
mod lists;
mod numbers;
mod one_by_one;
mod open_labels;
mod other_labels;
mod pack;
mod packed;
mod parts;
mod places;
mod plan;
mod preferences;
mod replace;
mod reservations;
mod retry;
mod room_table;
mod rooms;
mod rounds;
mod sale;
mod solve;
mod units;

pub use addresses::SubnetAddresses;
pub(crate) use catalog::reachable;
pub use input::{
    InFlightNode, InstanceType, MinValuesPolicy, NodeTemplate, Offering, PlanRequest,
    PreferencePolicy, Requirement, Reservation, ReservedPolicy,
};
pub use plan::{InstanceTypeOption, Plan, PlannedNode, PoolReason, PoolRefusal, Unplaceable};
pub(crate) use replace::{NoReplacement, Pools, Values};
pub(crate) use sale::{Machine, machines, options};
