//! What to buy: pending pods, nodes that exist or are on their way, and pools that can buy more.
//!
//! Karpenter's algorithm (largest pods first; existing nodes, then nodes planned already, then pools by weight), with
//! the scheduler's own filters: every planned node is a node of the [`Cluster`](crate::Cluster) between checkpoint and
//! rollback, so what is planned is what scheduling then does. The question is in `input`, the answer in `plan`; pools
//! become catalogs of concrete options (`catalog`), planned nodes lose options as pods join (`claim`), and `solve` is
//! the algorithm. What a pool could buy under other requirements (`sale`) is for those who look for changes.

mod catalog;
mod claim;
mod input;
mod limit;
mod plan;
mod sale;
mod solve;

pub(crate) use catalog::reachable;
pub use input::{InFlightNode, InstanceType, NodeTemplate, Offering, PlanRequest, Requirement};
pub use plan::{InstanceTypeOption, Plan, PlannedNode, PoolReason, PoolRefusal, Unplaceable};
pub(crate) use sale::{Machine, machines, options};
