//! Everything that is said about one pod: its state, the nodes grouped by their reason, the pools, and the smallest change that helps.
//!
//! This is data only; [`super::explainer`] collects it, [`super::text`] prints it for people, and `-o json` prints it as it is.

use serde::Serialize;

use super::{
    answer::Record,
    daemon::Daemon,
    groups::Group,
    images::{ImagePlatforms, WrongNode},
    outlook::{Costs, PoolReason, Purchase},
    start::Start,
};

/// Everything that is said about one pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    /// The pod, as in `pod shop/iis`, or the workload whose pod it would be.
    pub(super) pod: String,
    /// The node that the pod is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bound_to: Option<String>,
    /// Why the pod does not get the resources that its pending resize asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resize: Option<String>,
    /// What is said of the pod if it is bound and does not run or is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start: Option<Start>,
    /// What the pod's images run on, if that matters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) images: Vec<ImagePlatforms>,
    /// The operating system that the pod asks for, if an image of it does not run there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wrong_system: Option<&'static str>,
    /// Why an image of the pod does not start on the node that the pod is bound to, if the pod does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wrong_node: Option<WrongNode>,
    /// Label values in the pod's node selector or affinity that no instance type can have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) wrong_values: Vec<String>,
    /// Why the pod gets no address as a Windows pod, so that its sandbox is never created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_address: Option<String>,
    /// Why the scheduler ignores the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) passed_over: Option<String>,
    /// The name of the pod's scheduler, if the cluster has no scheduler of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unserved: Option<Unserved>,
    /// The nodes that the DaemonSet's pods go to, if the pod belongs to a DaemonSet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) daemon: Option<Daemon>,
    /// Pods of the same question that preempt others before this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<String>,
    /// What must be created or removed before any change to the pod can help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prerequisite: Option<String>,
    /// The pod's nominated node, on which it has preempted others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nominated: Option<String>,
    /// Whether the pod waits until the pods that it preempted are gone.
    pub(super) waits_for_victims: bool,
    /// What the scheduler says about every node.
    pub(super) answer: Record,
    /// The whole message of the FailedScheduling event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) event: Option<String>,
    /// The nodes that refuse the pod, grouped by reason; the largest group first.
    pub(super) refusals: Vec<Group>,
    /// The NodeClaim or node on its way that the pod will be placed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) awaits: Option<String>,
    /// The node that a pool would buy for the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) buys: Option<Purchase>,
    /// What nodes for pods with the same template cost, if any are bought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) costs: Option<Costs>,
    /// For each pool, why it buys no node.
    pub(super) pools: Vec<PoolReason>,
    /// The pools that are not ready and might buy a node for the pod if they were, as in `NodePool linux`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) broken_pools: Vec<String>,
    /// The sets of changes that would place the pod, smallest first.
    pub(super) changes: Vec<ChangeSet>,
    /// That a node which the pod would go to is in a zone that has failed, as a sentence without a full stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outage: Option<String>,
    /// The node that the pod is for, if a DaemonSet made it and it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) only_node: Option<String>,
    /// The pod's scheduling gates, which hold it back on purpose and are easily overlooked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) gates: Vec<String>,
}

/// The pod's scheduler, which no profile of the cluster serves.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Unserved {
    pub(super) scheduler_name: String,
    /// The scheduler names that the cluster has.
    pub(super) known: Vec<String>,
}

/// A set of changes that together place the pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangeSet {
    pub(super) changes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) buys: Option<Purchase>,
}

impl Explanation {
    /// Returns an explanation that has only the pod's name.
    pub(super) fn of(pod: String) -> Self {
        Explanation {
            pod,
            bound_to: None,
            resize: None,
            start: None,
            images: Vec::new(),
            wrong_system: None,
            wrong_node: None,
            wrong_values: Vec::new(),
            no_address: None,
            passed_over: None,
            unserved: None,
            daemon: None,
            after: Vec::new(),
            prerequisite: None,
            nominated: None,
            waits_for_victims: false,
            answer: Record::default(),
            event: None,
            refusals: Vec::new(),
            awaits: None,
            buys: None,
            costs: None,
            pools: Vec::new(),
            broken_pools: Vec::new(),
            changes: Vec::new(),
            outage: None,
            only_node: None,
            gates: Vec::new(),
        }
    }

