//! Builds the question for the engine: the pending pods and those of manifests, what can be bought, and the nodes that are on their way.

use std::collections::BTreeSet;

use mullion_api::labels;
use mullion_engine::{
    Cluster, ModelError,
    model::{NodeSpec, PodSpec},
    provision::{Plan, PlanRequest},
};
use rustc_hash::FxHashMap;

use super::{count, price, quotas::RefusedPods};
use crate::{
    failure::Failure,
    why::{
        answer,
        pools::{self, Pools},
        state::State,
    },
};

/// A question for the engine, and what is needed to word the answer.
pub(super) struct Question {
    pub(super) pools: Pools,
    pub(super) request: PlanRequest,
    /// `namespace/name` of each pod by its key.
    pub(super) names: FxHashMap<String, String>,
    /// The nodes that are removed for this plan only.
    pub(super) removed: Vec<String>,
    /// `namespace/name` of the pods that do not exist yet.
    pub(super) coming: BTreeSet<String>,
    /// `namespace/name` of the chunks of CapacityBuffers, which is their key too.
    pub(super) chunks: BTreeSet<String>,
    /// The pods that quotas refuse, which the engine is not asked about.
    pub(super) refused: Vec<RefusedPods>,
    /// Remarks for the user about pods that are left out of the plan.
    pub(super) remarks: Vec<String>,
}

impl Question {
    /// Returns what a node costs in micro-dollars an hour: its instance, plus what its NodePool adds for every node. Returns `None` if the
    /// instance type is not known.
    pub(super) fn price_of(&self, node: &NodeSpec) -> Option<u64> {
        let pool = node.labels.get(labels::NODEPOOL);
        let mut templates = self.request.templates.iter();
        let own = templates.find(|template| Some(&template.pool) == pool);
        let beside = own.map_or(0, |template| template.node_price_micro_usd);
        let overlaid = self.pools.markets.price_of_node(&node.labels);
        Some(overlaid.or_else(|| price::of_node(node))? + beside)
    }

    /// Builds the question for the current state and pods that do not exist yet.
    ///
    /// # Errors
    /// A pool, claim or class is malformed.
    pub(super) async fn of(state: &State, coming: &[PodSpec]) -> Result<Self, Failure> {
        let mut pools = pools::of(state).await?;
        let mut remarks = [&pools.overlays[..], &pools.remarks].concat();
        let mut pods = std::mem::take(&mut pools.waiting);
        // A DaemonSet's pod waits for its own node, and a pod with a nominated node waits for its victims to be gone; neither needs a new
        // node.
        pods.retain(|pod| may_buy(pod) && pod.nominated_node_name.is_none());
        let gated = |pod: &&PodSpec| !pod.template.scheduling_gates.is_empty();
        let unserved = |pod: &&PodSpec| answer::unserved(&state.cluster, pod).is_some();
        let asked = coming.iter().filter(|pod| !gated(pod) && !unserved(pod));
        pods.extend(asked.cloned());
        let waiting = state.pods.iter().filter(|pod| pod.node_name.is_none());
        let waiting = waiting.chain(coming);
        if let left @ 1.. = waiting.clone().filter(unserved).count() {
            let (name, are) = if left == 1 {
                ("names", "is")
            } else {
                ("name", "are")
            };
            remarks.push(format!(
                "{} {name} a scheduler that is not there and {are} left out",
                count(left, "pod")
            ));
        }
        if let held @ 1.. = waiting.filter(gated).count() {
            let are = if held == 1 { "is" } else { "are" };
            remarks.push(format!(
                "{} {are} held back by scheduling gates and left out",
                count(held, "pod")
            ));
        }
        let leaves = |pod: &&PodSpec| {
            let node = pod.node_name.as_ref();
            node.is_some_and(|node| pools.leaving.contains(node)) && moves(pod)
        };
        pods.extend(state.pods.iter().filter(leaves).map(unbound));
        pods.extend(pools.chunks.iter().cloned());
        let chunks = pools.chunks.iter().map(name).collect();
        let names = pods.iter().map(|pod| (pod.key(), name(pod))).collect();
        let request = PlanRequest {
            pods,
            templates: pools.templates.clone(),
            in_flight: pools.in_flight.clone(),
            by_cost: pools.by_cost,
            preferences: pools.settings.preferences,
            min_values: pools.settings.min_values,
            ..PlanRequest::default()
        };
        Ok(Question {
            pools,
            request,
            names,
            removed: Vec::new(),
            coming: coming.iter().map(name).collect(),
            chunks,
            refused: Vec::new(),
            remarks,
        })
    }

