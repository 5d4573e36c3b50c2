//! Answers which node a pod goes to, in short ([`Decision`]) or in full ([`Answer`]).
//!
//! Every node is filtered in kube-scheduler's order, and every feasible node is scored. The highest total wins; among equals
//! the caller's seed and the nodes' names decide, so the order of insertion never matters. This module is the reference; the
//! boards ([`crate::cluster`]) come to the same decision at a cost that depends only on what changed.

mod answer;

use std::sync::Arc;

pub use self::answer::{Answer, Claims, Decision, NodeAnswer, Outcome, Unschedulable};

use crate::class::PodClassId;
use crate::cluster::{BoardDecision, Cluster, NodeId, hold};
use crate::error::ModelError;
use crate::model::PodSpec;
use crate::reason::{Conflict, Plugin, Reason, Refusal, Tally, Veto};
use crate::score::{self, Column};
use crate::selector::NamedNodes;
use crate::tie::tie;

/// The number of nodes from the boards that are tried for a pod with volumes before every node is filtered.
const MOST_TRIES: usize = 64;

/// The nodes after filtering.
pub(crate) struct Filtered {
    pub(crate) feasible: Vec<NodeId>,
    pub(crate) refused: Vec<(NodeId, Refusal)>,
}

impl Filtered {
    /// Returns the nodes that refuse for this reason.
    fn refusing(&self, reason: Reason) -> impl Iterator<Item = NodeId> + '_ {
        let refused = self.refused.iter();
        let refused = refused.filter(move |(_, refusal)| refusal.reason == reason);
        refused.map(|(node, _)| *node)
    }
}

impl Cluster {
    /// Returns the node for a pod of a class.
    pub fn schedule(&mut self, class: PodClassId, seed: u64) -> Decision {
        self.schedule_key(class, "", seed)
    }

    /// Returns the node for a pod; room held for the pod itself ([`Cluster::nominate`]) is available to it. If its nominated
    /// node (`nominated_node_name`, or else where that room is) is feasible, that node is the answer whatever its score
    /// (kube-scheduler: `evaluateNominatedNode`).
    ///
    /// # Errors
    /// Returns an error if the pod has a negative request.
    pub fn schedule_pod(&mut self, pod: &PodSpec, seed: u64) -> Result<Decision, ModelError> {
        let class = self.pod_class(&pod.template)?;
        let key = pod.key();
        let promised = match &pod.nominated_node_name {
            Some(name) => self.node(name),
            None => self.nominated_node(&key),
        };
        // Also asked of conflicts, because a claim that was lost since the promise refuses the pod everywhere.
        if let Some(node) = promised
            && self.conflict(class).is_none()
            && self.is_feasible_with_nominated(class, &key, node)
        {
            return Ok(Decision::Node(node));
        }
        Ok(self.schedule_key(class, &key, seed))
    }

    /// Returns whether a node is feasible for a pod of a class, ignoring room held for nominated pods.
    pub fn takes_now(&mut self, class: PodClassId, node: NodeId) -> bool {
        self.conflict(class).is_none() && self.question(class).check(node).is_none()
    }

    /// Returns the full answer for a pod of a class.
    pub fn answer(&mut self, class: PodClassId) -> Answer {
        let filtered = self.filter(class, "");
        let error = self.error_among(class, &filtered);
        let claims = match self.conflict(class) {
            Some(conflict) => self.claims_on_conflict(class, conflict),
            None if filtered.feasible.is_empty() && error.is_none() => {
                self.claims_after(class, &filtered)
            }
            None => Claims::None,
        };
        let question = self.question(class);
        // An attempt that ends with an error has no scores.
        let columns = match error {
            None => score::columns(&question, &filtered.feasible),
            Some(_) => Vec::new(),
        };
        let totals = totals(&columns, filtered.feasible.len());
        let highest = totals.iter().max().filter(|_| error.is_none()).copied();
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
        // A pre-filter that refuses the pod refuses it on behalf of every node.
        let conflict = question.conflict();
        let by_conflict =
            conflict.map(|veto| Refusal::new(veto.plugin, Reason::Conflict(veto.conflict)));
        let refused = filtered.refused.into_iter();
        let refused = refused.map(|(node, refusal)| NodeAnswer {
            node,
            outcome: Outcome::Refused(by_conflict.clone().unwrap_or(refusal)),
        });
        let mut nodes: Vec<_> = scored.chain(refused).collect();
        let conflict = conflict.or(error);
        nodes.sort_by(|a, b| self.node_name(a.node).cmp(self.node_name(b.node)));
        best.sort_by(|a, b| self.node_name(*a).cmp(self.node_name(*b)));
        Answer {
            conflict,
            nodes,
            best,
            claims,
        }
    }

