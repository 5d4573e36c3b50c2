//! One decision from the boards: the rows of equal nodes that accept the pod, their scores, and the best node of the
//! best row.
//!
//! A row is the intersection of a group of the [`Index`] and a state of the [`Hosts`]; its nodes differ only in load
//! score. So the node with the best load score represents the row, also for the normalization of scores. Invariant: the
//! choice equals the one from scoring every node, including ties.

use std::cmp::Reverse;

use super::hosts::{HostState, Hosts};
use super::index::{Group, Index};
use super::order::Order;
use super::set::{NodeSet, Restriction};
use crate::cluster::{NodeId, Question};
use crate::filter::pod_topology_spread::skew_of;
use crate::intern::Symbol;
use crate::reason::{Plugin, Reason, Refusal, Tally};
use crate::score::{self, inter_pod_affinity, pod_topology_spread};
use crate::storage::Plan;
use crate::topology::{PairCounts, SpreadCounts};

/// The data for one decision.
#[derive(Clone, Copy)]
pub(super) struct Choice<'a> {
    pub(super) question: Question<'a>,
    pub(super) index: &'a Index,
    /// The states of hosts; `None` for classes to which single hosts do not matter.
    pub(super) hosts: Option<&'a Hosts>,
    pub(super) order: &'a Order,
    /// The position from which equal nodes are searched.
    pub(super) start: u32,
}

/// Nodes that accept the pod and differ only in load score.
struct Row {
    group: usize,
    state: usize,
    /// The best load score in the row.
    score: i32,
    /// The position of the node with that score.
    position: u32,
}

/// The verdict of a group, apart from what depends on the host.
struct GroupVerdict {
    fits: bool,
    near: bool,
}

