//! From a planned node to the NodeClaim that orders it.
//!
//! Invariant: the claim says all that the plan left open and no more: its requirements admit every option of the plan,
//! its requests are what the planned pods and daemons ask for.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use mullion_api::{
    karpenter::{NodeClaim, NodeClaimSpec, NodePool, ResourceRequirements},
    labels,
};
use mullion_engine::provision::PlannedNode;

use super::{market::resource_list, requirements::from_engine};
use crate::nodepool::hash::{HASH_VERSION, template_hash};

/// Returns the claim that orders a planned node of a pool.
pub fn of(planned: &PlannedNode, pool: &NodePool) -> NodeClaim {
    let name = pool.metadata.name.clone().unwrap_or_default();
    let template = &pool.spec.template;
    let spec = &template.spec;
    let mut claim_labels = template.metadata.labels.clone();
    claim_labels.insert(labels::NODEPOOL.to_owned(), name.clone());
    claim_labels.extend([spec.node_class_ref.label()]);
    let mut annotations: BTreeMap<_, _> = template.metadata.annotations.clone();
    annotations.insert(
        labels::NODEPOOL_HASH.to_owned(),
        template_hash(&pool.spec.template),
    );
    annotations.insert(
        labels::NODEPOOL_HASH_VERSION.to_owned(),
        HASH_VERSION.to_owned(),
    );
    annotations.insert(
        labels::MIN_VALUES_RELAXED.to_owned(),
        planned.min_values_relaxed.to_string(),
    );
    let requirements = planned.requirements.iter().map(from_engine).collect();
    NodeClaim {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name}-")),
            labels: Some(claim_labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owner(pool)]),
            ..ObjectMeta::default()
        },
        spec: NodeClaimSpec {
            taints: spec.taints.clone(),
            startup_taints: spec.startup_taints.clone(),
            requirements,
            resources: ResourceRequirements {
                requests: resource_list(&planned.requests),
            },
            node_class_ref: spec.node_class_ref.clone(),
            termination_grace_period: spec.termination_grace_period.clone(),
            expire_after: spec.expire_after.clone(),
        },
        status: None,
    }
}

fn owner(pool: &NodePool) -> OwnerReference {
    OwnerReference {
        api_version: NodePool::api_version(&()).into_owned(),
        kind: NodePool::kind(&()).into_owned(),
        name: pool.metadata.name.clone().unwrap_or_default(),
        uid: pool.metadata.uid.clone().unwrap_or_default(),
        // Karpenter sets `blockOwnerDeletion` and no controller, so that deleting the pool in the
        // foreground waits for its claims.
        controller: None,
        block_owner_deletion: Some(true),
    }
}

#[cfg(test)]
mod tests {
    use mullion_api::karpenter::{Operator, Requirement};
    use mullion_engine::provision;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_carries_the_pools_template_and_the_plans_choice() {
        let pool: NodePool = serde_json::from_value(json!({
            "metadata": { "name": "windows2022", "uid": "u" },
            "spec": { "template": {
                "metadata": { "labels": { "team": "a" }, "annotations": { "note": "b" } },
                "spec": {
                    "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "w" },
                    "requirements": [],
                    "taints": [{ "key": "os", "value": "windows", "effect": "NoSchedule" }],
                    "expireAfter": "Never"
                }
            }}
        }))
        .expect("a pool");
        let requirement = Requirement::new(
            labels::INSTANCE_TYPE,
            Operator::In,
            ["c6a.xlarge", "c5a.xlarge"],
        );
        let planned = provision::PlannedNode {
            pool: "windows2022".into(),
            options: [].into(),
            requirements: [super::super::requirements::to_engine(&requirement)].into(),
            pods: vec!["uid".into()],
            requests: [("pods".to_owned(), "10".parse().expect("a quantity"))].into(),
            daemons: [].into(),
            node_price_micro_usd: 0,
            min_values_relaxed: false,
            reservations: [].into(),
        };
        let claim = of(&planned, &pool);
        assert_eq!(
            claim.metadata.generate_name.as_deref(),
            Some("windows2022-")
        );
        assert_eq!(claim.node_pool(), Some("windows2022"));
        assert_eq!(claim.label("team"), Some("a"));
        assert_eq!(claim.label("karpenter.k8s.aws/ec2nodeclass"), Some("w"));
        assert_eq!(claim.spec.requirements, [requirement]);
        assert_eq!(claim.spec.resources.requests.text("pods"), Some("10"));
        assert_eq!(claim.spec.taints.len(), 1);
        assert_eq!(
            claim.spec.expire_after.as_ref().and_then(|e| e.duration()),
            None
        );
        let owners = claim.metadata.owner_references.expect("set");
        assert_eq!(
            (owners[0].kind.as_str(), owners[0].uid.as_str()),
            ("NodePool", "u")
        );
    }
}
