//! The hash of a pool or class and the version of its algorithm, as annotations, and their renewal on claims that were
//! stamped by another version.
//!
//! Invariant: a claim is only compared with a hash of its own version. When the controllers take over from a program (or an earlier release) with
//! another version, claims are taken to be what their origin asks for now, except those that have drifted: these stay drifted (Karpenter:
//! `nodepool.hash`, `nodeclass.hash`).

use std::sync::Arc;

use kube::{
    Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::{
    karpenter::{
        EC2NodeClassSpec, NodeClaim, NodeClaimTemplate, node_claim_condition as condition,
    },
    labels,
};
use serde_json::{Value, json};

use super::hash::{HASH_VERSION, class_hash, template_hash};
use crate::{api_error, provisioner::KarpenterContext};

/// A hash and its version, with the annotations that they are kept in.
pub(super) struct Stamp {
    hash_key: &'static str,
    hash: String,
    version_key: &'static str,
    version: &'static str,
}

impl Stamp {
    pub(super) fn of_pool(template: &NodeClaimTemplate) -> Self {
        Self {
            hash_key: labels::NODEPOOL_HASH,
            hash: template_hash(template),
            version_key: labels::NODEPOOL_HASH_VERSION,
            version: HASH_VERSION,
        }
    }

    pub(super) fn of_class(spec: &EC2NodeClassSpec) -> Self {
        Self {
            hash_key: labels::EC2NODECLASS_HASH,
            hash: class_hash(spec),
            version_key: labels::EC2NODECLASS_HASH_VERSION,
            version: labels::EC2NODECLASS_HASH_VERSION_VALUE,
        }
    }

    /// Returns the annotations of the pool or class.
    pub(super) fn annotations(&self) -> Value {
        json!({ self.hash_key: self.hash, self.version_key: self.version })
    }

    /// Renews the stamps of claims before that of their origin, which has another version. Does nothing once the origin has this version.
    pub(super) async fn renew(
        &self,
        karpenter: &KarpenterContext,
        origin: &impl Resource,
        claims: &[Arc<NodeClaim>],
    ) -> kube::Result<()> {
        if self.is_on(origin) {
            return Ok(());
        }
        for claim in claims {
            if let Some(annotations) = self.renewed(claim) {
                let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
                let api = karpenter.claim_api();
                let name = claim.name_any();
                let patched = api.patch(&name, &PatchParams::default(), &patch).await;
                api_error::ignore_not_found(patched)?;
            }
        }
        Ok(())
    }

    /// Returns the annotations that a claim with a stamp of another version gets.
    fn renewed(&self, claim: &NodeClaim) -> Option<Value> {
        if self.is_on(claim) {
            return None;
        }
        Some(match claim.condition(condition::DRIFTED) {
            // Its hash is another program's, which no hash of this version equals.
            // A drifted claim must stay drifted: with the new hash it would look like a current one.
            Some(_) => json!({ self.version_key: self.version }),
            None => self.annotations(),
        })
    }

    fn is_on(&self, object: &impl Resource) -> bool {
        let annotations = object.meta().annotations.as_ref();
        let version = annotations.and_then(|own| own.get(self.version_key));
        version.is_some_and(|own| own == self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(version: &str, conditions: Value) -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "c", "annotations": {
                "karpenter.sh/nodepool-hash": "7", "karpenter.sh/nodepool-hash-version": version
            }},
            "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [] },
            "status": { "conditions": conditions }
        }))
        .expect("a claim")
    }

    #[test]
    fn a_claim_of_another_version_gets_the_hash_of_now_unless_it_has_drifted() {
        let stamp = Stamp::of_pool(&NodeClaimTemplate::default());
        assert_eq!(stamp.renewed(&claim("v3", json!([]))), None);
        let renewed = stamp.renewed(&claim("v2", json!([])));
        assert_eq!(renewed, Some(stamp.annotations()));
        let drifted = json!([{
            "type": "Drifted", "status": "True", "reason": "NodePoolDrifted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"
        }]);
        let renewed = stamp.renewed(&claim("v2", drifted));
        let version = json!({ "karpenter.sh/nodepool-hash-version": "v3" });
        assert_eq!(renewed, Some(version));
    }
}
