//! kube-scheduler: DefaultPreemption. Which pods of lower priority must go so that this one fits?
//!
//! Every node where eviction can help is tried on the model itself: all lower pods are taken off, then as many as
//! possible are put back, the most important first. Nothing is changed when an answer is given. That is the rule; for
//! pods that others matter to by the room they take only, it is worked out on sums ([`plan`]) and kept per node.

mod cost;
mod order;
mod plan;

pub(crate) use cost::Cost;
pub(crate) use plan::{Plan, is_planned};

use std::cmp::{Ordering, Reverse};

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId, PodId};
use crate::model::PreemptionPolicy;
use crate::reason::{Plugin, Reason, Refusal, Tally, Veto};
use crate::schedule::{Claims, Unschedulable};
use crate::tie::tie;

/// What preemption can do for a pod that fits nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// Evicting these pods makes room.
    Evict {
        /// The choice among the best, by the seed. [`Cluster::equal_evictions`] gives all of them.
        chosen: Eviction,
    },
    /// The pod's profile does not preempt.
    Off,
    /// The pod may not preempt.
    PolicyNever,
    /// Pods that it preempted before are still on their way out on the node it was promised.
    VictimsTerminating,
    /// The pod was refused before any node was looked at, and DynamicResources ends the search then.
    NotTried,
    /// No eviction helps: how many nodes say so for which reason.
    NotHelpful(Vec<Tally>),
    /// One of the above under a profile that does not ask DynamicResources at all.
    Alone(Box<Preemption>),
    /// One of the above under a profile that asks DynamicResources afterwards.
    First(Box<Preemption>),
}

impl Preemption {
    /// Whether the pod has made room already and waits until those it evicted are gone.
    pub fn waits_for_victims(&self) -> bool {
        *self.inner() == Preemption::VictimsTerminating
    }

    /// The same whatever else the profile asks.
    pub fn inner(&self) -> &Preemption {
        match self {
            Preemption::Alone(inner) | Preemption::First(inner) => inner,
            plain => plain,
        }
    }
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

impl Candidate {
    fn cost(&self) -> Cost {
        let victims = self
            .victims
            .iter()
            .map(|victim| (victim.priority, victim.start_time));
        Cost::of(self.eviction.pdb_violations, victims)
    }
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
        self.preempt_while_evicting(class, key, refused, seed, &|_| false)
    }

    /// [`Cluster::preempt`], where pods with these keys are being evicted already, though the model does not show it yet: whoever
    /// they make room for waits until they are gone, as for those that are seen to be on their way out.
    pub fn preempt_while_evicting(
        &mut self,
        class: PodClassId,
        key: &str,
        refused: &Unschedulable,
        seed: u64,
        evicting: &dyn Fn(&str) -> bool,
    ) -> Preemption {
        let preemption = self
            .obstacle(class, key, refused, evicting)
            .or_else(|| self.preempt_by_board(class, key, seed))
            .unwrap_or_else(|| self.preempt_by_trying_all(class, key, seed));
        self.beside_claims(class, preemption)
    }

    fn beside_claims(&self, class: PodClassId, preemption: Preemption) -> Preemption {
        let rules = self.rules(self.class(class).shape.profile);
        match preemption {
            Preemption::Evict { .. } | Preemption::NotTried => preemption,
            other if !rules.post_filters(Plugin::DynamicResources) => {
                Preemption::Alone(Box::new(other))
            }
            other if rules.preempts_first() => Preemption::First(Box::new(other)),
            other => other,
        }
    }

    /// What becomes of the claims of a pod that was refused everywhere (`refused`): nothing where evictions are tried first and make room.
    pub fn claims_after_preemption(
        &self,
        class: PodClassId,
        refused: &Unschedulable,
        preemption: &Preemption,
    ) -> Claims {
        let rules = self.rules(self.class(class).shape.profile);
        match preemption {
            Preemption::Evict { .. } if rules.preempts_first() => Claims::None,
            _ => refused.claims,
        }
    }

    /// All evictions among which [`Cluster::preempt`] chooses by its seed, by node name, or what it says instead.
    ///
    /// # Errors
    /// Every word of [`Cluster::preempt`] but an eviction.
    pub fn evictions(
        &mut self,
        class: PodClassId,
        key: &str,
        refused: &Unschedulable,
    ) -> Result<Vec<Eviction>, Preemption> {
        let candidates = match self.obstacle(class, key, refused, &|_| false) {
            Some(obstacle) => Err(obstacle),
            None => self.candidates(class, key).map_err(Preemption::NotHelpful),
        };
        match candidates {
            Err(why) => Err(self.beside_claims(class, why)),
            Ok(candidates) => Ok(candidates.into_iter().map(|own| own.eviction).collect()),
        }
    }

