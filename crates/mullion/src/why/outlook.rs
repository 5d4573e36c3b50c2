//! Makes one plan of the provisioner for all pending pods, because they share the nodes that are bought for them.

use std::collections::BTreeSet;

use mullion_engine::{
    Cluster, ModelError,
    model::{PodSpec, PodTemplate},
    provision::{self, NodeTemplate, Plan, PlanRequest, PoolRefusal},
};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::pools::Pools;

/// A node that would be bought.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Purchase {
    pub(super) pool: String,
    pub(super) instance_type: String,
    pub(super) usd_per_hour: f64,
    /// The number of pending pods that go to the node.
    pub(super) pods: usize,
    /// The number of pod addresses that the node has, if that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) addresses: Option<i64>,
    /// Why no cheaper instance type is bought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_cheaper: Option<String>,
}

/// The reason why one pool buys no node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PoolReason {
    pub(crate) pool: String,
    pub(crate) reason: String,
}

/// What the plan does for each pending pod.
#[derive(Default)]
pub(super) struct Outlook {
    /// The existing or coming node that the pod goes to, by the pod's key.
    pub(super) awaits: FxHashMap<String, String>,
    pub(super) buys: FxHashMap<String, Purchase>,
    pub(super) refusals: FxHashMap<String, Vec<PoolReason>>,
    request: PlanRequest,
    plan: Plan,
    /// The keys of the chunks of CapacityBuffers in the plan.
    chunks: FxHashSet<String>,
}

impl Outlook {
    /// Returns whether neither a node nor a pool has a place for the pod, beside the other pending pods.
    pub(super) fn refuses(&self, key: &str) -> bool {
        self.refusals.contains_key(key)
    }

    /// Forgets the place of a pod that has made room elsewhere by preemption.
    pub(super) fn forget(&mut self, key: &str) {
        self.plan.existing.retain(|(own, _)| own != key);
        for node in &mut self.plan.nodes {
            node.pods.retain(|own| own != key);
        }
    }

    /// Puts the planned pods and nodes into the cluster. Returns the pools with what their limits have left.
    ///
    /// # Errors
    /// A pod or a pool has an impossible amount of a resource, such as a negative one.
    pub(super) fn carry_out(
        &self,
        cluster: &mut Cluster,
        pools: &Pools,
    ) -> Result<Vec<NodeTemplate>, ModelError> {
        let mut nodes = pools.reshaped.iter();
        nodes.try_for_each(|node| cluster.set_in_flight(node))?;
        cluster.carry_out(&self.plan, &self.request)
    }

    /// Returns the purchase of the planned node that a node of the cluster stands for after [`Outlook::carry_out`], with one pod
    /// more; `None` for all other nodes.
    pub(super) fn purchase_of(&self, node: &str) -> Option<Purchase> {
        let planned = self.plan.node_named(node)?;
        let cheapest = planned.options.first()?;
        let pods = planned.pods.iter();
        Some(Purchase {
            pods: pods.filter(|pod| !self.chunks.contains(*pod)).count() + 1,
            ..purchase(&planned.pool, &cheapest.name, planned.price_micro_usd())
        })
    }
}

/// Makes a plan for pending pods and the chunks of CapacityBuffers among them. The cluster is unchanged when this returns.
///
/// # Errors
/// A pod or a pool has an impossible amount of a resource, such as a negative one.
pub(super) fn outlook(
    cluster: &mut Cluster,
    pools: &Pools,
    waiting: Vec<PodSpec>,
) -> Result<Outlook, ModelError> {
    let asked: FxHashMap<String, PodTemplate> = waiting
        .iter()
        .map(|pod| (pod.key(), pod.template.clone()))
        .collect();
    let request = request(pools, waiting);
    let mut plan = as_it_will_be(cluster, pools, |cluster| pools.plan(cluster, &request))?;
    let chunks: FxHashSet<String> = pools.chunks.iter().map(PodSpec::key).collect();
    let mut outlook = Outlook {
        awaits: plan.existing.iter().cloned().collect(),
        ..Outlook::default()
    };
    for node in &plan.nodes {
        let Some(cheapest) = node.options.first() else {
            continue;
        };
        let pods: Vec<_> = node
            .pods
            .iter()
            .filter(|pod| !chunks.contains(*pod))
            .collect();
        for pod in &pods {
            let purchase = Purchase {
                pods: pods.len(),
                not_cheaper: pools.left_out_for(node).map(ToString::to_string),
                ..purchase(&node.pool, &cheapest.name, node.price_micro_usd())
            };
            outlook.buys.insert((*pod).clone(), purchase);
        }
    }
    // Pods of equal templates get the same words, which are looked up once.
    let mut known: FxHashMap<&PodTemplate, Vec<PoolReason>> = FxHashMap::default();
    for refused in std::mem::take(&mut plan.unplaceable) {
        let Some(template) = asked.get(&refused.pod) else {
            continue;
        };
        let words = match known.get(template) {
            Some(words) => words.clone(),
            None => refusal_texts(cluster, pools, template, &refused.pools, &plan.full)?,
        };
        known.insert(template, words.clone());
        outlook.refusals.insert(refused.pod, words);
    }
    Ok(Outlook {
        request,
        plan,
        chunks,
        ..outlook
    })
}

