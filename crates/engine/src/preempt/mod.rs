//! Preemption (kube-scheduler: DefaultPreemption): which pods of lower priority to evict so that a pod fits.
//!
//! Every node where eviction can help is tried on the model: all pods of lower priority are removed, then as many as
//! possible are put back, the most important first. The model is unchanged afterwards. For pods to which others matter only
//! by the resources they use, the same result is computed from sums ([`plan`]) and cached per node.

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

/// The result of preemption for an unschedulable pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// Evicting these pods makes room.
    Evict {
        /// One of the best evictions, chosen by the seed. [`Cluster::equal_evictions`] returns all of them.
        chosen: Eviction,
    },
    /// The pod's profile has preemption disabled.
    Off,
    /// The pod's preemptionPolicy is Never.
    PolicyNever,
    /// Victims of an earlier preemption are still terminating on the pod's nominated node.
    VictimsTerminating,
    /// The pod was refused before any node was examined, and DynamicResources ended the PostFilter phase.
    NotTried,
    /// Eviction helps on no node: the number of nodes for each reason.
    NotHelpful(Vec<Tally>),
    /// One of the other results, under a profile whose PostFilter phase does not run DynamicResources.
    Alone(Box<Preemption>),
    /// One of the other results, under a profile that runs DynamicResources after preemption.
    First(Box<Preemption>),
}

impl Preemption {
    /// Returns whether the pod waits until the victims of its earlier preemption are gone.
    pub fn waits_for_victims(&self) -> bool {
        *self.inner() == Preemption::VictimsTerminating
    }

    /// Returns the result of preemption itself, without what the profile says about DynamicResources.
    pub fn inner(&self) -> &Preemption {
        match self {
            Preemption::Alone(inner) | Preemption::First(inner) => inner,
            plain => plain,
        }
    }
}

/// One way to make room for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The node.
    pub node: NodeId,
    /// Keys of the pods to evict, the most important first.
    pub victims: Vec<String>,
    /// Keys of further victims that are terminating already.
    pub leaving: Vec<String>,
    /// The number of victims whose eviction violates a disruption budget.
    pub pdb_violations: usize,
}

