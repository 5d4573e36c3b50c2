//! Writes the condition `Drifted` on claims.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use kube::ResourceExt;
use mullion_api::karpenter::{EC2NodeClass, NodeClaim, NodePool};
use mullion_cloud::{CloudError, Instance, instance_id};
use tokio::time::Instant;

use super::{
    super::edit,
    DRIFTED,
    reason::{
        is_launched, is_of_age, of_class, of_group, of_image, of_instance, of_market, of_pool,
        of_reservation,
    },
};
use crate::nodepool::class::placement_group;
use crate::provisioner::{
    BY_POOL, KarpenterContext,
    conditions::Status,
    market::{Market, MarketError, TypeNotSold},
};

/// A type that is still sold is looked up again after this long (core: `instanceTypeNotFoundCheckCache`).
const SOLD: Duration = Duration::from_secs(30 * 60);
/// The age at which EC2 is asked about an instance again (core: drift is checked every five minutes).
const KNOWN: Duration = Duration::from_secs(5 * 60);

/// Writes down on every claim whether its node has drifted. What it remembers only spares questions to the cloud.
#[derive(Default)]
pub(in super::super) struct Marker {
    /// When the type of a claim, by name, was last found to be sold.
    sold: BTreeMap<String, Instant>,
    /// When a claim, by name, was last found to run the image of its class, and the version of the class.
    images: BTreeMap<String, (Instant, Option<String>)>,
    /// The last description of each claim's instance by EC2, with the time of the call, by the claim's name.
    instances: BTreeMap<String, (Instant, Arc<Instance>)>,
}

