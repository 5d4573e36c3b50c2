//! NodeOverlays: changed prices and additional extended resources of instance types, while nodes are planned.
//!
//! One queue reads all overlays ([`Overlay`]), decides which of them apply ([`judge()`]), keeps those for the planners
//! ([`EffectiveOverlays`]), and writes the verdict into the status of each. [`Market::with_overlays`] applies them to a pool's
//! machines.
//!
//! Invariant: while the feature gate `NodeOverlay` is off no overlay applies, and the status of each says so.

mod apply;
mod judge;
mod overlay;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::karpenter::{
    EC2NodeClass, NodeClaim, NodeOverlay, NodeOverlayStatus, NodePool,
    node_overlay_condition as condition,
};
use mullion_engine::provision::PlannedNode;
use serde_json::json;
use tokio::sync::watch;

pub(crate) use apply::AppliedOverlays;
pub use judge::{Judgement, Verdict, judge};
pub use overlay::{InvalidOverlay, Overlay, OverlayFault};

use crate::{
    Change, Queue, api_error,
    nodepool::ignored_fields,
    provisioner::{
        KarpenterContext,
        conditions::{Conditions, Status},
        market::Market,
        markets::Markets,
    },
};

/// Reason of `Ready` while the feature gate is closed.
const GATE_CLOSED: &str = "FeatureGateClosed";

/// The NodeOverlays that are in effect at this moment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EffectiveOverlays {
    overlays: watch::Sender<Option<Arc<[Arc<Overlay>]>>>,
    changes: Arc<AtomicU64>,
}

impl Default for EffectiveOverlays {
    fn default() -> Self {
        Self {
            overlays: watch::Sender::new(None),
            changes: Arc::default(),
        }
    }
}

impl EffectiveOverlays {
    /// Returns the overlays that apply, in the order in which they are applied.
    pub fn now(&self) -> Arc<[Arc<Overlay>]> {
        self.overlays.borrow().clone().unwrap_or_default()
    }

    /// Returns how often the overlays that apply have changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Waits until it is known which overlays count.
    pub(crate) async fn known(&self) {
        // The sender lives in this struct, so waiting cannot fail.
        let _ = self.overlays.subscribe().wait_for(Option::is_some).await;
    }

    /// Replaces the overlays that apply. Returns whether they differ from those before.
    fn set(&self, overlays: Vec<Arc<Overlay>>) -> bool {
        let mut changed = false;
        self.overlays.send_if_modified(|now| {
            changed = now.as_deref().unwrap_or_default() != &*overlays;
            // The first result wakes those who wait for it, even if no overlay applies.
            let is_news = changed || now.is_none();
            if is_news {
                *now = Some(overlays.into());
            }
            is_news
        });
        self.changes
            .fetch_add(u64::from(changed), Ordering::Relaxed);
        changed
    }
}

/// The one key of the queue: overlays are judged together.
const ALL: &str = "all";

/// Starts the controller.
pub(crate) fn start(karpenter: &KarpenterContext) {
    let queue = Queue::new("nodeoverlay");
    let all = queue.clone();
    karpenter.overlays.on_change(move |change| {
        let is_same = |old: &NodeOverlay, new: &NodeOverlay| {
            old.metadata.generation == new.metadata.generation && old.status == new.status
        };
        if !matches!(change, Change::Updated { old, new } if is_same(old, new)) {
            all.add(ALL);
        }
    });
    if karpenter.options.gates.node_overlay {
        watch_pools(karpenter, &queue);
    } else {
        // Known whether or not the kind is served.
        karpenter.effective_overlays.set(Vec::new());
    }
    queue.add(ALL);
    let own = karpenter.clone();
    queue.run(&karpenter.base, 1, move |_| {
        let karpenter = own.clone();
        async move { reconcile(&karpenter).await }
    });
}

/// Judges overlays again when the machines of pools or classes change.
fn watch_pools(karpenter: &KarpenterContext, queue: &Queue<&'static str>) {
    let all = queue.clone();
    karpenter.pools.on_change(move |change| {
        let is_same =
            |old: &NodePool, new: &NodePool| old.metadata.generation == new.metadata.generation;
        if !matches!(change, Change::Updated { old, new } if is_same(old, new)) {
            all.add(ALL);
        }
    });
    let all = queue.clone();
    karpenter.classes.on_change(move |change| {
        let subnets = |class: &EC2NodeClass| {
            let status = class.status.as_ref();
            status.map(|status| status.subnets.clone())
        };
        let is_same = |old: &EC2NodeClass, new: &EC2NodeClass| {
            old.metadata.generation == new.metadata.generation && subnets(old) == subnets(new)
        };
        if !matches!(change, Change::Updated { old, new } if is_same(old, new)) {
            all.add(ALL);
        }
    });
}

