//! The question "which node for this pod?", its short answer ([`Decision`]) and its full one ([`Answer`]).
//!
//! Every node is filtered in upstream's order and every feasible one scored; the highest total wins, and among equals
//! the one that the caller's seed and the node's name pick, so insertion order is never visible.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId, Question};
use crate::error::ModelError;
use crate::filter;
use crate::model::PodSpec;
use crate::reason::{Plugin, Reason, Refusal};
use crate::score::{self, Column};
use crate::selector::NamedNodes;

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
    /// The pod contradicts itself, so that no node was looked at.
    pub conflict: bool,
    /// Every node with its refusal, in order of their names. Empty on a conflict.
    pub nodes: Vec<(NodeId, Refusal)>,
}

impl Unschedulable {
    /// The plugins that refused a node, each once: changes that concern none of them cannot help.
    pub fn plugins(&self) -> Vec<Plugin> {
        let mut plugins: Vec<_> = self
            .nodes
            .iter()
            .map(|(_, refusal)| refusal.plugin)
            .collect();
        plugins.sort_unstable();
        plugins.dedup();
        plugins
    }
}

/// What every node says to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The pod contradicts itself, so that no node was looked at.
    pub conflict: bool,
    /// Every node, in order of their names.
    pub nodes: Vec<NodeAnswer>,
    /// The nodes with the highest total, in order of their names.
    pub best: Vec<NodeId>,
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

/// The nodes after filtering.
pub(crate) struct Filtered {
    pub(crate) feasible: Vec<NodeId>,
    pub(crate) refused: Vec<(NodeId, Refusal)>,
}

impl Cluster {
    /// The node for a pod of a class.
    pub fn schedule(&mut self, class: PodClassId, seed: u64) -> Decision {
        self.schedule_key(class, "", seed)
    }

    /// The node for a pod; room held for the pod itself ([`Cluster::nominate`]) is its own.
    ///
    /// # Errors
    /// The pod asks for a negative amount.
    pub fn schedule_pod(&mut self, pod: &PodSpec, seed: u64) -> Result<Decision, ModelError> {
        let class = self.pod_class(&pod.template)?;
        Ok(self.schedule_key(class, &pod.key(), seed))
    }

    /// The full answer for a pod of a class.
    pub fn answer(&mut self, class: PodClassId) -> Answer {
        let filtered = self.filter(class, "");
        let question = self.question(class);
        let columns = score::columns(&question, &filtered.feasible);
        let totals = totals(&columns, filtered.feasible.len());
        let highest = totals.iter().max().copied();
        let mut best: Vec<_> = filtered
            .feasible
            .iter()
            .zip(&totals)
            .filter(|(_, total)| Some(**total) == highest)
            .map(|(id, _)| *id)
            .collect();
        let scored =
            filtered
                .feasible
                .iter()
                .zip(&totals)
                .enumerate()
                .map(|(row, (node, total))| {
                    let scores = columns
                        .iter()
                        .map(|column| (column.plugin, column.scores[row]))
                        .collect();
                    NodeAnswer {
                        node: *node,
                        outcome: Outcome::Fits {
                            scores,
                            total: *total,
                        },
                    }
                });
        let refused = filtered.refused.into_iter();
        let refused = refused.map(|(node, refusal)| NodeAnswer {
            node,
            outcome: Outcome::Refused(refusal),
        });
        let mut nodes: Vec<_> = scored.chain(refused).collect();
        let conflict = question.class.shape.named_nodes == NamedNodes::Conflict;
        nodes.sort_by(|a, b| self.node_name(a.node).cmp(self.node_name(b.node)));
        best.sort_by(|a, b| self.node_name(*a).cmp(self.node_name(*b)));
        Answer {
            conflict,
            nodes,
            best,
        }
    }

    /// [`Cluster::schedule_pod`] by class and key.
    pub(crate) fn schedule_key(&mut self, class: PodClassId, key: &str, seed: u64) -> Decision {
        if let Some(Some(best)) = self.best_by_board(class, seed) {
            return Decision::Node(best);
        }
        let filtered = self.filter(class, key);
        match filtered.feasible.as_slice() {
            [] => Decision::Unschedulable(self.unschedulable(class, filtered)),
            [only] => Decision::Node(*only),
            feasible => {
                let question = self.question(class);
                let totals = totals(&score::columns(&question, feasible), feasible.len());
                let rank = |row: &usize| (totals[*row], tie(seed, self.node_name(feasible[*row])));
                let best = (0..feasible.len())
                    .max_by_key(rank)
                    .expect("at least two nodes are feasible");
                Decision::Node(feasible[best])
            }
        }
    }

