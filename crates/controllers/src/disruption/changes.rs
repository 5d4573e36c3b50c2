//! Whether anything changed that could make consolidation find something new.
//!
//! Planning for all nodes costs more than anything else here; while nothing changes it is left out, for five minutes at most (core:
//! `ConsolidationState`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::time::Instant;

use crate::{Change, overlays, pods, provisioner::KarpenterContext};

/// The time after which everything is examined again even if nothing has changed.
const LONGEST: Duration = Duration::from_secs(300);

pub(super) struct Changes {
    count: Arc<AtomicU64>,
    overlays: overlays::EffectiveOverlays,
    /// The count at which nothing was found, and when that was.
    settled: Option<(u64, Instant)>,
}

impl Changes {
    /// Counts changes from now on.
    pub(super) fn watch(karpenter: &KarpenterContext) -> Self {
        let count = Arc::new(AtomicU64::new(0));
        let counter = || {
            let count = Arc::clone(&count);
            move || {
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let informers = &karpenter.base.informers;
        let add = counter();
        informers.pods.on_change(move |change| {
            if matters_of_pod(change) {
                add();
            }
        });
        let add = counter();
        informers.nodes.on_change(move |change| {
            if matters_of_node(change) {
                add();
            }
        });
        let add = counter();
        karpenter.claims.on_change(move |_| add());
        let add = counter();
        karpenter.pools.on_change(move |_| add());
        let add = counter();
        karpenter.classes.on_change(move |_| add());
        let add = counter();
        karpenter.vpc_cni.on_change(move |_| add());
        let add = counter();
        karpenter.buffers.on_change(move |_| add());
        let add = counter();
        informers.daemon_sets.on_change(move |change| {
            // The status of a DaemonSet changes with every pod; only its spec decides what new nodes have to
            // carry.
            let old = change.previous().map(|old| old.metadata.generation);
            if change.is_deleted() || old != Some(change.object().metadata.generation) {
                add();
            }
        });
        let add = counter();
        informers.pod_disruption_budgets.on_change(move |_| add());
        Self {
            count,
            overlays: karpenter.effective_overlays.clone(),
            settled: None,
        }
    }

    /// Returns the present number of changes, for [`Changes::record_nothing_found`].
    pub(super) fn seen(&self) -> u64 {
        self.count.load(Ordering::Relaxed) + self.overlays.changes()
    }

    /// Remembers that nothing was found when the number of changes was `seen`.
    pub(super) fn record_nothing_found(&mut self, seen: u64) {
        self.settled = Some((seen, Instant::now()));
    }

    /// Returns whether nothing changed since consolidation last found nothing.
    pub(super) fn is_settled(&self) -> bool {
        // Time alone changes some answers, such as `consolidateAfter` and budgets with a schedule, hence the
        // limit.
        self.settled
            .is_some_and(|(count, at)| count == self.seen() && at.elapsed() < LONGEST)
    }
}

/// Returns whether a pod came, went, or may be disrupted as it could not before.
fn matters_of_pod(change: &Change<'_, Pod>) -> bool {
    let Some(old) = change.previous() else {
        return true;
    };
    let new = change.object();
    change.is_deleted()
        || pods::node_name(old) != pods::node_name(new)
        || pods::is_active(old) != pods::is_active(new)
        || old.metadata.annotations != new.metadata.annotations
        || old.metadata.labels != new.metadata.labels
}

/// Returns whether a node came, went, or takes other pods than before. What kubelets report of themselves does not
/// matter.
fn matters_of_node(change: &Change<'_, Node>) -> bool {
    let Some(old) = change.previous() else {
        return true;
    };
    let new = change.object();
    let allocatable = |node: &Node| node.status.as_ref().and_then(|own| own.allocatable.clone());
    change.is_deleted()
        || old.spec != new.spec
        || old.metadata.labels != new.metadata.labels
        || old.metadata.annotations != new.metadata.annotations
        || allocatable(old) != allocatable(new)
}
