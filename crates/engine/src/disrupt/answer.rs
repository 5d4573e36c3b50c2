//! What consolidation answers.

use crate::provision::PlannedNode;
use crate::schedule::Unschedulable;

/// Nodes to give back together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// Nodes that go.
    pub nodes: Vec<String>,
    /// Pods that find room on nodes which stay: pod key and node.
    pub existing: Vec<(String, String)>,
    /// Nodes to buy first, which the other pods go to.
    pub replacements: Vec<PlannedNode>,
    /// What is saved if each new node becomes the cheapest of its list: micro-dollars an hour. Whatever they become, something is saved.
    pub saving_micro_usd: u64,
}

/// Why a candidate stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stays {
    /// Its pool lets no more nodes go now.
    Budget,
    /// A pod would find no place, neither on other nodes nor on one that could be bought.
    PodStuck {
        /// The pod's key.
        pod: String,
        /// What the scheduler says of it.
        why: Box<Unschedulable>,
    },
    /// Nothing cheaper can take its place, or not enough cheaper.
    NoneCheaper,
    /// Only spot nodes could take the place of a spot node.
    SpotToSpot,
    /// The saving is too small for the disturbance.
    NotWorthIt,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Moves, those that buy nothing first. They can be made together.
    pub moves: Vec<Move>,
    /// Candidates that stay, by node name, in the order they were looked at.
    pub stays: Vec<(String, Stays)>,
    /// Micro-dollars an hour: if machines were bought anew for the pods of all candidates, they would cost no less. Pods whose
    /// rules cannot be said in numbers are left out; where zones are shared out beforehand it holds for these shares.
    pub bound_micro_usd: u64,
}