    /// Returns what [`Cluster::schedule_pod`] reports for a pod if the answer has no node for it and no room is held for the pod itself;
    /// `None` if the answer has a node.
    pub fn unschedulable(&self, answer: &Answer) -> Option<Unschedulable> {
        if !answer.best.is_empty() {
            return None;
        }
        if let Some(conflict) = answer.conflict {
            return Some(Unschedulable {
                claims: answer.claims,
                ..Unschedulable::by(conflict)
            });
        }
        let refusals = answer.nodes.iter().filter_map(|node| match &node.outcome {
            Outcome::Refused(refusal) => Some(refusal),
            Outcome::Fits { .. } => None,
        });
        Some(Unschedulable {
            claims: answer.claims,
            ..Unschedulable::of(self, tallied(refusals))
        })
    }

    /// Returns every node with its refusal, sorted by name, for a pod that fits nowhere.
    pub fn refusals(&mut self, class: PodClassId, key: &str) -> Vec<(NodeId, Refusal)> {
        self.refusals_of_nodes(None, class, key)
    }

    /// Returns the refusals like [`Cluster::refusals`], of the given nodes only.
    pub(crate) fn refusals_of_nodes(
        &mut self,
        nodes: Option<Vec<NodeId>>,
        class: PodClassId,
        key: &str,
    ) -> Vec<(NodeId, Refusal)> {
        let nodes = nodes.unwrap_or_else(|| self.nodes().collect());
        let mut refused = self.filter_among(&nodes, class, key).refused;
        refused.sort_by(|a, b| self.node_name(a.0).cmp(self.node_name(b.0)));
        refused
    }

    /// Returns why pods of a class are refused before any node is examined.
    fn conflict(&mut self, class: PodClassId) -> Option<Veto> {
        let own = self.class(class);
        // Most pods have none of these, and making a question updates the class's view.
        if own.volumes.is_empty()
            && !self.is_about_devices(own)
            && own.shape.named_nodes != NamedNodes::Conflict
        {
            return None;
        }
        self.question(class).conflict()
    }

    /// Schedules like [`Cluster::schedule_pod`], by class and key.
    pub(crate) fn schedule_key(&mut self, class: PodClassId, key: &str, seed: u64) -> Decision {
        if let Some(conflict) = self.conflict(class) {
            return Decision::Unschedulable(Unschedulable {
                claims: self.claims_on_conflict(class, conflict),
                ..Unschedulable::by(conflict)
            });
        }
        // A few named nodes are asked faster than boards are updated, and boards do not know names.
        if let Some(named) = self.named_nodes(class) {
            return self.schedule_among(&named, class, key, seed);
        }
        let own = self.class(class);
        let has_volumes = !own.volumes.is_empty();
        // Boards report refusals in the default order of filters.
        let is_usual = self.rules(own.shape.profile).order().is_none();
        // Boards choose a node even if the preferred node affinity has an error, which must end the attempt instead.
        if own.shape.preference_error.is_some() || (has_volumes && !is_usual) {
            return self.schedule_checking_every_node(class, key, seed);
        }
        let mut held = self.held_otherwise(class, key);
        let by_labels = has_volumes && self.volumes_go_by_labels(class);
        // Bounded, because a volume in one zone can exclude most of what the boards propose; then asking all nodes is
        // cheaper.
        for _ in 0..MOST_TRIES {
            match self.ask_boards(class, seed, &held) {
                Some(BoardDecision::Node { node, .. }) if !has_volumes || by_labels => {
                    return Decision::Node(node);
                }
                Some(BoardDecision::Refused(tallies)) if !has_volumes && is_usual => {
                    return Decision::Unschedulable(Unschedulable::of(self, tallies));
                }
                // Boards do not know all rules about volumes. If the volumes exclude the chosen node, the node is held out and the boards
                // are asked again. That is right only if no node's score depends on which others are feasible (`apart`).
                Some(BoardDecision::Node { node, apart: true }) => {
                    match self.question(class).check_volumes(node) {
                        None => return Decision::Node(node),
                        Some(refusal) => hold(Arc::make_mut(&mut held), node, refusal),
                    }
                }
                _ => break,
            }
        }
        self.schedule_checking_every_node(class, key, seed)
    }