    /// The node for a pod of a class, without the reasons where there is none.
    pub(crate) fn best_node(&mut self, class: PodClassId, key: &str, seed: u64) -> Option<NodeId> {
        if let Some(best) = self.best_by_board(class, seed) {
            return best;
        }
        match self.schedule_key(class, key, seed) {
            Decision::Node(node) => Some(node),
            Decision::Unschedulable(_) => None,
        }
    }

    fn unschedulable(&self, class: PodClassId, filtered: Filtered) -> Unschedulable {
        let conflict = self.class(class).shape.named_nodes == NamedNodes::Conflict;
        let mut nodes = if conflict {
            Vec::new()
        } else {
            filtered.refused
        };
        nodes.sort_by(|a, b| self.node_name(a.0).cmp(self.node_name(b.0)));
        Unschedulable { conflict, nodes }
    }

    /// All nodes through all filters.
    pub(crate) fn filter(&mut self, class: PodClassId, key: &str) -> Filtered {
        let held = self.filter_with_nominated(class, key);
        let question = self.question(class);
        let mut filtered = Filtered {
            feasible: Vec::new(),
            refused: Vec::new(),
        };
        for id in question.cluster.nodes() {
            let refusal = held
                .iter()
                .find(|(node, _)| *node == id)
                .map(|(_, refusal)| refusal.clone());
            match refusal.or_else(|| question.check(id)) {
                None => filtered.feasible.push(id),
                Some(refusal) => filtered.refused.push((id, refusal)),
            }
        }
        filtered
    }

    /// Nodes that refuse the pod because of room held there for others of at least its priority.
    fn filter_with_nominated(&mut self, class: PodClassId, key: &str) -> Vec<(NodeId, Refusal)> {
        let mut refused = Vec::new();
        for (node, pods) in self.held_room(self.class(class).priority, key) {
            if let Some(refusal) = self.check_beside(class, node, &pods) {
                refused.push((node, refusal));
            }
        }
        refused
    }

    /// Checks a node as if pods of these classes were on it too.
    pub(crate) fn check_beside(
        &mut self,
        class: PodClassId,
        node: NodeId,
        pods: &[PodClassId],
    ) -> Option<Refusal> {
        self.prepare(class);
        pods.iter().for_each(|pod| self.load(*pod, node, false));
        let refusal = self.question(class).check(node);
        pods.iter().for_each(|pod| self.unload(*pod, node, false));
        refusal
    }
}

impl Question<'_> {
    /// The first filter that refuses a node.
    pub(crate) fn check(&self, id: NodeId) -> Option<Refusal> {
        let node = self.cluster.at(id);
        if let NamedNodes::Only(named) = &self.class.shape.named_nodes
            && !named.contains(&node.fixed.name)
        {
            return Some(Refusal::new(Plugin::PreFilter, Reason::NotNamed));
        }
        if !self.passes_static(id)
            && let Some((plugin, reason)) = self.verdict(id).refusal
        {
            return Some(Refusal::new(plugin, reason));
        }
        self.check_load(id)
    }

    /// The filters about what a node has left.
    pub(crate) fn check_room(&self, id: NodeId) -> Option<Refusal> {
        let node = self.cluster.at(id);
        filter::node_ports::check(&self.class.shape, &node.ports)
            .map(|reason| Refusal::new(Plugin::NodePorts, reason))
            .or_else(|| filter::node_resources_fit::check(&self.class.shape, node))
    }

    /// The filters that depend on what is placed already.
    pub(crate) fn check_load(&self, id: NodeId) -> Option<Refusal> {
        self.check_room(id).or_else(|| self.check_topology(id))
    }

    /// The filters about places and other pods.
    pub(crate) fn check_topology(&self, id: NodeId) -> Option<Refusal> {
        let node = self.cluster.at(id);
        filter::pod_topology_spread::check(self.view, node)
            .map(|reason| Refusal::new(Plugin::PodTopologySpread, reason))
            .or_else(|| {
                let reason = filter::inter_pod_affinity::check(self.class, self.view, node)?;
                Some(Refusal::new(Plugin::InterPodAffinity, reason))
            })
    }
}

fn totals(columns: &[Column], rows: usize) -> Vec<i64> {
    let mut totals = vec![0; rows];
    for column in columns {
        totals
            .iter_mut()
            .zip(&column.scores)
            .for_each(|(total, score)| *total += score);
    }
    totals
}

/// Ranks equals by seed and name: as good as random, the same every time, whatever the order of arrival.
pub(crate) fn tie(seed: u64, name: &str) -> u64 {
    let mut hasher = FxHasher::default();
    seed.hash(&mut hasher);
    name.hash(&mut hasher);
    // Finish with a mix: the plain hash of near-equal names keeps their order.
    let mut mixed = hasher.finish();
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) >> 16
}
