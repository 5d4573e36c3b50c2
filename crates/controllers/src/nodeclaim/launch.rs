//! The launch step of a NodeClaim: buys an instance for it.
//!
//! Invariant: the options are tried cheapest first. If none has capacity, or the class cannot be used, the claim is deleted:
//! the provisioner then makes a new plan, which may use another pool or place the pods differently.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use kube::ResourceExt;
use mullion_api::{
    eksctl::{Taint, TaintEffect},
    karpenter::{AmiStatus, EC2NodeClass, NodeClaim, node_claim_condition as condition},
    labels,
};
use mullion_cloud::{
    CloudError, FleetError, Instance, LaunchClass, LaunchImage, LaunchOption, LaunchRequest,
    Placement, Registration, Reservation, Shortage, image::ImageVariant,
};
use serde_json::json;

use super::{
    Error, edit,
    launch_failure::{self, classified},
    launch_turns::LaunchTurns,
    pass, traced,
};
use crate::{
    kubelet::pace::go_duration,
    nodepool::hash::class_hash,
    provisioner::{
        KarpenterContext,
        conditions::Status,
        decision_log::Reconciliation,
        market::{Market, amounts, instance_labels, launch_tenancy, resource_list},
        metrics::Metric,
        requirements::decided_labels,
    },
};

/// The result of the launch step.
pub(super) enum Outcome {
    /// The claim is launched.
    Done,
    /// Another launch is testing whether EC2 has capacity for this claim's options; its end wakes the claim.
    Waits,
    /// The claim cannot be launched and is being deleted.
    Refused,
}

/// Launches the claim unless it is launched already.
pub(super) async fn step(
    karpenter: &KarpenterContext,
    turns: &LaunchTurns,
    claim: &mut NodeClaim,
) -> Result<Outcome, Error> {
    if claim.is(condition::LAUNCHED) {
        return Ok(Outcome::Done);
    }
    let class = match resolve(karpenter, claim).await? {
        Ok(class) => class,
        Err(Refusal::Unready) => {
            wait(karpenter, claim);
            return Err(Error::ClassUnready);
        }
        Err(refusal) => return refuse(karpenter, claim, &refusal).await,
    };
    let market = market(karpenter, claim, &class).await?;
    let request = order(karpenter, claim, &class, &market);
    if request.options.is_empty() {
        return refuse(karpenter, claim, &Refusal::NoOptions).await;
    }
    // Taken after all awaits that prepare the request, so that a slow preparation holds nobody up.
    let Some(turn) = turns.take(&claim.name_any(), &request.options) else {
        return Ok(Outcome::Waits);
    };
    let place = request.options[0].placement.clone();
    let (began, options) = (karpenter.base.clock.now(), request.options.len());
    let launched = karpenter.cloud.launch(request).await;
    traced::launch(karpenter, claim, began, options, &launched);
    match launched {
        Ok(launch) => {
            // The turn ends before anything is written, because others wait for this result.
            turn.ended(&launch.refused, Some(bought(&launch.instance, place)));
            record_refused(karpenter, claim, &class, &launch.refused);
            note(karpenter, claim, &class, &market, &launch.instance);
            Ok(Outcome::Done)
        }
        Err(CloudError::InsufficientCapacity(refused)) => {
            turn.ended(&refused, None);
            record_refused(karpenter, claim, &class, &refused);
            let sold_out = Refusal::SoldOut(CloudError::InsufficientCapacity(refused));
            refuse(karpenter, claim, &sold_out).await
        }
        // Any other error may pass, so the claim stays and is tried again until its launch times out.
        Err(error) => {
            if let CloudError::Unfulfilled { .. } = &error {
                let text = format!("launching nodeclaim, creating instance, {error}");
                pass(karpenter, "nodeclaim.lifecycle", claim).error("Reconciler error", &text);
            }
            edit(karpenter, claim, |conditions| {
                let (reason, message) = classified(&error);
                conditions.set(condition::LAUNCHED, Status::Unknown, reason, &message);
            });
            Err(Error::Launch(error))
        }
    }
}

/// Returns the images in the class's status. Newer ones would look like drift until the status shows them.
fn launch_images(class: &EC2NodeClass) -> Vec<LaunchImage> {
    let found = class.status.iter().flat_map(|status| &status.amis);
    let image = |own: &AmiStatus| LaunchImage {
        id: own.id.clone(),
        variant: ImageVariant::requiring(&own.requirements),
    };
    found.map(image).collect()
}

/// Returns the launch option that an instance corresponds to, of a launch that asked for this place in a placement group.
fn bought(instance: &Instance, placement: Option<Placement>) -> LaunchOption {
    LaunchOption {
        instance_type: instance.instance_type.name.to_string(),
        zone: instance.zone.to_string(),
        capacity_type: instance.capacity_type,
        reservation: instance.reservation.as_ref().map(|own| own.id.to_string()),
        placement,
    }
}

