//! Static pools: NodePools with `spec.replicas`, which keep that number of nodes regardless of pending pods.
//!
//! One queue keeps each pool at its number: it creates missing NodeClaims (Karpenter core: `static.provisioning`) and
//! deletes surplus ones (Karpenter core: `static.deprovisioning`, in the order of [`scale_down`]). Drifted nodes are
//! replaced by [`crate::disruption`]. A node that is removed for another reason (expiration, interruption, repair, a user)
//! loses its claim, and this queue creates another.
//!
//! Invariant: a pool never has more than `limits.nodes` claims, including those being deleted. Claims of static pools are
//! counted and created under the lock [`StaticPoolLock`], so two tasks never use the same room.

mod census;
mod scale_down;
mod template;

use std::{sync::Arc, time::Duration};

use kube::ResourceExt;
use mullion_api::karpenter::{
    NodeClaim, NodePool, node_claim_condition as condition, node_pool_condition,
};
use tokio::sync::{Mutex, MutexGuard};

use self::template::Supply;
pub(crate) use self::{census::Census, template::planned};
use crate::{
    Change, Queue,
    provisioner::{BY_POOL, KarpenterContext, PROVISIONED, decision_log::Reconciliation, order},
};

/// Group and kind of pools in the decision log.
const POOL: (&str, &str) = ("karpenter.sh", "NodePool");
/// How often a pool with the right number of nodes is reconciled (Karpenter core: 1 minute).
const AGAIN: Duration = Duration::from_secs(60);
/// How often a pool at its limit is reconciled.
const AT_LIMIT: Duration = Duration::from_secs(30);
/// How often a pool for which nothing can be bought is reconciled, as for pending pods.
const SOLD_OUT: Duration = Duration::from_secs(10);

/// How soon a pool is reconciled after one claim tries an offering on trial.
const TRIAL: Duration = Duration::from_secs(1);

/// A lock that lets one task at a time count the nodes of static pools and create more. Clones share the lock.
#[derive(Clone, Debug, Default)]
pub struct StaticPoolLock(Arc<Mutex<()>>);

impl StaticPoolLock {
    /// Acquires the lock.
    pub(crate) async fn take(&self) -> MutexGuard<'_, ()> {
        self.0.lock().await
    }
}

/// Starts the controller if the feature gate `StaticCapacity` is on.
pub(crate) fn start(karpenter: &KarpenterContext) {
    if !karpenter.options.gates.static_capacity {
        return;
    }
    let queue = Queue::new("nodepool.static");
    let pools = queue.clone();
    karpenter
        .pools
        .on_change(move |change| pools.add(change.object().name_any()));
    // New claims may be too many; deleted ones have to be replaced.
    let pools = queue.clone();
    karpenter.claims.on_change(move |change| {
        let goes = |claim: &NodeClaim| claim.metadata.deletion_timestamp.is_some();
        let matters = match change {
            Change::Added(_) | Change::Deleted(_) => true,
            Change::Updated { old, new } => goes(new) && !goes(old),
        };
        if let Some(pool) = change.object().node_pool().filter(|_| matters) {
            pools.add(pool.to_owned());
        }
    });
    let (own, again) = (karpenter.clone(), queue.clone());
    queue.run(&karpenter.base, 2, move |name: String| {
        let (karpenter, again) = (own.clone(), again.clone());
        async move {
            if let Some(delay) = reconcile(&karpenter, &name).await? {
                again.add_after(name, delay);
            }
            Ok::<_, kube::Error>(())
        }
    });
}

