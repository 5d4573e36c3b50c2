//! Finds nodes to remove or replace so that the price falls.
//!
//! First, nodes whose pods fit on other nodes are removed, those with the highest price per disruption first: each is
//! emptied in the model, and the next one is examined without it. Then replacements are searched: a linear program over all
//! pods gives the value of each pod, and nodes are sorted by how much they cost more than their pods are worth. Sets of the
//! first 1 to 16 nodes are planned anew, on the room of other nodes and on new nodes: one node may become several, or
//! several one.
//!
//! Invariants: the price falls with every move, whichever of its options a new node becomes; a node is in at most one move;
//! no two moves use the same room. The cluster is unchanged when the moves are known.

use std::cmp::Reverse;

use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::answer::{Move, Moves, StayReason};
use super::question::{Candidate, Consolidation};
use super::worth::{self, RemovedNodes};
use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId, PodId};
use crate::error::ModelError;
use crate::provision::{NoReplacement, PlannedNode, Pools, Values};
use crate::schedule::{Decision, Unschedulable};

/// The sizes of sets of nodes that are replaced together.
const SIZES: [usize; 5] = [1, 2, 4, 8, 16];
/// The maximum number of sets that are planned; the remaining nodes are examined in the next round.
const MOST_SETS: usize = 2000;

impl Cluster {
    /// Returns which nodes to remove, and what to buy in their place. The cluster is unchanged when this returns.
    ///
    /// # Errors
    /// Returns an error if a node or pool has an invalid amount.
    pub fn consolidate(&mut self, question: &Consolidation) -> Result<Moves, ModelError> {
        let checkpoint = self.checkpoint();
        let moves = consolidate(self, question);
        self.rollback(checkpoint);
        moves
    }
}

fn consolidate(cluster: &mut Cluster, question: &Consolidation) -> Result<Moves, ModelError> {
    // Waiting pods first: room that they will take is not there for pods that move.
    question.make_room_for_pending(cluster)?;
    let moved = question.classes(cluster);
    let pools = Pools::compile(&question.market, &moved, cluster)?;
    let mut left: Vec<(NodeId, &Candidate)> = Vec::with_capacity(question.candidates.len());
    for candidate in &question.candidates {
        if let Some(id) = cluster.node(&candidate.node) {
            left.push((id, candidate));
        }
    }
    // By name, because ids depend on the order in which nodes arrived, and the same cluster must get the same moves.
    left.sort_by(|(_, a), (_, b)| a.node.cmp(&b.node));
    let budgets = question.pools.iter();
    let mut round = Round {
        cluster,
        question,
        pools,
        budgets: budgets
            .map(|(name, pool)| (name.as_str(), pool.budget))
            .collect(),
        stuck: FxHashMap::default(),
        moves: Moves::default(),
    };
    // Before anything is removed, so that the bound is about all candidates.
    let values = round.values(&left);
    // Deletions first: they cost nothing, and they use the free room that replacements would otherwise be planned on.
    let left = round.delete(left);
    round.replace(left, &values);
    Ok(round.moves)
}

/// One pass over all candidates.
struct Round<'a> {
    cluster: &'a mut Cluster,
    question: &'a Consolidation,
    pools: Pools<'a>,
    /// How many nodes of each pool may still be removed.
    budgets: FxHashMap<&'a str, usize>,
    /// Candidates that could not be emptied, with the pod that had no place.
    stuck: FxHashMap<NodeId, (String, Box<Unschedulable>)>,
    moves: Moves,
}

/// A candidate, and by how much it costs more than its pods are worth, in micro-dollars per hour.
type Priced<'a> = (NodeId, &'a Candidate, f64);

/// A replacement for the first `size` nodes of the list.
struct NodeReplacement {
    size: usize,
    existing: Vec<(String, String)>,
    replacements: Vec<PlannedNode>,
    saving: u64,
    disruption: u64,
}

impl NodeReplacement {
    /// Returns the saving per disruption.
    fn ratio(&self) -> f64 {
        self.saving as f64 / self.disruption as f64
    }
}

