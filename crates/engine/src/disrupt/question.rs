//! The input of consolidation.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::balance::Balance;
use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::model::ResourceMap;
use crate::provision::{InFlightNode, PlanRequest};

/// The nodes that may be removed, and what may be bought instead.
#[derive(Clone, Debug, Default)]
pub struct Consolidation {
    /// Nodes that may be removed now.
    pub candidates: Vec<Candidate>,
    /// The terms of the candidates' pools, by name. Nodes of other pools stay.
    pub pools: BTreeMap<String, PoolTerms>,
    /// What can be bought, and the pods that wait for a place; the room that these will take is not available to moved pods.
    pub market: PlanRequest,
    /// Nodes that are not ready yet, in the shape that they will have.
    pub reshaped: Vec<InFlightNode>,
    /// Names of nodes that are being removed already; their pods are among those that wait.
    pub leaving: Vec<String>,
    /// Names of nodes that must not receive moved pods: they are not ready, or received pods a moment ago.
    pub closed: Vec<String>,
    /// Whether spot nodes may be replaced by other spot nodes.
    pub spot_to_spot: bool,
}

impl Consolidation {
    /// Places the waiting pods where a plan puts them, and cordons the closed nodes.
    pub(super) fn make_room_for_pending(&self, cluster: &mut Cluster) -> Result<(), ModelError> {
        for node in &self.reshaped {
            cluster.set_in_flight(node)?;
        }
        for name in &self.leaving {
            // A node that never reached the model cannot be removed; that is no error.
            let _ = cluster.remove_node(name);
        }
        if !self.market.pods.is_empty() {
            let plan = cluster.plan(&self.market)?;
            let pods = self.market.pods.iter();
            let specs: FxHashMap<String, _> = pods.map(|pod| (pod.key(), pod)).collect();
            for (key, node) in &plan.existing {
                let (Some(pod), Some(to)) = (specs.get(key), cluster.node(node)) else {
                    continue;
                };
                match cluster.pod_id(key) {
                    None => cluster.bind(pod, node)?,
                    // The pod's node is being removed. Otherwise it was bound meanwhile and stays where it is.
                    Some(id) if cluster.node_of(cluster.pod(id).node_name).is_none() => {
                        cluster.rehome(id, Some(to));
                    }
                    Some(_) => {}
                }
            }
        }
        // Only after the plan: pods that wait may use closed nodes, pods that move may not.
        for name in &self.closed {
            if let Some(id) = cluster.node(name) {
                cluster.cordon(id);
            }
        }
        Ok(())
    }

    /// Returns the classes of the pods on the candidates.
    pub(super) fn classes(&self, cluster: &Cluster) -> Vec<PodClassId> {
        let candidates = self.candidates.iter();
        let nodes = candidates.filter_map(|own| cluster.node(&own.node));
        let pods = nodes.flat_map(|id| &cluster.at(id).pods);
        pods.map(|pod| cluster.pod(*pod).class).collect()
    }
}

/// A node that may be removed.
#[derive(Clone, Debug, Default)]
pub struct Candidate {
    /// The node's name.
    pub node: String,
    /// The pool it was bought for.
    pub pool: String,
    /// The node's price in micro-dollars per hour.
    pub price_micro_usd: u64,
    /// The capacity that the node counts against its pool's limits.
    pub capacity: ResourceMap,
    /// The disruption that its removal causes, in thousandths: 1000, and for each pod that moves up to 10,000 depending on
    /// its priority and deletion cost.
    pub disruption_milli: u64,
    /// Whether the node is spot capacity.
    pub is_spot: bool,
}

/// The terms on which nodes of a pool may be removed.
#[derive(Clone, Debug, Default)]
pub struct PoolTerms {
    /// The maximum number of nodes that may be removed.
    pub budget: usize,
    /// The saving that a move must bring, in thousandths of the price of the removed nodes.
    pub least_saving_per_mille: u32,
    /// How long a new node of the pool takes until pods run on it, in seconds. During that time both nodes are paid for.
    pub boot_seconds: u32,
    /// The totals of the pool's nodes, if savings are weighed against disruption (Karpenter's policy `Balanced`).
    pub balance: Option<Balance>,
}