/// Records the refused options, even if another option was bought: plans avoid them for a while.
fn record_refused(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    class: &EC2NodeClass,
    refused: &[FleetError],
) {
    let entries = pass(karpenter, "nodeclaim.lifecycle", claim);
    let subnets = class.status.as_ref().map(|own| own.subnets.as_slice());
    let zone_id = |zone: &str| {
        let mut subnets = subnets.unwrap_or_default().iter();
        let subnet = subnets.find(|own| own.zone == zone);
        subnet.map_or("", |own| own.zone_id.as_str())
    };
    for error in refused {
        let option = &error.option;
        karpenter.metrics.count(
            Metric::LaunchFailures,
            &[
                ("capacity_type", option.capacity_type.as_str()),
                ("reason", launch_failure::of_offering(&error.shortage)),
                ("zone", &option.zone),
                ("zone_id", zone_id(&option.zone)),
            ],
        );
        let now = karpenter.base.clock.now();
        if error.shortage == Shortage::Addresses {
            karpenter.full_subnets.refused(class, &option.zone, now);
        }
        // Only a refusal that counts changes what the ConfigMap keeps.
        if karpenter.risks.refused(&error.option, now) {
            karpenter.discovered.request_write();
        }
        let (reason, rests) = (error.shortage.code(), error.unavailable_for);
        log_unavailable(&entries, reason, &error.option, rests);
    }
}

/// Logs that plans avoid an offering for a while.
pub(crate) fn log_unavailable(
    entries: &Reconciliation,
    reason: &str,
    option: &LaunchOption,
    rests: Duration,
) {
    let ttl = SignedDuration::try_from(rests).unwrap_or_default();
    entries
        .clone()
        .with("reason", reason)
        .with("instance-type", option.instance_type.as_str())
        .with("zone", option.zone.as_str())
        .with("capacity-type", option.capacity_type.as_str())
        .with("ttl", go_duration(ttl))
        .debug("removing offering from offerings");
}

/// Why a claim is deleted instead of launched, with Karpenter's messages.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(
        "insufficient capacity, resolving node class, ec2nodeclasses.karpenter.k8s.aws {0:?} not found"
    )]
    NoClass(String),
    #[error(
        "insufficient capacity, resolving node class, ec2nodeclasses.karpenter.k8s.aws {0:?} is terminating, treating as not found"
    )]
    ClassTerminating(String),
    #[error("NodeClassRef not ready, {0}")]
    ClassNotReady(String),
    #[error("resolving NodeClass readiness, NodeClass is in Ready=Unknown")]
    Unready,
    #[error("insufficient capacity, all requested instance types were unavailable during launch")]
    NoOptions,
    #[error("creating instance, insufficient capacity, with fleet error(s), {0}")]
    SoldOut(CloudError),
}

/// Returns the class of a claim, or why nodes cannot be launched from it.
async fn resolve(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
) -> Result<Result<EC2NodeClass, Refusal>, Error> {
    let name = &claim.spec.node_class_ref.name;
    let Some(class) = karpenter.class_api().get_opt(name).await? else {
        return Ok(Err(Refusal::NoClass(name.clone())));
    };
    Ok(usable(class))
}

/// Returns the market of a claim's class, with the overlays that apply to its pool.
async fn market(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    class: &EC2NodeClass,
) -> Result<Market, Error> {
    let requests = amounts(&claim.spec.resources.requests);
    let market = karpenter.market(class).await?.for_requests(&requests);
    let pool = claim
        .node_pool()
        .and_then(|name| karpenter.pools.get("", name));
    Ok(match pool {
        Some(pool) => market.with_overlays(&pool, &karpenter.effective_overlays.now()),
        None => market,
    })
}

fn usable(class: EC2NodeClass) -> Result<EC2NodeClass, Refusal> {
    if class.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::ClassTerminating(class.name_any()));
    }
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.filter(|c| c.type_ == condition::READY);
    let ready = ready
        .next()
        .map(|ready| (ready.status.as_str(), &ready.message));
    match ready {
        Some(("True", _)) => Ok(class),
        Some(("False", message)) => Err(Refusal::ClassNotReady(message.clone())),
        // Unknown may become True shortly, so the claim waits; deleting it would make the provisioner order
        // it anew.
        _ => Err(Refusal::Unready),
    }
}

fn wait(karpenter: &KarpenterContext, claim: &mut NodeClaim) {
    edit(karpenter, claim, |conditions| {
        let (kind, reason) = (condition::LAUNCHED, "NodeClassReadinessUnknown");
        conditions.set(
            kind,
            Status::Unknown,
            reason,
            "NodeClass is in Ready=Unknown",
        );
    });
}

