//! The volumes that a node which goes is waited for: those of pods that leave it.
//!
//! The volumes of pods that stay to the node's end are never detached before that, so nobody waits for them (core:
//! `filterVolumeAttachments`).

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, Volume},
    storage::v1::VolumeAttachment,
};
use kube::{Api, ResourceExt, api::ListParams};

use super::drain;
use crate::{api_error, provisioner::KarpenterContext};

/// Returns the names of the attachments that the node's end waits for. A server without VolumeAttachments has none.
pub(super) async fn pending(karpenter: &KarpenterContext, node: &str) -> kube::Result<Vec<String>> {
    let api: Api<VolumeAttachment> = Api::all(karpenter.base.client.clone());
    let all = api_error::ignore_not_found(api.list(&ListParams::default()).await)?;
    let all = all.into_iter().flat_map(|list| list.items);
    let attached: Vec<_> = all.filter(|own| own.spec.node_name == node).collect();
    // Most nodes have no attachments; the claims of their pods are then never read.
    if attached.is_empty() {
        return Ok(Vec::new());
    }
    let kept = kept_volumes(karpenter, node).await?;
    let is_waited_for = |own: &VolumeAttachment| {
        let volume = own.spec.source.persistent_volume_name.as_deref();
        volume.is_some_and(|volume| !kept.contains(volume))
    };
    let waited_for = attached.iter().filter(|own| is_waited_for(own));
    Ok(waited_for.map(ResourceExt::name_any).collect())
}

/// Returns the volumes of pods that stay on the node to its end.
async fn kept_volumes(karpenter: &KarpenterContext, node: &str) -> kube::Result<BTreeSet<String>> {
    let now = karpenter.base.clock.now();
    let mut kept = BTreeSet::new();
    for (namespace, claim) in claims_of_staying(&karpenter.pods_on(node), now) {
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(karpenter.base.client.clone(), &namespace);
        let spec = api.get_opt(&claim).await?.and_then(|claim| claim.spec);
        kept.extend(spec.and_then(|spec| spec.volume_name));
    }
    Ok(kept)
}

/// Returns namespace and name of the claims of pods that do not leave before their node is gone.
fn claims_of_staying(pods: &[Arc<Pod>], now: Timestamp) -> Vec<(String, String)> {
    let staying = pods.iter().filter(|pod| !drain::is_drainable(pod, now));
    let claims = staying.flat_map(|pod| {
        let volumes = pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        let namespace = pod.namespace().unwrap_or_default();
        volumes
            .filter_map(|volume| Some((namespace.clone(), claim_name(pod, volume)?)))
            .collect::<Vec<_>>()
    });
    claims.collect()
}

/// Returns the claim of a volume, if it has one.
fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some(source.claim_name.clone());
    }
    let ephemeral = volume.ephemeral.as_ref()?;
    // The claim of a generic ephemeral volume is named after its pod and volume.
    ephemeral.volume_claim_template.as_ref()?;
    Some(format!("{}-{}", pod.name_any(), volume.name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn claims_of_pods_that_stay_are_not_waited_for() {
        let pod = |name: &str, tolerations: Value| -> Arc<Pod> {
            let pod = json!({
                "metadata": { "name": name, "namespace": "d" },
                "spec": { "containers": [], "tolerations": tolerations, "volumes": [
                    { "name": "data", "persistentVolumeClaim": { "claimName": format!("{name}-data") } },
                    { "name": "scratch", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } },
                    { "name": "other", "emptyDir": {} }
                ]}
            });
            Arc::new(serde_json::from_value(pod).expect("a pod"))
        };
        let pods = [
            pod("leaves", json!([])),
            pod("stays", json!([{ "operator": "Exists" }])),
        ];
        let claims = claims_of_staying(&pods, Timestamp::UNIX_EPOCH);
        let names: Vec<_> = claims.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["stays-data", "stays-scratch"]);
    }
}