    /// Returns the existing nodes among those that a pod names; `None` if it names none.
    pub(crate) fn named_nodes(&self, class: PodClassId) -> Option<Vec<NodeId>> {
        let NamedNodes::Only(names) = &self.class(class).shape.named_nodes else {
            return None;
        };
        let nodes = names.iter().filter_map(|name| self.node_of(*name));
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort_unstable();
        nodes.dedup();
        Some(nodes)
    }

    /// Schedules like [`Cluster::schedule_key`], but checks every node instead of using boards.
    pub(crate) fn schedule_checking_every_node(
        &mut self,
        class: PodClassId,
        key: &str,
        seed: u64,
    ) -> Decision {
        let nodes: Vec<_> = self.nodes().collect();
        self.schedule_among(&nodes, class, key, seed)
    }

    /// Returns the best of the given nodes. All other nodes count as refused because the pod does not name them.
    fn schedule_among(
        &mut self,
        nodes: &[NodeId],
        class: PodClassId,
        key: &str,
        seed: u64,
    ) -> Decision {
        let filtered = self.filter_among(nodes, class, key);
        // An error ends the attempt even if other nodes are feasible.
        if let Some(error) = self.error_among(class, &filtered) {
            return Decision::Unschedulable(Unschedulable::by(error));
        }
        match filtered.feasible.as_slice() {
            [] => {
                let refusals = filtered.refused.iter().map(|(_, refusal)| refusal);
                let mut tallies = tallied(refusals);
                if nodes.len() < self.node_count() {
                    tallies.push(Tally {
                        refusal: Refusal::new(Plugin::PreFilter, Reason::NotNamed),
                        nodes: self.node_count() - nodes.len(),
                    });
                }
                let mut unschedulable = Unschedulable::of(self, tallies);
                unschedulable.claims = self.claims_after(class, &filtered);
                Decision::Unschedulable(unschedulable)
            }
            // kube-scheduler does not score a single feasible node.
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

    /// Returns the error that ends the attempt: a node could not be checked, or feasible nodes cannot be ranked because the preferred
    /// node affinity is invalid.
    fn error_among(&mut self, class: PodClassId, filtered: &Filtered) -> Option<Veto> {
        let own = self.class(class);
        let preference = own.shape.preference_error;
        let unasked = if self.is_about_devices(own) {
            self.device_error(class, filtered.refusing(Reason::DevicesFailed))
        } else {
            None
        };
        let unasked = unasked.map(|conflict| Veto {
            plugin: Plugin::DynamicResources,
            conflict,
        });
        unasked.or_else(|| {
            // The preferred terms are parsed in PreScore, which does not run for a single feasible node.
            let why = preference.filter(|_| filtered.feasible.len() > 1)?;
            Some(Veto {
                plugin: Plugin::NodeAffinity,
                conflict: Conflict::Preference { why },
            })
        })
    }

    /// Returns what to do about the claims of a pod that was refused before any node was examined: nothing if the conflict is about its
    /// claims.
    fn claims_on_conflict(&self, class: PodClassId, conflict: Veto) -> Claims {
        let own = self.class(class);
        let rules = self.rules(own.shape.profile);
        let is_own = conflict.plugin == Plugin::DynamicResources;
        if is_own || !self.is_about_devices(own) || !rules.post_filters(Plugin::DynamicResources) {
            Claims::None
        } else {
            Claims::Kept
        }
    }

    /// Returns what to do about the claims of a pod that fits nowhere.
    fn claims_after(&mut self, class: PodClassId, filtered: &Filtered) -> Claims {
        let own = self.class(class);
        let rules = self.rules(own.shape.profile);
        if !self.is_about_devices(own) || !rules.post_filters(Plugin::DynamicResources) {
            return Claims::None;
        }
        // The order of kube-scheduler's PostFilter: first deallocate a claim whose devices are elsewhere, then delete
        // a leftover one.
        match self.idle_claim(class, filtered.refusing(Reason::DevicesElsewhere)) {
            Some(claim) => Claims::GivenBack { claim },
            None => match self.left_claim(class) {
                Some(claim) => Claims::Deleted { claim },
                None => Claims::Kept,
            },
        }
    }

    /// Returns the node for a pod of a class, without reasons if there is none.
    pub(crate) fn best_node(&mut self, class: PodClassId, key: &str, seed: u64) -> Option<NodeId> {
        match self.schedule_key(class, key, seed) {
            Decision::Node(node) => Some(node),
            Decision::Unschedulable(_) => None,
        }
    }

    /// Runs all filters on all nodes.
    pub(crate) fn filter(&mut self, class: PodClassId, key: &str) -> Filtered {
        let nodes: Vec<_> = self.nodes().collect();
        self.filter_among(&nodes, class, key)
    }

    /// Runs all filters on the given nodes.
    pub(crate) fn filter_among(
        &mut self,
        nodes: &[NodeId],
        class: PodClassId,
        key: &str,
    ) -> Filtered {
        // Before the question is made, because counting nominated pods in changes views.
        let held = self.filter_with_nominated(class, key);
        let question = self.question(class);
        let mut filtered = Filtered {
            feasible: Vec::new(),
            refused: Vec::new(),
        };
        // Once the search for devices exceeds its limit on one node, the remaining nodes are not checked, because each would take as
        // long.
        let mut tired = false;
        for &id in nodes {
            if tired {
                let reason = Reason::DevicesUndecided;
                let refusal = Refusal::new(Plugin::DynamicResources, reason);
                filtered.refused.push((id, refusal));
                continue;
            }
            let refusal = held
                .iter()
                .find(|(node, _)| *node == id)
                .map(|(_, refusal)| refusal.clone());
            // With nominated pods first, then without them (kube-scheduler: `RunFilterPluginsWithNominatedPods`).
            match refusal.or_else(|| question.check(id)) {
                None => filtered.feasible.push(id),
                Some(refusal) => {
                    tired = refusal.reason == Reason::DevicesUndecided;
                    filtered.refused.push((id, refusal));
                }
            }
        }
        filtered
    }

    /// Returns the nodes that refuse the pod because of room held there for nominated pods of at least its priority.
    pub(crate) fn filter_with_nominated(
        &mut self,
        class: PodClassId,
        key: &str,
    ) -> Vec<(NodeId, Refusal)> {
        if !self.holds_room() {
            return Vec::new();
        }
        let held = self.held_room(self.class(class).priority, key);
        let refused = held.into_iter().filter_map(|(node, pods)| {
            let refusal = self.check_with_nominated(class, node, &pods)?;
            Some((node, refusal))
        });
        refused.collect()
    }

    /// Checks a node as if pods of these classes were on it too.
    pub(crate) fn check_with_nominated(
        &mut self,
        class: PodClassId,
        node: NodeId,
        pods: &[PodClassId],
    ) -> Option<Refusal> {
        let question = self.question(class);
        // Adding room up is enough for most pods and much cheaper than a trial on the model.
        if question.is_about_room_only() {
            return question.check_with_nominated(node, pods);
        }
        self.with_trial(class, node, |own| {
            pods.iter().for_each(|pod| own.try_on(*pod, node, false));
            let refusal = own.question(class).check(node);
            pods.iter().for_each(|pod| own.take_off(*pod, node, false));
            refusal
        })
    }
}

/// Counts the nodes for each refusal.
pub(crate) fn tallied<'a>(refusals: impl Iterator<Item = &'a Refusal>) -> Vec<Tally> {
    let mut tallies: Vec<Tally> = Vec::new();
    for refusal in refusals {
        let refusal = refusal.in_general();
        match tallies.iter_mut().find(|tally| tally.refusal == refusal) {
            Some(tally) => tally.nodes += 1,
            None => tallies.push(Tally { refusal, nodes: 1 }),
        }
    }
    tallies
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
