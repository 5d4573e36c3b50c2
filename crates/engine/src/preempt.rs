//! kube-scheduler: DefaultPreemption. Which pods of lower priority must go so that this one fits?
//!
//! Every node where eviction can help is tried on the model itself: all lower pods are taken off, then as many as
//! possible are put back, the most important first. Nothing is changed when an answer is given.

use std::cmp::Reverse;

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId, PodId};
use crate::model::PreemptionPolicy;
use crate::reason::{Plugin, Reason, Refusal};
use crate::schedule::{Unschedulable, tie};

/// What preemption can do for a pod that fits nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// Evicting these pods makes room.
    Evict {
        /// The choice among the best, by the seed.
        chosen: Eviction,
        /// All candidates that upstream's criteria cannot tell apart, the chosen one among them, by node name.
        equals: Vec<Eviction>,
    },
    /// The pod may not preempt.
    PolicyNever,
    /// Pods that it preempted before are still on their way out on the node it was promised.
    VictimsTerminating,
    /// The pod was refused before any node was looked at; upstream does not try then.
    NotTried,
    /// No eviction helps: every node with the reason, in order of their names.
    NotHelpful(Vec<(NodeId, Refusal)>),
}

/// One way to make room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Where.
    pub node: NodeId,
    /// Keys of the pods to evict, the most important first.
    pub victims: Vec<String>,
    /// Keys of the pods that must go too but are on their way out already.
    pub leaving: Vec<String>,
    /// How many of all these a disruption budget protects.
    pub pdb_violations: usize,
}

/// A pod that could be evicted. Ordered by importance: higher priority, then earlier start, then key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Victim {
    pod: PodId,
    class: PodClassId,
    terminating: bool,
    priority: i32,
    start_time: i64,
    key: String,
}

struct Candidate {
    eviction: Eviction,
    victims: Vec<Victim>,
}

impl Cluster {
    /// What evictions would place a pod that was refused everywhere (`refused`).
    pub fn preempt(
        &mut self,
        class: PodClassId,
        key: &str,
        refused: &Unschedulable,
        seed: u64,
    ) -> Preemption {
        if refused.conflict {
            return Preemption::NotTried;
        }
        if self.template(class).preemption_policy == PreemptionPolicy::Never {
            return Preemption::PolicyNever;
        }
        if self.waits_for_victims(class, key, refused) {
            return Preemption::VictimsTerminating;
        }
        let mut candidates = Vec::new();
        let mut statuses = Vec::with_capacity(refused.nodes.len());
        for (node, refusal) in &refused.nodes {
            if refusal.is_unresolvable() {
                statuses.push((
                    *node,
                    Refusal::new(Plugin::DefaultPreemption, Reason::PreemptionNotHelpful),
                ));
                continue;
            }
            match self.candidate(class, key, *node) {
                Ok(candidate) => candidates.push(candidate),
                Err(refusal) => statuses.push((*node, refusal)),
            }
        }
        if candidates.is_empty() {
            return Preemption::NotHelpful(statuses);
        }
        keep_best(&mut candidates);
        let equals: Vec<_> = candidates
            .into_iter()
            .map(|candidate| candidate.eviction)
            .collect();
        let rank = |eviction: &&Eviction| tie(seed, self.node_name(eviction.node));
        let chosen = equals
            .iter()
            .max_by_key(rank)
            .expect("the best of some is not nothing")
            .clone();
        Preemption::Evict { chosen, equals }
    }

    /// Whether the node promised to the pod still has lower pods on their way out.
    fn waits_for_victims(&self, class: PodClassId, key: &str, refused: &Unschedulable) -> bool {
        let Some(node) = self.nominated_node(key) else {
            return false;
        };
        let hopeless = refused
            .nodes
            .iter()
            .any(|(id, refusal)| *id == node && refusal.is_unresolvable());
        let priority = self.class(class).priority;
        !hopeless
            && self.at(node).pods.iter().any(|id| {
                let pod = self.pod(*id);
                pod.terminating && self.class(pod.class).priority < priority
            })
    }

