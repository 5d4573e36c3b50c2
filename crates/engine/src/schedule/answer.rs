//! What can be answered: a [`Decision`], or what every node says ([`Answer`]).

use crate::cluster::{Cluster, NodeId};
use crate::intern::Symbol;
use crate::reason::{Plugin, Refusal, Tally, Veto};

/// Where a pod goes, or why nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// To this node.
    Node(NodeId),
    /// Nowhere.
    Unschedulable(Unschedulable),
}

/// Why a pod goes nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unschedulable {
    /// Why no node was looked at, if none was.
    pub conflict: Option<Veto>,
    /// How many nodes refuse in which way; [`Cluster::refusals`] tells node by node. Empty on a conflict.
    pub tallies: Vec<Tally>,
    /// What becomes of the pod's claims of devices.
    pub claims: Claims,
}

/// What DynamicResources does for a pod that goes nowhere (upstream's PostFilter).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claims {
    /// It has none, or none that matter.
    #[default]
    None,
    /// Nothing can be done about them.
    Kept,
    /// The devices of this claim are to be given back, so that it can have others.
    GivenBack {
        /// The claim, in the pod's namespace.
        claim: Symbol,
    },
    /// This claim, which an attempt to place the pod has left behind for its extended resources, is to be deleted.
    Deleted {
        /// The claim, in the pod's namespace.
        claim: Symbol,
    },
}

impl Unschedulable {
    pub(super) fn of(cluster: &Cluster, tallies: Vec<Tally>) -> Self {
        Unschedulable {
            tallies: Self::in_order(cluster, tallies),
            ..Unschedulable::default()
        }
    }

    pub(super) fn by(conflict: Veto) -> Self {
        Unschedulable {
            conflict: Some(conflict),
            ..Unschedulable::default()
        }
    }

    /// Tallies in an order that does not depend on how they came about.
    pub(crate) fn in_order(cluster: &Cluster, mut tallies: Vec<Tally>) -> Vec<Tally> {
        if tallies.len() > 1 {
            tallies.sort_by_cached_key(|tally| {
                let reasons = tally.refusal.reasons();
                let details = reasons.map(|reason| cluster.reason_detail(reason));
                let resolvable = !tally.refusal.is_unresolvable();
                (
                    tally.refusal.plugin,
                    details.collect::<Vec<_>>(),
                    resolvable,
                )
            });
        }
        tallies
    }

    /// The plugins that refused the pod or a node, each once: changes that concern none of them cannot help.
    pub fn plugins(&self) -> Vec<Plugin> {
        let tallies = self.tallies.iter().map(|tally| tally.refusal.plugin);
        let mut plugins: Vec<_> = tallies
            .chain(self.conflict.map(|veto| veto.plugin))
            .collect();
        plugins.sort_unstable();
        plugins.dedup();
        plugins
    }
}

/// What every node says to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Why no node would be looked at. Where it is about volumes every node says it too.
    pub conflict: Option<Veto>,
    /// Every node, in order of their names.
    pub nodes: Vec<NodeAnswer>,
    /// The nodes with the highest total, in order of their names.
    pub best: Vec<NodeId>,
    /// What becomes of the pod's claims of devices if there are none.
    pub claims: Claims,
}

/// What one node says to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnswer {
    /// Which node.
    pub node: NodeId,
    /// Yes or no.
    pub outcome: Outcome,
}

/// Yes with scores, or no with reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The pod fits.
    Fits {
        /// Normalized and weighted score by plugin; plugins that do not apply to the pod are absent.
        scores: Vec<(Plugin, i64)>,
        /// Their sum.
        total: i64,
    },
    /// The first plugin that refuses.
    Refused(Refusal),
}