/// Builds the request to plan for these pods.
fn request(pools: &Pools, pods: Vec<PodSpec>) -> PlanRequest {
    PlanRequest {
        pods,
        templates: pools.templates.clone(),
        in_flight: pools.in_flight.clone(),
        by_cost: pools.by_cost,
        preferences: pools.settings.preferences,
        min_values: pools.settings.min_values,
        ..PlanRequest::default()
    }
}

/// Calls `ask` with the cluster as it will be once all nodes are initialized. The cluster is unchanged when this returns.
fn as_it_will_be<T>(
    cluster: &mut Cluster,
    pools: &Pools,
    ask: impl FnOnce(&mut Cluster) -> Result<T, ModelError>,
) -> Result<T, ModelError> {
    let checkpoint = cluster.checkpoint();
    let mut nodes = pools.reshaped.iter();
    // No `?` here: the rollback below has to happen even if this fails.
    let set = nodes.try_for_each(|node| cluster.set_in_flight(node));
    let answer = set.and_then(|()| ask(cluster));
    cluster.rollback(checkpoint);
    answer
}

/// What the nodes cost that are bought for all pods of one template, and what they would cost otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Costs {
    pub(super) pods: usize,
    pub(super) usd_per_hour: f64,
    /// Where the nodes would be bought if the pools of this plan did not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_pool: Option<NextPool>,
    /// The requirement of the pods that raises the price most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) without: Option<PriceWithout>,
}

/// The next best pools.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NextPool {
    pub(super) pools: Vec<String>,
    pub(super) usd_per_hour: f64,
}

/// The price of the nodes without one requirement of the pods.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PriceWithout {
    pub(super) demand: String,
    pub(super) usd_per_hour: f64,
    pub(super) percent_less: u64,
}

/// Computes the costs for pods of one template. Returns `None` if they share nodes with other pods, or there is nothing to say.
///
/// # Errors
/// A pool has an impossible amount of a resource, such as a negative one.
pub(super) fn costs(
    cluster: &mut Cluster,
    pools: &Pools,
    pods: Vec<PodSpec>,
) -> Result<Option<Costs>, ModelError> {
    let count = pods.len();
    let request = request(pools, pods);
    let prices = as_it_will_be(cluster, pools, |cluster| cluster.prices(&request))?;
    Ok(prices.map(|prices| {
        let percent_less = prices.saving_percent().unwrap_or(0);
        Costs {
            pods: count,
            usd_per_hour: dollars(prices.price),
            next_pool: prices.next.map(|(pools, price)| NextPool {
                pools,
                usd_per_hour: dollars(price),
            }),
            without: prices.dearest.map(|(demand, price)| PriceWithout {
                demand: demand.to_string(),
                usd_per_hour: dollars(price),
                percent_less,
            }),
        }
    }))
}

fn dollars(micro_usd: u64) -> f64 {
    micro_usd as f64 / 1e6
}

/// Returns why each pool buys no node for a pod. `full` has the pools and zones whose subnets the plan fills.
///
/// # Errors
/// A pool has an impossible amount of a resource, such as a negative one.
pub(crate) fn refusal_texts(
    cluster: &mut Cluster,
    pools: &Pools,
    template: &PodTemplate,
    refusals: &[PoolRefusal],
    full: &BTreeSet<(String, String)>,
) -> Result<Vec<PoolReason>, ModelError> {
    let word = |refusal: &PoolRefusal| {
        let mut own = pools.templates.iter();
        let reason = match own.find(|pool| pool.pool == refusal.pool) {
            Some(pool) => match without_address(cluster, pools, template, (pool, refusal), full)? {
                Some(reason) => reason,
                None => cluster.pool_refusal(template, pool, &refusal.reason)?,
            },
            None => cluster.pool_reason_text(&refusal.reason),
        };
        Ok(PoolReason {
            pool: refusal.pool.clone(),
            reason,
        })
    };
    refusals.iter().map(word).collect()
}

/// Returns the reason of a pool whose types are for sale, but not in zones where a subnet has a free address; `None` where it has another reason.
fn without_address(
    cluster: &mut Cluster,
    pools: &Pools,
    template: &PodTemplate,
    (pool, refusal): (&NodeTemplate, &PoolRefusal),
    full: &BTreeSet<(String, String)>,
) -> Result<Option<String>, ModelError> {
    if refusal.reason != provision::PoolReason::NoOffering {
        return Ok(None);
    }
    let zones = cluster.zones_for(template, pool)?;
    let of_zone = |zone: &String| pools.subnets.why(&pool.pool, zone, full);
    let states: Vec<String> = zones.iter().filter_map(of_zone).collect();
    if states.is_empty() {
        return Ok(None);
    }
    let start = if states.len() == zones.len() {
        "a node would get no address"
    } else {
        "what is not sold out would get no address"
    };
    Ok(Some(format!("{start}: {}", states.join("; "))))
}

/// Returns a purchase of one node for one pod.
pub(super) fn purchase(pool: &str, instance_type: &str, price_micro_usd: u64) -> Purchase {
    Purchase {
        pool: pool.to_owned(),
        instance_type: instance_type.to_owned(),
        usd_per_hour: dollars(price_micro_usd),
        pods: 1,
        addresses: None,
        not_cheaper: None,
    }
}
