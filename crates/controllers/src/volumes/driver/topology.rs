//! Chooses the zone in which a volume is created (external-provisioner: `GenerateAccessibilityRequirements`). Pure.
//!
//! A claim whose pod has a node gets its volume in that node's zone. A claim that is bound immediately gets one in
//! a zone chosen by the claim's name, so that the claims of a StatefulSet are spread over the zones.

use std::collections::BTreeSet;

use k8s_openapi::api::{core::v1::Node, storage::v1::StorageClass};
use kube::ResourceExt;
use mullion_api::labels;

use super::DRIVER_ZONE;

/// Returns the zones that a class allows; `None` if it allows all.
fn allowed(class: &StorageClass) -> Option<BTreeSet<&str>> {
    let terms = class.allowed_topologies.as_ref()?;
    let expressions = terms
        .iter()
        .flat_map(|term| term.match_label_expressions.iter().flatten());
    let zones = expressions.filter(|one| is_zone(&one.key));
    let zones: BTreeSet<_> = zones
        .flat_map(|one| one.values.iter().map(String::as_str))
        .collect();
    (!zones.is_empty()).then_some(zones)
}

fn is_zone(key: &str) -> bool {
    [labels::ZONE, labels::BETA_ZONE, DRIVER_ZONE].contains(&key)
}

/// The reason why a volume can be in no zone, with external-provisioner's message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TopologyError {
    /// The node that the scheduler has selected is in no zone that the class allows.
    #[error(
        "error generating accessibility requirements: selected node '{0}' is not in allowed topology"
    )]
    SelectedNode(String),
    /// There are no nodes in a zone.
    #[error("error generating accessibility requirements: no available topology found")]
    NoZone,
}

/// Returns the zone for the volume of a claim.
///
/// # Errors
/// No zone is allowed.
pub(super) fn zone(
    class: &StorageClass,
    claim: &str,
    selected: Option<&Node>,
    nodes: &[impl std::ops::Deref<Target = Node>],
) -> Result<String, TopologyError> {
    let allowed = allowed(class);
    let is_allowed = |zone: &str| allowed.as_ref().is_none_or(|zones| zones.contains(zone));
    if let Some(node) = selected {
        let zone = node.labels().get(labels::ZONE);
        return match zone {
            Some(zone) if is_allowed(zone) => Ok(zone.clone()),
            _ => Err(TopologyError::SelectedNode(node.name_any())),
        };
    }
    // Sorted, so that a claim's zone does not depend on the order of the nodes.
    let zones: BTreeSet<String> = match &allowed {
        Some(zones) => zones.iter().map(|zone| (*zone).to_owned()).collect(),
        // Only zones that have nodes, so that some pod can use the volume.
        None => nodes
            .iter()
            .filter_map(|node| node.labels().get(labels::ZONE).cloned())
            .collect(),
    };
    let (hash, offset) = hash_and_offset(claim);
    let count = zones.len() as u64;
    if count == 0 {
        return Err(TopologyError::NoZone);
    }
    let index = ((u64::from(hash) + offset) % count) as usize;
    Ok(zones.into_iter().nth(index).unwrap_or_default())
}

/// Returns the FNV-1 hash of a claim's name and an offset. For a StatefulSet's claim (`data-web-3`) the hash is
/// that of the name without its number, and the number is the offset.
fn hash_and_offset(claim: &str) -> (u32, u64) {
    let fnv = |text: &str| {
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            hash.wrapping_mul(0x0100_0193) ^ u32::from(byte)
        })
    };
    match claim.rsplit_once('-') {
        Some((base, number)) => match number.parse() {
            // Consecutive numbers give consecutive zones, so the replicas of a StatefulSet are spread evenly.
            Ok(offset) => (fnv(base), offset),
            Err(_) => (fnv(claim), 0),
        },
        None => (fnv(claim), 0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(zone: &str) -> Box<Node> {
        serde_json::from_value(
            json!({ "metadata": { "name": zone, "labels": { labels::ZONE: zone } } }),
        )
        .expect("a node")
    }

    fn class(zones: Option<&[&str]>) -> StorageClass {
        let terms = zones.map(
            |zones| json!([{ "matchLabelExpressions": [{ "key": DRIVER_ZONE, "values": zones }] }]),
        );
        serde_json::from_value(
            json!({ "metadata": { "name": "c" }, "provisioner": "p", "allowedTopologies": terms }),
        )
        .expect("a class")
    }

    #[test]
    fn a_volume_is_made_where_the_pod_will_run() {
        let nodes = [node("a"), node("b")];
        assert_eq!(
            zone(&class(None), "data", Some(&nodes[1]), &nodes),
            Ok("b".into())
        );
        let refused = zone(&class(Some(&["a"])), "data", Some(&nodes[1]), &nodes);
        assert!(refused.is_err_and(|error| error.to_string().contains("not in allowed topology")));
    }

    #[test]
    fn the_claims_of_a_stateful_set_are_spread_over_the_zones() {
        let nodes = [node("a"), node("b"), node("c"), node("a")];
        let zones: BTreeSet<_> = (0..3)
            .map(|index| {
                zone(&class(None), &format!("data-web-{index}"), None, &nodes).expect("a zone")
            })
            .collect();
        assert_eq!(zones.len(), 3);
        let none: [Box<Node>; 0] = [];
        assert!(zone(&class(None), "data", None, &none).is_err());
    }
}
