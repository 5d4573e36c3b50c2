//! Drift: nodes that are no longer what their pool and class ask for.
//!
//! Invariant: the condition `Drifted` of a claim says the first reason that holds, by Karpenter's names; it goes when none does.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt;
use mullion_api::{
    karpenter::{
        DisruptionReason, EC2NodeClass, NodeClaim, NodePool, node_claim_condition as condition,
    },
    labels,
};
use mullion_engine::{ModelError, disrupt::Stays};

use super::{
    candidate::{Candidate, Look},
    command::Command,
    edit,
    told::Told,
};
use crate::provisioner::{
    BY_POOL, KarpenterContext,
    conditions::{Status, true_since},
    demand::Demand,
    market::amounts,
    requirements::admits,
};

/// The condition of a claim whose node has drifted.
const DRIFTED: &str = condition::DRIFTED;

/// Writes down on every claim whether its node has drifted.
pub(super) async fn mark(karpenter: &KarpenterContext) -> kube::Result<()> {
    for pool in karpenter.pools.list() {
        for claim in karpenter.claims.by_index(BY_POOL, &pool.name_any()) {
            let class = karpenter.classes.get("", &claim.spec.node_class_ref.name);
            let reason = reason(&claim, &pool, class.as_deref());
            let is_marked = claim.condition(DRIFTED).map(|own| own.reason.as_str());
            if is_marked == reason || claim.metadata.deletion_timestamp.is_some() {
                continue;
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
                    .pass_over(
                        "nodeclaim.disruption",
                        ("karpenter.sh", "NodeClaim"),
                        &claim.name_any(),
                    )
                    .with("reason", reason)
                    .debug("marking drifted");
            }
        }
    }
    Ok(())
}

/// Why a claim's node is no longer what is asked for; `None` if it is, or was not launched yet.
pub fn reason(
    claim: &NodeClaim,
    pool: &NodePool,
    class: Option<&EC2NodeClass>,
) -> Option<&'static str> {
    if !claim.is(condition::LAUNCHED) {
        return None;
    }
    let of_pool = (labels::NODEPOOL_HASH, labels::NODEPOOL_HASH_VERSION);
    let of_class = (labels::EC2NODECLASS_HASH, labels::EC2NODECLASS_HASH_VERSION);
    let (own, pools) = (claim.annotations(), pool.annotations());
    if differs(own, pools, of_pool) {
        return Some("NodePoolDrifted");
    }
    let requirements = &pool.spec.template.spec.requirements;
    let meets = |own: &mullion_api::karpenter::Requirement| {
        admits(own, claim.label(labels::normalized(&own.key)))
    };
    if !requirements.iter().all(meets) {
        return Some("RequirementsDrifted");
    }
    let class = class?;
    let images = class.status.iter().flat_map(|status| &status.amis);
    let images: Vec<&str> = images.map(|image| image.id.as_str()).collect();
    let image = claim.status.as_ref().map_or("", |status| &status.image_id);
    if !image.is_empty() && !images.is_empty() && !images.contains(&image) {
        return Some("AMIDrift");
    }
    differs(own, class.annotations(), of_class).then_some("NodeClassDrift")
}

/// Whether a hash on a claim is not the one its origin has now; hashes of different versions are not compared.
fn differs(
    own: &BTreeMap<String, String>,
    origin: &BTreeMap<String, String>,
    (hash, version): (&str, &str),
) -> bool {
    let both = |key: &str| own.get(key).zip(origin.get(key));
    let is_same_version = both(version).is_some_and(|(own, origin)| own == origin);
    is_same_version && both(hash).is_some_and(|(own, origin)| own != origin)
}

/// Drifted nodes of a static pool that may be replaced, in the same order as [`candidates`] (core: `StaticDrift`).
pub(super) fn static_candidates(
    look: &Look<'_>,
    karpenter: &KarpenterContext,
    pool: &Arc<NodePool>,
    told: &mut Told,
) -> Vec<Candidate> {
    let mut candidates = of_pool(look, karpenter, pool, told);
    sort(&mut candidates);
    candidates
}

/// Drifted nodes of other pools that may be replaced: those without pods first, then the one that drifted first.
pub(super) fn candidates(
    look: &Look<'_>,
    karpenter: &KarpenterContext,
    told: &mut Told,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for pool in karpenter.pools.list() {
        if pool.spec.replicas.is_some() {
            continue;
        }
        candidates.extend(of_pool(look, karpenter, &pool, told));
    }
    sort(&mut candidates);
    candidates
}

fn of_pool(
    look: &Look<'_>,
    karpenter: &KarpenterContext,
    pool: &Arc<NodePool>,
    told: &mut Told,
) -> Vec<Candidate> {
    let claims = karpenter.claims.by_index(BY_POOL, &pool.name_any());
    let drifted = claims
        .iter()
        .filter(|claim| claim.is(DRIFTED) && !rests(karpenter, claim));
    drifted
        .filter_map(|claim| look.candidate(claim, pool, true, told))
        .collect()
}