impl<'a> Round<'a> {
    /// Returns whether the pools' budgets allow removing these nodes together.
    fn is_within_budget(&self, nodes: &[&Candidate]) -> bool {
        let mut wanted: FxHashMap<&str, usize> = FxHashMap::default();
        for node in nodes {
            *wanted.entry(&node.pool).or_default() += 1;
        }
        let budget = |pool: &str| self.budgets.get(pool).copied().unwrap_or(0);
        wanted.iter().all(|(pool, count)| *count <= budget(pool))
    }

    /// Counts a removed node against its pool's budget, and returns its capacity to the pool's limits.
    fn release(&mut self, candidate: &Candidate) {
        if let Some(budget) = self.budgets.get_mut(candidate.pool.as_str()) {
            *budget = budget.saturating_sub(1);
        }
        // A replacement may use what the removed node took of its pool's limits.
        self.pools.give_back(&candidate.pool, &candidate.capacity);
    }

    /// Removes nodes whose pods fit on others. Returns the remaining candidates.
    fn delete(
        &mut self,
        mut candidates: Vec<(NodeId, &'a Candidate)>,
    ) -> Vec<(NodeId, &'a Candidate)> {
        candidates.sort_by(|(_, a), (_, b)| {
            // Compares price / disruption without division.
            let cross = |own: &Candidate, other: &Candidate| {
                Reverse(u128::from(own.price_micro_usd) * u128::from(other.disruption_milli))
            };
            cross(a, b)
                .cmp(&cross(b, a))
                .then_with(|| a.node.cmp(&b.node))
        });
        let mut gone: Vec<(&Candidate, Vec<String>)> = Vec::new();
        let mut moved: FxHashSet<String> = FxHashSet::default();
        let mut left = Vec::new();
        for (id, candidate) in candidates {
            let nodes = [candidate];
            let removed = RemovedNodes::new(&nodes, &self.question.pools);
            // Budget and balance are cheap to check; emptying a node asks the scheduler for each of its pods.
            if !self.is_within_budget(&nodes) || !removed.is_balanced(candidate.price_micro_usd) {
                left.push((id, candidate));
                continue;
            }
            let mut pods = self.cluster.movable_pods(id);
            // A pod that came from a node removed in this pass is reported with that node.
            pods.retain(|(key, _)| !moved.contains(key));
            match self.cluster.empty_out(id, self.question.market.seed) {
                Ok(()) => {
                    self.release(candidate);
                    let pods: Vec<String> = pods.into_iter().map(|pod| pod.0).collect();
                    moved.extend(pods.iter().cloned());
                    gone.push((candidate, pods));
                }
                Err(stuck) => {
                    self.stuck.insert(id, stuck);
                    left.push((id, candidate));
                }
            }
        }
        for (candidate, pods) in gone {
            // A pod may have moved again with a later node, so its last place is reported.
            let place = |pod: String| {
                let node = self.cluster.node_of_pod(&pod)?.to_owned();
                Some((pod, node))
            };
            self.moves.moves.push(Move {
                nodes: vec![candidate.node.clone()],
                existing: pods.into_iter().filter_map(place).collect(),
                replacements: Vec::new(),
                saving_micro_usd: candidate.price_micro_usd,
            });
        }
        let places = self.moves.moves.iter().flat_map(|made| &made.existing);
        left.retain(without(places));
        left
    }

    /// Replaces nodes by cheaper ones.
    fn replace(&mut self, candidates: Vec<(NodeId, &'a Candidate)>, values: &Values) {
        let mut order: Vec<Priced<'_>> = Vec::with_capacity(candidates.len());
        for (id, candidate) in candidates {
            let beyond = candidate.price_micro_usd as f64 - self.worth(id, values);
            order.push((id, candidate, beyond));
        }
        // The nodes that are most overpaid for their pods have the most to save, and sets are always the first ones
        // of this list.
        order.sort_by(|a, b| b.2.total_cmp(&a.2).then_with(|| a.1.node.cmp(&b.1.node)));
        let mut looked_at = 0;
        while let Some((_, worst, _)) = order.first().copied() {
            let mut best: Option<NodeReplacement> = None;
            let mut why = StayReason::NoneCheaper;
            if looked_at >= MOST_SETS {
                return;
            }
            // All sizes are tried and the best saving per disruption wins, because some nodes can be replaced only
            // together.
            for size in SIZES {
                if size > order.len() {
                    break;
                }
                looked_at += 1;
                match self.plan_set(&order[..size], values) {
                    Ok(replacement) => {
                        if best
                            .as_ref()
                            .is_none_or(|best| replacement.ratio() > best.ratio())
                        {
                            best = Some(replacement);
                        }
                    }
                    // The reason is about the first node alone; a larger set fails for reasons of other nodes
                    // too.
                    Err(stays) if size == 1 => why = stays,
                    Err(_) => {}
                }
            }
            let Some(replacement) = best else {
                self.moves.stays.push((worst.node.clone(), why));
                order.remove(0);
                continue;
            };
            let set: Vec<Priced<'_>> = order.drain(..replacement.size).collect();
            self.accept(replacement, &set);
            let places = self.moves.moves.last().into_iter();
            let is_left = without(places.flat_map(|made| &made.existing));
            order.retain(|(id, candidate, _)| is_left(&(*id, *candidate)));
        }
    }

    /// Computes the value of a pod of each class.
    fn values(&mut self, candidates: &[(NodeId, &Candidate)]) -> Values {
        // The order must be fixed, because the linear program may have several solutions.
        let mut counts: IndexMap<PodClassId, u32, FxBuildHasher> = IndexMap::default();
        for (id, _) in candidates {
            for pod in self.cluster.movable(*id) {
                *counts.entry(self.cluster.pod(pod).class).or_default() += 1;
            }
        }
        let counts: Vec<_> = counts.into_iter().collect();
        let checkpoint = self.cluster.checkpoint();
        // Preparing pods' constraints may add to the model, so it is rolled back.
        let (values, bound) = self.pools.values(&counts, self.cluster);
        self.cluster.rollback(checkpoint);
        self.moves.bound_micro_usd = bound;
        values
    }

    fn worth(&self, id: NodeId, values: &Values) -> f64 {
        let pods = self.cluster.movable(id).into_iter();
        pods.filter_map(|pod| values.get(&self.cluster.pod(pod).class))
            .sum()
    }

    /// Plans the pods of a set anew. A set of several nodes that would not save enough even by its pods' values is not
    /// planned; a single node always is, because some of its pods may fit elsewhere.
    fn plan_set(
        &mut self,
        set: &[Priced<'_>],
        values: &Values,
    ) -> Result<NodeReplacement, StayReason> {
        let nodes: Vec<&Candidate> = set.iter().map(|(_, candidate, _)| *candidate).collect();
        if !self.is_within_budget(&nodes) {
            return Err(StayReason::Budget);
        }
        let removed = RemovedNodes::new(&nodes, &self.question.pools);
        let (price, ceiling) = (removed.price(), removed.ceiling());
        let beyond: f64 = set.iter().map(|(_, _, beyond)| beyond).sum();
        // Even at the pods' values the saving is too small, so the costly plan is skipped.
        if set.len() > 1 && beyond < (price - ceiling) as f64 {
            return Err(StayReason::NoneCheaper);
        }
        let checkpoint = self.cluster.checkpoint();
        let pods = self.cluster.take_out(set.iter().map(|(id, ..)| *id));
        for node in &nodes {
            self.pools.give_back(&node.pool, &node.capacity);
        }
        let replacement = self
            .pools
            .replace(&pods, Some(ceiling), values, self.cluster);
        for node in &nodes {
            // Pools are not part of the model, so the rollback does not restore them.
            self.pools.take(&node.pool, &node.capacity);
        }
        self.cluster.rollback(checkpoint);
        // The scheduler's reasons are known only for a node that could not be emptied before.
        let replacement = replacement.map_err(|why| match (why, self.stuck.get(&set[0].0)) {
            (NoReplacement::NoPlace, Some((pod, why))) => StayReason::PodStuck {
                pod: pod.clone(),
                why: why.clone(),
            },
            (NoReplacement::MoreCombinations { pod, tried }, _) => {
                StayReason::MoreCombinations { pod, tried }
            }
            _ => StayReason::NoneCheaper,
        })?;
        // Karpenter's feature gate `SpotToSpotConsolidation`, which is off by default.
        let is_spot_to_spot = removed.is_spot() && replacement.nodes.iter().any(worth::is_spot);
        if is_spot_to_spot && !self.question.spot_to_spot {
            return Err(StayReason::SpotToSpot);
        }
        // The plan cost no more than the ceiling, which is below the price.
        let saving = price - replacement.price;
        if !removed.pays(&replacement.nodes, saving, is_spot_to_spot) {
            return Err(StayReason::NotWorthIt);
        }
        Ok(NodeReplacement {
            size: set.len(),
            existing: replacement.existing,
            replacements: replacement.nodes,
            saving,
            disruption: removed.disruption().max(1),
        })
    }

    /// Makes a move in the model, so that later moves count with it.
    fn accept(&mut self, replacement: NodeReplacement, set: &[Priced<'_>]) {
        let mut pods: FxHashMap<String, PodId> = FxHashMap::default();
        for (id, candidate, _) in set {
            // Noted before the node goes, because the model then no longer lists its pods.
            for pod in self.cluster.movable(*id) {
                pods.insert(self.cluster.pod(pod).key().to_owned(), pod);
            }
            self.cluster.take_node_out(*id);
            self.release(candidate);
        }
        for (key, node) in &replacement.existing {
            if let (Some(pod), Some(to)) = (pods.remove(key), self.cluster.node(node)) {
                self.cluster.rehome(pod, Some(to));
            }
        }
        // The remaining pods go to new nodes, which the model does not have.
        for pod in pods.into_values() {
            self.cluster.rehome(pod, None);
        }
        replacement
            .replacements
            .iter()
            .for_each(|node| self.pools.buy(node, self.cluster));
        self.moves.moves.push(Move {
            nodes: set
                .iter()
                .map(|(_, candidate, _)| candidate.node.clone())
                .collect(),
            existing: replacement.existing,
            replacements: replacement.replacements,
            saving_micro_usd: replacement.saving,
        });
    }
}

/// Returns a test whether a candidate has received no pods: pods that were moved to it do not move again.
fn without<'a>(
    places: impl Iterator<Item = &'a (String, String)>,
) -> impl Fn(&(NodeId, &Candidate)) -> bool {
    let places: FxHashSet<&str> = places.map(|(_, node)| node.as_str()).collect();
    move |(_, candidate)| !places.contains(candidate.node.as_str())
}

impl Cluster {
    /// Removes a node and places its pods as the scheduler would, until the open checkpoint is rolled back. If a pod has no
    /// place, nothing is changed and that pod is returned.
    fn empty_out(&mut self, id: NodeId, seed: u64) -> Result<(), (String, Box<Unschedulable>)> {
        let pods = self.movable(id);
        let checkpoint = self.checkpoint();
        self.take_node_out(id);
        // The largest first, as `movable` returns them: small pods find a place in what is left.
        for pod in pods {
            let (class, key) = (self.pod(pod).class, self.pod(pod).key().to_owned());
            match self.schedule_key(class, &key, seed) {
                Decision::Node(to) => self.rehome(pod, Some(to)),
                Decision::Unschedulable(why) => {
                    self.rollback(checkpoint);
                    return Err((key, Box::new(why)));
                }
            }
        }
        // Committed into the outer checkpoint: later candidates are examined in the cluster without this node.
        self.commit(checkpoint);
        Ok(())
    }
}
