//! Computes the victims of preemption on one node from sums of resources, without a trial on the model.
//!
//! Pods of lower priority are removed and then reprieved run by run. A run has pods of equal priority, start time and
//! requests, so only their number matters until they are named. Invariant: a [`Plan`] with a cost equals the result
//! of a trial on the model; where sums do not suffice, the plan is [`Plan::Try`].

use crate::class::{PodClassId, Shape};
use crate::cluster::{Cluster, NodeId, PodId};
use crate::resources::Amounts;

use super::{Cost, order};

/// The result for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The node has no pods of lower priority.
    NoVictims,
    /// Sums do not suffice, so the node needs a trial on the model.
    Try,
    /// Preemption helps, at this cost.
    Evict(Cost),
}

/// Pods that are equal for preemption.
struct Run {
    priority: i32,
    start_time: i64,
    pods: Vec<PodId>,
    evicted: usize,
}

#[derive(Clone, Copy)]
struct LowerPriorityPod {
    priority: i32,
    start_time: i64,
    class: PodClassId,
    pod: PodId,
}

/// The resources that are left on the node.
struct Room {
    cpu_milli: i64,
    memory_bytes: i64,
    ephemeral_bytes: i64,
    pods: i64,
}

impl Room {
    // Wraps as Go's int64 does, like the fit filter whose result the sums must equal.
    fn change(&mut self, by: &Amounts, times: i64) {
        let add = |left: &mut i64, by: i64| *left = left.wrapping_add(by.wrapping_mul(times));
        add(&mut self.cpu_milli, by.cpu_milli);
        add(&mut self.memory_bytes, by.memory_bytes);
        add(&mut self.ephemeral_bytes, by.ephemeral_bytes);
        self.pods += times;
    }

    /// Returns whether a request and one more pod fit into the room. A resource of which nothing is requested cannot refuse, as in NodeResourcesFit.
    fn fits(&self, request: &Amounts) -> bool {
        let fits = |request: i64, left: i64| request <= 0 || request <= left;
        fits(request.cpu_milli, self.cpu_milli)
            && fits(request.memory_bytes, self.memory_bytes)
            && fits(request.ephemeral_bytes, self.ephemeral_bytes)
            && self.pods >= 1
    }
}

/// Returns whether sums of resources decide preemption for a shape: it has no host ports and no extended resources.
pub(crate) fn is_planned(shape: &Shape) -> bool {
    shape.host_ports.is_empty() && shape.requests.real.scalars.is_empty()
}

impl Cluster {
    /// Computes the cost of preemption on a node for a pod of this shape and priority; `nominated` are nominated pods
    /// whose room is held.
    pub(crate) fn plan_eviction(
        &self,
        shape: &Shape,
        priority: i32,
        node: NodeId,
        nominated: &[PodClassId],
    ) -> Plan {
        let lower = |class: PodClassId| self.class(class).priority < priority;
        // Asked by class, of which a node has few, before its pods are gone through.
        if !self.at(node).classes.iter().any(|count| lower(count.class)) {
            return Plan::NoVictims;
        }
        let Some(runs) = self.runs(shape, priority, node, nominated) else {
            return Plan::Try;
        };
        let victims = runs
            .iter()
            .flat_map(|run| std::iter::repeat_n((run.priority, run.start_time), run.evicted));
        // If no pod has to be evicted for resources, the node refuses for another reason.
        if runs.iter().any(|run| run.evicted > 0) {
            Plan::Evict(Cost::of(0, victims))
        } else {
            Plan::Try
        }
    }

    /// Returns the victims of a plan with a cost, the most important first.
    pub(crate) fn planned_victims(
        &self,
        shape: &Shape,
        priority: i32,
        node: NodeId,
        nominated: &[PodClassId],
    ) -> Vec<PodId> {
        let mut runs = self
            .runs(shape, priority, node, nominated)
            .unwrap_or_default();
        let by_key = |a: &PodId, b: &PodId| self.pod(*a).key().cmp(self.pod(*b).key());
        let pods: usize = runs.iter().map(|run| run.pods.len()).sum();
        // Beyond the stable length, Go's sort decides which equals stay. Within one run nothing is less than
        // anything, so their order is kept.
        if runs.len() > 1 && pods > order::STABLE {
            self.order_for_trial(&mut runs);
        } else {
            // Among equal pods the first keys are more important, so the last ones are evicted.
            for run in runs.iter_mut().filter(|run| run.evicted > 0) {
                let kept = run.pods.len() - run.evicted;
                if kept > 0 {
                    // Only which pods are evicted matters, so the rest need not be sorted.
                    run.pods.select_nth_unstable_by(kept, by_key);
                }
            }
        }
        let mut victims = Vec::new();
        for run in &mut runs {
            let kept = run.pods.len() - run.evicted;
            let evicted = &mut run.pods[kept..];
            evicted.sort_unstable_by(by_key);
            victims.extend_from_slice(evicted);
        }
        victims
    }

