//! Handles the end of capacity reservations on which nodes run (AWS provider: `capacityreservation.capacitytype`,
//! `capacityreservation.expiration`).
//!
//! Invariant: a node is labelled `reserved` only while its instance runs in a reservation, at most a minute longer.
//! Nodes of a capacity block are removed ten minutes before EC2 ends the first of their instances.

use std::{collections::BTreeSet, time::Duration};

use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::labels;
use mullion_cloud::{CapacityType, CloudError};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use crate::{
    api_error,
    provisioner::{KarpenterContext, is_managed, reserved},
};

/// How often claims and nodes are checked.
const EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

pub(crate) fn start(karpenter: &KarpenterContext) {
    if !karpenter.options.gates.reserved_capacity {
        return;
    }
    let own = karpenter.clone();
    let run = async move {
        if !own.synced().await {
            return;
        }
        loop {
            if let Err(error) = look(&own).await {
                tracing::debug!(%error, "nodes of capacity reservations not looked at, will retry");
            }
            sleep(EVERY).await;
        }
    };
    let shutdown = karpenter.base.shutdown.clone();
    karpenter.base.tasks.spawn(async move {
        shutdown.run_until_cancelled(run).await;
    });
}

/// Checks every claim and node once; EC2 is asked nothing while none has reserved capacity.
async fn look(karpenter: &KarpenterContext) -> Result<(), Error> {
    // Blocks come first, because EC2 ends their instances at a fixed time.
    give_up_expiring(karpenter).await?;
    demote(karpenter).await
}

/// Deletes the claims of capacity blocks that end soon.
async fn give_up_expiring(karpenter: &KarpenterContext) -> Result<(), Error> {
    let claims = karpenter.claims.list();
    let in_block = claims.iter().filter_map(|claim| {
        let stays = claim.metadata.deletion_timestamp.is_none();
        let id = claim.label(labels::CAPACITY_RESERVATION_ID)?;
        stays.then_some((claim, id))
    });
    let in_block: Vec<_> = in_block.collect();
    if in_block.is_empty() {
        return Ok(());
    }
    let ids: BTreeSet<&str> = in_block.iter().map(|(_, id)| *id).collect();
    let terms: Vec<_> = ids.into_iter().map(reserved::term).collect();
    let found = karpenter.cloud.capacity_reservations(&terms).await?;
    let now = karpenter.base.clock.now();
    let expiring: BTreeSet<&str> = found
        .iter()
        .filter(|own| own.is_expiring(now))
        .map(|own| &*own.reservation.id)
        .collect();
    for (claim, id) in in_block {
        if !expiring.contains(id) {
            continue;
        }
        let name = claim.name_any();
        karpenter.delete_claim(&name).await?;
        karpenter
            .log
            .reconciliation_of(
                "capacityreservation.expiration",
                ("karpenter.sh", "NodeClaim"),
                &name,
            )
            .with("capacity-reservation-id", id)
            .info("initiating delete for capacity block expiration");
    }
    Ok(())
}

/// Labels claims and nodes `on-demand` whose instance no longer runs in a reservation.
async fn demote(karpenter: &KarpenterContext) -> Result<(), Error> {
    let claims = karpenter.claims.list();
    let nodes = karpenter.base.informers.nodes.list();
    let claims: Vec<_> = claims
        .iter()
        .filter(|claim| says_reserved(&***claim))
        .collect();
    let nodes: Vec<_> = nodes
        .iter()
        .filter(|node| is_managed(node) && says_reserved(&***node))
        .filter(|node| node.labels().get(labels::REGISTERED).map(String::as_str) == Some("true"))
        .collect();
    if claims.is_empty() && nodes.is_empty() {
        return Ok(());
    }
    let instances = karpenter.cloud.list(karpenter.instance_tags()).await?;
    let on_demand: BTreeSet<&str> = instances
        .iter()
        .filter(|own| own.capacity_type == CapacityType::OnDemand)
        .map(|own| own.provider_id.as_str())
        .collect();
    let mut updated = Vec::new();
    for claim in claims {
        let is_meant = claim.provider_id().is_some_and(|id| on_demand.contains(id));
        if is_meant && say_on_demand(&karpenter.claim_api(), &**claim).await? {
            updated.push(claim.name_any());
        }
    }
    for node in nodes {
        let id = node
            .spec
            .as_ref()
            .and_then(|spec| spec.provider_id.as_deref());
        if id.is_some_and(|id| on_demand.contains(id)) {
            say_on_demand(&karpenter.node_api(), &**node).await?;
            updated.extend(karpenter.claim_of(node).map(|claim| claim.name_any()));
        }
    }
    updated.sort();
    updated.dedup();
    if !updated.is_empty() {
        let names: Vec<Value> = updated.iter().map(|name| json!({ "name": name })).collect();
        karpenter
            .log
            .reconciliation("capacityreservation.capacitytype")
            .with("NodeClaims", names)
            .debug("updated capacity type for nodeclaims");
    }
    Ok(())
}

/// Returns whether an object is labelled as reserved capacity and is not being deleted.
fn says_reserved(object: &impl Resource) -> bool {
    let stays = object.meta().deletion_timestamp.is_none();
    let kind = object.labels().get(labels::CAPACITY_TYPE);
    stays && kind.is_some_and(|kind| kind == labels::RESERVED)
}

/// Relabels an object from reserved to on-demand capacity. Returns whether the object exists.
async fn say_on_demand<K>(api: &Api<K>, object: &K) -> kube::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut own = Map::from_iter([(labels::CAPACITY_TYPE.to_owned(), labels::ON_DEMAND.into())]);
    for key in [
        labels::CAPACITY_RESERVATION_ID,
        labels::CAPACITY_RESERVATION_TYPE,
        labels::CAPACITY_RESERVATION_INTERRUPTIBLE,
    ] {
        // A merge patch removes labels by null: the reservation's own labels no longer hold either.
        own.insert(key.to_owned(), Value::Null);
    }
    let patch = Patch::Merge(json!({ "metadata": { "labels": own } }));
    let patched = api
        .patch(&object.name_any(), &PatchParams::default(), &patch)
        .await;
    Ok(api_error::ignore_not_found(patched)?.is_some())
}