    /// Leaves out what is no answer for a pod that a DaemonSet made for one node: other nodes, pools, and changes that lead elsewhere.
    pub(super) fn keep_only(&mut self, node: &str) {
        let is_it = |own: &String| own == node;
        self.refusals.retain(|group| group.nodes.iter().any(is_it));
        self.changes
            .retain(|set| set.node.as_ref().is_some_and(is_it));
        self.pools.clear();
        self.broken_pools.clear();
        self.only_node = Some(node.to_owned());
    }

    /// Returns whether another pending pod gets the same explanation, so that both can be printed together.
    pub(super) fn has_same_text(&self, other: &Explanation) -> bool {
        let waits = |own: &Self| own.bound_to.is_none() && own.passed_over.is_none();
        let waits = waits(self) && waits(other);
        waits
            && (&self.answer, &self.event, &self.refusals)
                == (&other.answer, &other.event, &other.refusals)
            && (
                &self.unserved,
                &self.daemon,
                &self.after,
                &self.prerequisite,
            ) == (
                &other.unserved,
                &other.daemon,
                &other.after,
                &other.prerequisite,
            )
            && (&self.nominated, self.waits_for_victims)
                == (&other.nominated, other.waits_for_victims)
            && (&self.images, &self.wrong_system, &self.wrong_values)
                == (&other.images, &other.wrong_system, &other.wrong_values)
            && (&self.no_address, &self.awaits, &self.buys, &self.costs)
                == (&other.no_address, &other.awaits, &other.buys, &other.costs)
            && (&self.pools, &self.broken_pools) == (&other.pools, &other.broken_pools)
            && (&self.changes, &self.gates) == (&other.changes, &other.gates)
            && (&self.outage, &self.only_node) == (&other.outage, &other.only_node)
    }

    /// Returns whether another pod of the same workload waits or does not run for the same cause. Pods that get a place by themselves wait for
    /// one cause if they get it in the same way, wherever the place is.
    pub(super) fn has_same_cause(&self, other: &Explanation) -> bool {
        let way = |own: &Self| {
            let finds = [own.answer.best.is_some(), own.buys.is_some()];
            (finds, own.awaits.is_some(), own.waits_for_victims)
        };
        match (&self.start, &other.start) {
            (Some(own), Some(others)) => {
                own.has_same_cause(others)
                    && self.wrong_node.is_some() == other.wrong_node.is_some()
            }
            (None, None) if self.is_placed() && other.is_placed() => way(self) == way(other),
            (None, None) => self.has_same_text(other),
            _ => false,
        }
    }

    /// Returns whether the pod has a place, will get one without any change by the user, or does not need one any more.
    pub(super) fn is_placed(&self) -> bool {
        let free = self.gates.is_empty();
        if let Some(daemon) = &self.daemon {
            return free && daemon.waits_on.is_empty();
        }
        self.bound_to.is_some()
            || self.passed_over.is_some()
            || free && (self.answer.best.is_some() || self.buys.is_some() || self.awaits.is_some())
            || self.evicts()
            || free && self.waits_for_victims
    }

    /// Returns the nodes that a pod without a node would go to, as it is or changed.
    pub(super) fn proposed_nodes(&self) -> impl Iterator<Item = &String> {
        let waits = self.bound_to.is_none() && self.passed_over.is_none();
        let best = self.answer.best.iter().flatten();
        let changed = self.changes.iter().filter_map(|set| set.node.as_ref());
        best.chain(changed).filter(move |_| waits)
    }

    /// Returns whether the answer depends on what is bought for pending pods.
    pub(super) fn is_planned(&self) -> bool {
        self.awaits.is_some() || self.buys.is_some() || !self.pools.is_empty()
    }

    /// Returns whether the pod makes room by preemption, which a bound or gated pod does not.
    pub(super) fn evicts(&self) -> bool {
        let waits = self.bound_to.is_none() && self.gates.is_empty();
        waits && self.answer.ways_to_evict().next().is_some()
    }
}
