//! The markets of all node classes, and those of pools whose machines NodeOverlays change.
//!
//! Invariant: a question about a pool or a claim is answered from the pool's own market; the
//! class's market answers only questions that concern no pool.

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
    /// Creates markets by class, without overlays.
    pub fn new(classes: BTreeMap<String, Market>) -> Self {
        Self {
            classes,
            overlaid: BTreeMap::new(),
        }
    }

    /// Opens the markets of all classes that pools and claims refer to, with the NodeOverlays that
    /// apply now.
    pub(crate) async fn now(karpenter: &KarpenterContext) -> Self {
        let markets = Self::of_classes(karpenter).await;
        let (pools, claims) = (karpenter.pools.list(), karpenter.claims.list());
        markets.with_overlays(
            pools.iter().map(|pool| &**pool),
            claims.iter().map(|claim| &**claim),
            &karpenter.effective_overlays.now(),
        )
    }

    /// Opens the markets of all classes that pools and claims refer to, without NodeOverlays.
    pub(crate) async fn of_classes(karpenter: &KarpenterContext) -> Self {
        let mut markets = BTreeMap::new();
        let (pools, claims) = (karpenter.pools.list(), karpenter.claims.list());
        let of_pools = pools
            .iter()
            .map(|pool| &pool.spec.template.spec.node_class_ref.name);
        let of_claims = claims.iter().map(|claim| &claim.spec.node_class_ref.name);
        for name in of_pools.chain(of_claims) {
            // Pools and claims share classes; opening a market asks the cloud, so each class is
            // opened once.
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
                // One class without a market must not keep the others from buying; its status
                // already names the reason.
                Err(error) => tracing::debug!(class = name, %error, "node class has no market"),
            }
        }
        // Claims that are not launched yet will still take from their reservations, though EC2
        // counts it as free.
        Self::new(markets).without(&reserved::held(claims.iter().map(|claim| &**claim)))
    }

    /// Adds the markets that NodeOverlays change for these pools and their claims.
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

    /// Applies `change` to every market.
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

    /// Returns the market of a class without NodeOverlays.
    pub fn of_class(&self, class: &str) -> Option<&Market> {
        self.classes.get(class)
    }

    /// Returns the market of a pool, with its NodeOverlays.
    pub fn of_pool(&self, pool: &NodePool) -> Option<&Market> {
        let class = &pool.spec.template.spec.node_class_ref.name;
        self.of(&pool.name_any(), class)
    }

    /// Returns whether a pool has a market of its own, which NodeOverlays may have changed.
    pub fn is_overlaid(&self, pool: &NodePool) -> bool {
        let class = &pool.spec.template.spec.node_class_ref.name;
        let key = (pool.name_any(), class.clone());
        self.overlaid.contains_key(&key)
    }

    /// Returns the market that a claim is bought from, with the NodeOverlays of its pool.
    pub fn of_claim(&self, claim: &NodeClaim) -> Option<&Market> {
        let pool = claim.node_pool().unwrap_or_default();
        self.of(pool, &claim.spec.node_class_ref.name)
    }

    /// Returns the price of a node with these labels in micro-dollars per hour, if NodeOverlays
    /// apply to its pool.
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