/// Creates or deletes claims until the pool has its number of nodes. Returns when to reconcile it again if nothing changes.
async fn reconcile(karpenter: &KarpenterContext, name: &str) -> kube::Result<Option<Duration>> {
    if !karpenter.synced().await {
        return Ok(None);
    }
    // Held until the claims are created: drift also orders nodes for static pools, and counts them first.
    let _turn = karpenter.static_pool_lock.take().await;
    let Some(pool) = karpenter.pools.get("", name) else {
        return Ok(None);
    };
    let Some(replicas) = wanted(&pool) else {
        return Ok(None);
    };
    let claims = karpenter.claims.by_index(BY_POOL, name);
    let census = Census::of(karpenter, &claims);
    if census.running > replicas {
        let count = census.running - replicas;
        let pass = pass(karpenter, "static.deprovisioning", name);
        pass.clone()
            .with("current", census.running)
            .with("desired", replicas)
            .with("deprovision-count", count)
            .info("deprovisioning nodeclaims to satisfy replica count");
        for claim in scale_down::candidates(karpenter, &claims, count) {
            karpenter.delete_claim(&claim).await?;
            pass.clone()
                .with_ref("NodeClaim", &claim)
                .debug("deleting nodeclaim");
            // The next reconciliation would otherwise count this claim as running and delete another one.
            karpenter.wait_until_going(&claim).await;
        }
        return Ok(Some(AGAIN));
    }
    // Surplus nodes go also from a pool that is not ready; only buying needs its class.
    if !pool.is(node_pool_condition::READY) {
        return Ok(None);
    }
    provision(karpenter, &pool, replicas, census).await
}

/// Returns the number of nodes that a pool should have; `None` if it is not static or is being deleted.
fn wanted(pool: &NodePool) -> Option<usize> {
    let stays = pool.metadata.deletion_timestamp.is_none();
    let replicas = pool.spec.replicas.filter(|_| stays)?;
    Some(usize::try_from(replicas).unwrap_or(0))
}

/// Creates the missing claims, as far as the limit allows and something can be bought.
async fn provision(
    karpenter: &KarpenterContext,
    pool: &Arc<NodePool>,
    replicas: usize,
    census: Census,
) -> kube::Result<Option<Duration>> {
    // The replacement of a node that is being disrupted counts already.
    if census.running + census.pending >= replicas {
        return Ok(Some(AGAIN));
    }
    let name = pool.name_any();
    let pass = pass(karpenter, "static.provisioning", &name);
    let mut count = census.room(pool).min(replicas - census.running);
    if count == 0 {
        pass.info("nodepool node limit reached");
        return Ok(Some(AT_LIMIT));
    }
    let supply = template::supply(karpenter, pool).await;
    if supply == Supply::None {
        record_no_instance_types(karpenter, pool, &pass);
        return Ok(Some(SOLD_OUT));
    }
    let mut again = AGAIN;
    if supply == Supply::OnTrial {
        let claims = karpenter.claims.by_index(BY_POOL, &name);
        if claims.iter().any(|claim| is_under_way(claim)) {
            return Ok(Some(TRIAL));
        }
        (count, again) = (1, TRIAL);
    }
    pass.clone()
        .with("current", census.running)
        .with("desired", replicas)
        .with("provision-count", count)
        .info("provisioning nodeclaims to satisfy replica count");
    let planned = planned(pool);
    for _ in 0..count {
        if order(karpenter, &planned, PROVISIONED, &pass)
            .await?
            .is_none()
        {
            return Ok(None);
        }
    }
    Ok(Some(again))
}

/// Returns whether a claim is being launched.
fn is_under_way(claim: &NodeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none() && !claim.is(condition::LAUNCHED)
}

fn record_no_instance_types(karpenter: &KarpenterContext, pool: &NodePool, pass: &Reconciliation) {
    pass.info("skipping, nodepool requirements filtered out all instance types");
    karpenter.recorder.warning(
        pool,
        "NoCompatibleInstanceTypes",
        "NodePool requirements filtered out all compatible available instance types",
    );
}

fn pass(karpenter: &KarpenterContext, controller: &'static str, pool: &str) -> Reconciliation {
    karpenter.log.reconciliation_of(controller, POOL, pool)
}
