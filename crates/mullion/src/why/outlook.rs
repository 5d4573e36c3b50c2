//! What one plan of the provisioner has for all pods that wait: they share what is bought for them.

use mullion_engine::{
    Cluster, ModelError,
    model::{PodSpec, PodTemplate},
    provision::{PlanRequest, PoolRefusal},
};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::pools::Pools;

/// A machine that would be bought.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Purchase {
    pub(super) pool: String,
    pub(super) instance_type: String,
    pub(super) usd_per_hour: f64,
    /// How many of the waiting pods it is for.
    pub(super) pods: usize,
    /// How many addresses it has for pods, where that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) addresses: Option<i64>,
    /// Why a cheaper type is not bought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_cheaper: Option<String>,
}

/// One pool's refusal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PoolWord {
    pub(crate) pool: String,
    pub(crate) reason: String,
}

/// What becomes of each of them.
#[derive(Default)]
pub(super) struct Outlook {
    /// By pod: the node or claim that is on its way.
    pub(super) awaits: FxHashMap<String, String>,
    pub(super) buys: FxHashMap<String, Purchase>,
    pub(super) refusals: FxHashMap<String, Vec<PoolWord>>,
}

/// Plans for pods that wait; the cluster is given back as it was.
///
/// # Errors
/// A pod or a pool names an amount that cannot be true.
pub(super) fn outlook(
    cluster: &mut Cluster,
    pools: &Pools,
    waiting: Vec<PodSpec>,
) -> Result<Outlook, ModelError> {
    let asked: FxHashMap<String, PodTemplate> = waiting
        .iter()
        .map(|pod| (pod.key(), pod.template.clone()))
        .collect();
    let checkpoint = cluster.checkpoint();
    let plan = pools
        .reshaped
        .iter()
        .try_for_each(|node| cluster.set_node(node).map(drop))
        .and_then(|()| {
            cluster.plan(&PlanRequest {
                pods: waiting,
                templates: pools.templates.clone(),
                in_flight: pools.in_flight.clone(),
                by_cost: pools.by_cost,
                ..PlanRequest::default()
            })
        });
    cluster.rollback(checkpoint);
    let plan = plan?;
    let mut outlook = Outlook {
        awaits: plan.existing.into_iter().collect(),
        ..Outlook::default()
    };
    for node in &plan.nodes {
        let Some(cheapest) = node.options.first() else {
            continue;
        };
        for pod in &node.pods {
            let purchase = Purchase {
                pods: node.pods.len(),
                not_cheaper: pools
                    .too_small
                    .get(&node.pool)
                    .filter(|small| small.price_micro_usd < cheapest.price_micro_usd)
                    .map(ToString::to_string),
                ..purchase(&node.pool, &cheapest.name, cheapest.price_micro_usd)
            };
            outlook.buys.insert(pod.clone(), purchase);
        }
    }
    let mut known: FxHashMap<&PodTemplate, Vec<PoolWord>> = FxHashMap::default();
    for refused in plan.unplaceable {
        let Some(template) = asked.get(&refused.pod) else {
            continue;
        };
        let words = match known.get(template) {
            Some(words) => words.clone(),
            None => words(cluster, pools, template, &refused.pools)?,
        };
        known.insert(template, words.clone());
        outlook.refusals.insert(refused.pod, words);
    }
    Ok(outlook)
}

/// Why pools buy nothing for a pod.
///
/// # Errors
/// A pool names an amount that cannot be true.
pub(crate) fn words(
    cluster: &mut Cluster,
    pools: &Pools,
    template: &PodTemplate,
    refusals: &[PoolRefusal],
) -> Result<Vec<PoolWord>, ModelError> {
    let word = |refusal: &PoolRefusal| {
        let mut own = pools.templates.iter();
        let reason = match own.find(|pool| pool.pool == refusal.pool) {
            Some(pool) => cluster.pool_refusal(template, pool, &refusal.reason)?,
            None => cluster.pool_reason_text(&refusal.reason),
        };
        Ok(PoolWord {
            pool: refusal.pool.clone(),
            reason,
        })
    };
    refusals.iter().map(word).collect()
}

/// One machine for one pod.
pub(super) fn purchase(pool: &str, instance_type: &str, price_micro_usd: u64) -> Purchase {
    Purchase {
        pool: pool.to_owned(),
        instance_type: instance_type.to_owned(),
        usd_per_hour: price_micro_usd as f64 / 1e6,
        pods: 1,
        addresses: None,
        not_cheaper: None,
    }
}
