//! The markets of all node classes, and those of pools whose machines NodeOverlays change.
//!
//! Invariant: who asks for a pool or a claim gets the machines as that pool has them; only what is no pool's is asked for by class.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt;
use mullion_api::{
    karpenter::{NodeClaim, NodePool},
    labels,
};
use mullion_engine::model::StringMap;

use super::{KarpenterContext, market::Market, reserved};
use crate::overlays::Overlay;

/// Markets by class, and by pool where they differ.
#[derive(Clone, Debug, Default)]
pub struct Markets {
    classes: BTreeMap<String, Market>,
    /// By pool and class: with overlays.
    overlaid: BTreeMap<(String, String), Market>,
}

impl Markets {
    /// Markets by class, without overlays.
    pub fn new(classes: BTreeMap<String, Market>) -> Self {
        Self {
            classes,
            overlaid: BTreeMap::new(),
        }
    }

    /// The markets of all classes that pools and claims refer to, as overlays have them now.
    pub(crate) async fn now(karpenter: &KarpenterContext) -> Self {
        let markets = Self::of_classes(karpenter).await;
        let (pools, claims) = (karpenter.pools.list(), karpenter.claims.list());
        markets.with_overlays(
            pools.iter().map(|pool| &**pool),
            claims.iter().map(|claim| &**claim),
            &karpenter.counted_overlays.now(),
        )
    }

    /// The same without overlays.
    pub(crate) async fn of_classes(karpenter: &KarpenterContext) -> Self {
        let mut markets = BTreeMap::new();
        let (pools, claims) = (karpenter.pools.list(), karpenter.claims.list());
        let of_pools = pools
            .iter()
            .map(|pool| &pool.spec.template.spec.node_class_ref.name);
        let of_claims = claims.iter().map(|claim| &claim.spec.node_class_ref.name);
        for name in of_pools.chain(of_claims) {
            if markets.contains_key(name) {
                continue;
            }
            let Some(class) = karpenter.classes.get("", name) else {
                continue;
            };
            match karpenter.market(&class).await {
                Ok(market) => {
                    markets.insert(name.clone(), market);
                }
                Err(error) => tracing::debug!(class = name, %error, "node class has no market"),
            }
        }
        Self::new(markets).without(&reserved::held(claims.iter().map(|claim| &**claim)))
    }

    /// The markets as overlays have them for these pools and their claims.
    pub fn with_overlays<'a>(
        mut self,
        pools: impl Iterator<Item = &'a NodePool>,
        claims: impl Iterator<Item = &'a NodeClaim>,
        overlays: &[Arc<Overlay>],
    ) -> Self {
        if overlays.is_empty() {
            return self;
        }
        let pools: BTreeMap<String, &NodePool> =
            pools.map(|pool| (pool.name_any(), pool)).collect();
        let of_pools = pools.values().map(|pool| {
            let class = &pool.spec.template.spec.node_class_ref.name;
            (pool.name_any(), class.clone())
        });
        // A claim keeps the class that it was ordered from.
        let of_claims = claims.filter_map(|claim| {
            let pool = claim.node_pool()?.to_owned();
            Some((pool, claim.spec.node_class_ref.name.clone()))
        });
        for (name, class) in of_pools.chain(of_claims) {
            let key = (name, class);
            if let (Some(pool), Some(market), false) = (
                pools.get(&key.0),
                self.classes.get(&key.1),
                self.overlaid.contains_key(&key),
            ) {
                let market = market.clone().with_overlays(pool, overlays);
                self.overlaid.insert(key, market);
            }
        }
        self
    }

    /// The markets after a change of each.
    pub(crate) fn map(self, change: impl Fn(Market) -> Market) -> Self {
        Self {
            classes: self
                .classes
                .into_iter()
                .map(|(key, own)| (key, change(own)))
                .collect(),
            overlaid: self
                .overlaid
                .into_iter()
                .map(|(key, own)| (key, change(own)))
                .collect(),
        }
    }

    /// The market of a class, whatever overlays say.
    pub fn of_class(&self, class: &str) -> Option<&Market> {
        self.classes.get(class)
    }

    /// The market of a pool.
    pub fn of_pool(&self, pool: &NodePool) -> Option<&Market> {
        let class = &pool.spec.template.spec.node_class_ref.name;
        self.of(&pool.name_any(), class)
    }

    /// Whether overlays may have made a pool's market another than its class's.
    pub fn is_overlaid(&self, pool: &NodePool) -> bool {
        let class = &pool.spec.template.spec.node_class_ref.name;
        let key = (pool.name_any(), class.clone());
        self.overlaid.contains_key(&key)
    }

    /// The market that a claim is bought from.
    pub fn of_claim(&self, claim: &NodeClaim) -> Option<&Market> {
        let pool = claim.node_pool().unwrap_or_default();
        self.of(pool, &claim.spec.node_class_ref.name)
    }

    /// What a machine with these labels costs an hour in micro-dollars, if overlays may have changed that.
    pub fn price_of_node(&self, own: &StringMap) -> Option<u64> {
        let label = |key: &str| own.get(key).map(String::as_str);
        let pool = label(labels::NODEPOOL)?.to_owned();
        let class = label(labels::EC2NODECLASS)?.to_owned();
        let market = self.overlaid.get(&(pool, class))?;
        market.price(
            label(labels::INSTANCE_TYPE)?,
            label(labels::ZONE)?,
            label(labels::CAPACITY_TYPE)?,
        )
    }

    fn of(&self, pool: &str, class: &str) -> Option<&Market> {
        let key = (pool.to_owned(), class.to_owned());
        self.overlaid.get(&key).or_else(|| self.classes.get(class))
    }
}
