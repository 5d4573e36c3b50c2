//! Why a node is no longer what is asked for. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use mullion_api::{
    karpenter::{
        EC2NodeClass, NodeClaim, NodePool, Requirement, node_claim_condition as condition,
    },
    labels,
};
use mullion_cloud::{Instance, PlacementGroup};

use crate::provisioner::{
    market::{Market, TypeNotSold},
    requirements::admits,
};

/// A claim must be this old before it matters that its instance type is not sold any more (core: 1 hour).
const YOUNG: SignedDuration = SignedDuration::from_hours(1);

/// Returns why a launched claim is not what its pool asks for.
pub(super) fn of_pool(claim: &NodeClaim, pool: &NodePool) -> Option<&'static str> {
    let hash = (labels::NODEPOOL_HASH, labels::NODEPOOL_HASH_VERSION);
    if differs(claim.annotations(), pool.annotations(), hash) {
        return Some("NodePoolDrifted");
    }
    let requirements = &pool.spec.template.spec.requirements;
    let meets = |own: &Requirement| admits(own, claim.label(labels::normalized(&own.key)));
    let meets_all = requirements.iter().all(meets);
    (!meets_all).then_some("RequirementsDrifted")
}

/// Returns why a launched claim is not what EC2 sells any more: its type is gone, or is not sold so in its zone. That EC2 has none at this
/// moment does not count.
pub(super) fn of_market(claim: &NodeClaim, market: &Market) -> Option<&'static str> {
    let label = |key| claim.label(key).unwrap_or_default();
    let (kind, zone) = (label(labels::INSTANCE_TYPE), label(labels::ZONE));
    let price = market.price(kind, zone, label(labels::CAPACITY_TYPE));
    price.is_none().then_some("InstanceTypeNotFound")
}

/// Returns whether a claim is so old that [`of_market`] counts.
pub(super) fn is_of_age(claim: &NodeClaim, now: Timestamp) -> bool {
    let born = claim.metadata.creation_timestamp.as_ref();
    born.is_some_and(|born| now.duration_since(born.0) > YOUNG)
}

/// Returns why a launched claim is not what the spec of its class asks for.
pub(super) fn of_class(claim: &NodeClaim, class: &EC2NodeClass) -> Option<&'static str> {
    let hash = (labels::EC2NODECLASS_HASH, labels::EC2NODECLASS_HASH_VERSION);
    differs(claim.annotations(), class.annotations(), hash).then_some("NodeClassDrift")
}

/// Returns why a launched claim does not run the image that nodes of its type boot (AWS provider: `isAMIDrifted`).
///
/// The claim's type is not sold, so the image that its nodes would boot is unknown.
pub(super) fn of_image(
    claim: &NodeClaim,
    market: &Market,
) -> Result<Option<&'static str>, TypeNotSold> {
    let image = claim.status.as_ref().map_or("", |own| &own.image_id);
    if image.is_empty() {
        return Ok(None);
    }
    let instance_type = claim.label(labels::INSTANCE_TYPE).unwrap_or_default();
    Ok((!market.boots(image, instance_type)?).then_some("AMIDrift"))
}

/// Returns why an instance is not where its class asks for. A class that has found nothing says nothing.
pub(super) fn of_instance(instance: &Instance, class: &EC2NodeClass) -> Option<&'static str> {
    let status = class.status.as_ref()?;
    let mut wanted: Vec<&str> = status
        .security_groups
        .iter()
        .map(|group| group.id.as_str())
        .collect();
    let mut groups: Vec<&str> = instance.security_groups.iter().map(|own| &**own).collect();
    wanted.sort_unstable();
    groups.sort_unstable();
    // Compared as sets: EC2 returns an instance's groups in any order.
    if !wanted.is_empty() && !groups.is_empty() && wanted != groups {
        return Some("SecurityGroupDrift");
    }
    let subnets = &status.subnets;
    let is_elsewhere = subnets.iter().all(|subnet| *subnet.id != *instance.subnet);
    (!subnets.is_empty() && is_elsewhere).then_some("SubnetDrift")
}

/// Returns why an instance is not in a capacity reservation that its class selects.
pub(super) fn of_reservation(instance: &Instance, class: &EC2NodeClass) -> Option<&'static str> {
    // An instance outside any reservation does not drift, though the class may select some by now.
    let own = instance.reservation.as_ref()?;
    let status = class.status.iter();
    let mut selected = status.flat_map(|status| &status.capacity_reservations);
    let is_selected = selected.any(|selected| *selected.id == *own.id);
    (!is_selected).then_some("CapacityReservationDrift")
}