    /// Returns whether a node goes, now or in this plan, so that its pods are planned for already.
    pub(super) fn goes(&self, node: &str) -> bool {
        self.pools.leaving.iter().any(|own| own == node)
    }

    /// Removes a node for this plan: its pods need other places. A node that goes already stays among those that go.
    pub(super) fn remove(&mut self, node: &str, state: &State) {
        if self.goes(node) {
            return;
        }
        let on_it = |pod: &&PodSpec| pod.node_name.as_deref() == Some(node) && moves(pod);
        for pod in state.pods.iter().filter(on_it) {
            self.names.insert(pod.key(), name(pod));
            self.request.pods.push(unbound(pod));
        }
        self.pools.leaving.push(node.to_owned());
        self.removed.push(node.to_owned());
    }

    /// Returns the nodes on which the plan keeps room for chunks of CapacityBuffers. The cluster is unchanged when this returns.
    ///
    /// # Errors
    /// A node or pool has an impossible amount of a resource, such as a negative one.
    pub(super) fn hosts_of_chunks(
        &self,
        cluster: &mut Cluster,
    ) -> Result<BTreeSet<String>, ModelError> {
        if self.chunks.is_empty() {
            return Ok(BTreeSet::new());
        }
        self.ask(cluster, |plan, _| {
            let placed = plan.existing.iter();
            let placed = placed.filter(|(pod, _)| self.chunks.contains(pod));
            Ok(placed.map(|(_, node)| node.clone()).collect())
        })
    }

    /// Asks the engine for a plan and calls `look` with it, while the cluster is as it was for the plan. The cluster is unchanged when this
    /// returns.
    ///
    /// # Errors
    /// A node or pool has an impossible amount of a resource, such as a negative one.
    pub(super) fn ask<T>(
        &self,
        cluster: &mut Cluster,
        look: impl FnOnce(&Plan, &mut Cluster) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        let checkpoint = cluster.checkpoint();
        let looked = self.ask_in(cluster, look);
        cluster.rollback(checkpoint);
        looked
    }

    fn ask_in<T>(
        &self,
        cluster: &mut Cluster,
        look: impl FnOnce(&Plan, &mut Cluster) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        for node in &self.pools.reshaped {
            cluster.set_in_flight(node)?;
        }
        for name in &self.pools.leaving {
            // A node that cannot be removed was never in the cluster's model.
            let _ = cluster.remove_node(name);
        }
        let plan = self.pools.plan(cluster, &self.request)?;
        look(&plan, cluster)
    }
}

/// Returns the name by which the plan calls a pod: `namespace/name`.
pub(super) fn name(pod: &PodSpec) -> String {
    format!("{}/{}", pod.template.namespace, pod.name)
}

/// Returns whether nodes may be bought for a pod: not for pods of DaemonSets and static pods, which come with their nodes.
fn may_buy(pod: &PodSpec) -> bool {
    let owner = pod.template.owner.as_ref();
    !owner.is_some_and(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"))
}

/// Returns whether a pod needs another place if its node is removed.
pub(super) fn moves(pod: &PodSpec) -> bool {
    may_buy(pod) && !pod.terminating && !pod.finished
}

fn unbound(pod: &PodSpec) -> PodSpec {
    PodSpec {
        node_name: None,
        nominated_node_name: None,
        ..pod.clone()
    }
}
