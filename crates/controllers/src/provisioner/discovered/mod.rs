//! Discovered capacity: what nodes of an instance type actually report, learnt from the first such node, used for the next
//! plans, and stored in a ConfigMap.
//!
//! The capacity and allocatable of a machine are computed before one is bought, but the image, the kernel and the hypervisor
//! can take more than expected. So the step that registers a node records what it reports ([`learn`]) before it takes its
//! first pod, and markets use these amounts ([`Market::with_discovered`](super::market::Market::with_discovered)): a machine
//! that was too small is not bought twice for the same pods.
//!
//! Invariant: everything here can be restored from the API. Existing nodes are read again at start; what is known of types
//! without a node is kept in a ConfigMap, which only the one process that buys nodes writes. The ConfigMap keeps the risks
//! of spot offerings, too ([`super::risk`]).

mod records;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::{
    karpenter::{EC2NodeClass, NodeClaim, node_claim_condition as condition},
    labels,
};
use mullion_engine::model::{NodeSpec, Quantity, ResourceMap};
use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout_at},
};

pub(crate) use records::HUGE_PAGES;
pub use records::{Amounts, CapacityRecords, Key, NodeReport};

use super::{
    KarpenterContext,
    market::amounts,
    risk::{self, SpotRisks},
};
use crate::{api_error, state::convert};

/// Namespace and name of the ConfigMap.
pub const KEPT_IN: (&str, &str) = ("kube-system", "mullion-discovered-capacity");
/// How often all nodes are read again, so that a type stays known while it has nodes.
const PERIOD: Duration = Duration::from_secs(3600);
/// How long the writer waits for further news, so that it writes them together.
const GATHERED: Duration = Duration::from_secs(1);
/// The pause before a failed request is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// The discovered capacity that this process knows. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Discovered {
    records: Arc<Mutex<CapacityRecords>>,
    /// Whether the ConfigMap has been read.
    known: watch::Sender<bool>,
    /// Notified when there is something to write.
    changed: Arc<Notify>,
}

impl Default for Discovered {
    fn default() -> Self {
        Self {
            records: Arc::default(),
            known: watch::Sender::new(false),
            changed: Arc::default(),
        }
    }
}

impl Discovered {
    /// Locks and returns the records of discovered capacity.
    pub fn records(&self) -> MutexGuard<'_, CapacityRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the writer store the ConfigMap, because something that it keeps has changed.
    pub(crate) fn request_write(&self) {
        self.changed.notify_one();
    }

    /// Waits until the ConfigMap has been read.
    pub(crate) async fn known(&self) {
        // The sender lives in this struct, so waiting cannot fail.
        let _ = self.known.subscribe().wait_for(|known| *known).await;
    }
}

/// Starts the task that reads and writes the ConfigMap.
pub(super) fn start(karpenter: &KarpenterContext) {
    let own = karpenter.clone();
    let shutdown = karpenter.base.shutdown.clone();
    karpenter.base.tasks.spawn(async move {
        shutdown.run_until_cancelled(keep(own)).await;
    });
}

async fn keep(karpenter: KarpenterContext) {
    restore(&karpenter).await;
    // Plans may begin now. They wait for the ConfigMap only, since nodes teach the rest as the informers list
    // them.
    karpenter.discovered.known.send_replace(true);
    if !karpenter.claims.synced().await || !karpenter.base.informers.nodes.synced().await {
        return;
    }
    loop {
        read_nodes(&karpenter);
        let next = Instant::now() + PERIOD;
        while timeout_at(next, karpenter.discovered.changed.notified())
            .await
            .is_ok()
        {
            // News that comes while the ConfigMap is written leaves a permit, so it is written in the next
            // round.
            sleep(GATHERED).await;
            write(&karpenter).await;
        }
    }
}

/// Reads the ConfigMap of an earlier process, retrying until it is read. Without the right to read it, the records begin with
/// the existing nodes.
async fn restore(karpenter: &KarpenterContext) {
    let api = config_maps(karpenter);
    let kept = loop {
        match api.get_opt(KEPT_IN.1).await {
            Ok(kept) => break kept,
            Err(error) if api_error::status(&error).is_some_and(|status| status.code == 403) => {
                tracing::warn!(%error, "what nodes turned out to have is forgotten with this process");
                return;
            }
            Err(error) => tracing::debug!(%error, "discovered capacity is not read, will retry"),
        }
        sleep(RETRY).await;
    };
    let data = kept.and_then(|kept| kept.data).unwrap_or_default();
    let (records, mut unreadable) = CapacityRecords::read(&data);
    match SpotRisks::read(&data) {
        Some(kept) => karpenter.risks.merge(&kept),
        None => unreadable.push(risk::KEPT_AS.to_owned()),
    }
    if !unreadable.is_empty() {
        let (namespace, name) = KEPT_IN;
        tracing::warn!(keys = ?unreadable, "ConfigMap {namespace}/{name} has keys that are no discovered capacity; they are removed");
    }
    karpenter.discovered.records().merge(records);
}

/// Records all registered nodes, and forgets entries that are too old.
fn read_nodes(karpenter: &KarpenterContext) {
    let now = karpenter.base.clock.now();
    let mut changed = karpenter.discovered.records().forget_old(now);
    for claim in karpenter.claims.list() {
        if !claim.is(condition::REGISTERED) {
            continue;
        }
        if let Some(node) = karpenter.node_of(&claim) {
            changed |= record_node(karpenter, &node, &claim);
        }
    }
    if changed {
        karpenter.discovered.changed.notify_one();
    }
}