async fn reconcile(karpenter: &KarpenterContext) -> kube::Result<()> {
    let are_synced = karpenter.overlays.synced().await
        && karpenter.pools.synced().await
        && karpenter.classes.synced().await
        && karpenter.vpc_cni.synced().await;
    if !are_synced {
        return Ok(());
    }
    let overlays = karpenter.overlays.list();
    let judgement = if karpenter.options.gates.node_overlay {
        // Judged on machines without overlays, or an overlay would conflict with its own earlier effect.
        let (markets, pools) = (Markets::of_classes(karpenter).await, karpenter.pools.list());
        let pools = pools.iter().filter_map(|pool| {
            let class = &pool.spec.template.spec.node_class_ref.name;
            Some((&**pool, markets.of_class(class)?))
        });
        let pools: Vec<_> = pools.collect();
        Some(judge(overlays.iter().map(|own| &**own), &pools))
    } else {
        None
    };
    let counted = judgement.as_ref().map(|own| own.overlays.clone());
    if karpenter
        .effective_overlays
        .set(counted.unwrap_or_default())
    {
        karpenter.batcher.trigger("nodeoverlays");
    }
    for overlay in &overlays {
        let verdicts = judgement.as_ref().map(|own| &own.verdicts);
        let verdict = verdicts.and_then(|own| own.get(&overlay.name_any()));
        let now = karpenter.base.clock.now();
        write(karpenter, overlay, status_of(overlay, verdict, now)).await?;
    }
    Ok(())
}

async fn write(
    karpenter: &KarpenterContext,
    overlay: &NodeOverlay,
    status: NodeOverlayStatus,
) -> kube::Result<()> {
    if overlay.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let patch = json!({
        "metadata": { "resourceVersion": overlay.metadata.resource_version },
        "status": status,
    });
    let api: Api<NodeOverlay> = Api::all(karpenter.base.client.clone());
    let patched = api
        .patch_status(
            &overlay.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await;
    match patched {
        // It has changed meanwhile; that change is in the queue.
        Err(error) if api_error::is_conflict(&error) || api_error::is_not_found(&error) => Ok(()),
        other => other.map(drop),
    }
}

/// Computes the status of an overlay. Without a verdict the gate is off.
fn status_of(
    overlay: &NodeOverlay,
    verdict: Option<&Verdict>,
    now: jiff::Timestamp,
) -> NodeOverlayStatus {
    let mut status = overlay.status.clone().unwrap_or_default();
    let mut conditions = Conditions::new(&mut status.conditions, now, overlay.metadata.generation);
    let valid = condition::VALIDATION_SUCCEEDED;
    let Some(verdict) = verdict else {
        let ignored = ignored_fields::of_node_overlay();
        conditions.clear(valid);
        conditions.set(
            condition::READY,
            Status::False,
            GATE_CLOSED,
            &ignored.to_string(),
        );
        ignored_fields::set_condition(&mut conditions, &[ignored]);
        return status;
    };
    ignored_fields::set_condition(&mut conditions, &[]);
    match verdict {
        Verdict::Valid => conditions.set_true(valid),
        Verdict::Invalid(why) => {
            conditions.set(valid, Status::False, "RuntimeValidation", why);
        }
        Verdict::Conflict(other) => {
            let weight = overlay.weight();
            let message = format!(
                "conflict with another overlay: {other:?} has the weight {weight} too, and changes the same machines"
            );
            conditions.set(valid, Status::False, "Conflict", &message);
        }
    }
    conditions.summarize(&[valid]);
    status
}

/// Returns whether the status of an overlay says that the gate was closed.
pub fn is_shut_out(overlay: &NodeOverlay) -> bool {
    let conditions = overlay.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.filter(|own| own.type_ == condition::READY);
    ready.any(|own| own.reason == GATE_CLOSED)
}

/// Annotates the claim of a planned node if overlays changed the price or the capacity of a type that it lists, as
/// Karpenter does.
pub(crate) async fn annotate(
    karpenter: &KarpenterContext,
    pool: &NodePool,
    planned: &PlannedNode,
    claim: &mut NodeClaim,
) {
    use mullion_api::labels::{CAPACITY_OVERLAY_APPLIED, PRICE_OVERLAY_APPLIED};
    let overlays = karpenter.effective_overlays.now();
    let class = &pool.spec.template.spec.node_class_ref.name;
    let class = karpenter.classes.get("", class);
    let (false, Some(class)) = (overlays.is_empty() || planned.options.is_empty(), class) else {
        return;
    };
    let Ok(market) = karpenter.market(&class).await else {
        return;
    };
    let market: Market = market.with_overlays(pool, &overlays);
    let (priced, added) = market.overlays(planned.options.iter().map(|own| &*own.name));
    let marks = [
        (PRICE_OVERLAY_APPLIED, priced),
        (CAPACITY_OVERLAY_APPLIED, added),
    ];
    for (key, _) in marks.into_iter().filter(|(_, applied)| *applied) {
        claim
            .annotations_mut()
            .insert(key.to_owned(), "true".to_owned());
    }
}

#[cfg(test)]
mod tests;
