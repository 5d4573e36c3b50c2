//! The results of scheduling: a [`Decision`], or the verdict of every node ([`Answer`]).

use crate::cluster::{Cluster, NodeId};
use crate::intern::Symbol;
use crate::reason::{Plugin, Refusal, Tally, Veto};

/// The node chosen for a pod, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The pod goes to this node.
    Node(NodeId),
    /// No node is feasible.
    Unschedulable(Unschedulable),
}

/// Why no node is feasible for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unschedulable {
    /// Why no node was examined; `None` if nodes were.
    pub conflict: Option<Veto>,
    /// The number of nodes with each refusal; [`Cluster::refusals`] has them node by node. Empty if there is a
    /// conflict.
    pub tallies: Vec<Tally>,
    /// What has to be done about the pod's ResourceClaims.
    pub claims: Claims,
}

/// What DynamicResources does for an unschedulable pod (kube-scheduler: PostFilter).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claims {
    /// The pod has no claims, or none that matter.
    #[default]
    None,
    /// Nothing can be done about the claims.
    Kept,
    /// This claim is to be deallocated, so that it can get other devices.
    GivenBack {
        /// The claim, in the pod's namespace.
        claim: Symbol,
    },
    /// This claim, left behind by an attempt to place the pod with extended resources, is to be deleted.
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

    /// Sorts tallies, so that their order does not depend on the order of filtering.
    pub(crate) fn in_order(cluster: &Cluster, mut tallies: Vec<Tally>) -> Vec<Tally> {
        if tallies.len() > 1 {
            // By text, because symbols are numbered by arrival and would order equal clusters differently.
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

    /// Returns the plugins that refused the pod or a node, each once; events that concern none of them cannot
    /// help.
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

/// The verdict of every node on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Why no node would be examined. If it is about volumes, every node reports it too.
    pub conflict: Option<Veto>,
    /// Every node, sorted by name.
    pub nodes: Vec<NodeAnswer>,
    /// The nodes with the highest total score, sorted by name.
    pub best: Vec<NodeId>,
    /// What has to be done about the pod's ResourceClaims if no node is feasible.
    pub claims: Claims,
}

/// The verdict of one node on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnswer {
    /// The node.
    pub node: NodeId,
    /// The verdict.
    pub outcome: Outcome,
}

/// The scores of a feasible node, or the refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The node is feasible.
    Fits {
        /// Normalized and weighted score by plugin; plugins that do not apply to the pod are absent.
        scores: Vec<(Plugin, i64)>,
        /// The sum of the scores.
        total: i64,
    },
    /// The first plugin that refuses the node, with its reasons.
    Refused(Refusal),
}