fn order(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    class: &EC2NodeClass,
    market: &Market,
) -> LaunchRequest {
    let requests = amounts(&claim.spec.resources.requests);
    let name = claim.name_any();
    let pool = claim.node_pool().unwrap_or_default();
    let mut request = class_request(&karpenter.options.cluster, class, market, pool);
    // Without an allowed tenancy there are no options either, and nothing is launched.
    request.template.tenancy = launch_tenancy(&claim.spec.requirements).unwrap_or_default();
    let own = [("Name", &name), ("karpenter.sh/nodeclaim", &name)];
    let own = own.map(|(key, value)| (key.to_owned(), value.clone()));
    request.tags.extend(own);
    LaunchRequest {
        // The same token makes EC2 return the instance of an earlier attempt instead of launching a second
        // one.
        client_token: claim.uid().unwrap_or(name),
        options: market.launch_options(&claim.spec.requirements, &requests),
        registration: Registration {
            labels: claim.labels().clone(),
            taints: registration_taints(claim),
        },
        ..request
    }
}

/// Returns a request for an instance of a class and a pool, with no options yet.
pub(crate) fn class_request(
    cluster: &str,
    class: &EC2NodeClass,
    market: &Market,
    pool: &str,
) -> LaunchRequest {
    let mut tags = class.spec.tags.clone();
    tags.extend(
        [
            (labels::CLUSTER_TAG, cluster),
            (labels::NODEPOOL, pool),
            (labels::EC2NODECLASS, &class.name_any()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    let status = class.status.as_ref();
    LaunchRequest {
        client_token: String::new(),
        options: Vec::new(),
        subnets: market.subnets.clone(),
        security_groups: security_groups(class),
        template: market.template.clone(),
        images: launch_images(class),
        registration: Registration::default(),
        tags,
        class: Some(Box::new(LaunchClass {
            spec: class.spec.clone(),
            instance_profile: status
                .map(|own| own.instance_profile.clone())
                .unwrap_or_default(),
        })),
    }
}

/// Returns the ids of the security groups in the class's status.
fn security_groups(class: &EC2NodeClass) -> Vec<Arc<str>> {
    let found = class.status.iter().flat_map(|own| &own.security_groups);
    found.map(|group| group.id.as_str().into()).collect()
}

/// Returns the taints that the kubelet registers with: Karpenter's `unregistered`, then the claim's taints and startup
/// taints.
fn registration_taints(claim: &NodeClaim) -> Vec<Taint> {
    let unregistered = Taint {
        key: labels::UNREGISTERED_TAINT.to_owned(),
        value: String::new(),
        effect: TaintEffect::NoExecute,
    };
    let spec = &claim.spec;
    let others = spec.taints.iter().chain(&spec.startup_taints);
    let others = others.filter_map(|taint| {
        Some(Taint {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            // The schema allows no other effects, so none is lost here.
            effect: taint.effect.parse().ok()?,
        })
    });
    std::iter::once(unregistered).chain(others).collect()
}

/// Writes the launched instance into the claim's labels, annotations and status.
fn note(
    karpenter: &KarpenterContext,
    claim: &mut NodeClaim,
    class: &EC2NodeClass,
    market: &Market,
    instance: &Instance,
) {
    let mut own = instance_labels(
        market,
        &instance.instance_type,
        &instance.zone,
        &instance.zone_id,
        instance.capacity_type,
    );
    own.extend(decided_labels(&claim.spec.requirements));
    for (key, value) in instance.reservation.iter().flat_map(Reservation::labels) {
        own.insert(key.to_owned(), value);
    }
    for (key, value) in instance.placement.iter().flat_map(Placement::labels) {
        own.insert(key.to_owned(), value);
    }
    let (key, value) = instance.tenancy.label();
    own.insert(key.to_owned(), value.to_owned());
    // The claim's own labels win: the pool's template may set a label that the type has, too.
    own.extend(claim.labels().clone());
    claim.metadata.labels = Some(own);
    claim.annotations_mut().extend(
        [
            (labels::EC2NODECLASS_HASH, class_hash(&class.spec)),
            (
                labels::EC2NODECLASS_HASH_VERSION,
                labels::EC2NODECLASS_HASH_VERSION_VALUE.to_owned(),
            ),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    let profile = class.status.as_ref().map(|own| &own.instance_profile);
    if let Some(profile) = profile.filter(|name| !name.is_empty()) {
        claim
            .annotations_mut()
            .insert(labels::INSTANCE_PROFILE.to_owned(), profile.clone());
    }
    let status = claim.status.get_or_insert_default();
    status.provider_id = instance.provider_id.clone();
    status.image_id = instance.image.id.clone();
    // Planned amounts, until the node reports its real ones.
    let (capacity, allocatable) = market.resources(&instance.instance_type);
    status.capacity = resource_list(&capacity);
    status.allocatable = resource_list(&allocatable);
    let expected = json!(status.allocatable);
    edit(karpenter, claim, |conditions| {
        conditions.set_true(condition::LAUNCHED)
    });
    pass(karpenter, "nodeclaim.lifecycle", claim)
        .with("instance-type", &*instance.instance_type.name)
        .with("zone", &*instance.zone)
        .with("capacity-type", instance.capacity_type.as_str())
        .with("allocatable", expected)
        .info("launched nodeclaim");
}

async fn refuse(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    refusal: &Refusal,
) -> Result<Outcome, Error> {
    let name = claim.name_any();
    // Upstream records no event for a class that is not ready; its log and metrics have a reason of its own.
    if !matches!(refusal, Refusal::ClassNotReady(_)) {
        let message = format!(
            "NodeClaim {name} event: {}",
            truncated(&refusal.to_string())
        );
        karpenter
            .recorder
            .warning(claim, "InsufficientCapacityError", message);
    }
    pass(karpenter, "nodeclaim.lifecycle", claim).error("failed launching nodeclaim", refusal);
    karpenter.delete_claim(&name).await?;
    let reason = match refusal {
        Refusal::ClassNotReady(_) => "nodeclass_not_ready",
        _ => "insufficient_capacity",
    };
    karpenter.count_disrupted(claim, None, reason);
    Ok(Outcome::Refused)
}

/// Cuts a message at 300 characters, as Karpenter does in conditions and events.
fn truncated(message: &str) -> String {
    match message.char_indices().nth(300) {
        None => message.to_owned(),
        Some((end, _)) => format!("{}...", &message[..end]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn claim() -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "w-1" },
            "spec": {
                "nodeClassRef": { "group": "g", "kind": "k", "name": "n" },
                "requirements": [
                    { "key": "example.com/team", "operator": "In", "values": ["a"] },
                    { "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"] },
                    { "key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["2"] }
                ],
                "taints": [{ "key": "os", "value": "windows", "effect": "NoSchedule" }],
                "startupTaints": [{ "key": "cni", "effect": "NoExecute" }]
            }
        }))
        .expect("a claim")
    }

    #[test]
    fn a_kubelet_registers_as_unregistered() {
        let taints = registration_taints(&claim());
        let keys: Vec<_> = taints.iter().map(|t| (t.key.as_str(), t.effect)).collect();
        assert_eq!(
            keys,
            [
                ("karpenter.sh/unregistered", TaintEffect::NoExecute),
                ("os", TaintEffect::NoSchedule),
                ("cni", TaintEffect::NoExecute)
            ]
        );
    }

    #[test]
    fn a_claim_is_given_up_when_its_class_is_not_ready_and_waits_when_that_is_unknown() {
        let class = |conditions: serde_json::Value| -> EC2NodeClass {
            serde_json::from_value(json!({
                "metadata": { "name": "c" }, "spec": {}, "status": { "conditions": conditions }
            }))
            .expect("a class")
        };
        let ready = |status: &str| {
            json!([{
                "type": "Ready", "status": status, "reason": "R", "message": "SubnetsReady=False",
                "lastTransitionTime": "2026-01-01T00:00:00Z"
            }])
        };
        let said = |class: EC2NodeClass| usable(class).err().map(|refusal| refusal.to_string());
        assert_eq!(said(class(ready("True"))), None);
        assert_eq!(
            said(class(ready("False"))).as_deref(),
            Some("NodeClassRef not ready, SubnetsReady=False")
        );
        let unknown = Some("resolving NodeClass readiness, NodeClass is in Ready=Unknown");
        assert_eq!(said(class(ready("Unknown"))).as_deref(), unknown);
        assert_eq!(said(class(json!([]))).as_deref(), unknown);
        let mut leaving = class(ready("True"));
        leaving.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(
            said(leaving).as_deref(),
            Some(
                "insufficient capacity, resolving node class, ec2nodeclasses.karpenter.k8s.aws \"c\" is terminating, \
                 treating as not found"
            )
        );
    }

    #[test]
    fn a_requirement_with_one_value_becomes_a_label() {
        let expected = BTreeMap::from([("example.com/team".to_owned(), "a".to_owned())]);
        assert_eq!(decided_labels(&claim().spec.requirements), expected);
    }

    #[test]
    fn long_messages_are_cut() {
        assert_eq!(truncated("short"), "short");
        assert_eq!(truncated(&"x".repeat(400)).len(), 303);
    }
}