fn sort(candidates: &mut [Candidate]) {
    candidates.sort_by_key(|own| {
        let conditions = own.claim.status.as_ref().map(|status| &status.conditions);
        let since = conditions.and_then(|conditions| true_since(conditions, DRIFTED));
        (!own.pods.is_empty(), since, own.node.name_any())
    });
}

fn rests(karpenter: &KarpenterContext, claim: &Arc<NodeClaim>) -> bool {
    let node = karpenter.node_of(claim);
    node.is_some_and(|node| karpenter.disrupting.rests(&node.name_any()))
}

/// What takes the place of a drifted node, at any price; why nothing can, in words, if so.
///
/// # Errors
/// The engine was told of an amount that cannot be true.
pub(super) async fn replacement(
    karpenter: &KarpenterContext,
    candidate: &Candidate,
) -> Result<Result<Command, String>, ModelError> {
    let mut question = Demand::of_all(karpenter).await.into_consolidation();
    let node = candidate.node.name_any();
    let status = candidate.claim.status.as_ref();
    question.candidates = vec![mullion_engine::disrupt::Candidate {
        node: node.clone(),
        pool: candidate.pool.name_any(),
        capacity: status
            .map(|status| amounts(&status.capacity))
            .unwrap_or_default(),
        ..mullion_engine::disrupt::Candidate::default()
    }];
    let answer = karpenter.state.with(|state| {
        let cluster = state.cluster_mut();
        let answer = cluster.relocate(&question)?;
        Ok::<_, ModelError>(answer.map_err(|stays| match stays {
            Stays::PodStuck { pod, why } => {
                format!(
                    "Not all pods would schedule, {pod} => {}",
                    cluster.message(&why)
                )
            }
            _ => "Not all pods would schedule".to_owned(),
        }))
    })?;
    Ok(answer.map(|made| Command {
        reason: DisruptionReason::Drifted,
        candidates: vec![candidate.clone()],
        destinations: made.existing.into_iter().map(|(_, node)| node).collect(),
        replacements: made.replacements,
        saving: 0,
    }))
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
                labels::EC2NODECLASS_HASH: "7", labels::EC2NODECLASS_HASH_VERSION: "v6"
            }},
            "spec": { "subnetSelectorTerms": [], "securityGroupSelectorTerms": [], "amiSelectorTerms": [] },
            "status": { "amis": [{ "id": "ami-1", "name": "new", "requirements": [] }] }
        }))
        .expect("a class")
    }

    fn claim(edit: impl FnOnce(&mut Value)) -> NodeClaim {
        let mut claim = json!({
            "metadata": {
                "name": "c", "labels": { "topology.kubernetes.io/zone": "a" },
                "annotations": {
                    labels::NODEPOOL_HASH: "1", labels::NODEPOOL_HASH_VERSION: "v3",
                    labels::EC2NODECLASS_HASH: "7", labels::EC2NODECLASS_HASH_VERSION: "v6"
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
    fn a_node_drifts_from_its_pool_and_its_class() {
        let any = pool(json!([]));
        let why = |claim: &NodeClaim, pool: &NodePool| reason(claim, pool, Some(&class()));
        assert_eq!(why(&claim(|_| {}), &any), None);
        let hash = |key: &'static str, value: &'static str| {
            claim(move |claim| claim["metadata"]["annotations"][key] = value.into())
        };
        assert_eq!(
            why(&hash(labels::NODEPOOL_HASH, "2"), &any),
            Some("NodePoolDrifted")
        );
        assert_eq!(
            why(&hash(labels::EC2NODECLASS_HASH, "8"), &any),
            Some("NodeClassDrift")
        );
        let old = claim(|claim| {
            claim["metadata"]["annotations"][labels::NODEPOOL_HASH] = "2".into();
            claim["metadata"]["annotations"][labels::NODEPOOL_HASH_VERSION] = "v2".into();
        });
        assert_eq!(
            why(&old, &any),
            None,
            "hashes of other versions say nothing"
        );
        let zone =
            json!([{ "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"] }]);
        assert_eq!(
            why(&claim(|_| {}), &pool(zone)),
            Some("RequirementsDrifted")
        );
        let image = claim(|claim| claim["status"]["imageID"] = "ami-0".into());
        assert_eq!(why(&image, &any), Some("AMIDrift"));
        let launching = claim(|claim| {
            claim["metadata"]["annotations"][labels::NODEPOOL_HASH] = "2".into();
            claim["status"]["conditions"] = json!([]);
        });
        assert_eq!(why(&launching, &any), None);
    }
}
