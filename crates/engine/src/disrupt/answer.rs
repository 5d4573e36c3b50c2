//! The result of consolidation.

use crate::provision::PlannedNode;
use crate::schedule::Unschedulable;

/// Nodes to remove together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// Names of the nodes to remove.
    pub nodes: Vec<String>,
    /// Pods that move to nodes which stay: pod key and node name.
    pub existing: Vec<(String, String)>,
    /// Nodes to buy before, for the other pods.
    pub replacements: Vec<PlannedNode>,
    /// The saving if each new node gets the cheapest of its options, in micro-dollars per hour. Any other option saves
    /// something, too.
    pub saving_micro_usd: u64,
}

/// Why a candidate stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StayReason {
    /// The pool's disruption budget allows no further node.
    Budget,
    /// A pod would have no place, neither on other nodes nor on one that could be bought.
    PodStuck {
        /// The pod's key.
        pod: String,
        /// The scheduler's reasons.
        why: Box<Unschedulable>,
    },
    /// A pod would have no place, neither on other nodes nor on one that could be bought with the combinations of open labels that
    /// were tried; it accepts more.
    MoreCombinations {
        /// The pod's key.
        pod: String,
        /// The number of combinations that were tried.
        tried: usize,
    },
    /// No replacement is cheaper, or none by enough.
    NoneCheaper,
    /// Only spot nodes could replace the spot node, which is not enabled.
    SpotToSpot,
    /// The saving is too small for the disruption.
    NotWorthIt,
}

/// The moves to make, and the candidates that stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// The moves, those without replacements first. They can be made at the same time.
    pub moves: Vec<Move>,
    /// The candidates that stay by node name, in the order in which they were examined.
    pub stays: Vec<(String, StayReason)>,
    /// A lower bound for the price of new nodes for the pods of all candidates, in micro-dollars per hour. Pods whose
    /// constraints have no numeric form are left out; where zones are assigned beforehand, the bound holds for that
    /// assignment.
    pub bound_micro_usd: u64,
}