/// Why it is not known whether a claim has drifted: the condition stays as it is.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error(transparent)]
    Market(#[from] MarketError),
    #[error(transparent)]
    Cloud(#[from] CloudError),
    #[error(transparent)]
    Type(#[from] TypeNotSold),
}

impl Marker {
    /// Checks every claim for drift once, and writes its condition.
    pub(in super::super) async fn mark(
        &mut self,
        karpenter: &KarpenterContext,
    ) -> kube::Result<()> {
        let now = Instant::now();
        let is_fresh = |at: &Instant, time| now.duration_since(*at) < time;
        self.sold.retain(|_, at| is_fresh(at, SOLD));
        self.images.retain(|_, (at, _)| is_fresh(at, KNOWN));
        self.instances.retain(|_, (at, _)| is_fresh(at, KNOWN));
        let mut markets = BTreeMap::new();
        for pool in karpenter.pools.list() {
            for claim in karpenter.claims.by_index(BY_POOL, &pool.name_any()) {
                if claim.metadata.deletion_timestamp.is_some() {
                    continue;
                }
                match self.reason(karpenter, &claim, &pool, &mut markets).await {
                    Ok(reason) => write(karpenter, &claim, reason).await?,
                    Err(error) => {
                        tracing::debug!(%error, "whether a node has drifted is not known")
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns why a claim's node is no longer what is asked for; `None` if it is, or was not launched yet.
    async fn reason(
        &mut self,
        karpenter: &KarpenterContext,
        claim: &NodeClaim,
        pool: &NodePool,
        markets: &mut BTreeMap<String, Market>,
    ) -> Result<Option<&'static str>, Unknown> {
        if !is_launched(claim) {
            return Ok(None);
        }
        // The order is upstream's, which also asks the cheap questions first: those about EC2 come last.
        if let Some(reason) = of_pool(claim, pool) {
            return Ok(Some(reason));
        }
        let name = &claim.spec.node_class_ref.name;
        let Some(class) = karpenter.classes.get("", name) else {
            return Ok(None);
        };
        if let Some(reason) = self.of_market(karpenter, claim, &class, markets).await? {
            return Ok(Some(reason));
        }
        if let Some(reason) = of_class(claim, &class) {
            return Ok(Some(reason));
        }
        if let Some(reason) = self.of_image(karpenter, claim, &class, markets).await? {
            return Ok(Some(reason));
        }
        let Some(mut instance) = self.instance(karpenter, claim).await? else {
            return Ok(None);
        };
        if let Some(reason) = of_instance(&instance, &class) {
            return Ok(Some(reason));
        }
        let group = placement_group(&*karpenter.cloud, &class.spec).await?;
        if let Some(reason) = of_group(claim, group.as_ref()) {
            return Ok(Some(reason));
        }
        if !karpenter.options.gates.reserved_capacity || of_reservation(&instance, &class).is_none()
        {
            return Ok(None);
        }
        // The reservation may have ended, and the instance is an on-demand one since.
        self.instances.remove(&claim.name_any());
        match self.instance(karpenter, claim).await? {
            Some(now) => instance = now,
            None => return Ok(None),
        }
        Ok(of_reservation(&instance, &class))
    }

    async fn of_market(
        &mut self,
        karpenter: &KarpenterContext,
        claim: &NodeClaim,
        class: &EC2NodeClass,
        markets: &mut BTreeMap<String, Market>,
    ) -> Result<Option<&'static str>, Unknown> {
        let (name, now) = (claim.name_any(), karpenter.base.clock.now());
        if !is_of_age(claim, now) || self.sold.contains_key(&name) {
            return Ok(None);
        }
        let reason = of_market(claim, market(karpenter, class, markets).await?);
        // Only a good result is remembered: a claim that drifted is asked about until it is replaced.
        if reason.is_none() {
            self.sold.insert(name, Instant::now());
        }
        Ok(reason)
    }

    async fn of_image(
        &mut self,
        karpenter: &KarpenterContext,
        claim: &NodeClaim,
        class: &EC2NodeClass,
        markets: &mut BTreeMap<String, Market>,
    ) -> Result<Option<&'static str>, Unknown> {
        let (name, version) = (claim.name_any(), class.resource_version());
        let known = self.images.get(&name);
        if known.is_some_and(|(_, known)| *known == version) {
            return Ok(None);
        }
        let reason = of_image(claim, market(karpenter, class, markets).await?)?;
        if reason.is_none() {
            self.images.insert(name, (Instant::now(), version));
        }
        Ok(reason)
    }

    /// Returns EC2's description of a claim's instance, at most five minutes old; `None` if the instance is gone.
    async fn instance(
        &mut self,
        karpenter: &KarpenterContext,
        claim: &NodeClaim,
    ) -> Result<Option<Arc<Instance>>, Unknown> {
        let name = claim.name_any();
        // An instance changes its groups rarely, and EC2 limits how often it may be asked.
        if let Some((_, known)) = self.instances.get(&name) {
            return Ok(Some(Arc::clone(known)));
        }
        let Some(id) = claim.provider_id().and_then(instance_id) else {
            return Ok(None);
        };
        match karpenter.cloud.get(id).await {
            Ok(instance) => {
                let known = (Instant::now(), Arc::clone(&instance));
                self.instances.insert(name, known);
                Ok(Some(instance))
            }
            // Garbage collection deletes claims without an instance.
            Err(CloudError::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the market of a class, opening it at most once per pass.
async fn market<'a>(
    karpenter: &KarpenterContext,
    class: &EC2NodeClass,
    markets: &'a mut BTreeMap<String, Market>,
) -> Result<&'a Market, MarketError> {
    match markets.entry(class.name_any()) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(place) => Ok(place.insert(karpenter.market(class).await?)),
    }
}

/// Sets the condition of a claim, or takes it away.
async fn write(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    reason: Option<&'static str>,
) -> kube::Result<()> {
    let is_marked = claim.condition(DRIFTED).map(|own| own.reason.as_str());
    if is_marked == reason {
        return Ok(());
    }
    edit(karpenter, &claim.name_any(), |conditions| match reason {
        Some(reason) => {
            conditions.set(DRIFTED, Status::True, reason, reason);
        }
        None => conditions.clear(DRIFTED),
    })
    .await?;
    if let Some(reason) = reason {
        karpenter
            .log
            .reconciliation_of(
                "nodeclaim.disruption",
                ("karpenter.sh", "NodeClaim"),
                &claim.name_any(),
            )
            .with("reason", reason)
            .debug("marking drifted");
    }
    Ok(())
}
