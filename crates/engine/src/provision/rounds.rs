//! Plans in several rounds for pods that ask for more values of open labels than one plan can look at.
//!
//! Each round plans for the pods of some combinations, and the next one sees what the rounds before it bought: nodes that
//! are full, with their pods, and what limits and reservations have left. Pods of different rounds cannot share a node that
//! is bought, because they ask for different labels. Invariant: every pod belongs to one round, so none waits for another's
//! combination. The pods of a round that accept more combinations than one plan can look at take several plans; a pod that no
//! other labels could help takes one.

use rustc_hash::{FxHashMap, FxHashSet};

use super::carried::{Room, carry_out, count};
use super::catalog::Catalog;
use super::open_labels::{RequestedLabels, Round, open_requirements};
use super::other_labels::may_help;
use super::preferences::Preferences;
use super::rooms;
use super::solve::{Pending, PlacementMode, Solver, compile, put_in_order};
use super::{NodeTemplate, Plan, PlanRequest, PoolReason, PoolRefusal, Unplaceable};
use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId};
use crate::error::ModelError;
use crate::reason::Reason;

/// What all rounds of a plan have in common.
pub(super) struct RoundQuestion<'a> {
    pub(super) request: &'a PlanRequest,
    /// The keys of the request's pods.
    pub(super) keys: &'a [String],
}

impl RoundQuestion<'_> {
    /// Plans places for some pending pods and adds them to `plan`. Returns the compiled pools.
    ///
    /// # Errors
    /// Returns an error if a pool offers a negative amount.
    pub(super) fn solve(
        &self,
        pending: &[Pending],
        templates: &[NodeTemplate],
        requested: &RequestedLabels,
        plan: &mut Plan,
        cluster: &mut Cluster,
    ) -> Result<Vec<Catalog>, ModelError> {
        let request = self.request;
        let catalogs = compile(request, templates, requested, cluster)?;
        let mut solver = Solver::new(cluster, catalogs, self.keys, request.seed);
        solver.wants_bound = true;
        // Plans that are carried out may cost the time for variants; questions of consolidation do not.
        solver.varies = true;
        solver.effort = request.effort.unwrap_or(PlanRequest::EFFORT);
        solver.preferences = Preferences::of(request);
        solver.reservations.policy = request.reserved;
        let pending = solver.with_preferences(pending);
        let nodes: Vec<NodeId> = solver.cluster.nodes().collect();
        solver.add_hosts(&pending);
        solver.count_units(&pending);
        let mut existing = Vec::new();
        let best = if request.by_cost {
            // `cheapest` decides itself whether existing nodes are filled first or packed together with new ones.
            solver.cheapest_from(&pending, &nodes, &request.places)
        } else {
            solver.add_places(&pending);
            let rest = solver.keep(&pending, &request.places, &mut existing);
            let rest = solver.place_on_nodes(&rest, &mut existing);
            solver.attempt(&rest, PlacementMode::OneByOne)
        };
        plan.existing.extend(existing);
        plan.existing.extend(best.existing);
        plan.nodes.extend(best.nodes);
        plan.unplaceable.extend(best.unplaceable);
        // A bound for all pods says nothing about a plan that leaves some out.
        plan.bound_micro_usd = best.bound.filter(|_| plan.unplaceable.is_empty());
        let daemons = rooms::of_refusals(&plan.unplaceable, &solver.catalogs, solver.cluster);
        plan.daemons.extend(daemons);
        Ok(solver.catalogs)
    }
}

/// The pods of a round that have no place yet.
struct Waiting {
    turns: Vec<RequestedLabels>,
    pods: Vec<Pending>,
    unplaceable: Vec<Unplaceable>,
}