/// Writes the records to the ConfigMap, retrying until that works.
async fn write(karpenter: &KarpenterContext) {
    let (namespace, name) = KEPT_IN;
    loop {
        let mut data = karpenter.discovered.records().data();
        let risks = karpenter.risks.text(karpenter.base.clock.now());
        data.extend(risks.map(|text| (risk::KEPT_AS.to_owned(), text)));
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": namespace },
            "data": data,
        });
        // Applying drops the keys that the records have forgotten, which a merge patch would keep for ever.
        let params = PatchParams::apply("karpenter").force();
        let written = config_maps(karpenter)
            .patch(name, &params, &Patch::Apply(object))
            .await;
        match written {
            Ok(_) => return,
            Err(error) => tracing::debug!(%error, "discovered capacity is not kept, will retry"),
        }
        sleep(RETRY).await;
    }
}

fn config_maps(karpenter: &KarpenterContext) -> Api<ConfigMap> {
    Api::namespaced(karpenter.base.client.clone(), KEPT_IN.0)
}

/// Records a node that is about to register, and logs if its memory differs from what was expected.
pub(crate) fn learn(karpenter: &KarpenterContext, node: &Node, claim: &NodeClaim) {
    // Registration is retried after conflicts; only the first attempt is news.
    if !record_node(karpenter, node, claim) {
        return;
    }
    karpenter.discovered.changed.notify_one();
    let memory = |map: &ResourceMap| map.get(labels::MEMORY).copied();
    let shown = memory(&shown(node).capacity);
    let status = claim.status.as_ref();
    let expected = status.and_then(|own| memory(&amounts(&own.capacity)));
    if let Some(shown) = shown.filter(|_| shown != expected) {
        karpenter
            .log
            .reconciliation("providers.instancetype.capacity")
            .with("memory-capacity", shown.to_string())
            .with(
                "instance-type",
                claim.label(labels::INSTANCE_TYPE).unwrap_or_default(),
            )
            .debug("updating discovered capacity cache");
    }
}

fn record_node(karpenter: &KarpenterContext, node: &Node, claim: &NodeClaim) -> bool {
    let Some(key) = key_of(claim) else {
        return false;
    };
    let planned = claim.status.as_ref().map(|own| amounts(&own.capacity));
    let sighting = NodeReport {
        shown: shown(node),
        pods_configured: planned
            .and_then(|planned| planned.get(labels::PODS).copied())
            .unwrap_or_default(),
    };
    let now = karpenter.base.clock.now();
    karpenter.discovered.records().record(key, &sighting, now)
}

/// Corrects the expected capacity of a claim's node by what nodes like it reported since it was bought.
pub(crate) fn correct(karpenter: &KarpenterContext, claim: &NodeClaim, node: &mut NodeSpec) {
    let records = karpenter.discovered.records();
    if let Some(amounts) = key_of(claim).and_then(|key| records.of(&key)) {
        amounts.correct(&mut node.capacity, &mut node.allocatable);
    }
}

/// Returns the key under which a claim's node is recorded; `None` before the claim is launched.
pub fn key_of(claim: &NodeClaim) -> Option<Key> {
    let image = claim.status.as_ref().map(|own| own.image_id.clone())?;
    let class_hash = claim.annotations().get(labels::EC2NODECLASS_HASH)?;
    let key = Key {
        instance_type: claim.label(labels::INSTANCE_TYPE)?.to_owned(),
        image,
        class_hash: class_hash.clone(),
    };
    // Claims of a cloud that names no image cannot be told apart by it, so nothing is learnt from them.
    (!key.image.is_empty()).then_some(key)
}

/// Returns the ids of the images in the class's status, which are the ones that launches use.
pub fn images_of(class: &EC2NodeClass) -> Vec<String> {
    let found = class.status.iter().flat_map(|status| &status.amis);
    found.map(|image| image.id.clone()).collect()
}

fn shown(node: &Node) -> Amounts {
    let spec = convert::node(node);
    Amounts {
        capacity: spec.capacity,
        allocatable: spec.allocatable,
    }
}

/// A resource of which a node has less allocatable than was expected when it was bought.
pub(crate) struct Shortfall {
    /// The resource's name.
    pub(crate) resource: String,
    /// The node's allocatable amount.
    pub(crate) shown: Quantity,
    expected: Quantity,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, expected) = (self.shown, self.expected);
        write!(
            f,
            "{shown} of {} where {expected} was expected",
            self.resource
        )
    }
}

/// Returns the resources of which a node has less allocatable than its claim expected. Resources that the node does not
/// report yet are left out.
pub(crate) fn missing(node: &Node, claim: &NodeClaim) -> Vec<Shortfall> {
    let expected = claim.status.as_ref().map(|own| amounts(&own.allocatable));
    let shown = shown(node).allocatable;
    let short = expected
        .into_iter()
        .flatten()
        .filter_map(|(resource, expected)| {
            let shown = shown.get(&resource).copied()?;
            let is_short = !shown.is_zero() && shown < expected;
            is_short.then_some(Shortfall {
                resource,
                shown,
                expected,
            })
        });
    short.collect()
}