    /// Why no eviction is looked for.
    fn obstacle(
        &mut self,
        class: PodClassId,
        key: &str,
        refused: &Unschedulable,
        evicting: &dyn Fn(&str) -> bool,
    ) -> Option<Preemption> {
        let rules = self.rules(self.class(class).shape.profile);
        let asks_claims = rules.post_filters(Plugin::DynamicResources);
        if refused.conflict.is_some_and(Veto::is_error) {
            return Some(Preemption::Off);
        }
        // It finds nothing of what it left before the nodes, and ends the search, unless it was asked before whoever refused, or did so itself.
        let claims_at = rules.pre_filters_at(Plugin::DynamicResources);
        let was_asked = |veto: Veto| {
            let own = rules.pre_filters_at(veto.plugin);
            veto.plugin == Plugin::DynamicResources
                || claims_at.zip(own).is_some_and(|(claims, own)| claims < own)
        };
        if refused.conflict.is_some_and(|veto| !was_asked(veto)) && asks_claims {
            return Some(Preemption::NotTried);
        }
        if !rules.post_filters(Plugin::DefaultPreemption) {
            return Some(Preemption::Off);
        }
        if self.template(class).preemption_policy == PreemptionPolicy::Never {
            return Some(Preemption::PolicyNever);
        }
        if refused.conflict.is_some() {
            let reason = Reason::PreemptionNotHelpful;
            return Some(Preemption::NotHelpful(vec![Tally {
                refusal: Refusal::new(Plugin::DefaultPreemption, reason),
                nodes: self.node_count(),
            }]));
        }
        let waits = self.waits_for_victims(class, key, evicting);
        waits.then_some(Preemption::VictimsTerminating)
    }

    /// [`Cluster::preempt`] without boards: every node is tried.
    pub(crate) fn preempt_by_trying_all(
        &mut self,
        class: PodClassId,
        key: &str,
        seed: u64,
    ) -> Preemption {
        match self.candidates(class, key) {
            Err(tallies) => Preemption::NotHelpful(tallies),
            Ok(mut candidates) => {
                let rank =
                    |candidate: &Candidate| tie(seed, self.node_name(candidate.eviction.node));
                let chosen = (0..candidates.len())
                    .max_by_key(|index| rank(&candidates[*index]))
                    .expect("the best of some is not nothing");
                Preemption::Evict {
                    chosen: candidates.swap_remove(chosen).eviction,
                }
            }
        }
    }

    /// [`Cluster::evictions`] whatever stands in the way of looking for one. Empty where none helps.
    pub fn equal_evictions(&mut self, class: PodClassId, key: &str) -> Vec<Eviction> {
        let candidates = self.candidates(class, key).unwrap_or_default();
        candidates
            .into_iter()
            .map(|candidate| candidate.eviction)
            .collect()
    }

    /// The best candidates, by node name, or why there is none: every node is tried.
    fn candidates(&mut self, class: PodClassId, key: &str) -> Result<Vec<Candidate>, Vec<Tally>> {
        let mut candidates = Vec::new();
        let mut tallies: Vec<Tally> = Vec::new();
        let mut count = |refusal: Refusal, nodes| {
            let refusal = refusal.in_general();
            match tallies.iter_mut().find(|tally| tally.refusal == refusal) {
                Some(tally) => tally.nodes += nodes,
                None => tallies.push(Tally { refusal, nodes }),
            }
        };
        let hopeless = Refusal::new(Plugin::DefaultPreemption, Reason::PreemptionNotHelpful);
        let named = self.named_nodes(class);
        let others = named
            .as_ref()
            .map_or(0, |own| self.node_count() - own.len());
        if others > 0 {
            count(hopeless.clone(), others);
        }
        for (node, refusal) in self.refusals_among(named, class, key) {
            if refusal.is_unresolvable() {
                count(hopeless.clone(), 1);
                continue;
            }
            match self.candidate(class, key, node) {
                Ok(candidate) => candidates.push(candidate),
                Err(refusal) => count(refusal, 1),
            }
        }
        if candidates.is_empty() {
            return Err(Unschedulable::in_order(self, tallies));
        }
        let least = candidates.iter().map(Candidate::cost).min();
        candidates.retain(|candidate| Some(candidate.cost()) == least);
        Ok(candidates)
    }

    /// Whether the node promised to the pod still has lower pods on their way out that were evicted: whom somebody else deletes is not
    /// waited for (upstream's `podTerminatingByPreemption`).
    fn waits_for_victims(
        &mut self,
        class: PodClassId,
        key: &str,
        evicting: &dyn Fn(&str) -> bool,
    ) -> bool {
        let Some(node) = self.nominated_node(key) else {
            return false;
        };
        let beside = self.room_beside(class, key, node);
        let refusal = self.refuses(class, node, &beside);
        let hopeless = refusal.is_some_and(|refusal| refusal.is_unresolvable());
        let priority = self.class(class).priority;
        !hopeless
            && self.at(node).pods.iter().any(|id| {
                let pod = self.pod(*id);
                self.class(pod.class).priority < priority
                    && (pod.terminating && pod.preempted || evicting(pod.key()))
            })
    }

