//! What consolidation is asked.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::model::{NodeSpec, ResourceMap};
use crate::provision::PlanRequest;

/// Which nodes may go, and what may be bought instead.
#[derive(Clone, Debug, Default)]
pub struct Consolidation {
    /// Nodes that may go now.
    pub candidates: Vec<Candidate>,
    /// The terms of the pools that they are of, by name. Nodes of other pools stay.
    pub pools: BTreeMap<String, PoolTerms>,
    /// What can be bought, and pods that wait for a place: room that they will take is not given to others.
    pub market: PlanRequest,
    /// Nodes to be seen in another shape than they have, as they will be.
    pub reshaped: Vec<NodeSpec>,
    /// Nodes that go already. Their pods are among those that wait.
    pub leaving: Vec<String>,
    /// Nodes that no pod is to be moved to: they are not ready, or got pods a moment ago.
    pub closed: Vec<String>,
    /// Lets spot nodes be replaced by other spot nodes.
    pub spot_to_spot: bool,
}

impl Consolidation {
    /// Gives pods that wait the room that they will get, and closes nodes that nothing is to be moved to.
    pub(super) fn make_room_for_pending(&self, cluster: &mut Cluster) -> Result<(), ModelError> {
        for node in &self.reshaped {
            cluster.set_node(node)?;
        }
        for name in &self.leaving {
            // A node that never reached the model need not leave it.
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
                    // It is on a node that goes; else it was bound meanwhile.
                    Some(id) if cluster.node_of(cluster.pod(id).node_name).is_none() => {
                        cluster.rehome(id, Some(to));
                    }
                    Some(_) => {}
                }
            }
        }
        for name in &self.closed {
            if let Some(id) = cluster.node(name) {
                cluster.cordon(id);
            }
        }
        Ok(())
    }
}

/// A node that may go.
#[derive(Clone, Debug, Default)]
pub struct Candidate {
    /// Its name.
    pub node: String,
    /// The pool it was bought for.
    pub pool: String,
    /// What it costs: micro-dollars an hour.
    pub price_micro_usd: u64,
    /// What it counts against the limits of its pool.
    pub capacity: ResourceMap,
    /// How much disturbance its end is, in thousandths: 1000, and for each pod that moves up to 10,000 by priority and deletion cost.
    pub disruption_milli: u64,
    /// It is spot capacity.
    pub is_spot: bool,
}

/// On which terms the nodes of a pool may go.
#[derive(Clone, Debug, Default)]
pub struct PoolTerms {
    /// So many, at most.
    pub budget: usize,
    /// What a move must save, in thousandths of the price of the nodes that go.
    pub least_saving_per_mille: u32,
    /// How long a new node of the pool takes until pods run on it, in seconds. Meanwhile both are paid.
    pub boot_seconds: u32,
    /// The pool's savings are weighed against disturbance.
    pub balance: Option<Balance>,
}

/// All nodes of a pool together, by which Karpenter's policy `Balanced` weighs a move.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balance {
    /// Micro-dollars an hour.
    pub price_micro_usd: u64,
    /// As in [`Candidate::disruption_milli`].
    pub disruption_milli: u64,
}
