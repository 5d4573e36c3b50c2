//! Limits orders to offerings that EC2 refused lately: one node is ordered to try them, and the
//! others once it is launched.
//!
//! Invariant: after EC2 has refused what 600 nodes want, one order finds out whether it has
//! capacity again.

use std::collections::BTreeSet;

use kube::ResourceExt;
use mullion_api::karpenter::node_claim_condition as condition;
use mullion_engine::provision::PlannedNode;

use super::{BY_POOL, KarpenterContext, market::Market, markets::Markets};

/// The nodes of one plan that try offerings on trial.
pub(super) struct Trials<'a> {
    karpenter: &'a KarpenterContext,
    markets: &'a Markets,
    /// Type, zone and capacity type that a node of this plan tries.
    tried: BTreeSet<(String, String, String)>,
}

impl<'a> Trials<'a> {
    /// Creates the trials of one plan, in which nothing is tried yet.
    pub(super) fn new(karpenter: &'a KarpenterContext, markets: &'a Markets) -> Self {
        Self {
            karpenter,
            markets,
            tried: BTreeSet::new(),
        }
    }

    /// Returns whether a planned node may be ordered now.
    pub(super) fn may_order(&mut self, planned: &PlannedNode) -> bool {
        let Some(pool) = self.karpenter.pools.get("", &planned.pool) else {
            return true;
        };
        let market = self.markets.of_pool(&pool);
        let Some(market) = market.filter(|own| own.has_trials()) else {
            return true;
        };
        let offerings: Vec<(String, String, String)> = planned
            .options
            .iter()
            .flat_map(|option| {
                let offerings = option.offerings.iter();
                offerings.map(|(zone, kind, _)| (option.name.clone(), zone.clone(), kind.clone()))
            })
            .collect();
        let is_on_trial =
            |(name, zone, kind): &(String, String, String)| market.is_on_trial(name, zone, kind);
        // With one option that was not refused, the launch succeeds without the others.
        if !offerings.iter().all(is_on_trial) {
            return true;
        }
        // A claim that is still being launched may be the trial of an earlier plan.
        let claims = self.karpenter.claims.by_index(BY_POOL, &pool.name_any());
        let mut under_way = claims.iter().filter(|claim| {
            claim.metadata.deletion_timestamp.is_none() && !claim.is(condition::LAUNCHED)
        });
        let is_free =
            under_way.next().is_none() && !offerings.iter().any(|own| self.tried.contains(own));
        if is_free {
            self.tried.extend(offerings);
        }
        is_free
    }
}

impl Market {
    /// Returns the market without offerings that were refused lately, for callers that would give
    /// up a node for them.
    pub fn without_trials(mut self) -> Self {
        if self.has_trials() {
            let mut offers = self.offers.to_vec();
            let offerings = offers.iter_mut().flat_map(|offer| &mut offer.offerings);
            for offering in offerings {
                offering.available &= !offering.on_trial;
            }
            self.offers = offers.into();
        }
        self
    }

    /// Returns whether any offering was refused lately and may be tried again.
    pub fn has_trials(&self) -> bool {
        let mut offerings = self.offers.iter().flat_map(|offer| &offer.offerings);
        offerings.any(|offering| offering.on_trial)
    }

    /// Returns whether this offering was refused lately and may be tried again, by one launch at
    /// first.
    pub fn is_on_trial(&self, instance_type: &str, zone: &str, capacity_type: &str) -> bool {
        let mut offers = self.offers.iter();
        let offer = offers.find(|offer| &*offer.instance_type.name == instance_type);
        let mut offerings = offer.into_iter().flat_map(|offer| &offer.offerings);
        offerings.any(|own| {
            own.on_trial && &*own.zone == zone && own.capacity_type.as_str() == capacity_type
        })
    }
}