    /// Tries one node. The model is as before when this returns.
    fn candidate(
        &mut self,
        class: PodClassId,
        key: &str,
        node: NodeId,
    ) -> Result<Candidate, Refusal> {
        let priority = self.class(class).priority;
        let mut lower = self.lower_pods(node, priority);
        if lower.is_empty() {
            return Err(Refusal::new(Plugin::DefaultPreemption, Reason::NoVictims));
        }
        let room: Vec<_> = self
            .held_room(priority, key)
            .into_iter()
            .filter(|held| held.0 == node)
            .collect();
        let beside = room.into_iter().flat_map(|held| held.1).collect::<Vec<_>>();
        lower.sort_by_key(importance);
        lower
            .iter()
            .for_each(|victim| self.unload(victim.class, node, victim.terminating));
        let refusal = self.refuses(class, node, &beside);
        let mut victims = Vec::new();
        let mut pdb_violations = 0;
        if refusal.is_none() {
            let (violating, others) = self.by_budget(&lower);
            for (victim, violates) in violating
                .into_iter()
                .map(|v| (v, true))
                .chain(others.into_iter().map(|v| (v, false)))
            {
                self.load(victim.class, node, victim.terminating);
                if self.refuses(class, node, &beside).is_some() {
                    self.unload(victim.class, node, victim.terminating);
                    pdb_violations += usize::from(violates);
                    victims.push(victim);
                }
            }
            victims
                .iter()
                .for_each(|victim| self.load(victim.class, node, victim.terminating));
        } else {
            lower
                .iter()
                .for_each(|victim| self.load(victim.class, node, victim.terminating));
        }
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        victims.sort_by_key(importance);
        let keys = |terminating| {
            let keys = victims
                .iter()
                .filter(move |victim: &&Victim| victim.terminating == terminating);
            keys.map(|victim| victim.key.clone()).collect::<Vec<_>>()
        };
        let eviction = Eviction {
            node,
            victims: keys(false),
            leaving: keys(true),
            pdb_violations,
        };
        Ok(Candidate { eviction, victims })
    }

    /// Filters with room held for others, then without.
    fn refuses(
        &mut self,
        class: PodClassId,
        node: NodeId,
        beside: &[PodClassId],
    ) -> Option<Refusal> {
        let with = if beside.is_empty() {
            None
        } else {
            self.check_beside(class, node, beside)
        };
        with.or_else(|| self.question(class).check(node))
    }

    fn lower_pods(&self, node: NodeId, priority: i32) -> Vec<Victim> {
        let pods = self.at(node).pods.iter().map(|id| (*id, self.pod(*id)));
        pods.filter(|(_, pod)| self.class(pod.class).priority < priority)
            .map(|(id, pod)| Victim {
                pod: id,
                class: pod.class,
                terminating: pod.terminating,
                priority: self.class(pod.class).priority,
                start_time: pod.start_time,
                key: pod.key.to_string(),
            })
            .collect()
    }

    /// Splits pods into those whose eviction a budget forbids and the others, keeping order.
    fn by_budget(&self, pods: &[Victim]) -> (Vec<Victim>, Vec<Victim>) {
        let budgets = &self.objects().pdbs;
        let mut allowed: Vec<i32> = budgets.values().map(|budget| budget.allowed).collect();
        pods.iter().cloned().partition(|victim| {
            let class = self.class(victim.class);
            let name = &self.pod(victim.pod).name;
            let mut violates = false;
            for (budget, allowed) in budgets.values().zip(&mut allowed) {
                if budget.covers(class, name, self.names()) {
                    *allowed = allowed.saturating_sub(1);
                    violates |= *allowed < 0;
                }
            }
            violates
        })
    }
}

fn importance(victim: &Victim) -> (Reverse<i32>, i64, String) {
    (
        Reverse(victim.priority),
        victim.start_time,
        victim.key.clone(),
    )
}

/// Upstream's criteria, each over what the one before left.
fn keep_best(candidates: &mut Vec<Candidate>) {
    let highest = |candidate: &Candidate| {
        candidate
            .victims
            .first()
            .map_or(i32::MIN, |victim| victim.priority)
    };
    let sum = |candidate: &Candidate| {
        let priorities = candidate
            .victims
            .iter()
            .map(|victim| i128::from(victim.priority) + (1 << 31));
        priorities.sum::<i128>()
    };
    let earliest = |candidate: &Candidate| {
        let top = candidate
            .victims
            .iter()
            .filter(|victim| victim.priority == highest(candidate));
        top.map(|victim| victim.start_time)
            .min()
            .unwrap_or(i64::MAX)
    };
    keep_least(candidates, |candidate| {
        candidate.eviction.pdb_violations as i128
    });
    keep_least(candidates, |candidate| i128::from(highest(candidate)));
    keep_least(candidates, sum);
    keep_least(candidates, |candidate| candidate.victims.len() as i128);
    keep_least(candidates, |candidate| -i128::from(earliest(candidate)));
}

fn keep_least(candidates: &mut Vec<Candidate>, cost: impl Fn(&Candidate) -> i128) {
    let least = candidates.iter().map(&cost).min();
    candidates.retain(|candidate| Some(cost(candidate)) == least);
}
