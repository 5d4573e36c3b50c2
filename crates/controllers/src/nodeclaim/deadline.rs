//! The moment after which nothing holds a node back: an annotation of its claim.
//!
//! Invariant: pods are deleted early enough to be gone by then, and volumes are not waited for any longer ([`super::drain`],
//! [`super::node_termination`]). A claim gets it from its `terminationGracePeriod` when it is deleted, or at once when its node is broken.

use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::{karpenter::NodeClaim, labels};
use serde_json::json;

use crate::{api_error, provisioner::KarpenterContext};

/// An annotation that is no time.
#[derive(Debug, thiserror::Error)]
#[error(
    "parsing annotation, {text:?} is no time (annotation={})",
    labels::TERMINATION_TIMESTAMP
)]
pub(crate) struct ParseError {
    text: String,
}

/// Returns the deadline of a claim; `None` if it has none.
///
/// Returns an error if the annotation is no time.
pub(crate) fn of(claim: &NodeClaim) -> Result<Option<Timestamp>, ParseError> {
    let Some(text) = text(claim) else {
        return Ok(None);
    };
    let parsed = text.parse().map(Some);
    parsed.map_err(|_| ParseError { text: text.into() })
}

/// Returns the annotation as it is written.
pub(crate) fn text(claim: &NodeClaim) -> Option<&str> {
    let annotation = claim.annotations().get(labels::TERMINATION_TIMESTAMP);
    annotation.map(String::as_str)
}

/// Sets the deadline of a claim to the present time. Returns the annotation's text.
pub(crate) async fn set_now(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
) -> kube::Result<String> {
    let now = format!("{:.0}", karpenter.base.clock.now());
    let annotations = json!({ labels::TERMINATION_TIMESTAMP: &now });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let (api, name) = (karpenter.claim_api(), claim.name_any());
    let patched = api.patch(&name, &PatchParams::default(), &patch).await;
    api_error::ignore_not_found(patched)?;
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_that_is_no_time_is_an_error() {
        let claim = |value: &str| -> NodeClaim {
            serde_json::from_value(json!({
                "metadata": { "name": "c", "annotations": { labels::TERMINATION_TIMESTAMP: value } },
                "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [] }
            }))
            .expect("a claim")
        };
        let time = of(&claim("2026-01-01T00:00:10Z")).expect("a time");
        assert_eq!(time.map(Timestamp::as_second), Some(1_767_225_610));
        let error = of(&claim("soon")).expect_err("it is none").to_string();
        assert_eq!(
            error,
            "parsing annotation, \"soon\" is no time (annotation=karpenter.sh/nodeclaim-termination-timestamp)"
        );
    }
}