    /// What trying one node on the model says: a cost or why it does not help; none if the pod has room there.
    pub(crate) fn try_eviction(
        &mut self,
        class: PodClassId,
        key: &str,
        node: NodeId,
    ) -> Option<Result<Cost, Refusal>> {
        let beside = self.room_beside(class, key, node);
        let refusal = self.refuses(class, node, &beside)?;
        if refusal.is_unresolvable() {
            let reason = Reason::PreemptionNotHelpful;
            return Some(Err(Refusal::new(Plugin::DefaultPreemption, reason)));
        }
        Some(
            self.candidate(class, key, node)
                .map(|candidate| candidate.cost()),
        )
    }

    /// The eviction on a node for which evictions have a cost.
    pub(crate) fn eviction_on(
        &mut self,
        class: PodClassId,
        key: &str,
        node: NodeId,
    ) -> Option<Eviction> {
        let beside = self.room_beside(class, key, node);
        let (shape, priority) = (&self.class(class).shape, self.class(class).priority);
        if !matches!(
            self.plan_eviction(shape, priority, node, &beside),
            Plan::Evict(_)
        ) {
            return self
                .candidate(class, key, node)
                .ok()
                .map(|candidate| candidate.eviction);
        }
        let victims = self.planned_victims(shape, priority, node, &beside);
        let (leaving, victims): (Vec<_>, Vec<_>) = victims
            .into_iter()
            .map(|id| self.pod(id))
            .partition(|pod| pod.terminating);
        let keys =
            |pods: Vec<&crate::cluster::Pod>| pods.iter().map(|pod| pod.key().to_owned()).collect();
        Some(Eviction {
            node,
            victims: keys(victims),
            leaving: keys(leaving),
            pdb_violations: 0,
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
        lower.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let rank = |victim: &Victim| (Reverse(victim.priority), victim.start_time);
        order::sort(&mut lower, |a, b| rank(a) < rank(b));
        let beside = self.room_beside(class, key, node);
        let tried = self.in_thought(class, node, |own| {
            own.reprieve(class, node, &beside, &lower)
        });
        let (mut victims, pdb_violations) = tried?;
        victims.sort_by(by_importance);
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

    /// Takes all lower pods of a node off and puts back whom there is room for: who is left, and how many of them a budget protects. Those
    /// are back too when this returns.
    fn reprieve(
        &mut self,
        class: PodClassId,
        node: NodeId,
        beside: &[PodClassId],
        lower: &[Victim],
    ) -> Result<(Vec<Victim>, usize), Refusal> {
        for victim in lower {
            self.take_off(victim.class, node, victim.terminating);
        }
        if let Some(refusal) = self.refuses(class, node, beside) {
            for victim in lower {
                self.try_on(victim.class, node, victim.terminating);
            }
            return Err(refusal);
        }
        let mut victims = Vec::new();
        let mut pdb_violations = 0;
        let (violating, others) = self.by_budget(lower);
        let violating = violating.into_iter().map(|victim| (victim, true));
        for (victim, violates) in violating.chain(others.into_iter().map(|own| (own, false))) {
            self.try_on(victim.class, node, victim.terminating);
            if self.refuses(class, node, beside).is_some() {
                self.take_off(victim.class, node, victim.terminating);
                pdb_violations += usize::from(violates);
                victims.push(victim);
            }
        }
        for victim in &victims {
            self.try_on(victim.class, node, victim.terminating);
        }
        Ok((victims, pdb_violations))
    }

    /// The pods that room is held for on a node, of at least the pod's priority and other than itself.
    fn room_beside(&self, class: PodClassId, key: &str, node: NodeId) -> Vec<PodClassId> {
        self.held_on(node, self.class(class).priority, key)
    }

    /// Whether a node takes a pod beside those that room is held for there.
    pub(crate) fn takes(&mut self, class: PodClassId, key: &str, node: NodeId) -> bool {
        let beside = self.room_beside(class, key, node);
        self.refuses(class, node, &beside).is_none()
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
                key: pod.key().to_owned(),
            })
            .collect()
    }

    /// Splits pods into those whose eviction a budget forbids and the others, keeping order.
    fn by_budget(&self, pods: &[Victim]) -> (Vec<Victim>, Vec<Victim>) {
        let budgets = &self.objects().pdbs;
        let mut allowed: Vec<i32> = budgets.values().map(|budget| budget.allowed).collect();
        pods.iter().cloned().partition(|victim| {
            let class = self.class(victim.class);
            let name = self.pod(victim.pod).name();
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

/// The more important first.
fn by_importance(a: &Victim, b: &Victim) -> Ordering {
    let rank = |victim: &Victim| (Reverse(victim.priority), victim.start_time);
    rank(a).cmp(&rank(b)).then_with(|| a.key.cmp(&b.key))
}