impl Choice<'_> {
    /// Returns the best node.
    pub(super) fn best(&self) -> Option<NodeId> {
        let rows = self.rows();
        let first = rows.first()?;
        // Nodes of one row differ only in load, so the best load wins and no other score has to be computed.
        if rows.len() == 1 {
            return Some(self.order.node(first.position));
        }
        let totals = self.totals(&rows);
        let ranked = rows.iter().zip(totals).max_by_key(|(row, total)| {
            (
                *total,
                Reverse(self.order.distance(self.start, row.position)),
            )
        });
        ranked.map(|(row, _)| self.order.node(row.position))
    }

    /// Returns whether each node's score is independent of the other feasible nodes.
    pub(super) fn scores_apart(&self) -> bool {
        let view = self.question.view;
        let taken = self
            .index
            .groups
            .iter()
            .filter(|own| !own.with_room.is_empty());
        let mut scores = taken.map(|group| (group.soft_taints, group.preferred));
        let first = scores.next();
        // Normalization relates a score to those of all feasible nodes; it changes nothing only if all nodes have the
        // same raw score.
        view.soft.is_empty() && view.score.is_empty() && scores.all(|score| Some(score) == first)
    }

    /// Returns whether the InterPodAffinity filter is enabled.
    fn affinity_filters(&self) -> bool {
        self.question.rules.filters(Plugin::InterPodAffinity)
    }

    /// Returns the refusals with their number of nodes, for a pod that no node accepts.
    pub(super) fn refusals(&self) -> Vec<Tally> {
        let mut tallies: Vec<Tally> = self
            .index
            .tallies
            .iter()
            .filter(|tally| tally.nodes > 0)
            .cloned()
            .collect();
        for group in self
            .index
            .groups
            .iter()
            .filter(|group| !group.with_room.is_empty())
        {
            // Static and room refusals are counted in the index; what is left are topology filters, which are equal
            // in each group and state.
            for state in 0..self.states() {
                let nodes = self.count(group, state);
                if let (1.., Some((plugin, reason))) = (nodes, self.refusal(group, state)) {
                    let refusal = Refusal::new(plugin, reason.in_general());
                    match tallies.iter_mut().find(|tally| tally.refusal == refusal) {
                        Some(tally) => tally.nodes += nodes,
                        None => tallies.push(Tally { refusal, nodes }),
                    }
                }
            }
        }
        tallies
    }

    fn states(&self) -> usize {
        self.hosts.map_or(1, |hosts| hosts.states().len())
    }

    fn state(&self, state: usize) -> Option<&HostState> {
        self.hosts.map(|hosts| &hosts.states()[state])
    }

    fn within(&self, state: usize) -> Restriction<'_> {
        self.hosts
            .map_or(Restriction::All, |hosts| hosts.within(state))
    }

    fn count(&self, group: &Group, state: usize) -> usize {
        group.with_room.count(self.within(state))
    }

    fn rows(&self) -> Vec<Row> {
        let view = self.question.view;
        // If no pod matches the affinity yet, a pod that matches itself may go anywhere.
        let first_of_its_group = view.affinity.is_empty() && view.self_affine;
        let verdicts: Vec<GroupVerdict> = self
            .index
            .groups
            .iter()
            .map(|group| self.group_verdict(group))
            .collect();
        let mut rows = Vec::with_capacity(verdicts.len());
        for state in 0..self.states() {
            let (fits, near) = self
                .state(state)
                .map_or((true, true), |state| self.state_verdict(state));
            if !fits {
                continue;
            }
            let open = |group: usize| {
                verdicts[group].fits && (first_of_its_group || (near && verdicts[group].near))
            };
            // A handful of hosts is looked up faster than every bucket of every group is intersected with them.
            match self.hosts.and_then(|hosts| hosts.set(state)) {
                Some(NodeSet::Few(members)) => self.rows_of_few(state, members, open, &mut rows),
                _ => self.rows_of_many(state, open, &mut rows),
            }
        }
        rows
    }

    fn rows_of_many(&self, state: usize, open: impl Fn(usize) -> bool, rows: &mut Vec<Row>) {
        let within = self.within(state);
        for (index, group) in self.index.groups.iter().enumerate() {
            if group.with_room.is_empty() || !open(index) {
                continue;
            }
            // Buckets from the best load score down; the first one that has a node in this state decides.
            let best =
                group.buckets.iter().rev().find_map(|bucket| {
                    Some((bucket.score, bucket.nodes.first(self.start, within)?))
                });
            if let Some((score, position)) = best {
                rows.push(Row {
                    group: index,
                    state,
                    score,
                    position,
                });
            }
        }
    }

    /// Finds the rows of a state with few hosts, by looking at each host instead of every bucket.
    fn rows_of_few(
        &self,
        state: usize,
        members: &[u32],
        open: impl Fn(usize) -> bool,
        rows: &mut Vec<Row>,
    ) {
        let from = rows.len();
        for &position in members {
            let slot = self.index.slot(self.order.node(position));
            let group = slot.group as usize;
            if !slot.has_room() || !open(group) {
                continue;
            }
            let row = Row {
                group,
                state,
                score: slot.score,
                position,
            };
            match rows[from..].iter_mut().find(|row| row.group == group) {
                Some(best) => {
                    // As with buckets: the best load score, and among equals the nearest to the start.
                    let rank = |row: &Row| {
                        (
                            row.score,
                            Reverse(self.order.distance(self.start, row.position)),
                        )
                    };
                    if rank(&row) > rank(best) {
                        *best = row;
                    }
                }
                None => rows.push(row),
            }
        }
    }

    /// Returns a group's value of a topology key.
    fn value(&self, group: &Group, key: Symbol) -> Option<Symbol> {
        group.values[self.index.keys.binary_search(&key).ok()?]
    }

    /// Computes the part of [`Choice::refusal`] that depends on the group, without the reason.
    fn group_verdict(&self, group: &Group) -> GroupVerdict {
        let (class, view) = (self.question.class, self.question.view);
        let refused = GroupVerdict {
            fits: false,
            near: false,
        };
        // Constraints over hosts are judged by the host's state, in `state_verdict`.
        for counts in view
            .hard
            .iter()
            .filter(|counts| counts.rule.key != Symbol::HOSTNAME)
        {
            match self.value(group, counts.rule.key) {
                Some(value) if skew_of(counts, counts.pods_at(value)) <= counts.rule.max_skew => {}
                _ => return refused,
            }
        }
        if !self.reaches_volumes(group) {
            return refused;
        }
        if !self.affinity_filters() {
            return GroupVerdict {
                fits: true,
                near: true,
            };
        }
        let mut near = true;
        for term in class
            .affinity
            .iter()
            .filter(|term| term.key != Symbol::HOSTNAME)
        {
            let Some(value) = self.value(group, term.key) else {
                return refused;
            };
            near &= view.affinity.count(term.key, value) > 0;
        }
        let fits = !self.meets(group, &view.anti) && !self.meets(group, &view.existing_anti);
        GroupVerdict { fits, near }
    }

    /// Returns whether the nodes of a group reach the pod's volumes, if the labels of groups decide that; then one node
    /// represents the group.
    fn reaches_volumes(&self, group: &Group) -> bool {
        let decided = |plan: &&Plan| plan.keys.is_some();
        if self.question.volumes.filter(decided).is_none() {
            return true;
        }
        // Groups are keyed by all labels that decide the reach (`plan.keys`), so any node of the group answers for
        // it.
        let Some(position) = group.with_room.first(0, Restriction::All) else {
            return false;
        };
        let node = self.question.cluster.at(self.order.node(position));
        let refusal = self
            .question
            .check_reach(node.fixed.name, &node.fixed.labels);
        refusal.is_none()
    }

    /// Returns whether pods are counted in one of a group's domains.
    fn meets(&self, group: &Group, pairs: &PairCounts) -> bool {
        let mut places = self.index.keys.iter().zip(&group.values);
        !pairs.is_empty()
            && places.any(|(key, value)| value.is_some_and(|value| pairs.count(*key, value) > 0))
    }

    /// Returns whether a host accepts the pod, as far as the host alone decides, and whether it satisfies required
    /// affinity by host.
    fn state_verdict(&self, state: &HostState) -> (bool, bool) {
        let (class, view) = (self.question.class, self.question.view);
        let mut hard = view
            .hard
            .iter()
            .filter(|counts| counts.rule.key == Symbol::HOSTNAME)
            .zip(&state.pods);
        let even = hard
            .all(|(counts, pods)| state.labelled && skew_of(counts, *pods) <= counts.rule.max_skew);
        if !self.affinity_filters() {
            return (even, true);
        }
        let by_host = class
            .affinity
            .iter()
            .any(|term| term.key == Symbol::HOSTNAME);
        // An affinity by host needs the label, even for the first pod of its group.
        let keyed = !by_host || state.labelled;
        let fits = even && keyed && !state.apart && !state.kept_away;
        (fits, !by_host || state.near)
    }

    /// Returns the first topology filter that refuses a row, in kube-scheduler's order.
    fn refusal(&self, group: &Group, state: usize) -> Option<(Plugin, Reason)> {
        let (class, view) = (self.question.class, self.question.view);
        let host = self.state(state);
        let labelled = |key| match key {
            Symbol::HOSTNAME => host.is_none_or(|host| host.labelled),
            key => self.value(group, key).is_some(),
        };
        // The state lists counts in the order of the rules over hosts, so they are taken one after the other.
        let mut host_pods = host.map_or(&[][..], |host| &host.pods).iter();
        for counts in &view.hard {
            let (key, max_skew) = (counts.rule.key, counts.rule.max_skew);
            let pods = match key {
                Symbol::HOSTNAME => host_pods.next().copied().unwrap_or(0),
                key => self
                    .value(group, key)
                    .map_or(0, |value| counts.pods_at(value)),
            };
            if !labelled(key) {
                return Some((Plugin::PodTopologySpread, Reason::SpreadKeyMissing { key }));
            }
            let skew = skew_of(counts, pods);
            if skew > max_skew {
                return Some((
                    Plugin::PodTopologySpread,
                    Reason::Spread {
                        key,
                        skew,
                        max_skew,
                        fewest: None,
                    },
                ));
            }
        }
        if !self.affinity_filters() {
            return None;
        }
        let near = class.affinity.iter().all(|term| match term.key {
            Symbol::HOSTNAME => host.is_some_and(|host| host.near),
            key => self
                .value(group, key)
                .is_some_and(|value| view.affinity.count(key, value) > 0),
        });
        let keys_there = class.affinity.iter().all(|term| labelled(term.key));
        let reason = if !keys_there || !(near || (view.affinity.is_empty() && view.self_affine)) {
            Reason::Affinity
        } else if self.meets(group, &view.anti) || host.is_some_and(|host| host.apart) {
            Reason::AntiAffinity
        } else if self.meets(group, &view.existing_anti) || host.is_some_and(|host| host.kept_away)
        {
            Reason::ExistingAntiAffinity
        } else {
            return None;
        };
        Some((Plugin::InterPodAffinity, reason))
    }

    /// Returns the total of each row's best node.
    fn totals(&self, rows: &[Row]) -> Vec<i64> {
        let (question, view) = (self.question, self.question.view);
        let groups = || rows.iter().map(|row| &self.index.groups[row.group]);
        let most_taints = groups()
            .map(|group| group.soft_taints)
            .max()
            .unwrap_or(0)
            .max(0);
        let most_preferred = groups()
            .map(|group| group.preferred)
            .max()
            .unwrap_or(0)
            .max(0);
        let mut totals: Vec<i64> = rows
            .iter()
            .zip(groups())
            .map(|(row, group)| {
                let most = (most_taints, most_preferred);
                // Maxima are over feasible rows only, as kube-scheduler normalizes over feasible nodes.
                i64::from(row.score)
                    + score::of_verdict(&question, group.soft_taints, group.preferred, most)
            })
            .collect();
        let mut add = |weight: i64, scores: Vec<i64>| {
            totals
                .iter_mut()
                .zip(scores)
                .for_each(|(total, score)| *total += weight * score);
        };
        if !view.soft.is_empty() {
            let weight = question.rules.weight(Plugin::PodTopologySpread);
            add(weight, self.spread_scores(rows));
        }
        if !view.score.is_empty() {
            let sums = rows.iter().map(|row| self.preference(row)).collect();
            let weight = question.rules.weight(Plugin::InterPodAffinity);
            add(weight, inter_pod_affinity::normalize(sums));
        }
        totals
    }

    /// Returns the sum of preferences for a row.
    fn preference(&self, row: &Row) -> i64 {
        let group = &self.index.groups[row.group];
        let places = self.index.keys.iter().zip(&group.values);
        let by_group: i64 = places
            .filter_map(|(key, value)| Some(self.question.view.score.sum(*key, (*value)?)))
            .sum();
        by_group + self.state(row.state).map_or(0, |state| state.weight)
    }

    fn spread_scores(&self, rows: &[Row]) -> Vec<i64> {
        let view = self.question.view;
        let hard_hosts = by_host(&view.hard).count();
        let counts_hosts = by_host(&view.soft).count() > 0;
        let mut spread = pod_topology_spread::Rows::with_capacity(rows.len(), view.soft.len());
        for row in rows {
            let group = &self.index.groups[row.group];
            let host = self.state(row.state);
            // How many nodes there are matters to constraints over hosts only.
            let nodes = if counts_hosts {
                self.count(group, row.state)
            } else {
                1
            };
            // Hard rules come first in a state's counts.
            let mut host_pods = host.map_or(&[][..], |host| &host.pods[hard_hosts..]).iter();
            let cells = view.soft.iter().map(|counts| match counts.rule.key {
                Symbol::HOSTNAME => {
                    let labelled = host.is_none_or(|host| host.labelled);
                    (
                        // Only presence matters here: hosts are counted by nodes and not by values.
                        labelled.then_some(Symbol::HOSTNAME),
                        host_pods.next().copied().unwrap_or(0),
                    )
                }
                key => {
                    let value = self.value(group, key);
                    (value, value.map_or(0, |value| counts.pods_at(value)))
                }
            });
            spread.push(nodes, cells);
        }
        spread.scores(view)
    }
}

fn by_host(rules: &[SpreadCounts]) -> impl Iterator<Item = &SpreadCounts> {
    rules
        .iter()
        .filter(|counts| counts.rule.key == Symbol::HOSTNAME)
}