/// A possible victim. The order of importance is: higher priority, then earlier start, then key.
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
    /// Returns the evictions that make room for a pod which every node refused (`refused`).
    pub fn preempt(
        &mut self,
        class: PodClassId,
        key: &str,
        refused: &Unschedulable,
        seed: u64,
    ) -> Preemption {
        self.preempt_while_evicting(class, key, refused, seed, &|_| false)
    }

    /// Works like [`Cluster::preempt`]; pods for whose keys `evicting` is true are being evicted already, although the model
    /// does not show it yet. A pod that they make room for waits for them as for terminating ones.
    pub fn preempt_while_evicting(
        &mut self,
        class: PodClassId,
        key: &str,
        refused: &Unschedulable,
        seed: u64,
        evicting: &dyn Fn(&str) -> bool,
    ) -> Preemption {
        let preemption = self
            .preemption_obstacle(class, key, refused, evicting)
            .or_else(|| self.preempt_by_board(class, key, seed))
            .unwrap_or_else(|| self.preempt_by_trying_all(class, key, seed));
        self.with_claims(class, preemption)
    }

    fn with_claims(&self, class: PodClassId, preemption: Preemption) -> Preemption {
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

    /// Returns what has to be done about the claims of a pod that every node refused (`refused`): nothing if preemption runs
    /// first and makes room.
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

    /// Returns all equally good evictions, among which [`Cluster::preempt`] chooses by its seed, sorted by node name.
    ///
    /// # Errors
    /// Returns the result of [`Cluster::preempt`] if it is not an eviction.
    pub fn evictions(
        &mut self,
        class: PodClassId,
        key: &str,
        refused: &Unschedulable,
    ) -> Result<Vec<Eviction>, Preemption> {
        let candidates = match self.preemption_obstacle(class, key, refused, &|_| false) {
            Some(obstacle) => Err(obstacle),
            None => self.candidates(class, key).map_err(Preemption::NotHelpful),
        };
        match candidates {
            Err(why) => Err(self.with_claims(class, why)),
            Ok(candidates) => Ok(candidates.into_iter().map(|own| own.eviction).collect()),
        }
    }

    /// Returns why no eviction is searched; `None` if it is.
    fn preemption_obstacle(
        &mut self,
        class: PodClassId,
        key: &str,
        refused: &Unschedulable,
        evicting: &dyn Fn(&str) -> bool,
    ) -> Option<Preemption> {
        let rules = self.rules(self.class(class).shape.profile);
        let asks_claims = rules.post_filters(Plugin::DynamicResources);
        // After an error kube-scheduler runs no PostFilter plugin at all.
        if refused.conflict.is_some_and(Veto::is_error) {
            return Some(Preemption::Off);
        }
        // DynamicResources finds none of its PreFilter state and ends the phase, unless it ran before the plugin that
        // refused, or refused itself.
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
        // kube-scheduler's `PodEligibleToPreemptOthers`: the policy first, then the nominated node.
        if self.template(class).preemption_policy == PreemptionPolicy::Never {
            return Some(Preemption::PolicyNever);
        }
        // A conflict concerns every node, and evicting pods does not resolve it.
        if refused.conflict.is_some() {
            let reason = Reason::PreemptionNotHelpful;
            return Some(Preemption::NotHelpful(vec![Tally {
                refusal: Refusal::new(Plugin::DefaultPreemption, reason),
                nodes: self.node_count(),
            }]));
        }
        // Evicting more while earlier victims still terminate would empty a second node for one pod.
        let waits = self.waits_for_victims(class, key, evicting);
        waits.then_some(Preemption::VictimsTerminating)
    }

    /// Works like [`Cluster::preempt`], but tries every node instead of using boards.
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
                // The same tie as for scheduling: a hash of the seed and the node's name, so arrival does not matter.
                let chosen = (0..candidates.len())
                    .max_by_key(|index| rank(&candidates[*index]))
                    .expect("the best of some is not nothing");
                Preemption::Evict {
                    chosen: candidates.swap_remove(chosen).eviction,
                }
            }
        }
    }

    /// Works like [`Cluster::evictions`] without checking for obstacles. Empty if no eviction helps.
    pub fn equal_evictions(&mut self, class: PodClassId, key: &str) -> Vec<Eviction> {
        let candidates = self.candidates(class, key).unwrap_or_default();
        candidates
            .into_iter()
            .map(|candidate| candidate.eviction)
            .collect()
    }

    /// Tries every node; returns the best candidates by node name, or why there is none.
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
        // Nodes that the pod does not name are hopeless and need no trial.
        if others > 0 {
            count(hopeless.clone(), others);
        }
        for (node, refusal) in self.refusals_of_nodes(named, class, key) {
            // `UnschedulableAndUnresolvable`: no eviction changes a taint or a label.
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
        // All candidates are compared, where kube-scheduler stops after a sample of nodes.
        let least = candidates.iter().map(Candidate::cost).min();
        candidates.retain(|candidate| Some(candidate.cost()) == least);
        Ok(candidates)
    }

    /// Returns whether the pod's nominated node still has terminating pods of lower priority that were preempted. Pods that
    /// another client deleted are not waited for (kube-scheduler: `podTerminatingByPreemption`).
    fn waits_for_victims(
        &mut self,
        class: PodClassId,
        key: &str,
        evicting: &dyn Fn(&str) -> bool,
    ) -> bool {
        let Some(node) = self.nominated_node(key) else {
            return false;
        };
        // If the node refuses the pod for good by now, its victims free nothing that the pod could use.
        let nominated = self.nominated_pods(class, key, node);
        let refusal = self.refuses(class, node, &nominated);
        let hopeless = refusal.is_some_and(|refusal| refusal.is_unresolvable());
        let priority = self.class(class).priority;
        !hopeless
            && self.at(node).pods.iter().any(|id| {
                let pod = self.pod(*id);
                self.class(pod.class).priority < priority
                    && (pod.terminating && pod.preempted || evicting(pod.key()))
            })
    }

    /// Tries one node on the model: returns the cost, or why eviction does not help; `None` if the pod fits without
    /// eviction.
    pub(crate) fn try_eviction(
        &mut self,
        class: PodClassId,
        key: &str,
        node: NodeId,
    ) -> Option<Result<Cost, Refusal>> {
        let nominated = self.nominated_pods(class, key, node);
        let refusal = self.refuses(class, node, &nominated)?;
        if refusal.is_unresolvable() {
            let reason = Reason::PreemptionNotHelpful;
            return Some(Err(Refusal::new(Plugin::DefaultPreemption, reason)));
        }
        Some(
            self.candidate(class, key, node)
                .map(|candidate| candidate.cost()),
        )
    }

    /// Returns the eviction on a node for which a cost is known.
    pub(crate) fn eviction_on(
        &mut self,
        class: PodClassId,
        key: &str,
        node: NodeId,
    ) -> Option<Eviction> {
        let nominated = self.nominated_pods(class, key, node);
        let (shape, priority) = (&self.class(class).shape, self.class(class).priority);
        // The cost was worked out from sums if they suffice, so the victims are named in the same way; otherwise by a
        // trial.
        if !matches!(
            self.plan_eviction(shape, priority, node, &nominated),
            Plan::Evict(_)
        ) {
            return self
                .candidate(class, key, node)
                .ok()
                .map(|candidate| candidate.eviction);
        }
        let victims = self.planned_victims(shape, priority, node, &nominated);
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

    /// Tries one node. The model is unchanged when this returns.
    fn candidate(
        &mut self,
        class: PodClassId,
        key: &str,
        node: NodeId,
    ) -> Result<Candidate, Refusal> {
        let priority = self.class(class).priority;
        let mut lower = self.lower_pods(node, priority);
        // Before anything is tried, as in kube-scheduler: that is a reason of its own in the message.
        if lower.is_empty() {
            return Err(Refusal::new(Plugin::DefaultPreemption, Reason::NoVictims));
        }
        // `order::sort` is not stable, so it must start from a reproducible order.
        lower.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let rank = |victim: &Victim| (Reverse(victim.priority), victim.start_time);
        order::sort(&mut lower, |a, b| rank(a) < rank(b));
        let nominated = self.nominated_pods(class, key, node);
        // Within a trial, corrections follow kube-scheduler's AddPod and RemovePod and not the model's own counts
        // (decision 14).
        let tried = self.with_trial(class, node, |own| {
            own.reprieve(class, node, &nominated, &lower)
        });
        let (mut victims, pdb_violations) = tried?;
        // Violating pods were looked at first, so the victims are not in order of importance yet.
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

    /// Removes all pods of lower priority from a node and puts back those that still fit. Returns the others, which are the
    /// victims, and how many of them violate a disruption budget. The model is unchanged when this returns.
    fn reprieve(
        &mut self,
        class: PodClassId,
        node: NodeId,
        nominated: &[PodClassId],
        lower: &[Victim],
    ) -> Result<(Vec<Victim>, usize), Refusal> {
        // All of them first: if the pod does not fit even then, no selection of victims helps.
        for victim in lower {
            self.take_off(victim.class, node, victim.terminating);
        }
        if let Some(refusal) = self.refuses(class, node, nominated) {
            for victim in lower {
                self.try_on(victim.class, node, victim.terminating);
            }
            return Err(refusal);
        }
        let mut victims = Vec::new();
        let mut pdb_violations = 0;
        // kube-scheduler first reprieves pods whose eviction would violate a budget, so that few violations remain.
        let (violating, others) = self.by_budget(lower);
        let violating = violating.into_iter().map(|victim| (victim, true));
        for (victim, violates) in violating.chain(others.into_iter().map(|own| (own, false))) {
            self.try_on(victim.class, node, victim.terminating);
            if self.refuses(class, node, nominated).is_some() {
                self.take_off(victim.class, node, victim.terminating);
                pdb_violations += usize::from(violates);
                victims.push(victim);
            }
        }
        // Put back on the model: what happens to victims is the caller's decision.
        for victim in &victims {
            self.try_on(victim.class, node, victim.terminating);
        }
        Ok((victims, pdb_violations))
    }

    /// Returns the classes of other nominated pods on a node that have at least the pod's priority.
    fn nominated_pods(&self, class: PodClassId, key: &str, node: NodeId) -> Vec<PodClassId> {
        self.held_on(node, self.class(class).priority, key)
    }

    /// Returns whether a node is feasible for a pod together with the pods nominated to it.
    pub(crate) fn is_feasible_with_nominated(
        &mut self,
        class: PodClassId,
        key: &str,
        node: NodeId,
    ) -> bool {
        let nominated = self.nominated_pods(class, key, node);
        self.refuses(class, node, &nominated).is_none()
    }

    /// Runs the filters with nominated pods, then without.
    fn refuses(
        &mut self,
        class: PodClassId,
        node: NodeId,
        nominated: &[PodClassId],
    ) -> Option<Refusal> {
        let with = if nominated.is_empty() {
            None
        } else {
            self.check_with_nominated(class, node, nominated)
        };
        // The pod must also fit without the nominated pods: they may never arrive, and its affinity must not depend on them.
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

    /// Splits pods into those whose eviction violates a disruption budget and the others, keeping their order.
    fn by_budget(&self, pods: &[Victim]) -> (Vec<Victim>, Vec<Victim>) {
        let budgets = &self.objects().pdbs;
        let mut allowed: Vec<i32> = budgets.values().map(|budget| budget.allowed).collect();
        pods.iter().cloned().partition(|victim| {
            let class = self.class(victim.class);
            let name = self.pod(victim.pod).name();
            let mut violates = false;
            // Every budget that covers the pod is charged, not only the first one that is broken.
            for (budget, allowed) in budgets.values().zip(&mut allowed) {
                if budget.covers(class, name, self.names()) {
                    // Counted in order of importance, so the most important pods use up what a budget allows; the
                    // rest violate it.
                    *allowed = allowed.saturating_sub(1);
                    violates |= *allowed < 0;
                }
            }
            violates
        })
    }
}

/// Compares two victims; the more important one comes first.
fn by_importance(a: &Victim, b: &Victim) -> Ordering {
    let rank = |victim: &Victim| (Reverse(victim.priority), victim.start_time);
    rank(a).cmp(&rank(b)).then_with(|| a.key.cmp(&b.key))
}