impl Waiting {
    /// Plans for the pods in all turns and adds the result to `plan`. Pods that other labels could not help do not wait for the next
    /// turn. Returns whether a pod was placed.
    fn take_turns(
        &mut self,
        question: &RoundQuestion<'_>,
        templates: &mut [NodeTemplate],
        plan: &mut Plan,
        cluster: &mut Cluster,
    ) -> Result<bool, ModelError> {
        let before = self.pods.len();
        let (mut stuck, mut refused) = (Vec::new(), Vec::new());
        for requested in &self.turns {
            if self.pods.is_empty() {
                break;
            }
            let mut part = Plan::default();
            let checkpoint = cluster.checkpoint();
            let catalogs = question.solve(&self.pods, templates, requested, &mut part, cluster)?;
            // The planned nodes still have several options; `carry_out` puts them back as nodes with fixed labels and no
            // free room: this round has no say in what else they hold.
            cluster.rollback(checkpoint);
            let specs = self.pods.iter().map(|pod| {
                let index = pod.index as usize;
                (question.keys[index].as_str(), &question.request.pods[index])
            });
            let specs: FxHashMap<&str, _> = specs.collect();
            let spec_of = |key: &str| specs.get(key).copied();
            // No real node has such a name, because names of nodes contain no slash.
            let name = |index: usize| format!("round/{}", plan.nodes.len() + index);
            carry_out(&part, (&name, Room::None), spec_of, templates, cluster)?;
            for node in &part.nodes {
                count(node, templates);
            }
            plan.existing.extend(part.existing);
            plan.nodes.extend(part.nodes);
            plan.daemons.extend(part.daemons);
            let mut without: FxHashMap<String, Unplaceable> = FxHashMap::default();
            for pod in part.unplaceable {
                without.insert(pod.pod.clone(), pod);
            }
            // Only this turn's refusals count: a later turn tries other combinations for the same pods.
            self.unplaceable.clear();
            let mut helped: FxHashMap<PodClassId, bool> = FxHashMap::default();
            self.pods.retain(|pod| {
                let key = &question.keys[pod.index as usize];
                let Some(own) = without.remove(key) else {
                    return false;
                };
                let waits = *helped
                    .entry(pod.own)
                    .or_insert_with(|| may_help(pod.own, own.pools.iter(), &catalogs, cluster));
                if waits {
                    self.unplaceable.push(own)
                } else {
                    stuck.push(*pod);
                    refused.push(own);
                }
                waits
            });
        }
        self.pods.extend(stuck);
        put_in_order(cluster, &mut self.pods, question.keys);
        self.unplaceable.extend(refused);
        Ok(self.pods.len() < before)
    }
}

/// Plans for each round in turn and adds the results to `plan`. Pods without a place are tried again as long as others find
/// one, because a pod may need another one near.
///
/// # Errors
/// Returns an error if a pool offers a negative amount.
pub(super) fn solve(
    question: &RoundQuestion<'_>,
    pending: &[Pending],
    requested: &RequestedLabels,
    plan: &mut Plan,
    cluster: &mut Cluster,
) -> Result<(), ModelError> {
    let mut templates = question.request.templates.clone();
    let of_round = |round: Round| {
        let is_own = |pod: &&Pending| round.classes.contains(&pod.class);
        Waiting {
            turns: requested.turns(round.classes.iter()),
            pods: pending.iter().filter(is_own).copied().collect(),
            unplaceable: Vec::new(),
        }
    };
    let mut waiting: Vec<Waiting> = requested.rounds().into_iter().map(of_round).collect();
    loop {
        let mut placed_any = false;
        for round in &mut waiting {
            placed_any |= round.take_turns(question, &mut templates, plan, cluster)?;
        }
        if !placed_any || waiting.iter().all(|round| round.pods.is_empty()) {
            break;
        }
    }
    let leaves_open = |own: &&NodeTemplate| open_requirements(own).next().is_some();
    let open = question.request.templates.iter().filter(leaves_open);
    let open: FxHashSet<&str> = open.map(|own| own.pool.as_str()).collect();
    for mut round in waiting {
        let beyond = round.pods.iter().filter_map(|pod| {
            let tried = requested.tried(pod.class, &round.turns)?;
            Some((question.keys[pod.index as usize].as_str(), tried))
        });
        say_what_was_tried(&mut round.unplaceable, &beyond.collect(), &open);
        plan.unplaceable.extend(round.unplaceable);
    }
    // The bounds of the rounds are for a part of the pods each; their sum bounds nothing.
    plan.bound_micro_usd = None;
    Ok(())
}

/// Says of pods that accept more combinations of labels than they were tried with that another one might do, where a pool that
/// leaves labels open refused them for labels or for the pods that are placed already. `beyond` has the number of combinations that
/// they were tried with.
fn say_what_was_tried(
    unplaceable: &mut [Unplaceable],
    beyond: &FxHashMap<&str, usize>,
    open_pools: &FxHashSet<&str>,
) {
    let said = |refusal: &PoolRefusal, tried: usize| {
        let is_open = match refusal.reason {
            _ if !open_pools.contains(refusal.pool.as_str()) => false,
            PoolReason::Topology { .. } => true,
            PoolReason::Incompatible { reason, .. } => {
                matches!(reason, Reason::NodeAffinity { .. })
            }
            _ => false,
        };
        if is_open {
            PoolRefusal {
                pool: refusal.pool.clone(),
                reason: PoolReason::MoreCombinations { tried },
            }
        } else {
            refusal.clone()
        }
    };
    for pod in unplaceable {
        if let Some(tried) = beyond.get(pod.pod.as_str()) {
            pod.pools = pod.pools.iter().map(|own| said(own, *tried)).collect();
        }
    }
}