    /// Puts the pods of runs into the order of a trial.
    fn order_for_trial(&self, runs: &mut [Run]) {
        let numbered = runs.iter().enumerate();
        let mut pods: Vec<(usize, PodId)> = numbered
            .flat_map(|(run, own)| own.pods.iter().map(move |pod| (run, *pod)))
            .collect();
        pods.sort_unstable_by(|a, b| self.pod(a.1).key().cmp(self.pod(b.1).key()));
        // The runs are already in order of importance.
        order::sort(&mut pods, |a, b| a.0 < b.0);
        for run in &mut *runs {
            run.pods.clear();
        }
        for (run, pod) in pods {
            runs[run].pods.push(pod);
        }
    }

    /// Removes all lower pods and reprieves those that still fit; `None` if sums do not suffice.
    fn runs(
        &self,
        shape: &Shape,
        priority: i32,
        node: NodeId,
        nominated: &[PodClassId],
    ) -> Option<Vec<Run>> {
        let lower = self.lower(node, priority)?;
        let request = &shape.requests.real;
        let node = self.at(node);
        let left =
            |of: fn(&Amounts) -> i64| of(&node.fixed.allocatable).wrapping_sub(of(&node.used));
        let mut room = Room {
            cpu_milli: left(|amounts| amounts.cpu_milli),
            memory_bytes: left(|amounts| amounts.memory_bytes),
            ephemeral_bytes: left(|amounts| amounts.ephemeral_bytes),
            pods: left(|amounts| amounts.pods),
        };
        let asked = |class: PodClassId| &self.class(class).shape.requests.real;
        lower
            .iter()
            .for_each(|pod| room.change(asked(pod.class), 1));
        // Nominated pods hold their room throughout; no eviction frees it.
        nominated
            .iter()
            .for_each(|class| room.change(asked(*class), -1));
        if !room.fits(request) {
            return None;
        }
        let mut runs = Vec::new();
        for alike in lower.chunk_by(|a, b| (a.priority, a.start_time) == (b.priority, b.start_time))
        {
            let first = alike[0];
            let size = asked(first.class);
            let same =
                |pod: &LowerPriorityPod| pod.class == first.class || asked(pod.class) == size;
            // If pods of equal importance differ in requests, it depends on their keys which of them stay. Sums
            // cannot tell that.
            if !alike.iter().all(same) {
                return None;
            }
            let mut back = 0;
            while back < alike.len() {
                room.change(size, -1);
                if !room.fits(request) {
                    room.change(size, 1);
                    // The run's other pods ask for as much, so none of them fits either. Smaller ones of later runs
                    // still may.
                    break;
                }
                back += 1;
            }
            runs.push(Run {
                priority: first.priority,
                start_time: first.start_time,
                pods: alike.iter().map(|pod| pod.pod).collect(),
                evicted: alike.len() - back,
            });
        }
        Some(runs)
    }

    /// Returns the lower pods of a node, sorted by importance except for their keys; `None` if a disruption budget
    /// may cover one.
    fn lower(&self, node: NodeId, priority: i32) -> Option<Vec<LowerPriorityPod>> {
        let budgets = &self.objects().pdbs;
        let covered = |class: PodClassId| {
            budgets
                .values()
                .any(|budget| budget.may_cover(self.class(class), self.names()))
        };
        let node = self.at(node);
        let mut classes = node.classes.iter().map(|count| count.class);
        // Budgets reprieve pods in another order, which a trial follows; sums only know importance.
        if !budgets.is_empty()
            && classes.any(|class| self.class(class).priority < priority && covered(class))
        {
            return None;
        }
        let mut lower = Vec::with_capacity(node.pods.len());
        for &id in &node.pods {
            let pod = self.pod(id);
            let own = self.class(pod.class).priority;
            if own < priority {
                lower.push(LowerPriorityPod {
                    priority: own,
                    start_time: pod.start_time,
                    class: pod.class,
                    pod: id,
                });
            }
        }
        lower.sort_unstable_by_key(|pod| (std::cmp::Reverse(pod.priority), pod.start_time));
        Some(lower)
    }
}
