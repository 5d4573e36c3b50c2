//! Acts on the claims of an instance after an interruption message or a failed status check.

use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};
use mullion_api::{karpenter::NodeClaim, labels};
use mullion_cloud::{CapacityType, InstanceId, LaunchOption, MessageKind};

use super::kind::{Action, Kind};
use crate::{
    nodeclaim::{deadline, log_unavailable},
    provisioner::{BY_INSTANCE, KarpenterContext, decision_log::Reconciliation},
};

/// Carries out the action of `kind` on the claims of an instance. Returns whether the instance has
/// claims.
pub(super) async fn act(
    karpenter: &KarpenterContext,
    kind: Kind,
    instance: &InstanceId,
    pass: &Reconciliation,
) -> kube::Result<bool> {
    let claims = karpenter.claims.by_index(BY_INSTANCE, &instance.0);
    for claim in &claims {
        let node = karpenter.node_of(claim);
        let mut pass = pass
            .clone()
            .with("messageKind", kind.as_str())
            .with_ref("NodeClaim", &claim.name_any())
            .with("action", kind.action().as_str());
        if let Some(node) = &node {
            pass = pass.with_ref("Node", &node.name_any());
        }
        act_on_claim(karpenter, kind, claim, node.as_deref(), &pass).await?;
    }
    Ok(!claims.is_empty())
}

async fn act_on_claim(
    karpenter: &KarpenterContext,
    kind: Kind,
    claim: &NodeClaim,
    node: Option<&Node>,
    pass: &Reconciliation,
) -> kube::Result<()> {
    let (reason, message) = kind.event();
    let action = kind.action();
    record(karpenter, claim, action, reason, message);
    if let Some(node) = node {
        record(karpenter, node, action, reason, message);
    }
    if let Some(option) = taken_back(kind, claim) {
        let is_spot = option.capacity_type == CapacityType::Spot;
        // EC2 repeats its messages; a claim that is being deleted was counted with the first one.
        if is_spot && claim.metadata.deletion_timestamp.is_none() {
            let now = karpenter.base.clock.now();
            if karpenter.risks.taken_back(claim, now) {
                karpenter.discovered.request_write();
            }
        }
        // The offering was just taken back, so the replacement must not be bought there again at once.
        match karpenter.cloud.mark_unavailable(option.clone()).await {
            Ok(rests) => log_unavailable(pass, kind.as_str(), &option, rests),
            Err(error) => pass
                .clone()
                .error("marking an offering as unavailable", &error),
        }
    }
    if action == Action::None {
        return Ok(());
    }
    let name = claim.name_any();
    // Read again from the API server: an action that was already taken must not be repeated.
    let Some(claim) = karpenter.claim_api().get_opt(&name).await? else {
        return Ok(());
    };
    // The instance is broken, so a drain that waits for its pods might never end.
    if action == Action::ForcefulTermination && deadline::text(&claim).is_none() {
        deadline::set_now(karpenter, &claim).await?;
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    karpenter.delete_claim(&name).await?;
    karpenter.count_disrupted(&claim, None, kind.as_str());
    pass.info("initiating delete from interruption message");
    let (reason, recorder) = ("TerminatingOnInterruption", &karpenter.recorder);
    let message = |what| format!("Interruption triggered termination for the {what}");
    recorder.warning(&claim, reason, message("NodeClaim"));
    if let Some(node) = node {
        recorder.warning(node, reason, message("Node"));
    }
    Ok(())
}

fn record<K: Resource<DynamicType = ()>>(
    karpenter: &KarpenterContext,
    object: &K,
    action: Action,
    reason: &str,
    message: &str,
) {
    match action {
        Action::None => karpenter.recorder.normal(object, reason, message),
        _ => karpenter.recorder.warning(object, reason, message),
    }
}

/// Returns the offering of a claim's instance if the cloud takes that back: spot capacity, or capacity of a reservation.
fn taken_back(kind: Kind, claim: &NodeClaim) -> Option<LaunchOption> {
    let (capacity_type, reservation) = match kind {
        Kind::Message(MessageKind::SpotInterruption) => (CapacityType::Spot, None),
        Kind::Message(MessageKind::ReservationInterruption) => {
            let id = claim.label(labels::CAPACITY_RESERVATION_ID)?;
            (CapacityType::Reserved, Some(id.to_owned()))
        }
        _ => return None,
    };
    Some(LaunchOption {
        instance_type: claim.label(labels::INSTANCE_TYPE)?.to_owned(),
        zone: claim.label(labels::ZONE)?.to_owned(),
        capacity_type,
        reservation,
        placement: None,
    })
}
