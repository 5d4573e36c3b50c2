//! Hashes by which a node is known to have come from another version of its pool or class.
//!
//! Invariant: equal content gives equal hashes in every release of this version; what drift must not react to is left
//! out (requirements and budgets of a pool, selectors of a class). The numbers differ from upstream's, which hash Go's
//! memory layout.

use mullion_api::{
    karpenter::{EC2NodeClassSpec, NodeClaimTemplate},
    labels,
};
use serde_json::Value;

/// Version of [`template_hash`].
pub const HASH_VERSION: &str = labels::NODEPOOL_HASH_VERSION_VALUE;

/// Hash of a pool's template, requirements left out.
pub fn template_hash(template: &NodeClaimTemplate) -> String {
    let mut template = template.clone();
    template.spec.requirements.clear();
    hash(&template)
}

/// Hash of a class's spec, selectors left out.
pub fn class_hash(spec: &EC2NodeClassSpec) -> String {
    let mut spec = spec.clone();
    spec.subnet_selector_terms.clear();
    spec.security_group_selector_terms.clear();
    spec.capacity_reservation_selector_terms.clear();
    spec.ami_selector_terms.retain(|term| term.alias.is_some());
    spec.ip_prefix_count = None;
    hash(&spec)
}

fn hash(content: &impl serde::Serialize) -> String {
    // Values keep their fields in order of name, so the text does not depend on how they were written.
    let value = serde_json::to_value(content).unwrap_or(Value::Null);
    let text = value.to_string();
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.to_string()
}

#[cfg(test)]
mod tests {
    use mullion_api::karpenter::Requirement;

    use super::*;

    #[test]
    fn labels_change_the_hash_and_requirements_do_not() {
        let mut template = NodeClaimTemplate::default();
        let first = template_hash(&template);
        template.spec.requirements.push(Requirement::is("a", "b"));
        assert_eq!(template_hash(&template), first);
        template.metadata.labels.insert("team".into(), "a".into());
        assert_ne!(template_hash(&template), first);
    }
}