/// Returns why a node is not in the placement group that its class selects now.
pub(super) fn of_group(claim: &NodeClaim, group: Option<&PlacementGroup>) -> Option<&'static str> {
    let wanted = group.map(|group| &*group.id);
    (claim.label(labels::PLACEMENT_GROUP_ID) != wanted).then_some("PlacementGroupDrift")
}

/// Returns whether a claim can have drifted at all.
pub(super) fn is_launched(claim: &NodeClaim) -> bool {
    claim.is(condition::LAUNCHED)
}

/// Returns whether a hash on a claim is not the one its origin has now; hashes of different versions are not compared.
fn differs(
    own: &BTreeMap<String, String>,
    origin: &BTreeMap<String, String>,
    (hash, version): (&str, &str),
) -> bool {
    let both = |key: &str| own.get(key).zip(origin.get(key));
    let is_same_version = both(version).is_some_and(|(own, origin)| own == origin);
    // Another version hashes other fields, so a difference would say nothing; the stamp is renewed instead.
    is_same_version && both(hash).is_some_and(|(own, origin)| own != origin)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(requirements: Value) -> NodePool {
        serde_json::from_value(json!({
            "metadata": { "name": "p", "annotations": {
                labels::NODEPOOL_HASH: "1", labels::NODEPOOL_HASH_VERSION: "v3"
            }},
            "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": requirements
            }}}
        }))
        .expect("a pool")
    }

    fn class() -> EC2NodeClass {
        serde_json::from_value(json!({
            "metadata": { "name": "n", "annotations": {
                labels::EC2NODECLASS_HASH: "7", labels::EC2NODECLASS_HASH_VERSION: "v1"
            }},
            "spec": { "subnetSelectorTerms": [], "securityGroupSelectorTerms": [], "amiSelectorTerms": [] }
        }))
        .expect("a class")
    }

    fn claim(edit: impl FnOnce(&mut Value)) -> NodeClaim {
        let mut claim = json!({
            "metadata": {
                "name": "c", "labels": { "topology.kubernetes.io/zone": "a" },
                "annotations": {
                    labels::NODEPOOL_HASH: "1", labels::NODEPOOL_HASH_VERSION: "v3",
                    labels::EC2NODECLASS_HASH: "7", labels::EC2NODECLASS_HASH_VERSION: "v1"
                }
            },
            "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [] },
            "status": { "imageID": "ami-1", "conditions": [{
                "type": "Launched", "status": "True", "reason": "Launched", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"
            }]}
        });
        edit(&mut claim);
        serde_json::from_value(claim).expect("a claim")
    }

    #[test]
    fn a_node_drifts_from_its_pool() {
        let any = pool(json!([]));
        assert_eq!(of_pool(&claim(|_| {}), &any), None);
        let other = hash(labels::NODEPOOL_HASH, "2");
        assert_eq!(of_pool(&other, &any), Some("NodePoolDrifted"));
        let old = claim(|claim| {
            claim["metadata"]["annotations"][labels::NODEPOOL_HASH] = "2".into();
            claim["metadata"]["annotations"][labels::NODEPOOL_HASH_VERSION] = "v2".into();
        });
        let why = of_pool(&old, &any);
        assert_eq!(why, None, "hashes of other versions say nothing");
        let zone =
            json!([{ "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"] }]);
        let why = of_pool(&claim(|_| {}), &pool(zone));
        assert_eq!(why, Some("RequirementsDrifted"));
    }

    #[test]
    fn a_node_drifts_from_its_class() {
        assert_eq!(of_class(&claim(|_| {}), &class()), None);
        let other = hash(labels::EC2NODECLASS_HASH, "8");
        assert_eq!(of_class(&other, &class()), Some("NodeClassDrift"));
    }

    fn hash(key: &'static str, value: &'static str) -> NodeClaim {
        claim(move |claim| claim["metadata"]["annotations"][key] = value.into())
    }

    #[test]
    fn a_type_counts_once_its_claim_is_older_than_an_hour() {
        let claim = claim(|claim| {
            claim["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
        let at = |text: &str| is_of_age(&claim, text.parse().expect("a time"));
        assert!(!at("2026-01-01T01:00:00Z") && at("2026-01-01T01:00:01Z"));
        assert!(is_launched(&claim));
    }
}
